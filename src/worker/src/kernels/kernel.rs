//! The innermost loops, and the reason for equal bits in every run.
//!
//! A token MUST NOT depend on the other sequences of a batch or on the chunks of the prompt. A floating-point sum depends on the
//! order of the terms, so every sum in this crate has an order given by the operands' indices alone:
//!
//! - [`accumulate`] vectorises over *outputs*, never over the summed index. Each output is one chain of
//!   `sum = sum + x * w` from index 0 upwards. Tiling over rows, the width of the machine's vectors and the number of
//!   threads decide the chains to run at the same time, not the result of a chain.
//! - Linear layers ([`crate::kernels::tile`]) fuse each product with its addition, one rounding; other sums round products first. A machine
//!   without fused multiply-add gets the same bits from a slow library function. With quantised weights the products of each 16 or 32
//!   inputs are summed as integers, exactly, and the scaled sums are added in ascending order.
//! - BF16 weights may have a kernel of their own, the tiles of AMX ([`crate::kernels::amx`]): other bits, but one order for every number of rows.
//! - [`sum_lanes`] sums with a fixed number of lanes and a fixed tree.
//!
//! But for VNNI and AMX, the code is plain Rust, vectorised by the compiler; [`vectorised`] allows the widest vectors of the machine.

use std::array::from_fn;

/// Outputs computed side by side. A multiple of the vector width of every machine; a power of two.
pub(crate) const LANES: usize = 16;

/// Sums of one row in the lanes of a panel.
pub(crate) type Sums = [f32; LANES];

/// Rows computed side by side: with two vectors of eight lanes each, six rows fill the sixteen registers of AVX2.
pub(crate) const ROWS: usize = 6;

/// Summands between two checks of bounds.
const STEP: usize = 8;

/// Runs `work` compiled for the widest vectors of this machine.
#[inline]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// `acc[r][l] += sum over k of x[r][k] * w[k * stride + l]`, in ascending `k`, one addition after another.
/// All of `x` have the same length.
#[inline(always)]
pub(crate) fn accumulate<const R: usize>(x: [&[f32]; R], w: &[f32], stride: usize, acc: &mut [[f32; LANES]; R]) {
    // Steps of a constant length are checked once each, not at every element.
    let steps = x[0].len() / STEP;
    let mut sums = *acc;
    for step in 0..steps {
        let x: [&[f32; STEP]; R] = from_fn(|r| x[r][step * STEP..].first_chunk().expect("whole steps"));
        let w = &w[step * STEP * stride..];
        for k in 0..STEP {
            add_products(from_fn(|r| x[r][k]), &w[k * stride..], &mut sums);
        }
    }
    for k in steps * STEP..x[0].len() {
        add_products(from_fn(|r| x[r][k]), &w[k * stride..], &mut sums);
    }
    *acc = sums;
}

/// `sums[r][l] += x[r] * w[l]`.
#[inline(always)]
fn add_products<const R: usize>(x: [f32; R], w: &[f32], sums: &mut [[f32; LANES]; R]) {
    let w: &[f32; LANES] = w.first_chunk().expect("sixteen lanes");
    for (sums, x) in sums.iter_mut().zip(x) {
        for (sum, w) in sums.iter_mut().zip(w) {
            *sum += x * w;
        }
    }
}

/// The sum of `term` of each value: lane `l` adds the elements with index `l` modulo [`LANES`] in ascending order, then
/// the lanes are added pairwise.
#[inline(always)]
pub(crate) fn sum_lanes(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for values in values.chunks(LANES) {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane += term(*value);
        }
    }
    fold_lanes(lanes, |a, b| a + b)
}

/// The largest of `values`. NaN MUST NOT be among `values`.
#[inline(always)]
pub(crate) fn max_lanes(values: &[f32]) -> f32 {
    // Not `f32::max`, whose care for NaN keeps it out of vectors.
    let larger = |a, b| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for values in values.chunks(LANES) {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = larger(*lane, *value);
        }
    }
    fold_lanes(lanes, larger)
}

/// Joins lanes pairwise: 0 and 8, 1 and 9, ...; then 0 and 4, ...
#[inline(always)]
fn fold_lanes(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = join(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// `e` to the power of `x`, to about one unit in the last place, in operations with equal rounding on every machine. Arguments are
/// clamped to the range of normal results; NaN stays NaN.
///
/// `x = n ln 2 + r` with integer `n`, so the result is 2^n times the Taylor polynomial of degree 7 at `r`, with an error below `r^8
/// / 8!` = 5e-9 for `|r| <= ln 2 / 2`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Added and taken away, it leaves the nearest integer: 1.5 * 2^23.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 as the sum of a part with few bits, whose product with n is exact, and the rest.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    // The low bits of `shifted` are n; shifted into the exponent's place they multiply by 2^n.
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// Root-mean-square norm of each row: `out = x / sqrt(mean(x^2) + eps) * weight`. `x` and `out` are rows of
/// `weight.len()` elements.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
                let mean = sum_lanes(x, |x| x * x) / weight.len() as f32;
                let scale = 1.0 / (mean + eps).sqrt();
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = x * scale * weight;
                }
            }
        },
    );
}

