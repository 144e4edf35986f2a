//! Selection of a part of a trace: a slice, a limit, a speed and a maximum context.

use std::fmt;
use std::str::FromStr;

use trunkline_quote::quoted;

use super::{Content, GENERATED_FROM, TraceError, TraceRequest};

/// Selection from a trace. Applies the slice first, then the limit, then the speed and the maximum context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    /// Slice of the trace.
    pub slice: Slice,
    /// Maximum number of requests.
    pub limit: u64,
    /// Divisor of arrival times; finite and above 0.
    pub speed: f64,
    /// Prompt and output tokens of a request, at most; longer prompts are truncated. At least 2.
    pub max_context: Option<u32>,
}

impl Default for Selection {
    /// Returns the whole trace unchanged.
    fn default() -> Self {
        Self { slice: Slice::default(), limit: u64::MAX, speed: 1.0, max_context: None }
    }
}

/// Invalid speed: zero, negative or not finite.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("speed is {0}; it must be above 0, such as 2 for twice the load")]
pub struct BadSpeed(pub f64);

impl Selection {
    /// Checks the speed of the selection.
    ///
    /// # Errors
    ///
    /// [`BadSpeed`] unless the speed is finite and above 0.
    pub fn checked(self) -> Result<Self, BadSpeed> {
        if self.speed > 0.0 && self.speed.is_finite() { Ok(self) } else { Err(BadSpeed(self.speed)) }
    }

    /// Selects from requests in the order of arrival. Arrivals count from the first selected request; requests after the last
    /// selected one are not read.
    pub fn of<I: Iterator<Item = Result<TraceRequest, TraceError>>>(&self, requests: I) -> Selected<I> {
        Selected { requests, selection: *self, n_seen: 0, n_given: 0, first: None, ended: false }
    }
}

/// Iterator over selected requests.
#[derive(Clone, Debug)]
pub struct Selected<I> {
    requests: I,
    selection: Selection,
    n_seen: u64,
    n_given: u64,
    /// Number and arrival time of the first selected request.
    first: Option<(u64, u64)>,
    ended: bool,
}

impl<I> Selected<I> {
    /// Returns the iterator under the selection.
    pub fn inner(&self) -> &I {
        &self.requests
    }
}

impl<I: Iterator<Item = Result<TraceRequest, TraceError>>> Iterator for Selected<I> {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Selection { slice, limit, speed, max_context } = self.selection;
        while !self.ended && self.n_given < limit && !slice.end.is_at(self.n_seen) {
            let mut request = match self.requests.next()? {
                Ok(request) => request,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            };
            let number = self.n_seen;
            self.n_seen += 1;
            if slice.end.is_reached(number, request.arrival_ns) {
                self.ended = true;
                return None;
            }
            if slice.begin.is_reached(number, request.arrival_ns) {
                let (first, first_ns) = *self.first.get_or_insert((number, request.arrival_ns));
                renumber(&mut request.content, first);
                request.arrival_ns = time_scaled(request.arrival_ns - first_ns, speed);
                if let Some(turn) = &mut request.turn {
                    turn.delay_ns = time_scaled(turn.delay_ns, speed);
                }
                if let Some(tokens) = max_context {
                    request.cut_to(tokens);
                }
                self.n_given += 1;
                return Some(Ok(request));
            }
        }
        None
    }
}

/// Counts the requests whose outputs are part of a content from request `first` on. Earlier ones get the numbers of requests that no
/// trace is long enough for.
fn renumber(content: &mut Content, first: u64) {
    let Content::Pieces(pieces) = content else { return };
    for piece in pieces.iter_mut().filter(|piece| piece.content >= GENERATED_FROM) {
        piece.content = GENERATED_FROM | piece.content.wrapping_sub(first as u32);
    }
}

/// Returns a time divided by `speed`, nanoseconds.
pub(super) fn time_scaled(at_ns: u64, speed: f64) -> u64 {
    // Exact, where the division might round.
    if speed == 1.0 { at_ns } else { (at_ns as f64 / speed).round() as u64 }
}

/// Bound of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Request number, from 0.
    Request(u64),
    /// Nanoseconds after the first arrival of the trace.
    Time(u64),
    /// Open end: the start or the end of the trace.
    Open,
}

impl Bound {
    /// Returns `true` if a request with this number and arrival time is at or after the bound.
    fn is_reached(self, number: u64, arrival_ns: u64) -> bool {
        match self {
            Self::Request(bound) => number >= bound,
            Self::Time(bound_ns) => arrival_ns >= bound_ns,
            Self::Open => false,
        }
    }

    /// Returns `true` if the bound is known to be reached without the next request.
    fn is_at(self, number: u64) -> bool {
        matches!(self, Self::Request(bound) if number >= bound)
    }

    /// Parses a request number, or seconds with the suffix `s`.
    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('s') {
            _ if text.is_empty() => Some(Self::Open),
            None => text.parse().ok().map(Self::Request),
            Some(seconds) => super::format::clock::TimeUnit::Seconds.ns(seconds).map(Self::Time),
        }
    }
}

/// Slice of a trace: `100..200` selects requests 100 to 199, counted from 0; `60s..120s` selects arrivals in the second minute
/// after the first request. Each end is optional, and the ends may have different units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// First request or time inside the slice.
    pub begin: Bound,
    /// First request or time beyond the slice.
    pub end: Bound,
}

