//! The fields of `/v1/completions` and `/v1/chat/completions`, each declared once, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::Value;
use trunkline_server::proto;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_server::proto::sampling::Structure;
/// An object of a chat, whose keys keep their order: templates print objects.
use trunkline_template::Value as Message;

use crate::failure::Failure;
use crate::prompt_values::Wanted;
use crate::structure::{ResponseFormat, StructuredOutputs, structure};

/// Maximum number of choices of one request: answers to each prompt, times prompts.
pub(crate) const CHOICES_MAX: usize = 128;

/// Body of a request for text. Unknown fields are ignored, as vLLM does.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Asked {
    /// Name of the model; any of the server's, or none.
    pub(crate) model: Option<String>,
    /// The prompt of a completion.
    pub(crate) prompt: Option<Prompts>,
    /// The messages of a chat.
    pub(crate) messages: Option<Vec<Message>>,
    pub(crate) tools: Option<Vec<Message>>,
    pub(crate) tool_choice: Option<Value>,
    /// Names of the tools that are strict.
    #[serde(skip)]
    pub(crate) strict: BTreeSet<String>,
    pub(crate) documents: Option<Vec<Message>>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    pub(crate) chat_template: Option<String>,
    pub(crate) chat_template_kwargs: Option<BTreeMap<String, Message>>,
    /// Passed on to the template.
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) n: Option<u32>,
    /// Answers of which the best is returned: as many as are returned.
    pub(crate) best_of: Option<u32>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) max_tokens: Option<u32>,
    /// The newer name of `max_tokens` in chats.
    pub(crate) max_completion_tokens: Option<u32>,
    pub(crate) min_tokens: Option<u32>,
    pub(crate) stop: Option<Texts>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    /// -1 and 0 are all tokens.
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    /// Biases by token ids, which are texts in JSON.
    pub(crate) logit_bias: Option<BTreeMap<u32, f32>>,
    pub(crate) seed: Option<i64>,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) top_logprobs: Option<u32>,
    pub(crate) prompt_logprobs: Option<i64>,
    pub(crate) echo: Option<bool>,
    pub(crate) suffix: Option<String>,
    pub(crate) skip_special_tokens: Option<bool>,
    pub(crate) include_stop_str_in_output: Option<bool>,
    pub(crate) add_special_tokens: Option<bool>,
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    pub(crate) guided_json: Option<Value>,
    pub(crate) guided_regex: Option<Value>,
    pub(crate) guided_choice: Option<Value>,
    pub(crate) guided_grammar: Option<Value>,
    pub(crate) priority: Option<i32>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) return_token_ids: Option<bool>,
    /// For `/tokenize`: each token's text as well.
    pub(crate) return_token_strs: Option<bool>,
    pub(crate) use_beam_search: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// `logprobs`: a switch for chats, a number for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Logprobs {
    Switch(bool),
    Number(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// `prompt`: a text, a list of texts, a list of token ids, or a list of those.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

/// A text or a list of texts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Texts(pub(crate) Vec<String>);

/// An element of a list of prompts.
enum Element {
    Id(u32),
    Whole(Prompt),
}

struct Elements;

impl<'de> Visitor<'de> for Elements {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id, or a list of token ids")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
        let wrong = |_| E::custom(format!("{id} is not a token id"));
        u32::try_from(id).map(Element::Id).map_err(wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Whole(Prompt::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(Element::Whole(Prompt::Tokens(ids)))
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(Elements)
    }
}

struct AllPrompts;

impl<'de> Visitor<'de> for AllPrompts {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of texts, a list of token ids, or a list of lists of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        let (mut ids, mut prompts) = (Vec::new(), Vec::new());
        while let Some(element) = list.next_element()? {
            match element {
                Element::Id(id) => ids.push(id),
                Element::Whole(prompt) if prompts.len() < CHOICES_MAX => prompts.push(prompt),
                Element::Whole(_) => {
                    return Err(A::Error::custom(format!("more than {CHOICES_MAX} prompts in one request")));
                }
            }
        }
        match (ids.is_empty(), prompts.is_empty()) {
            (_, true) => Ok(Prompts(vec![Prompt::Tokens(ids)])),
            (true, false) => Ok(Prompts(prompts)),
            (false, false) => Err(A::Error::custom("the list mixes token ids with other prompts")),
        }
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(AllPrompts)
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a text or a list of texts")]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        Ok(match Either::deserialize(json)? {
            // vLLM takes an empty text for none.
            Either::One(text) if text.is_empty() => Self(Vec::new()),
            Either::One(text) => Self(vec![text]),
            Either::Many(texts) => Self(texts),
        })
    }
}

