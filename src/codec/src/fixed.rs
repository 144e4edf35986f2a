//! Payload with codes of four bits for exponents: less dense than prefix codes, and nearly as fast as memory.
//!
//! ```text
//! payload = base of each plane:u8 | codes of 4 bits | sign and mantissa:u8 each | low halves of F32 | exponent of each escape:u8
//! ```
//!
//! A code from 1 to 15 is the exponent less the base of the plane; 0 is an escape. For BF16 and F32, whose exponents have eight bits of which
//! four tell most of them.

use pulp::{Simd, WithSimd};

use crate::lanes;
use crate::shape::{Dtype, Shape};
use crate::stored_bits::GROUP;

/// Exponents.
const EXPONENTS: usize = 256;
/// Exponents with a code.
const CODED: u8 = 15;
/// Of so many elements, one is counted to find the base.
const SAMPLED: usize = 16;
/// Bytes of the codes of a group.
const CODES: usize = GROUP / 2;

/// Returns `true` for types whose exponents have eight bits.
pub(crate) fn suits(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Bf16 | Dtype::F32)
}

/// Returns the bytes of the parts of a payload before the escapes: bases, codes, signs and mantissas, low halves.
fn parts(dtype: Dtype, shape: &Shape, n: usize) -> [usize; 4] {
    [2 * usize::from(shape.layers), n.div_ceil(GROUP) * CODES, n, n * lanes::low_bytes(dtype)]
}

/// Returns the exponent below those that get codes in a plane: 15 neighbours that most of a sample have.
fn base_of(dtype: Dtype, plane: &[u8]) -> u8 {
    let mut counts = [0u32; EXPONENTS];
    for element in plane.chunks_exact(dtype.width()).step_by(SAMPLED) {
        if let [.., low, high] = element {
            counts[usize::from(u16::from_le_bytes([*low, *high]) >> 7 & 0xff)] += 1;
        }
    }
    let coded = usize::from(CODED);
    let mut sum: u32 = counts[1..=coded].iter().sum();
    let (mut best, mut base) = (sum, 0);
    for next in 1..EXPONENTS - coded {
        sum = sum + counts[next + coded] - counts[next];
        if sum > best {
            (best, base) = (sum, next);
        }
    }
    base as u8
}

/// Calls `found` with the number within the group of each element without a code, in the order of the codes.
#[inline(always)]
fn escapes(codes: &[u8; CODES], mut found: impl FnMut(usize)) {
    for (at, eight) in codes.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_le_bytes(*eight);
        let pairs = word | word >> 1;
        // The lowest bit of each half byte that is 0.
        let mut zeros = !(pairs | pairs >> 2) & 0x1111_1111_1111_1111;
        while zeros != 0 {
            let half = zeros.trailing_zeros() as usize / 4;
            found(8 * at + half / 2 + half % 2 * CODES);
            zeros &= zeros - 1;
        }
    }
}

/// Block being encoded.
struct Encode<'a> {
    dtype: Dtype,
    plane_len: usize,
    bytes: &'a [u8],
    bases: &'a [u8],
    codes: &'a mut [u8],
    rest: &'a mut [u8],
    /// Exponents without a code.
    escaped: &'a mut Vec<u8>,
}

impl WithSimd for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        let Self { dtype, plane_len, bytes, bases, codes, rest, escaped } = self;
        let groups = bytes.chunks(GROUP * dtype.width()).zip(codes.as_chunks_mut::<CODES>().0);
        for (at, ((bytes, codes), rest)) in groups.zip(rest.chunks_mut(GROUP)).enumerate() {
            // A group on the edge of two planes has the base of the first.
            let base = bases[at * GROUP / plane_len];
            // Beyond the end: one above the base, which has a code.
            let mut lanes = [u16::from(base.wrapping_add(1)) << 7; GROUP];
            lanes::split(dtype, bytes, &mut lanes);
            for j in 0..CODES {
                codes[j] = code(lanes[j], base) | code(lanes[j + CODES], base) << 4;
            }
            for (rest, lane) in rest.iter_mut().zip(&lanes) {
                *rest = (lane << 1) as u8 | (lane >> 15) as u8;
            }
            escapes(codes, |element| escaped.push((lanes[element] >> 7) as u8));
        }
    }
}

/// Returns the code of a lane's exponent.
#[inline(always)]
fn code(lane: u16, base: u8) -> u8 {
    let code = ((lane >> 7) as u8).wrapping_sub(base);
    if code <= CODED { code } else { 0 }
}

/// Bytes being decoded.
struct Decode<'a> {
    dtype: Dtype,
    plane_len: usize,
    bases: &'a [u8],
    codes: &'a [u8],
    rest: &'a [u8],
    low: &'a [u8],
    escaped: &'a [u8],
    out: &'a mut [u8],
}

