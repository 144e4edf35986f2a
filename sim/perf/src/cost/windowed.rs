//! Weights that the embedded worker streams: groups of a layer read from a disk into a window of slots in memory, and computed with there.
//!
//! Placement and recurrence are those of the worker ([`trunkline_port::streaming`]); the time of a step without waiting comes from another model, and is spread over the
//! groups and the output matrix by their bytes.

use trunkline_port::WeightReads;
use trunkline_port::streaming::{Budget, BudgetError, Placement, parts, pass, plan};

use super::{BoxedCost, CostModel, Largest, StepShape, TimedStep};
use crate::cost::streaming::Passes;
use crate::model::Model;

/// Parameters of weights that stream through a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windowed {
    /// Memory for weights, MiB.
    pub memory_mib: u32,
    /// Groups read ahead of the one in use, in steps of decodes alone.
    pub ahead: u32,
    /// The same for steps that run prompts.
    pub prefill_ahead: u32,
    /// Read rate of the disk, MB/s.
    pub disk_mb_s: u32,
    /// Bytes on the disk of 100 bytes of weights: fewer if they are compressed.
    pub disk_percent: u32,
}

impl Windowed {
    /// Returns the bytes of attention and feed-forward matrices of each layer, and the bytes of embedding and output matrix.
    fn bytes(model: &Model) -> (Vec<u64>, u64) {
        let layers = model.layers.max(1);
        let attention = model.mixer_bytes() / layers;
        let layer = model.layer_bytes() / layers;
        let groups = [attention.max(1), layer.saturating_sub(attention).max(1)].repeat(layers as usize);
        (groups, model.weight_bytes().saturating_sub(model.layer_bytes()))
    }

    fn place(&self, model: &Model) -> Result<(Vec<u64>, u64, Placement), BudgetError> {
        let (groups, fixed_bytes) = Self::bytes(model);
        let ahead = self.ahead.max(self.prefill_ahead);
        let budget = Budget { bytes: u64::from(self.memory_mib) << 20, fixed_bytes, windows: 1, ahead };
        let placement = plan(&groups, budget)?;
        Ok((groups, fixed_bytes, placement))
    }

    /// Returns the bytes of weights in memory at any time, at most the memory asked for.
    pub fn memory_bytes(&self, model: &Model) -> u64 {
        self.place(model).map_or(u64::from(self.memory_mib) << 20, |(.., placement)| placement.memory_bytes)
    }

    /// Returns the cost model of steps that take the times of `compute` without waiting.
    ///
    /// # Errors
    ///
    /// [`BudgetError`] if the memory is too small.
    pub fn cost(&self, model: &Model, compute: BoxedCost) -> Result<WindowedCost, BudgetError> {
        let (groups, fixed_bytes, placement) = self.place(model)?;
        let on_disk = f64::from(self.disk_percent) / 100.0;
        let read_s_per_byte = on_disk * 1e-6 / f64::from(self.disk_mb_s);
        let placed: Vec<(u64, bool)> = groups.iter().copied().zip(placement.pinned.iter().copied()).collect();
        let head_bytes = model.precision.ends.bytes(model.head_elements());
        let most = (placement.slots as usize).max(1);
        let reads_of = |ahead: u32, compute_s: f64| {
            let visits = parts(&placed, head_bytes.min(fixed_bytes), read_s_per_byte, compute_s);
            pass(&visits, most.min(ahead.max(1) as usize + 1))
        };
        let passes = |ahead: u32| Passes::new(1.0, |compute_s| reads_of(ahead, compute_s).step_ns as f64 * 1e-9);
        let streamed = groups.len() - placement.pinned.iter().filter(|pinned| **pinned).count();
        let name = format!("{streamed} of {} groups of weights streamed from disk, {}", groups.len(), compute.name());
        let mut still = reads_of(self.ahead, 0.0);
        still.bytes = (still.bytes as f64 * on_disk) as u64;
        Ok(WindowedCost { compute, decodes: passes(self.ahead), prefills: passes(self.prefill_ahead), still, name })
    }
}

