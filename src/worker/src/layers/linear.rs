//! A linear layer: `y = x W^T`.
//!
//! Work is shared out in one of two ways. With many rows, each task computes all outputs of a block of rows: a panel of weights is
//! unpacked once for the block and the rows stay in the second-level cache. With few rows, each task computes all rows of some
//! panels, and every weight is read once. [`crate::kernels::tile`], [`Matrix::times_rounded`] for quantised weights, or
//! [`crate::kernels::amx`] for BF16 fixes the order of the additions, equal in both.

use std::iter::repeat_with;
use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::kernels::amx::{self, Amx, Kernel, Lines, Tiles};
use crate::kernels::kernel::{LANES, Sums};
use crate::kernels::matrix::Matrix;
use crate::kernels::rounded::{Rounded, RoundedRows};
use crate::kernels::tile::{PANELS, Panel, pack_rows, panel_times_rows, panels_times_row};
use crate::layers::threads::Threads;

/// Tasks for each thread: a thread finishing early finds more work.
const TASKS_PER_THREAD: usize = 4;

/// Rows in a block: fewer than this make unpacking weights show, more leave the second-level cache.
const BLOCK: usize = 96;

/// Rows in a block if all weights are multiplied by the tiles of AMX, which take less time for a weight than memory takes to bring it: as many as leave half of
/// the second-level cache, 2 MiB on all machines with AMX, to the weights, but 64 at least.
fn block_of_tiles(inputs: usize) -> usize {
    const BYTES: usize = 1 << 20;
    (BYTES / (2 * inputs)).clamp(2 * amx::ROWS, 8 * amx::ROWS) / amx::ROWS * amx::ROWS
}

/// Treatment of the outputs' old values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The products replace the old values.
    Replace,
    /// The product is added to the outputs: a residual connection.
    Add,
}

/// Memory of one layer after the other, whose contents do not matter, and the kernel of its products; portable by default.
#[derive(Default)]
pub(crate) struct LinearScratch {
    /// Rows as tiles, for weights that are floats, and sums.
    floats: Vec<f32>,
    /// Rows for quantised weights.
    rounded: Rounded,
    /// Rows for tiles of AMX.
    lines: Lines,
    /// Arithmetic of products with BF16 weights.
    kernel: Kernel,
}

impl LinearScratch {
    /// Returns memory for products by `kernel`.
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self { kernel, ..Self::default() }
    }
}

