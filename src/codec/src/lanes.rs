//! Elements of every type as lanes of 16 bits: sign at the top, then exponent and mantissa. All transforms work on lanes.
//!
//! | type | lane | outside of the lane |
//! |---|---|---|
//! | BF16, FP16 | the element | |
//! | F32 | the upper half, which is BF16 but for rounding | the lower half |
//! | E5M2 | the element in the upper byte, which is FP16 | |
//! | E4M3 | sign at bit 15, the rest from bit 7 on: a mantissa of ten bits, as FP16 has, and an exponent of four | |

use crate::shape::Dtype;

/// Sets lanes from the bytes of elements.
#[inline(always)]
pub(crate) fn split(dtype: Dtype, bytes: &[u8], lanes: &mut [u16]) {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => {
            let words = bytes.as_chunks::<2>().0;
            lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane = u16::from_le_bytes(*word));
        }
        Dtype::F32 => {
            let words = bytes.as_chunks::<4>().0;
            lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane = (u32::from_le_bytes(*word) >> 16) as u16);
        }
        Dtype::E4m3 => lanes.iter_mut().zip(bytes).for_each(|(lane, byte)| *lane = widened(*byte)),
        Dtype::E5m2 => lanes.iter_mut().zip(bytes).for_each(|(lane, byte)| *lane = u16::from(*byte) << 8),
        Dtype::Q8_0 | Dtype::Q4_0 => unreachable!("quantised elements have no lanes"),
    }
}

/// Returns the lane of an E4M3 element.
#[inline(always)]
fn widened(byte: u8) -> u16 {
    (u16::from(byte) & 0x80) << 8 | (u16::from(byte) & 0x7f) << 7
}

/// Returns the bytes of an element outside of its lane.
pub(crate) fn low_bytes(dtype: Dtype) -> usize {
    if dtype == Dtype::F32 { 2 } else { 0 }
}

/// Appends what elements have outside of their lanes.
pub(crate) fn push_low(dtype: Dtype, bytes: &[u8], out: &mut Vec<u8>) {
    if dtype == Dtype::F32 {
        let begin = out.len();
        out.resize(begin + bytes.len() / 2, 0);
        let low = out[begin..].as_chunks_mut::<2>().0;
        low.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(low, word)| *low = [word[0], word[1]]);
    }
}

/// Sets the bytes of elements from lanes and from what they have outside of them. All of one number of elements.
#[inline(always)]
pub(crate) fn join(dtype: Dtype, lanes: &[u16], low: &[u8], bytes: &mut [u8]) {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => {
            let words = bytes.as_chunks_mut::<2>().0;
            words.iter_mut().zip(lanes).for_each(|(word, lane)| *word = lane.to_le_bytes());
        }
        Dtype::F32 => {
            let words = bytes.as_chunks_mut::<4>().0;
            for ((word, lane), low) in words.iter_mut().zip(lanes).zip(low.as_chunks::<2>().0) {
                *word = (u32::from(*lane) << 16 | u32::from(u16::from_le_bytes(*low))).to_le_bytes();
            }
        }
        Dtype::E4m3 => {
            bytes
                .iter_mut()
                .zip(lanes)
                .for_each(|(byte, lane)| *byte = (lane >> 8) as u8 & 0x80 | (lane >> 7) as u8 & 0x7f);
        }
        Dtype::E5m2 => bytes.iter_mut().zip(lanes).for_each(|(byte, lane)| *byte = (lane >> 8) as u8),
        Dtype::Q8_0 | Dtype::Q4_0 => unreachable!("quantised elements have no lanes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_every_type_come_back_from_lanes() {
        for dtype in Dtype::FLOATS {
            let bytes: Vec<u8> = (0..256 * dtype.width()).map(|i| (i * 97 + i / 256) as u8).collect();
            let (mut lanes, mut low, mut back) = (vec![0; 256], Vec::new(), vec![0; bytes.len()]);
            split(dtype, &bytes, &mut lanes);
            push_low(dtype, &bytes, &mut low);
            assert_eq!(low.len(), 256 * low_bytes(dtype));
            join(dtype, &lanes, &low, &mut back);
            assert_eq!(back, bytes, "{dtype:?}");
        }
    }
}
