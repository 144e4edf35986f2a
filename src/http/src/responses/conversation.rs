//! Items of a conversation: those that a response went on from and those of the request, as the messages of a chat.

use serde::Deserialize;
use serde_json::Value as Json;
use trunkline_quote::quoted;
use trunkline_server::SUMMARY_BEFORE;
use trunkline_template::Value;

use crate::failure::Failure;
use crate::memory::Kept;
use crate::responses::content::Content;
use crate::responses::input::Input;

/// An item, and its place in the request's own input.
#[derive(Clone, Debug)]
struct Placed {
    item: Value,
    at: Option<usize>,
}

/// Items of a conversation, oldest first, without those that a compaction has replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Items(Vec<Placed>);

/// Fields of a kept response that a request goes on from.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Before {
    #[serde(default)]
    pub(crate) output: Vec<Value>,
    #[serde(default)]
    pub(crate) tools: Vec<Value>,
    pub(crate) instructions: Option<String>,
    pub(crate) tool_choice: Option<Json>,
}

/// A compaction: the items to summarise, and those that stay, before and after the summary.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) summarised: Items,
    pub(crate) before: Vec<Value>,
    pub(crate) after: Vec<Value>,
}

/// Role of an item in a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Instructions, which stay.
    Instructions,
    User,
    /// Result of a call, which stays with its call.
    Result,
    /// What the model wrote.
    Model,
    /// Summary of what was before.
    Summary,
}

/// Returns a field of an item, unless it is null.
pub(crate) fn field(item: &Value, name: &str) -> Option<Value> {
    item.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none())
}

fn kind(item: &Value) -> String {
    field(item, "type").map_or_else(|| "message".to_owned(), |kind| kind.to_string())
}

fn part(item: &Value) -> Part {
    match (kind(item).as_str(), field(item, "role").as_ref().and_then(Value::as_str)) {
        ("message", Some("user")) => Part::User,
        ("message", Some("assistant")) | ("function_call" | "reasoning", _) => Part::Model,
        ("message", _) => Part::Instructions,
        ("function_call_output", _) => Part::Result,
        ("compaction", _) => Part::Summary,
        _ => Part::Model,
    }
}

/// Returns the items of kept responses, each with its input before its output.
pub(crate) fn kept_items(kept: &Kept) -> Vec<Value> {
    // What was kept was valid.
    let mut items: Vec<Value> = serde_json::from_slice(&kept.input).unwrap_or_default();
    items.extend(before(kept).output);
    items
}

/// Returns what a request takes from a kept response.
pub(crate) fn before(kept: &Kept) -> Before {
    serde_json::from_slice(&kept.response).unwrap_or_default()
}

impl Input {
    /// Returns the items.
    pub(crate) fn items(self) -> Vec<Value> {
        match self {
            Self::Items(items) => items,
            Self::Text(text) => vec![Value::from_pairs([("type", "message"), ("role", "user"), ("content", &text)])],
        }
    }
}

impl Items {
    /// Returns the items of a conversation: `before` those of the request.
    ///
    /// # Errors
    /// Names the place of a compaction that is not of this server.
    pub(crate) fn new(before: Vec<Value>, own: &[Value]) -> Result<Self, Failure> {
        let before = before.into_iter().map(|item| Placed { item, at: None });
        let own = own.iter().cloned().enumerate().map(|(at, item)| Placed { item, at: Some(at) });
        let mut items = Self::default();
        for placed in before.chain(own) {
            let content = match part(&placed.item) {
                Part::Summary => Content::of(&placed.item).map_err(|why| placed.wrong(&why))?,
                _ => Content::default(),
            };
            if content.cuts {
                items.0.clear();
                items.add(content.before);
                items.add(vec![Content::of_summary(content.summary).item()]);
                items.add(content.after);
            } else {
                items.0.push(placed);
            }
        }
        Ok(items)
    }

