//! What a trace is replayed on, and when its requests arrive.

use trunkline_core::{Config, ConfigError};

use crate::faults::{self, Failure, FaultError, Slow};
use crate::group::Group;
use crate::router::{self, ROUTER_DEFAULT, RouterError, Site};
use trunkline_sim_perf::cost::{
    CostChoice, CostModel, Parallel, ParallelError, Weights, recompute_token_ns, replica_recompute_token_ns,
};
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::link::{TierLink, swap_block_ns};
use trunkline_sim_perf::memory::{DoesNotFit, device_blocks_beside};
use trunkline_sim_perf::model::Model;
use trunkline_sim_workload::tenants::Shares;
use trunkline_sim_workload::trace::LENGTH_TOKENS_MAX;

mod kinds;

/// A queue no trace fills: a replay measures how long requests wait, so none is turned away for waiting.
pub const MAX_QUEUE: u32 = 1 << 24;
/// Prompt tokens that no queue of so many requests exceeds.
pub const MAX_QUEUED_TOKENS: u64 = MAX_QUEUE as u64 * LENGTH_TOKENS_MAX as u64;
/// A context no trace exceeds, tokens: whether a model was trained for a length is not the replay's question.
pub const MAX_CONTEXT: u32 = 2 * LENGTH_TOKENS_MAX;
/// The probability that a drafted token is right, unless the user says otherwise. An assumption, not a measurement.
pub const DRAFT_ACCEPTANCE_DEFAULT: f64 = 0.6;

/// What a trace is replayed on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device of each replica. Its compute is in the cost model; its link to the host is used from here.
    pub hardware: Hardware,
    /// The model they serve.
    pub model: Model,
    /// How one replica spreads the model over devices.
    pub parallel: Parallel,
    /// How long its steps take.
    pub cost: CostChoice,
    /// Where its weights lie.
    pub weights: Weights,
    /// Replicas of this kind, at least one.
    pub replicas: u32,
    /// Replicas of other kinds, numbered after those.
    pub others: Vec<Group>,
    /// The limits of each replica's core. [`Settings::core`] gives limits fit for a replay.
    pub core: Config,
    /// What joins the tiers of the prefix cache behind the first to the host; as many as [`Config::tiers`] less one.
    pub far_links: Vec<TierLink>,
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// Whose they are.
    pub tenants: Shares,
    /// The probability that a drafted token is right.
    pub draft_acceptance: f64,
    /// Which replica each goes to, and which replicas fail.
    pub routing: Routing,
}

/// How requests are spread over replicas, and what is wrong with these.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// One of [`crate::router::REGISTRY`], perhaps with parameters.
    pub router: String,
    /// Replicas that fail.
    pub failures: Vec<Failure>,
    /// Replicas that are slow.
    pub slow: Vec<Slow>,
}

impl Default for Routing {
    /// In turn; all replicas are well.
    fn default() -> Self {
        Self { router: ROUTER_DEFAULT.into(), failures: Vec::new(), slow: Vec::new() }
    }
}

/// When the requests of a trace arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// As in the trace, so many times as fast.
    Traced {
        /// Times of arrival are divided by this; it is finite and above 0.
        speed: f64,
    },
    /// Each when the one before it ended: so the cache alone is measured.
    Serial,
    /// All at the beginning: so the capacity is measured. Latencies count from there. Prompts are made only when their request comes
    /// near the head of its replica's queue, lest all be in memory at once; under `fcfs` that changes no decision. They go to replicas
    /// in turn whatever the router: there are no loads to choose by when all are there.
    AtOnce,
}

impl Arrivals {
    /// As in the trace.
    pub const TRACED: Self = Self::Traced { speed: 1.0 };
}

impl Settings {
    /// One replica of one device that serves `model` to requests that arrive as in their trace; everything else is the default.
    pub fn new(hardware: Hardware, model: Model) -> Self {
        Self {
            hardware,
            model,
            parallel: Parallel::ONE,
            replicas: 1,
            core: Self::core(),
            far_links: Vec::new(),
            arrivals: Arrivals::TRACED,
            tenants: Shares::default(),
            draft_acceptance: DRAFT_ACCEPTANCE_DEFAULT,
            routing: Routing::default(),
            cost: CostChoice::Auto,
            weights: Weights::Resident,
            others: Vec::new(),
        }
    }

    /// Limits with a queue and a context that nothing exceeds, and else the core's defaults.
    pub fn core() -> Config {
        Config {
            max_queue: MAX_QUEUE,
            max_queued_tokens: MAX_QUEUED_TOKENS,
            max_context: MAX_CONTEXT,
            ..Config::default()
        }
    }

