//! The prefixes that each engine is believed to cache, found for all engines at once.
//!
//! A prefix is a row of *marks*: hashes of itself up to some positions. Marks stand [`Marks::first_blocks`] apart at the beginning of a prompt and
//! then a sixteenth of their position, so a prompt of 100,000 tokens has a hundred of them, and the end of a prefix is known within 6 %. The
//! positions are the same for all prompts.
//!
//! Each engine has the marks of the prompts that it got, in the order of use, as far as their tokens fit its caches; the oldest go first. The marks
//! of a prompt are used last to first, so a mark is never older than the next one of its prefix: if an engine has a mark, it has all before it. So
//! the holders of a mark are holders of the marks before it, and bisection finds the places of a prompt where the number of holders changes.
//!
//! Hashes are cut to 64 bits. A collision costs a request its best engine and nothing else.

use std::collections::HashMap;

use trunkline_core::BlockHash;

/// Index that stands for no entry.
const NONE: u32 = u32::MAX;
/// Marks between one doubling of their distance and the next, and so the precision of a position.
const MARKS_PER_DOUBLING: usize = 16;

/// Hash of a prefix, and its length in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    hash: u64,
    tokens: u32,
    /// Tokens from the mark before.
    span: u32,
}

/// Positions of marks in prompts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// Blocks between the first marks.
    pub first_blocks: usize,
    pub block_size: u32,
}

impl Marks {
    /// Writes the marks of a prompt with these chained hashes to `marks`.
    pub fn of(self, hashes: &[BlockHash], marks: &mut Vec<Mark>) {
        marks.clear();
        let (mut at, mut step) = (0, self.first_blocks);
        while at + step <= hashes.len() {
            at += step;
            let (tokens, span) = (at as u32 * self.block_size, step as u32 * self.block_size);
            marks.push(Mark { hash: hashes[at - 1].0 as u64, tokens, span });
            if at >= 2 * MARKS_PER_DOUBLING * step {
                step *= 2;
            }
        }
    }
}

/// A mark that an engine has, between the one that it used after it and the one that it used before it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    mark: u32,
    newer: u32,
    older: u32,
}

/// A mark that an engine has.
#[derive(Clone, Copy, Debug)]
struct Holder {
    engine: u32,
    entry: u32,
}

/// A mark that some engine has.
#[derive(Clone, Debug, Default)]
struct Held {
    hash: u64,
    span: u32,
    /// In the order of their numbers; never empty for a mark in use.
    holders: Vec<Holder>,
}

/// What one engine has: the ends of its recency list, and the tokens of its marks.
#[derive(Clone, Copy, Debug)]
struct Recency {
    newest: u32,
    oldest: u32,
    tokens: u64,
    capacity: u64,
}

/// The marks of all engines. Less than 100 bytes for each mark of an engine.
#[derive(Debug)]
pub(super) struct Holders {
    /// Never iterated.
    by_hash: HashMap<u64, u32, ahash::RandomState>,
    marks: Vec<Held>,
    free_marks: Vec<u32>,
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    engines: Vec<Recency>,
}

impl Holders {
    /// Creates the empty sets of engines that cache so many tokens each.
    pub fn new(capacities: impl Iterator<Item = u64>) -> Self {
        let engine = |capacity| Recency { newest: NONE, oldest: NONE, tokens: 0, capacity };
        Self {
            by_hash: HashMap::default(),
            marks: Vec::new(),
            free_marks: Vec::new(),
            entries: Vec::new(),
            free_entries: Vec::new(),
            engines: capacities.map(engine).collect(),
        }
    }

    /// Returns the tokens that `engine` would have to give up for so many more.
    pub fn excess(&self, engine: usize, tokens: u64) -> u64 {
        let Recency { tokens: held, capacity, .. } = self.engines[engine];
        (held + tokens).saturating_sub(capacity).min(held)
    }

    /// Writes to `known`, which has a zero for each engine, the tokens of the longest prefix that each has.
    pub fn find(&self, prompt: &[Mark], known: &mut [u32]) {
        let held = |mark: &Mark| self.by_hash.get(&mark.hash).map(|at| &self.marks[*at as usize].holders);
        let mut n = prompt.partition_point(|mark| held(mark).is_some());
        while let Some(mark) = n.checked_sub(1).map(|last| &prompt[last]) {
            let Some(holders) = held(mark) else { return };
            for holder in holders {
                let known = &mut known[holder.engine as usize];
                *known = mark.tokens.max(*known);
            }
            n = prompt[..n].partition_point(|mark| held(mark).is_some_and(|more| more.len() > holders.len()));
        }
    }

    /// Notes that an engine got a prompt.
    pub fn add(&mut self, engine: usize, prompt: &[Mark]) {
        let capacity = self.engines[engine].capacity;
        let n = prompt.partition_point(|mark| u64::from(mark.tokens) <= capacity);
        for mark in prompt[..n].iter().rev() {
            self.touch(engine, mark);
        }
        while self.engines[engine].tokens > capacity {
            self.remove(engine, self.engines[engine].oldest);
        }
    }

    /// Empties the set of an engine.
    pub fn clear(&mut self, engine: usize) {
        while self.engines[engine].oldest != NONE {
            self.remove(engine, self.engines[engine].oldest);
        }
    }