    fn add(&mut self, items: Vec<Value>) {
        self.0.extend(items.into_iter().map(|item| Placed { item, at: None }));
    }

    /// Returns the messages for a template, instructions first.
    ///
    /// # Errors
    /// Names the place of an item that is no message, call or result.
    pub(crate) fn messages(&self, instructions: Option<&str>) -> Result<Vec<Value>, Failure> {
        self.written(instructions).map(Messages::done)
    }

    /// Returns the messages with a last one of the user, behind or in the last one.
    ///
    /// # Errors
    /// Those of [`Self::messages`].
    pub(crate) fn messages_asking(&self, instructions: Option<&str>, text: &str) -> Result<Vec<Value>, Failure> {
        let mut messages = self.written(instructions)?;
        messages.end();
        messages.join(text.into(), 1);
        Ok(messages.done())
    }

    fn written(&self, instructions: Option<&str>) -> Result<Messages, Failure> {
        let mut messages = Messages::default();
        if let Some(instructions) = instructions {
            messages.push(vec![("role", "system".into()), ("content", instructions.into())]);
        }
        for placed in &self.0 {
            messages.add(&placed.item).map_err(|why| placed.wrong(&why))?;
        }
        Ok(messages)
    }

    /// Returns the compaction of a conversation that is to be answered: what came since the model's last answer stays, with the calls whose results are
    /// in it, the message of the user that it belongs to, and instructions. Returns `None` if nothing but a summary would leave.
    pub(crate) fn plan(&self) -> Option<Plan> {
        let parts: Vec<Part> = self.0.iter().map(|placed| part(&placed.item)).collect();
        let is_new = |part: &Part| matches!(part, Part::User | Part::Result | Part::Instructions);
        let mut from = parts.iter().rposition(|part| !is_new(part)).map_or(0, |last| last + 1);
        if parts[from..].contains(&Part::Result) {
            from = parts[..from].iter().rposition(|part| *part != Part::Model).map_or(0, |last| last + 1);
        }
        let item = |at: usize| self.0[at].item.clone();
        let mut after: Vec<Value> = (from..parts.len()).map(item).collect();
        let (of_user, results) = (parts[from..].contains(&Part::User), parts[from..].contains(&Part::Result));
        let asked = parts[..from].iter().rposition(|part| *part == Part::User).filter(|_| results && !of_user);
        after.splice(..0, asked.map(item));
        let leaves = |at: &usize| !matches!(parts[*at], Part::Instructions | Part::Summary) && Some(*at) != asked;
        if !(0..from).any(|at| leaves(&at)) {
            return None;
        }
        let before = (0..from).filter(|at| parts[*at] == Part::Instructions).map(item).collect();
        Some(Plan { summarised: Self(self.0[..from].to_vec()), before, after })
    }

    /// Returns the messages that a compaction of the whole conversation keeps: those of the user, and instructions.
    pub(crate) fn said_by_users(&self) -> Vec<Value> {
        let items = self.0.iter().map(|placed| &placed.item);
        items.filter(|item| matches!(part(item), Part::User | Part::Instructions)).cloned().collect()
    }
}

impl Placed {
    fn wrong(&self, why: &str) -> Failure {
        match self.at {
            Some(at) => Failure::invalid("input", format!("input[{at}]{why}")),
            None => Failure::invalid("previous_response_id", format!("an item before the input{why}")),
        }
    }
}

/// Messages, and what the next answer of the model had before its text.
#[derive(Debug, Default)]
struct Messages {
    all: Vec<Value>,
    reasoning: String,
    /// Text of an answer, to which calls may be added.
    answer: Option<Value>,
    calls: Vec<Value>,
    /// `true` while the last message has a summary, and what the user says next joins it: some templates want roles to alternate.
    joins: bool,
}

