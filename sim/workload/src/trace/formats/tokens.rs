//! Lines of a workload with token ids: JSON objects.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use trunkline_core::Token;

use crate::trace::blocks::PrefixTree;
use crate::trace::format::clock::{Clock, TimeUnit};
use crate::trace::format::row::{Row, RowContent, length, object, output_length, present};
use crate::trace::format::{
    Field, FileFacts, Format, FormatOption, LineParser, Opened, Order, Parsed, Reading, Shares, TraceFormat, Writing,
};
use crate::trace::write::{push_list, push_terms};
use crate::trace::{Content, LENGTH_TOKENS_MAX, ReaderOptions, Terms, TraceFault, TraceRequest, WriteFault, retention};

const FIELDS: &str = "arrival_time_ns or arrival_time, input_tok_ids or input_toks, and output_toks";

/// JSON lines with token ids, as in workloads of vLLM made from ShareGPT.
pub const TOKENS: Format = Format(&TraceFormat {
    name: "tokens",
    title: "token-id",
    about: "JSON: `arrival_time_ns`, or `arrival_time` (s) as in results of simulators; `input_tok_ids`, or `input_toks` alone; \
            `output_toks`; `output_tok_ids` if known",
    shares: Shares::Tokens,
    options: &[FormatOption::TimeUnit],
    loses: None,
    lookalikes: &[],
    reading: Reading::Lines {
        fields: &[
            Field::Required(&["arrival_time_ns", "arrival_time"]),
            Field::Prompt(&["input_tok_ids", "input_toks"]),
            Field::Required(&["output_toks"]),
            Field::Optional(&["output_tok_ids"]),
        ],
        open,
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
    arrival_time: Option<Value>,
    input_toks: Option<Value>,
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

/// Parser of a file.
struct Parser {
    facts: FileFacts,
    /// Field with the times, that of the first line.
    time: &'static str,
}

/// Fields with the time, in nanoseconds and in seconds.
const TIMES: [&str; 2] = ["arrival_time_ns", "arrival_time"];

/// Fields that say of what kind a file is.
#[derive(Default, Deserialize)]
struct Telltale {
    arrival_time_ns: Option<IgnoredAny>,
    arrival_time: Option<IgnoredAny>,
}

fn open(first: &[u8], options: &ReaderOptions) -> Opened {
    // What is wrong with a damaged line is for the parser to say.
    let Telltale { arrival_time_ns, arrival_time } = serde_json::from_slice(first).unwrap_or_default();
    // A simulator writes its results as requests end.
    let (time, unit, order) = match (arrival_time_ns, arrival_time) {
        (None, Some(_)) => (TIMES[1], TimeUnit::Seconds, Order::Any),
        _ => (TIMES[0], TimeUnit::Nanoseconds, Order::Time),
    };
    let clock = Some(Clock::new(unit, options.time_unit));
    Opened { parser: Box::new(Parser { facts: FileFacts { clock, ..FileFacts::default() }, time }), order }
}

impl LineParser for Parser {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, TraceFault> {
        let line: Object = object(line, TOKENS)?;
        // A field of the other name is in another unit.
        let at = if self.time == TIMES[0] { line.arrival_time_ns } else { line.arrival_time };
        let at_ns = self.facts.time_ns(self.time, &present(FIELDS, self.time, at)?)?;
        let expected = line.input_toks.map(|n| length("input_toks", &n.to_string())).transpose()?;
        let (output_tokens, is_prefetch) = output_length(FIELDS, "output_toks", line.output_toks, line.prefetch)?;
        let found = line.input_tok_ids.as_ref().map(Vec::len);
        if let (Some(found), Some(expected)) = (found, expected)
            && expected as usize != found
        {
            return Err(TraceFault::TokenCount { field: "input_toks", found, expected });
        }
        let input_tokens = match found {
            Some(found) => found as u64,
            None => present(FIELDS, "input_tok_ids", expected)?.into(),
        };
        if input_tokens > LENGTH_TOKENS_MAX.into() {
            let value = input_tokens.to_string();
            return Err(TraceFault::BadLength { field: "the number of input_tok_ids", value });
        }
        // Public workloads have lists of other lengths, of which nothing can be said.
        let output = line.output_tok_ids.filter(|output| output.len() == output_tokens as usize);
        let output = output.map(Vec::into_boxed_slice);
        let Object { tenant, namespace, priority, background, deadline_s, max_tokens, .. } = line;
        let terms =
            Terms::of_json([tenant, namespace, priority, background, deadline_s, max_tokens], &mut self.facts.names)?;
        let retention = retention::of_json(line.retention)?;
        let content = line.input_tok_ids.map_or(RowContent::None, |tokens| RowContent::Tokens(tokens.into()));
        let row = Row::without_content(at_ns, input_tokens as u32, output_tokens);
        Ok(Parsed::Request(Row { content, output, terms, retention, is_prefetch, ..row }))
    }

    fn facts(&self) -> Option<&FileFacts> {
        Some(&self.facts)
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
