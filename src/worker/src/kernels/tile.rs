//! Products of panels with tiles of rows, and the order of their additions.
//!
//! An output is the sum of partial sums over [`DEPTH`] inputs each, in ascending order; a partial sum adds one product after
//! another, from the first input upwards, see [`crate::kernels::kernel`]. Rows and panels computed side by side, and the inputs unpacked at a
//! time, do not show in a result.

use std::array::from_fn;

use crate::kernels::kernel::{LANES, ROWS, Sums};
use crate::kernels::matrix::{Matrix, UNPACK};
use crate::kernels::prefetch::Ahead;

/// Inputs of one partial sum. A panel's part of this depth is 16 KiB as F32 and stays in the first-level cache while all rows pass;
/// shorter partial sums are also more exact.
pub(crate) const DEPTH: usize = 256;

/// Panels computed side by side for a single row: eight vectors of eight lanes, for the machine adds several sums at a time, each
/// after a delay of several cycles.
pub(crate) const PANELS: usize = 4;

/// One panel of a matrix.
pub(crate) type Panel<'a> = (&'a Matrix, usize);

/// Lengths of the tiles of `rows` rows: [`ROWS`] at most, as equal as possible.
#[inline(always)]
fn tiles(rows: usize) -> impl Iterator<Item = usize> {
    let n = rows.div_ceil(ROWS);
    (0..n).map(move |tile| rows / n + usize::from(tile < rows % n))
}

/// Brings rows into the order of the tiles: `[part][tile][input][row]`, where a part is [`DEPTH`] inputs. `packed` is as long as `x`.
pub(crate) fn pack_rows(x: &[f32], inputs: usize, packed: &mut [f32]) {
    let rows = x.len() / inputs;
    let mut rest = packed;
    for from in (0..inputs).step_by(DEPTH) {
        let depth = DEPTH.min(inputs - from);
        let mut x = x;
        for len in tiles(rows) {
            let (tile, others) = rest.split_at_mut(len * depth);
            let (mine, below) = x.split_at(len * inputs);
            for (row, x) in mine.chunks_exact(inputs).enumerate() {
                for (packed, x) in tile.iter_mut().skip(row).step_by(len).zip(&x[from..from + depth]) {
                    *packed = *x;
                }
            }
            (rest, x) = (others, below);
        }
    }
}

/// Inputs between two requests for memory.
const STEP: usize = 8;

/// Computes the products of one panel with every row of `packed`, see [`pack_rows`], into `sums`.
#[inline(always)]
pub(crate) fn panel_times_rows((matrix, panel): Panel<'_>, packed: &[f32], sums: &mut [Sums]) {
    let (inputs, rows) = (matrix.inputs(), sums.len());
    let mut buffer = [0.0; DEPTH * LANES];
    sums.fill([0.0; LANES]);
    for from in (0..inputs).step_by(DEPTH) {
        let depth = DEPTH.min(inputs - from);
        let weights = matrix.panel_part(panel, from..from + depth, &mut buffer);
        let steps = rows.div_ceil(ROWS) * (depth / STEP);
        let mut ahead = [after((matrix, panel), from + depth, DEPTH, (matrix, panel + 1), steps)];
        let (mut x, mut sums) = (&packed[from * rows..(from + depth) * rows], &mut *sums);
        for len in tiles(rows) {
            let (tile_x, below) = x.split_at(len * depth);
            let (tile_sums, others) = sums.split_at_mut(len);
            match len {
                6 => add_tile::<6>(tile_x, weights, tile_sums, &mut ahead),
                5 => add_tile::<5>(tile_x, weights, tile_sums, &mut ahead),
                4 => add_tile::<4>(tile_x, weights, tile_sums, &mut ahead),
                3 => add_tile::<3>(tile_x, weights, tile_sums, &mut ahead),
                2 => add_tile::<2>(tile_x, weights, tile_sums, &mut ahead),
                _ => add_tile::<1>(tile_x, weights, tile_sums, &mut ahead),
            }
            (x, sums) = (below, others);
        }
    }
}

