//! Hazard tables: probabilities of reuse by class and age, learned from the traffic.
//!
//! The `reuse` policy follows one block of each segment by its fingerprint, cached or not, and reports every return. Per class
//! and age bucket the table counts the blocks reaching the age (at risk) and the blocks returning before the next age
//! (events): a life table after Kaplan and Meier (1958). [`HazardTable::index`] derives from the hazards the worth of keeping
//! a segment.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::draw::mix;

/// Kinds of one turn. Ordered classes come in groups of this many, one group for each turn of a sequence.
pub(in crate::eviction) const KINDS: usize = 4;
/// Age buckets per doubling of the age.
const PER_DOUBLING: usize = 3;
/// Doublings of the age with buckets, from [`FIRST_AGE`] on.
const DOUBLINGS: usize = 10;
const BUCKETS: usize = PER_DOUBLING * DOUBLINGS;
/// Least age of the second bucket, as a share of the capacity.
const FIRST_AGE: f64 = 1.0 / 32.0;
/// Followed segments, at most; 4 MiB.
const FOLLOWED_MAX: usize = 1 << 16;
/// Least time for which a segment is followed, as a multiple of the capacity. What is known ends at this age, and blocks that are worth
/// keeping live to about the capacity or a few times that.
const FOLLOWED_FOR: usize = 2;
/// Segments of a class after which all counts of the class are halved, so that recent traffic counts more.
const REMEMBERED: f32 = 4096.0;
/// Segments between two computations of the indices, at first and at most. The interval doubles.
const LEARN_FIRST: u32 = 32;
const LEARN_EVERY: u32 = 512;
/// Weight of a prior, in observations.
const PRIOR: f32 = 16.0;
/// Returns added to both sides when the returns of a class are compared with what its prior expects.
const RATIO_PRIOR: f32 = 4.0;
/// Weight of the counts of the next bucket when returns are compared with the prior: a quarter for a doubling of the age. Chosen, not
/// derived: a half was nearly as good, an eighth was tried on few traces, and 1 was worse.
const NEARBY: f32 = 0.63;
/// Probability of a return in the prior of all classes.
const PRIOR_RETURN: f32 = 0.1;

/// A followed segment, cached or not.
#[derive(Clone, Copy, Debug)]
pub(in crate::eviction) struct Followed {
    fingerprint: u64,
    /// Clock when the segment fell idle.
    pub since: u32,
    pub class: u8,
    pub turn: u8,
    /// Requests known to have used the segment.
    pub uses: u16,
    /// `false` once the segment returned or is followed again.
    alive: bool,
}

/// Life table of a class: by age bucket, the segments reaching the age, and the segments returning before the next age.
#[derive(Clone, Debug)]
struct Class {
    events: [f32; BUCKETS],
    at_risk: [f32; BUCKETS],
}

/// Followed segments, and the life tables and indices learned from their returns.
#[derive(Debug)]
pub(in crate::eviction) struct HazardTable {
    /// First class without an order. The classes below come in sequences of groups of [`KINDS`]; the prior of a group is the
    /// group before in its sequence.
    unordered: usize,
    /// Classes of a sequence.
    sequence: usize,
    classes: Vec<Class>,
    /// Worth of keeping a segment, by class and age bucket (Gittins index).
    pub index: Vec<[f32; BUCKETS]>,
    /// Followed segments, oldest first.
    followed: VecDeque<Followed>,
    /// Number of the first entry of `followed`; the others are numbered on from there.
    base: u64,
    /// Numbers of followed segments by fingerprint.
    numbers: HashMap<u64, u64, ahash::RandomState>,
    /// For each bucket, the number of the first followed segment below the bucket's age.
    cursors: [u64; BUCKETS],
    capacity: u32,
    /// One segment in so many is followed, a power of two: as many as [`FOLLOWED_MAX`] allows if each segment is one block.
    follow_every: u64,
    /// Time, counted in blocks published or read.
    pub clock: u32,
    /// Least age of each bucket.
    ages: [u32; BUCKETS],
    observations: u32,
    learn_every: u32,
    /// Next class whose indices are to be computed.
    to_learn: usize,
    /// Hazards over all classes: the prior of unordered classes and of the first group of a sequence.
    prior_of_all: [f32; BUCKETS],
    /// Hazards of the group before: the prior of an ordered class.
    prior_of_turn: [f32; BUCKETS],
}

impl HazardTable {
    /// Creates a table of `classes` classes for a cache of `capacity` blocks. Classes from `unordered` on have no order; the ones
    /// below come in sequences of `sequence` classes.
    pub fn new(capacity: u32, classes: usize, unordered: usize, sequence: usize) -> Self {
        let mut ages = [0; BUCKETS];
        for (bucket, age) in ages.iter_mut().enumerate().skip(1) {
            let doublings = (bucket - 1) as f64 / PER_DOUBLING as f64;
            *age = (f64::from(capacity) * FIRST_AGE * doublings.exp2()).ceil() as u32;
        }
        let mut table = Self {
            unordered,
            sequence,
            classes: vec![Class { events: [0.0; BUCKETS], at_risk: [0.0; BUCKETS] }; classes],
            index: vec![[0.0; BUCKETS]; classes],
            followed: VecDeque::new(),
            base: 0,
            numbers: HashMap::default(),
            cursors: [0; BUCKETS],
            capacity,
            follow_every: 1 << (capacity as usize * FOLLOWED_FOR / FOLLOWED_MAX).max(1).ilog2(),
            clock: 0,
            ages,
            observations: 0,
            learn_every: LEARN_FIRST,
            to_learn: 0,
            prior_of_all: [0.0; BUCKETS],
            prior_of_turn: [0.0; BUCKETS],
        };
        table.begin_to_learn();
        while table.learn() {}
        table
    }

