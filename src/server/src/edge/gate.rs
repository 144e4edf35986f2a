//! Entry of every call: identity, limits on the message, and the statuses of calls that reach no handler.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use http_body::Body;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::codegen::{Bytes, Service, StdError};
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::access::caller::Caller;
use crate::access::{Access, WORKERS};
use crate::edge::bodies::{Accepted, End, RequestBody, ResponseBody};
use crate::edge::door::{HttpDoor, is_grpc, is_preflight};
use crate::edge::headers;
use crate::edge::panics::{Whole, failed};
use crate::edge::questions::Questions;
use crate::network::Call;
use crate::network::refusals::Reason;

tokio::task_local! {
    /// The call that the current task serves.
    pub(crate) static CALL: Arc<Call>;
}

/// Path of the service with streams of requests, which may take as long as a connection may be idle.
const REFLECTION: &str = "/grpc.reflection.";
/// Paths of the services of the clients.
const CLIENTS: [&str; 2] = ["/trunkline.v1.Inference/", "/trunkline.v1.Sessions/"];

/// Services of another protocol, in addition to the server's own. Every call passes the checks common to all: identity, sizes, limits of connections.
pub struct Guest {
    /// Name of the service in paths and for the health service, such as `vllm.grpc.engine.VllmEngine`.
    pub name: &'static str,
    /// The service.
    pub routes: Routes,
    /// Encoded descriptors of the protocol, for reflection.
    pub descriptors: &'static [u8],
}

/// All services of the server, behind the checks common to all.
#[derive(Clone)]
pub(crate) struct Gate {
    /// Services there from the start.
    early: Routes,
    reflection: Routes,
    /// Services of other protocols, by the beginning of their paths.
    guests: Vec<(String, Routes)>,
    /// Services of the clients, once the server knows its model.
    clients: Arc<OnceLock<Routes>>,
    access: Arc<Access>,
    /// Answers what is not gRPC.
    door: Option<Arc<dyn HttpDoor>>,
}

impl Gate {
    pub(crate) fn new(early: Routes, reflection: Routes, clients: Arc<OnceLock<Routes>>, access: Arc<Access>) -> Self {
        let (early, reflection) = (early.prepare(), reflection.prepare());
        Self { early, reflection, guests: Vec::new(), clients, access, door: None }
    }

    /// Adds the service of a guest, and replaces the service of reflection by one that knows the guest.
    pub(crate) fn invite(&mut self, guest: Guest, reflection: Routes) {
        self.guests.push((format!("/{}/", guest.name), guest.routes.prepare()));
        self.reflection = reflection.prepare();
    }

    /// Returns the services of the guest with this path.
    fn guest(&self, path: &str) -> Option<&Routes> {
        self.guests.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, routes)| routes)
    }

    /// Lets `door` answer what is not gRPC.
    pub(crate) fn open_door(&mut self, door: Arc<dyn HttpDoor>) {
        self.door = Some(door);
    }

    /// Returns `true` if plain HTTP gets answers.
    pub(crate) fn answers_http(&self) -> bool {
        self.door.is_some()
    }

    /// Returns the sender of a call, and the services for its path.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for too many headers, the errors of [`Access::caller`], and UNAVAILABLE before the server knows its model.
    fn enter<B>(&self, request: &Request<B>, call: &Arc<Call>) -> Result<(Caller, Routes), Status> {
        let caller = self.caller(request, call)?;
        match self.guest(request.uri().path()) {
            // Gateways may abort on another connection than that of the request: without tokens, an id is known to all who send it.
            Some(routes) => Ok((Caller { owner: caller.owner_of_made_id(), ..caller }, routes.clone())),
            None => Ok((caller, self.routes(request.uri().path())?)),
        }
    }

    /// Returns the sender of a call.
    fn caller<B>(&self, request: &Request<B>, call: &Arc<Call>) -> Result<Caller, Status> {
        Self::check(request, call)?;
        self.access.caller(request.uri().path(), request.headers(), call)
    }

    /// Checks what holds for calls of all senders.
    fn check<B>(request: &Request<B>, call: &Arc<Call>) -> Result<(), Status> {
        let refusals = &call.connection().network().counters.refusals;
        headers::check(request).inspect_err(|_| refusals.count(Reason::HeadersTooLarge))?;
        call.withdrawal().map_or(Ok(()), Err)
    }

    /// Returns the services for a path.
    ///
    /// # Errors
    /// UNAVAILABLE for calls of clients before the server knows its model.
    fn routes(&self, path: &str) -> Result<Routes, Status> {
        if path.starts_with(REFLECTION) {
            return Ok(self.reflection.clone());
        }
        if !CLIENTS.iter().any(|service| path.starts_with(service)) {
            return Ok(self.early.clone());
        }
        let wait = || Status::unavailable("no worker has attached yet; try again later");
        self.clients.get().cloned().ok_or_else(wait)
    }
}

