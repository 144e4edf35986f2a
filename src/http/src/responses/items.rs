//! Items of a response, and the events that tell of them.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

use crate::logprobs::Token;
use crate::reader::{Function, Read, ToolCall};

/// Writes numbered events, or nothing for an answer that is sent at once.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) is_streamed: bool,
    sequence_number: u32,
}

#[derive(Serialize)]
struct Numbered<'a, E> {
    r#type: &'a str,
    sequence_number: u32,
    #[serde(flatten)]
    event: &'a E,
}

impl Events {
    /// Appends an event with its name.
    pub(crate) fn write(&mut self, out: &mut BytesMut, name: &str, event: &impl Serialize) {
        if !self.is_streamed {
            return;
        }
        out.put_slice(format!("event: {name}\ndata: ").as_bytes());
        let event = Numbered { r#type: name, sequence_number: self.sequence_number, event };
        // Nothing in an event can fail to be JSON.
        let _ = serde_json::to_writer(out.writer(), &event);
        out.put_slice(b"\n\n");
        self.sequence_number += 1;
    }
}

/// An item of the output.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    pub(crate) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(flatten)]
    of: Kind,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Kind {
    Message { role: &'static str, content: Vec<Part> },
    Reasoning { summary: [(); 0], content: Vec<Part> },
    FunctionCall { call_id: String, name: String, arguments: String },
    Compaction { encrypted_content: String },
}

impl Item {
    /// Returns the item of a compaction, made by a request.
    pub(crate) fn compaction(request_id: &str, encrypted_content: String) -> Self {
        Self { id: format!("cmp_{request_id}"), status: None, of: Kind::Compaction { encrypted_content } }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    OutputText { text: String, annotations: [(); 0], logprobs: Vec<Token> },
    ReasoningText { text: String },
}

#[derive(Serialize)]
struct OfItem<'a> {
    output_index: usize,
    item: &'a Item,
}

/// Place of a text in the output.
#[derive(Serialize)]
struct At<'a> {
    item_id: &'a str,
    output_index: usize,
    content_index: usize,
}

#[derive(Serialize)]
struct OfPart<'a> {
    #[serde(flatten)]
    at: At<'a>,
    part: &'a Part,
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(flatten)]
    at: At<'a>,
    delta: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [Token]>,
}

#[derive(Serialize)]
struct Done<'a> {
    #[serde(flatten)]
    at: At<'a>,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [Token]>,
}

#[derive(Serialize)]
struct Arguments<'a> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
}

/// The items of a response under way.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) items: Vec<Item>,
    pub(crate) events: Events,
    /// Id of the request, which those of items have in them.
    id: String,
    /// `true` while the last item, with a text, goes on.
    is_open: bool,
    /// A compaction that was made before.
    compaction: Option<Item>,
}

impl Output {
    pub(crate) fn new(id: String, is_streamed: bool, compaction: Option<Item>) -> Self {
        Self { id, events: Events { is_streamed, ..Events::default() }, compaction, ..Self::default() }
    }

    /// Begins the output, with a compaction if there was one.
    pub(crate) fn begin(&mut self, out: &mut BytesMut) {
        let Some(item) = self.compaction.take() else { return };
        for name in ["response.output_item.added", "response.output_item.done"] {
            self.events.write(out, name, &OfItem { output_index: 0, item: &item });
        }
        self.items.push(item);
    }

    /// Adds a part of the answer.
    pub(crate) fn add(&mut self, out: &mut BytesMut, read: Read, logprobs: Vec<Token>) {
        if !read.reasoning.is_empty() {
            self.text(out, Part::ReasoningText { text: read.reasoning });
        }
        if !read.text.is_empty() || !logprobs.is_empty() {
            self.text(out, Part::OutputText { text: read.text, annotations: [], logprobs });
        }
        for call in read.calls {
            self.call(out, call);
        }
    }

