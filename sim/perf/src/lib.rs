//! Performance models of LLM serving for the simulator.
//!
//! | module | contents |
//! |---|---|
//! | [`hardware`] | devices: peaks, links, efficiency; presets and files |
//! | [`model`] | shapes of models; presets and `config.json` |
//! | [`memory`] | KV blocks that fit on a device or host |
//! | [`link`] | durations of copies between device, host and tiers |
//! | [`cost`] | durations of steps: roofline, measured tables, fitted and streaming models |
//! | [`columns`] | files of typed columns (Parquet), behind the feature `parquet` |
//!
//! ```
//! use trunkline_sim_perf::cost::{CostModel, Roofline, StepShape};
//! use trunkline_sim_perf::{hardware, model};
//!
//! let roofline = Roofline::new(hardware::by_name("h100-80g")?, model::by_name("llama-3.1-8b")?);
//! let (small, large) = (StepShape::decodes(1, 1000), StepShape::decodes(64, 1000));
//! assert!(roofline.step_ns(&small) < roofline.step_ns(&large));
//! # Ok::<(), trunkline_sim_perf::UnknownName>(())
//! ```

pub mod columns;
pub mod cost;
pub mod hardware;
pub mod link;
pub mod memory;
pub mod model;

pub use trunkline_sim_workload::UnknownName;