/// Begins to request `depth` inputs of a panel at most, from input `from`, or the first ones of panel `next`.
#[inline(always)]
fn after((matrix, panel): Panel<'_>, from: usize, depth: usize, next: Panel<'_>, steps: usize) -> Ahead {
    if from < matrix.inputs() {
        matrix.ahead(panel, from..matrix.inputs().min(from + depth), steps)
    } else if next.1 < next.0.n_panels() {
        next.0.ahead(next.1, 0..next.0.inputs().min(depth), steps)
    } else {
        Ahead::new::<f32>(&[], steps)
    }
}

/// Adds a partial sum of `R` rows.
#[inline(always)]
fn add_tile<const R: usize>(x: &[f32], weights: &[f32], sums: &mut [Sums], ahead: &mut [Ahead; 1]) {
    let acc = multiply::<R, 1>(x, [weights], [[[0.0; LANES]; R]], ahead);
    add(sums, &acc[0]);
}

/// Computes the products of [`PANELS`] panels with one row `x` into `sums`; `next` are the panels to be computed next.
#[inline(always)]
pub(crate) fn panels_times_row(panels: &[Panel<'_>; PANELS], next: &[Panel<'_>; PANELS], x: &[f32], sums: &mut [Sums]) {
    // As many inputs at a time as fit into the first-level cache as F32.
    const PART: usize = DEPTH / PANELS;
    const { assert!(PART.is_multiple_of(UNPACK)) };
    let mut buffers = [[0.0; PART * LANES]; PANELS];
    sums.fill([0.0; LANES]);
    for (part, x) in x.chunks(DEPTH).enumerate() {
        let mut acc = [[[0.0; LANES]; 1]; PANELS];
        for (i, x) in x.chunks(PART).enumerate() {
            let from = part * DEPTH + i * PART;
            let mut weights: [&[f32]; PANELS] = [&[]; PANELS];
            for ((weights, (matrix, panel)), buffer) in weights.iter_mut().zip(panels).zip(&mut buffers) {
                *weights = matrix.panel_part(*panel, from..from + x.len(), buffer);
            }
            let mut ahead = from_fn(|p| after(panels[p], from + x.len(), PART, next[p], x.len() / STEP));
            acc = multiply::<1, PANELS>(x, weights, acc, &mut ahead);
        }
        add(sums, acc.as_flattened());
    }
}

/// Returns `acc` and the products `x[k][r] * weights[p][k][l]`, added in ascending `k`, one fused addition after another.
#[inline(always)]
fn multiply<const R: usize, const P: usize>(
    x: &[f32],
    weights: [&[f32]; P],
    acc: [[Sums; R]; P],
    ahead: &mut [Ahead; P],
) -> [[Sums; R]; P] {
    let mut sums = acc;
    let (x, _) = x.as_chunks::<R>();
    let weights: [&[Sums]; P] = from_fn(|p| &weights[p].as_chunks::<LANES>().0[..x.len()]);
    for (step, x) in x.chunks(STEP).enumerate() {
        for ahead in ahead.iter_mut() {
            ahead.step();
        }
        for (k, x) in x.iter().enumerate() {
            for p in 0..P {
                let weights = weights[p][step * STEP + k];
                for r in 0..R {
                    let mut row = sums[p][r];
                    for lane in 0..LANES {
                        row[lane] = x[r].mul_add(weights[lane], row[lane]);
                    }
                    sums[p][r] = row;
                }
            }
        }
    }
    sums
}

#[inline(always)]
fn add(sums: &mut [Sums], acc: &[Sums]) {
    for (sums, acc) in sums.iter_mut().zip(acc) {
        for (sum, acc) in sums.iter_mut().zip(acc) {
            *sum += acc;
        }
    }
}
