//! Hash table from fingerprints to blocks.
//!
//! Entries of 4 bytes lie in buckets of one cache line: a lookup touches one line of the table, and one more to read the
//! fingerprint of the block it found. An entry is the index of a block and, in the bits above, a tag: as many bits of the
//! fingerprint as fit, so that other blocks are hardly ever read. A full bucket counts each further block and the next bucket
//! takes the block in. A removal therefore leaves no trace, and the table never needs a clean-up.
//!
//! Clients choose the tokens and know the hash, so they could make thousands of blocks for one bucket. The bucket is therefore the fingerprint
//! times an odd number that each table draws at random (Dietzfelbinger et al., 1997). Where a block lies changes no decision.

use std::hash::{BuildHasher, RandomState};

use crate::blocks::block::ROOM_MAX;
use crate::blocks::prefetch::prefetch;

/// Words in a bucket, a cache line of 64 bytes. The last word counts overflowed blocks.
const WORDS: usize = 16;
const ENTRIES: usize = WORDS - 1;
/// Blocks per bucket when the table is full: half of its entries. A block that passed a full bucket stays behind it when the bucket has room
/// again, so a fuller table ages: with four fifths a look-up reads seven buckets once blocks were replaced at random ten times over.
const LOAD: usize = 8;
/// Blocks whose buckets are requested from memory ahead of the one inserted or removed: about as many lines as a core loads at a time.
const AHEAD: usize = 24;
/// Greatest capacity with bits left for a tag in an entry.
const BLOCKS_MAX: u32 = 1 << 30;

/// Indices of blocks by fingerprint. Of several blocks with one fingerprint, a rare event, only the lowest is found.
#[derive(Debug)]
pub(crate) struct BlockIndex {
    words: Vec<u32>,
    /// Words before the first cache line.
    skip: usize,
    buckets: usize,
    len: usize,
    /// Bits of an entry used for the index.
    index_bits: u32,
    /// Odd number that spreads fingerprints over the buckets.
    multiplier: u64,
}

impl BlockIndex {
    /// Creates an empty index for blocks below `capacity`.
    pub fn new(capacity: u32) -> Self {
        Self::spread_by(RandomState::new().hash_one(capacity), capacity)
    }

    /// Creates an empty index that spreads fingerprints by a number.
    fn spread_by(multiplier: u64, capacity: u32) -> Self {
        assert!(capacity <= BLOCKS_MAX, "{capacity} blocks are more than can be told apart");
        let index_bits = 32 - capacity.saturating_sub(1).leading_zeros();
        let mut index = Self { words: Vec::new(), skip: 0, buckets: 0, len: 0, index_bits, multiplier: multiplier | 1 };
        index.make_room((capacity.min(ROOM_MAX) as usize).div_ceil(LOAD).max(1));
        index
    }

    /// Returns the number of blocks in the index.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Finds a block by its fingerprint, of several the one with the lowest index, wherever they lie. `hash_of` returns the fingerprint of a
    /// block in the index.
    #[inline]
    pub fn find(&self, hash: u64, hash_of: impl Fn(u32) -> u64) -> Option<u32> {
        let tag = self.tag(hash);
        let mut at = self.home(hash);
        let mut found = u32::MAX;
        // Once around at most: in a small table every bucket may have overflowed.
        for _ in 0..self.buckets {
            let bucket = self.bucket(at);
            let mut tagged = matches(bucket, tag, u32::MAX << self.index_bits);
            while tagged != 0 {
                let index = bucket[tagged.trailing_zeros() as usize] ^ tag;
                if hash_of(index) == hash {
                    found = found.min(index);
                }
                tagged &= tagged - 1;
            }
            if bucket[ENTRIES] == 0 {
                break;
            }
            at = self.after(at);
        }
        (found < u32::MAX).then_some(found)
    }

    /// Adds a block. The block MUST NOT be in the index.
    pub fn insert(&mut self, hash: u64, index: u32, hash_of: impl Fn(u32) -> u64) {
        if self.len == self.buckets * LOAD {
            self.grow(hash_of);
        }
        self.place(hash, index);
    }

