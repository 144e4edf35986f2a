//! Streaming weights: layers come from a disk through the host's memory to the device while other layers compute.
//!
//! ```text
//! disk --disk_bytes_s--> host window --link_bytes_s--> device window --> compute
//! ```
//!
//! A layer has a permanent place: on the device, in the host's memory, or on the disk. Every pass over the model visits all layers
//! in order, and starts at the end of the previous pass. For layer `i` (counted over all passes)
//!
//! ```text
//! read(i)    = max(read of the previous layer on the disk, copied(i - host_window)) + bytes / disk_bytes_s           on the disk
//! copied(i)  = max(copied before, read(i), computed(i - device_window)) + bytes / link_bytes_s                       not on the device
//! computed(i) = max(computed(i - 1), copied(i)) + compute
//! ```
//!
//! Windows count layers of the model rather than streamed layers: a ring indexed by layer. `device_window` is the number of slots
//! not taken by resident layers. The step time is the mean over the last simulated passes, once the pipeline has filled.
//!
//! An LRU cache of any size is useless here: layers come round in a circle, and the next layer needed is the one just evicted.
//! Pinned layers do as well as any policy can, best spread evenly between the streamed ones.

use trunkline_port::WeightReads;
use trunkline_port::streaming::BudgetError;

use super::{BoxedCost, CostModel, Largest, StepShape, TimedStep, nanoseconds};
use crate::model::Model;

/// Layers pinned in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Layers on the device.
    pub device: u32,
    /// Layers in the host's memory.
    pub host: u32,
    /// Positions of the pinned layers.
    pub order: Order,
}

/// Positions of the pinned layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first layers of the model.
    First,
    /// Spread evenly from the first layer to the last.
    Interleaved,
}

/// Places and paths of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamingPlan {
    /// Layers of the model.
    pub layers: u32,
    /// Bytes of the weights per layer.
    pub layer_bytes: u64,
    /// Read rate of the disk, bytes/s.
    pub disk_bytes_s: f64,
    /// Rate of the link to the device, bytes/s.
    pub link_bytes_s: f64,
    /// Layers that never leave their place.
    pub resident: Resident,
    /// Read-ahead of the disk, layers.
    pub host_window: u32,
    /// Room on the device in layers, pinned layers included.
    pub device_slots: u32,
}

/// Streaming plan that cannot work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StreamingError {
    /// More pinned layers than layers.
    #[error("{resident} layers are to stay in memory, the model has {layers}")]
    TooManyResident {
        /// Number of pinned layers.
        resident: u64,
        /// Number of layers of the model.
        layers: u32,
    },
    /// Memory too small for a window.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// Window or rate too small to move a layer.
    #[error("{name} is {value}; it must be above {least}")]
    TooSmall {
        /// Name of the parameter.
        name: &'static str,
        /// Value as given on input.
        value: f64,
        /// Lower limit of the value, exclusive.
        least: f64,
    },
}

impl Resident {
    /// Pins every layer in the host's memory.
    pub fn all_in_host(model: &Model) -> Self {
        Self { device: 0, host: model.layers as u32, order: Order::First }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Device,
    Host,
    Disk,
}

/// Simulated passes, and the last of them measured.
const PASSES: usize = 12;
const MEASURED: usize = 6;

impl StreamingPlan {
    /// Returns a plan for `model` with a disk of 3 GB/s, a link of 64 GB/s (PCIe 5.0 x16), a host window of 4 layers and 6 slots on
    /// the device.
    pub fn new(model: &Model, resident: Resident) -> Self {
        Self {
            layers: model.layers as u32,
            layer_bytes: model.layer_bytes() / model.layers,
            disk_bytes_s: 3e9,
            link_bytes_s: 64e9,
            resident,
            host_window: 4,
            device_slots: 6,
        }
    }

    fn check(&self) -> Result<(), StreamingError> {
        let resident = u64::from(self.resident.device) + u64::from(self.resident.host);
        if resident > u64::from(self.layers) {
            return Err(StreamingError::TooManyResident { resident, layers: self.layers });
        }
        for (name, value, least) in [
            ("layers", f64::from(self.layers), 0.0),
            ("disk_bytes_s", self.disk_bytes_s, 0.0),
            ("link_bytes_s", self.link_bytes_s, 0.0),
            ("host_window", f64::from(self.host_window), 0.0),
            ("device_slots", f64::from(self.device_slots), f64::from(self.resident.device)),
        ] {
            if value.is_nan() || value <= least {
                return Err(StreamingError::TooSmall { name, value, least });
            }
        }
        Ok(())
    }

