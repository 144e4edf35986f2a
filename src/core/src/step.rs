//! Steps and their answers, re-exported from `trunkline-port`.

pub use trunkline_port::Keeps;
pub use trunkline_port::step::{
    CellCopy, Dropped, FailedSeq, NO_BLOCK, ScoreKind, Scored, SeqFault, SeqStart, Step, StepResult, StepSeq,
};
