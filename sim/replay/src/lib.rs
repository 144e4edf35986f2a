//! Replays of traces and recordings through the Trunkline core under a virtual clock.
//!
//! The simulator has no scheduler of its own: it drives [`trunkline_core::Core`], the state machine of the server. Only the clock
//! and the worker differ: the clock jumps from event to event, and the worker takes the time of a
//! [`CostModel`](trunkline_sim_perf::cost::CostModel) without computing. Copies between device and host take the time of a
//! [`link`](trunkline_sim_perf::link). Questions about capacity, policy or block size are therefore answered by the code that will
//! serve.
//!
//! ```
//! use trunkline_sim_perf::{hardware, model};
//! use trunkline_sim_replay::{Settings, replay};
//! use trunkline_sim_workload::trace::{Content, Trace, TraceRequest, formats};
//!
//! let request = |n: u32| TraceRequest {
//!     arrival_ns: u64::from(n) * 1_000_000,
//!     input_tokens: 100,
//!     output_tokens: 10,
//!     content: Content::Unique(n),
//!     ..TraceRequest::default()
//! };
//! let trace = Trace { format: formats::SYNTHETIC, requests: (0..20).map(request).collect() };
//! let mut settings = Settings::new(*hardware::by_name("h100-80g")?, *model::by_name("llama-3.1-8b")?);
//! settings.core.device_blocks = settings.fitting_device_blocks()?;
//! let cost = settings.cost_model()?;
//! let report = replay(&trace, &settings, &*cost, &mut |_| {})?;
//! assert_eq!(report.completed, 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A replay in seven steps
//!
//! 1. A [`Source`](trunkline_sim_workload::trace::Source) yields requests one by one: a trace in memory, a file read on demand, or
//!    a synthetic workload of users who react to answers.
//! 2. [`fleet::replay_source`] creates a core per replica and processes events in the order of time.
//! 3. An arrival becomes a request: the prompt tokens are made, hashed and submitted to the replica chosen by a router of the [`trunkline_cluster`].
//! 4. The core answers with a step. The cost model gives its duration from the batch shape, and the end enters the queue.
//! 5. At the end of a step, the modelled worker returns a token for each sampled sequence, plus accepted drafts. Copies of blocks
//!    go to the replica's link, and all wake-ups enter the queue. Steady decode steps are fast-forwarded unless an
//!    [`Observer`](trunkline_sim_report::Observer) wants to see each.
//! 6. Tokens and ends of requests go to meters of latency, and of [`fairness`](trunkline_sim_report::fairness) for several tenants.
//! 7. After the last event, the fleet returns a [`Report`](trunkline_sim_report::Report).
//!
//! [`capacity`] measures the throughput limit of a fleet, so that a load can be given as a share of it. [`plan`] finds the smallest
//! fleet for a set of SLOs, or the highest rate for a fleet. A fleet may have several kinds of replica ([`group`]), and replicas
//! can be slow or fail ([`faults`], [`random_failures`]). Policies change the number of replicas ([`autoscale`]). [`calibrate`](mod@calibrate) fits step times to a server, and [`recorded`] replays the
//! recording of a server and compares the decisions.
//!
//! # Invariants
//!
//! * **Equal inputs give equal digests and equal reports**, except `wall_s`: one thread, one clock, a fixed order of events at one
//!   instant, and hashes instead of randomness.
//! * **No step is faster than the hardware**: every cost model applies [`LowerBound`](trunkline_sim_perf::cost::LowerBound), peak
//!   FLOP/s and peak bandwidth, to every step.
//! * **Every request of a trace ends or is refused**; a core without further actions before is an error, not a short report.
//! * Prompts exist only while their request is in a core. Memory grows with the requests in flight, and with the lines of a trace
//!   in memory, but not with its tokens.
//! * The simulator depends neither on the server nor on a real worker.
//!
//! # Accuracy
//!
//! Every report names the cost model with its reference; [`trunkline_sim_perf::cost`] lists the models. With a measured
//! table of the device and the limits of [`engines`], the means and percentiles of TTFT, TPOT and E2E of a real run of vLLM 0.19
//! (300 requests, 195 preemptions) are reproduced within 1.2 %; with the roofline of the device within 3.5 %. The comparison covers
//! one model on one device: elsewhere use the simulator to compare policies, and calibrate before buying hardware.

pub mod autoscale;
pub mod calibrate;
pub mod capacity;
pub mod ci;
pub mod diff;
pub mod engine_memory;
pub mod engines;
pub mod explain;
pub mod faults;
pub mod fleet;
pub mod group;
mod in_flight;
pub mod log_class;
mod meters;
pub mod plan;
pub mod random_failures;
pub mod recorded;
pub mod rerun;
pub mod settings;
pub mod tune;
pub mod what_if;
mod worker;

pub use crate::fleet::{ReplayError, replay, replay_source, replay_watched};
pub use crate::settings::{Arrivals, Routing, Settings};
pub use crate::worker::accepted_drafts;
