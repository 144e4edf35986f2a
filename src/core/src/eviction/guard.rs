//! Guard of the `reuse` policy: the order to evict in, by what LRU and S3-FIFO would have found.
//!
//! The learned order is to find nearly all of what the better of LRU and S3-FIFO finds, on any traffic. Two rules lead back to the
//! better of both, as their [`Shadow`] directories show it:
//!
//! * **Fallen behind**: the cache found less than [`SHARE`] of the blocks, by more than chance explains. The differences of single
//!   requests give the standard deviation of the sum; the bound is [`DEVIATIONS`] of them. The learned order returns once the sums
//!   are close again (a conservative bandit: Wu et al., ICML 2016).
//! * **Nothing to gain**: of the blocks ever seen, the better of both finds nearly all. No order could find more, so leaving it
//!   would be a risk without a prize. This is so in every cache at first, before anything was evicted and returned.

use super::shadow::{Found, Shadow};

/// Share of the blocks found by the better of both to be found at least, and the share of all returning blocks above which nothing
/// is to be gained. The goal is 98 %; half of the rest is for the time until a loss is noticed.
const SHARE: f64 = 0.99;
/// Standard deviations beyond chance. The sums are looked at after every request, so chance exceeds two too often; on made traces two
/// did about as well.
const DEVIATIONS: f64 = 3.0;
/// Blocks used, in capacities, after which past counts weigh half. Counts without an end were compared, with about the same result.
const REMEMBERED: u64 = 16;

/// An order to evict in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Learned,
    Lru,
    S3Fifo,
}

/// Blocks found by LRU or S3-FIFO, and the spread of the differences.
#[derive(Clone, Copy, Debug, Default)]
struct Rival {
    found: f64,
    /// Sum of the squares of the differences to the cache, request by request.
    squares: f64,
}

impl Rival {
    fn add(&mut self, found: u32, in_cache: u32) {
        self.found += f64::from(found);
        self.squares += (f64::from(found) - f64::from(in_cache)).powi(2);
    }

    /// Returns `true` if the cache has found too little beside this one.
    fn is_ahead_of(&self, cache: f64) -> bool {
        self.found * SHARE - cache > DEVIATIONS * self.squares.sqrt()
    }

    fn forget_half(&mut self) {
        self.found *= 0.5;
        self.squares *= 0.25;
    }
}

/// Shadow directories, and the counts of blocks found.
#[derive(Debug)]
pub(super) struct Guard {
    shadow: Shadow,
    cache: f64,
    lru: Rival,
    s3fifo: Rival,
    seen: f64,
    /// Blocks used since past counts were halved, and the number to halve them at.
    used: u64,
    halve_at: u64,
    order: Order,
}

impl Guard {
    pub fn new(capacity: u32) -> Self {
        Self {
            shadow: Shadow::new(capacity),
            cache: 0.0,
            lru: Rival::default(),
            s3fifo: Rival::default(),
            seen: 0.0,
            used: 0,
            halve_at: REMEMBERED * u64::from(capacity),
            order: Order::Lru,
        }
    }

    /// Returns the order to evict in.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Forgets all blocks. What was found stays.
    pub fn clear(&mut self) {
        self.shadow.clear();
    }

    /// Takes note of a chain of `len` blocks falling idle: fingerprints, first to last, each with `true` if the block was found in
    /// the cache. `idle` is the number of idle blocks afterwards.
    pub fn used(&mut self, len: usize, chain: impl Iterator<Item = (u64, bool)>, idle: u32) {
        let Found { cache, lru, s3fifo, seen } = self.shadow.used(chain, idle);
        self.cache += f64::from(cache);
        self.lru.add(lru, cache);
        self.s3fifo.add(s3fifo, cache);
        self.seen += f64::from(seen);
        self.used += len as u64;
        if self.used >= self.halve_at {
            self.used = 0;
            self.cache *= 0.5;
            self.seen *= 0.5;
            self.lru.forget_half();
            self.s3fifo.forget_half();
        }
        self.order = self.choose();
    }

    fn choose(&self) -> Order {
        let better = if self.lru.found >= self.s3fifo.found { Order::Lru } else { Order::S3Fifo };
        let behind = self.lru.is_ahead_of(self.cache) || self.s3fifo.is_ahead_of(self.cache);
        let nothing_to_gain = self.lru.found.max(self.s3fifo.found) >= self.seen * SHARE;
        if behind || nothing_to_gain { better } else { Order::Learned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::mix;

    /// Blocks of a prompt.
    const PROMPT: u64 = 4;

    /// Lets a guard of a cache of 40 idle blocks see `n` prompts asked for in a circle, from prompt `from` on. The cache finds the
    /// first `kept` of these in every round but the first.
    fn circle(guard: &mut Guard, from: u64, n: u64, rounds: u64, kept: u64) -> Order {
        for at in 0..n * rounds {
            let prompt = at % n;
            let in_cache = at >= n && prompt < kept;
            let chain = (0..PROMPT).map(|block| (mix((from + prompt) * PROMPT + block), in_cache));
            guard.used(PROMPT as usize, chain, 40);
        }
        guard.order()
    }

    #[test]
    fn where_lru_finds_all_returns_nothing_is_to_be_gained() {
        let mut guard = Guard::new(40);
        assert_eq!(guard.order(), Order::Lru);
        assert_eq!(circle(&mut guard, 0, 8, 9, 8), Order::Lru);
    }

    #[test]
    fn where_lru_misses_returns_the_learned_order_has_its_chance() {
        let mut guard = Guard::new(40);
        assert_eq!(circle(&mut guard, 0, 20, 9, 9), Order::Learned);
    }

    #[test]
    fn a_cache_behind_follows_the_better_one_until_it_is_close_again() {
        let mut guard = Guard::new(40);
        assert_eq!(circle(&mut guard, 0, 20, 3, 9), Order::Learned);
        assert_ne!(circle(&mut guard, 100, 5, 30, 0), Order::Learned, "both find 29 rounds, the cache none");
        assert_eq!(circle(&mut guard, 200, 20, 40, 9), Order::Learned);
    }

    #[test]
    fn a_difference_within_chance_changes_nothing() {
        let mut rival = Rival::default();
        (0..5).for_each(|_| rival.add(4, 0));
        assert!(!rival.is_ahead_of(0.0), "20 blocks more, and a standard deviation of 9");
        (0..10).for_each(|_| rival.add(4, 0));
        assert!(rival.is_ahead_of(0.0), "60 blocks more, and a standard deviation of 15");
    }
}
