//! Conversion between formats, and the losses of each conversion.

use std::fs;
use std::path::Path;

use super::format::{Format, Shares};
use super::{
    Content, FileSource, HASH_ID_TOKENS, LeftOut, ReaderOptions, Selection, Source, Terms, TraceError, TraceRequest,
    TraceWriter, WriteError,
};

/// Requests between two calls of a progress function.
pub(super) const PROGRESS_EVERY: u64 = 1024;

/// Failed conversion of a trace.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// Source cannot be read.
    #[error(transparent)]
    Read(#[from] TraceError),
    /// Destination cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Source and destination are one file.
    #[error("{0} is both what is read and what is written; name another file to write")]
    SameFile(String),
    /// Arrival later than a replay can have it.
    #[error("a request arrives after more than 146 years; give a higher speed")]
    Late,
    /// Trace without a request, which no reader takes.
    #[error("no request is left to write; check the selection, or the duration of the workload")]
    Empty,
}

/// Latest arrival: [`ConvertError::Late`] has it in years.
const ARRIVAL_NS_MAX: u64 = 1 << 62;

/// Result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Requests written to the new file.
    pub requests: u64,
    /// Requests left out.
    pub left_out: LeftOut,
    /// What a user should know of the file that was read.
    pub remarks: Vec<String>,
    /// Facts lost in the conversion, one sentence each.
    pub losses: Vec<&'static str>,
}

/// Writes `requests`, read as format `from`, to a file. Calls `progress` with the number of requests written now and then.
///
/// # Errors
///
/// [`ConvertError`] if a request cannot be read or written.
pub fn convert(
    requests: impl Iterator<Item = Result<TraceRequest, TraceError>>,
    from: Format,
    path: &Path,
    to: Format,
    progress: &mut dyn FnMut(u64),
) -> Result<Conversion, ConvertError> {
    let mut writer = TraceWriter::create(path, to)?;
    let mut n_requests = 0u64;
    let (mut any_terms, mut any_hints, mut any_turns, mut any_small) = (false, false, false, false);
    let mut any_prefetch = false;
    for request in requests {
        let request = request?;
        if request.arrival_ns >= ARRIVAL_NS_MAX {
            return Err(ConvertError::Late);
        }
        any_terms |= request.terms != Terms::default();
        any_hints |= !request.retention.is_empty();
        any_prefetch |= request.is_prefetch();
        any_turns |= request.turn.is_some();
        any_small |= begins_within_blocks(&request.content);
        writer.write(&request)?;
        n_requests += 1;
        if n_requests.is_multiple_of(PROGRESS_EVERY) {
            progress(n_requests);
        }
    }
    if n_requests == 0 {
        return Err(ConvertError::Empty);
    }
    writer.finish()?;
    let mut losses = losses(from, to);
    let has_terms = to.0.writing.as_ref().is_some_and(|writing| writing.has_terms);
    if any_terms && !has_terms {
        losses.push("tenants, namespaces, priorities and deadlines are left out");
    }
    if any_hints && !has_terms {
        losses.push("retention hints are left out");
    }
    if any_prefetch && !has_terms {
        losses.push("prefetches are left out");
    }
    if any_small && from == to && matches!(to.0.shares, Shares::Blocks(_)) {
        losses.push("ids become ids of blocks of 512 tokens; what prompts share of less than a block is left out");
    }
    if any_turns {
        losses.push("the turns of a session no longer wait for each other, and arrive at their earliest times");
    }
    Ok(Conversion { requests: n_requests, left_out: LeftOut::default(), remarks: Vec::new(), losses })
}

/// Returns `true` if a piece of the content begins within a block of [`HASH_ID_TOKENS`] tokens.
fn begins_within_blocks(content: &Content) -> bool {
    let Content::Pieces(pieces) = content else { return false };
    let ends = pieces.split_last().map_or(&[][..], |(_, before)| before);
    ends.iter().any(|piece| !piece.tokens.is_multiple_of(HASH_ID_TOKENS))
}

/// Writes the selected part of one file to another.
///
/// # Errors
///
/// [`ConvertError`] if the source cannot be read, the destination cannot be written, or both are one file.
pub fn convert_file(
    read: &Path,
    options: ReaderOptions,
    selection: &Selection,
    path: &Path,
    to: Format,
    progress: &mut dyn FnMut(u64),
) -> Result<Conversion, ConvertError> {
    let mut source = FileSource::open(read, options, selection)?;
    if let (Ok(a), Ok(b)) = (fs::canonicalize(read), fs::canonicalize(path))
        && a == b
    {
        return Err(ConvertError::SameFile(path.display().to_string()));
    }
    let from = source.format();
    let conversion = convert(source.by_ref(), from, path, to, progress)?;
    Ok(Conversion { left_out: source.left_out(), remarks: source.remarks(), ..conversion })
}

/// Returns the facts of format `from` without a place in format `to`, one sentence each.
pub fn losses(from: Format, to: Format) -> Vec<&'static str> {
    let mut losses = Vec::new();
    if from.has_files() {
        losses.push("times count from the first request, not from what the file counted from");
    }
    losses.extend(from.0.loses);
    if from.0.shares == Shares::Tokens && to.0.shares != Shares::Tokens {
        losses.push("tokens that were generated are left out, only their number is kept");
    }
    losses.extend(match (from.0.shares, to.0.shares) {
        (Shares::Nothing, Shares::Nothing | Shares::Blocks(_)) | (Shares::Tokens, Shares::Tokens) => None,
        (_, Shares::Nothing) => Some("what prompts share is left out: no prompt is like any other"),
        (Shares::Tokens, Shares::Blocks(_)) => {
            Some("tokens become ids of blocks of 512; what prompts share of less than a block is left out")
        }
        (_, Shares::Blocks(_)) if from != to => {
            Some("contents become ids of blocks of 512 tokens; what prompts share of less than a block is left out")
        }
        (_, Shares::Tokens) => Some("token ids are made up: equal content has equal tokens, but they are not text"),
        _ => None,
    });
    losses
}