    fn places(&self) -> Vec<Place> {
        let (layers, device) = (self.layers as usize, self.resident.device as usize);
        let resident = device + self.resident.host as usize;
        let mut places = vec![Place::Disk; layers];
        for j in 0..resident {
            let at = match self.resident.order {
                Order::Interleaved if resident > 1 => {
                    (j as f64 * (layers - 1) as f64 / (resident - 1) as f64).round() as usize
                }
                _ => j,
            };
            places[at] = if j + device >= resident { Place::Device } else { Place::Host };
        }
        places
    }

    /// Returns the time of a pass in a full pipeline with `compute_s` seconds per layer.
    pub fn pass_s(&self, compute_s: f64) -> f64 {
        self.play(&self.places(), compute_s)
    }

    fn play(&self, places: &[Place], compute_s: f64) -> f64 {
        let layers = places.len();
        let bytes = self.layer_bytes as f64;
        let (read_s, copy_s) = (bytes / self.disk_bytes_s, bytes / self.link_bytes_s);
        let host_window = self.host_window as usize;
        let device_window = (self.device_slots - self.resident.device) as usize;
        // When layer `i` had left the host, and when it was done with. Nothing came before the first.
        let (mut copied, mut computed) = (vec![0.0; layers * PASSES], vec![0.0; layers * PASSES]);
        let before = |times: &[f64], i: usize, window: usize| if i < window { 0.0 } else { times[i - window] };
        let (mut last_read, mut last_copied, mut last_computed) = (0.0f64, 0.0f64, 0.0f64);
        for i in 0..layers * PASSES {
            let place = places[i % layers];
            let mut there = 0.0;
            if place == Place::Disk {
                last_read = last_read.max(before(&copied, i, host_window)) + read_s;
                there = last_read;
            }
            if place != Place::Device {
                last_copied = last_copied.max(there).max(before(&computed, i, device_window)) + copy_s;
                there = last_copied;
            }
            last_computed = last_computed.max(there) + compute_s;
            copied[i] = if place == Place::Device { last_computed } else { there };
            computed[i] = last_computed;
        }
        let end = |pass: usize| computed[pass * layers - 1];
        (end(PASSES) - end(PASSES - MEASURED)) / MEASURED as f64
    }

    /// Returns the lower bound for any schedule: all bytes through the disk, all through the link, or all compute, seconds.
    pub fn bound_s(&self, compute_s: f64) -> f64 {
        let Resident { device, host, .. } = self.resident;
        let bytes = |layers: u32| f64::from(layers) * self.layer_bytes as f64;
        (bytes(self.layers - device - host) / self.disk_bytes_s)
            .max(bytes(self.layers - device) / self.link_bytes_s)
            .max(f64::from(self.layers) * compute_s)
    }
}

/// Compute times with a precomputed pass: 1 us to 134 s, eight per factor of two; interpolation is within 0.1 %.
const GRID: usize = 27 * 8 + 1;

/// Times of passes by the time of the computation: a convex function, interpolated.
pub(super) struct Passes {
    /// Compute time and time of a pass, seconds.
    points: Vec<(f64, f64)>,
    /// Slope beyond the last point.
    slope: f64,
}

impl Passes {
    /// Computes the points of `pass_s`, whose final slope is `slope`.
    pub(super) fn new(slope: f64, pass_s: impl Fn(f64) -> f64) -> Self {
        let at = |i: usize| {
            let compute_s = 1e-6 * 2f64.powf(i as f64 / 8.0);
            (compute_s, pass_s(compute_s))
        };
        Self { points: (0..GRID).map(at).collect(), slope }
    }

