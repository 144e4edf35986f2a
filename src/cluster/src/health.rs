//! Health of an engine: whether its worker finishes its steps.
//!
//! | state | new requests | |
//! |---|---|---|
//! | open | as the router says | |
//! | suspected | none, while another engine is open | the requests on it move; ends after a pause |
//! | probing | one at a time | its step decides |
//!
//! An engine is suspected after [`SUSPECTED_AFTER`] failed steps in a row, or after fewer if they took so long that its requests were computed elsewhere in
//! the time, as when a step hangs until its timeout. So is one whose steps end, and take far longer than those of others and than its requests would there.
//! [`HEALTH_TRANSITIONS`] is the same table in code. The pause doubles from [`PAUSE_MIN_NS`] to [`PAUSE_MAX_NS`], and is the least again for a worker that
//! ran for as long as it was last kept away. A cluster of one engine does not ask: there is nowhere else to go.

use serde::Serialize;
use trunkline_core::Pause;

/// Failed steps in a row after which an engine is suspected. One request that fails everywhere fails at most three in a row: two with all
/// with it, and one with its half of the suspects; then another half succeeds. So the fourth has another cause.
pub(crate) const SUSPECTED_AFTER: u32 = 4;
/// First pause before a probe. A worker is reset in less; Envoy's and Finagle's first pauses for a host that fails are 30 and 5 seconds, for hosts
/// that take longer to come back. Reasonable between 0.1 and 30 s.
pub(crate) const PAUSE_MIN_NS: u64 = 1_000_000_000;
/// Times of another engine's step, and of computing the requests there, from which on a step is slow: as for copies that are overdue. Engines of several
/// kinds differ by less.
pub(crate) const SLOW_TIMES: u64 = 16;
/// Longest pause: a worker that stays broken costs one step of one request a minute. Finagle's is 5 minutes, as is Envoy's.
pub(crate) const PAUSE_MAX_NS: u64 = 64 * PAUSE_MIN_NS;

/// Trust in the worker of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// The engine takes requests.
    #[default]
    Open,
    /// Too many steps in a row failed: other engines take the requests.
    Suspected,
    /// The pause is over: the engine gets one request at a time, until a step succeeds or fails.
    Probing,
}

/// Events with an effect on the health of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// A step failed, and too many in a row have, or they took too long.
    FailedOn,
    /// A step failed, and fewer in a row have.
    Failed,
    /// A step succeeded, and took far longer than on other engines.
    Slow,
    /// A step succeeded.
    Succeeded,
    /// The pause is over.
    PauseEnded,
    /// A request that failed here failed elsewhere as well, and was the cause; or another worker joined.
    Cleared,
}

/// All changes of health. An event without a row for a state leaves the state as it is.
pub const HEALTH_TRANSITIONS: [(HealthEvent, Health, Health); 9] = {
    use Health::{Open, Probing, Suspected};
    use HealthEvent::{Cleared, Failed, FailedOn, PauseEnded, Slow, Succeeded};
    [
        (FailedOn, Open, Suspected),
        (FailedOn, Probing, Suspected),
        (Failed, Probing, Suspected),
        (Slow, Open, Suspected),
        (Slow, Probing, Suspected),
        (Succeeded, Suspected, Open),
        (Succeeded, Probing, Open),
        (PauseEnded, Suspected, Probing),
        (Cleared, Suspected, Probing),
    ]
};

impl Health {
    /// Returns the state after an event.
    #[must_use]
    pub fn after(self, event: HealthEvent) -> Self {
        let row = HEALTH_TRANSITIONS.iter().find(|(on, from, _)| (*on, *from) == (event, self));
        row.map_or(self, |(_, _, to)| *to)
    }
}

/// Circuit breaker of one engine: its health, and the times of it.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Health,
    /// Failed steps in a row, as far as known here.
    in_a_row: u32,
    /// Pauses before a probe, while suspected.
    pause: Pause,
    /// Beginning of the open state.
    opened_ns: u64,
}

impl Default for Breaker {
    /// Creates the breaker of an engine that was never suspected.
    fn default() -> Self {
        let pause = Pause::between(PAUSE_MIN_NS, PAUSE_MAX_NS);
        Self { state: Health::Open, in_a_row: 0, pause, opened_ns: 0 }
    }
}

impl Breaker {
    pub fn state(&self) -> Health {
        self.state
    }

    /// Ends the pause if it is over.
    pub fn advance(&mut self, now_ns: u64) {
        if self.state == Health::Suspected && !self.pause.is_on(now_ns) {
            self.change(HealthEvent::PauseEnded, now_ns);
        }
    }

