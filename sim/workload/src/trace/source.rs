//! Sources of requests for a replay.

use std::path::Path;
use std::slice;

use super::select::time_scaled;
use super::sessions::Sessions;
use super::{
    Format, LeftOut, ReaderOptions, Selected, Selection, Trace, TraceError, TraceFault, TraceReader, TraceRequest,
};

/// Source of requests in the order of arrival. Request `n` of the source, from 0, has the number `n`.
///
/// A source keeps no request after handing it over, so a replay holds only the requests in flight. A source may be *closed*: an
/// arrival may depend on earlier ends, as a user's next question follows the previous answer. A replay therefore follows this
/// protocol:
///
/// 1. Call [`Source::next_arrival_ns`] at the beginning, and again after every [`Source::next_request`] and [`Source::ended`]. An
///    end may bring the next arrival *forward*, but never before the end itself.
/// 2. Call [`Source::next_request`] when the clock reaches that time.
/// 3. Report every end with [`Source::ended`], in the order of time.
/// 4. Stop when `next_arrival_ns` returns `None` and no request is in flight.
pub trait Source {
    /// Returns the format of the requests, for reports.
    fn format(&self) -> Format;

    /// Returns the time of the next arrival, nanoseconds after the beginning, assuming that no request ends before. Returns `None`
    /// if nothing arrives before another end.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the next request cannot be read.
    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError>;

    /// Returns the next request; `None` if no request is left, or none before another end.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the next request cannot be read.
    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError>;

    /// Reports the end of request `number` at `now_ns`.
    fn ended(&mut self, number: u64, now_ns: u64, outcome: Outcome) {
        let _ = (number, now_ns, outcome);
    }

    /// Lets every request arrive at its own time, whatever has ended, where a source knows the times.
    fn wait_for_no_end(&mut self) {}

    /// Returns `true` if an end can cause an arrival or bring one forward.
    fn waits_for_ends(&self) -> bool {
        false
    }

    /// Returns a time not after an arrival, nanoseconds: the next one for 0, the `n`-th behind the next one otherwise, if no request in
    /// flight ends before `end_ns`. The later the time, the further a replay fast-forwards at a go; 0 is always right.
    fn earliest_arrival_ns(&mut self, n: usize, end_ns: u64) -> u64 {
        let _ = (n, end_ns);
        0
    }

    /// Returns the total number of requests, if known; for progress bars only.
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

    fn wait_for_no_end(&mut self) {
        (**self).wait_for_no_end();
    }

    fn waits_for_ends(&self) -> bool {
        (**self).waits_for_ends()
    }

    fn earliest_arrival_ns(&mut self, n: usize, end_ns: u64) -> u64 {
        (**self).earliest_arrival_ns(n, end_ns)
    }

    fn requests_hint(&self) -> Option<u64> {
        (**self).requests_hint()
    }
}

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Completed: all tokens were delivered.
    Completed,
    /// Rejected on arrival, without any token.
    Refused,
}

/// Longest error of a time scaled twice, nanoseconds: a few units in the last place of 31 years.
const ROUNDING_NS: u64 = 1_000;

/// Source at `speed` times the pace: arrivals come sooner, and so do the reactions of a closed source to ends.
#[derive(Clone, Debug)]
pub struct TimeScaled<S> {
    source: S,
    speed: f64,
}

impl<S: Source> TimeScaled<S> {
    /// Scales the time of `source`. `speed` MUST be finite and above 0.
    pub fn new(source: S, speed: f64) -> Self {
        assert!(speed > 0.0 && speed.is_finite(), "speed is {speed}");
        Self { source, speed }
    }

    /// Returns the time of the source at `now_ns`, rounded up, so that nothing that follows from an end comes before it.
    fn unscaled(&self, now_ns: u64) -> u64 {
        if self.speed == 1.0 { now_ns } else { (now_ns as f64 * self.speed).ceil() as u64 }
    }
}

impl<S: Source> Source for TimeScaled<S> {
    fn format(&self) -> Format {
        self.source.format()
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        Ok(self.source.next_arrival_ns()?.map(|at_ns| time_scaled(at_ns, self.speed)))
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        let mut request = self.source.next_request()?;
        if let Some(request) = &mut request {
            request.arrival_ns = time_scaled(request.arrival_ns, self.speed);
        }
        Ok(request)
    }

    fn ended(&mut self, number: u64, now_ns: u64, outcome: Outcome) {
        self.source.ended(number, self.unscaled(now_ns), outcome);
    }

    fn wait_for_no_end(&mut self) {
        self.source.wait_for_no_end();
    }

    fn waits_for_ends(&self) -> bool {
        self.source.waits_for_ends()
    }

    fn earliest_arrival_ns(&mut self, n: usize, end_ns: u64) -> u64 {
        match self.source.earliest_arrival_ns(n, self.unscaled(end_ns)) {
            at_ns if self.speed == 1.0 => at_ns,
            u64::MAX => u64::MAX,
            // The end of a request that has not arrived may be rounded, too.
            at_ns => time_scaled(at_ns, self.speed).saturating_sub(ROUNDING_NS),
        }
    }

    fn requests_hint(&self) -> Option<u64> {
        self.source.requests_hint()
    }
}

/// Requests in the order of their earliest times, of which the turns of sessions wait for each other.
#[derive(Debug)]
struct Queue<I> {
    requests: I,
    /// Next request that arrives at its own time, read ahead.
    ahead: Option<Result<TraceRequest, TraceError>>,
    /// `None` if every request arrives at its own time.
    sessions: Option<Sessions>,
    n_given: u64,
}

impl<I: Iterator<Item = Result<TraceRequest, TraceError>>> Queue<I> {
    fn new(requests: I, has_sessions: bool) -> Self {
        let mut it = Self { requests, ahead: None, sessions: has_sessions.then(Sessions::default), n_given: 0 };
        it.read_ahead();
        it
    }

