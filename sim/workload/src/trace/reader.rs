//! Trace reader: parses lines, sorts requests within a window, or all of them if they are turns of sessions, and counts time from the
//! first arrival.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::block_ids::BlockIds;
use super::chats::Chats;
use super::row::{Row, RowContent};
use super::sessions::{self, Turn};
use super::{
    Content, Format, HASH_ID_TOKENS, REQUESTS_MAX, TraceError, TraceFault, TraceRequest, Unknown, aiperf, bailian, csv,
    mooncake, results, tokens, unknown,
};
use crate::lines::{DOCUMENT_BYTES_MAX, LineFault, Lines};
use crate::python_json::strict;

/// Size of the reorder window in requests, at most.
pub const REORDER_REQUESTS_MAX: usize = 1 << 20;

/// First time out of range after the first request, nanoseconds: 31 years, far below the limit of a replay's clock.
const SPAN_NS_END: u64 = 1_000_000_000_000_000_000;

/// Row in the reorder window; rows with equal times keep their order.
struct Waiting {
    at_ns: u64,
    line: u64,
    row: Row,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Waiting {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.line)
    }
}

/// Options of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Format of the trace; `None` to detect the format from the first line.
    pub format: Option<Format>,
    /// Size of the reorder window in requests, at most [`REORDER_REQUESTS_MAX`]. With 0 every step back in time is an error;
    /// otherwise only a step back beyond the window is.
    pub reorder_requests: usize,
    /// Whether a chat's next prompt holds the answer before as the replay generates it, in a Bailian trace.
    pub reuse_answers: bool,
    /// Tokens per block id of a Mooncake trace; `None` for [`super::HASH_ID_TOKENS`].
    pub block_tokens: Option<NonZeroU32>,
}

impl ReaderOptions {
    /// Returns the format of a file with the first line `first`, to which further lines are appended if one line does not say the format.
    fn format_of(&self, lines: &mut Lines, first: &mut Vec<u8>) -> Result<Format, TraceFault> {
        if let Some(format) = self.format.filter(|format| *format != Format::Synthetic) {
            return Ok(format);
        }
        if first == b"{" {
            gather(lines, first, DOCUMENT_BYTES_MAX as usize)?;
        }
        detect(first).ok_or_else(|| {
            // Read a few more lines for the error message; ignore their errors.
            let _ = gather(lines, first, HEAD_BYTES);
            TraceFault::UnknownFormat(Unknown::of(first))
        })
    }

    /// Fails if an option is not for the format.
    fn check(&self, format: Format) -> Result<(), TraceFault> {
        if self.block_tokens.is_some() && format != Format::Mooncake {
            return Err(TraceFault::BlockTokens { format });
        }
        if self.reuse_answers && format != Format::Bailian {
            return Err(TraceFault::ReuseAnswers { format });
        }
        Ok(())
    }
}

enum Parser {
    Mooncake(mooncake::Blocks),
    /// `true` to put answers into the prompts of later turns.
    Bailian(bool),
    Tokens,
    Aiperf,
    /// Result of a benchmark, whose rows are known from the start.
    Results(Format),
    Csv(csv::Columns),
}

/// Line-by-line reader of a trace. Iteration ends after the first error.
pub struct TraceReader {
    path: PathBuf,
    lines: Lines,
    parser: Parser,
    /// Numbers of block ids so far.
    ids: BlockIds,
    /// First line, if it holds a request and was read to detect the format.
    pending: Option<Vec<u8>>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    reorder_requests: usize,
    /// `true` if the first line belongs to a session: the trace is read whole.
    has_sessions: bool,
    /// Rows of a trace that is read whole, in the order of time.
    in_order: VecDeque<(Row, Option<Turn>)>,
    chats: Chats,
    at_end: bool,
    first_ns: Option<u64>,
    last_ns: u64,
    n_requests: u64,
    n_failed: u64,
    ended: bool,
}

