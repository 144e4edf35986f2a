//! A bounded memory of the fingerprints of evicted blocks; the oldest are forgotten first.
//!
//! Entries lie in buckets of one cache line, so that a call touches one line. An entry holds half of the fingerprint and the
//! number of the writing call, and is forgotten once as many calls followed as the memory has room for. Two
//! fingerprints that agree in bucket and half are taken for one (once in about 10^9 calls), and an overflowing bucket forgets its
//! oldest entry early (about one entry in fifty): both cost quality, never correctness.

use std::collections::HashMap;

use crate::blocks::prefetch::prefetch_at;

/// Entries of a bucket, a cache line of 64 bytes.
const ENTRIES: usize = 8;
/// Entries in use per bucket, on average.
const LOAD: u32 = 4;

/// Buckets that have memory from the start, 64 MiB; of more, each gets memory with its first entry.
const BUCKETS_MAX: usize = 1 << 20;

/// The half of a fingerprint and the time of writing; 0: no entry.
type Entry = u64;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket([Entry; ENTRIES]);

/// Buckets by number.
#[derive(Debug)]
enum Buckets {
    /// All buckets.
    Dense(Vec<Bucket>),
    /// Buckets that had an entry, of too many for all to have memory. Never iterated.
    Sparse(HashMap<u32, Bucket, ahash::RandomState>),
}

/// Fingerprints of about the last `capacity` evicted blocks, less the ones taken back.
#[derive(Debug)]
pub(in crate::eviction) struct Ghost {
    buckets: Buckets,
    /// Buckets that there are, with memory or without.
    n_buckets: u32,
    capacity: u32,
    /// Fingerprints remembered so far, modulo 2^32.
    clock: u32,
    /// Fingerprints to be remembered before the next call reads a bucket; the buckets are on the way from memory.
    pending: Vec<u64>,
}

impl Ghost {
    pub fn new(capacity: u32) -> Self {
        Self::with_dense(capacity, BUCKETS_MAX)
    }

    /// Creates an empty memory, whose buckets have memory from the start if there are at most `dense_max`.
    fn with_dense(capacity: u32, dense_max: usize) -> Self {
        let capacity = capacity.max(1);
        let n_buckets = capacity.div_ceil(LOAD);
        let buckets = match n_buckets as usize {
            n if n <= dense_max => Buckets::dense(n),
            _ => Buckets::Sparse(HashMap::default()),
        };
        Self { buckets, n_buckets, capacity, clock: 0, pending: Vec::new() }
    }

    /// Remembers some fingerprints, in order.
    pub fn insert_all(&mut self, hashes: impl Iterator<Item = u64>) {
        self.settle();
        for hash in hashes {
            self.request(hash);
            self.pending.push(hash);
        }
    }

    /// Remembers the pending fingerprints.
    fn settle(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.drain(..).for_each(|hash| self.insert(hash));
        self.pending = pending;
    }

    /// Remembers a fingerprint instead of the same fingerprint, of no entry, or of the oldest entry of the bucket.
    fn insert(&mut self, hash: u64) {
        self.clock = self.clock.wrapping_add(1);
        let (clock, tag, home) = (self.clock, tag(hash), self.home(hash));
        let bucket = self.buckets.with_memory(home);
        let replaced = bucket.0.iter().position(|entry| *entry >> 32 == tag).unwrap_or_else(|| {
            let age = |at: &usize| match bucket.0[*at] {
                0 => u32::MAX,
                entry => clock.wrapping_sub(entry as u32),
            };
            (0..ENTRIES).max_by_key(age).expect("a bucket has entries")
        });
        bucket.0[replaced] = tag << 32 | Entry::from(clock);
    }

    /// Requests the bucket of a fingerprint from memory.
    pub fn request(&self, hash: u64) {
        if let Some(bucket) = self.buckets.get(self.home(hash)) {
            prefetch_at(&raw const *bucket);
        }
    }

    /// Forgets a fingerprint. Returns the number of fingerprints remembered since, or `None` if this one was not.
    pub fn take(&mut self, hash: u64) -> Option<u32> {
        self.settle();
        let (clock, capacity, tag, home) = (self.clock, self.capacity, tag(hash), self.home(hash));
        let bucket = self.buckets.get_mut(home)?;
        let entry = bucket.0.iter_mut().find(|entry| **entry >> 32 == tag)?;
        Some(clock.wrapping_sub(std::mem::take(entry) as u32)).filter(|age| *age < capacity)
    }