    fn touch(&mut self, engine: usize, mark: &Mark) {
        let at = self.by_hash.get(&mark.hash).copied().unwrap_or_else(|| self.new_mark(mark));
        let holders = &mut self.marks[at as usize].holders;
        let entry = match holders.binary_search_by_key(&(engine as u32), |holder| holder.engine) {
            Ok(holder) => {
                let entry = holders[holder].entry;
                self.unlink(engine, entry);
                entry
            }
            Err(place) => {
                let entry = self.free_entries.pop().unwrap_or_else(|| {
                    self.entries.push(Entry { mark: NONE, newer: NONE, older: NONE });
                    self.entries.len() as u32 - 1
                });
                let held = &mut self.marks[at as usize];
                held.holders.insert(place, Holder { engine: engine as u32, entry });
                self.engines[engine].tokens += u64::from(held.span);
                entry
            }
        };
        let recency = &mut self.engines[engine];
        self.entries[entry as usize] = Entry { mark: at, newer: NONE, older: recency.newest };
        match std::mem::replace(&mut recency.newest, entry) {
            NONE => recency.oldest = entry,
            before => self.entries[before as usize].newer = entry,
        }
    }

    fn new_mark(&mut self, mark: &Mark) -> u32 {
        let at = self.free_marks.pop().unwrap_or_else(|| {
            self.marks.push(Held::default());
            self.marks.len() as u32 - 1
        });
        let held = &mut self.marks[at as usize];
        (held.hash, held.span) = (mark.hash, mark.span);
        self.by_hash.insert(mark.hash, at);
        at
    }

    fn remove(&mut self, engine: usize, entry: u32) {
        self.unlink(engine, entry);
        let at = self.entries[entry as usize].mark;
        let held = &mut self.marks[at as usize];
        let place = held.holders.binary_search_by_key(&(engine as u32), |holder| holder.engine);
        held.holders.remove(place.expect("the engine has the mark"));
        self.engines[engine].tokens -= u64::from(held.span);
        self.free_entries.push(entry);
        if held.holders.is_empty() {
            held.holders = Vec::new();
            self.by_hash.remove(&held.hash);
            self.free_marks.push(at);
        }
    }

    fn unlink(&mut self, engine: usize, entry: u32) {
        let Entry { newer, older, .. } = self.entries[entry as usize];
        match newer {
            NONE => self.engines[engine].newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.engines[engine].oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks of a prompt whose blocks are named by a path, each with its own span.
    fn marks(path: &[u64]) -> Vec<Mark> {
        let mut tokens = 0;
        let mark = |(at, hash): (usize, &u64)| {
            let span = 16 * (1 + at as u32 / 2);
            tokens += span;
            Mark { hash: *hash, tokens, span }
        };
        path.iter().enumerate().map(mark).collect()
    }

    /// The literal model: for each engine its marks in the order of use, oldest first.
    struct Naive(Vec<Vec<Mark>>, u64);

    impl Naive {
        fn tokens(&self, engine: usize) -> u64 {
            self.0[engine].iter().map(|mark| u64::from(mark.span)).sum()
        }

        fn add(&mut self, engine: usize, prompt: &[Mark]) {
            for mark in prompt.iter().filter(|mark| u64::from(mark.tokens) <= self.1).rev() {
                self.0[engine].retain(|known| known.hash != mark.hash);
                self.0[engine].push(*mark);
            }
            while self.tokens(engine) > self.1 {
                self.0[engine].remove(0);
            }
        }

        fn known(&self, engine: usize, prompt: &[Mark]) -> u32 {
            let has = |mark: &&Mark| self.0[engine].iter().any(|known| known.hash == mark.hash);
            prompt.iter().take_while(has).last().map_or(0, |mark| mark.tokens)
        }
    }

    #[test]
    fn every_engine_knows_what_it_got_last() {
        let mut state = 7u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for capacity in [16, 100, 1_000] {
            let mut holders = Holders::new([capacity; 4].into_iter());
            let mut naive = Naive(vec![Vec::new(); 4], capacity);
            for round in 0..3_000 {
                // A path in a binary tree of depth 6: node numbers as hashes, so that prefixes are shared as hashes are.
                let mut node = 1;
                let path: Vec<u64> = (0..1 + below(6))
                    .map(|_| {
                        node = 2 * node + below(2);
                        node
                    })
                    .collect();
                let prompt = marks(&path);
                let mut known = vec![0; 4];
                holders.find(&prompt, &mut known);
                assert_eq!(known, (0..4).map(|engine| naive.known(engine, &prompt)).collect::<Vec<_>>());
                let engine = below(4) as usize;
                let excess = (naive.tokens(engine) + 50).saturating_sub(capacity).min(naive.tokens(engine));
                assert_eq!(holders.excess(engine, 50), excess);
                holders.add(engine, &prompt);
                naive.add(engine, &prompt);
                if round % 500 == 499 {
                    holders.clear(engine);
                    naive.0[engine].clear();
                }
                let held = naive.0.iter().flatten().count();
                assert_eq!(holders.entries.len() - holders.free_entries.len(), held);
                assert!(holders.by_hash.len() <= held);
            }
        }
    }

    #[test]
    fn marks_are_near_at_first_and_then_a_sixteenth_of_their_position_apart() {
        let hashes: Vec<BlockHash> = (0..8_000).map(BlockHash).collect();
        let rule = Marks { first_blocks: 8, block_size: 16 };
        let (mut whole, mut part) = (Vec::new(), Vec::new());
        rule.of(&hashes, &mut whole);
        rule.of(&hashes[..5_000], &mut part);
        assert_eq!(part, whole[..part.len()], "the places do not depend on the length");
        assert!(whole[..32].iter().all(|mark| mark.span == 128) && whole.len() < 120, "{}", whole.len());
        assert!(whole.iter().all(|mark| mark.span <= 128.max(mark.tokens / 16)));
        assert_eq!(whole[40].hash, u64::from(whole[40].tokens) / 16 - 1);
        assert!(whole[whole.len() - 1].tokens > 8_000 * 16 * 15 / 16);
    }
}
