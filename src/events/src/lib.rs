//! Events of the caches of a server, for routers that send requests to where their prefixes are.
//!
//! The cores note every change in which blocks requests can find ([`trunkline_core::CacheEvent`]). The core's thread hands the changes to a
//! [`Publisher`], which numbers them, keeps an index of each engine's cache ([`Index`]) and the last batches, and passes batches on:
//!
//! * over ZeroMQ, as vLLM's publisher does: a PUB socket, a ROUTER socket that replays batches, and one that answers with snapshots;
//! * to subscribers in the same process, as of vLLM's gRPC service ([`Publisher::subscribe`]).
//!
//! A snapshot is the index at the number of a batch, so one that starts late, or lost batches, continues from there without a gap.

mod endpoint;
mod error;
mod event;
mod history;
mod index;
mod msgpack;
mod publisher;
mod shared;
mod stream;
#[cfg(feature = "zmq")]
mod zmq;

pub use crate::error::PublisherError;
pub use crate::event::{Batch, CacheFacts, Event, Group, Removed, Scope, Stored};
pub use crate::index::Index;
pub use crate::msgpack::{Form, PublisherId, encode};
pub use crate::publisher::Publisher;
pub use crate::shared::{Settings, Source};
pub use crate::stream::{Lost, Subscription};
