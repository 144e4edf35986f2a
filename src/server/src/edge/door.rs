//! Plain HTTP on the port of gRPC: what is not gRPC goes to a door.

use std::future::Future;
use std::pin::Pin;

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, HeaderValue, Method, Request, Response};

/// Answer of a door, to come.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers plain HTTP requests on the port of gRPC, of HTTP/1.1 and HTTP/2.
///
/// The server checks identity and sizes before, as for gRPC, and bounds the connection; the extensions of a request name its sender, for
/// [`Front`](crate::Front).
pub trait HttpDoor: Send + Sync + 'static {
    /// Answers a request.
    fn answer(&self, request: Request<Body>) -> Answering;

    /// Answers a request that ends with `status` before or instead of [`Self::answer`]; `origin` is that of the page that sent it.
    fn refuse(&self, status: &Status, origin: Option<HeaderValue>) -> Answering;
}

/// Returns `true` if the headers are those of a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get("content-type").map_or(&b""[..], |value| value.as_bytes());
    kind.starts_with(b"application/grpc")
}

/// Returns `true` for the question of a browser that precedes a request from a page of another origin: it has no token, and gets no answer of a model.
pub(crate) fn is_preflight<B>(request: &Request<B>) -> bool {
    let has = |name: &str| request.headers().contains_key(name);
    request.method() == Method::OPTIONS && has("origin") && has("access-control-request-method")
}
