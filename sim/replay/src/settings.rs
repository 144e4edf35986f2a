//! Settings of a replay: fleet, limits, arrivals and routing.

use trunkline_cluster::router::{self, ROUTER_DEFAULT};
use trunkline_cluster::{ClusterConfig, ClusterError, EngineConfig, Role};
use trunkline_core::names::registry::RegistryError;
use trunkline_core::{Config, ConfigError, WorkerFacts};
use trunkline_quote::quoted;

use crate::autoscale::{Autoscale, AutoscaleError};
use crate::engine_memory::{EngineMemory, Release, Replica};
use crate::faults::{self, Failure, FaultError, Slow};
use crate::group::Group;
use crate::random_failures::{RandomFailures, RandomFailuresError};
use trunkline_sim_perf::cost::{
    CostChoice, CostModel, EngineOverhead, Parallel, ParallelError, Weights, recompute_token_ns,
    replica_recompute_token_ns,
};
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::link::{TierLink, swap_block_ns};
use trunkline_sim_perf::memory::{DoesNotFit, MemoryParts, MemoryUse, Placement};
use trunkline_sim_perf::model::Model;
use trunkline_sim_workload::tenants::Shares;
use trunkline_sim_workload::trace::{ClosedLoop, ClosedLoopError, LENGTH_TOKENS_MAX};

mod host;
mod kinds;
mod lock_step;
mod pipelines;

pub use self::host::{HostBytes, HostMemoryError};
pub use self::lock_step::LockStepError;
pub use self::pipelines::{GivenSteps, STEPS_PER_STAGE};

/// Queue limit above any trace: a replay measures waiting times, so no request is rejected for a full queue.
pub const MAX_QUEUE: u32 = 1 << 24;
/// Limit of queued prompt tokens, above any queue of that length.
pub const MAX_QUEUED_TOKENS: u64 = MAX_QUEUE as u64 * LENGTH_TOKENS_MAX as u64;
/// Context limit above any trace, tokens: a replay ignores the trained context of a model.
pub const MAX_CONTEXT: u32 = 2 * LENGTH_TOKENS_MAX;
/// Default probability that a draft token is accepted. An assumption, not a measurement.
pub const DRAFT_ACCEPTANCE_DEFAULT: f64 = 0.6;

/// Settings of a replay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Device of each replica. The cost model covers its compute; the host link is used from here.
    pub hardware: Hardware,
    /// Model served by the fleet.
    pub model: Model,
    /// Parallelism of each replica.
    pub parallel: Parallel,
    /// Cost model of the steps.
    pub cost: CostChoice,
    /// Time of the engine around the kernels of a step.
    pub engine_overhead: EngineOverhead,
    /// Placement of the weights.
    pub weights: Weights,
    /// Memory of each device that is not for KV blocks, for the number of blocks that fit.
    pub memory: EngineMemory,
    /// Number of replicas of this kind, at least one.
    pub replicas: u32,
    /// Replicas of other kinds, numbered after this kind.
    pub others: Vec<Group>,
    /// Limits of each replica's core. [`Settings::core`] returns limits suited to a replay.
    pub core: Config,
    /// Layers in each layer group of the core ([`trunkline_core::config::WorkerFacts::groups`]), or KV heads, if layers are divided among groups: in all
    /// groups together those of the model. Empty for a model without groups.
    pub group_sizes: Vec<u32>,
    /// Links between the host and the further tiers of the prefix cache; one fewer than [`Config::tiers`].
    pub far_links: Vec<TierLink>,
    /// `true` if the shared tier is host memory of one server: look-ups there wait for the copies under way, as those of
    /// `trunkline_store::SharedMemory` do. Look-ups in remote storage are answered with what is there.
    pub shared_memory: bool,
    /// `false` if no request finds KV of another one, as in an engine without prefix caching.
    pub prefix_caching: bool,
    /// `false` if requests have no retention hints, whatever the trace says.
    pub hints: bool,
    /// Arrival times of requests.
    pub arrivals: Arrivals,
    /// Shares of the tenants.
    pub tenants: Shares,
    /// Probability that a draft token is accepted, from 0 to 1.
    pub draft_acceptance: f64,
    /// Routing of requests, and faults of replicas.
    pub routing: Routing,
    /// Price of a replica for an hour, in any currency, of each kind in order; empty without prices.
    pub prices: Vec<f64>,
}

