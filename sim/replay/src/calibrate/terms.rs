//! Terms of a step time, whose coefficients are fitted.

use trunkline_sim_perf::cost::{Curve, Piece, Sample, StepErrors, StepShape, StepTime};

/// Samples that a piece of a curve takes: the mean of as many is a fifth as uncertain as each.
const PIECE_SAMPLES: usize = 20;

/// Terms of a [`StepTime`], in the order of their coefficients: a constant, the pieces of the sequences and those of the tokens, tokens of context
/// that decodes read, pairs of prefill attention, and perhaps the context that decodes alongside prefills read.
///
/// Pieces begin at powers of two, where the samples show them: of the sequences by steps with decodes alone, and of the tokens by steps
/// with prefills. In steps of decodes both numbers are the same, and only what prefills show of tokens tells the two apart. The last piece covers
/// at least one doubling, so that what lies beyond the samples goes on as steep as over a wide range of them.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    sequences: Vec<u64>,
    tokens: Vec<u64>,
    /// Whether context alongside prefills is a term of its own.
    is_mixed: bool,
}

impl Terms {
    /// Returns the terms that `samples` show, and perhaps the context alongside prefills.
    pub fn of(samples: &[Sample], is_mixed: bool) -> Self {
        let with = |prefills: bool| samples.iter().filter(move |sample| (sample.shape.prefills > 0) == prefills);
        Self {
            sequences: beginnings(with(false).map(|sample| sample.shape.sequences()).collect()),
            tokens: beginnings(with(true).map(|sample| sample.shape.tokens).collect()),
            is_mixed,
        }
    }

    /// Returns the number of terms.
    pub fn len(&self) -> usize {
        3 + self.sequences.len() + self.tokens.len() + usize::from(self.is_mixed)
    }

    /// Returns the terms of a step: its time is their sum, each times its coefficient.
    pub fn row<'a>(&'a self, shape: &StepShape) -> impl Iterator<Item = f64> + 'a {
        let mixed = if shape.prefills > 0 { shape.decode_kv_tokens } else { 0 };
        let last = [shape.decode_kv_tokens, shape.prefill_pairs, mixed].map(|n| n as f64);
        let (sequences, tokens) = (shares(&self.sequences, shape.sequences()), shares(&self.tokens, shape.tokens));
        [1.0].into_iter().chain(sequences).chain(tokens).chain(last).take(self.len())
    }

    /// Returns the step time with these coefficients.
    pub fn step_time(&self, model: &'static str, coefficients: &[f64]) -> StepTime {
        let (sequences, rest) = coefficients[1..].split_at(self.sequences.len());
        let (tokens, last) = rest.split_at(self.tokens.len());
        StepTime {
            model,
            model_bytes: None,
            parallel: "",
            constant_s: coefficients[0],
            tokens: curve(&self.tokens, tokens),
            sequences: curve(&self.sequences, sequences),
            context_token_s: last[0],
            mixed_context_token_s: last.get(2).copied().unwrap_or(0.0),
            prefill_pair_s: last[1],
            largest: None,
            against: "",
            errors: StepErrors::default(),
        }
    }
}

/// Returns where the pieces of a curve over these numbers begin.
fn beginnings(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    let up_to = |n: u64| numbers.partition_point(|number| *number <= n);
    let last = numbers.last().copied().unwrap_or(0);
    let (mut beginnings, mut begun) = (vec![0], 0);
    let mut from = 1;
    while 2 * from <= last {
        let here = up_to(from);
        if here - begun >= PIECE_SAMPLES && numbers.len() - here >= PIECE_SAMPLES {
            beginnings.push(from);
            begun = here;
        }
        from *= 2;
    }
    beginnings
}

/// Returns how much of `n` lies in each piece.
fn shares(beginnings: &[u64], n: u64) -> impl Iterator<Item = f64> {
    beginnings.iter().enumerate().map(move |(at, from)| {
        let end = beginnings.get(at + 1).map_or(n, |next| n.min(*next));
        end.saturating_sub(*from) as f64
    })
}

fn curve(beginnings: &[u64], each_s: &[f64]) -> Curve {
    Curve::new(beginnings.iter().zip(each_s).map(|(from, each_s)| Piece { from: *from, each_s: *each_s }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_begin_at_powers_of_two_with_samples_enough() {
        let of = |numbers: &[(u64, usize)]| {
            beginnings(numbers.iter().flat_map(|(number, times)| vec![*number; *times]).collect())
        };
        assert_eq!(of(&[]), [0]);
        assert_eq!(of(&[(1, 100)]), [0]);
        assert_eq!(of(&[(1, 20), (2, 20), (3, 19), (4, 1), (9, 20)]), [0, 1, 2, 4]);
        assert_eq!(of(&[(1, 20), (2, 20), (3, 19), (5, 1), (17, 20)]), [0, 1, 2, 8], "19 are too few between 2 and 4");
        assert_eq!(of(&[(1, 20), (2, 20), (3, 20), (4, 0), (7, 20)]), [0, 1, 2], "from 4 to 7 is no doubling");
        assert_eq!(of(&[(300, 50)]), [0]);
    }

    #[test]
    fn rows_and_step_times_are_of_one_mind() {
        let shapes = [
            StepShape::decodes(3, 50),
            StepShape::decodes(9, 50),
            StepShape::prefill(100, 32),
            StepShape::prefill(300, 0).and(StepShape::decodes(7, 9)),
        ];
        for (is_mixed, shape) in shapes.into_iter().flat_map(|shape| [(true, shape), (false, shape)]) {
            let terms = Terms { sequences: vec![0, 4], tokens: vec![0, 64, 128], is_mixed };
            let coefficients: Vec<f64> = (1..=terms.len()).map(|n| n as f64 * 1e-3).collect();
            let time = terms.step_time("m", &coefficients);
            let row: f64 = terms.row(&shape).zip(&coefficients).map(|(term, coefficient)| term * coefficient).sum();
            assert!((row / time.step_s(&shape) - 1.0).abs() < 1e-12, "{row} {}", time.step_s(&shape));
        }
    }
}
