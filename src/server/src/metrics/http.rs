//! HTTP/1.1 for scrapes, safe against slow and many clients.
//!
//! | limit | value |
//! |---|---|
//! | connections at once | [`Limits::connections`]; a further one ends another, as on the port of the calls ([`crate::network::places`]), and those with a whole request last |
//! | head of a request | [`HEAD_BYTES_MAX`] bytes |
//! | time of a connection, from its beginning to the last byte of the answer | [`Limits::connection`] |
//! | requests on a connection | one; bodies are not read |

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::network::network_of;
use crate::network::places::{Held, Standing, first_to_go};

/// Path of the metrics.
const PATH: &str = "/metrics";
/// Head of a request, at most, bytes: the least buffer of hyper.
const HEAD_BYTES_MAX: usize = 8192;
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus text, version 0.0.4.
    Prometheus,
    /// OpenMetrics text, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format for the header `accept`: OpenMetrics for clients that name the format, as Prometheus does.
    fn accepted(headers: &HeaderMap) -> Self {
        Self::named(headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()))
    }

    /// Returns the format for the values of the header `accept`.
    pub(super) fn named<'a>(accepts: impl Iterator<Item = &'a str>) -> Self {
        match accepts.flat_map(|value| value.split(',')).any(|kind| kind.trim_start().starts_with(OPEN_METRICS)) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Maker of the text of a scrape.
pub(super) trait Source: Send + Sync + 'static {
    /// Returns the text; `None` if the server does not answer in time.
    fn text(&self, format: Format) -> impl Future<Output = Option<String>> + Send;
}

/// Limits of the connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at once.
    pub(super) connections: usize,
    /// Time of one connection.
    pub(super) connection: Duration,
}

impl Default for Limits {
    /// 16 connections of 15 seconds: Prometheus gives up after 10 by default.
    fn default() -> Self {
        Self { connections: 16, connection: Duration::from_secs(15) }
    }
}

/// Answers scrapes for ever. Dropping the future cuts the connections.
pub(super) async fn serve<S: Source>(listener: TcpListener, source: Arc<S>, limits: Limits) {
    let (mut connections, mut open) = (JoinSet::new(), Vec::<Open>::new());
    for number in 0.. {
        let accepted = tokio::select! {
            biased;
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                open.retain(|connection| !connection.task.is_finished());
                if open.len() >= limits.connections
                    && let Some(goes) = first_to_go(open.iter().map(Open::held))
                {
                    open.extract_if(.., |connection| connection.number == goes).for_each(|gone| gone.task.abort());
                }
                let (source, has_asked) = (source.clone(), Arc::<AtomicBool>::default());
                let asks = has_asked.clone();
                let task = connections.spawn(async move { serve_connection(socket, source, limits, asks).await });
                open.push(Open { number, peer: network_of(peer.ip()), has_asked, task });
            }
            Err(err) => {
                warn!(%err, "cannot accept a connection for metrics; trying again after a pause");
                sleep(PAUSE).await;
            }
        }
    }
}

