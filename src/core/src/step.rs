//! Steps and their answers, re-exported from `trunkline-port`.

pub use trunkline_port::step::{Step, StepResult, StepSeq};
