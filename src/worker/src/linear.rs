//! A linear layer: `y = x W^T` with the weights laid out for [`accumulate`].
//!
//! The rows of `W` (one for each output) are cut into panels of [`LANES`] outputs, and a panel stores its weights input
//! by input: `[panel][input][lane]`. One pass over a panel computes sixteen outputs of several rows of `x` with unit
//! stride. The last panel is filled up with zeros.
//!
//! An output is the sum of partial sums over [`DEPTH`] inputs each, in ascending order; a partial sum adds one product
//! after another. The order depends on the number of inputs alone, see [`crate::kernel`].

use crate::kernel::{LANES, ROWS, accumulate, vectorised};
use crate::matrix::Matrix;
use crate::threads::Threads;

/// Inputs of one partial sum. A panel's part of this depth is 16 KiB and stays in the first-level cache while all rows pass;
/// shorter partial sums are also more exact.
const DEPTH: usize = 256;

/// Tasks for each thread: a thread finishing early finds more work.
const TASKS_PER_THREAD: usize = 4;

/// Treatment of the outputs' old values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The products replace the old values.
    Replace,
    /// The product is added to the outputs: a residual connection.
    Add,
}

/// Weight matrices with the same inputs, one below the other; the kinds of their weights may differ.
pub(crate) struct Linear {
    inputs: usize,
    outputs: usize,
    parts: Vec<Matrix>,
}

impl Linear {
    /// Joins matrices with the same number of inputs.
    pub(crate) fn new(parts: Vec<Matrix>) -> Self {
        let inputs = parts.first().map_or(0, Matrix::inputs);
        debug_assert!(parts.iter().all(|part| part.inputs() == inputs));
        Self { inputs, outputs: parts.iter().map(Matrix::outputs).sum(), parts }
    }

    /// Packs F32 matrices given row by row, one row for each output; the rows of the matrices follow one another.
    #[cfg(test)]
    pub(crate) fn pack(inputs: usize, parts: &[&[f32]]) -> Self {
        Self::new(parts.iter().map(|part| Matrix::from_f32(inputs, part)).collect())
    }

    /// Width of a row of outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Copies the weights of one output: for a tied head, a token's embedding.
    pub(crate) fn row(&self, output: usize, out: &mut [f32]) {
        let mut output = output;
        for part in &self.parts {
            if output < part.outputs() {
                return part.row(output, out);
            }
            output -= part.outputs();
        }
    }

    /// `out = x W^T` or `out += x W^T` for rows `x` of `inputs` and rows `out` of `outputs` elements. `scratch` is memory
    /// to use again; its contents do not matter.
    pub(crate) fn apply(&self, x: &[f32], out: &mut [f32], output: Output, scratch: &mut Vec<f32>, threads: &Threads) {
        let rows = x.len() / self.inputs;
        debug_assert_eq!(x.len(), rows * self.inputs);
        debug_assert_eq!(out.len(), rows * self.outputs);
        if rows == 0 {
            return;
        }
        let panels: Vec<(&Matrix, usize)> =
            self.parts.iter().flat_map(|part| (0..part.n_panels()).map(move |panel| (part, panel))).collect();
        // Laid out [panel][row][lane], so that each task owns a contiguous range.
        scratch.clear();
        scratch.resize(panels.len() * rows * LANES, 0.0);
        let per_task = panels.len().div_ceil(TASKS_PER_THREAD * threads.count());
        let cost = rows * self.inputs * self.outputs;
        threads.chunks(scratch, per_task * rows * LANES, cost, |task, sums| {
            let panels = &panels[task * per_task..];
            vectorised(
                #[inline(always)]
                || {
                    for ((matrix, panel), sums) in panels.iter().zip(sums.chunks_exact_mut(rows * LANES)) {
                        panel_times_rows(matrix, *panel, x, sums);
                    }
                },
            );
        });
        let sums: &[f32] = scratch;
        threads.chunks(out, self.outputs, rows * self.outputs, |row, out| {
            let (mut out, mut sums) = (out, &sums[row * LANES..]);
            for part in &self.parts {
                let (mine, others) = out.split_at_mut(part.outputs());
                for out in mine.chunks_mut(LANES) {
                    for (out, sum) in out.iter_mut().zip(sums) {
                        *out = if output == Output::Add { *out + sum } else { *sum };
                    }
                    sums = sums.get(rows * LANES..).unwrap_or_default();
                }
                out = others;
            }
        });
    }
}

/// Adds to `sums` (`[row][lane]`) the products of one panel with every row of `x`.
#[inline(always)]
fn panel_times_rows(matrix: &Matrix, panel: usize, x: &[f32], sums: &mut [f32]) {
    let inputs = matrix.inputs();
    let mut buffer = [0.0; DEPTH * LANES];
    for from in (0..inputs).step_by(DEPTH) {
        let depth = DEPTH.min(inputs - from);
        let w = matrix.panel_part(panel, from..from + depth, &mut buffer);
        let mut row = 0;
        for sums in sums.chunks_mut(ROWS * LANES) {
            let x = &x[row * inputs + from..];
            match sums.len() / LANES {
                6 => tile::<6>(x, inputs, depth, w, sums),
                5 => tile::<5>(x, inputs, depth, w, sums),
                4 => tile::<4>(x, inputs, depth, w, sums),
                3 => tile::<3>(x, inputs, depth, w, sums),
                2 => tile::<2>(x, inputs, depth, w, sums),
                _ => tile::<1>(x, inputs, depth, w, sums),
            }
            row += ROWS;
        }
    }
}