/// Root-mean-square norm of each row of `weight.len()` elements, like [`rms_norm`] with the same memory for `x` and `out`.
pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    vectorised(
        #[inline(always)]
        || {
            for x in x.chunks_exact_mut(weight.len()) {
                let mean = sum_lanes(x, |x| x * x) / weight.len() as f32;
                let scale = 1.0 / (mean + eps).sqrt();
                for (x, weight) in x.iter_mut().zip(weight) {
                    *x = *x * scale * weight;
                }
            }
        },
    );
}

/// The gated activation of one row: `out = gate * sigmoid(gate) * up`, where `gate_up` is `gate` followed by `up`.
pub(crate) fn swiglu(gate_up: &[f32], out: &mut [f32]) {
    let (gate, up) = gate_up.split_at(out.len());
    vectorised(
        #[inline(always)]
        || {
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate)) * up;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_exact_at_zero_and_never_leaves_the_normal_numbers() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.5e-7, "exp({x}) = {}, not {exact}", exp(x));
        }
        for x in [f32::NEG_INFINITY, -1e30, -100.0, 100.0, f32::INFINITY] {
            assert!(exp(x).is_normal(), "exp({x}) = {}", exp(x));
        }
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn rms_norm_by_hand() {
        // Mean of squares (9 + 16) / 2 = 12.5; with eps 3.5 the scale is 1 / sqrt(16).
        let mut out = [0.0; 4];
        rms_norm(&[3.0, 4.0, -3.0, 4.0], &[1.0, 2.0], 3.5, &mut out);
        assert_eq!(out, [0.75, 2.0, -0.75, 2.0]);
        let mut x = [3.0, 4.0, -3.0, 4.0];
        rms_norm_in_place(&mut x, &[1.0, 2.0], 3.5);
        assert_eq!(x, out);
        rms_norm(&[0.0, 0.0], &[1.0, 1.0], 1e-6, &mut out[..2]);
        assert_eq!(out[..2], [0.0, 0.0]);
    }

    #[test]
    fn swiglu_by_hand() {
        let mut out = [0.0; 3];
        swiglu(&[0.0, 1.0, -20.0, 5.0, 2.0, 3.0], &mut out);
        assert_eq!(out[0], 0.0);
        assert!((out[1] - 2.0 / (1.0 + (-1f32).exp())).abs() < 1e-6);
        assert!((out[2] + 60.0 * (-20f32).exp()).abs() < 1e-12);
    }

    #[test]
    fn rows_of_a_tile_do_not_touch_one_another() {
        let x: Vec<f32> = (0..6 * 37).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect();
        let w: Vec<f32> = (0..37 * 20).map(|i| ((i * 104_729) % 997) as f32 / 997.0 - 0.5).collect();
        let mut six = [[0.25; LANES]; 6];
        let rows: Vec<&[f32]> = x.chunks(37).collect();
        accumulate::<6>(rows.clone().try_into().unwrap(), &w, 20, &mut six);
        for (row, six) in rows.iter().zip(&six) {
            let mut one = [[0.25; LANES]];
            accumulate([row], &w, 20, &mut one);
            assert_eq!(one[0].map(f32::to_bits), six.map(f32::to_bits));
            let mut plain = [0.25f32; LANES];
            for (k, x) in row.iter().enumerate() {
                for l in 0..LANES {
                    plain[l] += x * w[k * 20 + l];
                }
            }
            assert_eq!(plain, *six);
        }
    }

    #[test]
    fn lane_sums_are_in_the_order_of_the_index() {
        let values: Vec<f32> = (0..1000).map(|i| 1.0 / (i as f32 + 1.0)).collect();
        let mut lanes = [0.0f32; LANES];
        for (i, value) in values.iter().enumerate() {
            lanes[i % LANES] += value;
        }
        assert_eq!(sum_lanes(&values, |value| value), fold_lanes(lanes, |a, b| a + b));
        assert_eq!(max_lanes(&values[1..]), 0.5);
        assert_eq!(max_lanes(&[-3.0, f32::NEG_INFINITY]), -3.0);
        assert!((f64::from(sum_lanes(&values, |value| value)) - 7.485_470_860_550_345).abs() < 1e-5);
    }
}
