//! Fleets with several kinds of replica: other devices, or other numbers of devices.
//!
//! [`crate::Settings`] describe the replicas of the first kind; [`crate::Settings::others`] are further kinds, numbered after them.
//! All kinds serve one model, with one block size and one policy. Kinds differ only by their devices: number of blocks, and
//! durations of steps and copies, and stages.
//!
//! Routers measure load in requests and tokens rather than time, so a fast replica receives as much as a slow one until its load
//! falls behind. A request too large for its replica is refused, even if a larger replica had room.

use std::fmt;
use std::str::FromStr;

use trunkline_quote::quoted;
use trunkline_sim_perf::cost::Parallel;
use trunkline_sim_perf::hardware::Hardware;

/// Replicas of a further kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Device of each replica.
    pub hardware: Hardware,
    /// Parallelism of each replica.
    pub parallel: Parallel,
    /// Number of replicas, at least one.
    pub replicas: u32,
    /// KV blocks on each device.
    pub device_blocks: u32,
    /// Estimated cost of copying a block, nanoseconds.
    pub swap_block_ns: u64,
    /// Estimated cost of recomputing a token, nanoseconds.
    pub recompute_token_ns: u64,
    /// Stages that the scheduler assumes.
    pub pipeline_stages: u32,
    /// Maximum number of steps in flight.
    pub max_steps_in_flight: u32,
    /// Token budget of a step.
    pub max_batch_tokens: u32,
}

/// Text form of one kind, such as `a100-80g:tp2*4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Preset or path of a file.
    pub hardware: String,
    /// Parallelism of each replica.
    pub parallel: Parallel,
    /// Number of replicas, at least one.
    pub replicas: u32,
}

/// Text form of a fleet: kinds separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSpec(pub Vec<GroupSpec>);

/// Invalid fleet, as given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "fleet is {}; give HARDWARE[:SHAPE][*REPLICAS] for each kind, separated by commas, such as h100-80g*2,a100-80g:tp2*4, with 1 to \
     {REPLICAS_MAX} replicas in all"
, quoted(.0))]
pub struct BadFleet(pub String);

/// Maximum number of replicas in a fleet.
pub const REPLICAS_MAX: u32 = 4096;

impl GroupSpec {
    fn parse(text: &str) -> Option<Self> {
        let (kind, replicas) = match text.rsplit_once('*') {
            None => (text, 1),
            Some((kind, replicas)) => (kind, replicas.trim().parse().ok()?),
        };
        let (hardware, parallel) = match kind.rsplit_once(':') {
            None => (kind, Parallel::ONE),
            Some((hardware, parallel)) => (hardware, parallel.trim().parse().ok()?),
        };
        let hardware = hardware.trim().to_owned();
        (!hardware.is_empty() && replicas > 0).then_some(Self { hardware, parallel, replicas })
    }
}

impl FromStr for FleetSpec {
    type Err = BadFleet;

    fn from_str(text: &str) -> Result<Self, BadFleet> {
        let groups: Option<Vec<_>> = text.split(',').map(GroupSpec::parse).collect();
        let total = |groups: &[GroupSpec]| groups.iter().map(|group| u64::from(group.replicas)).sum::<u64>();
        match groups {
            Some(groups) if total(&groups) <= u64::from(REPLICAS_MAX) => Ok(Self(groups)),
            _ => Err(BadFleet(text.into())),
        }
    }
}

impl fmt::Display for GroupSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}*{}", self.hardware, self.parallel, self.replicas)
    }
}

impl fmt::Display for FleetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
}
