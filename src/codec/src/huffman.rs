//! Prefix codes of limited length.

/// Length of the longest code, bits.
pub(crate) const LENGTH_MAX: usize = 10;

/// Returns the lengths of an optimal prefix code with at most [`LENGTH_MAX`] bits; 0 for symbols of weight 0. At most 2^[`LENGTH_MAX`] symbols
/// MUST have a weight.
///
/// Package-merge (Larmore and Hirschberg, 1990): of `LENGTH_MAX` lists, each is the symbols merged with the pairs of the list before; the
/// first `2n - 2` entries of the last list hold each symbol as often as its code is long. Equal weights keep their order, so that the code is
/// the same everywhere.
pub(crate) fn lengths(weights: &[u64]) -> Vec<u8> {
    let mut symbols: Vec<(u64, Vec<u16>)> = (0u16..)
        .zip(weights)
        .filter(|(_, weight)| **weight > 0)
        .map(|(symbol, weight)| (*weight, vec![symbol]))
        .collect();
    let mut lengths = vec![0; weights.len()];
    let n = symbols.len();
    assert!(n <= 1 << LENGTH_MAX, "more symbols than codes");
    if n < 2 {
        symbols.iter().for_each(|(_, symbol)| lengths[usize::from(symbol[0])] = 1);
        return lengths;
    }
    symbols.sort_by_key(|(weight, _)| *weight);
    let mut list = symbols.clone();
    for _ in 1..LENGTH_MAX {
        let packages = list.chunks_exact(2).map(|pair| (pair[0].0 + pair[1].0, [&pair[0].1[..], &pair[1].1].concat()));
        let mut merged: Vec<_> = symbols.iter().cloned().chain(packages).collect();
        merged.sort_by_key(|(weight, _)| *weight);
        list = merged;
    }
    for (_, package) in &list[..2 * n - 2] {
        package.iter().for_each(|symbol| lengths[usize::from(*symbol)] += 1);
    }
    lengths
}

/// Returns the canonical codes of lengths: of two codes the shorter, or of equal ones that of the lower symbol, comes first. Codes are
/// right-aligned.
pub(crate) fn codes(lengths: &[u8]) -> Vec<u16> {
    let mut codes = vec![0; lengths.len()];
    let mut next = 0u32;
    for length in 1..=LENGTH_MAX as u8 {
        for (code, _) in codes.iter_mut().zip(lengths).filter(|(_, own)| **own == length) {
            *code = next as u16;
            next += 1;
        }
        next <<= 1;
    }
    codes
}

/// Returns `true` if lengths belong to a code without gaps.
pub(crate) fn is_complete(lengths: &[u8]) -> bool {
    let taken: usize = lengths.iter().filter(|length| **length > 0).map(|length| 1 << LENGTH_MAX >> length).sum();
    taken == 1 << LENGTH_MAX
}

/// Fills the entries of a decoder, `symbol << 8 | length` for each [`LENGTH_MAX`] bits. Returns `false` if the lengths are no complete code.
pub(crate) fn fill_decoder(lengths: &[u8], entries: &mut [u16]) -> bool {
    if !is_complete(lengths) || lengths.len() > 256 {
        return false;
    }
    for (symbol, (length, code)) in
        lengths.iter().zip(codes(lengths)).enumerate().filter(|(_, (length, _))| **length > 0)
    {
        let shift = LENGTH_MAX - usize::from(*length);
        let begin = usize::from(code) << shift;
        entries[begin..begin + (1 << shift)].fill((symbol as u16) << 8 | u16::from(*length));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_optimal_within_the_limit() {
        assert_eq!(lengths(&[8, 4, 2, 1, 1, 0]), [1, 2, 3, 4, 4, 0]);
        assert_eq!(lengths(&[0, 5, 0]), [0, 1, 0]);
        // Weights of Fibonacci need a code as long as there are symbols.
        let mut weights = vec![1u64, 1];
        (2..20).for_each(|i| weights.push(weights[i - 1] + weights[i - 2]));
        let limited = lengths(&weights);
        assert_eq!(*limited.iter().max().unwrap() as usize, LENGTH_MAX);
        assert!(is_complete(&limited));
    }

    #[test]
    fn canonical_codes_are_prefix_free() {
        let lengths = lengths(&(1..200).map(|i| i * i).collect::<Vec<u64>>());
        let codes = codes(&lengths);
        let padded = |at: usize| u32::from(codes[at]) << (LENGTH_MAX as u8 - lengths[at]);
        for a in 0..codes.len() {
            for b in (0..codes.len()).filter(|b| lengths[*b] > lengths[a]) {
                assert_ne!(padded(b) >> (LENGTH_MAX as u8 - lengths[a]), u32::from(codes[a]), "{a} begins {b}");
            }
        }
        let mut entries = vec![0; 1 << LENGTH_MAX];
        assert!(fill_decoder(&lengths, &mut entries));
        for (symbol, length) in lengths.iter().enumerate() {
            assert_eq!(entries[padded(symbol) as usize], (symbol as u16) << 8 | u16::from(*length));
        }
        assert!(!fill_decoder(&[1, 2], &mut entries), "a gap");
    }
}
