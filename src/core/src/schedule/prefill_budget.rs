//! The step-time controller: prompt tokens that a step may run alongside decodes, so that a prompt does not stop the streams of others.
//!
//! A decode waits for the step that runs it, so the longest step bounds the time between two tokens of a request. The target is a time,
//! or a multiple of what the decodes take alone ([`StepTarget`]). Both costs are learned from the steps themselves, whatever the worker:
//!
//! * **Decodes alone.** The mean time of the steps since the batch last changed, or of the batch before, if that took less: one slow
//!   step raises nothing. Under continuous prompts no step has decodes alone, so one in [`BESIDE_MAX`] is made so, and so is the first.
//! * **Prompt tokens.** A step over the target shortens the next chunk in proportion to the time that its prompt took. The chunk starts with a
//!   block, and doubles while twice the time would be within the target; then it grows by an eighth, if that is a token.
//!
//! A token attends to all before it, so one deep in a long prompt may cost a hundred times as much as one at the beginning of a short prompt. There is a
//! budget for each power of two of the position where a chunk begins ([`ByDepth`]), and chunks of several prompts share a step by the parts that they
//! take of theirs: a long prompt does not make the chunks of short ones small, nor do these let its chunk grow.
//!
//! A step of prompts alone is cut by the same budgets once decodes were measured, and prompts take turns (`scheduler/turns.rs`): a request that comes after a
//! long prompt waits for a step or two, and not for the prompt.
//!
//! (Sarathi-Serve, OSDI 2024, profiles a fixed token budget; this budget follows the load.) Where prompts cost so much that a single token
//! misses the target, a step still runs one, like one more decode: prompts always go on.

use crate::config::{Config, StepTarget};

/// Share by which the budget grows: one in `GROWTH`.
const GROWTH: u32 = 8;
/// The budget grows only while steps take less than this many sixteenths of the target.
const SPARE_SIXTEENTHS: u64 = 14;
/// Steps with prompts alongside decodes, after which one shows again what the decodes take alone: a hundredth of the time of prompts at a target
/// of three times.
const BESIDE_MAX: u32 = 32;
/// Budgets that a step of prompts alone may take. Only who comes meanwhile waits for its end, and a step has costs that do not depend on its
/// tokens: at a target of three times what decodes take alone, this loses a sixth at most.
const ALONE_TIMES: u32 = 3;

/// A whole step, of which chunks take parts.
const WHOLE: u64 = 1 << 32;
/// Powers of two of positions, and 0.
const DEPTHS: usize = u32::BITS as usize + 1;

/// Token budgets of prefill chunks, and what the step being made has left of them.
#[derive(Debug)]
pub(crate) struct PrefillBudget {
    target: StepTarget,
    block_size: u32,
    max: u32,
    /// Prompt tokens alongside decodes.
    budgets: ByDepth,
    /// Prompt tokens of background requests in steps without decodes, learned apart: such a step is to be shorter, and would make the chunks of
    /// others small.
    background: ByDepth,
    decodes: DecodeTime,
    /// Steps with prompts alongside decodes since one without.
    n_beside: u32,
    limit: Limit,
    /// Part of the step being made that no chunk has taken, of [`WHOLE`].
    room: u64,
}

/// The budgets that limit a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// None.
    Off,
    /// Those of prompts alongside decodes.
    WithDecodes,
    /// Those of prompts alone.
    Alone,
    /// Those of prompts of background requests alone.
    Background,
}

impl PrefillBudget {
    /// Creates the budget of a configuration: a block, until more is known.
    pub fn new(config: &Config) -> Self {
        let (max, block_size) = (config.max_batch_tokens, config.block_size);
        Self {
            target: config.target_step_ns,
            block_size,
            max,
            budgets: ByDepth::new(block_size.min(max)),
            background: ByDepth::new(block_size.min(max)),
            decodes: DecodeTime::default(),
            n_beside: 0,
            limit: Limit::Off,
            room: WHOLE,
        }
    }

    /// Returns `true` if the next step is to show what its decodes take alone.
    pub fn awaits_decodes(&self) -> bool {
        matches!(self.target, StepTarget::Times(_)) && (self.n_beside >= BESIDE_MAX || self.decodes.ns().is_none())
    }

