//! Chunks of prompts in the steps of a benchmark.
//!
//! Engines fill each step: decodes first, then the prompt under way, then the next prompts in order, up to the token budget. So the first
//! chunk of a prompt takes the rest of a budget, and its last chunk ends with the first token, which clients observe. A prompt begins in the
//! earliest gap from which it ends exactly there; a shorter wait would have had its token earlier.
//!
//! A gap with decodes is one step. A gap without is as many as the budget demands, and begins at the arrival of its first prompt, if later.
//! Unknown are gaps of several steps; gaps with decodes and a prompt that arrived after the start, as something else happened there; and all gaps of a
//! prompt that cannot end where its first token is.

use trunkline_sim_perf::cost::StepShape;

/// Time between two groups of tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Time of the group before, seconds.
    pub before_s: f64,
    /// Time of the group at the end, seconds.
    pub end_s: f64,
    /// Sequences with a token at the end and one before.
    pub decodes: u64,
}

/// Prompt with the tokens that ran so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompt {
    tokens: u64,
    start_s: f64,
    /// Gap that the first token ends.
    last: usize,
    done: u64,
    /// First gap with a chunk.
    begun: Option<usize>,
}

/// Prompts of a gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// Chunks in the gap.
    pub prompts: StepShape,
    /// Begin of the step, seconds.
    pub begin_s: f64,
    /// Returns `true` if the gap is one step with these chunks.
    pub is_known: bool,
    /// Prompts with their first token at the end that were too long for the steps before.
    pub misfits: u64,
}

impl Prompt {
    /// Returns a prompt whose first token ends the gap `last`.
    pub(super) fn new(tokens: u64, start_s: f64, last: usize) -> Self {
        Self { tokens, start_s, last, done: 0, begun: None }
    }

    fn rest(&self) -> u64 {
        self.tokens - self.done
    }

    fn run(&mut self, at: usize, tokens: u64) -> StepShape {
        if tokens == 0 {
            return StepShape::default();
        }
        let chunk = StepShape::prefill(tokens, self.done);
        self.done += tokens;
        self.begun.get_or_insert(at);
        chunk
    }
}

/// Returns the chunks of `prompts` in each gap, with `step_tokens` tokens in a step at most.
pub(super) fn fill(gaps: &[Gap], mut prompts: Vec<Prompt>, step_tokens: u64) -> Vec<Filled> {
    prompts.sort_by(|a, b| a.last.cmp(&b.last).then(a.start_s.total_cmp(&b.start_s)));
    let begins = gaps.iter().map(|gap| gap.before_s);
    let mut filled: Vec<_> =
        begins.map(|begin_s| Filled { prompts: StepShape::default(), begin_s, is_known: true, misfits: 0 }).collect();
    let mut queue = prompts.as_mut_slice();
    for at in 0..gaps.len() {
        let n_ended = queue.iter().take_while(|prompt| prompt.last == at).count();
        let (ended, waiting) = std::mem::take(&mut queue).split_at_mut(n_ended);
        let room = end(at, gaps, ended, step_tokens, &mut filled);
        if let Some(next) = waiting.first_mut() {
            begin(at, gaps, next, room, step_tokens, &mut filled);
        }
        queue = waiting;
    }
    filled
}

/// Tokens of prompts that fit into the step of a gap, `None` for a gap of any number of steps.
fn budget(gap: &Gap, step_tokens: u64) -> Option<u64> {
    (gap.decodes > 0).then(|| step_tokens.saturating_sub(gap.decodes))
}

/// Room after the prompts that end in a gap.
struct Room {
    tokens: u64,
    n_steps: u64,
}

/// Runs the rest of the prompts that end in the gap `at`. Returns the room behind.
fn end(at: usize, gaps: &[Gap], ended: &mut [Prompt], step_tokens: u64, filled: &mut [Filled]) -> Room {
    let gap = &gaps[at];
    let came_s = ended.iter().map(|prompt| prompt.start_s).fold(f64::INFINITY, f64::min);
    let is_late = ended.iter().any(|prompt| prompt.start_s > gap.before_s);
    let total: u64 = ended.iter().map(Prompt::rest).sum();
    let n_steps = if gap.decodes > 0 { 1 } else { total.div_ceil(step_tokens).max(1) };
    let mut left = budget(gap, step_tokens).unwrap_or(n_steps * step_tokens);
    filled[at].is_known &= n_steps == 1 && (gap.decodes == 0 || !is_late);
    if gap.decodes == 0 && came_s.is_finite() {
        filled[at].begin_s = gap.before_s.max(came_s);
    }
    for prompt in ended {
        let rest = prompt.rest();
        let tokens = rest.min(left);
        left -= tokens;
        let chunk = prompt.run(at, tokens);
        filled[at].prompts = filled[at].prompts.and(chunk);
        if tokens < rest {
            filled[at].misfits += 1;
            forget(prompt.begun.unwrap_or(at), at, filled);
        }
    }
    Room { tokens: left, n_steps }
}

