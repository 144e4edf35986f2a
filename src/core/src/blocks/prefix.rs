//! What is found in the tree: a prefix, as runs of neighbouring slots, and runs of tokens at other places.

/// Blocks of a published prefix, first to last. Neighbours are kept as one run, so a long prefix in a tidy pool is a few numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// First slot and length of each run.
    runs: Vec<(u32, u32)>,
    len: usize,
}

impl Prefix {
    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the prefix has no block.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slot of the last block.
    pub fn last(&self) -> Option<u32> {
        self.runs.last().map(|(first, len)| first + len - 1)
    }

    /// Returns the slot of the `at`-th block, from 0.
    pub fn get(&self, at: usize) -> Option<u32> {
        self.runs(at).next().map(|(first, _)| first)
    }

    /// Forgets all blocks but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            let last = self.runs.last_mut().expect("a prefix with blocks has a run");
            let cut = (self.len - len).min(last.1 as usize);
            last.1 -= cut as u32;
            self.len -= cut;
            if last.1 == 0 {
                self.runs.pop();
            }
        }
    }

    /// Forgets all blocks and keeps the memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.len = 0;
    }

    /// Appends `len` neighbours from slot `first` on. `len` MUST NOT be 0.
    pub fn push(&mut self, first: u32, len: usize) {
        debug_assert!(len > 0);
        self.runs.push((first, len as u32));
        self.len += len;
    }

    /// Appends `len` neighbours from slot `first` on, which may continue the last run.
    pub(crate) fn append(&mut self, first: u32, len: usize) {
        match self.runs.last_mut() {
            Some((begin, n)) if *begin + *n == first => {
                *n += len as u32;
                self.len += len;
            }
            _ if len > 0 => self.push(first, len),
            _ => {}
        }
    }

    /// Returns the runs of the blocks after the first `skipped`: first slot and length of each.
    pub fn runs(&self, skipped: usize) -> impl Iterator<Item = (u32, usize)> + '_ {
        let mut left = skipped;
        self.runs.iter().filter_map(move |(first, len)| {
            let cut = left.min(*len as usize);
            left -= cut;
            (cut < *len as usize).then_some((first + cut as u32, *len as usize - cut))
        })
    }

    /// Iterates over the slots of all blocks.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|(first, len)| *first..first + len)
    }

    /// Returns the number of first blocks for which `is` is `true`. There MUST NOT be one after a block for which it is `false`.
    pub(crate) fn count_first(&self, is: impl Fn(u32) -> bool) -> usize {
        let mut after = self.len;
        for (first, len) in self.runs.iter().rev() {
            after -= *len as usize;
            if is(*first) {
                let (mut low, mut high) = (0, *len);
                while low + 1 < high {
                    let middle = low.midpoint(high);
                    if is(first + middle) { low = middle } else { high = middle }
                }
                return after + high as usize;
            }
        }
        0
    }
}

/// Tokens of a prompt, cached one after another in a prefix of the same namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedRun {
    /// Position of the first token in the prompt.
    pub at: u32,
    /// Position of the first token in the cached prefix.
    pub from: u32,
    /// Number of tokens.
    pub len: u32,
    /// Slot of the block with the last token.
    pub last: u32,
    /// `true` if the tokens before are equal too, in the prompt and in the cached prefix: the KV is that of the prompt.
    pub is_exact: bool,
}

impl CachedRun {
    /// Returns the position in the prompt after the run.
    pub fn end(&self) -> u32 {
        self.at + self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_and_skipped_across_runs() {
        let mut prefix = Prefix::default();
        prefix.push(10, 3);
        prefix.push(4, 1);
        prefix.push(20, 2);
        assert_eq!((prefix.len(), prefix.last()), (6, Some(21)));
        let slots: Vec<u32> = prefix.slots().collect();
        assert_eq!(slots, [10, 11, 12, 4, 20, 21]);
        for skipped in 0..=6 {
            let rest = prefix.runs(skipped).flat_map(|(first, len)| first..first + len as u32);
            assert!(rest.eq(slots[skipped..].iter().copied()), "{skipped} skipped");
            assert_eq!(prefix.count_first(|slot| slots[..skipped].contains(&slot)), skipped);
        }
        for len in (0..=6).rev() {
            assert_eq!(prefix.get(len), slots.get(len).copied());
            prefix.truncate(len);
            assert_eq!((prefix.get(len), prefix.len()), (None, len));
            assert!(prefix.slots().eq(slots[..len].iter().copied()), "{len} left");
        }
        prefix.clear();
        assert!(prefix.is_empty() && prefix.last().is_none());
    }
}