    /// Returns `true` if steps of prompts alone are cut: once decodes were measured. Where nothing decodes, as on a worker that only prefills, nobody
    /// waits for tokens.
    fn cuts_prompts(&self) -> bool {
        matches!(self.target, StepTarget::Times(_)) && self.decodes.ns().is_some()
    }

    /// Begins a step, with or without decodes, or one that only the limits of the configuration bind.
    pub fn begin_step(&mut self, limit: Limit) {
        self.room = WHOLE;
        self.limit = match limit {
            Limit::WithDecodes if self.target != StepTarget::Off => limit,
            Limit::Alone | Limit::Background if self.cuts_prompts() => limit,
            _ => Limit::Off,
        };
    }

    /// Returns the tokens from `position` on that fill the step being made, if there is a limit.
    fn whole(&self, position: u32) -> Option<u32> {
        let tokens = self.budgets.at(position);
        match self.limit {
            Limit::Off => None,
            // Where a token alone misses the target, one runs.
            Limit::Alone if tokens > 1 => Some(tokens.saturating_mul(ALONE_TIMES).min(self.max)),
            Limit::WithDecodes | Limit::Alone => Some(tokens),
            Limit::Background => Some(self.background.at(position)),
        }
    }

    /// Returns `true` if the step being made has a limit.
    pub fn is_limited(&self) -> bool {
        self.limit != Limit::Off
    }

    /// Returns `true` if the step being made may take another chunk.
    pub fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Returns `true` if a whole step leaves a chunk that begins at `position` less than a block.
    pub fn is_fine(&self, position: u32) -> bool {
        self.whole(position).is_some_and(|whole| whole < self.block_size)
    }

    /// Returns the number of prompt tokens from `position` on that the step being made may run, at most: at least one if it has none yet.
    pub fn left(&self, position: u32) -> u32 {
        self.whole(position).map_or(u32::MAX, |whole| (u64::from(whole) * self.room / WHOLE) as u32)
    }

    /// Takes a chunk of `tokens` tokens from `position` on from what is left of the step being made.
    pub fn take(&mut self, position: u32, tokens: u32) {
        self.room = self.room.saturating_sub(self.part(position, tokens));
    }

    /// Returns the part of a step like the one being made that `tokens` tokens from `position` on take, of [`WHOLE`]; 0 without a limit.
    pub fn part(&self, position: u32, tokens: u32) -> u64 {
        self.whole(position).map_or(0, |whole| part(tokens, whole))
    }

    /// Returns how much of steps like the one being made the rest of a prompt takes: [`Self::part`], or the number of its tokens without a limit.
    pub fn rest(&self, position: u32, tokens: u32) -> u64 {
        self.whole(position).map_or(tokens.into(), |whole| part(tokens, whole))
    }

    /// Takes in `steps` steps with `n` decodes and nothing else, which took `took_ns` together.
    pub fn observe_decodes(&mut self, n: usize, steps: u32, took_ns: u64) {
        self.n_beside = 0;
        self.decodes.observe(n, steps, took_ns);
    }

    /// Adapts the budgets to a step with decodes and prompt tokens that took `took_ns`.
    pub fn observe_beside(&mut self, prompts: &PromptTokens, took_ns: u64) {
        self.n_beside = self.n_beside.saturating_add(1);
        self.decodes.end_run();
        let (target_ns, fixed_ns) = match (self.target, self.decodes.ns()) {
            (StepTarget::Ns(target_ns), _) => (target_ns, 0),
            (StepTarget::Times(times), Some(ns)) => ((ns as f64 * times) as u64, ns),
            (StepTarget::Times(_), None) | (StepTarget::Off, _) => return,
        };
        let step = PromptStep { took_ns, target_ns, fixed_ns, times: 1, block_size: self.block_size, max: self.max };
        self.budgets.adapt(prompts, &step);
    }

