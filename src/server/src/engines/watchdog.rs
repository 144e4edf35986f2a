//! Watches the steps of a worker: a step that takes far longer than such steps take never ends.
//!
//! The limit for a step is the largest of
//!
//! * the setting `step_timeout`,
//! * [`MULTIPLE`] times the longest step seen lately of about as many tokens (within a factor of 2), or, if there was none, the
//!   longest shorter step scaled up in proportion to the tokens,
//! * [`MULTIPLE`] times the estimate of the core's configuration, `recompute_token_ns` for each token.
//!
//! A reset, which waits for the copy under way, may take `step_timeout`.
//!
//! Steps run one after another, so the time of a step counts from the end of the step before.

use std::collections::VecDeque;
use std::time::Duration;

/// Factor between the longest time expected and the limit.
const MULTIPLE: u64 = 20;
/// Part of the longest time that each further step forgets: an outlier counts for some hundreds of steps.
const FORGET_SHARE: u64 = 256;
/// Number of classes of steps by their tokens, powers of 2.
const CLASSES: usize = 33;

/// Duration of steps of a worker, and the steps in flight.
pub(crate) struct Watchdog {
    /// Least limit, nanoseconds; `None` watches nothing.
    floor_ns: Option<u64>,
    /// Estimated time for each token, nanoseconds.
    token_ns: u64,
    /// (step, tokens), in the order of sending.
    in_flight: VecDeque<(u64, u32)>,
    /// Time at which the worker began the first step in flight, nanoseconds.
    begun_ns: u64,
    /// Time at which the worker was reset, nanoseconds, until it is ready.
    reset_ns: Option<u64>,
    /// Longest duration seen lately, nanoseconds, by class; 0 for none.
    longest_ns: [u64; CLASSES],
}

impl Watchdog {
    /// Makes a watchdog with a least limit; a limit of zero watches nothing.
    pub(crate) fn new(floor: Duration, token_ns: u64) -> Self {
        let floor_ns = u64::try_from(floor.as_nanos()).unwrap_or(u64::MAX);
        let floor_ns = Some(floor_ns).filter(|floor_ns| *floor_ns > 0);
        Self { floor_ns, token_ns, in_flight: VecDeque::new(), begun_ns: 0, reset_ns: None, longest_ns: [0; CLASSES] }
    }

    /// Notes a step of `tokens` tokens sent to the worker.
    pub(crate) fn sent(&mut self, step: u64, tokens: u32, now_ns: u64) {
        if self.in_flight.is_empty() {
            self.begun_ns = now_ns;
        }
        self.in_flight.push_back((step, tokens));
    }

    /// Notes the end of a step; returns the time of the step, nanoseconds, or `None` if another step is the first in flight.
    pub(crate) fn ended(&mut self, step: u64, now_ns: u64) -> Option<u64> {
        let (_, tokens) = self.in_flight.pop_front_if(|(first, _)| *first == step)?;
        let duration_ns = now_ns.saturating_sub(self.begun_ns);
        let longest_ns = &mut self.longest_ns[class(tokens)];
        let remembered_ns = *longest_ns - *longest_ns / FORGET_SHARE;
        *longest_ns = remembered_ns.max(duration_ns).max(1);
        self.begun_ns = now_ns;
        Some(duration_ns)
    }

    /// Returns `true` if a step is in flight.
    pub(crate) fn has_steps(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Forgets the steps in flight and the reset: the worker lost them, or is ready.
    pub(crate) fn clear(&mut self) {
        self.in_flight.clear();
        self.reset_ns = None;
    }

    /// Notes a reset, with which the worker loses the steps in flight.
    pub(crate) fn reset(&mut self, now_ns: u64) {
        self.clear();
        self.reset_ns = Some(now_ns);
    }

    /// Returns `true` from a reset to the worker's answer.
    pub(crate) fn is_resetting(&self) -> bool {
        self.reset_ns.is_some()
    }

    /// Returns the time at which the reset or the first step in flight is taken for lost; `None` if neither is under way.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        if let Some(reset_ns) = self.reset_ns {
            return Some(reset_ns.saturating_add(self.floor_ns?));
        }
        let (_, tokens) = self.in_flight.front()?;
        let limit_ns = self.expected_ns(*tokens).saturating_mul(MULTIPLE).max(self.floor_ns?);
        Some(self.begun_ns.saturating_add(limit_ns))
    }

    /// Returns the longest time expected for a step, nanoseconds.
    fn expected_ns(&self, tokens: u32) -> u64 {
        let class = class(tokens);
        let seen_ns = match self.longest_ns[class] {
            0 => (0..class).map(|less| self.longest_ns[less].saturating_mul(1 << (class - less))).max().unwrap_or(0),
            longest_ns => longest_ns,
        };
        seen_ns.max(self.token_ns.saturating_mul(tokens.into()))
    }
}