/// Routing of requests, and faults of replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Name of a router in [`trunkline_cluster::router::REGISTRY`], with optional parameters.
    pub router: String,
    /// Role of each replica; empty if all both prefill and decode.
    pub roles: Vec<Role>,
    /// Failures of replicas, with optional returns.
    pub failures: Vec<Failure>,
    /// Replicas with a factor on the step time.
    pub slow: Vec<Slow>,
    /// Failures of all replicas at random times.
    pub random_failures: Option<RandomFailures>,
    /// Policy for the number of replicas; [`Settings::replicas`] MUST be the highest number of the policy.
    pub autoscale: Option<Autoscale>,
}

impl Default for Routing {
    /// Returns the default router without faults.
    fn default() -> Self {
        Self {
            router: ROUTER_DEFAULT.into(),
            roles: Vec::new(),
            failures: Vec::new(),
            slow: Vec::new(),
            random_failures: None,
            autoscale: None,
        }
    }
}

/// Arrival times of the requests of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Arrivals of the trace, scaled by a speed.
    Traced {
        /// Divisor of the arrival times; finite and above 0.
        speed: f64,
    },
    /// Requests of users who each wait for their answers, whatever the times of the trace.
    Closed(ClosedLoop),
    /// Each request at the end of the one before, to measure the cache alone.
    Serial,
    /// All requests at the beginning, to measure capacity. Latencies count from there. Prompts are made only near the head of their
    /// replica's queue, so they are never all in memory at once. A router that sends requests in turn gets the next request of each
    /// replica, and under `fcfs` no decision depends on the time. Another router gets the next request of all when one ended, as loads and
    /// caches are then.
    AtOnce,
}

impl Arrivals {
    /// Arrivals of the trace, unscaled.
    pub const TRACED: Self = Self::Traced { speed: 1.0 };

    /// Returns `true` if the source says when requests arrive.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self, Self::Traced { .. } | Self::Closed(_))
    }

    /// Returns the divisor of the arrival times, if they count.
    pub(crate) fn speed(&self) -> Option<f64> {
        match self {
            Self::Traced { speed } => Some(*speed),
            Self::Closed(_) | Self::Serial | Self::AtOnce => None,
        }
    }

    /// Returns the users who wait for their answers, if there are any.
    pub fn closed(&self) -> Option<ClosedLoop> {
        match self {
            Self::Closed(shape) => Some(*shape),
            Self::Traced { .. } | Self::Serial | Self::AtOnce => None,
        }
    }
}

impl Settings {
    /// Returns default settings: one replica of one device serving `model`, with the arrivals of the trace.
    pub fn new(hardware: Hardware, model: Model) -> Self {
        Self {
            hardware,
            model,
            parallel: Parallel::ONE,
            replicas: 1,
            core: Self::core(),
            group_sizes: Vec::new(),
            far_links: Vec::new(),
            shared_memory: false,
            prefix_caching: true,
            hints: true,
            arrivals: Arrivals::TRACED,
            tenants: Shares::default(),
            draft_acceptance: DRAFT_ACCEPTANCE_DEFAULT,
            routing: Routing::default(),
            cost: CostChoice::Auto,
            engine_overhead: EngineOverhead::default(),
            weights: Weights::Resident,
            memory: EngineMemory::Same(MemoryUse::DEFAULT),
            others: Vec::new(),
            prices: Vec::new(),
        }
    }

    /// Returns the core's default limits, with an unlimited queue and context, and the hits of the embedded worker.
    pub fn core() -> Config {
        Config {
            worker: WorkerFacts { in_step_hits: true, ..WorkerFacts::default() },
            max_queue: MAX_QUEUE,
            max_queued_tokens: MAX_QUEUED_TOKENS,
            max_context: MAX_CONTEXT,
            ..Config::default()
        }
    }

    /// Returns the number of KV blocks that fit on a device next to the weights, in each layer group.
    ///
    /// # Errors
    ///
    /// [`DoesNotFit`] if no block fits.
    pub fn fitting_device_blocks(&self) -> Result<u32, DoesNotFit> {
        self.blocks_beside_weights(&self.hardware, self.parallel)
    }

