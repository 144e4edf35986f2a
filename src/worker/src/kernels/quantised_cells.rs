//! Elements of KV blocks in units of 32 with a common scale: Q8_0 and Q4_0 of ggml.
//!
//! A unit holds 32 neighbouring elements of one token's head. Codes keep the order of the other types, keys as `[dim][token]` and values as
//! `[token][dim]`, so that whole vectors of codes are widened at once. Scales lie apart: keys' as `[dim / 32][token]`, values' as
//! `[token][dim / 32]`. With four bits a byte holds elements `j` and `j + 16` of a unit, each plus 8.
//!
//! Rounding is that of `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref` (ggml-quants.c): quotients by the scale before its rounding to F16,
//! half away from zero. Elements beyond the reach of the largest F16 scale become the largest; a unit with NaN or infinity is NaN as a whole,
//! so that logits tell.

use std::ops::Range;

use half::f16;

/// Elements in a unit.
pub(crate) const UNIT: usize = 32;

/// Width of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bits {
    Eight,
    Four,
}

impl Bits {
    /// Returns the bytes of the codes of a unit.
    const fn code_bytes(self) -> usize {
        match self {
            Self::Eight => UNIT,
            Self::Four => UNIT / 2,
        }
    }

    /// Returns the place of the scale and of the first code of the `n`-th unit of the row that begins at `at`.
    #[inline(always)]
    fn unit(self, at: usize, step: usize, n: usize) -> (usize, usize) {
        let (set, token) = (at / (UNIT * step) + n, at % (UNIT * step));
        (set * step + token, set * self.code_bytes() * step + token)
    }

    /// Returns the bytes of the scales among the bytes of a block.
    fn scale_bytes(self, block_bytes: usize) -> usize {
        block_bytes / self.unit_bytes() * 2
    }

    /// Returns the bytes of a unit with its scale.
    pub(crate) const fn unit_bytes(self) -> usize {
        2 + self.code_bytes()
    }
}

/// The elements of one block, for reading: in memory first all scales, as F16, then all codes. `at` and `step` count elements, as with the
/// other types.
#[derive(Clone, Copy)]
pub(crate) struct QuantisedCells<'a> {
    bits: Bits,
    scales: &'a [u16],
    codes: &'a [u8],
}

/// The elements of one block, for writing.
pub(crate) struct QuantisedCellsMut<'a> {
    bits: Bits,
    scales: &'a mut [u16],
    codes: &'a mut [u8],
}

/// Returns the scale and the codes of a unit, one code for each element: from -127 to 127, or from 0 to 15.
fn quantise(bits: Bits, values: &[f32]) -> (u16, [u8; UNIT]) {
    let mut peak = 0.0f32;
    for value in values {
        if !value.is_finite() {
            return (f16::NAN.to_bits(), [1; UNIT]);
        }
        if value.abs() > peak.abs() {
            peak = *value;
        }
    }
    let largest = f16::MAX.to_f32();
    let exact = match bits {
        Bits::Eight => peak.abs() / 127.0,
        Bits::Four => peak / -8.0,
    };
    let scale = exact.clamp(-largest, largest);
    // A scale so small that its inverse overflows stands for zeros.
    let inverse = Some(1.0 / scale).filter(|inverse| inverse.is_finite()).unwrap_or(0.0);
    let code = |value: f32| match bits {
        Bits::Eight => (value * inverse).round().clamp(-127.0, 127.0) as i8 as u8,
        Bits::Four => (value * inverse + 8.5).clamp(0.0, 15.0) as u8,
    };
    (f16::from_f32(scale).to_bits(), std::array::from_fn(|i| code(values[i])))
}

impl<'a> QuantisedCells<'a> {
    /// Takes the bytes of a block, which begin at a multiple of two.
    #[inline(always)]
    pub(crate) fn new(bits: Bits, bytes: &'a [u8]) -> Self {
        let (scales, codes) = bytes.split_at(bits.scale_bytes(bytes.len()));
        Self { bits, scales: bytemuck::cast_slice(scales), codes }
    }

