//! The step-time controller: prompt tokens that a step may run beside decodes, so that a prompt does not stop the streams of others.
//!
//! A decode waits for the step that runs it, so the longest step bounds the time between two tokens of a request. The target is a time,
//! or a multiple of what the decodes take alone ([`StepTarget`]). Both costs are learned from the steps themselves, whatever the worker:
//!
//! * **Decodes alone.** The mean time of the steps since the batch last changed, or of the batch before, if that took less: one slow
//!   step raises nothing. Under continuous prompts no step has decodes alone, so one in [`BESIDE_MAX`] is made so, and so is the first.
//! * **Prompt tokens.** A step over the target shortens the next chunk in proportion to the time that its prompt took. The chunk starts with a
//!   block, and doubles while twice the time would be within the target; then it grows by an eighth.
//!
//! A step of prompts alone is cut in the same way once decodes were measured, and prompts take turns (`scheduler.rs`): a request that comes after a
//! long prompt waits for a step or two, and not for the prompt.
//!
//! (Sarathi-Serve, OSDI 2024, profiles a fixed token budget; this budget follows the load.) Where prompts cost so much that a single token
//! misses the target, a step still runs one, like one more decode: prompts always go on.

use crate::config::{Config, StepTarget};

/// Share by which the budget grows: one in `GROWTH`.
const GROWTH: u32 = 8;
/// The budget grows only while steps take less than this many sixteenths of the target.
const SPARE_SIXTEENTHS: u64 = 14;
/// Steps with prompts beside decodes, after which one shows again what the decodes take alone: a hundredth of the time of prompts at a target
/// of three times.
const BESIDE_MAX: u32 = 32;
/// Times the target that a step of prompts alone may take. Only who comes meanwhile waits for its end, and a step has costs that do not depend on its
/// tokens: at a target of three times what decodes take alone, this loses a ninth at most.
const ALONE_TIMES: u64 = 3;

/// Token budget of prefill chunks in a step that also decodes.
#[derive(Debug)]
pub(crate) struct PrefillBudget {
    target: StepTarget,
    block_size: u32,
    max: u32,
    /// Prompt tokens beside decodes.
    beside_tokens: u32,
    /// Prompt tokens of a step without decodes.
    alone_tokens: u32,
    decodes: DecodeTime,
    /// Steps with prompts beside decodes since one without.
    beside: u32,
}

impl PrefillBudget {
    /// Creates the budget of a configuration: a block, until more is known.
    pub fn new(config: &Config) -> Self {
        let (max, block_size) = (config.max_batch_tokens, config.block_size);
        let (decodes, beside, tokens) = (DecodeTime::default(), 0, block_size.min(max));
        let target = config.target_step_ns;
        Self { target, block_size, max, beside_tokens: tokens, alone_tokens: tokens, decodes, beside }
    }

    /// Returns `true` if the next step is to show what its decodes take alone.
    pub fn awaits_decodes(&self) -> bool {
        matches!(self.target, StepTarget::Times(_)) && (self.beside >= BESIDE_MAX || self.decodes.ns().is_none())
    }

    /// Returns the number of prompt tokens that the next step may run beside decodes.
    pub fn beside_decodes(&self) -> u32 {
        if self.target == StepTarget::Off { self.max } else { self.beside_tokens }
    }

    /// Returns the number of prompt tokens that a step without decodes may run, if that is limited: once decodes were measured. Where nothing decodes,
    /// as on a worker that only prefills, nobody waits for tokens.
    pub fn alone(&self) -> Option<u32> {
        let is_limited = matches!(self.target, StepTarget::Times(_)) && self.decodes.ns().is_some();
        is_limited.then_some(self.alone_tokens)
    }

    /// Takes in `steps` steps with `n` decodes and nothing else, which took `took_ns` together.
    pub fn observe_decodes(&mut self, n: usize, steps: u32, took_ns: u64) {
        self.beside = 0;
        self.decodes.observe(n, steps, took_ns);
    }

    /// Adapts the budget to a step with decodes and `prompt_tokens` prompt tokens that took `took_ns`.
    pub fn observe_beside(&mut self, prompt_tokens: u32, took_ns: u64) {
        self.beside = self.beside.saturating_add(1);
        self.decodes.end_run();
        let (target_ns, fixed_ns) = match (self.target, self.decodes.ns()) {
            (StepTarget::Ns(target_ns), _) => (target_ns, 0),
            (StepTarget::Times(times), Some(ns)) => ((ns as f64 * times) as u64, ns),
            (StepTarget::Times(_), None) | (StepTarget::Off, _) => return,
        };
        let step = PromptStep { prompt_tokens, took_ns, target_ns, fixed_ns };
        self.beside_tokens = self.adapted(self.beside_tokens, &step).max(1);
    }

