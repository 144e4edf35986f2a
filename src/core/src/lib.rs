//! The pure state machine of Trunkline: decides, step after step, which request runs which tokens on which KV blocks.
//!
//! The core does no I/O, reads no clock, starts no thread and draws no random number. Input arrives as an [`Event`] with a time;
//! output leaves as an [`Action`]. The server drives the core with a real clock and real workers, the simulator with a virtual clock
//! and modelled workers, the tests with fakes that inject faults: simulation and serving run the same code.
//!
//! # The path of a request
//!
//! 1. A driver makes a [`Request`], hashes its prompt ([`Request::hash_prompt`]) off the core's thread, and submits it.
//! 2. [`Core::handle`] refuses the request for good, or accepts it; the [`policy`] ranks it among the waiting requests.
//! 3. A scheduling pass (`scheduler.rs`) admits the head of the queue (`admission.rs`): it finds the longest published prefix in the
//!    [`tree`](cache::tree), verifies it by tokens, takes references, and allocates private blocks for the rest. Blocks that only a tier has are
//!    loaded first (`loading.rs`).
//! 4. A [`Step`] runs decodes and prefill chunks together, within a token budget.
//! 5. When the step ends, blocks that became full are published (`kv.rs`); duplicates are merged.
//! 6. Tokens are emitted; an ended request leaves its published blocks behind, idle, for the next one, and copies them to tiers.
//!
//! When blocks run out, a victim is preempted (`preemption.rs`): its KV is swapped to the host (`swap.rs`) or computed again. A driver
//! whose worker computes nothing may skip over steady decode steps ([`Core::fast_forward`]).
//!
//! # Invariants
//!
//! * Every block is in exactly one state: free + private + held + idle + moving + stale = capacity, after every event ([`block`](blocks::block)).
//! * A published block is full and never written again; it is computed, or by a step in flight ([`WorkerFacts::in_step_hits`]). Only the
//!   tail of a sequence is private.
//! * A hit is verified by comparing tokens ([`tree`](cache::tree)). A collision of hashes costs time, never contents.
//! * A reader of a block reads its ancestors too, so eviction is leaf-first by construction ([`tree`](cache::tree)).
//! * Every accepted request gets exactly one [`Action::Finish`] or [`Action::Withdrawn`], from every state ([`sequence`](request::sequence)).
//! * State machines are tables with named events; a change that the table does not list panics.
//! * No container is iterated in an order that depends on hashing. Equal events and times give an equal
//!   [`Core::digest`].
//!
//! # Example
//!
//! A request of six tokens, a step, and the worker's answer with the first sampled token:
//!
//! ```
//! use trunkline_core::{Action, Config, Core, Event, Namespace, Request, RequestId, StepResult};
//!
//! let config = Config { block_size: 4, ..Config::default() };
//! let mut core = Core::new(config)?;
//! let mut actions = Vec::new();
//! core.handle(0, Event::WorkerJoined, &mut actions);
//! let mut request = Request::new(RequestId(1), Namespace::default().root(), vec![7; 6], 2);
//! request.hash_prompt(4);
//! core.handle(1_000, Event::Submit(Box::new(request)), &mut actions);
//! let Some(Action::RunStep(step)) = actions.pop() else { panic!("the worker is idle, so the request runs") };
//! assert_eq!((step.seqs[0].n_tokens, step.seqs[0].sample), (6, true));
//!
//! let mut result = StepResult { step: step.id, ..StepResult::default() };
//! result.push(&[42]);
//! core.handle(9_000, Event::StepFinished(result), &mut actions);
//! assert_eq!(actions[0], Action::Token { request: RequestId(1), token: 42 });
//! assert!(matches!(actions[1], Action::RunStep(_)), "the second token is decoded next");
//! # Ok::<(), trunkline_core::ConfigError>(())
//! ```
//!
//! **Architecture invariant:** this crate knows no tokio, no tonic, no file and no socket.
//!
//! Start with [`event`](core::event), then [`core`](Core).

pub mod blocks;
pub mod cache;
pub mod config;
pub mod core;
pub mod draw;
pub mod eviction;
pub mod h2o;
mod journal;
pub mod names;
pub mod policy;
pub mod request;
mod schedule;

/// Compiles the examples of the page on policies.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/policies.md")]
mod policies_page {}

pub use crate::blocks::hash::{BlockHash, Namespace};
pub use crate::cache::changes::{CacheEvent, RemovedBlocks, StoredBlocks};
pub use crate::cache::pause::Pause;
pub use crate::config::{
    Config, ConfigError, H2oConfig, Preemption, ReuseConfig, STEPS_IN_FLIGHT_MAX, TIERS_MAX, TierConfig, WorkerFacts,
    Write,
};
pub use crate::core::Core;
pub use crate::core::event::{Action, Event};
pub use crate::core::fast_forward::{FastForwardDriver, FastForwardResult, SteadyBatch, SteadySteps};
pub use crate::core::listening::Standing;
pub use crate::journal::preempted::{Preempted, PreemptionCause};
pub use crate::journal::reasons::{Evicted, Lack, NotAdmitted, Reasons};
pub use crate::journal::stats::{
    DraftCounters, Figure, FigureKind, H2oCounters, LoadCounters, RequestCounters, RetentionCounters, Stats,
    SwapCounters, TierStats, TokenCounters,
};
pub use crate::names::ids::{BlockHandle, RequestId, Token};
pub use crate::request::remains::Remains;
pub use crate::request::retention::RetentionHint;
pub use crate::request::{BACKGROUND_NS, FinishReason, Refusal, Request, Reuse, Sampling, Usage};
pub use crate::schedule::suspects::{LoneFailure, OTHER_FAILURES_MAX, WORKER_FAILURES_MAX};
pub use trunkline_port::Keeps;
pub use trunkline_port::step::{
    CellCopy, Dropped, FailedSeq, NO_BLOCK, PromptRows, ScoreKind, Scored, SeqFault, SeqStart, Step, StepResult,
    StepSeq,
};
pub use trunkline_port::transfer::{BlockFault, BlockKey, KnownBlock, Lookup, Place, Transfer, TransferReport};
