//! Blocks of a message, and the events that tell of them.

use bytes::{BufMut, BytesMut};
use serde::Serialize;
use trunkline_template::Value;

use crate::reader::{Function, Read, ToolCall};

/// A block of a message.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    Text { text: String },
    Thinking { thinking: String, signature: &'static str },
    ToolUse { id: String, name: String, input: Value },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of the API")]
enum Event<'a> {
    ContentBlockStart { index: usize, content_block: &'a Block },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of the API")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    ThinkingDelta { thinking: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

/// Appends an event with its name, which Anthropic's clients go by.
pub(crate) fn event(out: &mut BytesMut, name: &str, event: &impl Serialize) {
    out.put_slice(format!("event: {name}\ndata: ").as_bytes());
    // Nothing in an event can fail to be JSON.
    let _ = serde_json::to_writer(out.writer(), event);
    out.put_slice(b"\n\n");
}

/// The blocks of a message under way.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    pub(crate) all: Vec<Block>,
    /// `true` while the last block, with a text, goes on.
    is_open: bool,
}

impl Blocks {
    /// Adds a part of the answer.
    pub(crate) fn add(&mut self, out: &mut BytesMut, read: Read) {
        if !read.reasoning.is_empty() {
            self.open(out, true);
            self.extend(out, &read.reasoning);
        }
        if !read.text.is_empty() {
            self.open(out, false);
            self.extend(out, &read.text);
        }
        for call in read.calls {
            self.call(out, call);
        }
    }

    /// Ends the message: the last block, and an empty one if there is none.
    pub(crate) fn end(&mut self, out: &mut BytesMut) {
        if self.all.is_empty() {
            self.open(out, false);
        }
        self.close(out);
    }

    /// Begins a block with a text, unless the last one is of its kind and goes on.
    fn open(&mut self, out: &mut BytesMut, thinks: bool) {
        let is_thinking = |block: &Block| matches!(block, Block::Thinking { .. });
        if self.is_open && self.all.last().is_some_and(|last| is_thinking(last) == thinks) {
            return;
        }
        self.close(out);
        let block = match thinks {
            true => Block::Thinking { thinking: String::new(), signature: "" },
            false => Block::Text { text: String::new() },
        };
        self.start(out, &block);
        self.all.push(block);
        self.is_open = true;
    }

    fn start(&self, out: &mut BytesMut, content_block: &Block) {
        event(out, "content_block_start", &Event::ContentBlockStart { index: self.all.len(), content_block });
    }

    /// Adds to the text of the last block.
    fn extend(&mut self, out: &mut BytesMut, more: &str) {
        let index = self.all.len().saturating_sub(1);
        let (text, delta) = match self.all.last_mut() {
            Some(Block::Text { text }) => (text, Delta::TextDelta { text: more }),
            Some(Block::Thinking { thinking, .. }) => (thinking, Delta::ThinkingDelta { thinking: more }),
            Some(Block::ToolUse { .. }) | None => return,
        };
        text.push_str(more);
        event(out, "content_block_delta", &Event::ContentBlockDelta { index, delta });
    }

    fn close(&mut self, out: &mut BytesMut) {
        if std::mem::take(&mut self.is_open) {
            event(out, "content_block_stop", &Event::ContentBlockStop { index: self.all.len() - 1 });
        }
    }

    fn call(&mut self, out: &mut BytesMut, call: ToolCall) {
        self.close(out);
        let ToolCall { id, function: Function { name, arguments }, .. } = call;
        let begun = Block::ToolUse { id: id.clone(), name: name.clone(), input: object("{}") };
        self.start(out, &begun);
        let (index, delta) = (self.all.len(), Delta::InputJsonDelta { partial_json: &arguments });
        event(out, "content_block_delta", &Event::ContentBlockDelta { index, delta });
        event(out, "content_block_stop", &Event::ContentBlockStop { index });
        self.all.push(Block::ToolUse { id, name, input: object(&arguments) });
    }
}

/// Returns the object that a text of JSON is.
fn object(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_default()
}