    /// Reads up to the next request that arrives at its own time, and puts turns that wait for others aside.
    fn read_ahead(&mut self) {
        while self.ahead.is_none()
            && let Some(next) = self.requests.next()
        {
            self.ahead = match (next, &mut self.sessions) {
                (Ok(request), Some(sessions)) => sessions.hold(request).map(Ok),
                (next, _) => Some(next),
            };
        }
    }

    /// Returns the time of the request read ahead: 0 if it cannot be read.
    fn ahead_ns(&self) -> Option<u64> {
        self.ahead.as_ref().map(|ahead| ahead.as_ref().map_or(0, |request| request.arrival_ns))
    }

    fn due_ns(&self) -> Option<u64> {
        self.sessions.as_ref().and_then(Sessions::next_ns)
    }

    /// Lets every request arrive at its own time. MUST come before the first request.
    fn wait_for_no_end(&mut self) {
        assert_eq!(self.n_given, 0, "before the first request");
        self.sessions = None;
    }

    /// Returns the time of the next arrival, if one is known.
    fn next_ns(&mut self) -> Result<Option<u64>, TraceError> {
        if let Some(Err(error)) = self.ahead.take_if(|ahead| ahead.is_err()) {
            return Err(error);
        }
        Ok(self.ahead_ns().into_iter().chain(self.due_ns()).min())
    }

    fn ended(&mut self, number: u64, now_ns: u64) {
        if let Some(sessions) = &mut self.sessions {
            sessions.ended(number, now_ns);
        }
    }

    /// Returns a time not after the next arrival if nothing ends before `end_ns`.
    fn earliest_ns(&self, end_ns: u64) -> u64 {
        self.ahead_ns().into_iter().chain(self.due_ns()).fold(end_ns, u64::min)
    }
}

impl<I: Iterator<Item = Result<TraceRequest, TraceError>>> Iterator for Queue<I> {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let ahead_ns = self.ahead_ns();
        let is_due = self.due_ns().is_some_and(|due_ns| ahead_ns.is_none_or(|ahead_ns| due_ns <= ahead_ns));
        let next = match &mut self.sessions {
            Some(sessions) if is_due => sessions.pop().map(Ok),
            _ => self.ahead.take(),
        };
        if let Some(Ok(request)) = &next {
            if let Some(sessions) = &mut self.sessions {
                sessions.begin(self.n_given, request);
            }
            self.n_given += 1;
            self.read_ahead();
        }
        next
    }
}

/// Requests of a trace in memory.
type Cloned<'a> = std::iter::Map<
    std::iter::Cloned<slice::Iter<'a, TraceRequest>>,
    fn(TraceRequest) -> Result<TraceRequest, TraceError>,
>;

/// Source of the requests of a trace in memory.
pub type Loaded<'a> = Queued<Cloned<'a>>;

/// Source that reads a file on demand; a trace with sessions is read whole. As an iterator it yields the requests in the order of their
/// earliest times.
pub type FileSource = Queued<Selected<TraceReader>>;

/// Source of requests in the order of their earliest times.
#[derive(Debug)]
pub struct Queued<I> {
    format: Format,
    requests_hint: Option<u64>,
    queue: Queue<I>,
}

impl<'a> Loaded<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        let requests: Cloned<'a> = trace.requests.iter().cloned().map(Ok);
        let has_sessions = trace.requests.iter().any(|request| request.turn.is_some());
        let requests_hint = Some(trace.requests.len() as u64);
        Self { format: trace.format, requests_hint, queue: Queue::new(requests, has_sessions) }
    }
}

impl FileSource {
    /// Opens a trace; the selection MUST contain at least one request.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the file cannot be read or the selection is empty.
    pub fn open(path: &Path, options: ReaderOptions, selection: &Selection) -> Result<Self, TraceError> {
        let reader = TraceReader::open_with(path, options)?;
        let (format, has_sessions) = (reader.format(), reader.has_sessions());
        let queue = Queue::new(selection.of(reader), has_sessions);
        if queue.ahead.is_none() {
            let fault = if selection.slice == Default::default() {
                TraceFault::Empty
            } else {
                TraceFault::EmptySlice { slice: selection.slice.to_string() }
            };
            return Err(TraceError { path: path.into(), line: 0, fault });
        }
        let requests_hint = Some(selection.limit).filter(|limit| *limit < u64::MAX);
        Ok(Self { format, requests_hint, queue })
    }

    /// Returns the requests left out so far.
    pub fn left_out(&self) -> LeftOut {
        self.queue.requests.inner().left_out()
    }

    /// Returns what a user should know of the part read so far: see [`TraceReader::remarks`].
    pub fn remarks(&self) -> Vec<String> {
        self.queue.requests.inner().remarks()
    }
}

impl Iterator for FileSource {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.queue.sessions = None;
        self.queue.next()
    }
}

impl<I: Iterator<Item = Result<TraceRequest, TraceError>>> Source for Queued<I> {
    fn format(&self) -> Format {
        self.format
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        self.queue.next_ns()
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        self.queue.next().transpose()
    }

    fn ended(&mut self, number: u64, now_ns: u64, _: Outcome) {
        self.queue.ended(number, now_ns);
    }

    fn wait_for_no_end(&mut self) {
        self.queue.wait_for_no_end();
    }

    fn waits_for_ends(&self) -> bool {
        self.queue.sessions.is_some()
    }

    fn earliest_arrival_ns(&mut self, _: usize, end_ns: u64) -> u64 {
        self.queue.earliest_ns(end_ns)
    }

    fn requests_hint(&self) -> Option<u64> {
        self.requests_hint
    }
}
