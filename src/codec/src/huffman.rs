//! Prefix codes of limited length.

/// Length of the longest code, bits.
pub(crate) const LENGTH_MAX: usize = 10;

/// Maximum number of symbols of a code.
pub(crate) const SYMBOLS_MAX: usize = 256;

/// Maker of optimal codes, with buffers that are used again.
///
/// Package-merge (Larmore and Hirschberg, 1990): of `LENGTH_MAX` lists, each is the symbols merged with the pairs of the list before; the
/// first `2n - 2` entries of the last list hold each symbol as often as its code is long.
#[derive(Debug)]
pub(crate) struct Merger {
    symbols: Vec<(u64, u16)>,
    /// Weights of the list before and of the list in the making.
    weights: [Vec<u64>; 2],
    /// For each list and entry: `true` if the entry is a symbol, `false` if a pair.
    is_symbol: [[bool; 2 * SYMBOLS_MAX]; LENGTH_MAX],
}

impl Default for Merger {
    fn default() -> Self {
        let weights = [(); 2].map(|()| Vec::with_capacity(2 * SYMBOLS_MAX));
        Self { symbols: Vec::with_capacity(SYMBOLS_MAX), weights, is_symbol: [[true; 2 * SYMBOLS_MAX]; LENGTH_MAX] }
    }
}

impl Merger {
    /// Returns the lengths of an optimal prefix code with at most [`LENGTH_MAX`] bits; 0 for symbols of weight 0. There MUST be
    /// [`SYMBOLS_MAX`] symbols at most. Of equal weights the symbol comes before the pair, and the lower symbol before the higher, so that the
    /// code is the same everywhere.
    pub(crate) fn lengths(&mut self, weights: &[u64]) -> [u8; SYMBOLS_MAX] {
        let mut lengths = [0; SYMBOLS_MAX];
        self.symbols.clear();
        let weighted = weights.iter().zip(0u16..).filter(|(weight, _)| **weight > 0);
        self.symbols.extend(weighted.map(|(weight, symbol)| (*weight, symbol)));
        self.symbols.sort_unstable();
        let n = self.symbols.len();
        if n < 2 {
            self.symbols.iter().for_each(|(_, symbol)| lengths[usize::from(*symbol)] = 1);
            return lengths;
        }
        let [before, next] = &mut self.weights;
        before.clear();
        before.extend(self.symbols.iter().map(|(weight, _)| *weight));
        self.is_symbol[0][..n].fill(true);
        for is_symbol in &mut self.is_symbol[1..] {
            merge(&self.symbols, before, next, is_symbol);
            std::mem::swap(before, next);
        }
        let mut taken = 2 * n - 2;
        for is_symbol in self.is_symbol.iter().rev() {
            let symbols = is_symbol[..taken].iter().filter(|is_symbol| **is_symbol).count();
            self.symbols[..symbols].iter().for_each(|(_, symbol)| lengths[usize::from(*symbol)] += 1);
            taken = 2 * (taken - symbols);
        }
        lengths
    }
}

/// Sets `next` to the merged weights of symbols and of pairs of the list before.
fn merge(symbols: &[(u64, u16)], before: &[u64], next: &mut Vec<u64>, is_symbol: &mut [bool]) {
    next.clear();
    let mut symbols = symbols.iter().map(|(weight, _)| *weight).peekable();
    let mut pairs = before.chunks_exact(2).map(|pair| pair[0] + pair[1]).peekable();
    loop {
        let takes_symbol = match (symbols.peek(), pairs.peek()) {
            (Some(symbol), Some(pair)) => symbol <= pair,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return,
        };
        is_symbol[next.len()] = takes_symbol;
        next.extend(if takes_symbol { symbols.next() } else { pairs.next() });
    }
}

/// Returns the lengths of an optimal code ([`Merger::lengths`]), as many as there are weights.
#[cfg(test)]
pub(crate) fn lengths(weights: &[u64]) -> Vec<u8> {
    Merger::default().lengths(weights)[..weights.len()].to_vec()
}

/// Returns the canonical codes of lengths: of two codes the shorter, or of equal ones that of the lower symbol, comes first. The first bit of a code is
/// the lowest. There MUST be [`SYMBOLS_MAX`] lengths at most.
pub(crate) fn codes(lengths: &[u8]) -> [u16; SYMBOLS_MAX] {
    let mut codes = [0; SYMBOLS_MAX];
    let mut counts = [0u16; LENGTH_MAX + 1];
    lengths.iter().for_each(|length| counts[usize::from(*length)] += 1);
    let mut next = [0u16; LENGTH_MAX + 1];
    for length in 2..=LENGTH_MAX {
        next[length] = (next[length - 1] + counts[length - 1]) << 1;
    }
    for (code, length) in codes.iter_mut().zip(lengths).filter(|(_, length)| **length > 0) {
        let next = &mut next[usize::from(*length)];
        *code = next.reverse_bits() >> (16 - length);
        *next += 1;
    }
    codes
}

/// Returns `true` if lengths belong to a code without gaps.
pub(crate) fn is_complete(lengths: &[u8]) -> bool {
    let taken: usize = lengths.iter().filter(|length| **length > 0).map(|length| 1 << LENGTH_MAX >> length).sum();
    taken == 1 << LENGTH_MAX
}

/// Fills the entries of a decoder: for each [`LENGTH_MAX`] bits the length, and what `part` returns for the symbol. Returns `false` if the lengths are
/// no complete code.
pub(crate) fn fill_decoder(lengths: &[u8], part: impl Fn(u16) -> u16, entries: &mut [u16]) -> bool {
    if !is_complete(lengths) || lengths.len() > SYMBOLS_MAX {
        return false;
    }
    let symbols = lengths.iter().zip(codes(lengths)).zip(0u16..);
    for ((length, code), symbol) in symbols.filter(|((length, _), _)| **length > 0) {
        let entry = part(symbol) | u16::from(*length);
        entries[code.into()..1 << LENGTH_MAX].iter_mut().step_by(1 << length).for_each(|own| *own = entry);
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
        for a in 0..lengths.len() {
            for b in (0..lengths.len()).filter(|b| lengths[*b] > lengths[a]) {
                assert_ne!(codes[b] & ((1 << lengths[a]) - 1), codes[a], "{a} begins {b}");
            }
        }
        let mut entries = vec![0; 1 << LENGTH_MAX];
        assert!(fill_decoder(&lengths, |symbol| symbol << 8, &mut entries));
        for (symbol, length) in lengths.iter().enumerate() {
            let bits = usize::from(codes[symbol]) | 0b1_1010_1010_1000_0000_0000 >> (13 - length) << length;
            assert_eq!(entries[bits & ((1 << LENGTH_MAX) - 1)], (symbol as u16) << 8 | u16::from(*length));
        }
        assert!(!fill_decoder(&[1, 2], |_| 0, &mut entries), "a gap");
        assert_eq!(super::codes(&[2, 1, 3, 3])[..4], [0b01, 0b0, 0b011, 0b111], "the first bit is the lowest");
    }
}
