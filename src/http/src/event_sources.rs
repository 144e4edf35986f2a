//! `GET /kv_event_sources`: where the events of the cache are published, as vLLM answers routers.

use std::fmt;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;

use crate::Context;
use crate::body::json_of;

/// Addresses of one engine's stream of cache events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvEventSource {
    /// Number of the engine.
    pub data_parallel_rank: u32,
    /// Address of the batches.
    pub endpoint: String,
    /// Address for replays.
    pub replay_endpoint: Option<String>,
    /// Address for snapshots, which vLLM does not have.
    pub snapshot_endpoint: Option<String>,
    /// Topic of the batches.
    pub topic: String,
}

/// Says where the events of the cache are published.
pub trait KvEventSources: fmt::Debug + Send + Sync {
    /// Returns the streams; none before the server knows its model.
    fn sources(&self) -> Vec<KvEventSource>;
}

/// The streams; none without a publisher.
pub(crate) async fn sources(State(shared): Context, request: Request<Body>) -> Response<Body> {
    shared.front.note(request.extensions());
    let publisher = shared.settings.kv_event_sources.as_ref();
    json_of(&publisher.map_or_else(Vec::new, |publisher| publisher.sources()))
}
