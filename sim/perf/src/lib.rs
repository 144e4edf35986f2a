//! Performance models of LLM serving.

pub mod columns;
pub mod cost;
pub mod hardware;
pub mod link;
pub mod memory;
pub mod model;

pub use trunkline_sim_workload::UnknownName;
