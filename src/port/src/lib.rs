//! The interface between Trunkline's scheduling core and the workers: plain values and two traits.
//!
//! The core sends a [`Step`] and receives a [`StepResult`]; it requests copies of KV blocks with a [`Transfer`]. A worker
//! implements [`StepRunner`] and [`DeviceBlocks`], and describes the worker's model with a [`ModelInfo`]. Neither side sees more of
//! the other, so a worker needs no scheduler and the core needs no model.
//!
//! **Boundary:** this crate depends on no other crate of Trunkline and holds no logic beyond reading and building the values.
//!
//! # Example
//!
//! A step with one sequence: a prompt of three tokens in device block 5, to be sampled after.
//!
//! ```
//! use trunkline_port::{RequestId, SeqStart, Step, StepResult, StepSeq};
//!
//! let seq = StepSeq {
//!     request: RequestId(1), slot: 0, start: true, computed: 0, n_tokens: 3, n_history: 0, tokens_at: 0,
//!     input_from_last: false, kv_write_from: 0, table_keep: 0, blocks_at: 0, n_blocks: 1, sample: true,
//!     n_generated: 0, n_drafts: 0,
//!     ..StepSeq::default()
//! };
//! let step = Step { id: 1, seqs: vec![seq], tokens: vec![7, 8, 9], blocks: vec![5], starts: vec![SeqStart::default()],
//!     ..Step::default() };
//!
//! // A worker reads it ...
//! assert_eq!(step.run_tokens(&step.seqs[0]), [7, 8, 9]);
//! assert_eq!(step.new_blocks(&step.seqs[0]), [5]);
//! // ... and answers with one token for the sequence.
//! let mut result = StepResult { step: step.id, ..StepResult::default() };
//! result.push(&[42]);
//! assert_eq!(result.of(0), [42]);
//! ```

#![forbid(unsafe_code)]

pub mod grammar;
pub mod ids;
pub mod model_info;
pub mod output;
pub mod sampling;
pub mod step;
pub mod streaming;
pub mod transfer;
pub mod weight_reads;
pub mod worker;

pub use crate::grammar::{Grammar, GrammarKind};
pub use crate::ids::{RequestId, Token};
pub use crate::model_info::{Keeps, LAYER_GROUPS_MAX, LayerGroup, ModelInfo};
pub use crate::output::{PromptLogprobs, StepOutput, TokenLogprobs};
pub use crate::sampling::{LogitBias, Sampling};
pub use crate::step::{
    CellCopy, Dropped, FailedSeq, NO_BLOCK, PromptRows, ScoreKind, Scored, SeqFault, SeqStart, Step, StepResult,
    StepSeq,
};
pub use crate::transfer::{BlockFault, BlockKey, KnownBlock, Lookup, Place, Transfer, TransferReport};
pub use crate::weight_reads::WeightReads;
pub use crate::worker::{CopyError, DeviceBlocks, StepError, StepRunner};
