//! The prefix found for a blocked request, kept for the next attempt to admit the request.
//!
//! The first waiting request is tried in every step until it has room. The prefix that it found is still the longest one if its
//! blocks were not evicted and the block after it was not published; both take O(1) to see, because the ancestors of a published
//! block are published.

use crate::blocks::prefix::Prefix;
use crate::cache::tree::PrefixTree;
use crate::names::ids::BlockHandle;
use crate::request::sequence::Sequence;

/// A request, and its number of hashes when it was tried.
type Attempt = (u64, usize);

/// The blocks found for the last blocked request.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    /// The attempt to admit with `blocks`; `None` if `blocks` are not kept here.
    attempt: Option<Attempt>,
    blocks: Prefix,
    /// Generations of the blocks of `generations_of`.
    generations: Vec<u32>,
    generations_of: Option<Attempt>,
}

impl Remembered {
    /// Moves the longest published prefix of a request to `found`, if it is known. Returns `false`, with `found` undefined, if not.
    pub fn recall(&mut self, seq: &Sequence, tree: &PrefixTree, found: &mut Prefix) -> bool {
        let known = self.attempt.take() == Some(attempt(seq));
        if known {
            let is_published = |at: usize| {
                let index = self.blocks.get(at).expect("one of the blocks found");
                tree.is_published(BlockHandle { index, generation: self.generations[at] })
            };
            let n = self.blocks.len();
            // Leaves are evicted first.
            let n = if n == 0 || is_published(n - 1) { n } else { partition_point(n, is_published) };
            if seq.cold.hashes.get(n).is_none_or(|next| !tree.contains(*next)) {
                self.blocks.truncate(n);
                self.generations.truncate(n);
                std::mem::swap(&mut self.blocks, found);
                return true;
            }
        }
        self.generations_of = None;
        false
    }

    /// Takes the prefix just found for a request that is not admitted now. `found` is undefined afterwards.
    pub fn remember(&mut self, seq: &Sequence, tree: &PrefixTree, found: &mut Prefix) {
        std::mem::swap(&mut self.blocks, found);
        let attempt = Some(attempt(seq));
        if self.generations_of != attempt {
            self.generations.clear();
            self.generations.extend(self.blocks.slots().map(|index| tree.pool().handle(index).generation));
        }
        self.generations_of = attempt;
        self.attempt = attempt;
    }
}

fn attempt(seq: &Sequence) -> Attempt {
    (seq.cold.view.arrival, seq.cold.hashes.len())
}

/// Returns the number of leading positions below `n` for which `is` holds; it holds for none behind them.
fn partition_point(n: usize, is: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low.midpoint(high);
        if is(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
