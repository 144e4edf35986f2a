//! A linear layer: `y = x W^T`.
//!
//! Work is shared out in one of two ways. With many rows, each task computes all outputs of a block of rows: a panel of weights is
//! unpacked once for the block and the rows stay in the second-level cache. With few rows, each task computes all rows of some
//! panels, and every weight is read once. [`crate::kernels::tile`], or [`Matrix::times_rounded`] for quantised weights, fixes the order of
//! the additions, equal in both.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::kernels::kernel::{LANES, Sums};
use crate::kernels::matrix::Matrix;
use crate::kernels::rounded::{Rounded, RoundedRows};
use crate::kernels::tile::{PANELS, Panel, pack_rows, panel_times_rows, panels_times_row};
use crate::layers::threads::Threads;

/// Tasks for each thread: a thread finishing early finds more work.
const TASKS_PER_THREAD: usize = 4;

/// Rows in a block: fewer than this make unpacking weights show, more leave the second-level cache.
const BLOCK: usize = 96;

/// Treatment of the outputs' old values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The products replace the old values.
    Replace,
    /// The product is added to the outputs: a residual connection.
    Add,
}

/// Memory of one layer after the other; the contents do not matter.
#[derive(Default)]
pub(crate) struct LinearScratch {
    /// Rows as tiles, for weights that are floats, and sums.
    floats: Vec<f32>,
    /// Rows for quantised weights.
    rounded: Rounded,
}

/// Rows of inputs in the forms that the matrices of a layer take.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    /// Tiles, see [`pack_rows`]; empty if all matrices are quantised.
    tiles: &'a [f32],
    rounded: RoundedRows<'a>,
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

    /// Returns the matrices, one below the other.
    pub(crate) fn parts(&self) -> &[Matrix] {
        &self.parts
    }

    /// Returns the matrices, to bring weights into memory or out of memory.
    pub(crate) fn parts_mut(&mut self) -> &mut [Matrix] {
        &mut self.parts
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

    /// `out = x W^T` or `out += x W^T` for rows `x` of `inputs` and rows `out` of `outputs` elements.
    pub(crate) fn apply(
        &self,
        x: &[f32],
        out: &mut [f32],
        output: Output,
        scratch: &mut LinearScratch,
        threads: &Threads,
    ) {
        let rows = x.len() / self.inputs;
        debug_assert_eq!(x.len(), rows * self.inputs);
        debug_assert_eq!(out.len(), rows * self.outputs);
        if rows == 0 || self.outputs == 0 {
            return;
        }
        if self.parts.iter().any(Matrix::takes_rounded) {
            let mut parts = scratch.rounded.parts(x, self.inputs, rows.div_ceil(TASKS_PER_THREAD * threads.count()));
            threads.chunks(&mut parts, 1, 4 * x.len(), |_, parts| parts.iter_mut().for_each(|part| part.run()));
        }
        let cost = rows * self.inputs * self.outputs;
        if rows < BLOCK / 2 * threads.count() {
            self.apply_by_panels(x, out, output, scratch, cost, threads);
        } else {
            self.apply_by_rows(x, out, output, scratch, cost, threads);
        }
    }

    /// Returns the elements of `x` that are needed as tiles: all, or none if every matrix is quantised.
    fn tiled<'a>(&self, x: &'a [f32]) -> &'a [f32] {
        if self.parts.iter().all(Matrix::takes_rounded) { &[] } else { x }
    }

    /// Returns some rows as rounded, or none if no matrix is quantised.
    fn rounded<'a>(&self, rounded: &'a Rounded, rows: Range<usize>) -> RoundedRows<'a> {
        if self.parts.iter().any(Matrix::takes_rounded) {
            rounded.rows(self.inputs, rows)
        } else {
            RoundedRows::default()
        }
    }

    /// Every task computes some rows.
    fn apply_by_rows(
        &self,
        x: &[f32],
        out: &mut [f32],
        output: Output,
        scratch: &mut LinearScratch,
        cost: usize,
        threads: &Threads,
    ) {
        let rows = x.len() / self.inputs;
        let n_blocks = rows.div_ceil(BLOCK).next_multiple_of(threads.count());
        let block = rows.div_ceil(n_blocks);
        let LinearScratch { floats, rounded } = scratch;
        let x = self.tiled(x);
        floats.resize(x.len(), 0.0);
        // A block without tiles is as good as any.
        let tiles = floats.chunks_mut(block * self.inputs).map(Some).chain(std::iter::repeat_with(|| None));
        let mut tasks: Vec<_> = out.chunks_mut(block * self.outputs).zip(tiles).collect();
        threads.chunks(&mut tasks, 1, cost, |task, tasks| {
            for (out, tiles) in tasks {
                let (from, len) = (task * block, out.len() / self.outputs);
                let tiles: &[f32] = match tiles {
                    Some(tiles) => {
                        pack_rows(&x[from * self.inputs..][..len * self.inputs], self.inputs, tiles);
                        tiles
                    }
                    None => &[],
                };
                let inputs = Inputs { tiles, rounded: self.rounded(rounded, from..from + len) };
                Arch::new().dispatch(RowBlock { layer: self, inputs, out, output });
            }
        });
    }

    /// Every task computes some panels.
    fn apply_by_panels(
        &self,
        x: &[f32],
        out: &mut [f32],
        output: Output,
        scratch: &mut LinearScratch,
        cost: usize,
        threads: &Threads,
    ) {
        let rows = x.len() / self.inputs;
        let panels: Vec<Panel<'_>> = self.panels().collect();
        // First the rows as tiles, then the sums as [panel][row][lane], so that each task owns a contiguous range.
        let LinearScratch { floats, rounded } = scratch;
        let x = self.tiled(x);
        floats.resize(x.len() + panels.len() * rows * LANES, 0.0);
        let (tiles, sums) = floats.split_at_mut(x.len());
        pack_rows(x, self.inputs, tiles);
        let (sums, _) = sums.as_chunks_mut::<LANES>();
        let inputs = Inputs { tiles, rounded: self.rounded(rounded, 0..rows) };
        let per_task = panels.len().div_ceil(TASKS_PER_THREAD * threads.count()).next_multiple_of(PANELS);
        threads.chunks(sums, per_task * rows, cost, |task, sums| {
            let panels = &panels[task * per_task..][..sums.len() / rows];
            Arch::new().dispatch(PanelRange { panels, inputs, sums });
        });
        let sums: &[Sums] = sums;
        threads.chunks(out, self.outputs, rows * self.outputs, |row, mut out| {
            let mut sums = sums[row..].iter().step_by(rows);
            for part in &self.parts {
                let (mine, others) = out.split_at_mut(part.outputs());
                for (out, sums) in mine.chunks_mut(LANES).zip(&mut sums) {
                    output.put(out, sums);
                }
                out = others;
            }
        });
    }

    /// Returns the panels of all parts.
    fn panels(&self) -> impl Iterator<Item = Panel<'_>> {
        self.parts.iter().flat_map(|part| (0..part.n_panels()).map(move |panel| (part, panel)))
    }
}

