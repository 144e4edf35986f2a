//! The step-time controller: prompt tokens that a step may run beside decodes, so that steps take the target time.
//!
//! A decode waits for the step that runs it, so the longest step bounds the time between two tokens of a request. The controller
//! learns the cost of a token from the steps themselves: a step over the target shortens the next prefill chunk in proportion; a
//! step with time to spare lets the chunk grow by an eighth. (Sarathi-Serve, OSDI 2024, profiles a fixed token budget; this budget
//! follows the load.)

/// Share by which the budget grows: one in `GROWTH`.
const GROWTH: u32 = 8;
/// The budget grows only while steps take less than this many sixteenths of the target.
const SPARE_SIXTEENTHS: u64 = 14;

/// Token budget of prefill chunks in a step that also decodes.
#[derive(Debug)]
pub(crate) struct PrefillBudget {
    target_ns: u64,
    min: u32,
    max: u32,
    tokens: u32,
}

impl PrefillBudget {
    /// Creates a budget of `min` to `max` prompt tokens for steps of `target_ns`; 0 means no target.
    pub fn new(target_ns: u64, min: u32, max: u32) -> Self {
        Self { target_ns, min: min.min(max), max, tokens: max }
    }

    /// Returns the number of prompt tokens that the next step may run beside decodes.
    pub fn tokens(&self) -> u32 {
        if self.target_ns == 0 { self.max } else { self.tokens }
    }

    /// Adapts the budget to a step with decodes and `prompt_tokens` prompt tokens that took `took_ns`.
    pub fn observe(&mut self, prompt_tokens: u32, took_ns: u64) {
        if self.target_ns == 0 || prompt_tokens == 0 {
            return;
        }
        if took_ns > self.target_ns {
            let fit = u128::from(prompt_tokens) * u128::from(self.target_ns) / u128::from(took_ns);
            self.tokens = (fit as u32).clamp(self.min, self.tokens.max(self.min));
        } else if prompt_tokens + self.min > self.tokens && took_ns < self.target_ns / 16 * SPARE_SIXTEENTHS {
            let grown = self.tokens.saturating_add(self.min.max(self.tokens / GROWTH));
            self.tokens = grown.min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps of a worker that takes a fixed time and a time per token. Returns the time of the last step.
    fn run(budget: &mut PrefillBudget, fixed_ns: u64, token_ns: u64, steps: u32) -> u64 {
        let mut took_ns = 0;
        for _ in 0..steps {
            let tokens = budget.tokens() / 16 * 16;
            took_ns = fixed_ns + u64::from(tokens) * token_ns;
            budget.observe(tokens, took_ns);
        }
        took_ns
    }

    #[test]
    fn steps_come_to_take_about_the_target_at_any_cost_of_a_token() {
        let mut budget = PrefillBudget::new(50_000, 16, 8192);
        for token_ns in [100, 10, 400] {
            let took_ns = run(&mut budget, 5_000, token_ns, 60);
            assert!((38_000..=52_000).contains(&took_ns), "{took_ns} ns at {token_ns} ns a token");
        }
    }

    #[test]
    fn prefills_always_get_a_block_and_no_target_means_no_limit() {
        let mut budget = PrefillBudget::new(10, 16, 2048);
        run(&mut budget, 1_000_000, 1000, 5);
        assert_eq!(budget.tokens(), 16);
        let mut none = PrefillBudget::new(0, 16, 2048);
        run(&mut none, 1_000_000, 1000, 5);
        assert_eq!(none.tokens(), 2048);
    }
}
