//! Many engines behind one interface: the choice of an engine for each request, and the further way of requests after an engine is
//! lost, returns or is drained.
//!
//! An *engine* is a [`trunkline_core::Core`] and the worker running the core's steps. A [`Cluster`] owns the cores and, like a
//! core, is a pure state machine: every [`Input`] is delivered with the time of the event, every [`Output`] is for the driver to
//! perform. The server drives a cluster with a real clock and real workers, the simulator with a virtual clock and modelled
//! workers; both route, fail over and drain the same way, and a recording replays bit for bit. The relation is that of quinn-proto's
//! `Endpoint` to the endpoint's `Connection`s. [`Cluster`] says what a driver must do.
//!
//! # The way of a request
//!
//! 1. `Submit` reaches [`Cluster::handle`] with the prompt hashed. The [`router`] picks an open engine by loads and known prefixes.
//! 2. The core of the chosen engine runs the request. The core's actions come out as [`Output::Engine`], with the engine's number.
//! 3. If the worker of the engine is lost and expected back, the request waits and starts over there. If the worker is lost for
//!    good, or the engine is drained, the core gives the request back and the router picks another engine: the request continues
//!    with the tokens generated so far ([`Output::Moved`]).
//! 4. If steps fail, the request or the worker is to blame: another worker is asked before the request ends, and an engine whose steps fail in a row
//!    gets no requests until a probe succeeds ([`Health`]).
//! 5. On a prefill engine the request ends with the first token, and is handed over to a decode engine ([`handover`]).
//!
//! # Invariants
//!
//! * Every accepted request is on exactly one engine and gets exactly one `Finish`, even if engines are lost or drained.
//! * A client sees every token once: a moved request is not run from the beginning, and draws the same samples.
//! * A cluster of one engine decides as the engine's core does: same digest, same recording.
//! * Decisions are a function of inputs and times. No container is iterated in hash order.
//!
//! ```
//! use trunkline_cluster::{Cluster, ClusterConfig, EngineId, Input, Output};
//! use trunkline_core::{Action, Config, Event, Namespace, Request, RequestId};
//!
//! let config = Config::default();
//! let mut cluster = Cluster::new(&ClusterConfig::uniform(&config, 2))?;
//! let mut out = Vec::new();
//! for engine in 0..2 {
//!     cluster.handle(0, Input::Engine(EngineId(engine), Event::WorkerJoined), &mut out);
//! }
//! let mut request = Request::new(RequestId(7), Namespace::default().root(), vec![1, 2, 3], 5);
//! request.hash_prompt(config.block_size);
//! cluster.handle(1_000, Input::Client(Event::Submit(Box::new(request))), &mut out);
//! assert!(matches!(&out[..], [Output::Placed { .. }, Output::Engine(EngineId(0), Action::RunStep(_))]));
//! # Ok::<(), trunkline_cluster::ClusterError>(())
//! ```

mod absence;
mod cluster;
mod deadlines;
mod digest;
mod engine;
pub mod handover;
mod health;
mod input;
mod listener;
mod placement;
pub mod record;
pub mod router;
mod step_work;
mod witness;

pub use crate::absence::Absence;
pub use crate::cluster::{Cluster, ClusterConfig, ClusterError, ENGINES_MAX};
pub use crate::engine::{EngineConfig, EngineEvent, EngineId, EngineState, EngineStatus, Role, TRANSITIONS};
pub use crate::health::{HEALTH_TRANSITIONS, Health, HealthEvent};
pub use crate::input::{Input, Move, Output};
pub use crate::listener::{CacheListener, ListenToCaches};
pub use crate::router::{Load, ROUTER_DEFAULT};
pub use crate::step_work::StepWork;
