//! The gRPC front end of Trunkline and the driver that owns the core.
//!
//! # One request, from the socket and back
//!
//! 1. A handler checks every field, tokenises the text and hashes the prompt, all on tokio's threads.
//! 2. It puts a command on the **bounded** queue of the core's thread. A full queue is `RESOURCE_EXHAUSTED`, never a wait.
//! 3. The driver, the one thread that owns [`trunkline_core::Core`], stamps the time, writes the event to the recording
//!    if there is one, gives it to the core and performs the actions that come out.
//! 4. Steps, and copies of blocks between device and host, go to the worker's thread, which does them one after another and
//!    answers through the same queue.
//! 5. Tokens go to the request's own channel. It has room for all the tokens that the request may generate, so a client that
//!    reads slowly, or not at all, never makes the core wait.
//! 6. The response stream turns tokens into text and looks for stop strings, on tokio's threads again, whenever the
//!    connection has room for another message.
//!
//! # What holds
//!
//! * All metadata of the cache and the schedule is owned by one thread. No lock is around it. The only shared map is the one
//!   from clients' request ids to the core's, at the edge.
//! * The core's thread never waits for anything but its queue and the next deadline.
//! * A stream that is dropped, for whatever reason, aborts its request.
//! * A recording holds exactly the events that the core was given, with their times, in their order.
//!
//! # Where to start
//!
//! [`Server::new`] puts the parts together; [`Server::run`] serves until it is told to stop through a [`ServerHandle`].

mod commands;
mod driver;
mod recorder;
mod server;
mod service;
mod sessions;
mod shutdown;
mod stream;
mod validate;
mod worker_thread;

pub use crate::commands::Drafts;
pub use crate::driver::Outcome;
pub use crate::server::{Backend, Options, Server, ServerError, listen};
pub use crate::shutdown::{ServerHandle, stop_on_signals};

/// The protocol, package `trunkline.v1`, generated from `proto/trunkline/v1/inference.proto`.
#[expect(clippy::allow_attributes, unused_qualifications, reason = "generated code has its own style")]
pub mod proto {
    tonic::include_proto!("trunkline.v1");

    /// The encoded descriptors of the protocol, comments included.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trunkline_descriptor.bin"));
}
