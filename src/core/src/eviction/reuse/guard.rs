//! Guard of the `reuse` policy: the order to evict in, by what LRU and S3-FIFO would have found.
//!
//! The learned order is to find nearly all of what the better of LRU and S3-FIFO finds, on any traffic. [`Shadow`] directories
//! show the blocks found by both, and the ones held there and missing in the cache. Two rules lead back to one of both:
//!
//! * **Too much at stake**: the blocks found by a directory and not by the cache so far, and the missing blocks expected to be found
//!   yet, exceed a budget: one part in a hundred of the blocks found, and a fiftieth of the cache for a beginning. Blocks found by the
//!   cache alone add to the budget: the learned order risks its earnings. Beyond the budget the cache evicts only blocks that the
//!   directory does not hold either, so the stake no longer grows. A loss is thus limited before any shows (a conservative bandit: Wu
//!   et al., ICML 2016).
//! * **Nothing to gain**: of the blocks ever seen, the better of both finds nearly all. No order could find more, so leaving it
//!   would be a risk without a prize. This is so in every cache at first, before anything was evicted and returned.

use super::shadow::{Found, Gap, LRU, RIVALS, S3FIFO, Shadow, Used};

/// Share of the blocks found by the better of both to be found at least, and the share of all returning blocks above which nothing
/// is to be gained. The goal is 98 %; half of the rest is for the time until a loss is noticed.
const SHARE: f64 = 0.99;
/// Part of the cache to be at stake, at most, before anything was found, and the weight of the prior by which all missing blocks are
/// found later, in caches of blocks. A cache that found a block in a few caches of blocks asked for keeps 98 % with this. Chosen, not
/// derived: a hundredth loses much of what there is to gain in small caches, a tenth loses more where the better policy changes.
const AT_STAKE: f64 = 0.02;
/// Blocks used, in capacities, after which past counts weigh half. Counts without an end were compared, with about the same result.
const REMEMBERED: u64 = 16;

/// An order to evict in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::eviction) enum Order {
    Learned,
    Lru,
    S3Fifo,
}

/// Shadow directories, and the counts of blocks found.
#[derive(Debug)]
pub(in crate::eviction) struct Guard {
    pub shadow: Shadow,
    cache: f64,
    /// Blocks found by LRU and by S3-FIFO.
    found: [f64; RIVALS],
    seen: f64,
    /// Blocks used since past counts were halved, and the number to halve them at.
    used: u64,
    halve_at: u64,
    order: Order,
    /// Blocks followed in a full cache.
    followed: f64,
}

impl Guard {
    pub fn new(capacity: u32) -> Self {
        Self {
            shadow: Shadow::new(capacity),
            cache: 0.0,
            found: [0.0; RIVALS],
            seen: 0.0,
            used: 0,
            halve_at: REMEMBERED * u64::from(capacity),
            order: Order::Lru,
            followed: Shadow::followed(capacity).into(),
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

    /// Takes note of a chain of `len` blocks falling idle, first to last. `idle` is the number of idle blocks afterwards.
    pub fn used(&mut self, len: usize, chain: impl Iterator<Item = Used>, idle: u32) {
        let Found { cache, lru, s3fifo, seen } = self.shadow.used(chain, idle);
        self.cache += f64::from(cache);
        self.found[LRU] += f64::from(lru);
        self.found[S3FIFO] += f64::from(s3fifo);
        self.seen += f64::from(seen);
        self.used += len as u64;
        if self.used >= self.halve_at {
            self.used = 0;
            self.cache *= 0.5;
            self.seen *= 0.5;
            self.found.iter_mut().for_each(|found| *found *= 0.5);
            for gap in &mut self.shadow.gaps {
                (gap.found, gap.unused) = (gap.found * 0.5, gap.unused * 0.5);
            }
        }
        self.order = self.choose();
    }

    /// Returns the blocks at stake: found by a directory and not by the cache so far, and expected to be.
    fn at_stake(&self, rival: usize) -> f64 {
        let Gap { missing, found, unused } = self.shadow.gaps[rival];
        let prior = AT_STAKE * self.followed;
        let share = (found + prior) / (found + unused + prior);
        self.found[rival] - self.cache + share * f64::from(missing)
    }

    fn choose(&self) -> Order {
        let most = self.found[LRU].max(self.found[S3FIFO]);
        if most >= self.seen * SHARE {
            return if self.found[LRU] >= self.found[S3FIFO] { Order::Lru } else { Order::S3Fifo };
        }
        let [lru, s3fifo] = [LRU, S3FIFO].map(|rival| self.at_stake(rival));
        if lru.max(s3fifo) <= (1.0 - SHARE) * most + AT_STAKE * self.followed {
            Order::Learned
        } else if lru >= s3fifo {
            Order::Lru
        } else {
            Order::S3Fifo
        }
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
            let ids = (0..PROMPT).map(|block| (from + prompt) * PROMPT + block);
            for id in ids.clone().filter(|_| at >= n) {
                if in_cache { guard.shadow.read(id as u32) } else { guard.shadow.evicted(id as u32) }
            }
            let chain = ids.map(|id| Used { fingerprint: mix(id), in_cache, block: id as u32 });
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
    fn missing_blocks_are_at_stake_by_the_share_that_was_found_before() {
        let mut guard = Guard::new(40);
        circle(&mut guard, 0, 10, 1, 0);
        assert_eq!(guard.at_stake(LRU), 0.0);
        (32..40).for_each(|block| guard.shadow.evicted(block));
        assert_eq!(guard.at_stake(LRU), 8.0, "nothing is known of missing blocks, so all count");
        circle(&mut guard, 100, 10, 1, 0);
        assert_eq!(guard.at_stake(LRU), 0.0, "LRU evicted them too, unused");
        (432..440).for_each(|block| guard.shadow.evicted(block));
        let prior = 0.8;
        let none_found = 8.0 * (prior / (8.0 + prior));
        assert_eq!(
            guard.at_stake(LRU),
            none_found,
            "of eight none was found, and a fiftieth of the cache counts as found"
        );
        circle(&mut guard, 109, 1, 1, 0);
        let four_found = 4.0 + 4.0 * ((4.0 + prior) / (12.0 + prior));
        assert_eq!(guard.at_stake(LRU), four_found, "four were found, four are missing");
    }

    #[test]
    fn the_learned_order_ends_before_the_missing_blocks_are_found_unless_it_has_earned_them() {
        let mut guard = Guard::new(40);
        assert_eq!(circle(&mut guard, 0, 20, 9, 9), Order::Learned);
        let held = || (0..80).map(|block| 79 - block);
        held().for_each(|block| guard.shadow.evicted(block));
        assert_eq!(guard.choose(), Order::Learned, "the cache found more by far than it lacks");
        guard.cache = guard.found[S3FIFO];
        assert_ne!(guard.choose(), Order::Learned);
    }
}
