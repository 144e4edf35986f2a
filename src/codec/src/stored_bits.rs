//! Bits of lanes stored unchanged, packed so that compilers can do many at once.

/// Lanes packed together, the size of a group.
pub(crate) const GROUP: usize = 64;

/// The lowest bit of each of eight bytes.
const LOWEST: u64 = u64::from_le_bytes([1; 8]);

/// Bits of each lane that are stored, of the lowest eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredBits {
    /// Bits stored: 0, 1, 3, 6 or 8.
    pub bits: u32,
    /// Bits below those stored.
    pub shift: u32,
}

impl StoredBits {
    /// Returns the bytes of a group.
    #[inline(always)]
    fn group_len(self) -> usize {
        GROUP / 8 * self.bits as usize
    }

    /// Returns the bytes of `n` lanes.
    pub(crate) fn packed_len(self, n: usize) -> usize {
        n.div_ceil(GROUP) * self.group_len()
    }

    /// Sets the packed bits of lanes, in groups of 64, the last filled up with zeros. `packed` MUST have the length of [`Self::packed_len`].
    ///
    /// One bit: byte `j` has elements `j`, `j + 8`, ... from the lowest bit up. Three bits: eight such bytes for each, the lowest bit first. Six bits: 32 bytes with the lowest four bits of elements `j` and
    /// `j + 32`, then 16 bytes with the upper two of `j`, `j + 16`, `j + 32`, `j + 48`. Eight bits: a byte for each element.
    #[inline(always)]
    pub(crate) fn pack(self, lanes: &[u16], packed: &mut [u8]) {
        if self.bits == 0 {
            return;
        }
        let (groups, rest) = lanes.as_chunks::<GROUP>();
        let mut packed = packed.chunks_exact_mut(self.group_len());
        for (group, packed) in groups.iter().zip(&mut packed) {
            self.pack_group(group, packed);
        }
        if let (false, Some(packed)) = (rest.is_empty(), packed.next()) {
            let mut group = [0; GROUP];
            group[..rest.len()].copy_from_slice(rest);
            self.pack_group(&group, packed);
        }
    }

    #[inline(always)]
    fn pack_group(self, group: &[u16; GROUP], packed: &mut [u8]) {
        match self.bits {
            8 => packed.iter_mut().zip(group).for_each(|(byte, lane)| *byte = *lane as u8),
            6 => {
                let packed: &mut [u8; 48] = packed.try_into().expect("48 bytes of 64 lanes");
                for j in 0..32 {
                    packed[j] = (group[j] & 15 | (group[j + 32] & 15) << 4) as u8;
                }
                for j in 0..16 {
                    let (a, b) = (group[j] >> 4 & 3, group[j + 16] >> 4 & 3);
                    let (c, d) = (group[j + 32] >> 4 & 3, group[j + 48] >> 4 & 3);
                    packed[32 + j] = (a | b << 2 | c << 4 | d << 6) as u8;
                }
            }
            _ => {
                let low: [u8; GROUP] = group.map(|lane| lane as u8);
                for (plane, packed) in packed.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let bits = |eight: &[u8; 8]| u64::from_le_bytes(*eight) >> (self.shift + plane as u32) & LOWEST;
                    let eights = low.as_chunks().0.iter().enumerate();
                    *packed = eights.fold(0, |all, (bit, eight)| all | bits(eight) << bit).to_le_bytes();
                }
            }
        }
    }

    /// Adds the stored bits to lanes, which have zeros in their places.
    #[inline(always)]
    pub(crate) fn unpack(self, packed: &[u8], lanes: &mut [u16]) {
        if self.bits == 0 {
            return;
        }
        let (groups, rest) = lanes.as_chunks_mut::<GROUP>();
        let mut packed = packed.chunks_exact(self.group_len());
        for (group, packed) in groups.iter_mut().zip(&mut packed) {
            self.unpack_group(packed, group);
        }
        if let (false, Some(packed)) = (rest.is_empty(), packed.next()) {
            let mut group = [0; GROUP];
            self.unpack_group(packed, &mut group);
            rest.iter_mut().zip(group).for_each(|(lane, stored)| *lane |= stored);
        }
    }

    #[inline(always)]
    fn unpack_group(self, bytes: &[u8], group: &mut [u16; GROUP]) {
        match self.bits {
            8 => group.iter_mut().zip(bytes).for_each(|(lane, byte)| *lane |= u16::from(*byte)),
            6 => {
                let bytes: &[u8; 48] = bytes.try_into().expect("48 bytes of 64 lanes");
                for j in 0..16 {
                    let [low, high, upper] = [bytes[j], bytes[16 + j], bytes[32 + j]].map(u16::from);
                    group[j] |= low & 15 | (upper & 3) << 4;
                    group[16 + j] |= high & 15 | (upper & 12) << 2;
                    group[32 + j] |= low >> 4 | upper & 48;
                    group[48 + j] |= high >> 4 | upper >> 6 << 4;
                }
            }
            _ => {
                let mut low = [0u8; GROUP];
                for (bit, eight) in low.as_chunks_mut().0.iter_mut().enumerate() {
                    let bits = |plane: &[u8; 8]| u64::from_le_bytes(*plane) >> bit & LOWEST;
                    let planes = bytes.as_chunks().0.iter().zip(self.shift..);
                    *eight = planes.fold(0, |all, (plane, at)| all | bits(plane) << at).to_le_bytes();
                }
                group.iter_mut().zip(low).for_each(|(lane, stored)| *lane |= u16::from(stored));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bits_come_back() {
        for (bits, shift) in [(0, 0), (1, 7), (3, 0), (6, 0), (8, 0)] {
            let stored = StoredBits { bits, shift };
            for n in [0, 1, 63, 64, 65, 192] {
                let lanes: Vec<u16> = (0..n).map(|i| (i as u16).wrapping_mul(40_503)).collect();
                let mut packed = vec![9; stored.packed_len(n)];
                stored.pack(&lanes, &mut packed);
                let mask = ((1 << bits) - 1) << shift;
                let mut back: Vec<u16> = lanes.iter().map(|lane| lane & !mask).collect();
                stored.unpack(&packed, &mut back);
                assert_eq!(back, lanes);
            }
        }
    }
}