impl Gate {
    /// Lets a request through the door for plain HTTP.
    async fn pass<B>(
        &self,
        mut request: Request<B>,
        call: Arc<Call>,
        door: &dyn HttpDoor,
    ) -> Response<ResponseBody<tonic::body::Body>>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<StdError>,
    {
        let origin = request.headers().get("origin").cloned();
        let answer = async {
            let caller = if is_preflight(&request) {
                Self::check(&request, &call)?;
                Caller::without_rights(&call)
            } else {
                self.caller(&request, &call)?
            };
            // Clients of HTTP/1 use many connections: without tokens, an id is known to all who send it.
            let caller = Caller { owner: caller.owner_of_made_id(), ..caller };
            headers::trim(&mut request, true);
            let limit = call.connection().network().limits.request;
            let mut request = request.map(|body| tonic::body::Body::new(RequestBody::new(body, call.clone(), limit)));
            request.extensions_mut().insert(caller);
            let path = request.uri().path().to_owned();
            Whole::new(door.answer(request)).await.map_err(|panicked| failed(&path, &panicked))
        };
        let response = tokio::select! {
            biased;
            status = call.ended() => Err(status),
            answer = answer => answer,
        };
        let response = match response {
            Ok(response) => response,
            Err(status) => door.refuse(&status, origin).await,
        };
        call.answer(response.status().is_success());
        response.map(|body| ResponseBody::new(body, call, None))
    }
}

impl<B> Service<Request<B>> for Gate
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<StdError>,
{
    type Response = Response<ResponseBody<tonic::body::Body>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let gate = self.clone();
        Box::pin(async move {
            let call = CALL.with(Arc::clone);
            if let Some(door) = gate.door.clone().filter(|_| !is_grpc(request.headers())) {
                return Ok(gate.pass(request, call, &*door).await);
            }
            let mut end: End = Box::pin(ended(call.clone()));
            let answer = async {
                let (caller, mut routes) = gate.enter(&request, &call)?;
                headers::trim(&mut request, false);
                let limits = &call.connection().network().limits;
                let streams = request.uri().path().starts_with(REFLECTION);
                let limit = if streams { limits.idle.max(limits.request) } else { limits.request };
                // A worker's messages are no requests: the service bounds each, and the time between two.
                let attaches = request.uri().path().starts_with(WORKERS);
                let accepted = Accepted::default();
                let mut request = request.map(|body| match attaches {
                    true => RequestBody::unbounded(body, call.clone(), accepted.clone()),
                    false => RequestBody::new(body, call.clone(), limit),
                });
                request.extensions_mut().insert(accepted);
                request.extensions_mut().insert(caller);
                let path = request.uri().path().to_owned();
                let response = Whole::new(async move {
                    match streams {
                        true => routes.call(request.map(Questions::of)).await,
                        false => routes.call(request).await,
                    }
                });
                match response.await {
                    Ok(response) => Ok(response.unwrap_or_else(|never| match never {})),
                    Err(panicked) => {
                        // The handler had the message: the fault is not the client's.
                        call.handle();
                        Err(failed(&path, &panicked))
                    }
                }
            };
            let (response, end) = tokio::select! {
                biased;
                status = &mut end => (status.into_http(), None),
                answer = answer => (answer.unwrap_or_else(Status::into_http), Some(end)),
            };
            let response = correct(response, &call);
            call.answer(response.headers().get(Status::GRPC_STATUS).is_none());
            Ok(response.map(|body| ResponseBody::new(body, call, end)))
        })
    }
}