/// Computes a partial sum for `R` rows.
#[inline(always)]
fn tile<const R: usize>(x: &[f32], inputs: usize, depth: usize, w: &[f32], sums: &mut [f32]) {
    let rows = std::array::from_fn(|r| &x[r * inputs..r * inputs + depth]);
    let mut acc = [[0.0; LANES]; R];
    accumulate::<R>(rows, w, LANES, &mut acc);
    for (sums, acc) in sums.chunks_exact_mut(LANES).zip(&acc) {
        for (sum, acc) in sums.iter_mut().zip(acc) {
            *sum += acc;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::WeightKind;
    use crate::noise::Noise;

    fn noise(seed: u64, n: usize) -> Vec<f32> {
        let mut noise = Noise::new(seed);
        (0..n).map(|_| noise.uniform(1.0)).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn a_row_has_the_same_bits_in_every_batch_at_every_place_and_with_any_number_of_threads() {
        // Above and below one partial sum, with and without a part-filled panel.
        for (inputs, outputs) in [(1, 1), (17, 33), (256, 16), (300, 260), (1025, 47)] {
            let weights = noise(1, inputs * outputs);
            let linear = Linear::pack(inputs, &[&weights]);
            let x = noise(2, 70 * inputs);
            let mut scratch = Vec::new();
            let one = Threads::new(1).unwrap();
            let alone: Vec<Vec<u32>> = x
                .chunks(inputs)
                .map(|x| {
                    let mut out = vec![0.0; outputs];
                    linear.apply(x, &mut out, Output::Replace, &mut scratch, &one);
                    bits(&out)
                })
                .collect();
            for threads in [1, 2, 3] {
                let threads = Threads::new(threads).unwrap();
                for rows in 1..=70 {
                    let from = 70 - rows;
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear.apply(&x[from * inputs..], &mut out, Output::Replace, &mut scratch, &threads);
                    for (row, out) in out.chunks(outputs).enumerate() {
                        assert_eq!(bits(out), alone[from + row], "row {row} of {rows}, {inputs} by {outputs}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_product_with_weights_of_any_kind_has_the_bits_of_the_product_with_the_same_weights_in_f32() {
        let (inputs, rows) = (512, 9);
        let x = noise(11, rows * inputs);
        let one = Threads::new(1).unwrap();
        let mut parts = Vec::new();
        let mut weights = Vec::new();
        for (i, kind) in WeightKind::ALL.into_iter().enumerate() {
            // Rows of all kinds in one layer, with part-filled panels between the parts.
            let outputs = 13 + 5 * i;
            // Bytes below 64 are small numbers in every format.
            let bytes: Vec<u8> = noise(i as u64, kind.bytes(outputs, inputs).unwrap())
                .into_iter()
                .map(|value| ((value + 1.0) * 31.9) as u8)
                .collect();
            let part = Matrix::from_bytes(kind, outputs, inputs, &bytes).unwrap();
            let mut row = vec![0.0; inputs];
            for output in 0..outputs {
                part.row(output, &mut row);
                weights.extend_from_slice(&row);
            }
            parts.push(part);
        }
        let (mixed, plain) = (Linear::new(parts), Linear::pack(inputs, &[&weights]));
        let outputs = mixed.outputs();
        for rows in 1..=rows {
            let (mut found, mut expected) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
            mixed.apply(&x[..rows * inputs], &mut found, Output::Replace, &mut Vec::new(), &one);
            plain.apply(&x[..rows * inputs], &mut expected, Output::Replace, &mut Vec::new(), &one);
            assert!(expected.iter().all(|value| value.is_finite()) && expected.iter().any(|value| *value != 0.0));
            assert_eq!(bits(&found), bits(&expected));
        }
        let (mut found, mut expected) = (vec![0.0; inputs], vec![0.0; inputs]);
        for output in 0..outputs {
            mixed.row(output, &mut found);
            plain.row(output, &mut expected);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn an_output_is_the_chain_of_roundings_that_the_module_says() {
        let (inputs, outputs) = (700, 20);
        let (weights, x) = (noise(7, inputs * outputs), noise(8, inputs));
        let mut out = vec![0.0; outputs];
        let threads = Threads::new(1).unwrap();
        Linear::pack(inputs, &[&weights]).apply(&x, &mut out, Output::Replace, &mut Vec::new(), &threads);
        let plain: Vec<f32> = weights
            .chunks(inputs)
            .map(|row| {
                let parts = row.chunks(DEPTH).zip(x.chunks(DEPTH));
                let part = |(row, x): (&[f32], &[f32])| row.iter().zip(x).fold(0.0, |sum, (w, x)| sum + x * w);
                parts.map(part).fold(0.0, |sum, part| sum + part)
            })
            .collect();
        assert_eq!(bits(&out), bits(&plain));
    }

    #[test]
    fn products_agree_with_sums_in_double_precision() {
        let (inputs, outputs, rows) = (777, 50, 9);
        let (first, second) = (noise(3, inputs * 20), noise(4, inputs * 30));
        let linear = Linear::pack(inputs, &[&first, &second]);
        let weights = [first, second].concat();
        let x = noise(5, inputs * rows);
        let before = noise(6, outputs * rows);
        let mut out = before.clone();
        linear.apply(&x, &mut out, Output::Add, &mut Vec::new(), &Threads::new(1).unwrap());
        for row in 0..rows {
            for output in 0..outputs {
                let terms = (0..inputs)
                    .map(|k| f64::from(x[row * inputs + k]) * f64::from(weights[output * inputs + k]))
                    .sum::<f64>();
                let exact = f64::from(before[row * outputs + output]) + terms;
                assert!((f64::from(out[row * outputs + output]) - exact).abs() < 1e-4);
            }
        }
        let mut row = vec![0.0; inputs];
        linear.row(33, &mut row);
        assert_eq!(row, weights[33 * inputs..34 * inputs]);
    }
}