impl WithSimd for Decode<'_> {
    /// `true` if there are as many escapes as codes for them.
    type Output = bool;

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) -> bool {
        let Self { dtype, plane_len, bases, codes, rest, low, escaped, out } = self;
        let (width, low_bytes) = (dtype.width(), lanes::low_bytes(dtype));
        let mut used = 0;
        let groups = codes.as_chunks::<CODES>().0.iter().zip(rest.chunks(GROUP));
        for (at, ((codes, rest), out)) in groups.zip(out.chunks_mut(GROUP * width)).enumerate() {
            let base = bases[at * GROUP / plane_len];
            let mut lanes = [0u16; GROUP];
            for j in 0..CODES {
                lanes[j] = u16::from((codes[j] & 15).wrapping_add(base)) << 7;
                lanes[j + CODES] = u16::from((codes[j] >> 4).wrapping_add(base)) << 7;
            }
            for (lane, rest) in lanes.iter_mut().zip(rest) {
                *lane |= u16::from(rest >> 1) | u16::from(*rest) << 15;
            }
            lanes::join(dtype, &lanes[..rest.len()], &low[at * GROUP * low_bytes..], out);
            escapes(codes, |element| {
                let exponent = escaped.get(used).copied().unwrap_or(0);
                used += 1;
                if let Some([.., first, second]) = out.get_mut(element * width..(element + 1) * width) {
                    *first = *first & 0x7f | exponent << 7;
                    *second = *second & 0x80 | exponent >> 1;
                }
            });
        }
        used == escaped.len()
    }
}

/// Appends the payload of a block with these bytes. `escaped` is a buffer.
pub(crate) fn encode(dtype: Dtype, shape: &Shape, bytes: &[u8], escaped: &mut Vec<u8>, out: &mut Vec<u8>) {
    let [n_bases, n_codes, n_rest, _] = parts(dtype, shape, bytes.len() / dtype.width());
    let plane_len = shape.channels() * usize::from(shape.tokens);
    out.extend(bytes.chunks_exact(plane_len * dtype.width()).map(|plane| base_of(dtype, plane)));
    let begin = out.len();
    out.resize(begin + n_codes + n_rest, 0);
    let (bases, codes) = out.split_at_mut(begin);
    let bases = &bases[begin - n_bases..];
    let (codes, rest) = codes.split_at_mut(n_codes);
    escaped.clear();
    pulp::Arch::new().dispatch(Encode { dtype, plane_len, bytes, bases, codes, rest, escaped });
    lanes::push_low(dtype, bytes, out);
    out.extend_from_slice(escaped);
}

/// Sets the bytes of a block from a payload. Returns `None` if the payload is malformed.
pub(crate) fn decode(dtype: Dtype, shape: &Shape, payload: &[u8], out: &mut [u8]) -> Option<()> {
    let [n_bases, n_codes, n_rest, n_low] = parts(dtype, shape, out.len() / dtype.width());
    let (bases, codes) = payload.split_at_checked(n_bases)?;
    let (codes, rest) = codes.split_at_checked(n_codes)?;
    let (rest, low) = rest.split_at_checked(n_rest)?;
    let (low, escaped) = low.split_at_checked(n_low)?;
    let plane_len = shape.channels() * usize::from(shape.tokens);
    let decode = Decode { dtype, plane_len, bases, codes, rest, low, escaped, out };
    (suits(dtype) && pulp::Arch::new().dispatch(decode)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_exponents_of_a_sample_get_codes() {
        let plane = |exponents: &[u16]| {
            let lanes = exponents.iter().flat_map(|exponent| (exponent << 7 | 0x8001).to_le_bytes());
            base_of(Dtype::Bf16, &lanes.collect::<Vec<u8>>())
        };
        assert_eq!(plane(&[130; 64]), 115, "the first of equals");
        let mut some = vec![120; 640];
        some[..64].fill(106);
        some[64..96].fill(105);
        assert_eq!(plane(&some), 105);
        assert!(plane(&[255; 64]) >= 240);
        assert_eq!(plane(&[0; 64]), 0, "zeros are escapes");
    }

    #[test]
    fn groups_on_edges_of_planes_and_short_ones_come_back() {
        for (tokens, head_dim) in [(1, 3), (2, 40), (16, 64), (3, 33)] {
            let shape = Shape { layers: 2, tokens, heads: 1, head_dim };
            let n = shape.elements().unwrap();
            let lanes: Vec<u16> = (0..n).map(|at| (at as u16).wrapping_mul(40_503) >> (at % 5)).collect();
            for dtype in [Dtype::Bf16, Dtype::F32] {
                let mut bytes = vec![0; n * dtype.width()];
                lanes::join(dtype, &lanes, &vec![7; n * lanes::low_bytes(dtype)], &mut bytes);
                let (mut payload, mut escaped, mut back) = (Vec::new(), Vec::new(), vec![0; bytes.len()]);
                encode(dtype, &shape, &bytes, &mut escaped, &mut payload);
                assert_eq!(decode(dtype, &shape, &payload, &mut back), Some(()));
                assert!(back == bytes && !escaped.is_empty());
                assert!((0..payload.len()).all(|len| decode(dtype, &shape, &payload[..len], &mut back).is_none()));
            }
        }
    }
}
