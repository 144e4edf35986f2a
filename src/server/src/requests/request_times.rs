//! Times and sizes of requests, as histograms of the core's thread.
//!
//! All times are those of the cluster's inputs: a token has the time of the step's end, as in a recording. Nothing here reads a clock, and
//! nothing here reaches the cluster, so decisions do not depend on these figures.

use trunkline_core::{FinishReason, Usage};

use crate::requests::histogram::{Histogram, REQUEST_TIME, REQUEST_TOKENS, STEP_TIME};

/// Names of the ends of requests, in the order of [`RequestFigures::ended`].
const ENDS: [&str; 8] = ["stop", "length", "abort", "timeout", "error", "no_worker", "not_finite", "unsupported"];

/// Times of one request, on the clock of the driver, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestTimes {
    pub(crate) arrival_ns: u64,
    /// Most tokens that the client asked for.
    max_tokens: u32,
    pub(crate) deadline_ns: Option<u64>,
    /// Delivery to the core, with the prompt tokenised.
    pub(crate) queued_ns: Option<u64>,
    /// Beginning of the first step that ran the request.
    pub(crate) started_ns: Option<u64>,
    pub(crate) first_token_ns: Option<u64>,
    last_token_ns: u64,
}

impl RequestTimes {
    /// Begins with a request that arrived at `arrival_ns` and asks for `max_tokens` tokens.
    pub(crate) fn new(arrival_ns: u64, max_tokens: u32) -> Self {
        Self { arrival_ns, max_tokens, ..Self::default() }
    }

    /// Returns the times until the first step, from there to the first token, and from there to the last, nanoseconds.
    pub(crate) fn parts_ns(&self) -> [u64; 3] {
        let first_ns = self.first_token_ns.unwrap_or_default();
        let started_ns = self.started_ns.unwrap_or(self.arrival_ns);
        [
            started_ns.saturating_sub(self.arrival_ns),
            first_ns.saturating_sub(started_ns),
            self.last_token_ns.saturating_sub(first_ns),
        ]
    }

    /// Notes a step that runs the request; the first one ends the time in the queue.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.started_ns.get_or_insert(now_ns);
    }
}

/// Figures of all requests since the server started, over all engines.
#[derive(Clone, Debug)]
pub(crate) struct RequestFigures {
    /// From the arrival to the first token.
    pub(crate) first_token: Histogram,
    /// Between two steps with tokens of one request; several tokens of one step (drafts) count once.
    pub(crate) inter_token: Histogram,
    /// From the arrival to the end.
    pub(crate) e2e: Histogram,
    /// From the arrival to the beginning of the first step.
    pub(crate) queue: Histogram,
    /// From the beginning of the first step to the first token.
    pub(crate) prefill: Histogram,
    /// From the first token to the last.
    pub(crate) decode: Histogram,
    /// `decode` divided by the tokens after the first.
    pub(crate) output_token: Histogram,
    pub(crate) prompt_tokens: Histogram,
    pub(crate) generated_tokens: Histogram,
    pub(crate) max_tokens: Histogram,
    ended: [u64; ENDS.len()],
}

impl Default for RequestFigures {
    fn default() -> Self {
        let time = || Histogram::new(&REQUEST_TIME);
        let (step, tokens) = (|| Histogram::new(&STEP_TIME), || Histogram::new(&REQUEST_TOKENS));
        Self {
            first_token: time(),
            inter_token: step(),
            e2e: time(),
            queue: time(),
            prefill: time(),
            decode: time(),
            output_token: step(),
            prompt_tokens: tokens(),
            generated_tokens: tokens(),
            max_tokens: tokens(),
            ended: [0; ENDS.len()],
        }
    }
}

impl RequestFigures {
    /// Notes a token of a request.
    pub(crate) fn token(&mut self, times: &mut RequestTimes, now_ns: u64) {
        if times.first_token_ns.is_none() {
            times.first_token_ns = Some(now_ns);
            self.first_token.add(now_ns.saturating_sub(times.arrival_ns));
        } else if now_ns > times.last_token_ns {
            self.inter_token.add(now_ns - times.last_token_ns);
        }
        times.last_token_ns = now_ns;
    }

