//! Calls of an HTTP/1 connection: one after the other, each a [`Call`] like those of HTTP/2.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Bytes, Service, StdError};

use crate::edge::gate::{CALL, Gate};
use crate::network::{Call, Connection, Opened};

/// Serves the requests of an HTTP/1 connection.
#[derive(Clone)]
pub(crate) struct SingleCalls {
    gate: Gate,
    connection: Arc<Connection>,
}

impl SingleCalls {
    pub(crate) fn new(gate: Gate, connection: Arc<Connection>) -> Self {
        Self { gate, connection }
    }
}

/// Body of an answer.
type Answer = <Gate as Service<Request<Incoming>>>::Response;

impl hyper::service::Service<Request<Incoming>> for SingleCalls {
    type Response = Response<OpenBody<tonic::body::Body>>;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, StdError>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let opened = self.connection.open_call();
        let (call, mut gate) = (opened.0.clone(), self.gate.clone());
        Box::pin(CALL.scope(call.clone(), async move {
            let reset = Box::pin(reset(call));
            let answer: Answer = tokio::select! {
                biased;
                () = opened.0.to_reset() => return Err(cut()),
                answer = gate.call(request) => answer.unwrap_or_else(|never| match never {}),
            };
            Ok(answer.map(|body| OpenBody { body: tonic::body::Body::new(body), reset, _opened: opened }))
        }))
    }
}

/// Waits until the call is to be reset.
async fn reset(call: Arc<Call>) {
    call.to_reset().await;
}

/// Returns the error that cuts the connection: HTTP/1 has no other way to end one call.
fn cut() -> StdError {
    io::Error::from(io::ErrorKind::ConnectionAborted).into()
}

/// Body of an answer that keeps its call open, and fails when the call is reset.
pub(crate) struct OpenBody<B> {
    body: B,
    reset: Pin<Box<dyn Future<Output = ()> + Send>>,
    _opened: Opened,
}

impl<B> Body for OpenBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        if self.reset.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(cut())));
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