    /// Returns the age bucket of a segment idle since `since`.
    pub fn bucket(&self, since: u32) -> usize {
        let age = self.clock.wrapping_sub(since);
        self.ages.partition_point(|least| *least <= age) - 1
    }

    /// Follows the segment with this fingerprint from now on, if the segment is in the sample: chosen by chance, so that every class is
    /// in the sample by its share, and a prefix in constant use is sometimes. Returns `true` if the segment is followed.
    pub fn follow(&mut self, fingerprint: u64, class: u8, turn: u8, uses: u16) -> bool {
        if mix(fingerprint ^ u64::from(self.clock)) & (self.follow_every - 1) != 0 {
            return false;
        }
        self.advance();
        if let Some(old) = self.numbers.insert(fingerprint, self.base + self.followed.len() as u64) {
            self.followed[(old - self.base) as usize].alive = false;
        }
        self.followed.push_back(Followed { fingerprint, since: self.clock, class, turn, uses, alive: true });
        if self.followed.len() > FOLLOWED_MAX {
            self.forget();
        }
        self.observations += 1;
        if self.observations >= self.learn_every {
            self.observations = 0;
            self.learn_every = (self.learn_every * 2).min(LEARN_EVERY);
            self.begin_to_learn();
        }
        self.learn();
        true
    }

    /// Stops following the oldest segment.
    fn forget(&mut self) {
        let entry = self.followed.pop_front().expect("not empty");
        if entry.alive {
            self.numbers.remove(&entry.fingerprint);
        }
        self.base += 1;
        for cursor in &mut self.cursors {
            *cursor = (*cursor).max(self.base);
        }
    }

    /// Counts the segments in a further age bucket than at the last call.
    fn advance(&mut self) {
        for bucket in 0..BUCKETS {
            while let Some(entry) = self.followed.get((self.cursors[bucket] - self.base) as usize) {
                if self.clock.wrapping_sub(entry.since) < self.ages[bucket] {
                    break;
                }
                if entry.alive {
                    let class = &mut self.classes[usize::from(entry.class)];
                    class.at_risk[bucket] += 1.0;
                    if bucket == 0 && class.at_risk[0] > REMEMBERED {
                        class.at_risk.iter_mut().chain(&mut class.events).for_each(|count| *count *= 0.5);
                    }
                }
                self.cursors[bucket] += 1;
            }
        }
        let end = self.ages[BUCKETS - 1].saturating_mul(2);
        while self.followed.front().is_some_and(|entry| self.clock.wrapping_sub(entry.since) > end) {
            self.forget();
        }
    }

    /// Counts a return of the segment with this fingerprint and stops following it. Returns `None` if no followed segment has the
    /// fingerprint.
    pub fn returned(&mut self, fingerprint: u64) -> Option<Followed> {
        let at = self.numbers.remove(&fingerprint)?;
        self.advance();
        let at = at.checked_sub(self.base)? as usize;
        let entry = self.followed[at];
        self.followed[at].alive = false;
        let bucket = self.bucket(entry.since);
        self.classes[usize::from(entry.class)].events[bucket] += 1.0;
        Some(entry)
    }

    /// Begins to compute the indices from the life tables, one class for each segment followed from now on, so that no request
    /// waits for all classes.
    fn begin_to_learn(&mut self) {
        for bucket in 0..BUCKETS {
            let age = self.ages[bucket] as f32;
            let end = self.ages.get(bucket + 1).map_or(age * 2.0, |end| *end as f32);
            self.prior_of_all[bucket] = PRIOR_RETURN * (end - age) / (end + self.capacity as f32);
        }
        self.prior_of_all = hazards(&self.classes, &self.prior_of_all);
        self.to_learn = 0;
    }

    /// Computes the indices of the next class. Returns `false` if all classes are done.
    fn learn(&mut self) -> bool {
        let class = self.to_learn;
        if class == self.classes.len() {
            return false;
        }
        let ordered = class < self.unordered;
        if class.is_multiple_of(self.sequence) {
            self.prior_of_turn = self.prior_of_all;
        }
        if ordered && class.is_multiple_of(KINDS) {
            self.prior_of_turn = hazards(&self.classes[class..class + KINDS], &self.prior_of_turn);
        }
        let prior = if ordered { &self.prior_of_turn } else { &self.prior_of_all };
        self.index[class] = indices(&hazards(&self.classes[class..=class], prior), &self.ages);
        self.to_learn += 1;
        true
    }
}

