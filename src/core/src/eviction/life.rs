//! Life tables of what may be used again, for the policy [`super::reuse`].

use std::collections::VecDeque;

use hashbrown::HashMap;

/// Age buckets per doubling, and doublings, from a share of the capacity on.
const PER_DOUBLING: usize = 3;
const DOUBLINGS: usize = 10;
const BUCKETS: usize = PER_DOUBLING * DOUBLINGS;
const FIRST_AGE: f64 = 1.0 / 32.0;
/// Segments followed: one for so many blocks of the cache, within these bounds.
const BLOCKS_PER_FOLLOWED: usize = 4;
const FOLLOWED_MIN: usize = 1 << 12;
const FOLLOWED_MAX: usize = 1 << 16;
/// Segments of a class after which its counts are halved: what was long ago counts less.
const REMEMBERED: f32 = 4096.0;
/// Segments between two computations of the indices: few at first, then more.
const LEARN_FIRST: u32 = 32;
const LEARN_EVERY: u32 = 512;
/// Counts that what a class leans on is worth, and the chance of a return that all lean on.
const PRIOR: f32 = 16.0;
const PRIOR_RETURN: f32 = 0.1;

/// A followed segment, in the cache or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    hash: u64,
    pub since: u32,
    pub class: u8,
    pub turn: u8,
    alive: bool,
}

/// The life table of a class: how many got to each age, and how many of these returned before the next.
#[derive(Clone, Debug)]
struct Class {
    events: [f32; BUCKETS],
    at_risk: [f32; BUCKETS],
}

/// What is followed, and what was learned from it.
#[derive(Debug)]
pub(super) struct Life {
    /// The classes from here on have no order; those before come in fours, each leaning on the ones before it.
    unordered: usize,
    classes: Vec<Class>,
    pub index: Vec<[f32; BUCKETS]>,
    /// What is followed, oldest first; the number of the first; numbers by hash.
    entries: VecDeque<Entry>,
    base: u64,
    by_hash: HashMap<u64, u64, std::hash::BuildHasherDefault<Identity>>,
    /// For each bucket the first that has not got to its age.
    cursors: [u64; BUCKETS],
    followed_max: usize,
    capacity: u32,
    pub clock: u32,
    /// The least age of each bucket.
    ages: [u32; BUCKETS],
    observations: u32,
    learn_every: u32,
    /// The next class whose indices are to be computed, and what it leans on: all, and the turn before.
    to_learn: usize,
    all: [f32; BUCKETS],
    before: [f32; BUCKETS],
}

impl Life {
    pub fn new(capacity: u32, classes: usize, unordered: usize) -> Self {
        let mut ages = [0; BUCKETS];
        for (bucket, age) in ages.iter_mut().enumerate().skip(1) {
            let doublings = (bucket - 1) as f64 / PER_DOUBLING as f64;
            *age = (f64::from(capacity) * FIRST_AGE * doublings.exp2()).ceil() as u32;
        }
        let mut life = Self {
            unordered,
            classes: vec![Class { events: [0.0; BUCKETS], at_risk: [0.0; BUCKETS] }; classes],
            index: vec![[0.0; BUCKETS]; classes],
            entries: VecDeque::new(),
            base: 0,
            by_hash: HashMap::default(),
            cursors: [0; BUCKETS],
            followed_max: (capacity as usize / BLOCKS_PER_FOLLOWED).clamp(FOLLOWED_MIN, FOLLOWED_MAX),
            capacity,
            clock: 0,
            ages,
            observations: 0,
            learn_every: LEARN_FIRST,
            to_learn: 0,
            all: [0.0; BUCKETS],
            before: [0.0; BUCKETS],
        };
        life.begin_to_learn();
        while life.learn() {}
        life
    }

    pub fn bucket(&self, since: u32) -> usize {
        let age = self.clock.wrapping_sub(since);
        self.ages.partition_point(|least| *least <= age) - 1
    }

    pub fn follow(&mut self, hash: u64, class: u8, turn: u8) {
        self.advance();
        if let Some(old) = self.by_hash.insert(hash, self.base + self.entries.len() as u64) {
            self.entries[(old - self.base) as usize].alive = false;
        }
        self.entries.push_back(Entry { hash, since: self.clock, class, turn, alive: true });
        if self.entries.len() > self.followed_max {
            self.forget();
        }
        self.observations += 1;
        if self.observations >= self.learn_every {
            self.observations = 0;
            self.learn_every = (self.learn_every * 2).min(LEARN_EVERY);
            self.begin_to_learn();
        }
        self.learn();
    }

