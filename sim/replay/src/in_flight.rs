//! In-flight requests by number.
//!
//! Requests arrive in numerical order and end in roughly that order, so a queue holds a window of numbers: memory grows
//! with the distance between the oldest and the newest in-flight request, not with the trace.

use std::collections::VecDeque;

use trunkline_sim_workload::trace::TraceRequest;

/// Request between submission and end.
#[derive(Clone, Debug)]
pub(crate) struct InFlightRequest {
    pub traced: TraceRequest,
    /// Number of the current replica.
    pub replica: u32,
    pub submitted_ns: u64,
    /// Start of the first step, nanoseconds.
    pub began_ns: u64,
    pub first_token_ns: u64,
    pub last_token_ns: u64,
    /// Tokens delivered to the client.
    pub n_generated: u32,
    /// Leading prompt tokens that were ever computed or found.
    pub prompt_served: u32,
    pub tenant: u8,
    /// `true` once a step ran the request on the current replica.
    pub began: bool,
}

impl InFlightRequest {
    /// Returns a request submitted at `submitted_ns`, without a replica.
    pub(crate) fn new(traced: TraceRequest, submitted_ns: u64, tenant: usize) -> Self {
        Self {
            traced,
            replica: u32::MAX,
            submitted_ns,
            began_ns: 0,
            first_token_ns: 0,
            last_token_ns: 0,
            n_generated: 0,
            prompt_served: 0,
            tenant: tenant as u8,
            began: false,
        }
    }
}

/// All in-flight requests of a fleet.
#[derive(Debug, Default)]
pub(crate) struct InFlightRequests {
    /// Number of the first request in the window.
    first: u64,
    window: VecDeque<Option<InFlightRequest>>,
}

impl InFlightRequests {
    /// Adds the next request and returns the number, one above the last.
    pub(crate) fn push(&mut self, flight: InFlightRequest) -> u64 {
        self.window.push_back(Some(flight));
        self.first + self.window.len() as u64 - 1
    }

    /// Returns a request, which MUST be in flight.
    pub(crate) fn get(&mut self, number: u64) -> &mut InFlightRequest {
        let at = number.checked_sub(self.first).expect("it has not ended");
        self.window[at as usize].as_mut().expect("it has not ended")
    }

    /// Returns a request, if it is in flight.
    pub(crate) fn find(&self, number: u64) -> Option<&InFlightRequest> {
        self.window.get(number.checked_sub(self.first)? as usize)?.as_ref()
    }

    /// Returns all requests in flight, in numerical order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &InFlightRequest> {
        self.window.iter().flatten()
    }

    /// Removes a request, which MUST be in flight, at the end.
    pub(crate) fn remove(&mut self, number: u64) -> InFlightRequest {
        let at = number.checked_sub(self.first).expect("it ends once");
        let flight = self.window[at as usize].take().expect("it ends once");
        while let Some(None) = self.window.front() {
            self.window.pop_front();
            self.first += 1;
        }
        flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_sim_workload::trace::Content;

    #[test]
    fn the_window_moves_with_the_oldest() {
        let traced = TraceRequest {
            arrival_ns: 0,
            input_tokens: 1,
            output_tokens: 1,
            content: Content::Unique(0),
            ..TraceRequest::default()
        };
        let mut flights = InFlightRequests::default();
        for number in 0..5 {
            assert_eq!(flights.push(InFlightRequest::new(traced.clone(), number * 10, 0)), number);
        }
        assert_eq!(flights.remove(1).submitted_ns, 10);
        assert_eq!(flights.window.len(), 5);
        assert_eq!(flights.remove(0).submitted_ns, 0);
        assert_eq!((flights.first, flights.window.len()), (2, 3), "those before the oldest are gone");
        assert_eq!(flights.get(4).submitted_ns, 40);
        assert_eq!(flights.push(InFlightRequest::new(traced, 50, 0)), 5);
    }
}
