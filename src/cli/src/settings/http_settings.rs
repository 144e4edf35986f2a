//! Settings of plain HTTP for `serve`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use tracing::warn;
use trunkline_http::{AllowedOrigins, ReasoningParser, ToolCallParser};
use trunkline_template::ChatTemplate;
use trunkline_text::ChatSource;

use crate::model::marks::Marks;
use crate::model::model_source::ModelSource;

/// Least memory for responses, bytes.
const RESPONSE_BYTES_MIN: u64 = 1 << 16;

/// Settings of plain HTTP; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "HTTP")]
pub struct HttpSettings {
    /// Name of the model for clients of HTTP, several separated by commas; the first is the one in answers [default: the model's own].
    #[arg(long, value_name = "NAMES")]
    pub served_model_name: Option<String>,

    /// Chat template (Jinja) for /v1/chat/completions [default: the model's own, of chat_template.jinja, tokenizer_config.json or the GGUF file].
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,

    /// Form in which the model calls tools, for chats to have calls apart from the text: hermes (Qwen too), llama3_json or mistral [default: calls stay
    /// in the text].
    #[arg(long, value_name = "NAME")]
    pub tool_call_parser: Option<ToolCallParser>,

    /// Form in which the model reasons, for chats to have the reasoning apart from the text: deepseek_r1 or qwen3 [default: it stays in the text].
    #[arg(long, value_name = "NAME")]
    pub reasoning_parser: Option<ReasoningParser>,

    /// Memory for responses that later ones go on from, bytes; half of it for one client. Beyond, those that were not used for the longest time are
    /// forgotten. 0 keeps none [default: 67108864].
    #[arg(long, value_name = "BYTES")]
    pub response_bytes: Option<u64>,

    /// Origins whose pages may read answers in a browser, several separated by commas, or * for all [default: none].
    #[arg(long, value_name = "ORIGINS")]
    pub allowed_origins: Option<AllowedOrigins>,
}

impl HttpSettings {
    /// Returns the settings of the door for a model.
    ///
    /// # Errors
    /// If the template of --chat-template cannot be used, or a setting is out of range. A model's own template is left out, with a warning: prompts do
    /// without.
    pub fn door(&self, model: Option<&Path>) -> anyhow::Result<trunkline_http::Settings> {
        let bytes = self.response_bytes.unwrap_or(RESPONSE_BYTES_MIN);
        let is_enough = bytes == 0 || bytes >= RESPONSE_BYTES_MIN;
        ensure!(is_enough, "response-bytes is {bytes}; it must be 0 or at least {RESPONSE_BYTES_MIN}");
        let served_names = self.served_names().map(str::to_owned).collect();
        let template = self.template(model)?.map(Arc::new);
        let Self { tool_call_parser, reasoning_parser, response_bytes, .. } = *self;
        let allowed_origins = self.allowed_origins.clone().unwrap_or_default();
        Ok(trunkline_http::Settings {
            served_names,
            template,
            allowed_origins,
            tool_call_parser,
            reasoning_parser,
            response_bytes,
            kv_event_sources: None,
        })
    }

    /// Returns the settings of vLLM's gRPC service for a model.
    pub fn vllm(&self, model: Option<&Path>) -> trunkline_vllm::Settings {
        let served_name = self.served_names().next().map(str::to_owned);
        let path = model.map(|path| path.display().to_string());
        trunkline_vllm::Settings { served_name, path, files: ModelSource::of(model).files(), events: None }
    }

    fn served_names(&self) -> impl Iterator<Item = &str> {
        let names = self.served_model_name.iter().flat_map(|names| names.split(','));
        names.map(str::trim).filter(|name| !name.is_empty())
    }

    fn template(&self, model: Option<&Path>) -> anyhow::Result<Option<ChatTemplate>> {
        let Some(file) = &self.chat_template else {
            let made = self.source(model).and_then(|source| Ok(source.map(ChatTemplate::new).transpose()?));
            return Ok(made.unwrap_or_else(|err| {
                warn!("no chats over HTTP: {err:#}");
                None
            }));
        };
        let source = self.source(model)?.context("the file is the template")?;
        ChatTemplate::new(source).map(Some).with_context(|| format!("--chat-template {}", file.display()))
    }

    /// Reads the chat templates, those of --chat-template with the tokens of the model.
    fn source(&self, model: Option<&Path>) -> anyhow::Result<Option<ChatSource>> {
        let own = ModelSource::of(model).chat();
        let Some(file) = &self.chat_template else { return own };
        let text = std::fs::read_to_string(file).with_context(|| format!("--chat-template {}", file.display()))?;
        let tokens = own.ok().flatten().unwrap_or_default().tokens;
        Ok(Some(ChatSource { tokens, ..ChatSource::of_text(text) }))
    }

    /// Returns the marks of the chat template around a line of the user that asks for an answer: before and behind. `None` without a template, and for
    /// one without marks or that changes earlier turns.
    pub fn marks(&self, model: Option<&Path>) -> Option<(String, String)> {
        // The door reports what is wrong with the template.
        let source = self.source(model).ok().flatten()?;
        Marks::of(source).ok()?.asking()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use trunkline_template::{Conversation, Value};

    use super::*;

    #[test]
    fn names_and_a_template_reach_the_door() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{{ bos_token }}{{ messages[0].content }}!").unwrap();
        let template = Some(file.path().to_owned());
        let door =
            HttpSettings { served_model_name: Some("a, b".into()), chat_template: template, ..HttpSettings::default() }
                .door(None)
                .unwrap();
        assert_eq!(door.served_names, ["a", "b"]);
        let render = |settings: HttpSettings| {
            let message = Value::from_pairs([("role", "user"), ("content", "hi")]);
            let conversation = Conversation::new(vec![message], SystemTime::UNIX_EPOCH);
            settings.door(None).unwrap().template.unwrap().render(&conversation).unwrap()
        };
        let given = HttpSettings { chat_template: Some(file.path().to_owned()), ..HttpSettings::default() };
        assert_eq!(render(given), "<s>hi!", "with the tokens of the model");
        assert_eq!(render(HttpSettings::default()), "<s>hi", "the model's own");
        std::fs::write(file.path(), "{% if %}").unwrap();
        let wrong = HttpSettings { chat_template: Some(file.path().to_owned()), ..HttpSettings::default() };
        let error = format!("{:#}", wrong.door(None).unwrap_err());
        assert!(error.starts_with("--chat-template ") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn the_memory_for_responses_reaches_the_door_and_has_a_least_size() {
        let door = |bytes| HttpSettings { response_bytes: bytes, ..HttpSettings::default() }.door(None);
        let reached = |bytes| door(bytes).unwrap().response_bytes;
        assert_eq!((reached(None), reached(Some(0)), reached(Some(1 << 20))), (None, Some(0), Some(1 << 20)));
        let error = door(Some(5)).unwrap_err().to_string();
        assert_eq!(error, "response-bytes is 5; it must be 0 or at least 65536");
    }
}
