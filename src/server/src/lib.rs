//! The gRPC front end of Trunkline and the driver of the cluster of engines.
//!
//! # One request, from the socket and back
//!
//! 1. Connections are accepted within limits (`accept`, `network`), and each call passes the same checks of identity and size
//!    (`gate`) before a handler checks every field (`validate`), tokenises the text and hashes the prompt (`submission`), all on tokio's
//!    threads.
//! 2. The handler puts a command on the **bounded** queue of the core's thread. A full queue is `RESOURCE_EXHAUSTED`, never a wait.
//! 3. The driver, the one thread with access to the [`trunkline_cluster::Cluster`], stamps the time, writes the input to the
//!    recording if there is one, delivers the input and performs the outputs. The router of the cluster picks the engine of a
//!    request.
//! 4. Each engine has a worker with two threads: steps go to the step thread and copies of blocks to the copy thread. Neither waits
//!    for the other; both answer through the same queue.
//! 5. Tokens go to the request's own outbox (`outbox`). The core never waits for a client: output that a client does not read ends
//!    the request, beyond a number of bytes or after a time ([`NetworkLimits`]).
//! 6. The response stream turns tokens into text and looks for stop strings, on tokio's threads again, whenever the connection has
//!    room for another message.
//!
//! Metrics (`metrics`, served on an address of their own) show the snapshot that also answers `GetServerInfo`; histograms belong to the core's
//! thread (`request_times`, `step_figures`) and read no clock but the time of its inputs.
//!
//! # Invariants
//!
//! * All metadata of the cache and the schedule is owned by one thread, without a lock. The only shared map is the one from
//!   clients' request ids to the core's, at the edge.
//! * The core's thread never waits for anything but the command queue and the next deadline.
//! * A dropped stream, for whatever reason, aborts the stream's request.
//! * A recording holds exactly the inputs delivered to the cluster, with the times, in order.
//! * A request on a lost worker continues with the tokens generated so far: on the same engine after a reset of the worker, or on
//!   another engine while the worker is started again. The client sees a pause.
//! * A lost worker has no effect on requests of other engines, except through the requests moved there.
//!
//! # Example
//!
//! [`Server::new`] puts the parts together; [`Server::run`] serves until a [`ServerHandle`] stops the server. The [`Backend`] has
//! the model's facts, the tokenizer and the maker of the workers: one [`trunkline_port::StepRunner`] for each engine of
//! [`Options::cluster`].
//!
//! ```no_run
//! use trunkline_server::{Backend, Options, Server, heed_signals, listen};
//!
//! async fn serve(backend: Backend) -> Result<(), Box<dyn std::error::Error>> {
//!     let listener = listen("127.0.0.1:50051").await?;
//!     let server = Server::new(listener, backend, Options::default()).await?;
//!     heed_signals(server.handle())?;
//!     let outcome = server.run().await?;
//!     println!("digest {:016x}", outcome.digest);
//!     Ok(())
//! }
//! ```

mod access;
mod driver;
mod edge;
mod engines;
#[cfg(test)]
mod errors_tests;
mod metrics;
mod network;
mod requests;
mod server;
mod service;

pub use crate::access::client::{ClientError, ClientTls, authorization, connect_tls, wants_tls};
pub use crate::access::tls::{TlsError, TlsFiles};
pub use crate::access::tokens::TokenFileError;
pub use crate::driver::Outcome;
pub use crate::driver::commands::StepCounts;
pub use crate::driver::followers::{EndedStep, FollowSteps};
pub use crate::driver::workers::{MakeWorker, WorkerError};
pub use crate::edge::codec::WireCodec;
pub use crate::edge::door::{Answering, HttpDoor};
pub use crate::edge::gate::Guest;
pub use crate::engines::seats::AttachOptions;
pub use crate::engines::stores::{EngineStore, layout};
pub use crate::metrics::MetricNames;
pub use crate::network::limits::{FILES_RESERVED, NetworkLimits, raise_open_files};
pub use crate::network::shares::Client;
pub use crate::requests::spans::{RequestSpan, RequestTracer, SpanEvent, SpanValue};
pub use crate::requests::trace_parent::TraceParent;
pub use crate::server::front::{Front, Load};
pub use crate::server::shutdown::{ServerHandle, StopSignals, heed_signals, on_hangup};
pub use crate::server::{Backend, DecideModel, Options, Server, ServerError, listen};
pub use crate::service::offer::SamplingOffer;
pub use crate::service::sessions::{
    SUMMARY_BEFORE, SUMMARY_INSTRUCTION, SessionOptions, beginning_of_summary, rest_of_summary,
};
pub use crate::service::stream::Generation;

/// The protocol, package `trunkline.v1`, generated from `inference.proto` and `sessions.proto` in `proto/trunkline/v1/`.
#[expect(clippy::allow_attributes, unused_qualifications, reason = "generated code has its own style")]
pub mod proto {
    tonic::include_proto!("trunkline.v1");

    /// The encoded descriptors of the protocol, comments included.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trunkline_descriptor.bin"));
}
