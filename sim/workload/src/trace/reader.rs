//! Trace reader: parses lines, sorts requests within a window, or all of them if they are turns of sessions, and counts time from the
//! first arrival.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::chats::Chats;
use super::detect::detect;
use super::format::clock::{Clock, TimeUnit};
use super::format::csv;
use super::format::row::{Row, RowContent};
use super::format::{FileFacts, Format, FormatOption, LineParser, Opened, Order, Parsed, Reading};
use super::formats::{self, REGISTRY};
use super::sessions::{self, Turn};
use super::unknown::{describe, is_stand_in};
use super::{Content, REQUESTS_MAX, TraceError, TraceFault, TraceRequest};
use crate::lines::{DOCUMENT_BYTES_MAX, LineFault, Lines};

/// Largest size of the reorder window, requests.
pub const REORDER_REQUESTS_MAX: usize = 1 << 20;

/// First time out of range after the first request, nanoseconds: 31 years, far below the limit of a replay's clock.
const SPAN_NS_END: u64 = 1_000_000_000_000_000_000;

/// Options of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Format of the trace; `None` to detect the format from the first line.
    pub format: Option<Format>,
    /// Size of the reorder window in requests, at most [`REORDER_REQUESTS_MAX`]. With 0 every step back in time is an error;
    /// otherwise only a step back beyond the window is.
    pub reorder_requests: usize,
    /// Whether a chat's next prompt holds the answer before as the replay generates it, in a trace of chats.
    pub reuse_answers: bool,
    /// Tokens per block id, in formats without a size of their own; `None` for [`super::HASH_ID_TOKENS`].
    pub block_tokens: Option<NonZeroU32>,
    /// Unit of timestamps that are numbers; `None` for that of the format, or the one in which the first is a date of this century.
    pub time_unit: Option<TimeUnit>,
}

/// Requests of a file that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Requests logged as failed, cancelled, or of a warm-up.
    #[serde(rename = "failed_requests")]
    pub failed: u64,
    /// Requests without input or without output.
    #[serde(rename = "empty_requests")]
    pub empty: u64,
}

impl LeftOut {
    /// Returns `true` if no request is left out.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FAILED: [&str; 2] = [
            "request that failed, was cancelled, or was part of a warm-up",
            "requests that failed, were cancelled, or were part of a warm-up",
        ];
        const EMPTY: [&str; 2] = ["request without input or output", "requests without input or output"];
        let parts = [(self.failed, FAILED), (self.empty, EMPTY)].into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> =
            parts.map(|(count, [one, many])| format!("{count} {}", if count == 1 { one } else { many })).collect();
        f.write_str(&parts.join(", "))
    }
}

impl ReaderOptions {
    /// Returns the format of a file with the first line `first`, to which further lines are appended if one line does not say the format.
    fn format_of(
        &self,
        lines: &mut Lines,
        first: &mut Vec<u8>,
        formats: &'static [Format],
    ) -> Result<Format, TraceFault> {
        if let Some(what) = is_stand_in(first) {
            return Err(TraceFault::UnknownFormat(what.into()));
        }
        if let Some(format) = self.format.filter(|format| format.has_files()) {
            return Ok(format);
        }
        if first == b"{" {
            gather(lines, first, DOCUMENT_BYTES_MAX as usize)?;
        }
        let mut found = detect(first, formats);
        if let Err(near) = &found
            && let Some(nearest) = near.first()
            && matches!(nearest.format.0.reading, Reading::Csv(_))
            && csv::leaves_quote_open(first, csv::separator(first), false)
        {
            *first = csv::record(std::mem::take(first), csv::separator(first), lines, nearest.format)?;
            found = detect(first, formats);
        }
        found.map_err(|near| {
            // Read a few more lines for the error message; ignore their errors.
            let _ = gather(lines, first, HEAD_BYTES);
            TraceFault::UnknownFormat(describe(first, &near, formats))
        })
    }