    /// Returns the number of KV blocks that fit on a device next to its share of the weights, in each layer group.
    fn blocks_beside_weights(&self, hardware: &Hardware, parallel: Parallel) -> Result<u32, DoesNotFit> {
        let Config { block_size, max_batch_size, .. } = self.core;
        let blocks = self.placement(hardware, parallel).1.blocks(block_size)?;
        // All groups have blocks as large as those of the largest.
        let ((largest, all), groups) = (self.block_share(), u64::from(self.core.n_groups()));
        let blocks = (u64::from(blocks) * all / (largest * groups)).max(1);
        if self.has_state_pages() && blocks * groups < max_batch_size.into() {
            let (pages, sequences) = (blocks * groups, max_batch_size);
            return Err(DoesNotFit::Pages { model: self.model.name, hardware: hardware.name, sequences, pages });
        }
        Ok(blocks as u32)
    }

    /// Returns the memory of the fullest device of the first kind of replica by its parts: of the release that leaves least for KV and of the one that leaves
    /// most, each with the release, if releases of the engine differ.
    pub fn memory_parts(&self) -> [(Option<Release>, MemoryParts); 2] {
        let all = self.placements(&self.hardware, self.parallel);
        let parts = all.into_iter().map(|(release, placement)| (release, placement.parts()));
        let parts: Vec<(Option<Release>, MemoryParts)> = parts.collect();
        let least = parts.iter().min_by_key(|(_, parts)| parts.kv()).expect("an engine has a use of its memory");
        let most = parts.iter().max_by_key(|(_, parts)| parts.kv()).expect("an engine has a use of its memory");
        [*least, *most]
    }

