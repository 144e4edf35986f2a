//! Bits of elements stored unchanged, packed so that compilers can do many at once.

/// Elements packed together, the size of a group.
const GROUP: usize = 64;

/// Returns the bytes of `n` elements of `bits` bits each.
pub(crate) fn packed_len(n: usize, bits: u32) -> usize {
    n.div_ceil(GROUP) * GROUP * bits as usize / 8
}

/// Appends the lowest `bits` bits of each element, 6 or 8. Elements come in groups of 64, the last filled up with zeros.
///
/// Six bits: 32 bytes with the lowest four bits of elements `j` and `j + 32`, then 16 bytes with the upper two of `j`, `j + 16`, `j + 32`, `j + 48`.
pub(crate) fn pack(elements: &[u16], bits: u32, out: &mut Vec<u8>) {
    let mut groups = elements.chunks_exact(GROUP);
    for group in &mut groups {
        pack_group(group.try_into().expect("a group"), bits, out);
    }
    if !groups.remainder().is_empty() {
        let mut last = [0; GROUP];
        last[..groups.remainder().len()].copy_from_slice(groups.remainder());
        pack_group(&last, bits, out);
    }
}

fn pack_group(group: &[u16; GROUP], bits: u32, out: &mut Vec<u8>) {
    let mut bytes = [0u8; GROUP];
    if bits == 8 {
        bytes.iter_mut().zip(group).for_each(|(byte, element)| *byte = *element as u8);
        out.extend(bytes);
        return;
    }
    debug_assert_eq!(bits, 6);
    for j in 0..32 {
        bytes[j] = (group[j] & 15 | (group[j + 32] & 15) << 4) as u8;
    }
    for j in 0..16 {
        let upper = |element: u16| element >> 4 & 3;
        bytes[32 + j] =
            (upper(group[j]) | upper(group[j + 16]) << 2 | upper(group[j + 32]) << 4 | upper(group[j + 48]) << 6) as u8;
    }
    out.extend(&bytes[..48]);
}

/// Sets elements to stored bits. `packed` MUST have the length that [`packed_len`] says.
pub(crate) fn unpack(packed: &[u8], bits: u32, elements: &mut [u16]) {
    debug_assert_eq!(packed.len(), packed_len(elements.len(), bits));
    let bytes = GROUP * bits as usize / 8;
    for (group, elements) in packed.chunks_exact(bytes).zip(elements.chunks_mut(GROUP)) {
        let mut whole = [0u16; GROUP];
        unpack_group(group, bits, &mut whole);
        elements.copy_from_slice(&whole[..elements.len()]);
    }
}

fn unpack_group(bytes: &[u8], bits: u32, group: &mut [u16; GROUP]) {
    if bits == 8 {
        group.iter_mut().zip(bytes).for_each(|(element, byte)| *element = u16::from(*byte));
        return;
    }
    let bytes: &[u8; 48] = bytes.try_into().expect("48 bytes of 64 elements");
    for j in 0..32 {
        group[j] = u16::from(bytes[j] & 15);
        group[j + 32] = u16::from(bytes[j] >> 4);
    }
    for j in 0..16 {
        let upper = u16::from(bytes[32 + j]);
        group[j] |= (upper & 3) << 4;
        group[j + 16] |= (upper >> 2 & 3) << 4;
        group[j + 32] |= (upper >> 4 & 3) << 4;
        group[j + 48] |= (upper >> 6) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bits_come_back() {
        for bits in [6, 8] {
            for n in [0, 1, 63, 64, 65, 192] {
                let elements: Vec<u16> = (0..n).map(|i| (i as u16).wrapping_mul(40_503)).collect();
                let mut packed = vec![9];
                pack(&elements, bits, &mut packed);
                assert_eq!(packed.len(), 1 + packed_len(n, bits));
                let mut back = vec![7; n];
                unpack(&packed[1..], bits, &mut back);
                assert!(elements.iter().zip(back).all(|(element, back)| element & ((1 << bits) - 1) == back));
            }
        }
    }
}