impl Default for Slice {
    /// Returns the slice of the whole trace.
    fn default() -> Self {
        Self { begin: Bound::Request(0), end: Bound::Open }
    }
}

/// Invalid slice, as given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "slice is {}; give BEGIN..END in numbers of requests such as 100..200, or in seconds such as 60s..120s, BEGIN below END"
, quoted(.0))]
pub struct BadSlice(pub String);

impl FromStr for Slice {
    type Err = BadSlice;

    fn from_str(text: &str) -> Result<Self, BadSlice> {
        let bad = || BadSlice(text.into());
        let (begin, end) = text.split_once("..").ok_or_else(bad)?;
        let begin = Bound::parse(begin.trim()).ok_or_else(bad)?;
        let end = Bound::parse(end.trim()).ok_or_else(bad)?;
        let empty = match (begin, end) {
            (Bound::Request(begin), Bound::Request(end)) | (Bound::Time(begin), Bound::Time(end)) => begin >= end,
            (_, end) => matches!(end, Bound::Request(0) | Bound::Time(0)),
        };
        let begin = if begin == Bound::Open { Self::default().begin } else { begin };
        if empty { Err(bad()) } else { Ok(Self { begin, end }) }
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |bound| match bound {
            Bound::Request(number) => number.to_string(),
            Bound::Time(ns) => format!("{}s", ns as f64 / 1e9),
            Bound::Open => String::new(),
        };
        write!(f, "{}..{}", bound(self.begin), bound(self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Content, Piece};

    fn taken(slice: &str, limit: u64, speed: f64) -> Vec<(u32, u64)> {
        let request = |i: u32| TraceRequest {
            arrival_ns: u64::from(i) * 1_000_000_000,
            input_tokens: i + 1,
            output_tokens: 1,
            content: Content::Unique(i),
            ..TraceRequest::default()
        };
        let selection = Selection { slice: slice.parse().unwrap(), limit, speed, max_context: None };
        let all = selection.of((0..10).map(|i| Ok(request(i)))).map(Result::unwrap);
        all.map(|request| (request.input_tokens - 1, request.arrival_ns)).collect()
    }

    #[test]
    fn slices_are_of_requests_or_of_seconds() {
        let numbers = |slice| taken(slice, u64::MAX, 1.0).into_iter().map(|(i, _)| i).collect::<Vec<_>>();
        assert_eq!(numbers(".."), (0..10).collect::<Vec<_>>());
        assert_eq!(numbers("3..5"), [3, 4]);
        assert_eq!(numbers("3s..5s"), [3, 4]);
        assert_eq!(numbers("7.5s.."), [8, 9]);
        assert_eq!(numbers("..2"), [0, 1]);
        assert_eq!(numbers("3..6.5s"), [3, 4, 5, 6]);
        assert_eq!(numbers("100.."), [0; 0]);
        assert_eq!(taken("3..", 2, 4.0), [(3, 0), (4, 250_000_000)]);
    }

    #[test]
    fn prompts_are_cut_to_what_their_answers_leave() {
        let long = |content| TraceRequest {
            arrival_ns: 0,
            input_tokens: 1200,
            output_tokens: 100,
            content,
            ..TraceRequest::default()
        };
        let cut = |max_context, content| {
            let selection = Selection { max_context: Some(max_context), ..Selection::default() };
            selection.of([Ok(long(content))].into_iter()).next().unwrap().unwrap()
        };
        let piece = |content, tokens| Piece { content, tokens };
        for content in [
            Content::Unique(3),
            Content::Blocks([1, 2, 3].into()),
            Content::Pieces([piece(4, 512), piece(5, 600), piece(6, 88)].into()),
            Content::Tokens((0..1200).collect()),
        ] {
            let whole = long(content.clone());
            assert_eq!(cut(1300, content.clone()), whole);
            for (max_context, input) in [(1299, 1199), (1124, 1024), (612, 512), (611, 511), (101, 1)] {
                let found = cut(max_context, content.clone());
                assert_eq!((found.input_tokens, found.output_tokens), (input, 100));
                assert_eq!(found.prompt(), whole.prompt()[..input as usize]);
            }
            // An answer that is too long for itself leaves one token to the prompt.
            let found = cut(40, content);
            assert_eq!((found.input_tokens, found.output_tokens, found.prompt().len()), (1, 39, 1));
        }
    }

    #[test]
    fn what_comes_after_is_not_read() {
        let selection = Selection { slice: "..2".parse().unwrap(), ..Selection::default() };
        let request = TraceRequest {
            arrival_ns: 0,
            input_tokens: 1,
            output_tokens: 1,
            content: Content::Unique(0),
            ..TraceRequest::default()
        };
        let mut given = 0;
        let requests = std::iter::from_fn(|| {
            given += 1;
            Some(Ok(request.clone()))
        });
        assert_eq!(selection.of(requests).count(), 2);
        assert_eq!(given, 2);
    }

    #[test]
    fn what_is_no_slice_is_refused() {
        for text in ["", "5", "5..5", "6..5", "2s..1s", "..0", "..0s", "a..b", "-1..2", "1..2..3", "1s.2s"] {
            let message = text.parse::<Slice>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("slice is '{text}'; give BEGIN..END")), "{message}");
        }
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Selection { speed, ..Selection::default() }.checked().is_err());
        }
        for text in ["0..", "1..2", "1.5s..2s", "3..9s"] {
            assert_eq!(text.parse::<Slice>().unwrap().to_string(), text);
        }
    }
}