    /// Returns the model on a device, as the release of the engine counts that leaves least for KV: a plan holds for the others too.
    fn placement<'a>(&'a self, hardware: &'a Hardware, parallel: Parallel) -> (Option<Release>, Placement<'a>) {
        let all = self.placements(hardware, parallel).into_iter();
        all.min_by_key(|(_, placement)| placement.parts().kv()).expect("an engine has a use of its memory")
    }

    /// Returns the model on a device, as each release of the engine counts.
    fn placements<'a>(&'a self, hardware: &'a Hardware, parallel: Parallel) -> Vec<(Option<Release>, Placement<'a>)> {
        let Self { model, weights, .. } = self;
        let Config { max_batch_tokens: batch_tokens, max_batch_size: batch_size, .. } = self.core;
        let replica = Replica { device: hardware, parallel, model, batch_tokens, batch_size };
        let uses = self.memory.uses(&replica).into_iter();
        let placed = uses.map(|(release, memory)| {
            (release, Placement { hardware, model, parallel, weights: *weights, memory, batch_tokens, batch_size })
        });
        placed.collect()
    }

    /// Returns `true` if states of recurrent layers are in layer groups of their own, after those of attention.
    pub fn has_state_pages(&self) -> bool {
        self.memory.has_state_pages() && self.model.hybrid.is_some() && !self.group_sizes.is_empty()
    }

    /// Returns the bytes of a KV block over all devices of a replica. With layer groups it holds the layers of the largest.
    pub fn block_bytes(&self) -> u64 {
        let (largest, all) = self.block_share();
        self.model.kv_bytes_per_token() * largest / all * u64::from(self.core.block_size)
    }

    /// Returns the bytes of a KV block on the fullest device of a replica with `parallel`: what a device's link to the host carries.
    pub fn device_block_bytes(&self, parallel: Parallel) -> u64 {
        let (largest, all) = self.block_share();
        parallel.kv_bytes_per_token(&self.model) * largest / all * u64::from(self.core.block_size)
    }

    /// Returns the part of the model's KV in a block: the layers, or KV heads, of the largest group, and of the model.
    fn block_share(&self) -> (u64, u64) {
        let largest = self.group_sizes.iter().max().map_or(self.model.layers, |size| u64::from(*size));
        if self.has_state_pages() {
            // States are no KV of a token.
            return (largest, self.model.kv_layers());
        }
        let all: u64 = self.group_sizes.iter().map(|size| u64::from(*size)).sum();
        (largest, if all == 0 { self.model.layers } else { all })
    }

    /// Sets the estimated costs of copying a block and recomputing a token, by which the cores choose between the two.
    pub fn estimate_costs(&mut self, cost: &dyn CostModel) {
        self.core.swap_block_ns = swap_block_ns(&self.hardware, self.device_block_bytes(self.parallel));
        self.core.recompute_token_ns = recompute_token_ns(cost);
        let mut first = self.replicas as usize;
        let bytes: Vec<u64> = self.others.iter().map(|group| self.device_block_bytes(group.parallel)).collect();
        for (group, device_bytes) in self.others.iter_mut().zip(bytes) {
            group.swap_block_ns = swap_block_ns(&group.hardware, device_bytes);
            group.recompute_token_ns = replica_recompute_token_ns(cost, first);
            first += group.replicas as usize;
        }
    }

    /// Checks all settings, including the core's limits.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] with the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.core.validate()?;
        self.check_layer_groups()?;
        self.parallel.check(&self.model)?;
        for group in &self.others {
            group.parallel.check(&self.model)?;
            self.core_in(group).validate()?;
        }
        self.check_pipelines()?;
        self.check_host_memory()?;
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
            Arrivals::Closed(shape) => shape.validate()?,
            _ => {}
        }
        if !(0.0..=1.0).contains(&self.draft_acceptance) {
            return Err(SettingsError::DraftAcceptance(self.draft_acceptance));
        }
        router::REGISTRY.parse(&self.routing.router)?;
        faults::validate(self.n_replicas(), &self.routing.failures, &self.routing.slow)?;
        let has_failures = !self.routing.failures.is_empty() || self.routing.random_failures.is_some();
        if self.arrivals == Arrivals::AtOnce && has_failures {
            return Err(FaultError::AtOnce.into());
        }
        if let Some(random) = &self.routing.random_failures {
            random.validate()?;
        }
        let kinds = 1 + self.others.len();
        let is_price = |price: &f64| *price > 0.0 && price.is_finite();
        if !(self.prices.is_empty() || self.prices.len() == kinds && self.prices.iter().all(is_price)) {
            return Err(SettingsError::Prices { prices: self.prices.len(), kinds });
        }
        self.validate_autoscale()?;
        self.validate_roles()?;
        Ok(self.validate_lock_step()?)
    }

    /// Checks that a policy can change the number of replicas.
    fn validate_autoscale(&self) -> Result<(), AutoscaleError> {
        let Some(autoscale) = &self.routing.autoscale else { return Ok(()) };
        let max = autoscale.limits()?.max;
        if !self.others.is_empty() {
            return Err(AutoscaleError::Kinds);
        }
        if !self.routing.roles.is_empty() {
            return Err(AutoscaleError::Roles);
        }
        if self.arrivals == Arrivals::AtOnce {
            return Err(AutoscaleError::AtOnce);
        }
        if self.replicas != max {
            return Err(AutoscaleError::Fleet { replicas: self.replicas, max });
        }
        Ok(())
    }

    /// Returns the number of replicas up at the start, of all kinds.
    pub fn initial_replicas(&self) -> u32 {
        self.routing.autoscale.as_ref().map_or(self.n_replicas(), |autoscale| autoscale.initial)
    }

    /// Returns `true` if replicas start, stop or fail.
    pub(crate) fn replicas_change(&self) -> bool {
        let Routing { failures, random_failures, autoscale, .. } = &self.routing;
        !failures.is_empty() || random_failures.is_some() || autoscale.is_some()
    }

    /// Checks that the layer groups of the core share the layers, or the KV heads, of the model.
    fn check_layer_groups(&self) -> Result<(), SettingsError> {
        let (groups, members) = (self.core.worker.groups.len(), self.group_sizes.iter().map(|n| u64::from(*n)).sum());
        let (layers, heads) = (self.model.layers, self.model.layers * self.model.kv_heads);
        if self.has_state_pages() && groups == self.group_sizes.len() {
            return Ok(());
        }
        if groups != self.group_sizes.len() || (groups > 0 && members != layers && members != heads) {
            return Err(SettingsError::LayerGroups { groups, members, layers, heads });
        }
        Ok(())
    }

    /// Checks the roles of the replicas.
    fn validate_roles(&self) -> Result<(), SettingsError> {
        let (roles, replicas) = (self.routing.roles.len(), self.n_replicas() as usize);
        if roles == 0 {
            return Ok(());
        }
        if roles != replicas {
            return Err(SettingsError::Roles { roles, replicas });
        }
        if self.arrivals == Arrivals::AtOnce {
            return Err(SettingsError::RolesAtOnce);
        }
        for (role, missing) in [(Role::Prefill, "prefill"), (Role::Decode, "decode")] {
            if !self.routing.roles.iter().any(|known| [role, Role::Both].contains(known)) {
                return Err(SettingsError::NoRole(missing));
            }
        }
        Ok(())
    }

    /// Returns the role of a replica.
    pub fn role_of(&self, replica: usize) -> Role {
        self.routing.roles.get(replica).copied().unwrap_or_default()
    }

    /// Returns `true` if requests are handed over from one replica to another.
    pub(crate) fn hands_over(&self) -> bool {
        self.routing.roles.contains(&Role::Prefill)
    }

    /// Returns the settings of the cluster: an engine for each replica, and the router.
    pub(crate) fn cluster(&self) -> ClusterConfig {
        let engine = |number| EngineConfig { core: self.core_of(number), role: self.role_of(number), kv_class: 0 };
        let engines = (0..self.n_replicas() as usize).map(engine).collect();
        ClusterConfig { engines, router: self.routing.router.clone() }
    }
}