/// Returns, for each age bucket, the probability of a return of the given classes. With few counts, mostly the prior, times the
/// ratio of the returns counted near the age to the ones expected by the prior: how often a class returns is known before exactly
/// when. Of ages far from all counts the class says nothing.
fn hazards(classes: &[Class], prior: &[f32; BUCKETS]) -> [f32; BUCKETS] {
    let expected = |class: &Class, bucket: usize| class.at_risk[bucket] * prior[bucket];
    let returns = nearby(|bucket| classes.iter().map(|class| class.events[bucket]).sum());
    let expected = nearby(|bucket| classes.iter().map(|class| expected(class, bucket)).sum());
    let ratio = |bucket: usize| (returns[bucket] + RATIO_PRIOR) / (expected[bucket] + RATIO_PRIOR);
    let mut hazards: [f32; BUCKETS] = std::array::from_fn(|bucket| (prior[bucket] * ratio(bucket)).min(1.0));
    for (bucket, hazard) in hazards.iter_mut().enumerate() {
        let events: f32 = classes.iter().map(|class| class.events[bucket]).sum();
        let at_risk: f32 = classes.iter().map(|class| class.at_risk[bucket]).sum();
        *hazard = ((events + PRIOR * *hazard) / (at_risk + PRIOR)).min(1.0);
    }
    hazards
}

/// Returns, for each age bucket, the sum of the counts of all buckets, less of far ones: [`NEARBY`] for each bucket between.
fn nearby(counts: impl Fn(usize) -> f32) -> [f32; BUCKETS] {
    let mut sums = [0.0; BUCKETS];
    let mut younger = 0.0;
    for (bucket, sum) in sums.iter_mut().enumerate() {
        *sum = younger + counts(bucket);
        younger = *sum * NEARBY;
    }
    let mut older = 0.0;
    for (bucket, sum) in sums.iter_mut().enumerate().rev() {
        *sum += older;
        older = (older + counts(bucket)) * NEARBY;
    }
    sums
}

/// Returns, for each age bucket, the best ratio of returns to time spent over all horizons.
fn indices(hazard: &[f32; BUCKETS], ages: &[u32; BUCKETS]) -> [f32; BUCKETS] {
    let mut out = [0.0; BUCKETS];
    for (from, out) in out.iter_mut().enumerate() {
        let (mut hits, mut time, mut alive) = (0.0, 0.0, 1.0);
        let mut best = (0.0, 1.0);
        for to in from..BUCKETS {
            let end = ages.get(to + 1).copied().unwrap_or(ages[to].saturating_mul(2));
            let width = (end - ages[to]).max(1) as f32;
            hits += alive * hazard[to];
            time += alive * (1.0 - hazard[to] * 0.5) * width;
            alive *= 1.0 - hazard[to];
            if hits * best.1 > best.0 * time {
                best = (hits, time);
            }
        }
        *out = best.0 / best.1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows `n` segments of a class, one a clock. Every other segment returns after `gap`. Returns the number followed.
    fn learn(table: &mut HazardTable, n: u32, gap: u32) -> usize {
        let mut followed = 0;
        for at in 0..n {
            table.clock += 1;
            followed += usize::from(table.follow(mix(at.into()), 0, 0, 1));
            if at >= gap && at % 2 == 0 {
                table.returned(mix((at - gap).into()));
            }
        }
        followed
    }

    #[test]
    fn a_large_cache_follows_a_sample_that_lasts_for_the_capacity() {
        let (capacity, gap) = (1 << 19, 3 << 18);
        let mut table = HazardTable::new(capacity, KINDS, KINDS, KINDS);
        let followed = learn(&mut table, 4 * capacity, gap);
        let expected = 4 * capacity as usize / 16;
        assert!(followed.abs_diff(expected) < expected / 20, "{followed} of {expected}");
        // Returns at one and a half times the capacity are seen, and segments about to return are worth more than others.
        let [young, due, late] = [0, gap - 1, 2 * gap].map(|age| table.index[0][table.bucket(table.clock - age)]);
        assert!(due > 2.0 * young && young > late, "{young} {due} {late}");
    }

    #[test]
    fn a_class_says_nothing_of_ages_far_from_all_of_its_segments() {
        let mut class = Class { events: [0.0; BUCKETS], at_risk: [0.0; BUCKETS] };
        class.at_risk[..8].fill(1000.0);
        let prior = [0.1; BUCKETS];
        let hazards = hazards(&[class], &prior);
        assert!(hazards[7] < 0.01 * prior[7], "no segment returned so far: {hazards:?}");
        assert!(hazards[BUCKETS - 1] > 0.9 * prior[BUCKETS - 1], "none was ever as old: {hazards:?}");
        assert!(hazards[7..].is_sorted(), "{hazards:?}");
    }

    #[test]
    fn a_small_cache_follows_every_segment() {
        let mut table = HazardTable::new(1000, KINDS, KINDS, KINDS);
        assert_eq!(learn(&mut table, 5000, 100), 5000);
    }
}
