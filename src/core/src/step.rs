//! Steps and their answers, re-exported from `trunkline-port`.

pub use trunkline_port::Keeps;
pub use trunkline_port::step::{CellCopy, Dropped, NO_BLOCK, ScoreKind, Scored, SeqStart, Step, StepResult, StepSeq};
