//! Declaration of a format: all that reading, writing, detection, help, errors and pages say of it.

pub(super) mod clock;
pub(super) mod csv;
pub(super) mod results;
pub(super) mod row;

use std::fmt;
use std::slice;

use serde_json::Value;

use self::clock::Clock;
use self::csv::Dialect;
use self::results::Results;
use self::row::Row;
use super::TermNames;
use super::blocks::PrefixTree;
use super::{ReaderOptions, TraceFault, TraceRequest, WriteFault};

/// Format of a trace, or origin of requests without a file, as declared in a file of [`super::formats`].
#[derive(Clone, Copy)]
pub struct Format(pub(super) &'static TraceFormat);

/// Declaration of a format.
pub(super) struct TraceFormat {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// Name in sentences.
    pub title: &'static str,
    /// A line of the file, in words, for the page of the formats.
    pub about: &'static str,
    /// What a trace says of the content of prompts.
    pub shares: Shares,
    /// Options of readers that the format takes.
    pub options: &'static [FormatOption],
    /// What every conversion to another format leaves out.
    pub loses: Option<&'static str>,
    /// Other files of the same tools, which are not traces.
    pub lookalikes: &'static [Lookalike],
    pub reading: Reading,
    /// `None` if traces of the format are not written.
    pub writing: Option<Writing>,
}

/// What a trace says of the content of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shares {
    /// Nothing: every prompt is unique.
    Nothing,
    /// An id for as many tokens.
    Blocks(u32),
    /// Pieces of a made prompt.
    Pieces,
    /// All tokens.
    Tokens,
}

/// Option of a reader for some formats only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatOption {
    /// [`ReaderOptions::block_tokens`].
    BlockTokens,
    /// [`ReaderOptions::reuse_answers`].
    ReuseAnswers,
    /// [`ReaderOptions::time_unit`].
    TimeUnit,
}

impl FormatOption {
    /// Returns the flag of the commands.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::BlockTokens => "--trace-block-size",
            Self::ReuseAnswers => "--reuse-answers",
            Self::TimeUnit => "--time-unit",
        }
    }
}

/// Way to read a file.
pub(super) enum Reading {
    /// A JSON object on each line.
    Lines {
        fields: &'static [Field],
        /// Makes the parser, given the first line.
        open: fn(&[u8], &ReaderOptions) -> Opened,
    },
    /// A header, and a row for each request.
    Csv(Dialect),
    /// One JSON document with all requests.
    Document { fields: &'static [Field], read: fn(&[u8], &ReaderOptions) -> Result<Results, TraceFault> },
    /// A file that is recognised by its fields, if there is one, and refused with what to do instead.
    Refused { fields: &'static [Field], why: &'static str },
}

/// Field of a JSON object that identifies a format.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// Required field, under any of these names.
    Required(&'static [&'static str]),
    /// Required field with the length or the tokens of the prompt.
    Prompt(&'static [&'static str]),
    Optional(&'static [&'static str]),
}

impl Field {
    pub(super) fn names(self) -> &'static [&'static str] {
        let (Self::Required(names) | Self::Prompt(names) | Self::Optional(names)) = self;
        names
    }
}

/// What a line says.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(super) enum Parsed {
    /// A request.
    Request(Row),
    /// A request that is left out and counted, as failed ones are.
    LeftOut,
    /// Nothing of a request.
    Nothing,
}

/// Parser of the lines of one file.
pub(super) trait LineParser: Send {
    /// Parses a line.
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, TraceFault>;

    /// Returns what the lines so far say of the file.
    fn facts(&self) -> Option<&FileFacts> {
        None
    }
}

/// Facts of a file that its lines share.
#[derive(Debug, Default)]
pub(super) struct FileFacts {
    /// Unit of the timestamps, if they are numbers.
    pub clock: Option<Clock>,
    /// Names of tenants and namespaces.
    pub names: TermNames,
}

impl FileFacts {
    /// Parses a timestamp of a file whose timestamps are numbers.
    pub fn time_ns(&mut self, field: &'static str, value: &Value) -> Result<u64, TraceFault> {
        let clock = self.clock.as_mut().expect("timestamps are numbers");
        let text = value.to_string();
        clock.ns(&text).ok_or(TraceFault::BadTimestamp { field, value: text, expected: clock.unit().expected() })
    }
}

/// Parser of a file, and the order of its lines.
pub(super) struct Opened {
    pub parser: Box<dyn LineParser>,
    pub order: Order,
}

/// Order of the lines of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// In the order of time.
    Time,
    /// Any: the file is read whole.
    Any,
    /// Turns of sessions, in any order otherwise: the file is read whole.
    Sessions,
}

/// Way to write a trace.
pub(super) struct Writing {
    /// Suffixes of names that ask for the format; an empty one is that of names without a suffix.
    pub suffixes: &'static [&'static str],
    /// First line; empty for none.
    pub header: &'static str,
    /// `true` if lines may hold prompts of clients: other users of the machine cannot read the file.
    pub is_private: bool,
    /// `true` if lines have terms of service and retention hints.
    pub has_terms: bool,
    /// Appends the line of a request.
    pub line: fn(&TraceRequest, &mut PrefixTree, &mut String) -> Result<(), WriteFault>,
}

/// File that is easily taken for a trace.
pub(super) struct Lookalike {
    /// First characters of the file, any of them.
    pub begins: &'static [&'static str],
    /// Fields of its object, any of them.
    pub fields: &'static [&'static str],
    /// What the file is, and what to take instead.
    pub is: &'static str,
}

impl Format {
    /// Returns the name on the command line and in reports.
    pub fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Returns `true` if there are files of the format that a reader takes.
    pub fn is_read(self) -> bool {
        !matches!(self.0.reading, Reading::Refused { .. })
    }

    /// Returns `true` if there are files of the format, for a reader or for others.
    pub(super) fn has_files(self) -> bool {
        !self.fields().is_empty()
    }

    /// Returns `true` if a trace of the format says which content prompts share.
    pub fn shares_content(self) -> bool {
        self.0.shares != Shares::Nothing
    }

    /// Returns `true` if the format takes the option.
    pub fn takes(self, option: FormatOption) -> bool {
        self.0.options.contains(&option)
    }

    /// Returns the tokens of a block with an id, if the format has ids of blocks.
    pub fn block_tokens(self) -> Option<u32> {
        if let Shares::Blocks(tokens) = self.0.shares { Some(tokens) } else { None }
    }

    /// Returns the row of the format in the table of the page of formats; `None` without a file.
    pub fn row(self) -> Option<String> {
        let content = match self.0.shares {
            Shares::Nothing => "unknown".into(),
            Shares::Blocks(tokens) if self.takes(FormatOption::BlockTokens) => {
                format!("an id per {tokens} tokens, or as many as `{} N` says", FormatOption::BlockTokens.flag())
            }
            Shares::Blocks(tokens) => format!("an id per {tokens} tokens"),
            Shares::Pieces => "an id per block".into(),
            Shares::Tokens => "every token".into(),
        };
        self.has_files().then(|| format!("| `{}` | {} | {content} |", self.0.name, self.0.about))
    }

    /// Returns the fields, or columns, that identify a file.
    pub(super) fn fields(self) -> Vec<Field> {
        match &self.0.reading {
            Reading::Lines { fields, .. } | Reading::Document { fields, .. } | Reading::Refused { fields, .. } => {
                fields.to_vec()
            }
            Reading::Csv(Dialect { time, input, output, .. }) => {
                [time, input, output].map(|column| Field::Required(slice::from_ref(column))).to_vec()
            }
        }
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Format {}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