    /// Returns the time of a pass, seconds.
    pub(super) fn at(&self, compute_s: f64) -> f64 {
        match self.points.partition_point(|(at, _)| *at <= compute_s) {
            0 => self.points[0].1,
            GRID => self.points[GRID - 1].1 + self.slope * (compute_s - self.points[GRID - 1].0),
            right => {
                let ((x0, y0), (x1, y1)) = (self.points[right - 1], self.points[right]);
                y0 + (y1 - y0) * (compute_s - x0) / (x1 - x0)
            }
        }
    }
}

/// Cost model with streaming weights on top of another model.
pub struct Streaming {
    plan: StreamingPlan,
    compute: BoxedCost,
    /// Times of a pass by the compute time of a layer.
    passes: Passes,
    name: String,
}

impl Streaming {
    /// Combines the compute times of `compute` with the movement of weights of `plan`.
    ///
    /// # Errors
    ///
    /// [`StreamingError`] if the plan is impossible.
    pub fn new(plan: StreamingPlan, compute: BoxedCost) -> Result<Self, StreamingError> {
        plan.check()?;
        let places = plan.places();
        let passes = Passes::new(f64::from(plan.layers), |compute_s| plan.play(&places, compute_s));
        let Resident { device, host, .. } = plan.resident;
        let disk = plan.layers - device - host;
        let name = format!("{disk} layers streamed from disk, {host} from the host, {}", compute.name());
        Ok(Self { plan, compute, passes, name })
    }

    /// Returns the time of a step that computes for `compute_ns`, nanoseconds, at least that.
    fn pass_ns(&self, compute_ns: u64) -> u64 {
        let pass_s = self.passes.at(compute_ns as f64 / 1e9 / f64::from(self.plan.layers));
        nanoseconds(pass_s).max(compute_ns)
    }
}

impl CostModel for Streaming {
    fn name(&self) -> &str {
        &self.name
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        self.pass_ns(self.compute.step_ns(shape))
    }

    fn weight_reads(&self, replica: usize, shape: &StepShape) -> WeightReads {
        self.timed_step(replica, shape).reads
    }

    /// Returns the time and the reads of a step: reading is the time on the disk and on the link, one after the other.
    fn timed_step(&self, _: usize, shape: &StepShape) -> TimedStep {
        let StreamingPlan { layers, layer_bytes, disk_bytes_s, link_bytes_s, resident, .. } = self.plan;
        let Resident { device, host, .. } = resident;
        let bytes = |layers: u32| u64::from(layers) * layer_bytes;
        let (from_disk, over_link) = (bytes(layers - device - host), bytes(layers - device));
        let compute_ns = self.compute.step_ns(shape);
        let ns = self.pass_ns(compute_ns);
        let reads = WeightReads {
            steps: 1,
            bytes: from_disk,
            reading_ns: nanoseconds(from_disk as f64 / disk_bytes_s + over_link as f64 / link_bytes_s),
            exposed_ns: ns - compute_ns,
            step_ns: ns,
            failed_reads: 0,
        };
        TimedStep { ns, reads }
    }