    /// Adds (fingerprint, block) pairs, as [`Self::insert`] does. The buckets are scattered over memory, so some are requested ahead.
    pub fn insert_all(
        &mut self,
        blocks: impl Iterator<Item = (u64, u32)> + Clone,
        hash_of: impl Fn(u32) -> u64 + Copy,
    ) {
        let mut ahead = self.begin_ahead(blocks.clone());
        for (hash, index) in blocks {
            ahead.next().into_iter().for_each(|(hash, _)| self.prefetch(hash));
            self.insert(hash, index, hash_of);
        }
    }

    /// Removes (fingerprint, block) pairs, as [`Self::remove`] does. The buckets are scattered over memory, so some are requested ahead.
    pub fn remove_all(&mut self, blocks: impl Iterator<Item = (u64, u32)> + Clone) {
        let mut ahead = self.begin_ahead(blocks.clone());
        for (hash, index) in blocks {
            ahead.next().into_iter().for_each(|(hash, _)| self.prefetch(hash));
            self.remove(hash, index);
        }
    }

    /// Loads the buckets of the first [`AHEAD`] blocks. Returns the others.
    #[inline]
    fn begin_ahead<I: Iterator<Item = (u64, u32)>>(&self, mut blocks: I) -> I {
        self.touch(blocks.by_ref().take(AHEAD).map(|(hash, _)| hash));
        blocks
    }

    fn place(&mut self, hash: u64, index: u32) {
        self.len += 1;
        let entry = self.tag(hash) | index;
        let mut at = self.home(hash);
        loop {
            let bucket = self.bucket_mut(at);
            let empty = matches(bucket, 0, u32::MAX);
            if empty != 0 {
                bucket[empty.trailing_zeros() as usize] = entry;
                return;
            }
            bucket[ENTRIES] += 1;
            at = self.after(at);
        }
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    /// Removes all blocks if `n` blocks, which leave, are all there are, and so many that this is faster than one by one. Returns `true`
    /// if so.
    pub fn clear_if_all_leave(&mut self, n: usize) -> bool {
        let clears = n == self.len && n >= self.buckets;
        if clears {
            self.clear();
        }
        clears
    }

    /// Removes a block. The block MUST be in the index.
    pub fn remove(&mut self, hash: u64, index: u32) {
        let entry = self.tag(hash) | index;
        let mut at = self.home(hash);
        for _ in 0..self.buckets {
            let bucket = self.bucket_mut(at);
            let here = matches(bucket, entry, u32::MAX);
            if here != 0 {
                bucket[here.trailing_zeros() as usize] = 0;
                self.len -= 1;
                return;
            }
            assert!(bucket[ENTRIES] > 0, "block {index} is not in the index");
            bucket[ENTRIES] -= 1;
            at = self.after(at);
        }
        unreachable!("block {index} is in no bucket");
    }

    /// Prefetches the buckets of some fingerprints, all at once, so that the next lookups hit the processor's caches.
    #[inline]
    pub fn touch(&self, hashes: impl Iterator<Item = u64>) {
        let sum = hashes.fold(0u32, |sum, hash| sum ^ self.words[self.skip + self.home(hash) * WORDS]);
        std::hint::black_box(sum);
    }

    /// Requests the bucket of a fingerprint from memory.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.bucket(self.home(hash)));
    }

