//! Limits of a rendering, by the size of the conversation.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::conversation::Conversation;

/// Steps for a conversation of any size.
const FUEL_BASE: u64 = 200_000;
/// Steps for each value of a conversation: a message, a field, a part of a tool.
const FUEL_OF_A_VALUE: u64 = 200;
/// Steps for each byte of a conversation. The library takes one step for 64 bytes of text that it copies, and we four for 16 of JSON.
const FUEL_OF_A_BYTE: u64 = 1;
/// Bytes of stack for each step: a step nests a value once more at most, which takes 470 bytes in an optimised build and 1,900 in another.
const STACK_OF_A_STEP: usize = if cfg!(debug_assertions) { 2_048 } else { 640 };
/// Bytes of stack for all else.
const STACK_BASE: usize = 4 << 20;

/// Limits of one rendering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) fuel: u64,
    pub(crate) stack_bytes: usize,
}

impl Budget {
    /// Bytes of stack to compile a template: tags have a limit of tokens, each of which may nest.
    pub(crate) const COMPILE: usize = 64 << 20;

    /// Returns the limits for a conversation.
    pub(crate) fn of(conversation: &Conversation) -> Self {
        let (mut values, mut bytes) = (0, 0);
        let lists = [Some(&conversation.messages), conversation.tools.as_ref(), conversation.documents.as_ref()];
        let mut open: Vec<Value> = lists.into_iter().flatten().flatten().cloned().collect();
        open.extend(conversation.variables.values().cloned());
        while let Some(value) = open.pop() {
            values += 1;
            match value.kind() {
                ValueKind::String => bytes += value.as_str().map_or(0, str::len) as u64,
                ValueKind::Map => {
                    for (key, value) in crate::conversation::fields(&value) {
                        bytes += key.as_str().map_or(0, str::len) as u64;
                        open.push(value);
                    }
                }
                ValueKind::Seq => open.extend(value.try_iter().into_iter().flatten()),
                _ => {}
            }
        }
        let fuel = FUEL_BASE + FUEL_OF_A_VALUE * values + FUEL_OF_A_BYTE * bytes;
        let stack_bytes =
            STACK_BASE + STACK_OF_A_STEP * usize::try_from(fuel).unwrap_or(usize::MAX / STACK_OF_A_STEP / 2);
        Self { fuel, stack_bytes }
    }
}