/// Returns the class of a step by its tokens.
fn class(tokens: u32) -> usize {
    (u32::BITS - tokens.leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A watchdog with a least limit of 100 ms that saw steps of 8 tokens of 10 ms.
    fn seen(token_ns: u64) -> Watchdog {
        let mut watchdog = Watchdog::new(Duration::from_millis(100), token_ns);
        watchdog.sent(1, 8, 5 * MS);
        watchdog.sent(2, 8, 6 * MS);
        watchdog.ended(1, 15 * MS);
        watchdog.ended(2, 25 * MS);
        assert_eq!(watchdog.due_ns(), None, "nothing is in flight");
        watchdog
    }

    /// The limit of a step of `tokens` tokens, sent at time 0.
    fn limit_ns(watchdog: &mut Watchdog, tokens: u32) -> u64 {
        watchdog.clear();
        watchdog.sent(9, tokens, 0);
        watchdog.due_ns().unwrap()
    }

    #[test]
    fn the_limit_is_a_multiple_of_what_such_steps_take_and_at_least_the_setting() {
        let mut watchdog = seen(0);
        assert_eq!(limit_ns(&mut watchdog, 8), 200 * MS);
        assert_eq!(limit_ns(&mut watchdog, 15), 200 * MS, "about as many tokens");
        assert_eq!(limit_ns(&mut watchdog, 1024), 128 * 200 * MS, "in proportion to the tokens");
        assert_eq!(limit_ns(&mut watchdog, 1), 100 * MS, "nothing is known of smaller steps: the setting");
        assert_eq!(limit_ns(&mut seen(30 * MS), 8), 20 * 240 * MS, "the estimate is longer");
        assert_eq!(limit_ns(&mut Watchdog::new(Duration::from_secs(1), 0), u32::MAX), 1000 * MS);
    }

    #[test]
    fn the_time_of_a_step_counts_from_the_end_of_the_step_before() {
        let mut watchdog = Watchdog::new(Duration::from_millis(100), 0);
        watchdog.sent(1, 1, 10 * MS);
        watchdog.sent(2, 1, 20 * MS);
        assert_eq!(watchdog.due_ns(), Some(110 * MS));
        watchdog.ended(7, 90 * MS);
        assert_eq!(watchdog.due_ns(), Some(110 * MS), "the answer to another step");
        watchdog.ended(1, 12 * MS);
        assert_eq!(watchdog.due_ns(), Some(112 * MS));
        watchdog.clear();
        assert_eq!(watchdog.due_ns(), None);
    }

    #[test]
    fn a_reset_may_take_the_setting_and_steps_sent_meanwhile_wait_for_it() {
        let mut watchdog = seen(0);
        watchdog.sent(3, 8, 5 * MS);
        watchdog.reset(50 * MS);
        assert_eq!(watchdog.due_ns(), Some(150 * MS));
        watchdog.clear();
        assert_eq!(watchdog.due_ns(), None, "the worker is ready");
    }

    #[test]
    fn an_outlier_is_forgotten_slowly_and_zero_watches_nothing() {
        let mut watchdog = Watchdog::new(Duration::from_nanos(1), 0);
        let mut now_ns = 0;
        for (step, step_ns) in std::iter::once(1000 * MS).chain([10 * MS; 2000]).enumerate() {
            watchdog.sent(step as u64, 4, now_ns);
            now_ns += step_ns;
            watchdog.ended(step as u64, now_ns);
            if step == 100 {
                assert!(limit_ns(&mut watchdog, 4) > 10_000 * MS);
                watchdog.clear();
            }
        }
        assert_eq!(limit_ns(&mut watchdog, 4), 200 * MS);
        let mut off = Watchdog::new(Duration::ZERO, 1);
        off.sent(1, 1, 0);
        assert_eq!(off.due_ns(), None);
    }
}