    /// Adapts the budget to a step of `prompt_tokens` prompt tokens alone that took `took_ns`.
    pub fn observe_prompts(&mut self, prompt_tokens: u32, took_ns: u64) {
        self.decodes.end_run();
        if let (StepTarget::Times(times), Some(ns)) = (self.target, self.decodes.ns()) {
            let target_ns = ((ns as f64 * times) as u64).saturating_mul(ALONE_TIMES);
            let step = PromptStep { prompt_tokens, took_ns, target_ns, fixed_ns: 0 };
            self.alone_tokens = self.adapted(self.alone_tokens, &step).max(self.block_size.min(self.max));
        }
    }

    /// Returns a budget, adapted to a step.
    fn adapted(&self, tokens: u32, step: &PromptStep) -> u32 {
        let PromptStep { prompt_tokens, took_ns, target_ns, fixed_ns } = *step;
        if took_ns > target_ns {
            let (room_ns, used_ns) = (target_ns.saturating_sub(fixed_ns), took_ns.saturating_sub(fixed_ns));
            let fit = u128::from(prompt_tokens) * u128::from(room_ns) / u128::from(used_ns.max(1));
            return u32::try_from(fit).unwrap_or(u32::MAX).min(tokens);
        }
        // Used up if there was no room for another chunk, which ends with a block if it can.
        let unused = tokens.saturating_sub(prompt_tokens);
        let is_used_up = unused == 0 || (tokens >= self.block_size && unused < self.block_size);
        if !is_used_up || took_ns > target_ns / 16 * SPARE_SIXTEENTHS {
            return tokens;
        }
        let more = if took_ns <= target_ns / 2 { tokens } else { (tokens / GROWTH).max(1) };
        tokens.saturating_add(more).min(self.max)
    }
}

/// A step with prompts that ended.
struct PromptStep {
    prompt_tokens: u32,
    took_ns: u64,
    target_ns: u64,
    /// Time that the step would have taken without its prompt tokens.
    fixed_ns: u64,
}

/// Time of a step that decodes, and does nothing else.
#[derive(Debug, Default)]
struct DecodeTime {
    /// Decodes in each step of the run: steps without prompts one after another.
    n: usize,
    steps: u64,
    ns: u64,
    /// Mean of the run before.
    before_ns: Option<u64>,
}

impl DecodeTime {
    /// Takes in so many steps with `n` decodes each. A sum does not depend on how many are taken in together.
    fn observe(&mut self, n: usize, steps: u32, took_ns: u64) {
        if n != self.n {
            if let Some(mean_ns) = self.mean_ns() {
                self.before_ns = Some(mean_ns);
            }
            (self.n, self.steps, self.ns) = (n, 0, 0);
        }
        self.steps += u64::from(steps);
        self.ns = self.ns.saturating_add(took_ns);
    }

    /// Ends the run: the next step without prompts begins another.
    fn end_run(&mut self) {
        self.n = 0;
    }

    fn mean_ns(&self) -> Option<u64> {
        self.ns.checked_div(self.steps)
    }

