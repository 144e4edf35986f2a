//! Settings of fleets of several kinds of replica.

use trunkline_core::Config;
use trunkline_sim_perf::cost::{BoxedCost, CostError, Mixed, Parallel};
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::memory::DoesNotFit;
use trunkline_sim_report::FleetShape;

use super::Settings;
use crate::group::Group;

impl Settings {
    /// Returns the number of replicas of all kinds.
    pub fn n_replicas(&self) -> u32 {
        self.others.iter().fold(self.replicas, |sum, group| sum.saturating_add(group.replicas))
    }

    /// Returns the group of a replica; `None` for the first kind.
    pub fn group_of(&self, replica: usize) -> Option<&Group> {
        let mut after = self.replicas as usize;
        self.others.iter().find(|group| {
            let before = after;
            after += group.replicas as usize;
            (before..after).contains(&replica)
        })
    }

    /// Returns the device of a replica.
    pub fn hardware_of(&self, replica: usize) -> &Hardware {
        self.group_of(replica).map_or(&self.hardware, |group| &group.hardware)
    }

    /// Returns the parallelism of a replica.
    pub fn parallel_of(&self, replica: usize) -> Parallel {
        self.group_of(replica).map_or(self.parallel, |group| group.parallel)
    }

    /// Returns the price of each replica for an hour; empty without prices.
    pub(crate) fn replica_prices(&self) -> Vec<f64> {
        let kinds = self.kinds().zip(&self.prices);
        kinds.flat_map(|((replicas, ..), price)| std::iter::repeat_n(*price, replicas as usize)).collect()
    }

    /// Returns the limits of a replica's core.
    pub fn core_of(&self, replica: usize) -> Config {
        match self.group_of(replica) {
            None => self.core.clone(),
            Some(group) => self.core_in(group),
        }
    }

    /// Returns the limits of the cores of a group.
    pub(crate) fn core_in(&self, group: &Group) -> Config {
        Config {
            device_blocks: group.device_blocks,
            swap_block_ns: group.swap_block_ns,
            recompute_token_ns: group.recompute_token_ns,
            pipeline_stages: group.pipeline_stages,
            max_steps_in_flight: group.max_steps_in_flight,
            max_batch_tokens: group.max_batch_tokens,
            ..self.core.clone()
        }
    }

    /// Returns the name of the device, or the number of replicas per device for several kinds.
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

    /// Adds replicas of another kind with the given number of blocks, or as many as fit next to the weights. Costs are estimated
    /// later by [`Settings::estimate_costs`].
    ///
    /// # Errors
    ///
    /// [`DoesNotFit`] if no block fits.
    pub fn add_group(
        &mut self,
        hardware: Hardware,
        parallel: Parallel,
        replicas: u32,
        device_blocks: Option<u32>,
    ) -> Result<(), DoesNotFit> {
        let fitting = || self.blocks_beside_weights(&hardware, parallel);
        let device_blocks = device_blocks.map_or_else(fitting, Ok)?;
        let Config { swap_block_ns, recompute_token_ns, pipeline_stages, max_steps_in_flight, .. } = self.core;
        self.others.push(Group {
            hardware,
            parallel,
            replicas,
            device_blocks,
            swap_block_ns,
            recompute_token_ns,
            pipeline_stages,
            max_steps_in_flight,
            max_batch_tokens: self.core.max_batch_tokens,
        });
        Ok(())
    }

    /// Returns the kinds as replicas, device, parallelism and blocks.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (u32, &Hardware, Parallel, u32)> {
        let first = (self.replicas, &self.hardware, self.parallel, self.core.device_blocks);
        let others = self.others.iter();
        std::iter::once(first)
            .chain(others.map(|group| (group.replicas, &group.hardware, group.parallel, group.device_blocks)))
    }

    /// Constructs the cost model, which may read a table. Settings that differ only in other fields can share the model.
    ///
    /// # Errors
    ///
    /// [`CostError`] if the model cannot be constructed for a device.
    pub fn cost_model(&self) -> Result<BoxedCost, CostError> {
        let make = |hardware, parallel| self.cost.make(hardware, &self.model, parallel, self.weights);
        if self.others.is_empty() {
            return Ok(self.engine_overhead.around(make(&self.hardware, self.parallel)?));
        }
        let kinds = self.kinds().map(|(replicas, hardware, parallel, _)| {
            let cost = make(hardware, parallel)?;
            Ok((replicas, format!("{replicas} x {}: {}", hardware.name, cost.name()), cost))
        });
        Ok(self.engine_overhead.around(Box::new(Mixed::new(kinds.collect::<Result<_, CostError>>()?))))
    }

    /// Returns the sizes and permanent failures of this fleet, as the observers of a replay need them.
    pub fn fleet_shape(&self) -> FleetShape {
        let n = self.n_replicas();
        let tiers = self.core.tiers.iter();
        let lost = self.routing.failures.iter().filter(|failure| failure.back_ns.is_none());
        FleetShape {
            device_blocks: (0..n as usize).map(|replica| self.core_of(replica).pool_blocks().into()).collect(),
            block_bytes: self.block_bytes(),
            tiers: tiers.map(|tier| (tier.name.clone(), u64::from(tier.blocks) * u64::from(n))).collect(),
            lost: lost.map(|failure| (failure.at_ns, failure.replica)).collect(),
            off: n - self.initial_replicas(),
            changes: self.replicas_change(),
        }
    }
}

#[cfg(test)]
mod tests;