    /// Returns the codes of a range of elements, whole units.
    #[inline(always)]
    pub(crate) fn codes_of(self, elements: Range<usize>) -> &'a [u8] {
        let bytes = self.bits.code_bytes();
        &self.codes[elements.start / UNIT * bytes..elements.end / UNIT * bytes]
    }

    /// Widens the elements from `at` on into `out`, whole sets of `step` units.
    #[inline(always)]
    pub(crate) fn read(&self, at: usize, step: usize, out: &mut [f32]) {
        let bytes = self.bits.code_bytes();
        let first = at / UNIT;
        if step == 1 {
            let scales = self.scales[first..].iter();
            let codes = self.codes[first * bytes..].chunks_exact(bytes);
            for ((out, scale), codes) in out.as_chunks_mut::<UNIT>().0.iter_mut().zip(scales).zip(codes) {
                let scale = f16::from_bits(*scale).to_f32_const();
                match self.bits {
                    Bits::Eight => {
                        out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code as i8) * scale);
                    }
                    Bits::Four => {
                        let (low, high) = out.split_at_mut(UNIT / 2);
                        widen_nibbles(codes, low, high, |_| scale);
                    }
                }
            }
            return;
        }
        let mut scales = [0.0; SCALES_MAX];
        for (set, out) in out.chunks_exact_mut(UNIT * step).enumerate() {
            let stored = &self.scales[first + set * step..][..step];
            let codes = &self.codes[(first + set * step) * bytes..][..step * bytes];
            // Tokens in parts, so that the scales have a place.
            for from in (0..step).step_by(SCALES_MAX) {
                let n = SCALES_MAX.min(step - from);
                let scales = &mut scales[..n];
                scales
                    .iter_mut()
                    .zip(&stored[from..])
                    .for_each(|(wide, scale)| *wide = f16::from_bits(*scale).to_f32_const());
                let scales = &*scales;
                for (j, codes) in codes.chunks_exact(step).enumerate() {
                    let codes = &codes[from..from + n];
                    match self.bits {
                        Bits::Eight => {
                            let out = &mut out[j * step + from..][..n];
                            for ((out, code), scale) in out.iter_mut().zip(codes).zip(scales) {
                                *out = f32::from(*code as i8) * scale;
                            }
                        }
                        Bits::Four => {
                            let (low, high) = out.split_at_mut(UNIT / 2 * step);
                            let low = &mut low[j * step + from..][..n];
                            widen_nibbles(codes, low, &mut high[j * step + from..][..n], |t| scales[t]);
                        }
                    }
                }
            }
        }
    }

    /// Writes the row of `n` elements that begins at `at` as units of ggml: scale, then codes.
    pub(crate) fn export(&self, at: usize, step: usize, bytes: &mut [u8]) {
        for (n, bytes) in bytes.chunks_exact_mut(self.bits.unit_bytes()).enumerate() {
            let (scale_at, code_at) = self.bits.unit(at, step, n);
            let (scale, codes) = bytes.split_at_mut(2);
            scale.copy_from_slice(&self.scales[scale_at].to_le_bytes());
            codes.iter_mut().zip(self.codes[code_at..].iter().step_by(step)).for_each(|(byte, code)| *byte = *code);
        }
    }
}

impl<'a> QuantisedCellsMut<'a> {
    /// Takes the bytes of a block, which begin at a multiple of two.
    pub(crate) fn new(bits: Bits, bytes: &'a mut [u8]) -> Self {
        let (scales, codes) = bytes.split_at_mut(bits.scale_bytes(bytes.len()));
        Self { bits, scales: bytemuck::cast_slice_mut(scales), codes }
    }

