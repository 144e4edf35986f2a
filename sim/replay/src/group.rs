//! Fleets of several kinds: replicas of other devices, or of other numbers of them.
//!
//! [`Settings`] describe the replicas of the first kind; [`Settings::others`] are those of further kinds, numbered after them. All serve
//! one model in blocks of one size by one policy, so that only what follows from the devices differs: how many blocks there are, and how
//! long steps and copies take.
//!
//! Routers count load in requests and tokens, not in time, so a fast replica is sent as much as a slow one until its load falls behind;
//! and a request that a small replica is sent and has no room for is refused, though a larger one might have had it.

use std::fmt;
use std::str::FromStr;

use trunkline_sim_perf::cost::Parallel;
use trunkline_sim_perf::hardware::Hardware;

/// Replicas of a further kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The devices of each replica.
    pub hardware: Hardware,
    /// How one replica spreads the model over devices.
    pub parallel: Parallel,
    /// Replicas, at least one.
    pub replicas: u32,
    /// KV blocks on each device.
    pub device_blocks: u32,
    /// What copying a block is estimated to cost, nanoseconds.
    pub swap_block_ns: u64,
    /// What computing a token again is estimated to cost, nanoseconds.
    pub recompute_token_ns: u64,
}

/// Replicas of one kind as they are written: `a100-80g:tp2*4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// A preset, or a file.
    pub hardware: String,
    /// How one replica spreads the model over devices.
    pub parallel: Parallel,
    /// Replicas.
    pub replicas: u32,
}

/// A fleet as it is written: groups, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSpec(pub Vec<GroupSpec>);

/// What is no fleet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "fleet is '{0}'; give HARDWARE[:SHAPE][*REPLICAS] for each kind, separated by commas, such as h100-80g*2,a100-80g:tp2*4, with 1 to \
     {REPLICAS_MAX} replicas in all"
)]
pub struct BadFleet(pub String);

/// More replicas than any fleet that is worth replaying as one.
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
