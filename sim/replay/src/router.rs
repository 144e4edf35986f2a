//! Routers: which replica a request goes to.
//!
//! A router sees what a gateway in front of the replicas sees: the prompt, and what it sent where and got back. It does not see into the
//! replicas' caches or queues, and it does not know how long an answer will be. What it knows of each replica is a [`Load`], kept by the
//! fleet; what else it wants to know it MUST remember itself, within bounds.
//!
//! | name | goes to |
//! |---|---|
//! | `round_robin` | the next in turn |
//! | `least_loaded` | the one whose requests hold the fewest tokens |
//! | `random2` | the less loaded of two drawn at random |
//! | `prefix_affinity` | the one with the least to compute and to hold, given the prefixes it is believed to have |
//!
//! A router is asked once per request, and again for a request whose replica is gone for good. It MUST be a function of what it was told
//! in which order: no clock, no hash order; what it draws is a hash of what it is drawn for.

use std::fmt;

use trunkline_core::BlockHash;
use trunkline_core::spec::{Param, Spec, SpecError};

use trunkline_sim_workload::UnknownName;

mod least_loaded;
mod prefix_affinity;
mod prefixes;
mod random2;
mod round_robin;

/// The router unless the user names another.
pub const ROUTER_DEFAULT: &str = "round_robin";

/// What is known of a replica from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Whether requests may be sent there. At least one replica is open.
    pub open: bool,
    /// Requests sent there that have not ended.
    pub requests: u32,
    /// Tokens of those requests: prompts, and what was generated so far.
    pub tokens: u64,
    /// Prompt tokens of those without a first token yet, as far as the router did not believe them cached.
    pub prefill_tokens: u64,
}

/// A request that is to be sent somewhere.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Its number in the trace.
    pub number: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Chained hashes of the prompt's full blocks.
    pub hashes: &'a [BlockHash],
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pick {
    /// The replica. It is open.
    pub replica: usize,
    /// Prompt tokens that the router believes are cached there.
    pub known_tokens: u32,
}

/// Picks replicas.
pub trait Router: Send + fmt::Debug {
    /// Where `request` goes at `now_ns`. `loads` are by replica, as many each time.
    fn pick(&mut self, now_ns: u64, request: &Incoming<'_>, loads: &[Load]) -> Pick;

    /// A replica has lost its cache.
    fn lost(&mut self, _replica: usize) {}
}

/// What a router is made for.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Replicas.
    pub replicas: usize,
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks that each replica can cache, on its device and in its tiers.
    pub cache_blocks: u64,
}

/// A router as it is found by name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// What may be set, as in `name:key=value,key=value`.
    pub params: &'static [Param],
    /// Makes one from the values of `params`, in their order.
    pub make: fn(&[u64], Site) -> Box<dyn Router>,
}

/// All routers.
pub const REGISTRY: [Entry; 4] = [
    Entry {
        name: ROUTER_DEFAULT,
        about: "replicas in turn",
        params: &[],
        make: |_, _| Box::new(round_robin::RoundRobin::default()),
    },
    Entry {
        name: "least_loaded",
        about: "fewest tokens of unfinished requests",
        params: &[],
        make: |_, _| Box::new(least_loaded::LeastLoaded),
    },
    Entry {
        name: "random2",
        about: "the less loaded of two drawn at random",
        params: &random2::PARAMS,
        make: |values, _| Box::new(random2::Random2::new(values)),
    },
    Entry {
        name: "prefix_affinity",
        about: "longest known prefix weighed against load",
        params: &prefix_affinity::PARAMS,
        make: |values, site| Box::new(prefix_affinity::PrefixAffinity::new(values, site)),
    },
];

/// A router that cannot be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RouterError {
    /// There is none of the name.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// Its parameters make no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Makes the router that `spec` names, such as `prefix_affinity:stale_ms=500`.
pub fn make(spec: &str, site: Site) -> Result<Box<dyn Router>, RouterError> {
    const ENTRIES: &[Entry] = &REGISTRY;
    let parsed = Spec::new(spec);
    let entry = ENTRIES.iter().find(|entry| entry.name == parsed.name).ok_or_else(|| UnknownName {
        kind: "router",
        name: parsed.name.into(),
        known: ENTRIES.iter().map(|entry| entry.name).collect(),
    })?;
    Ok((entry.make)(&parsed.values(entry.params)?, site))
}

/// The open replica of the least cost, and of equals the first. `cost` is asked only for open ones.
fn least<C: Ord>(loads: &[Load], mut cost: impl FnMut(usize, &Load) -> C) -> usize {
    let open = loads.iter().enumerate().filter(|(_, load)| load.open);
    open.min_by_key(|(replica, load)| cost(*replica, load)).map(|(replica, _)| replica).expect("a replica is open")
}

#[cfg(test)]
mod tests;