/// Cost model of weights that stream through a window.
pub struct WindowedCost {
    compute: BoxedCost,
    /// Times of steps of decodes alone, and of steps that run prompts.
    decodes: Passes,
    prefills: Passes,
    /// Reads of a step without computation.
    still: WeightReads,
    name: String,
}

impl CostModel for WindowedCost {
    fn name(&self) -> &str {
        &self.name
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        self.timed_step(0, shape).ns
    }

    fn weight_reads(&self, replica: usize, shape: &StepShape) -> WeightReads {
        self.timed_step(replica, shape).reads
    }

    fn timed_step(&self, _: usize, shape: &StepShape) -> TimedStep {
        let compute_ns = self.compute.step_ns(shape);
        let passes = if shape.prefills > 0 { &self.prefills } else { &self.decodes };
        let ns = super::nanoseconds(passes.at(compute_ns as f64 / 1e9)).max(compute_ns);
        TimedStep { ns, reads: WeightReads { exposed_ns: ns - compute_ns, step_ns: ns, ..self.still } }
    }

    fn largest(&self, replica: usize) -> Option<Largest> {
        self.compute.largest(replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::streaming::tests::Constant;
    use crate::model;

    #[test]
    fn a_step_waits_for_what_the_disk_cannot_read_meanwhile() {
        let llama = model::by_name("llama-3.1-8b").unwrap();
        let (groups, fixed) = Windowed::bytes(llama);
        let all: u64 = groups.iter().sum();
        assert_eq!((groups.len(), all + fixed), (2 * llama.layers as usize, llama.weight_bytes()));
        let half = Windowed {
            memory_mib: ((fixed + all / 2) >> 20) as u32,
            ahead: 2,
            prefill_ahead: 2,
            disk_mb_s: 1000,
            disk_percent: 100,
        };
        assert!(half.memory_bytes(llama) <= u64::from(half.memory_mib) << 20);
        let of = |half: Windowed, compute_s: f64| {
            let cost = half.cost(llama, Box::new(Constant((compute_s * 1e9) as u64))).unwrap();
            let (shape, reads) = (StepShape::decodes(1, 100), cost.weight_reads(0, &StepShape::decodes(1, 100)));
            assert_eq!(cost.timed_step(0, &shape), TimedStep { ns: cost.step_ns(&shape), reads });
            reads
        };
        let (slow, fast) = (of(half, 60.0), of(half, 0.5));
        let shorter = of(Windowed { disk_percent: 67, ..half }, 0.5);
        let third = [shorter.bytes as f64 / fast.bytes as f64, shorter.reading_ns as f64 / fast.reading_ns as f64];
        assert!(
            third.iter().all(|share| (share - 0.67).abs() < 1e-3),
            "a third fewer bytes is a third less time: {third:?}"
        );
        assert_eq!(slow.bytes, fast.bytes);
        assert!(slow.bytes > all / 2 && slow.bytes < all / 2 + all / 8, "the window takes a part of the memory");
        assert!((slow.reading_ns as f64 * 1e-9 - slow.bytes as f64 / 1e9).abs() < 1e-3);
        assert!(slow.hidden_share().unwrap() > 0.99, "{slow:?}");
        assert!((fast.step_ns as f64 / fast.reading_ns as f64 - 1.0).abs() < 0.05, "the disk decides: {fast:?}");
        assert!((fast.hidden_ns() as f64 * 1e-9 - 0.5).abs() < 0.2, "{fast:?}");
    }

    #[test]
    fn a_model_that_fits_takes_its_time_and_one_that_does_not_is_refused() {
        let llama = model::by_name("llama-3.1-8b").unwrap();
        let with = |memory_mib| Windowed { memory_mib, ahead: 2, prefill_ahead: 2, disk_mb_s: 1000, disk_percent: 100 };
        let cost = with(1 << 20).cost(llama, Box::new(Constant(7_000_000))).unwrap();
        assert_eq!(cost.step_ns(&StepShape::decodes(1, 100)), 7_000_000);
        assert_eq!(cost.weight_reads(0, &StepShape::decodes(1, 100)).bytes, 0);
        let error = with(64).cost(llama, Box::new(Constant(1))).err().unwrap().to_string();
        assert!(error.starts_with("weights may take 64 MiB of memory, but embedding and output matrix"), "{error}");
    }
}