impl Output {
    /// Brings sums to their outputs.
    #[inline(always)]
    fn put(self, out: &mut [f32], sums: &Sums) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if self == Self::Add { *out + sum } else { *sum };
        }
    }
}

/// All outputs of a block of rows.
struct RowBlock<'a> {
    layer: &'a Linear,
    inputs: Inputs<'a>,
    out: &'a mut [f32],
    output: Output,
}

impl WithSimd for RowBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let mut sums = [[0.0; LANES]; BLOCK];
        let width = self.layer.outputs;
        let sums = &mut sums[..self.out.len() / width];
        let mut at = 0;
        for (matrix, panel) in self.layer.panels() {
            self.inputs.multiply((matrix, panel), sums);
            let len = LANES.min(matrix.outputs() - panel * LANES);
            for (out, sums) in self.out.chunks_exact_mut(width).zip(&*sums) {
                self.output.put(&mut out[at..at + len], sums);
            }
            at += len;
        }
    }
}

/// All rows of some panels.
struct PanelRange<'a> {
    panels: &'a [Panel<'a>],
    inputs: Inputs<'a>,
    sums: &'a mut [Sums],
}

impl WithSimd for PanelRange<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.sums.len() / self.panels.len();
        if rows > 1 {
            for (panel, sums) in self.panels.iter().zip(self.sums.chunks_exact_mut(rows)) {
                self.inputs.multiply(*panel, sums);
            }
            return;
        }
        let (fours, rest) = self.panels.as_chunks::<PANELS>();
        let (sums, rest_sums) = self.sums.split_at_mut(fours.len() * PANELS);
        for (i, (panels, sums)) in fours.iter().zip(sums.chunks_exact_mut(PANELS)).enumerate() {
            if panels.iter().any(|(matrix, _)| matrix.takes_rounded()) {
                for (panel, sums) in panels.iter().zip(sums.chunks_exact_mut(1)) {
                    self.inputs.multiply(*panel, sums);
                }
            } else {
                panels_times_row(panels, fours.get(i + 1).unwrap_or(panels), self.inputs.tiles, sums);
            }
        }
        for (panel, sums) in rest.iter().zip(rest_sums.chunks_exact_mut(1)) {
            self.inputs.multiply(*panel, sums);
        }
    }
}

