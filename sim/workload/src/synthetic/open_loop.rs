//! Open loop: requests of a closed source under an assumed latency of answers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Deserialize;

use crate::trace::{Outcome, Source, TraceError, TraceRequest};

/// AssumedLatency latency of an answer. An assumption, not a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct AssumedLatency {
    /// Time to the first token, seconds.
    pub first_token_s: f64,
    /// Time per further token, seconds.
    pub per_token_s: f64,
}

impl Default for AssumedLatency {
    fn default() -> Self {
        Self { first_token_s: 0.5, per_token_s: 0.02 }
    }
}

impl AssumedLatency {
    /// Returns the requests of a source as if every answer had this latency.
    pub fn requests<S: Source>(self, source: S) -> OpenLoop<S> {
        OpenLoop { source, latency: self, ends: BinaryHeap::new(), n_given: 0, failed: false }
    }

    fn service_ns(self, request: &TraceRequest) -> u64 {
        let seconds = self.first_token_s + self.per_token_s * f64::from(request.output_tokens - 1);
        (seconds * 1e9).round() as u64
    }
}

/// Iterator over the requests of a source in the order of arrival; see [`AssumedLatency::requests`].
#[derive(Clone, Debug)]
pub struct OpenLoop<S> {
    source: S,
    latency: AssumedLatency,
    /// Ends of requests with their numbers.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    n_given: u64,
    failed: bool,
}

impl<S: Source> OpenLoop<S> {
    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        loop {
            let arrival_ns = self.source.next_arrival_ns()?;
            match self.ends.peek() {
                Some(Reverse((end_ns, number))) if arrival_ns.is_none_or(|at_ns| *end_ns <= at_ns) => {
                    self.source.ended(*number, *end_ns, Outcome::Completed);
                    self.ends.pop();
                }
                _ => break,
            }
        }
        let request = self.source.next_request()?;
        if let Some(request) = &request {
            let end_ns = request.arrival_ns.saturating_add(self.latency.service_ns(request));
            self.ends.push(Reverse((end_ns, self.n_given)));
            self.n_given += 1;
        }
        Ok(request)
    }
}

impl<S: Source> Iterator for OpenLoop<S> {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.next_request();
        self.failed = next.is_err();
        next.transpose()
    }
}