    /// Adapts the budgets to a step of prompt tokens alone that took `took_ns`, of background requests or of others.
    pub fn observe_prompts(&mut self, prompts: &PromptTokens, took_ns: u64, is_background: bool) {
        self.decodes.end_run();
        if let (StepTarget::Times(times), Some(ns)) = (self.target, self.decodes.ns()) {
            // As for tokens alongside decodes, which have what the decodes leave; at a target of about their time, their time.
            let room_ns = (ns as f64 * (times - 1.0).max(1.0)) as u64;
            let times = if is_background { 1 } else { ALONE_TIMES };
            let target_ns = room_ns.saturating_mul(times.into());
            let (block_size, max) = (self.block_size, self.max);
            let step = PromptStep { took_ns, target_ns, fixed_ns: 0, times, block_size, max };
            let budgets = if is_background { &mut self.background } else { &mut self.budgets };
            budgets.adapt(prompts, &step);
        }
    }
}

/// Returns the part of a step that `tokens` tokens take which may fill it with `budget` tokens, of [`WHOLE`], rounded up.
fn part(tokens: u32, budget: u32) -> u64 {
    (u64::from(tokens) * WHOLE).div_ceil(budget.max(1).into())
}

/// Returns the number of the power of two below a position.
fn depth(position: u32) -> usize {
    (u32::BITS - position.leading_zeros()) as usize
}

/// Prompt tokens of a step, by where their chunks begin.
#[derive(Clone, Debug)]
pub(crate) struct PromptTokens([u32; DEPTHS]);

impl Default for PromptTokens {
    fn default() -> Self {
        Self([0; DEPTHS])
    }
}

impl PromptTokens {
    /// Adds a chunk.
    pub fn add(&mut self, position: u32, tokens: u32) {
        self.0[depth(position)] += tokens;
    }

    /// Returns the number of all tokens.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }
}

/// Tokens that fill a step, by the power of two of the position where they begin; at least one.
///
/// A token costs the more the deeper it is, and one of twice the depth twice as much at most: it attends to twice as many. So deeper budgets are not
/// larger, and fall by half at most from one to the next: what is learned of one bounds the others. One of which nothing is known is like the next
/// shallower one.
#[derive(Debug)]
struct ByDepth {
    tokens: [u32; DEPTHS],
    is_known: [bool; DEPTHS],
}

impl ByDepth {
    fn new(tokens: u32) -> Self {
        Self { tokens: [tokens; DEPTHS], is_known: [false; DEPTHS] }
    }

    fn at(&self, position: u32) -> u32 {
        self.tokens[depth(position)]
    }

    fn set(&mut self, depth: usize, tokens: u32) {
        self.is_known[depth] = true;
        self.tokens[depth] = tokens;
        self.tokens[..depth].iter_mut().for_each(|budget| *budget = tokens.max(*budget));
        for deeper in depth + 1..DEPTHS {
            let least = tokens.checked_shr((deeper - depth) as u32).unwrap_or(0).max(1);
            self.tokens[deeper] = match self.is_known[deeper] {
                true => self.tokens[deeper].clamp(least, tokens),
                false => self.tokens[deeper - 1],
            };
        }
    }

    /// Adapts the budgets of the depths that a step ran tokens of.
    fn adapt(&mut self, prompts: &PromptTokens, step: &PromptStep) {
        let parts = |(tokens, budget): (&u32, &u32)| part(*tokens, *budget);
        let used = prompts.0.iter().zip(&self.tokens).map(parts).sum();
        let ran = prompts.0.iter().enumerate().filter(|(_, tokens)| **tokens > 0);
        ran.for_each(|(depth, _)| self.set(depth, step.adapted(self.tokens[depth], used).max(1)));
    }
}

/// A step with prompts that ended.
struct PromptStep {
    took_ns: u64,
    target_ns: u64,
    /// Time that the step would have taken without its prompt tokens.
    fixed_ns: u64,
    /// Budgets that the step might take.
    times: u32,
    block_size: u32,
    max: u32,
}

