//! Limits of a rendering, by the size of the conversation.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::conversation::Conversation;
use crate::objects::fields;

/// Steps for a conversation of any size; templates in use take 5,000 for one with two tools.
const FUEL_BASE: u64 = 200_000;
/// Steps for each value of a conversation: a message, a field, a part of a tool. Templates in use take up to 1,100 for a message, which has three.
const FUEL_OF_A_VALUE: u64 = 500;
/// Steps for each pair of messages: templates of Gemma 4 and others go through all messages at each one, and take five for a pair.
const FUEL_OF_A_PAIR: u64 = 8;
/// Bytes of a conversation for a step more. The library takes one step for 64 bytes of text that it copies, and we 16 for 64 of JSON.
const BYTES_PER_FUEL: u64 = 2;
/// Maximum number of steps for any conversation: half a gigabyte of memory, since a step may take 64 bytes.
const FUEL_MAX: u64 = 8_000_000;

/// Returns the steps for a conversation.
pub(crate) fn fuel(conversation: &Conversation) -> u64 {
    let (mut values, mut bytes) = (0, 0);
    let lists = [Some(&conversation.messages), conversation.tools.as_ref(), conversation.documents.as_ref()];
    let mut open: Vec<Value> = lists.into_iter().flatten().flatten().cloned().collect();
    open.extend(conversation.variables.values().cloned());
    while let Some(value) = open.pop() {
        values += 1;
        match value.kind() {
            ValueKind::String => bytes += value.as_str().map_or(0, str::len) as u64,
            ValueKind::Map => {
                for (key, value) in fields(&value) {
                    bytes += key.as_str().map_or(0, str::len) as u64;
                    open.push(value);
                }
            }
            ValueKind::Seq => open.extend(value.try_iter().into_iter().flatten()),
            _ => {}
        }
    }
    let messages = conversation.messages.len() as u64;
    let fuel = FUEL_BASE + FUEL_OF_A_VALUE * values + bytes / BYTES_PER_FUEL;
    fuel.saturating_add(FUEL_OF_A_PAIR.saturating_mul(messages.saturating_mul(messages))).min(FUEL_MAX)
}
