//! JSON objects with block ids, which several formats have as lines. They differ in the unit of time and the size of a block.

use serde::Deserialize;
use serde_json::Value;

use super::TermNames;
use super::block_ids::{BlockId, BlockIds};
use super::format::Format;
use super::format::row::{Row, length, object, output_length, present};
use super::{Piece, Terms, TraceFault, retention};

/// Fields of a request, in words.
pub(super) const FIELDS: &str = "timestamp, input_length and output_length, and hash_ids for what prompts share";

/// Numbers of the ids of a prompt.
type Ids = Box<[u32]>;

/// Line as its fields say it.
#[derive(Deserialize)]
pub(super) struct BlockIdLine {
    pub timestamp: Option<Value>,
    created_time: Option<Value>,
    input_length: Option<Value>,
    input_tokens: Option<Value>,
    output_length: Option<Value>,
    output_tokens: Option<Value>,
    hash_ids: Option<Vec<BlockId>>,
    pub session_id: Option<Value>,
    pub delay: Option<Value>,
    pub delay_ms: Option<Value>,
    tenant: Option<Value>,
    namespace: Option<Value>,
    priority: Option<Value>,
    background: Option<Value>,
    deadline_s: Option<Value>,
    max_tokens: Option<Value>,
    retention: Option<Value>,
    prefetch: Option<Value>,
}

impl BlockIdLine {
    pub(super) fn parse(line: &[u8], format: Format) -> Result<Self, TraceFault> {
        let mut it: Self = object(line, format)?;
        // Both names are in use.
        it.timestamp = it.timestamp.or(it.created_time.take());
        it.input_length = it.input_length.or(it.input_tokens.take());
        it.output_length = it.output_length.or(it.output_tokens.take());
        Ok(it)
    }

    /// Returns the row of a line of `format`, without content, and the numbers of its ids, of blocks of `block_tokens` tokens; `None` if nothing is known
    /// of the content.
    pub(super) fn into_row(
        self,
        at_ns: u64,
        format: Format,
        block_tokens: u32,
        numbers: &mut BlockIds,
        names: &mut TermNames,
    ) -> Result<(Row, Option<Ids>), TraceFault> {
        let input_tokens = length("input_length", &present(FIELDS, "input_length", self.input_length)?.to_string())?;
        let (output_tokens, is_prefetch) = output_length(FIELDS, "output_length", self.output_length, self.prefetch)?;
        // No ids are all ids of a prompt without a full block; those of no prompt are of no request.
        let ids = self.hash_ids.filter(|ids| (!ids.is_empty() || input_tokens < block_tokens) && input_tokens > 0);
        let ids = ids.map(|ids| self::numbers(ids, input_tokens, format, block_tokens, numbers)).transpose()?;
        let Self { tenant, namespace, priority, background, deadline_s, max_tokens, .. } = self;
        let terms = Terms::of_json([tenant, namespace, priority, background, deadline_s, max_tokens], names)?;
        let retention = retention::of_json(self.retention)?;
        Ok((Row { terms, retention, is_prefetch, ..Row::without_content(at_ns, input_tokens, output_tokens) }, ids))
    }
}

/// Returns the content of a prompt with an id for every `block_tokens` tokens.
pub(super) fn pieces(ids: &[u32], input_tokens: u32, block_tokens: u32) -> Box<[Piece]> {
    let tokens_of = |i: usize| (input_tokens - i as u32 * block_tokens).min(block_tokens);
    ids.iter().enumerate().map(|(i, id)| Piece { content: *id, tokens: tokens_of(i) }).collect()
}

/// Returns the numbers of the block ids of a prompt of `input_tokens` tokens, if there are as many as it has blocks. Engines know no hash of a block that
/// is not full: where the last block of the prompt is not, and alone has no id, no other prompt has its content.
pub(super) fn numbers(
    ids: Vec<BlockId>,
    input_tokens: u32,
    format: Format,
    block_tokens: u32,
    numbers: &mut BlockIds,
) -> Result<Ids, TraceFault> {
    let expected = input_tokens.div_ceil(block_tokens) as usize;
    let only_full = ids.len() + 1 == expected && ids.len() == (input_tokens / block_tokens) as usize;
    if ids.len() != expected && !only_full {
        return Err(TraceFault::HashIdCount { found: ids.len(), expected, input_tokens, format, block_tokens });
    }
    let mut of_ids = ids.into_iter().map(|id| numbers.number(id)).collect::<Result<Vec<u32>, _>>()?;
    if only_full {
        of_ids.push(numbers.next()?);
    }
    Ok(of_ids.into_boxed_slice())
}