    /// KV blocks that a device has room for beside the weights on it.
    pub fn fitting_device_blocks(&self) -> Result<u32, DoesNotFit> {
        device_blocks_beside(self.weights, &self.hardware, &self.model, self.parallel, self.core.block_size)
    }

    /// Tells the cores what copying a block and computing a token cost on this hardware with this model, so that they can choose
    /// between the two.
    pub fn estimate_costs(&mut self, cost: &dyn CostModel) {
        let (model, block_size) = (self.model, self.core.block_size);
        self.core.swap_block_ns = swap_block_ns(&self.hardware, &model, block_size);
        self.core.recompute_token_ns = recompute_token_ns(cost);
        let mut first = self.replicas as usize;
        for group in &mut self.others {
            group.swap_block_ns = swap_block_ns(&group.hardware, &model, block_size);
            group.recompute_token_ns = replica_recompute_token_ns(cost, first);
            first += group.replicas as usize;
        }
    }

    /// Checks everything, the core's limits too.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.core.validate()?;
        self.parallel.check(&self.model)?;
        for group in &self.others {
            group.parallel.check(&self.model)?;
            self.core_in(group).validate()?;
        }
        if self.replicas == 0 || self.others.iter().any(|group| group.replicas == 0) {
            return Err(SettingsError::NoReplicas);
        }
        let (links, tiers) = (self.far_links.len(), self.core.tiers.len().saturating_sub(1));
        if links != tiers {
            return Err(SettingsError::FarLinks { links, tiers });
        }
        for link in &self.far_links {
            let codec = link.codec_bytes_s.map(|bytes_s| ("compression speed", bytes_s));
            for (name, value) in [("bandwidth", link.bytes_s), ("ratio", link.ratio)].into_iter().chain(codec) {
                if !(value > 0.0 && value.is_finite()) {
                    return Err(SettingsError::TierLink { name, value });
                }
            }
            if !(link.latency_s >= 0.0 && link.latency_s.is_finite()) {
                return Err(SettingsError::TierLink { name: "latency", value: link.latency_s });
            }
        }
        match self.arrivals {
            Arrivals::Traced { speed } if !(speed > 0.0 && speed.is_finite()) => {
                return Err(SettingsError::Speed(speed));
            }
            _ => {}
        }
        if !(0.0..=1.0).contains(&self.draft_acceptance) {
            return Err(SettingsError::DraftAcceptance(self.draft_acceptance));
        }
        router::make(&self.routing.router, self.site())?;
        faults::validate(self.n_replicas(), &self.routing.failures, &self.routing.slow)?;
        if self.arrivals == Arrivals::AtOnce && !self.routing.failures.is_empty() {
            return Err(FaultError::AtOnce.into());
        }
        Ok(())
    }

    /// What a router is made for.
    pub(crate) fn site(&self) -> Site {
        let tiers = self.core.tiers.iter().map(|tier| u64::from(tier.blocks)).sum::<u64>();
        // What the smallest replica does not hold is taken to be gone.
        let device_blocks = self.kinds().map(|(_, _, _, blocks)| blocks).min().unwrap_or(0);
        Site {
            replicas: self.n_replicas() as usize,
            block_size: self.core.block_size,
            cache_blocks: u64::from(device_blocks) + tiers,
        }
    }
}

/// Settings under which nothing can be replayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// The core cannot work under the limits.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model cannot be spread so.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// There is nothing to replay on.
    #[error("replicas is 0; it must be at least 1")]
    NoReplicas,
    /// Time would stand still or go back.
    #[error("speed is {0}; it must be above 0, such as 2 for twice the load")]
    Speed(f64),
    /// A tier without a link, or a link without a tier.
    #[error("{links} links for {tiers} tiers behind the first")]
    FarLinks {
        /// Links.
        links: usize,
        /// Tiers behind the first.
        tiers: usize,
    },
    /// A link on which nothing moves.
    #[error("{name} of a tier's link is {value}; it must be a number above 0")]
    TierLink {
        /// What of it.
        name: &'static str,
        /// What it was set to.
        value: f64,
    },
    /// Not a probability.
    #[error("draft_acceptance is {0}; it must be between 0 and 1")]
    DraftAcceptance(f64),
    /// No router is of this name and parameters.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// Replicas cannot fail or be slow so.
    #[error(transparent)]
    Faults(#[from] FaultError),
}