    /// Returns a block that may have a fingerprint, without reading more than the fingerprint's bucket.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<u32> {
        let (tag, bucket) = (self.tag(hash), self.bucket(self.home(hash)));
        let tagged = matches(bucket, tag, u32::MAX << self.index_bits);
        (tagged != 0).then(|| bucket[tagged.trailing_zeros() as usize] ^ tag)
    }

    fn home(&self, hash: u64) -> usize {
        (((hash.wrapping_mul(self.multiplier) >> 32) * self.buckets as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets { 0 } else { at + 1 }
    }

    /// Returns the tag of a fingerprint. At least one bit is set, because an entry of 0 means none.
    fn tag(&self, hash: u64) -> u32 {
        let mask = u32::MAX.checked_shr(self.index_bits).unwrap_or(0);
        (hash as u32 & mask).max(1) << self.index_bits
    }

    #[inline]
    fn bucket(&self, at: usize) -> &[u32; WORDS] {
        self.words[self.skip + at * WORDS..].first_chunk().expect("there is a whole bucket")
    }

    #[inline]
    fn bucket_mut(&mut self, at: usize) -> &mut [u32; WORDS] {
        self.words[self.skip + at * WORDS..].first_chunk_mut().expect("there is a whole bucket")
    }

    fn make_room(&mut self, buckets: usize) {
        self.words = vec![0; (buckets + 1) * WORDS];
        trunkline_pages::advise(&self.words);
        // The first cache line. Any other offset is as correct, and slower.
        self.skip = self.words.as_ptr().align_offset(size_of::<[u32; WORDS]>()).min(WORDS);
        self.buckets = buckets;
        self.len = 0;
    }

    #[cold]
    fn grow(&mut self, hash_of: impl Fn(u32) -> u64) {
        let (words, skip, buckets) = (std::mem::take(&mut self.words), self.skip, self.buckets);
        self.make_room(buckets * 2);
        let mask = !(u32::MAX << self.index_bits);
        for bucket in words[skip..].chunks_exact(WORDS).take(buckets) {
            for entry in bucket[..ENTRIES].iter().filter(|entry| **entry != 0) {
                self.place(hash_of(entry & mask), entry & mask);
            }
        }
    }
}

/// Returns a bit set of the entries of a bucket equal to `entry` under `mask`.
#[inline]
fn matches(bucket: &[u32; WORDS], entry: u32, mask: u32) -> u32 {
    let mut bits = 0;
    for (i, word) in bucket.iter().enumerate() {
        bits |= u32::from((word ^ entry) & mask == 0) << i;
    }
    bits & !(1 << ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Few buckets and many equal tags, so that buckets overflow into each other and around the end.
        #[test]
        fn the_index_agrees_with_a_map(
            ops in prop::collection::vec((0u32..200, 0u8..3), 0..600), capacity in 1u32..200, spread in 1u64..40,
        ) {
            let hash = |index: u32| (u64::from(index) % spread).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(index) >> 3 << 20;
            let hash = |index: u32| hash(index) & !0xff | u64::from(index);
            let mut index = BlockIndex::new(capacity);
            let mut model: HashMap<u64, u32> = HashMap::default();
            for (block, op) in ops {
                let block = block % capacity;
                let hash_of = |index: u32| hash(index);
                prop_assert_eq!(index.find(hash(block), hash_of), model.get(&hash(block)).copied());
                match (op, model.contains_key(&hash(block))) {
                    (0 | 1, false) => {
                        model.insert(hash(block), block);
                        index.insert(hash(block), block, hash_of);
                    }
                    (2, true) => {
                        model.remove(&hash(block));
                        index.remove(hash(block), block);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for block in 0..capacity {
                prop_assert_eq!(index.find(hash(block), hash), model.get(&hash(block)).copied());
            }
            for block in model.into_values() {
                index.remove(hash(block), block);
            }
            prop_assert!(index.words.iter().all(|word| *word == 0), "nothing is left behind");
        }
    }

    #[test]
    fn the_index_grows_past_the_memory_reserved_at_first() {
        let hash = |index: u32| u64::from(index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut index = BlockIndex::new(1 << 20);
        index.make_room(1);
        for block in 0..10_000 {
            index.insert(hash(block), block, hash);
        }
        assert!((0..10_000).all(|block| index.find(hash(block), hash) == Some(block)));
        assert_eq!(index.find(hash(10_000), hash), None);
    }

    #[test]
    fn fingerprints_made_for_one_bucket_are_spread() {
        // Equal upper halves, then equal lower halves but for a few bits.
        for hash in [|index: u32| u64::from(index), |index: u32| u64::from(index) << 40] {
            let mut index = BlockIndex::spread_by(0xd6e8_feb8_6659_fd93, 1 << 16);
            for block in 0..40_000 {
                index.insert(hash(block), block, hash);
            }
            let overflowed: u32 = index.words[index.skip..].chunks_exact(WORDS).map(|bucket| bucket[ENTRIES]).sum();
            assert!(overflowed < 10_000, "{overflowed} of 40,000 blocks passed a full bucket");
        }
    }

    #[test]
    fn of_blocks_with_one_fingerprint_the_lowest_is_found_however_they_lie() {
        for multiplier in 0..50u64 {
            let mut index = BlockIndex::spread_by(multiplier.wrapping_mul(0x9e37_79b9_7f4a_7c15), 2000);
            // Forty blocks with each fingerprint: they overflow.
            let hash = |index: u32| u64::from(index % 50).wrapping_mul(0xd6e8_feb8_6659_fd93);
            (0..2000).rev().for_each(|block| index.insert(hash(block), block, hash));
            (0..1000).for_each(|block| index.remove(hash(block), block));
            assert!((0..50).all(|block| index.find(hash(block), hash) == Some(1000 + block)));
        }
    }

    #[test]
    fn many_blocks_at_once_enter_and_leave_like_one_by_one() {
        let hash = |index: u32| u64::from(index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in [1, 2, AHEAD as u32, AHEAD as u32 + 1, 1000] {
            let (mut index, mut one_by_one) = (BlockIndex::spread_by(5, 1000), BlockIndex::spread_by(5, 1000));
            index.insert_all((0..n).map(|block| (hash(block), block)), hash);
            (0..n).for_each(|block| one_by_one.insert(hash(block), block, hash));
            let rows = |index: &BlockIndex| index.words[index.skip..][..index.buckets * WORDS].to_vec();
            assert_eq!((index.len(), rows(&index)), (n as usize, rows(&one_by_one)));
            index.remove_all((n / 2..n).map(|block| (hash(block), block)));
            assert!((0..n).all(|block| index.find(hash(block), hash) == (block < n / 2).then_some(block)));
            index.remove_all((0..n / 2).map(|block| (hash(block), block)));
            assert!(index.words.iter().all(|word| *word == 0), "{n} blocks leave nothing behind");
        }
    }

    #[test]
    fn all_blocks_leave_at_once_only_if_they_fill_the_index() {
        let hash = |index: u32| u64::from(index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut index = BlockIndex::new(1000);
        for block in 0..1000 {
            index.insert(hash(block), block, hash);
        }
        assert!(!index.clear_if_all_leave(999) && index.len() == 1000);
        assert!(index.clear_if_all_leave(1000) && index.len() == 0);
        assert!((0..1000).all(|block| index.find(hash(block), hash).is_none()));
        index.insert(hash(7), 7, hash);
        assert!(!index.clear_if_all_leave(1), "one is struck out faster than the index is cleared");
        assert_eq!(index.find(hash(7), hash), Some(7));
    }

    #[test]
    fn a_full_index_does_not_age() {
        let n = 12_000u32;
        let hash = |number: u32| u64::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(number) << 40;
        let mut numbers: Vec<u32> = (0..n).collect();
        let mut index = BlockIndex::spread_by(0xd6e8_feb8_6659_fd93, n);
        (0..n).for_each(|block| index.insert(hash(block), block, |block| hash(numbers[block as usize])));
        // Each block is replaced ten times, in an order without a pattern.
        for number in n..n * 11 {
            let block = (hash(number) % u64::from(n)) as u32;
            index.remove(hash(numbers[block as usize]), block);
            numbers[block as usize] = number;
            index.place(hash(number), block);
        }
        let rows = || index.words[index.skip..].chunks_exact(WORDS).take(index.buckets);
        let full = rows().filter(|bucket| bucket[ENTRIES] > 0).count();
        assert!(full * 8 < index.buckets, "{full} of {} buckets make look-ups read the next one", index.buckets);
        assert!(
            (0..n)
                .all(|block| index.find(hash(numbers[block as usize]), |at| hash(numbers[at as usize])) == Some(block))
        );
    }

    #[test]
    fn the_ends_of_the_range_of_capacities_work() {
        for capacity in [1, 2, BLOCKS_MAX] {
            let mut index = BlockIndex::new(capacity);
            index.insert(0, capacity - 1, |_| 0);
            assert_eq!(index.find(0, |_| 0), Some(capacity - 1));
            index.remove(0, capacity - 1);
            assert_eq!(index.find(0, |_| 0), None);
        }
    }
}