    /// Adds text to the last item if that is of its kind, else to a new one.
    fn text(&mut self, out: &mut BytesMut, new: Part) {
        let is_message = matches!(new, Part::OutputText { .. });
        let goes_on =
            self.is_open && self.items.last().is_some_and(|last| matches!(last.of, Kind::Message { .. }) == is_message);
        if !goes_on {
            self.close(out, "completed");
            self.open(out, is_message);
        }
        let output_index = self.items.len() - 1;
        let Some(item) = self.items.last_mut() else { return };
        let (Kind::Message { content, .. } | Kind::Reasoning { content, .. }) = &mut item.of else { return };
        let at = At { item_id: &item.id, output_index, content_index: 0 };
        match (content.first_mut(), new) {
            (Some(Part::OutputText { text, logprobs, .. }), Part::OutputText { text: more, logprobs: tokens, .. }) => {
                let delta = Delta { at, delta: &more, logprobs: Some(&tokens) };
                self.events.write(out, "response.output_text.delta", &delta);
                text.push_str(&more);
                logprobs.extend(tokens);
            }
            (Some(Part::ReasoningText { text }), Part::ReasoningText { text: more }) => {
                let delta = Delta { at, delta: &more, logprobs: None };
                self.events.write(out, "response.reasoning_text.delta", &delta);
                text.push_str(&more);
            }
            _ => {}
        }
    }

    fn id_of_next(&self, prefix: &str) -> String {
        format!("{prefix}_{}_{}", self.id, self.items.len())
    }

    /// Begins an item with a text.
    fn open(&mut self, out: &mut BytesMut, is_message: bool) {
        let content = Vec::new();
        let (id, of) = match is_message {
            true => (self.id_of_next("msg"), Kind::Message { role: "assistant", content }),
            false => (self.id_of_next("rs"), Kind::Reasoning { summary: [], content }),
        };
        let mut item = Item { id, status: Some("in_progress"), of };
        let output_index = self.items.len();
        self.events.write(out, "response.output_item.added", &OfItem { output_index, item: &item });
        let part = match is_message {
            true => Part::OutputText { text: String::new(), annotations: [], logprobs: Vec::new() },
            false => Part::ReasoningText { text: String::new() },
        };
        let at = At { item_id: &item.id, output_index, content_index: 0 };
        self.events.write(out, "response.content_part.added", &OfPart { at, part: &part });
        if let Kind::Message { content, .. } | Kind::Reasoning { content, .. } = &mut item.of {
            content.push(part);
        }
        self.items.push(item);
        self.is_open = true;
    }

    /// Ends the last item, if that goes on.
    pub(crate) fn close(&mut self, out: &mut BytesMut, status: &'static str) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let output_index = self.items.len() - 1;
        let Some(item) = self.items.last_mut() else { return };
        item.status = Some(status);
        if let Kind::Message { content, .. } | Kind::Reasoning { content, .. } = &item.of
            && let Some(part) = content.first()
        {
            let at = || At { item_id: &item.id, output_index, content_index: 0 };
            let (name, text, logprobs) = match part {
                Part::OutputText { text, logprobs, .. } => ("response.output_text.done", text, Some(&**logprobs)),
                Part::ReasoningText { text } => ("response.reasoning_text.done", text, None),
            };
            self.events.write(out, name, &Done { at: at(), text, logprobs });
            self.events.write(out, "response.content_part.done", &OfPart { at: at(), part });
        }
        self.events.write(out, "response.output_item.done", &OfItem { output_index, item });
    }

    fn call(&mut self, out: &mut BytesMut, call: ToolCall) {
        self.close(out, "completed");
        let ToolCall { id: call_id, function: Function { name, arguments }, .. } = call;
        let (output_index, id) = (self.items.len(), self.id_of_next("fc"));
        let of = Kind::FunctionCall { call_id: call_id.clone(), name: name.clone(), arguments: String::new() };
        let begun = Item { id: id.clone(), status: Some("in_progress"), of };
        self.events.write(out, "response.output_item.added", &OfItem { output_index, item: &begun });
        let mut of_call =
            Arguments { item_id: &id, output_index, delta: Some(&arguments), name: None, arguments: None };
        self.events.write(out, "response.function_call_arguments.delta", &of_call);
        (of_call.delta, of_call.name, of_call.arguments) = (None, Some(&*name), Some(&*arguments));
        self.events.write(out, "response.function_call_arguments.done", &of_call);
        let of = Kind::FunctionCall { call_id, name, arguments };
        let item = Item { id, status: Some("completed"), of };
        self.events.write(out, "response.output_item.done", &OfItem { output_index, item: &item });
        self.items.push(item);
    }
}
