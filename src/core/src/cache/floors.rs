//! Floors of tenants: the cached blocks that a tenant keeps whatever others send.
//!
//! An eviction policy compares blocks and knows no tenants, so a flood of prompts evicts all that others have cached. A share of the
//! device, and of each tier, is therefore divided by the number of tenants with cached blocks there, and each has a floor of that size. If the
//! policy's victim would bring a tenant below its floor while the cache holds more than the floors of all, so that another is above its own,
//! the blocks go back to the policy as if just used, on the device with the blocks before them, and the next victim is asked for. After some in a row one
//! leaves all the same: others may have nothing idle. A policy that evicts whole leaves has no floors.
//!
//! A floor is for traffic: it ends [`LIFE_NS`] after the tenant's last request. Blocks belong to the tenant whose request published them, in a tier too. With
//! one tenant nothing differs. Blocks found in the storage of a tier belong to [`NOBODY`], until a request finds them.

use std::collections::HashMap;

use crate::names::ids::BlockHandle;

/// Victims that go back to the policy, at most, before one leaves the device. Each is a prefix that the policy then puts last, so more in a row only
/// come from a tenant with so many prompts cached and unused since the last turn of the cache. In a tier each is one block, and what a victim leaves of the
/// number is for later ones: so all that a floor keeps may go back in a row, and a block that comes costs no more.
pub(super) const CHANCES: usize = 64;

/// Owner of blocks whose tenant is not known. It has no floor.
pub(crate) const NOBODY: u64 = u64::MAX;

/// Time after a tenant's last request for which its floor holds: that for which the prompt caches of Anthropic's API keep a prompt since its last
/// use.
const LIFE_NS: u64 = 300_000_000_000;

/// Blocks of each tenant in a tree.
#[derive(Debug, Default)]
pub(crate) struct Floors {
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
    /// Sets the number of blocks of all floors together; 0 for none, from the beginning on.
    pub fn set(&mut self, blocks: u32) {
        self.blocks = blocks;
    }

    /// Sets the time. Times MUST NOT go back.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Sets the tenant of the blocks that are published next.
    pub fn publish_for(&mut self, tenant: u64) {
        self.publisher = tenant;
    }

    /// Returns the tenant of a block.
    pub fn owner(&self, block: u32) -> u64 {
        self.owners.get(block as usize).copied().unwrap_or(self.first.unwrap_or(NOBODY))
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

    /// Takes note of a request of a tenant that found a block.
    pub fn found_by(&mut self, block: u32, tenant: u64) {
        let owner = self.owner(block);
        if self.blocks > 0 && owner == NOBODY && tenant != NOBODY {
            self.left(&[block]);
            self.publish_for(tenant);
            self.published(&[BlockHandle { index: block, generation: 0 }]);
        }
        self.see(owner);
    }

    /// Takes note of a request of a tenant.
    pub fn see(&mut self, tenant: u64) {
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
    pub fn lets_go(&self, victim: &[u32]) -> usize {
        if self.holders.len() < 2 || self.published <= self.blocks {
            return victim.len();
        }
        let (owner, has_others) = (self.owner(victim[0]), self.holders.contains_key(&NOBODY));
        let tenants = self.holders.len() as u32 - u32::from(has_others);
        if owner == NOBODY || tenants < 2 {
            return victim.len();
        }
        let holder = &self.holders[&owner];
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