/// An open connection.
struct Open {
    number: u64,
    peer: IpAddr,
    /// `true` once a whole request is there.
    has_asked: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Open {
    /// Returns what the connection has done for its place. All connections here are brief, so none keeps its place for good.
    fn held(&self) -> Held {
        let has_asked = self.has_asked.load(Ordering::Relaxed);
        let standing = if has_asked { Standing::Acquaintance } else { Standing::Stranger };
        Held { number: self.number, peer: self.peer, standing, since_ns: self.number }
    }
}

async fn serve_connection<S: Source>(socket: TcpStream, source: Arc<S>, limits: Limits, asks: Arc<AtomicBool>) {
    let service = service_fn(move |request| {
        let source = source.clone();
        asks.store(true, Ordering::Relaxed);
        async move { Ok::<_, Infallible>(answer(&request, &*source).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.connection);
    builder.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    match timeout(limits.connection, builder.serve_connection(TokioIo::new(socket), service)).await {
        Ok(Ok(())) => {}
        Ok(Err(err)) => debug!(%err, "a connection for metrics failed"),
        Err(_) => debug!("a connection for metrics took too long"),
    }
}

async fn answer<S: Source>(request: &Request<Incoming>, source: &S) -> Response<String> {
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let format = Format::accepted(request.headers());
    match source.text(format).await {
        Some(text) => response(StatusCode::OK, format.content_type(), text),
        None => plain(StatusCode::SERVICE_UNAVAILABLE, "the scheduler does not answer; try again later\n"),
    }
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    response(status, "text/plain; charset=utf-8", text.into())
}

fn response(status: StatusCode, content_type: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A source that answers with the name of the format, and has no answer in one.
    struct Fixed;

    impl Source for Fixed {
        async fn text(&self, format: Format) -> Option<String> {
            (format == Format::Prometheus).then(|| "up 1\n".into())
        }
    }

    async fn serving(limits: Limits) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::new(Fixed), limits));
        addr
    }

    async fn ask(addr: std::net::SocketAddr, head: &str) -> String {
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(format!("{head}\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer.to_ascii_lowercase()
    }

    #[tokio::test]
    async fn the_path_the_method_and_the_format_decide() {
        let addr = serving(Limits::default()).await;
        let metrics = ask(addr, "GET /metrics?a=b HTTP/1.1").await;
        assert!(metrics.starts_with("http/1.1 200 ok\r\n") && metrics.ends_with("\r\n\r\nup 1\n"), "{metrics}");
        assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
        assert!(metrics.contains("connection: close\r\n") && metrics.contains("content-length: 5\r\n"), "{metrics}");
        let head = ask(addr, "HEAD /metrics HTTP/1.1").await;
        assert!(head.starts_with("http/1.1 200 ok\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        for path in ["/", "/metrics/", "/metric", "//metrics"] {
            assert!(ask(addr, &format!("GET {path} HTTP/1.1")).await.starts_with("http/1.1 404 "), "{path}");
        }
        let post = ask(addr, "POST /metrics HTTP/1.1\r\nContent-Length: 1000000000").await;
        assert!(post.starts_with("http/1.1 405 ") && post.contains("allow: get, head\r\n"), "{post}");
        let busy =
            ask(addr, "GET /metrics HTTP/1.1\r\nAccept: text/html, application/openmetrics-text;version=1.0.0").await;
        assert!(busy.starts_with("http/1.1 503 "), "{busy}");
        assert!(ask(addr, "nonsense").await.starts_with("http/1.1 400 "));
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(2 * HEAD_BYTES_MAX));
        // The rest may be refused before the answer is read.
        let mut socket = TcpStream::connect(addr).await.unwrap();
        let _ = socket.write_all(long.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }

    #[tokio::test]
    async fn many_slow_clients_do_not_keep_a_scrape_out() {
        let addr = serving(Limits { connections: 4, ..Limits::default() }).await;
        let mut slow = Vec::new();
        for _ in 0..8 {
            let mut socket = TcpStream::connect(addr).await.unwrap();
            socket.write_all(b"GET /met").await.unwrap();
            slow.push(socket);
        }
        assert!(ask(addr, "GET /metrics HTTP/1.1").await.ends_with("up 1\n"));
        // The oldest ones were cut for the others; a reset counts as an end, too.
        for socket in &mut slow[..5] {
            assert_eq!(socket.read(&mut [0; 16]).await.unwrap_or(0), 0);
        }
    }

    #[tokio::test]
    async fn a_request_that_does_not_arrive_ends_the_connection() {
        let addr = serving(Limits { connection: Duration::from_millis(1), ..Limits::default() }).await;
        let mut socket = TcpStream::connect(addr).await.unwrap();
        let _ = socket.write_all(b"GET /metrics HTTP/1.1\r\nA:").await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
}
