//! Lines of a workload with token ids: JSON objects.

use serde::Deserialize;
use serde_json::Value;
use trunkline_core::Token;

use super::mooncake::present;
use super::row::{Row, RowContent, length, nanoseconds};
use super::{Format, LENGTH_TOKENS_MAX, Terms, TraceFault, retention};

const FIELDS: &str = "arrival_time_ns, input_tok_ids and output_toks";

#[derive(Deserialize)]
struct Object {
    arrival_time_ns: Option<Value>,
    input_toks: Option<u32>,
    output_toks: Option<Value>,
    input_tok_ids: Option<Vec<Token>>,
    output_tok_ids: Option<Vec<Token>>,
    tenant: Option<Value>,
    namespace: Option<Value>,
    priority: Option<Value>,
    deadline_s: Option<Value>,
    retention: Option<Value>,
}

pub(super) fn parse(line: &[u8]) -> Result<Row, TraceFault> {
    let object: Object = serde_json::from_slice(line)
        .map_err(|e| TraceFault::Malformed { format: Format::Tokens, why: e.to_string() })?;
    let arrival = present(FIELDS, "arrival_time_ns", object.arrival_time_ns)?;
    let at_ns = nanoseconds("arrival_time_ns", &arrival)?;
    let tokens = present(FIELDS, "input_tok_ids", object.input_tok_ids)?;
    let output_tokens = length("output_toks", &present(FIELDS, "output_toks", object.output_toks)?.to_string())?;
    let found = tokens.len();
    if let Some(expected) = object.input_toks.filter(|expected| *expected as usize != found) {
        return Err(TraceFault::TokenCount { field: "input_toks", found, expected });
    }
    if !(1..=LENGTH_TOKENS_MAX as usize).contains(&found) {
        return Err(TraceFault::BadLength { field: "the number of input_tok_ids", value: found.to_string() });
    }
    // Public workloads have lists of other lengths, of which nothing can be said.
    let output = object.output_tok_ids.filter(|output| output.len() == output_tokens as usize);
    let output = output.map(Vec::into_boxed_slice);
    let input_tokens = found as u32;
    let terms = Terms::of_json([object.tenant, object.namespace, object.priority, object.deadline_s])?;
    let retention = retention::of_json(object.retention)?;
    let content = RowContent::Tokens(tokens.into());
    Ok(Row { at_ns, input_tokens, output_tokens, content, output, terms, retention, turn: None, line: 0 })
}
