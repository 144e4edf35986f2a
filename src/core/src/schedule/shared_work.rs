//! Blocks about to be published: the prompts of prefills and loads, by hash.
//!
//! A request whose next block another request computes or loads waits for that block instead of computing the block again
//! (`admission.rs`). Each prefill and each load is the *owner* of the prompt blocks that it has not published yet. [`SharedWork`] finds
//! the owner of a block, however many requests run.
//!
//! The hash of a block names all blocks before it, so two prompts with one block in common have all earlier ones in common too. Of a
//! long rest only each [`STRIDE`]-th block is noted, therefore: the owner of block 100 is found by block 64, and then compared at block 100. A step has tokens for few
//! prompts with a long rest, and so few are compared.

use hashbrown::HashTable;

use crate::blocks::hash::BlockHash;

/// Blocks of a long rest for each noted one. A shorter rest has all blocks noted.
const STRIDE: usize = 64;

/// A block noted for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Noted {
    hash: BlockHash,
    /// Slot of the owner.
    owner: usize,
}

/// The noted blocks of one stride. Iterated in no order: looked up by hash only.
#[derive(Debug, Default)]
struct Table(HashTable<Noted>);

/// The blocks about to be published, with their owners.
#[derive(Debug, Default)]
pub(crate) struct SharedWork {
    /// Blocks of owners with a short rest.
    each: Table,
    /// Every [`STRIDE`]-th block of owners with a long rest, by place in the prompt.
    strided: Table,
    /// Stride of each owner, by slot; 0 for no owner.
    strides: Vec<u8>,
}

/// Blocks of an owner's prompt, and the number of published ones.
pub(crate) type Rest<'a> = (&'a [BlockHash], usize);

impl SharedWork {
    /// Returns `true` if no block is about to be published.
    pub fn is_empty(&self) -> bool {
        self.each.0.is_empty() && self.strided.0.is_empty()
    }

    /// Returns `true` if a sequence is about to publish blocks.
    pub fn has(&self, owner: usize) -> bool {
        self.stride(owner) > 0
    }

    /// Makes the sequence in slot `owner` the owner of its blocks from the `published`-th on. The sequence MUST NOT be an owner.
    pub fn begin(&mut self, owner: usize, (hashes, published): Rest) {
        debug_assert!(!self.has(owner), "slot {owner} is an owner already");
        let rest = hashes.len() - published;
        if rest == 0 {
            return;
        }
        if self.strides.len() <= owner {
            self.strides.resize(owner + 1, 0);
        }
        let stride = if rest > STRIDE { STRIDE } else { 1 };
        self.strides[owner] = stride as u8;
        let table = self.table(stride);
        noted(published, hashes.len(), stride).for_each(|at| table.insert(Noted { hash: hashes[at], owner }));
    }

    /// Takes note that the sequence in slot `owner`, if an owner, has published its blocks from the `from`-th on, up to `published` of
    /// them.
    pub fn publish(&mut self, owner: usize, from: usize, (hashes, published): Rest) {
        let stride = self.stride(owner);
        if stride == 0 {
            return;
        }
        let n = hashes.len();
        let table = self.table(stride);
        // A noted block stands for the blocks up to the next one.
        noted(from, n, stride)
            .take_while(|at| (at + stride).min(n) <= published)
            .for_each(|at| table.remove(Noted { hash: hashes[at], owner }));
        if published >= n {
            self.strides[owner] = 0;
        }
    }

    /// Ends the ownership of all blocks by the sequence in slot `owner`. Returns `true` if it was an owner.
    pub fn end(&mut self, owner: usize, (hashes, published): Rest) -> bool {
        let was_owner = self.has(owner);
        self.publish(owner, published, (hashes, hashes.len()));
        was_owner
    }

    /// Returns the slot of the sequence about to publish block number `at` of a prompt with blocks `hashes`, the lowest slot if
    /// there are several. `rest` returns the blocks of an owner.
    pub fn owner<'a>(&self, hashes: &[BlockHash], at: usize, rest: impl Fn(usize) -> Rest<'a>) -> Option<usize> {
        let owns = |owner: &usize| {
            let (others, published) = rest(*owner);
            published <= at && others.get(at) == Some(&hashes[at])
        };
        let strided = self.strided.owners(hashes[at - at % STRIDE]);
        self.each.owners(hashes[at]).chain(strided).filter(owns).min()
    }

    fn stride(&self, owner: usize) -> usize {
        self.strides.get(owner).map_or(0, |stride| usize::from(*stride))
    }

    fn table(&mut self, stride: usize) -> &mut Table {
        if stride == 1 { &mut self.each } else { &mut self.strided }
    }

    /// Returns the number of noted blocks. For checks.
    pub fn notes(&self) -> usize {
        self.each.0.len() + self.strided.0.len()
    }

    /// Returns the number of blocks noted for the sequence in slot `owner`. For checks.
    pub fn notes_of(&self, owner: usize, (hashes, published): Rest) -> usize {
        match self.stride(owner) {
            0 => 0,
            stride => noted(published, hashes.len(), stride).count(),
        }
    }
}

/// Returns the noted blocks among those from `from` to `n`: every `stride`-th, from the one at or before `from` on.
fn noted(from: usize, n: usize, stride: usize) -> impl Iterator<Item = usize> {
    (from - from % stride..n).step_by(stride)
}

