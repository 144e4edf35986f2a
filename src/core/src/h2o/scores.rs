//! Scores of the blocks of one sequence, and the ways to fold a step's scores into them.

/// Scores of the planner blocks of one sequence, in the order of positions; all are finite and at least 0.
///
/// Each way to take in a step first gives the scores the length of the step's: blocks beyond the end are forgotten, new blocks start
/// at 0. A negative, infinite or NaN score counts as 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    blocks: Vec<f32>,
}

/// Returns a score fit to be compared: 0 instead of NaN, infinite and negative numbers.
pub(super) fn sound(score: f32) -> f32 {
    if score > 0.0 && score.is_finite() { score } else { 0.0 }
}

impl Scores {
    /// Creates the scores of blocks in the order of positions, for example to continue from a saved state.
    pub fn new(blocks: impl IntoIterator<Item = f32>) -> Self {
        Self { blocks: blocks.into_iter().map(sound).collect() }
    }

    /// Takes a step into an exponential moving average: `s = alpha * s + (1 - alpha) * step`, with `alpha` clamped to `0.0..=1.0`.
    pub fn average(&mut self, alpha: f32, step: &[f32]) {
        let alpha = alpha.clamp(0.0, 1.0);
        self.fold(step, |score, new| alpha * score + (1.0 - alpha) * new);
    }

    /// Replaces all scores.
    pub fn replace(&mut self, step: &[f32]) {
        self.fold(step, |_, new| new);
    }

    /// Adds the scores of a step, times `weight`, a number of at least 0.
    pub fn add(&mut self, weight: f32, step: &[f32]) {
        self.fold(step, |score, new| (score + weight * new).min(f32::MAX));
    }

    /// Raises each score to the score of the step, if higher.
    pub fn raise(&mut self, step: &[f32]) {
        self.fold(step, f32::max);
    }

    fn fold(&mut self, step: &[f32], with: impl Fn(f32, f32) -> f32) {
        self.blocks.resize(step.len(), 0.0);
        for (score, new) in self.blocks.iter_mut().zip(step) {
            *score = with(*score, sound(*new));
        }
    }

    /// Returns the score of a block; `None` if no step reported one.
    pub fn get(&self, block: u32) -> Option<f32> {
        self.blocks.get(block as usize).copied()
    }

    /// Returns all scores, in the order of positions.
    pub fn as_slice(&self) -> &[f32] {
        &self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_weighs_the_past_by_alpha_and_new_blocks_start_at_zero() {
        let mut scores = Scores::new([0.5, 0.25]);
        scores.average(0.75, &[0.5, 0.25, 1.0]);
        assert_eq!(scores.as_slice(), [0.5, 0.25, 0.25]);
        scores.average(0.5, &[0.0]);
        assert_eq!(scores.as_slice(), [0.25], "blocks beyond the end are forgotten");
        scores.average(1.7, &[9.0]);
        assert_eq!(scores.as_slice(), [0.25], "alpha is clamped to 1");
    }

    #[test]
    fn scores_that_are_no_probabilities_count_as_zero() {
        let mut scores = Scores::new([f32::NAN, 1.0]);
        scores.average(0.5, &[1.0, f32::NAN, -4.0, f32::INFINITY]);
        assert_eq!(scores.as_slice(), [0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn sums_maxima_and_last_scores_are_kept_by_block() {
        let (mut sum, mut max, mut last) = (Scores::default(), Scores::default(), Scores::default());
        for step in [&[0.5, 0.25][..], &[0.25, 0.5, 0.125]] {
            sum.add(2.0, step);
            max.raise(step);
            last.replace(step);
        }
        assert_eq!(sum.as_slice(), [1.5, 1.5, 0.25]);
        assert_eq!(max.as_slice(), [0.5, 0.5, 0.125]);
        assert_eq!((last.get(2), last.get(3)), (Some(0.125), None));
        sum.add(f32::MAX, &[1.0]);
        sum.add(f32::MAX, &[1.0]);
        assert_eq!(sum.as_slice(), [f32::MAX], "a sum stays finite");
    }
}