impl Asked {
    /// Refuses what cannot be honoured.
    ///
    /// # Errors
    /// Names the field.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let refused = |param: &str, why: &str| Err(Failure::invalid(param, format!("{param} {why}")));
        let n = self.n();
        if n == 0 || n > CHOICES_MAX {
            return Err(Failure::invalid("n", format!("n is {n}; it must be between 1 and {CHOICES_MAX}")));
        }
        if self.best_of.is_some_and(|best_of| best_of as usize != n) {
            return refused("best_of", "must be as large as n: answers are not ranked");
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return refused("suffix", "is not supported: the model continues text, it does not fill gaps");
        }
        if self.use_beam_search == Some(true) {
            return refused("use_beam_search", "is not supported");
        }
        self.check_structure()
    }

    /// Returns the number of most likely tokens to report with each token of the prompt; `None` for no log probabilities of the prompt.
    ///
    /// # Errors
    /// If all tokens are asked for, or an answer as a stream.
    pub(crate) fn prompt_logprobs(&self) -> Result<Option<u32>, Failure> {
        let refused = |why: String| Err(Failure::invalid("prompt_logprobs", format!("prompt_logprobs {why}")));
        match self.prompt_logprobs {
            None => Ok(None),
            Some(n) if n < 0 => refused(format!("is {n}; it must be 0 or more: not all tokens can be reported")),
            Some(_) if self.streams() => refused("comes with a whole answer alone; leave stream out".into()),
            Some(n) => Ok(Some(u32::try_from(n).unwrap_or(u32::MAX))),
        }
    }

    fn check_structure(&self) -> Result<(), Failure> {
        let old = [
            ("guided_json", &self.guided_json, "json"),
            ("guided_regex", &self.guided_regex, "regex"),
            ("guided_choice", &self.guided_choice, "choice"),
            ("guided_grammar", &self.guided_grammar, "grammar"),
        ];
        match old.iter().find(|(_, value, _)| value.as_ref().is_some_and(|value| !value.is_null())) {
            Some((name, _, new)) => Err(Failure::invalid(
                name,
                format!("{name} is not supported; its new name is structured_outputs.{new}"),
            )),
            None => self.structure().map(drop),
        }
    }

    /// Returns the structure of the answer's text.
    ///
    /// # Errors
    /// Names the field that cannot be honoured.
    pub(crate) fn structure(&self) -> Result<Option<Structure>, Failure> {
        structure(self.response_format.as_ref(), self.structured_outputs.as_ref())
    }

    /// Returns the answers to each prompt.
    pub(crate) fn n(&self) -> usize {
        self.n.unwrap_or(1) as usize
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    /// Returns the request of choice `choice` of a prompt; `id` names it.
    pub(crate) fn message(&self, prompt: WirePrompt, own: &Own, choice: usize, id: String) -> proto::GenerateRequest {
        let sampling = proto::Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k.map_or(0, |k| u32::try_from(k.max(0)).unwrap_or(u32::MAX)),
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.iter().flatten().map(|(token, bias)| (*token, *bias)).collect(),
            // The draws of further choices differ, and those of the first are those of a request for one.
            seed: self.seed.map(|seed| seed.cast_unsigned().wrapping_add(choice as u64)),
            // The check has seen it.
            structure: own.forced.clone().or_else(|| self.structure().unwrap_or_default()),
        };
        let stopping = proto::Stopping {
            max_tokens: Some(own.max_tokens),
            min_tokens: self.min_tokens.unwrap_or(0),
            stop: self.stop.as_ref().map_or_else(Vec::new, |stop| stop.0.clone()),
            stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
            ignore_eos: self.ignore_eos.unwrap_or(false),
        };
        let output = proto::Output {
            logprobs: own.logprobs,
            // The other choices find the prompt in the cache.
            prompt_logprobs: own.wanted.n_top().filter(|_| choice == 0),
            skip_special_tokens: self.skip_special_tokens,
            include_stop_string: self.include_stop_str_in_output == Some(true),
        };
        proto::GenerateRequest {
            request_id: id,
            prompt: Some(prompt),
            add_special_tokens: self.add_special_tokens,
            sampling: Some(sampling),
            stopping: Some(stopping),
            output: Some(output),
            cache_salt: self.cache_salt.clone().unwrap_or_default(),
            priority: self.priority.unwrap_or(0),
            retention: own.retention.clone(),
            prefetch: own.prefetch,
            ..proto::GenerateRequest::default()
        }
    }
}

