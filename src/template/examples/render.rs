//! Renders conversations for `check/compare.py`: a case of JSON on each line of the input, an answer of JSON on each line of the output.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use trunkline_template::{ChatSource, ChatTemplate, Conversation, TemplateError, Value};

/// A template and a conversation.
#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    variables: BTreeMap<String, Value>,
    #[serde(default)]
    tokens: BTreeMap<String, String>,
    /// Seconds since 1970.
    #[serde(default)]
    now: u64,
    /// `true` for messages of OpenAI's API.
    #[serde(default)]
    openai: bool,
}

fn render(case: Case) -> Result<String, TemplateError> {
    let source = ChatSource { tokens: case.tokens.into_iter().collect(), ..ChatSource::of_text(case.template) };
    let template = ChatTemplate::new(source)?;
    let conversation = Conversation {
        messages: case.messages,
        tools: case.tools,
        documents: case.documents,
        add_generation_prompt: case.add_generation_prompt,
        continue_final_message: case.continue_final_message,
        variables: case.variables,
        now: UNIX_EPOCH + Duration::from_secs(case.now),
    };
    if case.openai { template.render_openai(&conversation) } else { template.render(&conversation) }
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str::<Case>(&line?).map(render) {
            Ok(Ok(prompt)) => serde_json::json!({ "prompt": prompt }),
            Ok(Err(error)) => serde_json::json!({ "error": error.to_string() }),
            Err(error) => serde_json::json!({ "error": format!("the case is malformed: {error}") }),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