/// Runs a chunk of the first prompt that ends in a later gap, if it began by now.
fn begin(at: usize, gaps: &[Gap], next: &mut Prompt, room: Room, step_tokens: u64, filled: &mut [Filled]) {
    let rest = next.rest();
    let later = &gaps[at + 1..next.last];
    let is_late = next.start_s > filled[at].begin_s;
    // In a gap of several steps a prompt may arrive in time for the last of them. It did, if the later gaps are too short for it.
    let runs = if is_late {
        room.n_steps > 1 && exceeds(rest, later.iter().chain([&gaps[next.last]]), step_tokens)
    } else {
        rest > room.tokens && exceeds(rest - room.tokens, later.iter(), step_tokens)
    };
    if runs {
        let chunk = next.run(at, room.tokens.min(rest.saturating_sub(1)));
        filled[at].prompts = filled[at].prompts.and(chunk);
    } else if let Some(begun) = next.begun {
        // Under way, but slower than the budget allows.
        forget(begun, next.last, filled);
    }
}

/// Returns `true` if `tokens` of a prompt do not fit into `gaps`.
fn exceeds<'a>(tokens: u64, gaps: impl Iterator<Item = &'a Gap>, step_tokens: u64) -> bool {
    let mut rest = tokens;
    for gap in gaps {
        match budget(gap, step_tokens) {
            Some(budget) if budget < rest => rest -= budget,
            _ => return false,
        }
    }
    true
}

/// Marks gaps as unknown.
fn forget(from: usize, to: usize, filled: &mut [Filled]) {
    filled[from..=to].iter_mut().for_each(|filled| filled.is_known = false);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaps of one second with so many decodes.
    fn gaps(decodes: &[u64]) -> Vec<Gap> {
        let gap = |(at, decodes): (usize, &u64)| Gap { before_s: at as f64, end_s: at as f64 + 1.0, decodes: *decodes };
        decodes.iter().enumerate().map(gap).collect()
    }

    /// Returns the chunks of each gap, `None` if unknown.
    fn filled(decodes: &[u64], prompts: &[(u64, f64, usize)]) -> Vec<Option<StepShape>> {
        let prompts = prompts.iter().map(|&(tokens, start_s, last)| Prompt::new(tokens, start_s, last)).collect();
        let filled = fill(&gaps(decodes), prompts, 100);
        filled.iter().map(|filled| filled.is_known.then_some(filled.prompts)).collect()
    }

    fn none() -> Option<StepShape> {
        Some(StepShape::default())
    }

    fn chunk(tokens: u64, past: u64) -> Option<StepShape> {
        Some(StepShape::prefill(tokens, past))
    }

    #[test]
    fn the_rest_of_a_prompt_is_in_its_last_step() {
        // Three steps of 90, 80 and 30 tokens, and room in the last one for the next prompt.
        let two = chunk(30, 170).map(|shape| shape.and(StepShape::prefill(60, 0)));
        assert_eq!(
            filled(&[10, 10, 20, 10, 20], &[(200, 0.9, 3), (75, 1.5, 4)]),
            [none(), chunk(90, 0), chunk(80, 90), two, chunk(15, 60)]
        );
    }

    #[test]
    fn a_prompt_that_would_have_ended_earlier_waited() {
        // Arrived in the first gap; a sequence limit held both back until the third.
        assert_eq!(filled(&[10, 10, 10], &[(50, 0.5, 2), (40, 0.6, 2)])[..2], [none(), none()]);
        // One step is too short, so it began in the second gap, though it was there in the first.
        assert_eq!(filled(&[10, 10, 10], &[(120, -1.0, 2)]), [none(), chunk(90, 0), chunk(30, 90)]);
    }

    #[test]
    fn a_prompt_that_cannot_end_at_its_first_token_leaves_gaps_unknown() {
        // 190 tokens in a gap of 90, after an arrival in the gap before.
        assert_eq!(filled(&[10, 10, 10, 10], &[(190, 1.5, 2)]), [none(), none(), None, none()]);
        // 280 in two gaps.
        assert_eq!(filled(&[10, 10, 10, 10], &[(280, 0.5, 2)]), [none(), None, None, none()]);
        // Arrived after the start.
        assert_eq!(filled(&[10, 10], &[(50, 1.5, 1)]), [none(), None]);
    }

    #[test]
    fn a_gap_without_decodes_is_one_step_or_unknown() {
        assert_eq!(filled(&[0, 0], &[(60, 1.5, 1), (40, 1.4, 1)])[1].map(|shape| shape.tokens), Some(100));
        let begin_s = fill(&gaps(&[0, 0]), vec![Prompt::new(60, 1.5, 1)], 100)[1].begin_s;
        assert_eq!(begin_s, 1.5);
        // Two steps, and in the second of them a chunk of a prompt that arrived before it.
        assert_eq!(filled(&[0, 1], &[(150, 0.2, 0), (120, 0.5, 1)]), [None, chunk(70, 50)]);
    }
}
