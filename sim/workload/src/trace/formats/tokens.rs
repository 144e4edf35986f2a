//! Lines of a workload with token ids: JSON objects.

use serde::Deserialize;
use serde_json::Value;
use trunkline_core::Token;

use crate::trace::blocks::PrefixTree;
use crate::trace::format::row::{Row, RowContent, nanoseconds, object, output_length, present};
use crate::trace::format::{Field, Format, LineParser, Opened, Order, Reading, Shares, TraceFormat, Writing};
use crate::trace::write::{push_list, push_terms};
use crate::trace::{Content, LENGTH_TOKENS_MAX, ReaderOptions, Terms, TraceFault, TraceRequest, WriteFault, retention};

const FIELDS: &str = "arrival_time_ns, input_tok_ids and output_toks";

/// JSON lines with token ids, as in workloads of vLLM made from ShareGPT.
pub const TOKENS: Format = Format(&TraceFormat {
    name: "tokens",
    title: "token-id",
    about: "JSON: `arrival_time_ns`, `input_tok_ids`, `output_toks`; `output_tok_ids` if known, as many as `output_toks`",
    shares: Shares::Tokens,
    options: &[],
    loses: None,
    lookalikes: &[],
    reading: Reading::Lines {
        fields: &[
            Field::Required(&["arrival_time_ns"]),
            Field::Prompt(&["input_tok_ids"]),
            Field::Required(&["output_toks"]),
            Field::Optional(&["input_toks"]),
            Field::Optional(&["output_tok_ids"]),
        ],
        open: |_: &[u8], _: &ReaderOptions| Opened { parser: Box::new(Parser), order: Order::Time },
    },
    writing: Some(Writing {
        suffixes: &[],
        header: "",
        // The tokens may be prompts of clients, of a recording.
        is_private: true,
        has_terms: true,
        line: write,
    }),
});

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
    background: Option<Value>,
    deadline_s: Option<Value>,
    max_tokens: Option<Value>,
    retention: Option<Value>,
    prefetch: Option<Value>,
}

struct Parser;

impl LineParser for Parser {
    fn parse(&mut self, line: &[u8]) -> Result<Option<Row>, TraceFault> {
        let line: Object = object(line, TOKENS)?;
        let at_ns = nanoseconds("arrival_time_ns", &present(FIELDS, "arrival_time_ns", line.arrival_time_ns)?)?;
        let tokens = present(FIELDS, "input_tok_ids", line.input_tok_ids)?;
        let output_tokens = output_length(FIELDS, "output_toks", line.output_toks, line.prefetch)?;
        let found = tokens.len();
        if let Some(expected) = line.input_toks.filter(|expected| *expected as usize != found) {
            return Err(TraceFault::TokenCount { field: "input_toks", found, expected });
        }
        if !(1..=LENGTH_TOKENS_MAX as usize).contains(&found) {
            return Err(TraceFault::BadLength { field: "the number of input_tok_ids", value: found.to_string() });
        }
        // Public workloads have lists of other lengths, of which nothing can be said.
        let output = line.output_tok_ids.filter(|output| output.len() == output_tokens as usize);
        let output = output.map(Vec::into_boxed_slice);
        let Object { tenant, namespace, priority, background, deadline_s, max_tokens, .. } = line;
        let terms = Terms::of_json([tenant, namespace, priority, background, deadline_s, max_tokens])?;
        let retention = retention::of_json(line.retention)?;
        let content = RowContent::Tokens(tokens.into());
        let row = Row::without_content(at_ns, found as u32, output_tokens);
        Ok(Some(Row { content, output, terms, retention, ..row }))
    }
}

fn write(request: &TraceRequest, _: &mut PrefixTree, line: &mut String) -> Result<(), WriteFault> {
    let TraceRequest { arrival_ns, input_tokens, output_tokens, output, content, .. } = request;
    line.push_str(&format!(
        r#"{{"input_toks": {input_tokens}, "output_toks": {output_tokens}, "arrival_time_ns": {arrival_ns}, "input_tok_ids": "#
    ));
    match content {
        Content::Tokens(tokens) => push_list(line, tokens),
        _ => push_list(line, &request.prompt()),
    }
    if let Some(output) = output {
        line.push_str(", \"output_tok_ids\": ");
        push_list(line, &output[..*output_tokens as usize]);
    }
    push_terms(line, request);
    Ok(())
}
