//! Where a replay's requests come from, one by one.

use std::path::Path;

use super::select::sped;
use super::{Format, ReaderOptions, Selected, Selection, Trace, TraceError, TraceFault, TraceReader, TraceRequest};

/// Gives requests in the order of their arrival. The `n`-th that it gives, from 0, has the number `n`.
///
/// What has been given is no longer held, so a replay needs memory for the requests in flight only. A source may be
/// *closed*: what arrives next may depend on when requests ended, as a user's next question comes after the answer to
/// the last one. So a replay goes by this protocol:
///
/// 1. It looks at [`Source::next_arrival_ns`] at the beginning, and again after every [`Source::next_request`] and
///    [`Source::ended`]; the next arrival may have come *earlier* by an end, never before the end itself.
/// 2. When its clock is there, it takes the request with [`Source::next_request`].
/// 3. It tells every end with [`Source::ended`], in the order of time.
/// 4. It is over when `next_arrival_ns` gives nothing and no request is in flight.
pub trait Source {
    /// How the requests were written, for reports.
    fn format(&self) -> Format;

    /// When the next request arrives, nanoseconds after the beginning, as far as is known before anything else ends;
    /// nothing if none arrives before that.
    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError>;

    /// The request that arrives next, if there is one.
    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError>;

    /// A request that was given has ended at `now_ns`.
    fn ended(&mut self, number: u64, now_ns: u64, outcome: Outcome) {
        let _ = (number, now_ns, outcome);
    }

    /// Whether an end may bring an arrival about, or bring one forward.
    fn waits_for_ends(&self) -> bool {
        false
    }

    /// How many requests there are in all, if that is known; for showing progress only.
    fn requests_hint(&self) -> Option<u64> {
        None
    }
}

impl<S: Source + ?Sized> Source for &mut S {
    fn format(&self) -> Format {
        (**self).format()
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        (**self).next_arrival_ns()
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        (**self).next_request()
    }

    fn ended(&mut self, number: u64, now_ns: u64, outcome: Outcome) {
        (**self).ended(number, now_ns, outcome);
    }

    fn waits_for_ends(&self) -> bool {
        (**self).waits_for_ends()
    }

    fn requests_hint(&self) -> Option<u64> {
        (**self).requests_hint()
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was given all its tokens.
    Completed,
    /// It was turned away.
    Refused,
}

/// A source whose time passes `speed` times as fast: arrivals come sooner, and so do a closed source's answers to ends.
#[derive(Clone, Debug)]
pub struct Sped<S> {
    source: S,
    speed: f64,
}

impl<S: Source> Sped<S> {
    /// `speed` MUST be finite and above 0.
    pub fn new(source: S, speed: f64) -> Self {
        assert!(speed > 0.0 && speed.is_finite(), "speed is {speed}");
        Self { source, speed }
    }
}

impl<S: Source> Source for Sped<S> {
    fn format(&self) -> Format {
        self.source.format()
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        Ok(self.source.next_arrival_ns()?.map(|at_ns| sped(at_ns, self.speed)))
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        let mut request = self.source.next_request()?;
        if let Some(request) = &mut request {
            request.arrival_ns = sped(request.arrival_ns, self.speed);
        }
        Ok(request)
    }

    fn ended(&mut self, number: u64, now_ns: u64, outcome: Outcome) {
        // Rounded up, so that nothing that follows from it comes before it.
        let inner_ns = if self.speed == 1.0 { now_ns } else { (now_ns as f64 * self.speed).ceil() as u64 };
        self.source.ended(number, inner_ns, outcome);
    }

    fn waits_for_ends(&self) -> bool {
        self.source.waits_for_ends()
    }

    fn requests_hint(&self) -> Option<u64> {
        self.source.requests_hint()
    }
}

/// A source of the requests of a trace in memory.
#[derive(Clone, Debug)]
pub struct Loaded<'a> {
    trace: &'a Trace,
    n_given: usize,
}

impl<'a> Loaded<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        Self { trace, n_given: 0 }
    }
}

impl Source for Loaded<'_> {
    fn format(&self) -> Format {
        self.trace.format
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        Ok(self.trace.requests.get(self.n_given).map(|request| request.arrival_ns))
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        let request = self.trace.requests.get(self.n_given).cloned();
        self.n_given += usize::from(request.is_some());
        Ok(request)
    }

    fn requests_hint(&self) -> Option<u64> {
        Some(self.trace.requests.len() as u64)
    }
}

/// A source of the requests of a file, which is read as they are asked for.
pub struct FileSource {
    format: Format,
    limit: u64,
    requests: Selected<TraceReader>,
    /// What comes next, read ahead to know when it arrives.
    ahead: Option<Result<TraceRequest, TraceError>>,
}

impl FileSource {
    /// Opens a trace; there MUST be a request in what is selected of it.
    pub fn open(path: &Path, options: ReaderOptions, selection: &Selection) -> Result<Self, TraceError> {
        let reader = TraceReader::open_with(path, options)?;
        let format = reader.format();
        let mut requests = selection.of(reader);
        let ahead = requests.next();
        if ahead.is_none() {
            let fault = if selection.slice == Default::default() {
                TraceFault::Empty
            } else {
                TraceFault::EmptySlice { slice: selection.slice.to_string() }
            };
            return Err(TraceError { path: path.into(), line: 0, fault });
        }
        Ok(Self { format, limit: selection.limit, requests, ahead })
    }

    /// Requests that were logged as failed so far, and left out.
    pub fn failed_requests(&self) -> u64 {
        self.requests.inner().failed_requests()
    }
}

impl Iterator for FileSource {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.ahead.take();
        if matches!(next, Some(Ok(_))) {
            self.ahead = self.requests.next();
        }
        next
    }
}

impl Source for FileSource {
    fn format(&self) -> Format {
        self.format
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        if let Some(Err(error)) = self.ahead.take_if(|ahead| ahead.is_err()) {
            return Err(error);
        }
        Ok(self.ahead.as_ref().and_then(|ahead| ahead.as_ref().ok()).map(|request| request.arrival_ns))
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        self.next().transpose()
    }

    fn requests_hint(&self) -> Option<u64> {
        Some(self.limit).filter(|limit| *limit < u64::MAX)
    }
}
