//! Replays traces and recordings through the Trunkline core under a virtual clock.
//!
//! The simulator owns no scheduler of its own: it is a driver of [`trunkline_core::Core`], the same state machine that the
//! server drives. What differs is the clock, which jumps from event to event, and the worker, which computes nothing and
//! takes as long as a [`cost::CostModel`] says; copies between device and host take as long as a [`link`] does. So a question about
//! capacity, policy or block size is answered by the code that will serve.
//!
//! # A replay in seven steps
//!
//! 1. A [`trace::Source`] gives requests one by one: when each arrives, how long it is, what it shares with others. It is a trace in
//!    memory, a file that is read on the way, or a [`workload`] whose users ask when they have been answered.
//! 2. [`fleet::replay_source`] makes a core per replica and goes from one thing that happens to the next.
//! 3. An arrival becomes a request: its tokens are made ([`trace::TraceRequest::prompt`]), hashed and submitted to the replica
//!    that a [`router`] picks.
//! 4. The core answers with a step. [`cost::StepShape`] sums it up, the cost model gives its duration, and its end is
//!    put on the queue.
//! 5. When it ends, the modelled worker answers with a token for each sequence that samples, and with the drafts that were right.
//!    Copies of blocks that the core asks for go to the replica's [`link`], and their ends on the queue. Steps that are like the one
//!    before them are leapt over ([`trunkline_core::Core::leap`]), unless an [`observer`] wants to see them.
//! 6. Tokens and ends of requests go to the meters of [`latency`], and of [`fairness`] if there are several [`tenants`].
//! 7. When nothing is left to happen, [`report::Report`] says what happened.
//!
//! [`capacity`] finds out how much a fleet can take, so that a load can be given as a share of it. [`plan`] finds the smallest fleet that
//! keeps promises about latency ([`slo`]), or the highest rate at which a fleet keeps them. A fleet may be of several kinds ([`group`]).
//! Replicas can be slow or fail ([`faults`]), and how each request fared can be had one by one ([`outcome`]). What a replay was like over
//! time is sampled by [`series`] and drawn by [`html`]; [`timeline`] has every step. [`figures`] makes a report a row of [`columns`], for joining many.
//!
//! [`trace`] also writes and converts traces and counts what they are like ([`trace::stats`]); [`workload`] makes requests up.
//!
//! [`recorded`] is the second way in: it shows a core the events that a server recorded and compares the decisions.
//!
//! # Invariants
//!
//! * **The same input gives the same digest and the same report** (but for `wall_s`): one thread, one clock, what happens at one instant
//!   in a fixed order, nothing random: what is drawn is a hash of what it is drawn for.
//! * **No step is faster than the hardware can be**: every cost model holds every step to [`cost::Limit`], peak FLOP/s and peak
//!   bandwidth.
//! * **Every request of a trace ends or is refused**; a core that falls silent before is an error, not a short report.
//! * Prompts exist only while a request is in a core, so memory grows with the requests in flight, and with the lines of the trace if
//!   that is in memory, not with its tokens.
//! * The simulator knows neither the server nor a real worker.
//!
//! # How near it comes
//!
//! Every report names its cost model and what that was compared with; [`cost`] says which ones there are, [`Settings::cost_model`] makes
//! the one that was chosen. With the measured table of a
//! device and the limits of [`engines`], a real run of vLLM 0.19 (300 requests, 195 preemptions) comes out with means and percentiles of
//! TTFT, TPOT and E2E within 1.2 %; with the roofline of that device within 3.5 %. That is one model on one device: elsewhere compare
//! policies with it, and calibrate ([`cost::calibrate`]) before buying hardware by it.

pub mod calibrate;
pub mod capacity;
pub mod engines;
pub mod faults;
pub mod fleet;
mod flights;
pub mod group;
mod meters;
pub mod plan;
pub mod recorded;
pub mod router;
pub mod settings;
mod worker;

pub use crate::fleet::{ReplayError, replay, replay_source, replay_watched};
pub use crate::settings::{Arrivals, Routing, Settings};
