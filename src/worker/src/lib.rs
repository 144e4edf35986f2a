//! The embedded worker: a model of the Llama kind on the CPU with a paged KV cache, behind [`Worker::run`].
//!
//! The worker makes Trunkline a complete server on one machine and gives tests a real model: a scheduler's mistake (a wrong block,
//! a stale table, a lost token) shows as wrong text.
//!
//! A step in order:
//!
//! 1. `mirror`: the step is checked whole against the worker's record of each slot and its block tables, then applied. `cell_copies` copies KV from
//!    block to block, if the step says so.
//! 2. `worker`: the tokens of all sequences become the rows of one batch; where the step allows drafts, `drafter` adds rows with a
//!    draft of the next tokens.
//! 3. `model`: each layer runs its matrices once for all rows (`linear`), turns queries and keys (`rope`), stores keys and
//!    values in the blocks of the table (`kv`) and runs attention over the blocks (`attention`), which collects the attention that each
//!    block gets (`scores`). Layers share tables by groups (`groups`); attention skips the holes of a table (`table`).
//! 4. `model`: only sampling rows go through the output head.
//! 5. `sampler`: one token for each sampling row, and after a right draft the next token from the draft's row.
//!
//! While steps run, [`Blocks`] reads and writes blocks as bytes, on other threads.
//!
//! A model whose weights are larger than the memory is packed into a file, group by group (`packed`, `pair`); groups that do not fit are read ahead of each step (`stream`).
//! Kernels see slices, wherever the weights lie (`stored`). A failed read is tried again (`retries`).
//!
//! **Invariant: equal bits.** The logits of a row depend on the row's sequence alone, not on the batch, the chunks, the blocks or
//! the number of threads; `kernel` explains how. **Boundary:** the crate knows steps and tokens, nothing of queues, requests' text,
//! clocks or sockets, but for the durations of the reads of streamed weights and the pauses after failed ones. Only `hugging_face`, `shards` and `gguf` read
//! files when a model is loaded, and only `packed` reads and writes packed weights.
//!
//! ```
//! use std::sync::Arc;
//! use trunkline_port::{RequestId, SeqStart, Step, StepSeq};
//! use trunkline_text::Tokenizer;
//! use trunkline_worker::{Model, Worker, WorkerConfig};
//!
//! let config = WorkerConfig { block_size: 16, device_blocks: 8, max_drafts: 0, threads: 1 };
//! let mut worker = Worker::new(Arc::new(Model::seeded(1)), config)?;
//! let tokens = Tokenizer::bytes().encode("hello")?;
//! let seq = StepSeq {
//!     request: RequestId(1), start: true, n_tokens: tokens.len() as u32, n_blocks: 1, sample: true, ..StepSeq::default()
//! };
//! let step = Step {
//!     id: 1, seqs: vec![seq], tokens, blocks: vec![5], starts: vec![SeqStart::default()], ..Step::default()
//! };
//! assert_eq!(worker.run(&step)?.result.of(0).len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod config;
pub mod error;
#[cfg(test)]
mod errors_tests;
mod files;
pub mod kernels;
mod kv;
mod layers;
mod memory;
pub mod model;
pub mod stream;
pub mod worker;

pub use crate::config::ModelConfig;
pub use crate::config::groups::{equal_groups, equal_head_groups};
pub use crate::error::{
    CopyFault, GroupFault, GroupMember, GroupsError, ModelError, SamplingError, SequenceFault, WeightsFault,
    WorkerError,
};
pub use crate::kernels::amx::Kernel;
pub use crate::kernels::matrix::{Matrix, MatrixError, WeightKind};
pub use crate::kv::KvDtype;
pub use crate::kv::blocks::Blocks;
pub use crate::memory::machine_memory;
pub use crate::model::Model;
pub use crate::stream::packed::form::Form;
pub use crate::stream::packed::learned::{Compression, Learned, Measured};
pub use crate::stream::stream_settings::{PlacedGroup, StreamInfo, StreamSettings};
pub use crate::worker::sampler::check_sampling;
pub use crate::worker::{Worker, WorkerConfig};