    fn home(&self, hash: u64) -> u32 {
        (((hash >> 32) * u64::from(self.n_buckets)) >> 32) as u32
    }
}

impl Buckets {
    fn dense(n: usize) -> Self {
        let buckets = vec![Bucket::default(); n];
        trunkline_pages::advise(&buckets);
        Self::Dense(buckets)
    }

    fn get(&self, home: u32) -> Option<&Bucket> {
        match self {
            Self::Dense(buckets) => buckets.get(home as usize),
            // Where the bucket is shows only when the table has been read.
            Self::Sparse(_) => None,
        }
    }

    fn get_mut(&mut self, home: u32) -> Option<&mut Bucket> {
        match self {
            Self::Dense(buckets) => buckets.get_mut(home as usize),
            Self::Sparse(buckets) => buckets.get_mut(&home),
        }
    }

    /// Returns a bucket, which has memory from now on.
    fn with_memory(&mut self, home: u32) -> &mut Bucket {
        match self {
            Self::Dense(buckets) => &mut buckets[home as usize],
            Self::Sparse(buckets) => buckets.entry(home).or_default(),
        }
    }
}

/// Returns the half of a fingerprint for an entry. At least one bit is set, because an entry of 0 means none.
fn tag(hash: u64) -> u64 {
    (hash as u32).max(1).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_oldest_is_forgotten_and_taken_or_renewed_ones_are_not_forgotten_twice() {
        let mut ghost = Ghost::new(3);
        ghost.insert_all(1..=3);
        assert!(ghost.take(2).is_some());
        assert!(ghost.take(2).is_none());
        // The old place of 1 goes, its new one stays.
        ghost.insert_all([1, 4, 5].into_iter());
        assert!(ghost.take(3).is_none());
        assert!(ghost.take(1).is_some() && ghost.take(4).is_some() && ghost.take(5).is_some());
    }

    #[test]
    fn nearly_all_of_the_last_fingerprints_are_remembered_and_none_of_the_older_ones() {
        let hash = |i: u64| crate::draw::mix(i);
        let mut ghost = Ghost::new(10_000);
        ghost.insert_all((0..100_000).map(hash));
        assert_eq!((0..90_000).filter(|i| ghost.take(hash(*i)).is_some()).count(), 0);
        let kept = (90_000..100_000).filter(|i| ghost.take(hash(*i)).is_some()).count();
        assert!((9_700..10_000).contains(&kept), "{kept} of 10,000");
    }

    #[test]
    fn a_memory_of_any_size_grows_with_its_entries_and_answers_as_one_with_all_buckets() {
        let hash = |i: u64| crate::draw::mix(i);
        let mut ghosts = [0, usize::MAX].map(|dense_max| Ghost::with_dense(5_000, dense_max));
        for i in 0..40_000 {
            ghosts.iter_mut().for_each(|ghost| ghost.insert_all([hash(i)].into_iter()));
            let [sparse, dense] = ghosts.each_mut().map(|ghost| ghost.take(hash(i / 2 * 3 % (i + 1))));
            assert_eq!(sparse, dense, "after {i}");
        }
        let mut ghost = Ghost::new(u32::MAX);
        ghost.insert_all((0..100).map(hash));
        assert_eq!((0..200).filter(|i| ghost.take(hash(*i)).is_some()).count(), 100);
        assert!(matches!(ghost.buckets, Buckets::Sparse(buckets) if buckets.len() == 100));
    }

    proptest! {
        /// At most eight at a time, so that no bucket overflows.
        #[test]
        fn the_last_fingerprints_are_remembered(
            ops in prop::collection::vec((1u64..20, prop::bool::ANY), 0..200),
            capacity in 1u32..=8,
            dense_max in 0usize..=2,
        ) {
            let mut ghost = Ghost::with_dense(capacity, dense_max);
            // Every fingerprint ever put in, and whether the ghost still has it.
            let mut model: Vec<(u64, bool)> = Vec::new();
            for (hash, insert) in ops {
                let recent = model.len().saturating_sub(capacity as usize);
                let known = model[recent..].iter_mut().find(|(other, counts)| *other == hash && *counts);
                let was = known.is_some();
                known.into_iter().for_each(|(_, counts)| *counts = false);
                if insert {
                    ghost.insert_all([hash].into_iter());
                    model.push((hash, true));
                } else {
                    prop_assert_eq!(ghost.take(hash).is_some(), was);
                }
            }
        }
    }
}
