//! Floors of tenants: the cached blocks that a tenant keeps whatever others send.
//!
//! An eviction policy compares blocks and knows no tenants, so a flood of prompts evicts all that others have cached. A share of the
//! device is therefore divided by the number of tenants with cached blocks, and each has a floor of that size. If the
//! policy's victim would bring a tenant below its floor while the cache holds more than the floors of all, so that another is above its own,
//! the blocks go back to the policy as if just used, with the blocks before them, and the next victim is asked for. After
//! [`CHANCES`] in a row one leaves all the same: others may have nothing idle. A policy that evicts whole leaves has no floors.
//!
//! A floor is for traffic: it ends [`LIFE_NS`] after the tenant's last request. Blocks belong to the tenant whose request published them. With one
//! tenant nothing differs.

use std::collections::HashMap;

use super::PrefixTree;
use crate::names::ids::BlockHandle;

/// Victims that go back to the policy, at most, before one leaves. Each is a prefix that the policy then puts last, so more in a row only
/// come from a tenant with so many prompts cached and unused since the last turn of the cache.
const CHANCES: usize = 64;

/// Time after a tenant's last request for which its floor holds: that for which the prompt caches of Anthropic's API keep a prompt since its last
/// use.
const LIFE_NS: u64 = 300_000_000_000;

/// Blocks of each tenant in a tree.
#[derive(Debug, Default)]
pub(super) struct Floors {
    /// Blocks of all floors together; 0 for no floors.
    blocks: u32,
    now_ns: u64,
    /// Tenant whose request publishes blocks.
    publisher: u64,
    /// Tenant of the slots that `owners` does not reach: the first one.
    first: Option<u64>,
    owners: Vec<u64>,
    /// Tenants with published blocks. Never iterated, but for checks.
    holders: HashMap<u64, Holder, ahash::RandomState>,
    published: u32,
}

#[derive(Debug, Default)]
struct Holder {
    blocks: u32,
    /// Time of the last request.
    seen_ns: u64,
}

impl Floors {
    fn owner(&self, block: u32) -> u64 {
        self.owners.get(block as usize).copied().unwrap_or(self.first.unwrap_or(0))
    }

    /// Counts blocks published by the tenant that publishes.
    pub fn published(&mut self, chain: &[BlockHandle]) {
        if self.blocks == 0 {
            return;
        }
        let (tenant, first) = (self.publisher, *self.first.get_or_insert(self.publisher));
        for block in chain.iter().map(|block| block.index as usize) {
            if block >= self.owners.len() && tenant != first {
                self.owners.resize(block + 1, first);
            }
            if let Some(owner) = self.owners.get_mut(block) {
                *owner = tenant;
            }
        }
        self.count_in(tenant, chain.len() as u32);
    }

    /// Counts a block that left and is back, for its tenant.
    pub fn readopted(&mut self, block: u32) {
        if self.blocks > 0 {
            self.count_in(self.owner(block), 1);
        }
    }

    fn count_in(&mut self, tenant: u64, blocks: u32) {
        let holder = self.holders.entry(tenant).or_default();
        holder.blocks += blocks;
        holder.seen_ns = self.now_ns;
        self.published += blocks;
    }

    /// Counts out blocks that leave the tree.
    pub fn left(&mut self, blocks: &[u32]) {
        if self.blocks == 0 {
            return;
        }
        let mut rest = blocks;
        while let Some(first) = rest.first() {
            // Blocks of one prefix mostly have one owner.
            let owner = self.owner(*first);
            let n = rest.iter().take_while(|block| self.owner(**block) == owner).count();
            let holder = self.holders.get_mut(&owner).expect("a published block has an owner");
            holder.blocks -= n as u32;
            if holder.blocks == 0 {
                self.holders.remove(&owner);
            }
            rest = &rest[n..];
        }
        self.published -= blocks.len() as u32;
    }

    /// Takes note of a request that found blocks up to `last`.
    pub fn found(&mut self, last: u32) {
        if self.holders.len() > 1 {
            let owner = self.owner(last);
            self.see(owner);
        }
    }

    fn see(&mut self, tenant: u64) {
        if let Some(holder) = self.holders.get_mut(&tenant) {
            holder.seen_ns = self.now_ns;
        }
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        self.owners.clear();
        self.holders.clear();
        (self.first, self.published) = (None, 0);
    }

    /// Returns the number of blocks of a victim of the policy, the last ones of a prefix, that the floor of their tenant lets go.
    fn lets_go(&self, victim: &[u32]) -> usize {
        let tenants = self.holders.len() as u32;
        if tenants < 2 || self.published <= self.blocks {
            return victim.len();
        }
        let holder = &self.holders[&self.owner(victim[0])];
        let above = holder.blocks.saturating_sub(self.blocks / tenants) as usize;
        if self.now_ns - holder.seen_ns <= LIFE_NS { above.min(victim.len()) } else { victim.len() }
    }

    /// Panics unless the blocks of each tenant are those published.
    pub fn check(&self, published: impl Iterator<Item = u32>) {
        if self.blocks == 0 {
            return;
        }
        let mut blocks: HashMap<u64, u32> = HashMap::new();
        published.for_each(|block| *blocks.entry(self.owner(block)).or_default() += 1);
        assert_eq!(blocks.len(), self.holders.len(), "a tenant without blocks holds some");
        assert!(blocks.iter().all(|(tenant, n)| self.holders[tenant].blocks == *n), "blocks of tenants drifted");
        assert_eq!(blocks.values().sum::<u32>(), self.published);
    }
}

impl PrefixTree {
    /// Gives tenants floors of `blocks` blocks together; 0 for none. The tree MUST be empty.
    pub fn set_floors(&mut self, blocks: u32) {
        self.floors.blocks = blocks;
    }

    /// Sets the tenant of the blocks that are published next, for a request of it.
    pub fn publish_for(&mut self, tenant: u64) {
        self.floors.publisher = tenant;
        self.floors.see(tenant);
    }

    /// Sets the time for floors.
    #[inline]
    pub(super) fn advance_floors(&mut self, now_ns: u64) {
        self.floors.now_ns = now_ns;
    }

    /// Takes the next victim of the eviction policy out of it, one to `n` blocks, and appends it to `out`: one that no floor keeps, unless
    /// all those tried are kept.
    pub(super) fn pop_victim(&mut self, n: usize, out: &mut Vec<u32>) {
        let at = out.len();
        for _ in 0..CHANCES {
            let is_policys = self.eviction.pops_from_policy();
            self.eviction.pop_chain(n, &self.nodes, out);
            let going = if is_policys { self.floors.lets_go(&out[at..]) } else { out.len() - at };
            self.put_back(&out[at + going..]);
            out.truncate(at + going);
            if going > 0 {
                return;
            }
        }
        self.eviction.pop_chain(n, &self.nodes, out);
    }

    /// Gives the policy blocks of a victim back, each the parent of the one before, as if a request had just used them with the blocks before
    /// them.
    fn put_back(&mut self, victim: &[u32]) {
        let Some(first) = victim.last() else { return };
        let mut path = self.idle_before(*first);
        if !path.is_empty() {
            self.eviction.read(&path, &self.nodes);
        }
        path.extend(victim.iter().rev().map(|block| self.pool.handle(*block)));
        self.eviction.idle(&path, &self.nodes);
    }
}