    /// Stores `values`, whole units, in the elements `at`, `at + step`, `at + 2 step` and so on.
    pub(crate) fn store(&mut self, at: usize, step: usize, values: &[f32]) {
        for (n, values) in values.chunks_exact(UNIT).enumerate() {
            let (scale_at, code_at) = self.bits.unit(at, step, n);
            let (scale, codes) = quantise(self.bits, values);
            self.scales[scale_at] = scale;
            let cells = self.codes[code_at..].iter_mut().step_by(step);
            match self.bits {
                Bits::Eight => cells.zip(codes).for_each(|(cell, code)| *cell = code),
                Bits::Four => {
                    let (low, high) = codes.split_at(UNIT / 2);
                    cells.zip(low.iter().zip(high)).for_each(|(cell, (low, high))| *cell = low | high << 4);
                }
            }
        }
    }

    /// Zeroes the elements from `at` on, a whole number of units.
    pub(crate) fn clear_from(&mut self, at: usize) {
        self.scales[at / UNIT..].fill(0);
        self.codes[at / UNIT * self.bits.code_bytes()..].fill(0);
    }

    /// Takes a row from units of ggml, as [`Self::export`] writes them.
    pub(crate) fn import(&mut self, at: usize, step: usize, bytes: &[u8]) {
        for (n, bytes) in bytes.chunks_exact(self.bits.unit_bytes()).enumerate() {
            let (scale_at, code_at) = self.bits.unit(at, step, n);
            let (scale, codes) = bytes.split_at(2);
            self.scales[scale_at] = u16::from_le_bytes([scale[0], scale[1]]);
            self.codes[code_at..].iter_mut().step_by(step).zip(codes).for_each(|(code, byte)| *code = *byte);
        }
    }
}

/// Tokens whose scales are widened at once.
const SCALES_MAX: usize = 64;

