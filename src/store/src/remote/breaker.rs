//! Judgement of a remote store that does not answer: after some calls without an answer nobody waits for the store any more, and single calls try again.

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

impl Breaker {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the store is worth a call at `now`. If the store is down, one call is after each pause, and no other until the end of that call.
    pub fn allows(&self, now: Instant) -> bool {
        let mut state = self.state();
        match state.retry_at {
            None => true,
            Some(at) if now >= at => {
                // The end of the try sets the time of the next.
                state.retry_at = Some(now + TRY_MAX);
                state.retried += 1;
                true
            }
            Some(_) => false,
        }
    }

    /// Returns `true` if a call at `now` would not be allowed.
    pub fn is_open(&self, now: Instant) -> bool {
        self.state().retry_at.is_some_and(|at| now < at)
    }

    /// Notes an answer, of whatever contents.
    pub fn answered(&self) {
        let mut state = self.state();
        state.failures = 0;
        (state.retry_at, state.pause) = (None, Duration::ZERO);
    }

    /// Notes a call without an answer. Returns `true` if the store counts as down from now on.
    pub fn failed(&self, now: Instant) -> bool {
        let mut state = self.state();
        state.failures += 1;
        if state.failures < FAILURES_MAX {
            return false;
        }
        let was_up = state.retry_at.is_none();
        state.pause = (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        state.retry_at = Some(now + state.pause);
        was_up
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
        assert!(!breaker.failed(at(0)) && !breaker.failed(at(0)) && breaker.allows(at(0)));
        assert!(breaker.failed(at(0)), "down at the third");
        assert!(breaker.is_open(at(999)) && !breaker.is_open(at(1000)));
        assert!(!breaker.allows(at(999)) && breaker.allows(at(1000)) && !breaker.allows(at(1001)));
        assert!(!breaker.failed(at(1100)), "still down");
        assert!(!breaker.allows(at(3099)) && breaker.allows(at(3100)));
        assert_eq!(breaker.stats(), (true, 2));
        breaker.answered();
        assert!(breaker.allows(at(3101)) && breaker.stats() == (false, 2));
        assert_eq!((0..20).filter(|_| breaker.failed(at(0))).count(), 1);
        assert!(!breaker.allows(at(59_999)) && breaker.allows(at(60_000)), "no pause is longer than a minute");
    }
}
