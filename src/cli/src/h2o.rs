//! Which KV heads of a model may drop tokens (H2O): found by letting the model read, and kept in a file next to it.
//!
//! A library: [`serve`](crate::serve), `trunkline h2o calibrate` and the benchmarks use the same.

pub mod choice;
pub mod divergence;
pub mod full_heads;
pub mod head_file;
pub mod head_loss;
pub mod numbers;
pub mod rig;
pub mod sources;
pub mod texts;
pub mod total;