/// Rows of inputs in the forms that the matrices of a layer take.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    /// Tiles, see [`pack_rows`]; empty if no matrix takes them.
    tiles: &'a [f32],
    rounded: RoundedRows<'a>,
    /// Rows for BF16 weights, if the kernel is AMX.
    amx: Option<(Amx, Tiles<'a>)>,
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

    /// Returns the elements of `x` that are needed as tiles of F32: all, or none if every matrix takes another form.
    fn tiled<'a>(&self, x: &'a [f32], kernel: Kernel) -> &'a [f32] {
        let takes_other = |part: &Matrix| part.takes_rounded() || (kernel.amx().is_some() && part.is_bf16());
        if self.parts.iter().all(takes_other) { &[] } else { x }
    }

    /// Returns the instructions for BF16 weights, if there are any and the kernel is AMX.
    fn amx(&self, kernel: Kernel) -> Option<Amx> {
        kernel.amx().filter(|_| self.parts.iter().any(Matrix::is_bf16))
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
        let LinearScratch { floats, rounded, lines, kernel } = scratch;
        let (tiled, amx) = (self.tiled(x, *kernel), self.amx(*kernel));
        let all_tiles = amx.is_some() && self.parts.iter().all(Matrix::is_bf16);
        let most = if all_tiles { block_of_tiles(self.inputs) } else { BLOCK };
        let n_blocks = rows.div_ceil(most).next_multiple_of(threads.count());
        let block = rows.div_ceil(n_blocks);
        floats.resize(tiled.len(), 0.0);
        let lines = lines.room(amx.map_or(0, |_| rows), self.inputs);
        // A block without rows of a form is as good as any.
        let tiles = floats.chunks_mut(block * self.inputs).chain(repeat_with(Default::default));
        let lines = lines.chunks_mut(block * amx::steps(self.inputs)).chain(repeat_with(Default::default));
        let mut tasks: Vec<_> = out.chunks_mut(block * self.outputs).zip(tiles.zip(lines)).collect();
        threads.chunks(&mut tasks, 1, cost, |task, tasks| {
            for (out, (tiles, lines)) in tasks {
                let (from, len) = (task * block, out.len() / self.outputs);
                let rows = from * self.inputs..(from + len) * self.inputs;
                if !tiled.is_empty() {
                    pack_rows(&tiled[rows.clone()], self.inputs, tiles);
                }
                let amx = amx.map(|amx| (amx, Tiles::round(&x[rows], self.inputs, lines)));
                let inputs = Inputs { tiles, rounded: self.rounded(rounded, from..from + len), amx };
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
        let LinearScratch { floats, rounded, lines, kernel } = scratch;
        let (tiled, amx) = (self.tiled(x, *kernel), self.amx(*kernel));
        floats.resize(tiled.len() + panels.len() * rows * LANES, 0.0);
        let (tiles, sums) = floats.split_at_mut(tiled.len());
        pack_rows(tiled, self.inputs, tiles);
        let (sums, _) = sums.as_chunks_mut::<LANES>();
        let amx = amx.map(|amx| (amx, Tiles::round(x, self.inputs, lines.room(rows, self.inputs))));
        let inputs = Inputs { tiles, rounded: self.rounded(rounded, 0..rows), amx };
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
    fn with_simd<S: Simd>(mut self, _: S) {
        let mut at = 0;
        for part in &self.layer.parts {
            match self.inputs.amx_for(part) {
                Some((amx, tiles)) => self.put_tiles(part, at, amx, tiles),
                None => self.put_panels(part, at),
            }
            at += part.outputs();
        }
    }
}

impl RowBlock<'_> {
    /// Computes the outputs of one matrix, the first of which is output `at`.
    #[inline(always)]
    fn put_panels(&mut self, part: &Matrix, at: usize) {
        let width = self.layer.outputs;
        let mut sums = [[0.0; LANES]; BLOCK];
        let sums = &mut sums[..self.out.len() / width];
        for panel in 0..part.n_panels() {
            self.inputs.multiply((part, panel), sums);
            let from = panel * LANES;
            let to = part.outputs().min(from + LANES);
            for (out, sums) in self.out.chunks_exact_mut(width).zip(&*sums) {
                self.output.put(&mut out[at + from..at + to], sums);
            }
        }
    }

    /// Does the same by tiles, two panels at a time.
    #[inline(always)]
    fn put_tiles(&mut self, part: &Matrix, at: usize, amx: Amx, tiles: Tiles<'_>) {
        let width = self.layer.outputs;
        let mut sums = [[0.0; LANES]; 2 * amx::ROWS];
        for panel in (0..part.n_panels()).step_by(2) {
            let next = part.n_panels().min(panel + 2) - 1;
            let weights = [panel, next].map(|panel| part.pairs(panel).unwrap_or_default());
            let from = panel * LANES;
            let to = part.outputs().min(from + 2 * LANES);
            for (tiles, out) in tiles.parts().zip(self.out.chunks_mut(amx::ROWS * width)) {
                amx.multiply(tiles, weights, &mut sums, amx::ROWS);
                let (first, second) = sums.split_at(amx::ROWS);
                for ((out, first), second) in out.chunks_exact_mut(width).zip(first).zip(second) {
                    let (out, behind) = out[at + from..at + to].split_at_mut(LANES.min(to - from));
                    self.output.put(out, first);
                    self.output.put(behind, second);
                }
            }
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
        let mut sums = self.sums;
        let is_tiled = |panel: &Panel<'_>| self.inputs.amx_for(panel.0).is_some();
        for panels in self.panels.chunk_by(|a, b| is_tiled(a) == is_tiled(b)) {
            let (mine, others) = sums.split_at_mut(panels.len() * rows);
            match self.inputs.amx_for(panels[0].0) {
                Some((amx, tiles)) => multiply_tiles(panels, amx, tiles, mine),
                None => self.inputs.multiply_all(panels, mine),
            }
            sums = others;
        }
    }
}

/// Computes the products of panels of BF16 weights with every row, two panels at a time.
fn multiply_tiles(panels: &[Panel<'_>], amx: Amx, tiles: Tiles<'_>, sums: &mut [Sums]) {
    let rows = tiles.rows();
    for (panels, sums) in panels.chunks(2).zip(sums.chunks_mut(2 * rows)) {
        let weights = [panels[0], panels[panels.len() - 1]];
        let weights = weights.map(|(matrix, panel)| matrix.pairs(panel).unwrap_or_default());
        for (i, tiles) in tiles.parts().enumerate() {
            amx.multiply(tiles, weights, &mut sums[i * amx::ROWS..], (panels.len() - 1) * rows);
        }
    }
}

impl<'a> Inputs<'a> {
    /// Returns the instructions and the rows for a matrix that is multiplied by tiles.
    #[inline(always)]
    fn amx_for(&self, matrix: &Matrix) -> Option<(Amx, Tiles<'a>)> {
        self.amx.filter(|_| matrix.is_bf16())
    }

    /// Computes the products of panels with every row into `sums`.
    #[inline(always)]
    fn multiply_all(&self, panels: &[Panel<'_>], sums: &mut [Sums]) {
        let rows = sums.len() / panels.len();
        if rows > 1 {
            for (panel, sums) in panels.iter().zip(sums.chunks_exact_mut(rows)) {
                self.multiply(*panel, sums);
            }
            return;
        }
        let (fours, rest) = panels.as_chunks::<PANELS>();
        let (sums, rest_sums) = sums.split_at_mut(fours.len() * PANELS);
        for (i, (panels, sums)) in fours.iter().zip(sums.chunks_exact_mut(PANELS)).enumerate() {
            if panels.iter().any(|(matrix, _)| matrix.takes_rounded()) {
                for (panel, sums) in panels.iter().zip(sums.chunks_exact_mut(1)) {
                    self.multiply(*panel, sums);
                }
            } else {
                panels_times_row(panels, fours.get(i + 1).unwrap_or(panels), self.tiles, sums);
            }
        }
        for (panel, sums) in rest.iter().zip(rest_sums.chunks_exact_mut(1)) {
            self.multiply(*panel, sums);
        }
    }

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
    fn check_that_rows_are_alone(linear: &Linear, kernel: Kernel) {
        let (inputs, outputs) = (linear.inputs, linear.outputs);
        let x = noise(2, 70 * inputs);
        let mut scratch = LinearScratch::new(kernel);
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
            check_that_rows_are_alone(&Linear::pack(inputs, &[&noise(1, inputs * outputs)]), Kernel::Portable);
        }
        for kernel in [Kernel::Portable, Kernel::of_machine()] {
            check_that_rows_are_alone(&mixed(768, &WeightKind::ALL).0, kernel);
        }
        check_that_rows_are_alone(&mixed(96, &[WeightKind::Q4_1, WeightKind::Q8_0]).0, Kernel::Portable);
        for inputs in [1, 45, 288] {
            check_that_rows_are_alone(&mixed(inputs, &[WeightKind::Bf16; 3]).0, Kernel::of_machine());
        }
    }

    #[test]
    fn tiles_are_off_by_the_rounding_of_the_row_alone_and_only_for_bf16() {
        let (inputs, rows) = (768, 150);
        let x = noise(12, rows * inputs);
        let one = Threads::new(1).unwrap();
        for kinds in [&[WeightKind::Bf16; 2][..], &[WeightKind::F32, WeightKind::Bf16, WeightKind::Q8_0]] {
            let (mixed, weights) = mixed(inputs, kinds);
            let products = |kernel| {
                let mut out = vec![f32::NAN; rows * mixed.outputs()];
                mixed.apply(&x, &mut out, Output::Replace, &mut LinearScratch::new(kernel), &one);
                out
            };
            let (found, portable) = (products(Kernel::of_machine()), products(Kernel::Portable));
            let rows = x.chunks(inputs).zip(found.chunks(mixed.outputs()).zip(portable.chunks(mixed.outputs())));
            for (x, (found, portable)) in rows {
                let mut at = 0;
                for part in &mixed.parts {
                    for output in at..at + part.outputs() {
                        let (found, portable) = (found[output], portable[output]);
                        if part.is_bf16() {
                            let terms = x.iter().zip(&weights[output * inputs..]).map(|(x, w)| (x * w).abs());
                            let size = terms.sum::<f32>();
                            // Half a unit in the last of eight bits.
                            assert!((found - portable).abs() <= size / 256.0, "{found} is not {portable}");
                        } else {
                            assert_eq!(found.to_bits(), portable.to_bits());
                        }
                    }
                    at += part.outputs();
                }
            }
            assert_eq!(found != portable, Kernel::of_machine() != Kernel::Portable, "it is another kernel");
        }
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