impl Inputs<'_> {
    /// Computes the products of a panel with every row into `sums`.
    #[inline(always)]
    fn multiply(&self, (matrix, panel): Panel<'_>, sums: &mut [Sums]) {
        if !matrix.times_rounded(panel, self.rounded, sums) {
            panel_times_rows((matrix, panel), self.tiles, sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::matrix::WeightKind;
    use crate::kernels::noise::Noise;
    use crate::kernels::tile::DEPTH;

    fn noise(seed: u64, n: usize) -> Vec<f32> {
        let mut noise = Noise::new(seed);
        (0..n).map(|_| noise.uniform(1.0)).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// A layer with rows of random weights of the kinds, 13 rows and more of each, and the same weights as F32.
    fn mixed(inputs: usize, kinds: &[WeightKind]) -> (Linear, Vec<f32>) {
        let (mut parts, mut weights) = (Vec::new(), Vec::new());
        for (i, kind) in kinds.iter().enumerate() {
            // Part-filled panels between the parts.
            let outputs = 13 + 5 * i;
            // Bytes below 64 are small numbers in every format.
            let bytes: Vec<u8> = noise(i as u64, kind.bytes(outputs, inputs).unwrap())
                .into_iter()
                .map(|value| ((value + 1.0) * 31.9) as u8)
                .collect();
            let part = Matrix::from_bytes(*kind, outputs, inputs, &bytes).unwrap();
            let mut row = vec![0.0; inputs];
            for output in 0..outputs {
                part.row(output, &mut row);
                weights.extend_from_slice(&row);
            }
            parts.push(part);
        }
        (Linear::new(parts), weights)
    }

    /// Checks that each of 70 rows has the same bits in every batch, at every place and with any number of threads.
    fn check_that_rows_are_alone(linear: &Linear) {
        let (inputs, outputs) = (linear.inputs, linear.outputs);
        let x = noise(2, 70 * inputs);
        let mut scratch = LinearScratch::default();
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

    #[test]
    fn a_row_has_the_same_bits_in_every_batch_at_every_place_and_with_any_number_of_threads() {
        // Above and below one partial sum, with and without a part-filled panel.
        for (inputs, outputs) in [(1, 1), (17, 33), (256, 16), (300, 260), (1025, 47)] {
            check_that_rows_are_alone(&Linear::pack(inputs, &[&noise(1, inputs * outputs)]));
        }
        check_that_rows_are_alone(&mixed(768, &WeightKind::ALL).0);
        check_that_rows_are_alone(&mixed(96, &[WeightKind::Q4_1, WeightKind::Q8_0]).0);
    }

    #[test]
    fn a_product_with_floats_of_any_kind_has_the_bits_of_the_product_with_the_same_weights_in_f32() {
        let (inputs, rows) = (512, 9);
        let x = noise(11, rows * inputs);
        let one = Threads::new(1).unwrap();
        let (mixed, weights) = mixed(inputs, &[WeightKind::F32, WeightKind::Bf16, WeightKind::F16]);
        let plain = Linear::pack(inputs, &[&weights]);
        let outputs = mixed.outputs();
        for rows in 1..=rows {
            let (mut found, mut expected) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
            mixed.apply(&x[..rows * inputs], &mut found, Output::Replace, &mut LinearScratch::default(), &one);
            plain.apply(&x[..rows * inputs], &mut expected, Output::Replace, &mut LinearScratch::default(), &one);
            assert!(expected.iter().all(|value| value.is_finite()) && expected.iter().any(|value| *value != 0.0));
            assert_eq!(bits(&found), bits(&expected), "{rows} rows");
        }
        check_rows(&mixed, &plain);
    }

    #[test]
    fn a_product_with_quantised_weights_is_off_by_the_rounding_of_the_row_alone() {
        let (inputs, rows) = (768, 7);
        let x = noise(12, rows * inputs);
        let kinds: Vec<WeightKind> = WeightKind::ALL.into_iter().filter(|kind| kind.block_len() > 1).collect();
        let (mixed, weights) = mixed(inputs, &kinds);
        let mut found = vec![0.0; rows * mixed.outputs()];
        mixed.apply(&x, &mut found, Output::Replace, &mut LinearScratch::default(), &Threads::new(1).unwrap());
        for (x, found) in x.chunks(inputs).zip(found.chunks(mixed.outputs())) {
            for (weights, found) in weights.chunks(inputs).zip(found) {
                let terms = || x.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let (exact, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                assert!((f64::from(*found) - exact).abs() <= 2e-5 * size, "{found} is not {exact}, of terms of {size}");
            }
        }
        check_rows(&mixed, &Linear::pack(inputs, &[&weights]));
    }

    /// Checks that single rows of weights are equal.
    fn check_rows(mixed: &Linear, plain: &Linear) {
        let (mut found, mut expected) = (vec![0.0; mixed.inputs], vec![0.0; mixed.inputs]);
        for output in 0..mixed.outputs() {
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
        Linear::pack(inputs, &[&weights]).apply(&x, &mut out, Output::Replace, &mut LinearScratch::default(), &threads);
        let plain: Vec<f32> = weights
            .chunks(inputs)
            .map(|row| {
                let parts = row.chunks(DEPTH).zip(x.chunks(DEPTH));
                let part = |(row, x): (&[f32], &[f32])| row.iter().zip(x).fold(0.0, |sum, (w, x)| x.mul_add(*w, sum));
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
        linear.apply(&x, &mut out, Output::Add, &mut LinearScratch::default(), &Threads::new(1).unwrap());
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