    /// Notes the end of a request. The histograms of whole requests leave aborted ones out: the client decided about their length.
    pub(crate) fn end(&mut self, times: &RequestTimes, end: End, usage: &Usage, now_ns: u64) {
        self.ended[end.index()] += 1;
        if matches!(end, End::Finished(FinishReason::Abort)) {
            return;
        }
        self.e2e.add(now_ns.saturating_sub(times.arrival_ns));
        self.queue.add(times.started_ns.unwrap_or(now_ns).saturating_sub(times.arrival_ns));
        self.prompt_tokens.add(usage.prompt_tokens.into());
        self.generated_tokens.add(usage.completion_tokens.into());
        self.max_tokens.add(times.max_tokens.into());
        let Some(first_ns) = times.first_token_ns else { return };
        self.prefill.add(first_ns.saturating_sub(times.started_ns.unwrap_or(first_ns)));
        let decode_ns = times.last_token_ns.saturating_sub(first_ns);
        self.decode.add(decode_ns);
        if let Some(further) = usage.completion_tokens.checked_sub(1).filter(|further| *further > 0) {
            self.output_token.add(decode_ns / u64::from(further));
        }
    }

    /// Returns the number of ended requests by the reason for the end.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ENDS.into_iter().zip(self.ended)
    }
}

/// Reason for the end of an accepted request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Finished(FinishReason),
    /// No worker was left for the request.
    NoWorker,
    /// The server stopped, and waited no longer.
    CutShort,
}

impl End {
    /// Returns the name of the end in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        ENDS[self.index()]
    }

    fn index(self) -> usize {
        match self {
            Self::Finished(FinishReason::Stop) => 0,
            Self::Finished(FinishReason::Length) => 1,
            Self::Finished(FinishReason::Abort) | Self::CutShort => 2,
            Self::Finished(FinishReason::Timeout) => 3,
            Self::Finished(FinishReason::Error) => 4,
            Self::NoWorker => 5,
            Self::Finished(FinishReason::NotFinite) => 6,
            Self::Finished(FinishReason::Unsupported) => 7,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn usage(completion_tokens: u32) -> Usage {
        Usage { prompt_tokens: 7, completion_tokens, ..Usage::default() }
    }

    #[test]
    fn a_request_has_a_queue_a_prefill_and_a_decode() {
        let mut figures = RequestFigures::default();
        let mut times = RequestTimes::new(10 * MS, 100);
        times.start(30 * MS);
        // A step after a preemption, or on another engine.
        times.start(50 * MS);
        // Two tokens of one step, with a draft accepted, then one of the next.
        for at_ns in [70 * MS, 70 * MS, 170 * MS] {
            figures.token(&mut times, at_ns);
        }
        figures.end(&times, End::Finished(FinishReason::Length), &usage(3), 200 * MS);
        let sums = |histogram: &Histogram| (histogram.count(), (histogram.sum() * 1e3).round());
        assert_eq!(sums(&figures.first_token), (1, 60.0));
        assert_eq!(sums(&figures.inter_token), (1, 100.0));
        assert_eq!(sums(&figures.queue), (1, 20.0));
        assert_eq!(sums(&figures.prefill), (1, 40.0));
        assert_eq!(sums(&figures.decode), (1, 100.0));
        assert_eq!(sums(&figures.output_token), (1, 50.0));
        assert_eq!(sums(&figures.e2e), (1, 190.0));
        assert_eq!(times.parts_ns(), [20 * MS, 40 * MS, 100 * MS]);
        assert_eq!(RequestTimes::new(10 * MS, 100).parts_ns(), [0; 3]);
        assert_eq!((figures.prompt_tokens.sum(), figures.generated_tokens.sum()), (7.0, 3.0));
        assert_eq!(figures.max_tokens.sum(), 100.0);
    }

    #[test]
    fn a_request_that_never_ran_waited_to_its_end_and_an_aborted_one_counts_as_aborted_alone() {
        let mut figures = RequestFigures::default();
        figures.end(&RequestTimes::new(0, 1), End::Finished(FinishReason::Timeout), &usage(0), 5 * MS);
        figures.end(&RequestTimes::new(0, 1), End::Finished(FinishReason::Abort), &usage(0), 9 * MS);
        figures.end(&RequestTimes::new(0, 1), End::NoWorker, &usage(0), 5 * MS);
        assert_eq!((figures.queue.count(), figures.queue.sum()), (2, 0.01));
        assert_eq!((figures.prefill.count(), figures.decode.count(), figures.first_token.count()), (0, 0, 0));
        let ended: Vec<_> = figures.ended().filter(|(_, n)| *n > 0).collect();
        assert_eq!(ended, [("abort", 1), ("timeout", 1), ("no_worker", 1)]);
        for reason in [
            FinishReason::Stop,
            FinishReason::Length,
            FinishReason::Abort,
            FinishReason::Timeout,
            FinishReason::Error,
            FinishReason::NotFinite,
            FinishReason::Unsupported,
        ] {
            assert_eq!(ENDS[End::Finished(reason).index()], reason.as_str());
        }
    }
}
