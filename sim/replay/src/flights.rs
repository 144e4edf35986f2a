//! The requests that are somewhere on their way, by number.
//!
//! Requests arrive in the order of their numbers and end in about that order, so those under way stand in a window of a queue: memory
//! grows with the requests between the oldest one under way and the newest, not with the trace.

use std::collections::VecDeque;

use trunkline_sim_workload::trace::TraceRequest;

/// A request that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub traced: TraceRequest,
    /// Where it is.
    pub replica: u32,
    /// Its part of [`crate::router::Load::prefill_tokens`] there.
    pub prefill_tokens: u32,
    pub submitted_ns: u64,
    /// When a step first ran it.
    pub began_ns: u64,
    pub first_token_ns: u64,
    pub last_token_ns: u64,
    /// Tokens its client has.
    pub n_generated: u32,
    /// Of those, how many the replica has generated where it is now: fewer after it was sent elsewhere.
    pub n_here: u32,
    /// Leading prompt tokens that were computed or found at some time.
    pub prompt_served: u32,
    pub tenant: u8,
    /// Whether a step ran it where it is now.
    pub began: bool,
}

impl Flight {
    /// A request that asked at `submitted_ns` and is nowhere yet.
    pub(crate) fn new(traced: TraceRequest, submitted_ns: u64, tenant: usize) -> Self {
        Self {
            traced,
            replica: u32::MAX,
            prefill_tokens: 0,
            submitted_ns,
            began_ns: 0,
            first_token_ns: 0,
            last_token_ns: 0,
            n_generated: 0,
            n_here: 0,
            prompt_served: 0,
            tenant: tenant as u8,
            began: false,
        }
    }
}

/// All that are under way.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// The number of the first in the window.
    first: u64,
    window: VecDeque<Option<Flight>>,
}

impl Flights {
    /// The next request sets out. Its number is one more than the last one's.
    pub(crate) fn push(&mut self, flight: Flight) -> u64 {
        self.window.push_back(Some(flight));
        self.first + self.window.len() as u64 - 1
    }

    /// A request that MUST be under way.
    pub(crate) fn get(&mut self, number: u64) -> &mut Flight {
        let at = number.checked_sub(self.first).expect("it has not ended");
        self.window[at as usize].as_mut().expect("it has not ended")
    }

    /// A request, which MUST be under way, has ended.
    pub(crate) fn remove(&mut self, number: u64) -> Flight {
        let at = number.checked_sub(self.first).expect("it ends once");
        let flight = self.window[at as usize].take().expect("it ends once");
        while let Some(None) = self.window.front() {
            self.window.pop_front();
            self.first += 1;
        }
        flight
    }

    /// The numbers of those at a replica, in order.
    pub(crate) fn at(&self, replica: u32) -> Vec<u64> {
        let here = |flight: &Option<Flight>| flight.as_ref().is_some_and(|flight| flight.replica == replica);
        (self.first..).zip(&self.window).filter(|(_, flight)| here(flight)).map(|(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_sim_workload::trace::Content;

    #[test]
    fn the_window_moves_with_the_oldest() {
        let traced = TraceRequest { arrival_ns: 0, input_tokens: 1, output_tokens: 1, content: Content::Unique(0) };
        let mut flights = Flights::default();
        for number in 0..5 {
            let flight = Flight { replica: number as u32 % 2, ..Flight::new(traced.clone(), number * 10, 0) };
            assert_eq!(flights.push(flight), number);
        }
        assert_eq!(flights.at(1), [1, 3]);
        assert_eq!(flights.remove(1).submitted_ns, 10);
        assert_eq!((flights.window.len(), flights.at(1)), (5, vec![3]));
        assert_eq!(flights.remove(0).submitted_ns, 0);
        assert_eq!((flights.first, flights.window.len()), (2, 3), "those before the oldest are gone");
        assert_eq!(flights.get(4).submitted_ns, 40);
        assert_eq!(flights.push(Flight::new(traced, 50, 0)), 5);
    }
}
