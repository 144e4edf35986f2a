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

use trunkline_core::Config;

use crate::cost::{BoxedCost, CostError, Mixed, Parallel};
use crate::hardware::Hardware;
use crate::memory::{DoesNotFit, device_blocks_beside};
use crate::settings::Settings;

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

impl Settings {
    /// Replicas of all kinds.
    pub fn n_replicas(&self) -> u32 {
        self.others.iter().fold(self.replicas, |sum, group| sum.saturating_add(group.replicas))
    }

    /// The group of a replica, if it is not of the first kind.
    pub fn group_of(&self, replica: usize) -> Option<&Group> {
        let mut after = self.replicas as usize;
        self.others.iter().find(|group| {
            let before = after;
            after += group.replicas as usize;
            (before..after).contains(&replica)
        })
    }

    /// The device of a replica.
    pub fn hardware_of(&self, replica: usize) -> &Hardware {
        self.group_of(replica).map_or(&self.hardware, |group| &group.hardware)
    }

    /// The limits of a replica's core.
    pub fn core_of(&self, replica: usize) -> Config {
        match self.group_of(replica) {
            None => self.core.clone(),
            Some(group) => self.core_in(group),
        }
    }

    /// The limits of the cores of a group.
    pub(crate) fn core_in(&self, group: &Group) -> Config {
        Config {
            device_blocks: group.device_blocks,
            swap_block_ns: group.swap_block_ns,
            recompute_token_ns: group.recompute_token_ns,
            ..self.core.clone()
        }
    }

    /// The name of the device, or of each kind how many replicas of which devices.
    pub fn devices(&self) -> String {
        if self.others.is_empty() {
            return self.hardware.name.into();
        }
        let kinds = self.kinds().map(|(replicas, hardware, parallel, _)| match parallel {
            Parallel::ONE => format!("{replicas} x {}", hardware.name),
            parallel => format!("{replicas} x {} {parallel}", hardware.name),
        });
        kinds.collect::<Vec<_>>().join(", ")
    }

    /// Adds replicas of another kind, with so many blocks or as many as fit beside the weights, and with costs that are yet to be
    /// estimated ([`Settings::estimate_costs`]).
    pub fn add_group(
        &mut self,
        hardware: Hardware,
        parallel: Parallel,
        replicas: u32,
        device_blocks: Option<u32>,
    ) -> Result<(), DoesNotFit> {
        let fitting = || device_blocks_beside(self.weights, &hardware, &self.model, parallel, self.core.block_size);
        let device_blocks = device_blocks.map_or_else(fitting, Ok)?;
        let Config { swap_block_ns, recompute_token_ns, .. } = self.core;
        self.others.push(Group { hardware, parallel, replicas, device_blocks, swap_block_ns, recompute_token_ns });
        Ok(())
    }

    /// Each kind: replicas, device, shape, blocks.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (u32, &Hardware, Parallel, u32)> {
        let first = (self.replicas, &self.hardware, self.parallel, self.core.device_blocks);
        let others = self.others.iter();
        std::iter::once(first)
            .chain(others.map(|group| (group.replicas, &group.hardware, group.parallel, group.device_blocks)))
    }

    /// Makes the cost model. That can mean reading a table: once is enough for settings that differ in nothing it depends on.
    pub fn cost_model(&self) -> Result<BoxedCost, CostError> {
        let make = |hardware, parallel| self.cost.make(hardware, &self.model, parallel, self.weights);
        if self.others.is_empty() {
            return make(&self.hardware, self.parallel);
        }
        let kinds = self.kinds().map(|(replicas, hardware, parallel, _)| {
            let cost = make(hardware, parallel)?;
            Ok((replicas, format!("{replicas} x {}: {}", hardware.name, cost.name()), cost))
        });
        Ok(Box::new(Mixed::new(kinds.collect::<Result<_, CostError>>()?)))
    }
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

#[cfg(test)]
mod tests;
