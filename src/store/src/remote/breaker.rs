//! Circuit breaker for a remote store: after some calls in a row without an answer it opens; one trial call is let through after each pause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Calls without an answer, one after another, before the store counts as down.
const FAILURES_MAX: u32 = 3;
/// Longest time for a try to end, until another one may begin.
const TRY_MAX: Duration = Duration::from_secs(30);
/// Time until the first new try.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest time between tries.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// State of a remote store, as the calls show it.
#[derive(Debug, Default)]
pub struct Breaker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    pause: Duration,
    /// Time of the next try, if the store is down.
    retry_at: Option<Instant>,
    retried: u64,
}

/// Call allowed by a breaker. The end is to be noted, with [`Breaker::answered`] or [`Breaker::failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Call while the store is up.
    Usual,
    /// Single call while the store is down.
    Try,
}

impl Breaker {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the call allowed at `now`. If the store is down, one call is after each pause, and no other until the end of that call.
    pub fn allows(&self, now: Instant) -> Option<Call> {
        let mut state = self.state();
        match state.retry_at {
            None => Some(Call::Usual),
            Some(at) if now >= at => {
                // The end of the try sets the time of the next.
                state.retry_at = Some(now + TRY_MAX);
                state.retried += 1;
                Some(Call::Try)
            }
            Some(_) => None,
        }
    }

    /// Returns `true` if a call at `now` would not be allowed.
    pub fn is_open(&self, now: Instant) -> bool {
        self.state().retry_at.is_some_and(|at| now < at)
    }

    /// Notes an answer, of whatever contents. Returns `true` if the store counted as down until now.
    pub fn answered(&self) -> bool {
        let mut state = self.state();
        state.failures = 0;
        state.pause = Duration::ZERO;
        state.retry_at.take().is_some()
    }

    /// Notes a call without an answer. Returns `true` if the store counts as down from now on. Calls that began before lengthen no pause: many threads
    /// may wait for a store when it fails.
    pub fn failed(&self, call: Call, now: Instant) -> bool {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        let was_up = state.retry_at.is_none();
        let goes_down = was_up && state.failures >= FAILURES_MAX;
        if goes_down || !was_up && call == Call::Try {
            state.pause = (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            state.retry_at = Some(now + state.pause);
        }
        goes_down
    }

    /// Returns `true` if the store counts as down, and the number of tries since.
    pub fn stats(&self) -> (bool, u64) {
        let state = self.state();
        (state.retry_at.is_some(), state.retried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_answer_is_left_alone_but_for_single_tries() {
        let breaker = Breaker::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let fails = |ms: u64| breaker.failed(Call::Usual, at(ms));
        assert!(!fails(0) && !fails(0) && breaker.allows(at(0)) == Some(Call::Usual));
        assert!(fails(0), "down at the third");
        assert!(breaker.is_open(at(999)) && !breaker.is_open(at(1000)));
        assert_eq!([999, 1000, 1001].map(|ms| breaker.allows(at(ms))), [None, Some(Call::Try), None]);
        assert!(!breaker.failed(Call::Try, at(1100)), "still down");
        assert_eq!([3099, 3100].map(|ms| breaker.allows(at(ms))), [None, Some(Call::Try)]);
        assert_eq!(breaker.stats(), (true, 2));
        assert!(breaker.answered() && !breaker.answered(), "up again, once");
        assert_eq!((breaker.allows(at(3101)), breaker.stats()), (Some(Call::Usual), (false, 2)));
    }

    #[test]
    fn calls_that_fail_together_make_one_pause_and_tries_that_fail_make_the_next_ones_longer() {
        let breaker = Breaker::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!((0..20).filter(|_| breaker.failed(Call::Usual, at(0))).count(), 1);
        assert_eq!([999, 1000].map(|ms| breaker.allows(at(ms))), [None, Some(Call::Try)]);
        // A call from before the store went down says nothing of the try.
        assert!(!breaker.failed(Call::Usual, at(1001)));
        assert_eq!([1002, 30_999].map(|ms| breaker.allows(at(ms))), [None; 2]);
        let mut now = 1000;
        for pause in [2, 4, 8, 16, 32, 60, 60] {
            breaker.failed(Call::Try, at(now));
            now += pause * 1000;
            assert_eq!([now - 1, now].map(|ms| breaker.allows(at(ms))), [None, Some(Call::Try)], "{pause} s");
        }
    }
}