/// Waits until the server ends a call, and returns the status.
async fn ended(call: Arc<Call>) -> Status {
    call.ended().await
}

/// Corrects the status of a request whose message could not be read: tonic blames the server for a malformed message, and calls
/// a message beyond the limit OUT_OF_RANGE. The request counts as refused.
fn correct<B>(mut response: Response<B>, call: &Call) -> Response<B> {
    if call.is_handled() {
        return response;
    }
    let status = response.headers().get(Status::GRPC_STATUS).map(|status| Code::from_bytes(status.as_bytes()));
    let (code, reason) = match status {
        Some(Code::Internal | Code::Unknown) => (Code::InvalidArgument, Reason::Invalid),
        Some(Code::OutOfRange) => (Code::ResourceExhausted, Reason::MessageTooLarge),
        _ => return response,
    };
    call.connection().network().counters.refusals.count(reason);
    response.headers_mut().insert(Status::GRPC_STATUS, HeaderValue::from(code as i32));
    response
}

#[cfg(test)]
mod tests {
    use http_body::Frame;

    use super::*;
    use crate::network::clock::Clock;
    use crate::network::limits::NetworkLimits;

    #[tokio::test]
    async fn a_call_whose_code_panics_ends_with_a_status() {
        let run = |fails: bool| Whole::new(async move { if fails { panic!("two\nlines") } else { 7 } });
        assert!(matches!(run(false).await, Ok(7)));
        let status = failed("/service/Call", &run(true).await.unwrap_err());
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().starts_with("a fault of the server ended this call: two lines ("), "{status:?}");
    }

    /// A body with one frame, that panics behind it.
    struct Panics(Option<Frame<Bytes>>);

    impl Body for Panics {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(Some(Ok(self.0.take().expect("the body is over"))))
        }
    }

    #[tokio::test]
    async fn a_stream_whose_code_panics_ends_with_a_status_behind_its_messages() {
        let call = Call::detached(NetworkLimits::default(), Clock::start());
        let mut body = ResponseBody::new(Panics(Some(Frame::data(Bytes::from_static(b"ab")))), call, None);
        let mut frames = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            frames.push(frame.unwrap());
        }
        let bytes: Vec<&Bytes> = frames.iter().filter_map(Frame::data_ref).collect();
        assert_eq!(bytes, ["a", "b"]);
        let trailers = frames.last().unwrap().trailers_ref().unwrap();
        assert_eq!(trailers[Status::GRPC_STATUS], "13");
    }

    #[test]
    fn only_calls_without_a_handler_change_their_status_and_count_as_refused() {
        let corrected = |code: Code, handled: bool| {
            let call = Call::detached(NetworkLimits::default(), Clock::start());
            if handled {
                call.handle();
            }
            let response = correct(Status::new(code, "why").into_http::<()>(), &call);
            assert_eq!(response.headers().get("grpc-message").unwrap(), "why");
            let refused = call.connection().network().counters.refusals.each().find(|(_, n)| *n > 0);
            (Code::from_bytes(response.headers()[Status::GRPC_STATUS].as_bytes()), refused)
        };
        assert_eq!(corrected(Code::Internal, false), (Code::InvalidArgument, Some(("invalid", 1))));
        assert_eq!(corrected(Code::OutOfRange, false), (Code::ResourceExhausted, Some(("message_too_large", 1))));
        assert_eq!(corrected(Code::Unimplemented, false), (Code::Unimplemented, None));
        assert_eq!(corrected(Code::Internal, true), (Code::Internal, None));
    }
}
