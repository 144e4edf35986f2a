//! Health, models, load, metrics, and the calls of operators.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use axum::http::{Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use trunkline_quote::quoted;
use trunkline_server::Load;

use crate::body::{json_of, read};
use crate::failure::Failure;
use crate::{Context, Shared};

/// Prefixes of the ids of answers, which clients may send back with the id.
const ID_PREFIXES: [&str; 2] = ["chatcmpl-", "cmpl-"];

/// 200 while the server takes requests, else 503; open to all, as the health service of gRPC is.
pub(crate) async fn health(State(shared): Context) -> StatusCode {
    if shared.front.is_serving() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

/// The version of the server.
pub(crate) async fn version(State(shared): Context, request: Request<Body>) -> Response<Body> {
    shared.front.note(request.extensions());
    json_of(&Version { version: env!("CARGO_PKG_VERSION") })
}

#[derive(Serialize)]
struct LoadJson {
    /// Requests on the server, as vLLM counts them.
    server_load: u32,
    waiting: u32,
    running: u32,
}

/// The number of requests.
pub(crate) async fn load(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    shared.front.note(request.extensions());
    let Load { waiting, running, .. } = shared.front.load().await.map_err(|status| Failure::of(&status))?;
    Ok(json_of(&LoadJson { server_load: waiting + running, waiting, running }))
}

/// The metrics for Prometheus.
pub(crate) async fn metrics(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let scraped = shared.front.metrics(request.extensions(), accept).await;
    let late = || Failure::of(&tonic::Status::unavailable("the server did not answer the scrape in time"));
    let (kind, text) = scraped.ok_or_else(late)?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

#[derive(Serialize)]
struct Models<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<&'a str>,
    max_model_len: u32,
    permission: [(); 0],
}

impl Shared {
    /// Returns the model under each of its names.
    fn models(&self) -> Result<Vec<Model<'_>>, Failure> {
        let of = |status| Failure::of(&status);
        let (root, max_model_len) =
            (self.front.model().map_err(of)?.name.as_str(), self.front.max_context().map_err(of)?);
        let (object, created, owned_by) = ("model", self.created_s, "trunkline");
        let model = |id| Model { id, object, created, owned_by, root, parent: None, max_model_len, permission: [] };
        let names = self.settings.served_names.iter().map(String::as_str);
        let own = self.settings.served_names.is_empty().then_some(root);
        Ok(names.chain(own).map(model).collect())
    }

    /// Returns the name of the model in answers to a request for `asked`.
    ///
    /// # Errors
    /// If the server has no model of that name.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<String, Failure> {
        let models = self.models()?;
        let own = self.front.model().map_err(|status| Failure::of(&status))?.name.as_str();
        let Some(asked) = asked.filter(|name| !name.is_empty()) else { return Ok(models[0].id.to_owned()) };
        if asked == own || models.iter().any(|model| model.id == asked) {
            return Ok(asked.to_owned());
        }
        Err(Failure::not_found(format!(
            "the model {} does not exist; this server has {}",
            quoted(asked),
            quoted(models[0].id)
        )))
    }
}

/// The served model.
pub(crate) async fn models(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    shared.front.note(request.extensions());
    Ok(json_of(&Models { object: "list", data: shared.models()? }))
}

/// The model of a name, if it is one of the server's.
pub(crate) async fn model(
    State(shared): Context,
    Path(name): Path<String>,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    shared.front.note(request.extensions());
    let models = shared.models()?;
    let found = models.iter().find(|model| model.id == name);
    let missing = || Failure::not_found(format!("the model {} does not exist", quoted(&name)));
    found.map(json_of).ok_or_else(missing)
}

#[derive(Deserialize)]
pub(crate) struct IdsAsked {
    request_ids: Ids,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an id or a list of ids")]
enum Ids {
    One(String),
    Many(Vec<String>),
}

#[derive(Serialize)]
struct Aborted {
    found: u32,
}

/// Aborts requests by their ids, with or without the prefix that the answers' ids have.
pub(crate) async fn abort(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let asked: IdsAsked = read(&shared.front, body).await?;
    let ids = match asked.request_ids {
        Ids::One(id) => vec![id],
        Ids::Many(ids) => ids,
    };
    let bare = |id: &String| ID_PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix)).map(str::to_owned);
    let all = ids.iter().filter_map(bare).chain(ids.iter().cloned()).collect();
    let found = shared.front.abort(&parts.extensions, all).map_err(|status| Failure::of(&status))?;
    Ok(json_of(&Aborted { found }))
}

#[derive(Serialize)]
struct Flushed {
    dropped_blocks: u32,
}

/// Forgets the cached blocks that no request holds.
pub(crate) async fn reset_prefix_cache(
    State(shared): Context,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let flushed = shared.front.flush_cache(request.extensions(), "/reset_prefix_cache").await;
    let dropped_blocks = flushed.map_err(|status| Failure::of(&status))?;
    Ok(json_of(&Flushed { dropped_blocks }))
}

/// Answers a path that the server does not have.
pub(crate) async fn unknown(State(shared): Context, request: Request<Body>) -> Failure {
    shared.front.note(request.extensions());
    let path = request.uri().path();
    Failure::not_found(format!("{} is not a path of this server; see docs/reference/http.md", quoted(path)))
}

/// Answers a path with another method.
pub(crate) async fn wrong_method(State(shared): Context, request: Request<Body>) -> Failure {
    shared.front.note(request.extensions());
    let (method, path) = (request.method(), request.uri().path());
    Failure::wrong_method(format!("{} is not called with {}", quoted(path), quoted(method.as_str())))
}
