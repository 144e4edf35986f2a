//! Plain HTTP for clients of OpenAI's API, on the port of gRPC.
//!
//! A thin door over the server's [`Front`]: a JSON body becomes a [`GenerateRequest`](trunkline_server::proto::GenerateRequest), and the
//! messages of its stream become server-sent events or one answer. Limits, tenants, deadlines, tokens and TLS are those of gRPC; the statuses of
//! gRPC become those of HTTP (`failure`). Every field is honoured, refused with its name, or unknown and ignored (`asked`).
//!
//! | route | file |
//! |---|---|
//! | `POST /v1/completions` | `completions` |
//! | `POST /v1/chat/completions` | `chat` |
//! | `POST /v1/messages` | `messages` |
//! | `POST /v1/responses`, `/v1/responses/compact`; `GET` and `DELETE /v1/responses/ID` | `responses` |
//! | `POST /inference/v1/generate` | `generate` |
//! | `GET /health`, `/v1/models`, `/version`, `/load`, `/metrics`; `POST /abort_requests`, `/reset_prefix_cache` | `admin` |
//! | `GET /kv_event_sources` | `event_sources` |
//! | `POST /tokenize`, `/detokenize` | `tokens` |

mod admin;
mod answers;
mod asked;
mod body;
mod caching;
mod calls;
mod chat;
mod choices;
mod completions;
mod event_sources;
mod events;
mod failure;
mod generate;
mod kv_hints;
mod logprobs;
mod marks;
mod memory;
mod messages;
mod origins;
mod prompt_values;
mod reader;
mod reasoning;
mod responses;
mod run;
mod strict;
mod structure;
mod tokens;
mod tool_choice;
mod usage;

use std::future::ready;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::header::{HeaderValue, ORIGIN};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::Request;
use tower_http::cors::CorsLayer;
use tower_layer::Layer;
use trunkline_server::{Answering, Front, HttpDoor};
use trunkline_template::ChatTemplate;

pub use crate::calls::ToolCallParser;
pub use crate::event_sources::{KvEventSource, KvEventSources};
pub use crate::origins::{AllowedOrigins, OriginsError};
pub use crate::reasoning::ReasoningParser;

use crate::failure::Failure;
use crate::memory::Memory;
use crate::origins::Answered;
use crate::responses::stored;

/// Settings of the door.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Names of the model besides its own, by which clients may ask for it; the first is the name in answers.
    pub served_names: Vec<String>,
    /// The chat template; none for a model without one.
    pub template: Option<Arc<ChatTemplate>>,
    /// Form of calls of tools, which chats then have apart from the text; `None` leaves them in the text.
    pub tool_call_parser: Option<ToolCallParser>,
    /// Form of reasoning, likewise.
    pub reasoning_parser: Option<ReasoningParser>,
    /// Memory for responses that later ones go on from, bytes; 0 keeps none, `None` is the default.
    pub response_bytes: Option<u64>,
    /// Origins whose pages may read answers in a browser.
    pub allowed_origins: AllowedOrigins,
    /// The publisher of cache events, if there is one.
    pub kv_event_sources: Option<Arc<dyn KvEventSources>>,
}

/// State that all handlers share.
pub(crate) struct Shared {
    pub(crate) front: Front,
    pub(crate) settings: Settings,
    /// Responses that are kept, if any are.
    pub(crate) memory: Option<Arc<Memory>>,
    /// Time at which the door was made, seconds since 1970.
    pub(crate) created_s: u64,
}

impl Shared {
    /// Returns the failure of a request that the server refused; with the time to come back if there are too many.
    pub(crate) async fn refused(&self, status: &Status) -> Failure {
        let failure = Failure::of(status);
        if failure.is_overload() { failure.retry_after(self.front.retry_after_s().await) } else { failure }
    }
}

/// State of a handler.
pub(crate) type Context = axum::extract::State<Arc<Shared>>;

/// Returns the door for a server: `Server::with_http(|front| door(front, settings))`.
pub fn door(front: Front, settings: Settings) -> Arc<dyn HttpDoor> {
    let cors = settings.allowed_origins.layer();
    let memory = Memory::new(settings.response_bytes);
    let shared = Arc::new(Shared { front, settings, memory, created_s: now_s() });
    let routes = Router::new()
        .route("/health", get(admin::health))
        .route("/version", get(admin::version))
        .route("/load", get(admin::load))
        .route("/metrics", get(admin::metrics))
        .route("/kv_event_sources", get(event_sources::sources))
        .route("/v1/models", get(admin::models))
        .route("/v1/models/{*name}", get(admin::model))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/messages", post(messages::answer))
        .route("/v1/responses", post(responses::answer))
        .route("/v1/responses/compact", post(responses::compact::compact))
        .route("/v1/responses/{id}", get(stored::get).delete(stored::delete))
        .route("/v1/responses/{id}/input_items", get(stored::input_items))
        .route("/inference/v1/generate", post(generate::generate))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/abort_requests", post(admin::abort))
        .route("/reset_prefix_cache", post(admin::reset_prefix_cache))
        .fallback(admin::unknown)
        .method_not_allowed_fallback(admin::wrong_method)
        .with_state(shared);
    let routes = match &cors {
        Some(cors) => routes.layer(cors.clone()),
        None => routes,
    };
    Arc::new(Door { routes, cors })
}

struct Door {
    routes: Router,
    /// Marks answers for pages of other origins.
    cors: Option<CorsLayer>,
}

impl HttpDoor for Door {
    fn answer(&self, request: Request<Body>) -> Answering {
        let mut routes = self.routes.clone();
        Box::pin(async move {
            let response = routes.call(request.map(axum::body::Body::new)).await;
            response.unwrap_or_else(|never| match never {}).map(Body::new)
        })
    }

    fn refuse(&self, status: &Status, origin: Option<HeaderValue>) -> Answering {
        let refusal = Failure::of(status).into_response();
        let (Some(cors), Some(origin)) = (&self.cors, origin) else {
            return Box::pin(ready(refusal.map(Body::new)));
        };
        let mut marked = cors.layer(Answered(Some(refusal)));
        Box::pin(async move {
            let mut request = Request::new(());
            request.headers_mut().insert(ORIGIN, origin);
            marked.call(request).await.unwrap_or_else(|never| match never {}).map(Body::new)
        })
    }
}

/// Returns the time, seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
