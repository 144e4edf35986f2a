//! Routers: choose the engine for a request.
//!
//! A router sees what a gateway in front of the engines sees: the prompt, and which requests and answers passed through. It does not
//! look into the caches or queues of the engines, and it does not know the length of an answer in advance. The cluster keeps a [`Load`]
//! per engine; a router MUST keep anything else that it needs itself, in bounded memory.
//!
//! | name | sends a request to |
//! |---|---|
//! | `round_robin` | of the open engines, the one whose last turn is longest ago |
//! | `least_loaded` | the engine with the fewest tokens of unfinished requests |
//! | `random2` | the less loaded of two engines drawn at random |
//! | `prefix_affinity` | the engine with the least to compute and to hold, given the prefixes it is believed to cache |
//! | `added_time` | the engine where the request adds the least time to all requests there, itself among them |
//!
//! A router is asked once per request, and again when a request moves to another engine. Its picks MUST be a function of its calls and
//! their order: no clock, no iteration in hash order; random choices are hashes of the request ([`trunkline_core::draw`]).
//!
//! A gateway that polls its engines sees loads of a while ago. `load_stale_ms` of the routers that read loads models that: they see a
//! snapshot which is renewed when it is older. The default 0 is exact loads, as for a gateway that all requests and answers pass.

use std::fmt;

use trunkline_core::BlockHash;
use trunkline_core::names::registry::{Entry, Registry, RegistryError};
use trunkline_core::names::spec::Param;

use crate::step_work::StepWork;

mod added_time;
mod holders;
mod least_loaded;
mod prefix_affinity;
mod prefixes;
mod random2;
mod round_robin;
mod stale_loads;
mod step_cost;

/// Router unless the user names another.
pub const ROUTER_DEFAULT: &str = prefix_affinity::NAME;

const LOAD_STALE_KEY: &str = "load_stale_ms";

/// Age at which a router's snapshot of loads is renewed.
const LOAD_STALE: Param = Param {
    key: LOAD_STALE_KEY,
    about: "age at which the router renews its snapshot of the engines' loads; 0 is exact loads",
    default: 0,
    min: 0,
    max: 86_400_000,
};

/// Load of an engine as seen from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// `true` if requests may be sent there. At least one engine is open whenever a router is asked.
    pub open: bool,
    /// Unfinished requests on the engine.
    pub requests: u32,
    /// Tokens of those requests: prompts, and answers so far.
    pub tokens: u64,
    /// The part of them that was generated.
    pub answer_tokens: u64,
    /// Prompt tokens of requests without a first token yet, minus those that the router believed cached.
    pub prefill_tokens: u64,
    /// Pairs of these tokens and those that they attend to.
    pub prefill_pairs: u64,
}

/// A request that is to be routed.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The request's id; random choices are drawn for it.
    pub number: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Chained hashes of the prompt's full blocks.
    pub hashes: &'a [BlockHash],
}

/// Engine chosen by a router, with the prefix believed cached there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pick {
    /// Index of the engine. It MUST be open.
    pub engine: usize,
    /// Prompt tokens that the router believes are cached there.
    pub known_tokens: u32,
}

/// Routing policy: chooses an engine for each request.
pub trait Router: Send + fmt::Debug {
    /// Chooses the engine for `request` at `now_ns`. `loads` holds one entry per engine, in the same order on every call.
    fn pick(&mut self, now_ns: u64, request: &Incoming<'_>, loads: &[Load]) -> Pick;

    /// Reports that an engine has lost its cache.
    fn lost(&mut self, _engine: usize) {}

    /// Returns `true` if the router learns from steps: only then [`Self::stepped`] is called.
    fn learns(&self) -> bool {
        false
    }

    /// Reports the work of a step of an engine, and the time that it took.
    fn stepped(&mut self, _engine: usize, _work: &StepWork, _ns: u64) {}

    /// Reports the length of an answer that ended by itself, in tokens.
    fn answered(&mut self, _tokens: u32) {}
}

/// Facts about an engine that a router is built for.
#[derive(Clone, Copy, Debug)]
pub struct EngineFacts {
    /// Number of the engine's kind, from 0: engines of a kind have equal settings.
    pub kind: u32,
    /// Blocks that the engine can cache, on its device and in its tiers.
    pub cache_blocks: u64,
    /// Estimated time of a prompt token, nanoseconds.
    pub token_ns: u64,
    /// `true` if answers are generated there, and not only their first token.
    pub decodes: bool,
}

/// Facts that a router is built for.
#[derive(Clone, Debug)]
pub struct RouterContext {
    /// The engines of the cluster.
    pub engines: Vec<EngineFacts>,
    /// Tokens in a block.
    pub block_size: u32,
}

/// Registry of all routers, by name.
pub static REGISTRY: Registry<Box<dyn Router>, RouterContext> = Registry::new(
    "router",
    &[
        Entry {
            name: round_robin::NAME,
            about: "open engines in turn",
            params: &[],
            make: |_, _| Box::new(round_robin::RoundRobin::default()),
        },
        Entry {
            name: "least_loaded",
            about: "fewest tokens of unfinished requests",
            params: &least_loaded::PARAMS,
            make: |_, _| Box::new(least_loaded::LeastLoaded),
        },
        Entry {
            name: "random2",
            about: "the less loaded of two drawn at random",
            params: &random2::PARAMS,
            make: |values, _| Box::new(random2::Random2::new(values)),
        },
        Entry {
            name: prefix_affinity::NAME,
            about: "longest known prefix weighed against load",
            params: &prefix_affinity::PARAMS,
            make: |values, context| Box::new(prefix_affinity::PrefixAffinity::new(values, context)),
        },
        Entry {
            name: added_time::NAME,
            about: "least time added to all requests",
            params: &added_time::PARAMS,
            make: |values, context| Box::new(added_time::AddedTime::new(values, context)),
        },
    ],
);

/// Builds the router that `spec` names, such as `prefix_affinity:stale_ms=500`.
///
/// # Errors
/// Fails if no router has the name, or a parameter is unknown, repeated or outside its range.
pub fn make(spec: &str, context: RouterContext) -> Result<Box<dyn Router>, RegistryError> {
    let (entry, values) = REGISTRY.parse(spec)?;
    let router = (entry.make)(&values, context);
    let stale = entry.params.iter().zip(&values).find(|(param, _)| param.key == LOAD_STALE_KEY);
    Ok(match stale {
        Some((_, stale_ms)) if *stale_ms > 0 => Box::new(stale_loads::StaleLoads::new(router, *stale_ms)),
        _ => router,
    })
}

/// Returns `true` if the router that `spec` names sends requests to open engines in turn, by the order of their arrivals alone.
pub fn is_in_turn(spec: &str) -> bool {
    REGISTRY.parse(spec).is_ok_and(|(entry, _)| entry.name == round_robin::NAME)
}

/// Returns the open engine of the least cost; ties go to the first. `cost` is called for open engines only.
fn least<C: Ord>(loads: &[Load], mut cost: impl FnMut(usize, &Load) -> C) -> usize {
    let open = loads.iter().enumerate().filter(|(_, load)| load.open);
    open.min_by_key(|(engine, load)| cost(*engine, load)).map(|(engine, _)| engine).expect("an engine is open")
}

#[cfg(test)]
mod tests;