/// Values that completions and chats find each in a way of their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    pub(crate) max_tokens: u32,
    /// Most likely tokens to report with each token; `None` for no log probabilities.
    pub(crate) logprobs: Option<u32>,
    /// Log probabilities of the prompts.
    pub(crate) wanted: Wanted,
    /// What the prefix cache is to keep.
    pub(crate) retention: Vec<proto::RetentionHint>,
    /// Bring the prompts to the device, and compute nothing.
    pub(crate) prefetch: bool,
    /// Structure of an answer that has to call a tool, instead of the one that its text would have.
    pub(crate) forced: Option<Structure>,
}

impl From<Prompt> for WirePrompt {
    fn from(prompt: Prompt) -> Self {
        match prompt {
            Prompt::Text(text) => Self::Text(text),
            Prompt::Tokens(ids) => Self::TokenIds(proto::TokenIds { ids }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn asked(json: &str) -> Asked {
        parse(json.as_bytes()).unwrap()
    }

    fn param(json: &str) -> String {
        let check = |asked: Asked| asked.check().and_then(|()| asked.prompt_logprobs().map(drop));
        let error = parse::<Asked>(json.as_bytes()).and_then(check).unwrap_err();
        let json: Value = serde_json::from_str(&error.json()).unwrap();
        json["error"]["param"].as_str().unwrap_or("none").to_owned()
    }

    #[test]
    fn prompts_come_in_four_forms() {
        let prompts = |json: &str| asked(&format!(r#"{{"prompt": {json}}}"#)).prompt.unwrap().0;
        let (text, tokens) = (|text: &str| Prompt::Text(text.into()), |ids: &[u32]| Prompt::Tokens(ids.to_vec()));
        assert_eq!(prompts(r#""a""#), [text("a")]);
        assert_eq!(prompts(r#"["a", "b"]"#), [text("a"), text("b")]);
        assert_eq!(prompts("[1, 2]"), [tokens(&[1, 2])]);
        assert_eq!(prompts("[[1], [2, 3]]"), [tokens(&[1]), tokens(&[2, 3])]);
        for wrong in [r#"[1, "a"]"#, "[-1]", "[1.5]", "[4294967296]", "7", "{}", r#"[["a"]]"#, "[[[1]]]"] {
            assert!(param(&format!(r#"{{"prompt": {wrong}}}"#)).starts_with("prompt"), "{wrong}");
        }
    }

    #[test]
    fn nested_input_is_bounded() {
        let deep = format!("{{\"messages\": {}", "[".repeat(1_000_000));
        let error = parse::<Asked>(deep.as_bytes()).unwrap_err().json();
        assert!(error.contains("recursion limit exceeded"), "{error}");
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (json, name) in [
            (r#"{"n": 0}"#, "n"),
            (r#"{"n": 129}"#, "n"),
            (r#"{"n": 2, "best_of": 3}"#, "best_of"),
            (r#"{"presence_penalty": "high"}"#, "presence_penalty"),
            (r#"{"frequency_penalty": []}"#, "frequency_penalty"),
            (r#"{"logit_bias": {"token": -100}}"#, "logit_bias"),
            (r#"{"logit_bias": {"-1": 0}}"#, "logit_bias.-1"),
            (r#"{"logit_bias": {"7": "x"}}"#, "logit_bias.7"),
            (r#"{"logit_bias": [7]}"#, "logit_bias"),
            (r#"{"suffix": "x"}"#, "suffix"),
            (r#"{"prompt_logprobs": -1}"#, "prompt_logprobs"),
            (r#"{"prompt_logprobs": 0, "stream": true}"#, "prompt_logprobs"),
            (r#"{"use_beam_search": true}"#, "use_beam_search"),
            (r#"{"response_format": {"type": "xml"}}"#, "response_format"),
            (r#"{"structured_outputs": {"choice": ["a"], "regex": "a"}}"#, "structured_outputs"),
            (r#"{"guided_regex": "a+"}"#, "guided_regex"),
            (r#"{"stop": 7}"#, "stop"),
            (r#"{"seed": "x"}"#, "seed"),
        ] {
            assert_eq!(param(json), name, "{json}");
        }
        let harmless = r#"{"n": null, "best_of": 1, "presence_penalty": 0, "frequency_penalty": null, "logit_bias": {}, "stop": null,
            "suffix": null, "user": "someone", "response_format": {"type": "text"}, "guided_json": null, "unknown": [1]}"#;
        assert!(asked(harmless).check().is_ok());
    }

    #[test]
    fn fields_reach_the_request() {
        let asked = asked(
            r#"{"min_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true, "temperature": 0.5,
            "top_p": 0.9, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.5, "frequency_penalty": -2, "presence_penalty": 0.5, "logit_bias": {"7": -100, "50256": 1.5}, "seed": -1, "skip_special_tokens": false, "include_stop_str_in_output": true,
            "add_special_tokens": false, "priority": -2, "cache_salt": "salt"}"#,
        );
        let wanted = Wanted { shown: Some(4), ..Wanted::default() };
        let message = asked.message(
            WirePrompt::Text("x".into()),
            &Own { max_tokens: 7, logprobs: Some(3), wanted: wanted.clone(), ..Own::default() },
            2,
            "id".into(),
        );
        let expected = proto::GenerateRequest {
            request_id: "id".into(),
            prompt: Some(WirePrompt::Text("x".into())),
            add_special_tokens: Some(false),
            sampling: Some(proto::Sampling {
                structure: None,
                temperature: Some(0.5),
                top_p: Some(0.9),
                top_k: 0,
                min_p: 0.1,
                repetition_penalty: Some(1.5),
                frequency_penalty: -2.0,
                presence_penalty: 0.5,
                logit_bias: [(7, -100.0), (50256, 1.5)].into(),
                seed: Some(1),
            }),
            stopping: Some(proto::Stopping {
                max_tokens: Some(7),
                min_tokens: 2,
                stop: vec!["a".into(), "b".into()],
                stop_token_ids: vec![5],
                ignore_eos: true,
            }),
            output: Some(proto::Output {
                logprobs: Some(3),
                prompt_logprobs: None,
                skip_special_tokens: Some(false),
                include_stop_string: true,
            }),
            cache_salt: "salt".into(),
            priority: -2,
            ..proto::GenerateRequest::default()
        };
        assert_eq!(message, expected);
        let own = Own { wanted, ..Own::default() };
        let first = asked.message(WirePrompt::Text("x".into()), &own, 0, String::new());
        assert_eq!(first.output.unwrap().prompt_logprobs, Some(4), "the first choice has those of all");
    }
}
