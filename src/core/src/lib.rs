//! The pure state machine of Trunkline: it decides, step after step, which request runs which tokens on which KV blocks.
//!
//! It does no I/O, reads no clock, starts no thread and draws no random number. Everything that happens reaches it as an
//! [`Event`] with a time; everything it wants done leaves it as an [`Action`]. The server drives it with a real clock and
//! real workers, the simulator with a virtual clock and modelled ones, the tests with fakes that inject faults: what you
//! simulate is what you serve.
//!
//! # A request's way through
//!
//! 1. A driver makes a [`Request`], hashes its prompt ([`Request::hash_prompt`]) off the core's thread, and submits it.
//! 2. At the door ([`Core::handle`]) it is refused for good, or accepted and ranked by the [`policy`].
//! 3. A scheduling pass (`scheduler.rs`) admits the head of the queue: it finds the longest published prefix in the
//!    [`tree`], verifies it by tokens, takes references, and takes private blocks for the rest.
//! 4. A [`Step`] runs decodes and prefill chunks together, within a budget of tokens.
//! 5. When the step ends, blocks that became full are published; equal ones are merged.
//! 6. Tokens are emitted; a request that is done leaves its published blocks behind, idle, for the next one.
//!
//! # Invariants
//!
//! * Every block is in exactly one place: free + private + held + idle = capacity, after every event ([`block`]).
//! * A published block is full, computed and never written again. Only the tail of a sequence is private.
//! * A hit is verified by comparing tokens ([`tree`]). A collision of hashes costs time, never contents.
//! * Who reads a block reads its ancestors, so eviction is leaf-first by construction ([`tree`]).
//! * Every accepted request gets exactly one [`Action::Finish`], from every state ([`sequence`]).
//! * No container is iterated in an order that depends on hashing. Equal events and times give an equal
//!   [`Core::digest`].
//!
//! **Architecture invariant:** this crate knows no tokio, no tonic, no file and no socket.
//!
//! Start with [`event`], then [`core`](Core).

pub mod block;
mod block_index;
pub mod config;
mod core;
mod digest;
pub mod event;
pub mod eviction;
pub mod hash;
pub mod host;
pub mod ids;
mod leap;
pub mod nodes;
mod pace;
pub mod policy;
mod preemption;
pub mod record;
pub mod registry;
pub mod request;
mod scheduler;
pub mod sequence;
pub mod spec;
mod stats;
pub mod step;
mod swap;
mod tier;
mod tiering;
pub mod transfer;
pub mod tree;
pub mod waiting;

pub use crate::config::{Config, ConfigError, Preemption, TierConfig, Write};
pub use crate::core::{Core, WORKER_FAILURES_MAX};
pub use crate::event::{Action, Event};
pub use crate::hash::{BlockHash, Namespace};
pub use crate::ids::{BlockHandle, RequestId, Token};
pub use crate::leap::{Leaper, Leapt, SteadyBatch, SteadyStep};
pub use crate::request::{FinishReason, Refusal, Request, Sampling, Usage};
pub use crate::stats::{Stats, TierStats};
pub use crate::step::{Step, StepResult, StepSeq};
pub use crate::tiering::TIERS_MAX;
pub use crate::transfer::{Place, Transfer};