    fn largest(&self, replica: usize) -> Option<Largest> {
        self.compute.largest(replica)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model;

    /// Llama-3.1-70B in 16 bits: 80 layers of 1,632 MiB.
    fn plan(device: u32, host: u32, order: Order) -> StreamingPlan {
        let llama = model::by_name("llama-3.1-70b").unwrap();
        StreamingPlan::new(llama, Resident { device, host, order })
    }

    #[test]
    fn a_system_with_layers_on_a_disk_takes_as_long_as_its_recurrences_say() {
        let llama_compute_s = 0.00178; // 1.71 GB at 960 GB/s.
        let pinned = |host, order| plan(0, host, order);
        let fast = |plan: StreamingPlan| StreamingPlan { disk_bytes_s: 12e9, link_bytes_s: 52e9, ..plan };
        let sata = |plan: StreamingPlan| StreamingPlan { disk_bytes_s: 0.5e9, ..plan };
        // A ring that holds 50 layers holds none that is needed.
        let ring = StreamingPlan { host_window: 50, ..pinned(0, Order::First) };
        for (what, plan, compute_s, seconds, bound_s, rounding) in [
            ("ring of 50", ring, 0.1, 45.63, 45.63, 0.005),
            ("50 pinned", pinned(50, Order::First), 0.1, 21.37, 17.11, 0.005),
            ("50 pinned, interleaved", pinned(50, Order::Interleaved), 0.1, 17.11, 17.11, 0.005),
            ("66 pinned", pinned(66, Order::First), 0.1, 13.84, 8.00, 0.005),
            ("66 pinned, interleaved", pinned(66, Order::Interleaved), 0.1, 9.00, 8.00, 0.005),
            ("50 and 4", plan(4, 50, Order::Interleaved), llama_compute_s, 14.86, 14.83, 0.005),
            ("50 and 4, fast", fast(plan(4, 50, Order::Interleaved)), llama_compute_s, 3.74, 3.71, 0.005),
            ("all in memory", pinned(80, Order::First), llama_compute_s, 2.14, 2.14, 0.005),
            ("all in memory, 4 on the device", fast(plan(4, 76, Order::First)), llama_compute_s, 2.51, 2.50, 0.005),
            ("30 pinned", pinned(30, Order::First), 0.1, 30.8, 28.5, 0.05),
            ("70 pinned, SATA", sata(pinned(70, Order::First)), 0.1, 40.5, 34.2, 0.05),
        ] {
            let (found, found_bound) = (plan.pass_s(compute_s), plan.bound_s(compute_s));
            assert!((found - seconds).abs() <= rounding, "{what}: {found}");
            assert!((found_bound - bound_s).abs() <= rounding, "{what}: bound {found_bound}");
            assert!(found >= found_bound - 1e-9, "{what}");
        }
        // A batch of 32 costs as much as a batch of one: 2.2 tokens/s, or 12 to 13 with all layers in memory.
        assert!((32.0 / plan(4, 50, Order::Interleaved).pass_s(llama_compute_s) - 2.2).abs() < 0.05);
        assert!((12.0..13.0).contains(&(32.0 / fast(plan(4, 76, Order::First)).pass_s(llama_compute_s))));
    }

    /// Steps of one duration, nanoseconds.
    pub(in crate::cost) struct Constant(pub(in crate::cost) u64);

    impl CostModel for Constant {
        fn name(&self) -> &str {
            "constant"
        }

        fn step_ns(&self, _: &StepShape) -> u64 {
            self.0
        }
    }

    #[test]
    fn the_reads_of_a_step_follow_the_definitions() {
        // A disk of 3 GB/s reads a layer in 570 ms, and a link of 64 GB/s moves it in 27 ms.
        let plan = plan(0, 66, Order::Interleaved);
        let cost = Streaming::new(plan, Box::new(Constant(8_000_000_000))).unwrap();
        let reads = cost.weight_reads(0, &StepShape::default());
        let reading_s = 14.0 * 1.711_276_032 / 3.0 + 80.0 * 1.711_276_032 / 64.0;
        assert_eq!((reads.steps, reads.bytes), (1, 14 * plan.layer_bytes));
        assert!((reads.reading_ns as f64 / 1e9 - reading_s).abs() < 1e-3, "{reads:?}");
        assert!((reads.step_ns as f64 / 1e9 - 9.0).abs() < 0.01 && reads.computing_ns() == 8_000_000_000, "{reads:?}");
        assert_eq!(reads.serial_ns() - reads.step_ns, reads.hidden_ns());
        let step = cost.timed_step(0, &StepShape::default());
        assert_eq!((step.ns, step.reads), (cost.step_ns(&StepShape::default()), reads));
    }

    #[test]
    fn a_step_is_a_pass() {
        let plan = plan(0, 66, Order::Interleaved);
        for step_ns in [0, 1_000, 142_400_000, 8_000_000_000, 8_123_456_789, 20_000_000_000_000] {
            let cost = Streaming::new(plan, Box::new(Constant(step_ns))).unwrap();
            let exact_s = plan.pass_s(step_ns as f64 / 80e9);
            let found_s = cost.step_ns(&StepShape::default()) as f64 / 1e9;
            assert!((found_s / exact_s - 1.0).abs() < 2e-3, "{step_ns}: {found_s} {exact_s}");
        }
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        let error = |plan| Streaming::new(plan, Box::new(Constant(1))).err().unwrap().to_string();
        assert_eq!(error(plan(4, 77, Order::First)), "81 layers are to stay in memory, the model has 80");
        assert_eq!(error(plan(6, 1, Order::First)), "device_slots is 6; it must be above 6");
        let slow = StreamingPlan { disk_bytes_s: 0.0, ..plan(0, 1, Order::First) };
        assert_eq!(error(slow), "disk_bytes_s is 0; it must be above 0");
    }
}