    fn forget(&mut self) {
        let entry = self.entries.pop_front().expect("not empty");
        if entry.alive {
            self.by_hash.remove(&entry.hash);
        }
        self.base += 1;
        for cursor in &mut self.cursors {
            *cursor = (*cursor).max(self.base);
        }
    }

    /// Counts those that got to a further age since the last call.
    fn advance(&mut self) {
        for bucket in 0..BUCKETS {
            while let Some(entry) = self.entries.get((self.cursors[bucket] - self.base) as usize) {
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
        while self.entries.front().is_some_and(|entry| self.clock.wrapping_sub(entry.since) > end) {
            self.forget();
        }
    }

    /// The contents that are followed under this hash are used again: the turn they were of, and their age.
    pub fn returned(&mut self, hash: u64) -> Option<Entry> {
        let at = self.by_hash.remove(&hash)?;
        self.advance();
        let at = at.checked_sub(self.base)? as usize;
        let entry = self.entries[at];
        self.entries[at].alive = false;
        let bucket = self.bucket(entry.since);
        self.classes[usize::from(entry.class)].events[bucket] += 1.0;
        Some(entry)
    }

    /// Begins to compute the indices from the life tables. They are computed class by class, one with each segment that is
    /// followed from now on, so that no request waits for all of them.
    fn begin_to_learn(&mut self) {
        for bucket in 0..BUCKETS {
            let age = self.ages[bucket] as f32;
            let end = self.ages.get(bucket + 1).map_or(age * 2.0, |end| *end as f32);
            self.all[bucket] = PRIOR_RETURN * (end - age) / (end + self.capacity as f32);
        }
        self.all = hazards(&self.classes, &self.all);
        self.before = self.all;
        self.to_learn = 0;
    }

    /// Computes the indices of the next class. Returns whether there was one.
    fn learn(&mut self) -> bool {
        let class = self.to_learn;
        if class == self.classes.len() {
            return false;
        }
        let ordered = class < self.unordered;
        if ordered && class.is_multiple_of(super::reuse::KINDS) {
            self.before = hazards(&self.classes[class..class + super::reuse::KINDS], &self.before);
        }
        let prior = if ordered { &self.before } else { &self.all };
        self.index[class] = indices(&hazards(&self.classes[class..=class], prior), &self.ages);
        self.to_learn += 1;
        true
    }
}

/// For each age bucket the chance of a return, of what is of one of these classes; of few counts, mostly the one before.
fn hazards(classes: &[Class], prior: &[f32; BUCKETS]) -> [f32; BUCKETS] {
    let mut hazards = *prior;
    for (bucket, hazard) in hazards.iter_mut().enumerate() {
        let events: f32 = classes.iter().map(|class| class.events[bucket]).sum();
        let at_risk: f32 = classes.iter().map(|class| class.at_risk[bucket]).sum();
        *hazard = ((events + PRIOR * *hazard) / (at_risk + PRIOR)).min(1.0);
    }
    hazards
}

/// For each age bucket the best ratio, over all horizons, of returns to time spent.
fn indices(hazard: &[f32; BUCKETS], ages: &[u32; BUCKETS]) -> [f32; BUCKETS] {
    let mut out = [0.0; BUCKETS];
    for (from, out) in out.iter_mut().enumerate() {
        let (mut hits, mut time, mut alive) = (0.0, 0.0, 1.0);
        for to in from..BUCKETS {
            let end = ages.get(to + 1).copied().unwrap_or(ages[to].saturating_mul(2));
            let width = (end - ages[to]).max(1) as f32;
            hits += alive * hazard[to];
            time += alive * (1.0 - hazard[to] * 0.5) * width;
            alive *= 1.0 - hazard[to];
            *out = f32::max(*out, hits / time.max(f32::MIN_POSITIVE));
        }
    }
    out
}

/// Block hashes are mixed already.
#[derive(Default)]
struct Identity(u64);

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only block hashes are keys here");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