impl Table {
    fn insert(&mut self, noted: Noted) {
        self.0.insert_unique(noted.hash.fingerprint(), noted, |noted| noted.hash.fingerprint());
    }

    fn remove(&mut self, noted: Noted) {
        if let Ok(entry) = self.0.find_entry(noted.hash.fingerprint(), |other| *other == noted) {
            entry.remove();
        }
    }

    /// Returns the owners that a block is noted for.
    fn owners(&self, hash: BlockHash) -> impl Iterator<Item = usize> {
        self.0.iter_hash(hash.fingerprint()).filter(move |noted| noted.hash == hash).map(|noted| noted.owner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the hashes of a prompt of `n` blocks, the first `shared` of which are those of every prompt.
    fn prompt(number: u64, shared: usize, n: usize) -> Vec<BlockHash> {
        let hash = |at: usize| (if at < shared { 0 } else { number }, at as u128);
        let scatter = |(number, at): (u64, u128)| (u128::from(number) << 64 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..n).map(|at| BlockHash(scatter(hash(at)))).collect()
    }

    #[test]
    fn a_block_is_owned_until_its_last_owner_ends() {
        let (long, short) = (prompt(1, 500, 300), prompt(2, 500, 90));
        let mut published = [0, 0, 0, 40, 0, 0, 0, 0];
        let mut work = SharedWork::default();
        work.begin(7, (&long, 0));
        work.begin(3, (&short, 40));
        // 300 blocks by each 64th, and 50 blocks.
        assert_eq!(work.notes(), 5 + 50);
        let rest = |published: [usize; 8]| {
            let (long, short) = (&long, &short);
            move |owner: usize| -> Rest<'_> { (if owner == 7 { long } else { short }, published[owner]) }
        };
        let owner = |work: &SharedWork, at, published| work.owner(&long, at, rest(published));
        assert_eq!([0, 39, 40, 89, 90, 299].map(|at| owner(&work, at, published)), [7, 7, 3, 3, 7, 7].map(Some));
        published[7] = 63;
        work.publish(7, 0, (&long, 63));
        assert_eq!((owner(&work, 62, published), owner(&work, 63, published)), (Some(3), Some(3)));
        assert!(work.end(3, (&short, 40)) && !work.end(3, (&short, 40)) && !work.has(3));
        assert_eq!((owner(&work, 62, published), owner(&work, 63, published)), (None, Some(7)));
        published[7] = 300;
        work.publish(7, 63, (&long, 300));
        assert!(!work.has(7) && work.is_empty() && owner(&work, 299, published).is_none());
    }

    #[test]
    fn nothing_left_to_publish_makes_no_owner() {
        let mut work = SharedWork::default();
        work.begin(2, (&prompt(1, 0, 5), 5));
        assert!(work.is_empty() && !work.has(2));
    }

    #[test]
    fn hashes_with_one_fingerprint_are_distinguished() {
        let (one, other) = ([BlockHash(1 << 64 | 5)], [BlockHash(2 << 64 | 5)]);
        let mut work = SharedWork::default();
        work.begin(0, (&one, 0));
        let owner = |work: &SharedWork, hashes| work.owner(hashes, 0, |_| (&one, 0));
        assert_eq!((owner(&work, &one), owner(&work, &other)), (Some(0), None));
        assert!(work.end(0, (&one, 0)) && work.is_empty());
    }

    proptest! {
        /// Beginnings, publications and ends, with owners of any length and any common beginning, against a search through all
        /// owners.
        #[test]
        fn the_owner_is_the_one_that_a_search_finds(
            steps in prop::collection::vec((0usize..6, 0usize..200, 0usize..300, 0usize..300, 0u8..4), 1..60),
        ) {
            let mut work = SharedWork::default();
            let mut owners: Vec<Option<(Vec<BlockHash>, usize)>> = vec![None; 6];
            for (number, (slot, shared, n, at, what)) in steps.into_iter().enumerate() {
                match (&mut owners[slot], what) {
                    (none @ None, _) => {
                        let hashes = prompt(1 + number as u64, shared, n);
                        let published = at.min(n);
                        work.begin(slot, (&hashes, published));
                        *none = (published < n).then_some((hashes, published));
                    }
                    (Some((hashes, published)), 1..) => {
                        let from = std::mem::replace(published, (*published + at).min(hashes.len()));
                        work.publish(slot, from, (hashes, *published));
                        if *published == hashes.len() {
                            owners[slot] = None;
                        }
                    }
                    (some @ Some(_), 0) => {
                        let (hashes, published) = some.take().unwrap();
                        prop_assert!(work.end(slot, (&hashes, published)));
                    }
                }
                let rest = |owner: usize| -> Rest<'_> {
                    let (hashes, published) = owners[owner].as_ref().unwrap();
                    (hashes, *published)
                };
                let alive = || (0..6).filter(|slot| owners[*slot].is_some());
                prop_assert_eq!(work.notes(), alive().map(|slot| work.notes_of(slot, rest(slot))).sum::<usize>());
                let asked = prompt(1 + number as u64, shared, 300);
                for at in [at, shared, shared.saturating_sub(1), 63, 64, 128] {
                    let searched = alive().find(|slot| {
                        let (hashes, published) = rest(*slot);
                        published <= at && hashes.get(at) == Some(&asked[at])
                    });
                    prop_assert_eq!(work.owner(&asked, at, rest), searched);
                }
            }
        }
    }
}