    /// Takes note of a step that succeeded. Returns the event that this was.
    pub fn succeed(&mut self, is_slow: bool, now_ns: u64) -> HealthEvent {
        self.in_a_row = 0;
        let event = if is_slow { HealthEvent::Slow } else { HealthEvent::Succeeded };
        self.change(event, now_ns);
        event
    }

    /// Takes note of the failed steps in a row. If their number changed, returns the event that this was, and `true` if a step failed: the cause of
    /// others may have been found.
    ///
    /// `is_costly` is `true` if going elsewhere would have been faster than these steps were.
    pub fn note(&mut self, in_a_row: u32, is_costly: bool, now_ns: u64) -> Option<(HealthEvent, bool)> {
        let before = std::mem::replace(&mut self.in_a_row, in_a_row);
        if in_a_row == before {
            return None;
        }
        let event = match in_a_row {
            0 => HealthEvent::Succeeded,
            n if n >= SUSPECTED_AFTER || is_costly => HealthEvent::FailedOn,
            _ => HealthEvent::Failed,
        };
        self.change(event, now_ns);
        Some((event, in_a_row > before))
    }

    pub fn change(&mut self, event: HealthEvent, now_ns: u64) {
        let (before, after) = (self.state, self.state.after(event));
        self.state = after;
        match (before, after) {
            (Health::Open | Health::Probing, Health::Suspected) => {
                if before == Health::Open && now_ns - self.opened_ns >= self.pause.last_ns() {
                    self.pause.succeeded();
                }
                self.pause.failed(now_ns, 0);
            }
            (Health::Suspected | Health::Probing, Health::Open) => self.opened_ns = now_ns,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Health::{Open, Probing, Suspected};
    use HealthEvent::{Cleared, Failed, FailedOn, PauseEnded, Slow, Succeeded};

    const S: u64 = PAUSE_MIN_NS;

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let mut table = String::new();
        for from in [Open, Suspected, Probing] {
            let row = [FailedOn, Failed, Slow, Succeeded, PauseEnded, Cleared]
                .map(|event| format!("{event:?}>{:?}", from.after(event)));
            table.push_str(&format!("{from:?}: {}\n", row.join(" ")));
        }
        let reviewed = "\
Open: FailedOn>Suspected Failed>Open Slow>Suspected Succeeded>Open PauseEnded>Open Cleared>Open
Suspected: FailedOn>Suspected Failed>Suspected Slow>Suspected Succeeded>Open PauseEnded>Probing Cleared>Probing
Probing: FailedOn>Suspected Failed>Suspected Slow>Suspected Succeeded>Open PauseEnded>Probing Cleared>Probing
";
        assert_eq!(table, reviewed);
    }

    #[test]
    fn pauses_double_while_probes_fail_and_begin_again_after_as_long_a_success() {
        let mut breaker = Breaker::default();
        let mut now_ns = 7 * S;
        (1..4).for_each(|n| assert!(breaker.note(n, false, now_ns) == Some((Failed, true)) && breaker.state() == Open));
        let mut pauses = Vec::new();
        for n in 4..13 {
            assert!(breaker.note(n, false, now_ns) == Some((FailedOn, true)) && breaker.state() == Suspected);
            pauses.push(breaker.pause.last_ns() / S);
            now_ns += breaker.pause.last_ns();
            breaker.advance(now_ns - 1);
            assert_eq!(breaker.state(), Suspected);
            breaker.advance(now_ns);
            assert_eq!(breaker.state(), Probing);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        // Open for less than the last pause, it is kept away for as long again.
        for (open_s, pause_s) in [(63, 64), (64, 1), (0, 2)] {
            assert!(breaker.note(0, false, now_ns) == Some((Succeeded, false)) && breaker.state() == Open);
            now_ns += open_s * S;
            (1..=4).for_each(|n| assert!(breaker.note(n, false, now_ns).is_some()));
            assert_eq!(breaker.pause.last_ns() / S, pause_s);
            now_ns += breaker.pause.last_ns();
            breaker.advance(now_ns);
        }
    }

    #[test]
    fn steps_that_fail_or_succeed_count_only_in_a_row() {
        let mut breaker = Breaker::default();
        for n in [1, 2, 3, 0, 1, 2, 3, 0, 1] {
            breaker.note(n, false, 0);
            assert_eq!(breaker.state(), Open);
        }
        assert_eq!(breaker.note(1, false, 0), None, "nothing new");
    }

    #[test]
    fn one_step_that_hangs_is_enough() {
        let mut breaker = Breaker::default();
        assert!(breaker.note(1, true, S) == Some((FailedOn, true)) && breaker.state() == Suspected);
    }
}