    /// Fails if an option is not for the format.
    fn check(&self, format: Format) -> Result<(), TraceFault> {
        let given = [
            (FormatOption::BlockTokens, self.block_tokens.is_some()),
            (FormatOption::ReuseAnswers, self.reuse_answers),
            (FormatOption::TimeUnit, self.time_unit.is_some()),
        ];
        match given.into_iter().find(|(option, is_given)| *is_given && !format.takes(*option)) {
            None => Ok(()),
            Some((option, _)) => {
                let of = formats::with(option);
                Err(TraceFault::NotForFormat { option, of, format })
            }
        }
    }
}

/// Line-by-line reader of a trace. Iteration ends after the first error.
pub struct TraceReader {
    path: PathBuf,
    lines: Lines,
    format: Format,
    /// `None` for a document, whose rows are known from the start.
    parser: Option<Box<dyn LineParser>>,
    /// Separator of fields, if a field in quotes may hold line ends.
    separator: Option<char>,
    /// First line, if it holds a request and was read to detect the format.
    pending: Option<Vec<u8>>,
    /// Rows in the reorder window, by time and line.
    waiting: BTreeMap<(u64, u64), Row>,
    reorder_requests: usize,
    order: Order,
    /// Rows of a trace that is read whole, in the order of time.
    in_order: VecDeque<(Row, Option<Turn>)>,
    chats: Chats,
    at_end: bool,
    first_ns: Option<u64>,
    last_ns: u64,
    n_requests: u64,
    left_out: LeftOut,
    /// Unit of the times of a document.
    clock: Option<Clock>,
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
        Self::open_among(path, options, REGISTRY)
    }

    /// Opens a trace of one of `formats`.
    pub(super) fn open_among(
        path: &Path,
        options: ReaderOptions,
        formats: &'static [Format],
    ) -> Result<Self, TraceError> {
        let fail = |line, fault| TraceError { path: path.into(), line, fault };
        let mut lines = Lines::open(path).map_err(|fault| fail(0, fault.into()))?;
        let mut first = match first_line(&mut lines) {
            Ok(Some(first)) => first,
            Ok(None) => return Err(fail(0, TraceFault::Empty)),
            Err(fault) => return Err(fail(lines.number(), fault)),
        };
        let number = lines.number();
        let format = options.format_of(&mut lines, &mut first, formats).map_err(|fault| fail(number, fault))?;
        options.check(format).map_err(|fault| fail(number, fault))?;
        let mut reader = Self {
            path: path.into(),
            lines,
            format,
            parser: None,
            separator: None,
            pending: None,
            waiting: BTreeMap::new(),
            reorder_requests: options.reorder_requests.min(REORDER_REQUESTS_MAX),
            order: Order::Time,
            in_order: VecDeque::new(),
            chats: Chats::default(),
            at_end: false,
            first_ns: None,
            last_ns: 0,
            n_requests: 0,
            left_out: LeftOut::default(),
            clock: None,
            ended: false,
        };
        reader.begin(first, &options).map_err(|fault| {
            let is_document = matches!(format.0.reading, Reading::Document { .. });
            fail(if is_document { 0 } else { number }, fault)
        })?;
        Ok(reader)
    }

    /// Takes the first line: a header, a request, or the start of a document, which is read whole.
    fn begin(&mut self, mut first: Vec<u8>, options: &ReaderOptions) -> Result<(), TraceFault> {
        match &self.format.0.reading {
            Reading::Lines { open, .. } => {
                let Opened { parser, order } = open(&first, options);
                (self.parser, self.order, self.pending) = (Some(parser), order, Some(first));
            }
            Reading::Csv(dialect) => {
                let separator = csv::separator(&first);
                if csv::leaves_quote_open(&first, separator, false) {
                    first = csv::record(first, separator, &mut self.lines, self.format)?;
                }
                let columns = csv::Columns::of_header(self.format, dialect, options.time_unit, &first)?;
                self.parser = Some(Box::new(columns));
                self.separator = Some(separator);
            }
            Reading::Document { read, .. } => {
                gather(&mut self.lines, &mut first, DOCUMENT_BYTES_MAX as usize)?;
                let results = read(&first, options)?;
                let all = results.rows.len();
                let has_sessions = results.rows.iter().any(|row| row.turn.is_some());
                self.order = if has_sessions { Order::Sessions } else { Order::Any };
                (self.at_end, self.clock) = (true, results.clock);
                self.in_order = sessions::in_order(results.rows).into();
                self.left_out = LeftOut { failed: results.n_failed, empty: (all - self.in_order.len()) as u64 };
            }
            Reading::Refused { why, .. } => return Err(TraceFault::Refused(why)),
        }
        Ok(())
    }

    /// Returns the format of the lines.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if the requests are turns of sessions.
    pub fn has_sessions(&self) -> bool {
        self.order == Order::Sessions
    }

    /// Returns the requests left out so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Returns what a user should know of the part read so far: the unit of timestamps where it is not certain, and the numbers of names.
    pub fn remarks(&self) -> Vec<String> {
        let facts = self.parser.as_ref().and_then(|parser| parser.facts());
        let clock = self.clock.as_ref().or(facts.and_then(|facts| facts.clock.as_ref()));
        let span_ns = self.first_ns.map_or(0, |first_ns| self.last_ns.saturating_sub(first_ns));
        let unit = clock.and_then(|clock| clock.remark(self.n_requests, span_ns));
        unit.into_iter().chain(facts.and_then(|facts: &FileFacts| facts.names.remark())).collect()
    }

    /// Reads the next row in the order of the file, with work or a turn of a session: the next turn needs its time.
    fn read_row(&mut self) -> Result<Option<Row>, TraceFault> {
        let Some(parser) = &mut self.parser else { return Ok(None) };
        loop {
            let parsed = if let Some(line) = self.pending.take() {
                parser.parse(&line)?
            } else {
                let Some(line) = self.lines.next_line()? else { return Ok(None) };
                let line = if self.separator == Some('\t') { line } else { line.trim_ascii() };
                if line.trim_ascii().is_empty() {
                    continue;
                }
                match self.separator {
                    Some(separator) if csv::leaves_quote_open(line, separator, false) => {
                        parser.parse(&csv::record(line.to_vec(), separator, &mut self.lines, self.format)?)?
                    }
                    _ => parser.parse(line)?,
                }
            };
            match parsed {
                Parsed::Request(row) if row.is_empty() && row.turn.is_none() => self.left_out.empty += 1,
                Parsed::Request(row) => return Ok(Some(Row { line: self.lines.number(), ..row })),
                Parsed::LeftOut => self.left_out.failed += 1,
                Parsed::Nothing => {}
            }
        }
    }

    /// Returns the next row in the order of time, and its place in a session.
    fn next_row(&mut self) -> Result<Option<(Row, Option<Turn>)>, TraceFault> {
        if self.order != Order::Time {
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
                Some(row) if self.reorder_requests == 0 => return Ok(Some((row, None))),
                Some(row) => {
                    self.waiting.insert((row.at_ns, row.line), row);
                }
            }
        }
        Ok(self.waiting.pop_first().map(|(_, row)| (row, None)))
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
            let all = rows.len();
            self.in_order = sessions::in_order(rows).into();
            self.left_out.empty += (all - self.in_order.len()) as u64;
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
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let text = line.trim_ascii();
        if !text.is_empty() {
            // Tabs at the ends of a header separate columns without a name.
            let is_tabbed = !text.starts_with(b"{") && !text.starts_with(b"[") && csv::separator(text) == '\t';
            return Ok(Some(if is_tabbed { line } else { text }.to_vec()));
        }
    }
    Ok(None)
}

/// Minimum number of bytes of a file of no known format that its description may go by.
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