#[inline(always)]
fn widen_nibbles(codes: &[u8], low: &mut [f32], high: &mut [f32], scale: impl Fn(usize) -> f32) {
    for (t, ((code, low), high)) in codes.iter().zip(low).zip(high).enumerate() {
        *low = (f32::from(code & 15) - 8.0) * scale(t);
        *high = (f32::from(code >> 4) - 8.0) * scale(t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::noise::Noise;

    /// Zeros for `len` elements.
    fn zeros(bits: Bits, len: usize) -> Vec<u16> {
        vec![0; len / UNIT * bits.unit_bytes() / 2]
    }

    fn cells(bits: Bits, memory: &[u16]) -> QuantisedCells<'_> {
        QuantisedCells::new(bits, bytemuck::cast_slice(memory))
    }

    fn cells_mut(bits: Bits, memory: &mut [u16]) -> QuantisedCellsMut<'_> {
        QuantisedCellsMut::new(bits, bytemuck::cast_slice_mut(memory))
    }

    /// The elements of a unit after a round trip.
    fn back(bits: Bits, values: [f32; UNIT]) -> [f32; UNIT] {
        let mut memory = zeros(bits, UNIT);
        cells_mut(bits, &mut memory).store(0, 1, &values);
        let mut out = [0.0; UNIT];
        cells(bits, &memory).read(0, 1, &mut out);
        out
    }

    #[test]
    fn rows_lie_where_floats_would_and_come_back_by_either_way() {
        // Two heads of two units, for 5 or 70 tokens: keys of each head, then values.
        for (bits, tokens) in [(Bits::Eight, 5), (Bits::Four, 5), (Bits::Eight, 70), (Bits::Four, 70)] {
            let (dim, mut noise) = (2 * UNIT, Noise::new(4));
            let half = dim * tokens;
            let (mut stored, mut copied) = (zeros(bits, 4 * half), zeros(bits, 4 * half));
            let mut rows = Vec::new();
            for head in 0..2 {
                for token in 0..tokens {
                    rows.push((2 * head * half + token, tokens));
                    rows.push((2 * head * half + half + token * dim, 1));
                }
            }
            let mut expected = vec![0.0f32; 4 * half];
            for (at, step) in &rows {
                let values: Vec<f32> = (0..dim).map(|_| noise.uniform(3.0)).collect();
                cells_mut(bits, &mut stored).store(*at, *step, &values);
                for (d, unit) in values.as_chunks::<UNIT>().0.iter().enumerate() {
                    for (j, value) in back(bits, *unit).into_iter().enumerate() {
                        expected[at + (d * UNIT + j) * step] = value;
                    }
                }
                let mut bytes = vec![0; 2 * bits.unit_bytes()];
                cells(bits, &stored).export(*at, *step, &mut bytes);
                cells_mut(bits, &mut copied).import(*at, *step, &bytes);
                // The bytes are units of ggml.
                let (scale, codes) = quantise(bits, &values[..UNIT]);
                assert_eq!(bytes[..2], scale.to_le_bytes());
                match bits {
                    Bits::Eight => assert_eq!(bytes[2..34], codes),
                    Bits::Four => assert!((0..16).all(|j| bytes[2 + j] == codes[j] | codes[j + 16] << 4)),
                }
            }
            for memory in [&stored, &copied] {
                let cells = cells(bits, memory);
                let mut out = vec![0.0; half];
                for head in 0..2 {
                    let keys = 2 * head * half;
                    cells.read(keys, tokens, &mut out);
                    assert_eq!(out, expected[keys..keys + half]);
                    cells.read(keys + half, 1, &mut out);
                    assert_eq!(out, expected[keys + half..keys + 2 * half]);
                }
            }
            cells_mut(bits, &mut stored).clear_from(2 * half);
            let mut out = vec![1.0; half];
            cells(bits, &stored).read(2 * half, tokens, &mut out);
            assert!(out.iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn units_are_rounded_as_in_ggml() {
        let unit = |first: &[f32]| std::array::from_fn(|i| first.get(i).copied().unwrap_or(0.0));
        // The scale is 1: halves go away from zero.
        assert_eq!(back(Bits::Eight, unit(&[127.0, 2.5, -2.5, 0.49]))[..4], [127.0, 3.0, -3.0, 0.0]);
        // The value of the largest magnitude, the first of equals, becomes -8 units; its opposite is clipped to 7.
        assert_eq!(back(Bits::Four, unit(&[-8.0, 8.0, 3.5, -3.4]))[..4], [-8.0, 7.0, 4.0, -3.0]);
        assert_eq!(back(Bits::Four, unit(&[8.0, -8.0]))[..2], [8.0, -7.0]);
        for bits in [Bits::Eight, Bits::Four] {
            assert_eq!(back(bits, [0.0; UNIT]), [0.0; UNIT]);
            // Subnormal elements, and scales below the least F16, are zeros.
            assert!(back(bits, unit(&[1e-40, -1e-42])).iter().all(|value| *value == 0.0));
            assert!(back(bits, unit(&[1e-10])).iter().all(|value| *value == 0.0));
            for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert!(back(bits, unit(&[1.0, strange])).iter().all(|value| value.is_nan()));
            }
        }
        // Beyond the largest scale, elements become the largest; others keep their size.
        assert_eq!(back(Bits::Eight, unit(&[1e30, -1e30, 65504.0]))[..3], [8_319_008.0, -8_319_008.0, 65504.0]);
        assert_eq!(back(Bits::Four, unit(&[-1e30, 65504.0]))[..2], [-524_032.0, 65504.0]);
    }

    #[test]
    fn errors_stay_within_half_a_step() {
        let mut noise = Noise::new(9);
        for _ in 0..200 {
            let values: [f32; UNIT] = std::array::from_fn(|_| noise.uniform(5.0));
            let peak = values.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            // Four bits cannot hold the opposite of the peak.
            for (bits, bound) in [(Bits::Eight, peak / 127.0 * 0.51 + peak * 5e-4), (Bits::Four, peak / 8.0 * 1.01)] {
                let worst = back(bits, values).iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst <= bound, "{worst} is above {bound}");
            }
        }
    }
}