/// Settings that cannot be replayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// The scheduler assumes other stages than the model is spread over.
    #[error(
        "pipeline_stages is {stages}, but a replica has {pipeline}; give the replica as many with --parallel pp{stages}, or leave the \
         setting at 1"
    )]
    PipelineStages {
        /// Number of stages that the scheduler was to assume.
        stages: u32,
        /// Number of stages of the replica.
        pipeline: u32,
    },
    /// Invalid limits of the core.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Closed loop out of range.
    #[error(transparent)]
    ClosedLoop(#[from] ClosedLoopError),
    /// Weights and KV larger than the memory of the host.
    #[error(transparent)]
    HostMemory(#[from] HostMemoryError),
    /// Parallelism that the model does not permit.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// Fleet without a single replica.
    #[error("replicas is 0; it must be at least 1")]
    NoReplicas,
    /// Speed out of range.
    #[error("speed is {0}; it must be above 0, such as 2 for twice the load")]
    Speed(f64),
    /// Layer groups without the layers of the model.
    #[error(
        "{members} layers or KV heads in {groups} layer groups for a model of {layers} layers and {heads} KV heads"
    )]
    LayerGroups {
        /// Number of groups of the core.
        groups: usize,
        /// Layers, or KV heads, of all groups.
        members: u64,
        /// Layers of the model.
        layers: u64,
        /// KV heads of all layers.
        heads: u64,
    },
    /// Different numbers of links and further tiers.
    #[error("{links} links for {tiers} tiers behind the first")]
    FarLinks {
        /// Number of links in the settings.
        links: usize,
        /// Number of tiers behind the first.
        tiers: usize,
    },
    /// Parameter of a tier's link out of range.
    #[error("{name} of a tier's link is {value}; it must be a number above 0")]
    TierLink {
        /// Name of the parameter.
        name: &'static str,
        /// Value as given on input.
        value: f64,
    },
    /// Probability out of range.
    #[error("draft_acceptance is {0}; it must be between 0 and 1")]
    DraftAcceptance(f64),
    /// Unknown router, or invalid parameters.
    #[error(transparent)]
    Router(#[from] RegistryError),
    /// Replicas that cannot form a cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Roles for another number of replicas.
    #[error("{roles} roles for {replicas} replicas; give one role for each replica")]
    Roles {
        /// Number of roles in the settings.
        roles: usize,
        /// Number of replicas of all kinds.
        replicas: usize,
    },
    /// Roles without a rate of arrivals.
    #[error(
        "with roles, a fleet has no capacity to measure by requests that arrive at once; give a speed instead of a load"
    )]
    RolesAtOnce,
    /// Phase that no replica serves.
    #[error("no replica has the role {} or 'both'", quoted(.0))]
    NoRole(&'static str),
    /// Means of random failures out of range.
    #[error(transparent)]
    RandomFailures(#[from] RandomFailuresError),
    /// Autoscaling that cannot be.
    #[error(transparent)]
    Autoscale(#[from] AutoscaleError),
    /// Ranks that cannot run in lock step.
    #[error(transparent)]
    LockStep(#[from] LockStepError),
    /// Prices out of range, or not one for each kind of replica.
    #[error("{prices} prices for {kinds} kinds of replica; give each kind a price above 0, or none")]
    Prices {
        /// Number of prices in the settings.
        prices: usize,
        /// Number of kinds of replica.
        kinds: usize,
    },
    /// Faults that cannot happen in the fleet.
    #[error(transparent)]
    Faults(#[from] FaultError),
}