impl PromptStep {
    /// Returns the budget of `tokens` tokens, adapted to the step, which used such a part of its budgets, of [`WHOLE`].
    fn adapted(&self, tokens: u32, used: u64) -> u32 {
        let Self { took_ns, target_ns, fixed_ns, times, block_size, max } = *self;
        let ran = u128::from(tokens) * u128::from(used) / u128::from(WHOLE);
        if took_ns > target_ns {
            let (room_ns, used_ns) = (target_ns.saturating_sub(fixed_ns), took_ns.saturating_sub(fixed_ns));
            let fit = ran.saturating_mul(room_ns.into()) / u128::from(used_ns.max(1)) / u128::from(times);
            return u32::try_from(fit).unwrap_or(u32::MAX).min(tokens);
        }
        // Used up if there was no room for another chunk, which ends with a block if it can.
        let whole = if tokens > 1 { tokens.saturating_mul(times).min(max) } else { 1 };
        let unused = whole.saturating_sub(u32::try_from(ran).unwrap_or(u32::MAX));
        let is_used_up = unused == 0 || (whole >= block_size && unused < block_size);
        if !is_used_up || took_ns > target_ns / 16 * SPARE_SIXTEENTHS {
            return tokens;
        }
        let more = if took_ns <= target_ns / 2 { tokens } else { tokens / GROWTH };
        tokens.saturating_add(more).min(max)
    }
}

/// Time of a step that decodes, and does nothing else.
#[derive(Debug, Default)]
struct DecodeTime {
    /// Decodes in each step of the run: steps without prompts one after another.
    n: usize,
    /// `true` if the next step begins another run, whatever it decodes.
    is_over: bool,
    steps: u64,
    ns: u64,
    /// Mean of the run before.
    before_ns: Option<u64>,
}

impl DecodeTime {
    /// Takes in so many steps with `n` decodes each. A sum does not depend on how many are taken in together.
    fn observe(&mut self, n: usize, steps: u32, took_ns: u64) {
        if n != self.n || self.is_over {
            self.before_ns = self.mean_ns().or(self.before_ns);
            (self.n, self.is_over, self.steps, self.ns) = (n, false, 0, 0);
        }
        self.steps += u64::from(steps);
        self.ns = self.ns.saturating_add(took_ns);
    }

    /// Ends the run: the next step without prompts begins another.
    fn end_run(&mut self) {
        self.is_over = true;
    }

    fn mean_ns(&self) -> Option<u64> {
        self.ns.checked_div(self.steps)
    }

    /// Returns the time to expect: that of the run, or of the run before if that took less. `None` before the first.
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

    /// Returns the tokens of a prompt that a step may run from `position` on, if there is a limit.
    fn whole(budget: &mut PrefillBudget, limit: Limit, position: u32) -> Option<u32> {
        budget.begin_step(limit);
        budget.is_limited().then(|| budget.left(position))
    }

    fn with_decodes(budget: &mut PrefillBudget, position: u32) -> u32 {
        whole(budget, Limit::WithDecodes, position).unwrap_or(2048)
    }

    fn alone(budget: &mut PrefillBudget) -> Option<u32> {
        whole(budget, Limit::Alone, 0)
    }

    fn prompts(chunks: &[(u32, u32)]) -> PromptTokens {
        let mut prompts = PromptTokens::default();
        chunks.iter().for_each(|(position, tokens)| prompts.add(*position, *tokens));
        prompts
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
            let tokens = with_decodes(budget, 0);
            budgets.push(tokens);
            let aligned = if tokens < 16 { tokens } else { tokens / 16 * 16 };
            budget.observe_beside(&prompts(&[(0, aligned)]), fixed_ns + u64::from(aligned) * token_ns);
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
        budget.observe_prompts(&prompts(&[(0, 2048)]), 100_000_000, false);
        assert_eq!(alone(&mut budget), None, "nothing decodes, as on a worker that only prefills");
        budget.observe_decodes(4, 1, 25_000_000);
        for _ in 0..20 {
            let tokens = alone(&mut budget).unwrap();
            budget.observe_prompts(&prompts(&[(0, tokens)]), u64::from(tokens) * 200_000, false);
        }
        // 137 of 150 ms at 200 us a token: it grows while a step takes up to seven eighths of the time.
        assert_eq!((alone(&mut budget), with_decodes(&mut budget, 0)), (Some(687), 229));
        budget.observe_prompts(&prompts(&[(0, 1024)]), 900_000_000_000, false);
        assert_eq!(alone(&mut budget), Some(1), "prompts go on");
        let mut fixed = self::budget(StepTarget::Ns(1), 2048);
        fixed.observe_decodes(4, 1, 25_000_000);
        assert_eq!(alone(&mut fixed), None, "the time of steps with decodes");
    }