impl TraceReader {
    /// Opens a trace. Without a `format`, the first line that is not blank decides.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the file cannot be read, is empty, or has an unknown format.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, TraceError> {
        Self::open_with(path, ReaderOptions { format, ..ReaderOptions::default() })
    }

    /// Opens a trace with options.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the file cannot be read, is empty, or has an unknown format.
    pub fn open_with(path: &Path, options: ReaderOptions) -> Result<Self, TraceError> {
        let fail = |line, fault| TraceError { path: path.into(), line, fault };
        let mut lines = Lines::open(path).map_err(|fault| fail(0, fault.into()))?;
        let mut first = match first_line(&mut lines) {
            Ok(Some(first)) => first,
            Ok(None) => return Err(fail(0, TraceFault::Empty)),
            Err(fault) => return Err(fail(lines.number(), fault)),
        };
        let number = lines.number();
        let format = options.format_of(&mut lines, &mut first).map_err(|fault| fail(number, fault))?;
        options.check(format).map_err(|fault| fail(number, fault))?;
        let has_sessions = format == Format::Mooncake && telltale(&first).session_id.is_some();
        let (mut in_order, mut n_failed) = (VecDeque::new(), 0);
        let (parser, pending) = match format {
            Format::Mooncake => {
                let tokens = options.block_tokens.map_or(HASH_ID_TOKENS, NonZeroU32::get);
                let blocks = mooncake::Blocks {
                    tokens,
                    are_known: telltale(&first).hash_ids.is_some_and(|ids| ids != Value::Array(Vec::new())),
                };
                (Parser::Mooncake(blocks), Some(first))
            }
            Format::Bailian => (Parser::Bailian(options.reuse_answers), Some(first)),
            Format::Tokens => (Parser::Tokens, Some(first)),
            Format::Aiperf => (Parser::Aiperf, Some(first)),
            Format::GuideLlm | Format::BenchServe => {
                let whole = gather(&mut lines, &mut first, DOCUMENT_BYTES_MAX as usize);
                let of = whole.map_err(TraceFault::from).and_then(|()| results::parse(format, &first));
                let of = of.map_err(|fault| fail(0, fault))?;
                (in_order, n_failed) = (sessions::in_order(of.rows).into(), of.n_failed);
                (Parser::Results(format), None)
            }
            Format::Recording => return Err(fail(number, TraceFault::Recording)),
            format => {
                if csv::leaves_quote_open(&first, false) {
                    first = csv::record(first, &mut lines, format).map_err(|fault| fail(lines.number(), fault))?;
                }
                let columns = csv::Columns::of_header(format, &first).map_err(|fault| fail(number, fault))?;
                (Parser::Csv(columns), None)
            }
        };
        Ok(Self {
            path: path.into(),
            lines,
            parser,
            ids: BlockIds::default(),
            pending,
            waiting: BinaryHeap::new(),
            reorder_requests: options.reorder_requests.min(REORDER_REQUESTS_MAX),
            has_sessions,
            in_order,
            chats: Chats::default(),
            at_end: matches!(format, Format::GuideLlm | Format::BenchServe),
            first_ns: None,
            last_ns: 0,
            n_requests: 0,
            n_failed,
            ended: false,
        })
    }

    /// Returns the format of the lines.
    pub fn format(&self) -> Format {
        match &self.parser {
            Parser::Mooncake(_) => Format::Mooncake,
            Parser::Bailian(_) => Format::Bailian,
            Parser::Tokens => Format::Tokens,
            Parser::Aiperf => Format::Aiperf,
            Parser::Results(format) => *format,
            Parser::Csv(columns) => columns.format(),
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if the requests are turns of sessions.
    pub fn has_sessions(&self) -> bool {
        self.has_sessions
    }

    /// Returns the number of requests logged as failed, and skipped, so far.
    pub fn failed_requests(&self) -> u64 {
        self.n_failed
    }

    /// Reads the next row in the order of the file.
    fn read_row(&mut self) -> Result<Option<Row>, TraceFault> {
        if let Some(line) = self.pending.take() {
            if let Some(row) = parse(&self.parser, &mut self.ids, &line)? {
                return Ok(Some(Row { line: self.lines.number(), ..row }));
            }
            self.n_failed += 1;
        }
        while let Some(line) = self.lines.next_line()? {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let row = match &self.parser {
                Parser::Csv(columns) if csv::leaves_quote_open(line, false) => {
                    columns.parse(&csv::record(line.to_vec(), &mut self.lines, columns.format())?)?
                }
                parser => parse(parser, &mut self.ids, line)?,
            };
            if let Some(row) = row {
                return Ok(Some(Row { line: self.lines.number(), ..row }));
            }
            self.n_failed += 1;
        }
        Ok(None)
    }

    /// Returns the next row in the order of time, and its place in a session.
    fn next_row(&mut self) -> Result<Option<(Row, Option<Turn>)>, TraceFault> {
        if self.has_sessions || matches!(self.parser, Parser::Aiperf | Parser::Results(_)) {
            return self.next_of_whole();
        }
        while !self.at_end && self.waiting.len() <= self.reorder_requests {
            match self.read_row()? {
                None => self.at_end = true,
                Some(Row { turn: Some(_), .. }) => return Err(TraceFault::LateSession),
                Some(row) if row.at_ns < self.last_ns => {
                    let by_s = (self.last_ns - row.at_ns) as f64 / 1e9;
                    return Err(TraceFault::TimeGoesBack { by_s, window_requests: self.reorder_requests });
                }
                Some(row) => {
                    self.waiting.push(Reverse(Waiting { at_ns: row.at_ns, line: row.line, row }));
                }
            }
        }
        Ok(self.waiting.pop().map(|Reverse(waiting)| (waiting.row, None)))
    }

    /// Reads the whole trace at first. Returns the next row.
    fn next_of_whole(&mut self) -> Result<Option<(Row, Option<Turn>)>, TraceFault> {
        if !self.at_end {
            let mut rows = Vec::new();
            while let Some(row) = self.read_row()? {
                if rows.len() as u64 == REQUESTS_MAX {
                    return Err(TraceFault::TooManyRequests);
                }
                rows.push(row);
            }
            self.in_order = sessions::in_order(rows).into();
            self.at_end = true;
        }
        Ok(self.in_order.pop_front())
    }

    fn place(&mut self, row: Row, turn: Option<Turn>) -> Result<TraceRequest, TraceFault> {
        let first_ns = *self.first_ns.get_or_insert(row.at_ns);
        self.last_ns = row.at_ns;
        if row.at_ns - first_ns >= SPAN_NS_END {
            return Err(TraceFault::TooLong);
        }
        if self.n_requests == REQUESTS_MAX {
            return Err(TraceFault::TooManyRequests);
        }
        let content = match row.content {
            RowContent::None => Content::Unique(self.n_requests as u32),
            RowContent::Blocks(ids) => Content::Blocks(ids),
            RowContent::Pieces(pieces) => Content::Pieces(pieces),
            RowContent::Tokens(tokens) => Content::Tokens(tokens),
            RowContent::Chat(turn) => {
                let number = self.n_requests as u32;
                Content::Pieces(self.chats.prompt(turn, number, row.input_tokens, row.output_tokens))
            }
        };
        self.n_requests += 1;
        Ok(TraceRequest {
            arrival_ns: row.at_ns - first_ns,
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            content,
            output: row.output,
            terms: row.terms,
            retention: row.retention,
            turn,
        })
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let (line, placed) = match self.next_row() {
            Ok(None) => {
                self.ended = true;
                return None;
            }
            Ok(Some((row, turn))) => (row.line, self.place(row, turn)),
            Err(fault) => (self.lines.number(), Err(fault)),
        };
        Some(placed.map_err(|fault| {
            self.ended = true;
            TraceError { path: self.path.clone(), line, fault }
        }))
    }
}

/// Reads the first line that is not blank, without its byte order mark.
fn first_line(lines: &mut Lines) -> Result<Option<Vec<u8>>, TraceFault> {
    while let Some(line) = lines.next_line()? {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if !line.is_empty() {
            return Ok(Some(line.to_vec()));
        }
    }
    Ok(None)
}

fn parse(parser: &Parser, ids: &mut BlockIds, line: &[u8]) -> Result<Option<Row>, TraceFault> {
    match parser {
        Parser::Mooncake(blocks) => mooncake::parse(line, *blocks, ids).map(Some),
        Parser::Bailian(reuse_answers) => bailian::parse(line, *reuse_answers, ids).map(Some),
        Parser::Tokens => tokens::parse(line).map(Some),
        Parser::Aiperf => aiperf::parse(line),
        // All rows are known.
        Parser::Results(_) => Ok(None),
        Parser::Csv(columns) => columns.parse(line),
    }
}

/// Bytes of a file of no known format that its description may go by, at least.
const HEAD_BYTES: usize = 1 << 12;

/// Appends lines to `text` until it has `enough` bytes, or the file ends. A text of [`DOCUMENT_BYTES_MAX`] bytes is too long.
fn gather(lines: &mut Lines, text: &mut Vec<u8>, enough: usize) -> Result<(), LineFault> {
    while text.len() < enough
        && let Some(line) = lines.next_line()?
    {
        text.push(b'\n');
        text.extend_from_slice(line);
    }
    let max_bytes = DOCUMENT_BYTES_MAX;
    if text.len() as u64 >= max_bytes { Err(LineFault::TooLong { max_bytes }) } else { Ok(()) }
}

/// Fields of which the first line of a JSON format has one.
const KNOWN_FIELDS: [&str; 13] = [
    "timestamp",
    "created_time",
    "input_length",
    "input_tokens",
    "output_length",
    "output_tokens",
    "hash_ids",
    "session_id",
    "chat_id",
    "arrival_time_ns",
    "input_tok_ids",
    "output_toks",
    "trunkline_recording",
];

/// Fields that tell a format, sessions, or that prompts share content.
#[derive(Default, Deserialize)]
struct Telltale {
    session_id: Option<IgnoredAny>,
    hash_ids: Option<Value>,
    chat_id: Option<IgnoredAny>,
    input_tok_ids: Option<IgnoredAny>,
    trunkline_recording: Option<IgnoredAny>,
    benchmarks: Option<IgnoredAny>,
    input_lens: Option<IgnoredAny>,
    metadata: Option<IgnoredAny>,
    metrics: Option<IgnoredAny>,
}

/// Returns the telling fields of a line; none of a damaged one, since what is wrong with it is for its parser to say.
fn telltale(first: &[u8]) -> Telltale {
    let of_python = || serde_json::from_str(&strict(std::str::from_utf8(first).ok()?)).ok();
    serde_json::from_slice(first).ok().or_else(of_python).unwrap_or_default()
}

fn detect(first: &[u8]) -> Option<Format> {
    if !first.starts_with(b"{") {
        return csv::detect(first);
    }
    let telltale = telltale(first);
    match &telltale {
        Telltale { benchmarks: Some(_), .. } => return Some(Format::GuideLlm),
        Telltale { input_lens: Some(_), .. } => return Some(Format::BenchServe),
        Telltale { metadata: Some(_), metrics: Some(_), .. } => return Some(Format::Aiperf),
        _ => {}
    }
    if unknown::is_other_object(first, &KNOWN_FIELDS) {
        return None;
    }
    Some(match telltale {
        Telltale { chat_id: Some(_), .. } => Format::Bailian,
        Telltale { input_tok_ids: Some(_), .. } => Format::Tokens,
        Telltale { trunkline_recording: Some(_), .. } => Format::Recording,
        _ => Format::Mooncake,
    })
}