    /// Returns the expected time; `None` before the first step.
    fn ns(&self) -> Option<u64> {
        self.mean_ns().into_iter().chain(self.before_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(target_step_ns: StepTarget, max_batch_tokens: u32) -> PrefillBudget {
        PrefillBudget::new(&Config { target_step_ns, max_batch_tokens, block_size: 16, ..Config::default() })
    }

    /// Runs steps of a worker that takes a fixed time and a time per token, with prompts whenever they may run. Returns the budgets of the steps
    /// with prompts, and the number of steps without.
    fn run(budget: &mut PrefillBudget, fixed_ns: u64, token_ns: u64, steps: u32) -> (Vec<u32>, u32) {
        let (mut budgets, mut alone) = (Vec::new(), 0);
        for _ in 0..steps {
            if budget.awaits_decodes() {
                alone += 1;
                budget.observe_decodes(4, 1, fixed_ns);
                continue;
            }
            let tokens = budget.beside_decodes();
            budgets.push(tokens);
            let aligned = if tokens < 16 { tokens } else { tokens / 16 * 16 };
            budget.observe_beside(aligned, fixed_ns + u64::from(aligned) * token_ns);
        }
        (budgets, alone)
    }

    #[test]
    fn steps_come_to_take_about_the_target_at_any_cost_of_a_token() {
        let mut budget = budget(StepTarget::Ns(50_000), 8192);
        for token_ns in [100, 10, 400] {
            let (budgets, alone) = run(&mut budget, 5_000, token_ns, 60);
            let took_ns = 5_000 + u64::from(budgets[59] / 16 * 16) * token_ns;
            assert!((38_000..=52_000).contains(&took_ns), "{took_ns} ns at {token_ns} ns a token");
            assert_eq!(alone, 0, "the target says all");
        }
    }

    #[test]
    fn chunks_double_from_a_block_up_to_three_times_the_time_of_the_decodes() {
        let mut budget = budget(StepTarget::SERVED, 2048);
        let (budgets, alone) = run(&mut budget, 25_000_000, 50_000, 12);
        assert_eq!(alone, 1, "the first step shows what decodes take");
        // 1,000 tokens take as long as the decodes twice; it grows up to seven eighths of the time.
        assert_eq!(budgets, [16, 32, 64, 128, 256, 288, 324, 364, 409, 460, 517]);
        let (budgets, alone) = run(&mut budget, 25_000_000, 50_000, 99);
        assert_eq!((*budgets.last().unwrap(), alone), (825, 3), "one step in 33");
        // A worker on which nobody notices the prompts.
        let (budgets, _) = run(&mut budget, 25_000_000, 100, 12);
        assert_eq!(*budgets.last().unwrap(), 2048);
    }

    #[test]
    fn prompts_alone_are_cut_once_decodes_were_measured() {
        let mut budget = budget(StepTarget::SERVED, 2048);
        budget.observe_prompts(2048, 100_000_000);
        assert_eq!(budget.alone(), None, "nothing decodes, as on a worker that only prefills");
        budget.observe_decodes(4, 1, 25_000_000);
        for _ in 0..20 {
            let tokens = budget.alone().unwrap();
            budget.observe_prompts(tokens, u64::from(tokens) * 200_000);
        }
        // 205 of 225 ms at 200 us a token: it grows up to seven eighths of the time.
        assert_eq!((budget.alone(), budget.beside_decodes()), (Some(1024), 16));
        budget.observe_prompts(1024, 900_000_000_000);
        assert_eq!(budget.alone(), Some(16), "a block at least");
        let mut fixed = self::budget(StepTarget::Ns(1), 2048);
        fixed.observe_decodes(4, 1, 25_000_000);
        assert_eq!(fixed.alone(), None, "the time of steps with decodes");
    }

    #[test]
    fn tokens_that_cost_more_than_the_decodes_run_one_by_one() {
        let mut budget = budget(StepTarget::SERVED, 2048);
        let (budgets, _) = run(&mut budget, 2_000_000, 5_500_000, 4);
        assert_eq!(budgets, [16, 1, 1]);
        // As soon as they cost less, there are more of them.
        let (budgets, _) = run(&mut budget, 2_000_000, 100_000, 5);
        assert_eq!(budgets, [1, 2, 4, 8, 16]);
    }

    #[test]
    fn the_time_of_decodes_follows_the_batch_and_not_one_slow_step() {
        let mut time = DecodeTime::default();
        assert_eq!(time.ns(), None);
        time.observe(2, 3, 30);
        assert_eq!(time.ns(), Some(10));
        time.end_run();
        time.observe(2, 1, 900);
        assert_eq!(time.ns(), Some(10), "one slow step");
        time.end_run();
        time.observe(9, 1, 40);
        time.end_run();
        time.observe(9, 1, 42);
        assert_eq!(time.ns(), Some(40), "more decodes");
        time.observe(1, 1, 6);
        assert_eq!(time.ns(), Some(6), "fewer");
    }

    #[test]
    fn steps_taken_in_together_count_as_one_by_one() {
        let (mut together, mut apart) = (DecodeTime::default(), DecodeTime::default());
        together.observe(2, 3, 36);
        [11, 12, 13].into_iter().for_each(|ns| apart.observe(2, 1, ns));
        assert_eq!(together.ns(), apart.ns());
    }

    #[test]
    fn without_a_target_there_is_no_limit_and_without_a_clock_no_cut() {
        let mut none = budget(StepTarget::Off, 2048);
        let (budgets, alone) = run(&mut none, 1_000_000, 1_000_000, 5);
        assert_eq!((budgets, alone), (vec![2048; 5], 0));
        let mut timeless = budget(StepTarget::SERVED, 2048);
        assert_eq!(*run(&mut timeless, 0, 0, 20).0.last().unwrap(), 2048);
        let mut short = budget(StepTarget::Ns(10), 2048);
        assert_eq!(*run(&mut short, 1_000_000, 1_000, 5).0.last().unwrap(), 1);
    }
}