    #[test]
    fn background_prompts_leave_the_budgets_of_others_alone() {
        let mut budget = budget(StepTarget::SERVED, 2048);
        budget.observe_decodes(4, 1, 25_000_000);
        run(&mut budget, 25_000_000, 50_000, 40);
        let others = (alone(&mut budget), with_decodes(&mut budget, 0));
        for _ in 0..40 {
            // A step of prompts alone reads the weights, too, as the decodes do.
            let tokens = whole(&mut budget, Limit::Background, 0).unwrap();
            budget.observe_prompts(&prompts(&[(0, tokens)]), 25_000_000 + u64::from(tokens) * 50_000, true);
        }
        assert_eq!((alone(&mut budget), with_decodes(&mut budget, 0)), others);
        let tokens = whole(&mut budget, Limit::Background, 0).unwrap();
        assert!((350..=500).contains(&tokens), "{tokens}: 43 to 50 ms, twice the time of the decodes");
    }

    /// A worker whose tokens cost more the deeper they are: the steps of a long prompt and of short ones take turns.
    #[test]
    fn a_long_prompt_and_short_ones_learn_nothing_wrong_from_each_other() {
        let mut budget = budget(StepTarget::SERVED, 2048);
        budget.observe_decodes(1, 1, 1_000_000);
        let cost_ns = |position: u32, tokens: u32| u64::from(tokens) * (50_000 + u64::from(position) * 1_000);
        let (mut at, mut longest_ns, mut short) = (0, 0, Vec::new());
        for step in 0..2_000 {
            let is_short = step % 8 == 7;
            let position = if is_short { 0 } else { at };
            let tokens = with_decodes(&mut budget, position).min(if is_short { 40 } else { 4_000 - at });
            let took_ns = 1_000_000 + cost_ns(position, tokens);
            budget.observe_beside(&prompts(&[(position, tokens)]), took_ns);
            if is_short {
                short.push(tokens);
            } else {
                at = (at + tokens) % 4_000;
            }
            // What holds at a depth may be one and a half times as much at the next power of two.
            longest_ns = longest_ns.max(if tokens > 1 { took_ns } else { 0 });
        }
        assert!(short[8..].iter().all(|tokens| *tokens >= 30), "{short:?}");
        assert!(longest_ns <= 5_000_000, "{longest_ns} ns alongside decodes of 1 ms");
    }

    #[test]
    fn what_is_learned_at_one_depth_bounds_the_others() {
        let mut budgets = ByDepth::new(16);
        let all = |budgets: &ByDepth| [0, 1_000, 2_000, 4_000, 8_000, 16_000].map(|at| budgets.at(at));
        budgets.set(depth(1_000), 64);
        assert_eq!(all(&budgets), [64, 64, 64, 64, 64, 64]);
        budgets.set(depth(4_000), 5);
        assert_eq!(all(&budgets), [64, 64, 64, 5, 5, 5]);
        budgets.set(depth(1_000), 100);
        assert_eq!(all(&budgets), [100, 100, 100, 25, 25, 25], "a quarter as much at four times the depth");
        budgets.set(depth(8_000), 30);
        assert_eq!(all(&budgets), [100, 100, 100, 30, 30, 30]);
        budgets.set(depth(1), 1);
        assert_eq!(all(&budgets), [100, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn chunks_of_several_prompts_share_a_step_by_the_parts_that_they_take() {
        let mut budget = budget(StepTarget::Ns(50_000), 2048);
        budget.budgets.set(depth(0), 100);
        budget.budgets.set(depth(3_000), 10);
        budget.begin_step(Limit::WithDecodes);
        budget.take(0, 50);
        assert_eq!((budget.left(0), budget.left(3_000)), (50, 5), "half of each is taken");
        budget.take(3_000, 4);
        assert!(budget.has_room());
        budget.take(0, 10);
        assert!(!budget.has_room());
        // Twice the target: both have half as much next time.
        budget.observe_beside(&prompts(&[(0, 50), (3_000, 5)]), 100_000);
        assert_eq!((with_decodes(&mut budget, 0), with_decodes(&mut budget, 3_000)), (50, 5));
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