impl Messages {
    fn push(&mut self, fields: Vec<(&'static str, Value)>) {
        self.all.push(Value::from_pairs(fields));
        self.joins = false;
    }

    fn done(mut self) -> Vec<Value> {
        self.end();
        self.all
    }

    /// Ends an answer of the model: text, calls and the reasoning before them are one message to a template.
    fn end(&mut self) {
        let (answer, calls) = (self.answer.take(), std::mem::take(&mut self.calls));
        if answer.is_none() && calls.is_empty() {
            return;
        }
        let mut fields = vec![("role", "assistant".into()), ("content", answer.unwrap_or_else(|| "".into()))];
        let reasoning = std::mem::take(&mut self.reasoning);
        if !reasoning.is_empty() {
            fields.push(("reasoning_content", reasoning.into()));
        }
        if !calls.is_empty() {
            fields.push(("tool_calls", Value::from(calls)));
        }
        self.push(fields);
    }

    /// Adds what the user says to the last messages that are of the user, `most` of them.
    fn join(&mut self, content: Value, most: usize) {
        let is_of_user = |message: &&Value| field(message, "role").is_some_and(|role| role.as_str() == Some("user"));
        let of_user = self.all.iter().rev().take(most).take_while(is_of_user).count();
        let last = self.all.drain(self.all.len() - of_user..);
        let mut contents: Vec<Value> = last.filter_map(|message| field(&message, "content")).collect();
        contents.push(content);
        self.push(vec![("role", "user".into()), ("content", joined(contents))]);
    }

    fn message(&mut self, role: &str, content: Value) {
        self.end();
        match role {
            "assistant" => self.answer = Some(content),
            "user" if self.joins => {
                self.join(content, 1);
                self.joins = true;
            }
            // Templates know no developers.
            "developer" => self.push(vec![("role", "system".into()), ("content", content)]),
            role => self.push(vec![("role", role.into()), ("content", content)]),
        }
    }

    fn add(&mut self, item: &Value) -> Result<(), String> {
        let field = |name: &str| field(item, name);
        let text = |name: &str| {
            let value = field(name).ok_or_else(|| format!(" has no {name}"))?;
            value.as_str().map(str::to_owned).ok_or_else(|| format!(".{name} is not text"))
        };
        match kind(item).as_str() {
            "message" => {
                let content = field("content").ok_or(" has no content")?;
                self.message(&text("role")?, content);
            }
            "function_call" => {
                let function = Value::from_pairs([("name", text("name")?), ("arguments", text("arguments")?)]);
                let call = [("id", text("call_id")?.into()), ("type", "function".into()), ("function", function)];
                self.calls.push(Value::from_pairs(call));
            }
            "function_call_output" => {
                self.end();
                let output = field("output").ok_or(" has no output")?;
                let id = text("call_id")?;
                self.push(vec![("role", "tool".into()), ("tool_call_id", id.into()), ("content", output)]);
            }
            "reasoning" => {
                self.end();
                for part in field("content").and_then(|parts| parts.try_iter().ok()).into_iter().flatten() {
                    let text = part.get_attr("text").unwrap_or_default();
                    self.reasoning.push_str(text.as_str().unwrap_or_default());
                }
            }
            "compaction" => {
                self.end();
                let summary = Content::of(item)?.summary;
                self.join(format!("{}{summary}", SUMMARY_BEFORE.trim_start()).into(), usize::MAX);
                self.joins = true;
            }
            kind => {
                let known = "message, function_call, function_call_output, reasoning and compaction";
                return Err(format!(" is of type {}; this server takes {known}", quoted(kind)));
            }
        }
        Ok(())
    }
}

/// Returns contents as one: a text if all are, else a list of parts.
fn joined(contents: Vec<Value>) -> Value {
    let texts: Option<Vec<&str>> = contents.iter().map(Value::as_str).collect();
    if let Some(texts) = texts {
        return texts.join("\n\n").into();
    }
    let parts = |content: Value| -> Vec<Value> {
        match content.as_str() {
            Some(text) => vec![Value::from_pairs([("type", "input_text"), ("text", text)])],
            None => content.try_iter().map(Iterator::collect).unwrap_or_default(),
        }
    };
    contents.into_iter().flat_map(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn items(json: &str) -> Result<Items, String> {
        let own: Vec<Value> = parse(json.as_bytes()).unwrap();
        Items::new(Vec::new(), &own).map_err(|failure| failure.json())
    }

    fn shown(items: &Items, instructions: Option<&str>) -> Vec<String> {
        items.messages(instructions).unwrap().iter().map(ToString::to_string).collect()
    }

    /// Ids of items, which tests give them.
    fn ids(items: &[Value]) -> String {
        items.iter().map(|item| field(item, "id").map_or_else(|| "-".to_owned(), |id| id.to_string())).collect()
    }

    #[test]
    fn items_become_messages_that_templates_know() {
        let items = items(
            r#"[{"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "easy"}]},
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "3"},
            {"type": "function_call_output", "call_id": "b", "output": "noon"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "3"}]},
            {"role": "user", "content": "more"}]"#,
        )
        .unwrap();
        let shown = shown(&items, Some("be brief"));
        assert_eq!(shown[..2], ["{'role': 'system', 'content': 'be brief'}", "{'role': 'system', 'content': 'd'}"]);
        assert!(
            shown[3].starts_with("{'role': 'assistant', 'content': '', 'reasoning_content': 'easy', 'tool_calls': ["),
            "{shown:?}"
        );
        assert!(shown[3].contains("'id': 'a'") && shown[3].contains("'id': 'b'"), "{shown:?}");
        assert_eq!(shown[5], "{'role': 'tool', 'tool_call_id': 'b', 'content': 'noon'}");
        assert_eq!((shown.len(), shown[7].as_str()), (8, "{'role': 'user', 'content': 'more'}"));
    }

    #[test]
    fn an_item_that_is_none_is_named_with_its_place() {
        for (json, words) in [
            (r#"[{"type": "web_search_call"}]"#, "input[0] is of type 'web_search_call'; this server takes message"),
            (r#"[{"role": "user", "content": ""}, {"role": "user"}]"#, "input[1] has no content"),
            (r#"[{"type": "function_call", "call_id": "a", "name": 7}]"#, "input[0].name is not text"),
            (r#"[{"type": "compaction"}]"#, "input[0] has no encrypted_content"),
            (r#"[{"type": "compaction", "encrypted_content": "gAAAA"}]"#, "input[0].encrypted_content is not of this"),
        ] {
            let told = items(json).and_then(|items| items.messages(None).map_err(|failure| failure.json()));
            let told = told.unwrap_err();
            assert!(told.contains(words) && told.contains(r#""param":"input""#), "{json}: {told}");
        }
        let before = parse::<Vec<Value>>(br#"[{"type": "web_search_call"}]"#).unwrap();
        let told = Items::new(before, &[]).unwrap().messages(None).unwrap_err().json();
        assert!(told.contains("an item before the input is of type 'web_search_call'"), "{told}");
    }

    #[test]
    fn a_summary_joins_the_messages_of_the_user_around_it() {
        let list = r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, SUMMARY, {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}, {"role": "user", "content": "f"}]"#;
        let content = serde_json::to_string(&Content::of_summary("S".into())).unwrap();
        let summary = serde_json::json!({"type": "compaction", "id": "cmp", "encrypted_content": content}).to_string();
        let with_summary = items(&list.replace("SUMMARY", &summary)).unwrap();
        let messages = with_summary.messages(None).unwrap();
        let first = field(&messages[0], "content").unwrap();
        assert_eq!(first.as_str(), Some("a\n\nb\n\nEarlier in this conversation: S\n\nc"));
        assert_eq!(messages.len(), 4, "other messages are as they were sent");
        // Parts stay parts.
        let parts = list.replace(r#""content": "b""#, r#""content": [{"type": "input_text", "text": "b"}]"#);
        let messages = items(&parts.replace("SUMMARY", &summary)).unwrap().messages(None).unwrap();
        assert_eq!(field(&messages[0], "content").unwrap().len(), Some(4));
        // A request for a summary is a message of the user, too.
        let asking = with_summary.messages_asking(None, "Sum up.").unwrap();
        assert_eq!(field(&asking[3], "content").unwrap().as_str(), Some("f\n\nSum up."));
    }

    #[test]
    fn a_compaction_keeps_what_is_to_be_answered() {
        let plan = |list: &[&str]| {
            let item = |text: &&str| {
                let (kind, id) = text.split_at(1);
                match kind {
                    "d" => format!(r#"{{"role": "developer", "content": "x", "id": "{id}"}}"#),
                    "u" => format!(r#"{{"role": "user", "content": "x", "id": "{id}"}}"#),
                    "a" => format!(r#"{{"role": "assistant", "content": "x", "id": "{id}"}}"#),
                    "r" => format!(r#"{{"type": "reasoning", "content": [], "id": "{id}"}}"#),
                    "c" => format!(r#"{{"type": "function_call", "name": "f", "id": "{id}"}}"#),
                    "o" => format!(r#"{{"type": "function_call_output", "output": "", "id": "{id}"}}"#),
                    _ => format!(
                        r#"{{"type": "compaction", "encrypted_content": "{{\"summary\": \"\"}}", "id": "{id}"}}"#
                    ),
                }
            };
            let list: Vec<String> = list.iter().map(item).collect();
            let plan = items(&format!("[{}]", list.join(","))).unwrap().plan()?;
            let summarised: Vec<Value> = plan.summarised.0.into_iter().map(|placed| placed.item).collect();
            Some(format!("{} {} {}", ids(&summarised), ids(&plan.before), ids(&plan.after)))
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(plan(&["d1", "u2", "a3", "u4"]), is("123 1 4"));
        assert_eq!(plan(&["u1", "a2", "d3", "u4", "u5"]), is("12  345"));
        // Calls whose results came stay with them, with what the user asked for.
        assert_eq!(plan(&["u1", "c2", "o3", "r4", "c5", "c6", "o7", "o8"]), is("123  145678"));
        assert_eq!(plan(&["u1", "c2", "o3"]), None);
        // Nothing new would leave.
        assert_eq!(plan(&["u1"]), None);
        assert_eq!(plan(&["d1", "s2", "u3"]), None);
        assert_eq!(plan(&["s1", "u2", "c3", "o4"]), None);
        assert_eq!(plan(&["s1", "u2", "a3"]), is("123  "));
    }

    #[test]
    fn a_compaction_that_cuts_stands_for_all_before_it() {
        let of = |text: &str| parse::<Vec<Value>>(text.as_bytes()).unwrap();
        let content = Content {
            summary: "S".into(),
            cuts: true,
            before: of(r#"[{"role": "developer", "content": "d"}]"#),
            after: of(r#"[{"role": "user", "content": "u"}]"#),
        };
        let mut own = of(r#"[{"type": "nonsense"}]"#);
        own.push(content.item());
        own.extend(of(r#"[{"role": "assistant", "content": "a"}, {"type": "nonsense"}]"#));
        let items = Items::new(Vec::new(), &own).unwrap();
        assert!(items.messages(None).unwrap_err().json().contains("input[3] is of type"), "the place in the request");
        let items = Items::new(Vec::new(), &own[..3]).unwrap();
        let shown = shown(&items, None);
        assert_eq!(
            (shown.len(), &*shown[0], &*shown[2]),
            (3, "{'role': 'system', 'content': 'd'}", "{'role': 'assistant', 'content': 'a'}")
        );
        let asked = field(&items.messages(None).unwrap()[1], "content").unwrap();
        assert_eq!(asked.as_str(), Some("Earlier in this conversation: S\n\nu"));
    }
}
