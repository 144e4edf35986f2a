//! Accepts connections and serves them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::StreamExt;
use tracing::{debug, warn};

use crate::access::tls::Tls;
use crate::edge::frames::Watched;
use crate::edge::gate::{CALL, Gate};
use crate::edge::gather::{Gathered, Turns};
use crate::edge::greeting::{Begun, Port, Protocol, greet};
use crate::edge::headers::{HEADER_BYTES_KEPT, HEADER_BYTES_MAX};
use crate::edge::single::SingleCalls;
use crate::edge::socket::TimedSocket;
use crate::network::log_limit::LogLimit;
use crate::network::{Admitted, Connection, MISTAKES_MAX, Network};

/// First and longest pause after a failed accept.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time for a client to acknowledge the end of an idle connection.
const GOODBYE: Duration = Duration::from_secs(5);
/// Interval of looking at a connection with calls.
const LOOK: Duration = Duration::from_secs(10);
/// Time for a client to read the status of a call that the server ends, until the call is reset.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Output of one call in the connection's buffers, at most, bytes.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Streams of a connection reset by the client before this server saw them, at most, until the connection is closed. A gateway may pass
/// on the resets of many users at once; [`Connection`] counts resets over time.
const UNSEEN_RESETS_MAX: usize = 1024;

/// Source of connections.
pub(crate) trait Accept: Send {
    /// Waits for a connection.
    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send;
}

impl Accept for TcpListener {
    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send {
        Self::accept(self)
    }
}

/// Serves the connections of a listener.
pub(crate) struct Acceptor {
    pub(crate) network: Arc<Network>,
    pub(crate) gate: Gate,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Acceptor {
    /// Serves until `stop` is ready; then waits for the calls on all connections to end. Dropping the future cuts the connections.
    pub(crate) async fn serve(self, listener: impl Accept, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let refusals = LogLimit::default();
        let mut pause = PAUSE_MIN;
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            };
            match accepted {
                Ok((socket, peer)) => {
                    pause = PAUSE_MIN;
                    let Some(admitted) = self.network.admit(peer) else {
                        let connections_max = self.network.limits.connections;
                        refusals.log(self.network.clock, |n| {
                            warn!(n, connections_max, "refusing connections: each open connection is at work");
                        });
                        continue;
                    };
                    let (gate, tls, stopped) = (self.gate.clone(), self.tls.clone(), stopped.clone());
                    connections.spawn(async move { serve_socket(socket, admitted, gate, tls, stopped).await });
                }
                Err(err) if concerns_one_connection(&err) => debug!(%err, "a connection ended before it began"),
                Err(err) => {
                    warn!(%err, ?pause, "cannot accept connections; trying again after a pause");
                    self.network.make_room();
                    tokio::select! {
                        () = &mut stop => break,
                        () = sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                    }
                }
            }
        }
        drop(listener);
        stopping.send_replace(true);
        while connections.join_next().await.is_some() {}
    }
}

/// Returns `true` for errors of the connection to be accepted; others concern the listener or the process.
fn concerns_one_connection(err: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(err.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn serve_socket(
    socket: TcpStream,
    admitted: Admitted,
    gate: Gate,
    tls: Option<Arc<Tls>>,
    mut stopped: watch::Receiver<bool>,
) {
    let connection = &admitted.0;
    if let Err(err) = socket.set_nodelay(true) {
        return debug!(%err, "a connection ended before it began");
    }
    let port = if tls.is_some() { Port::Tls } else { Port::Plain };
    let http1 = gate.answers_http();
    let greeted = begin(connection, &mut stopped, greet(socket, port, connection, http1));
    let Some(socket) = greeted.await.flatten() else { return };
    let Some(tls) = tls else { return serve_http(socket, connection, gate, stopped).await };
    let shaken = begin(connection, &mut stopped, async {
        let socket = tls.accept(socket, connection).await?;
        greet(socket, Port::Shaken, connection, http1).await
    });
    if let Some(socket) = shaken.await.flatten() {
        serve_http(socket, connection, gate, stopped).await;
    }
}

/// Runs a part of the beginning of a connection within the time for the first request. Returns `None` if the connection is over.
async fn begin<T>(
    connection: &Connection,
    stopped: &mut watch::Receiver<bool>,
    part: impl Future<Output = io::Result<T>>,
) -> Option<T> {
    let result = tokio::select! {
        result = timeout(connection.network().limits.first_request, part) => result,
        () = connection.closed() => return None,
        // Nobody has called yet.
        _ = stopped.wait_for(|stopped| *stopped) => return None,
    };
    match result {
        Ok(result) => result.inspect_err(|err| debug!(%err, "a connection ended before its first request")).ok(),
        Err(_) => {
            connection.close();
            None
        }
    }
}

async fn serve_http<S>(socket: Begun<S>, connection: &Arc<Connection>, gate: Gate, stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &connection.network().limits;
    if socket.protocol == Protocol::Http1 {
        // The call ends before the connection, and is counted.
        let socket = TimedSocket::new(socket, limits.unread * 2);
        let mut builder = http1::Builder::new();
        // Requests that come ahead of an answer wait in the socket; a head that outgrows the buffer is answered with 431.
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            // An event is smaller than what it costs to pass it on uncopied.
            .writev(false)
            .max_buf_size(SEND_BUFFER_BYTES.max(HEADER_BYTES_MAX));
        let calls = SingleCalls::new(gate, connection.clone());
        return drive(connection, builder.serve_connection(TokioIo::new(socket), calls), Turns::default(), stopped)
            .await;
    }
    let mut builder = http2::Builder::new(CallExecutor(connection.clone()));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.calls_per_connection)
        .keep_alive_interval((!limits.keepalive.is_zero()).then_some(limits.keepalive))
        .keep_alive_timeout(limits.keepalive_timeout)
        .max_header_list_size(HEADER_BYTES_KEPT)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .max_local_error_reset_streams(MISTAKES_MAX);
    let (turns, socket) = (Turns::default(), TimedSocket::new(socket, limits.unread));
    let socket = TokioIo::new(Gathered::new(Watched::new(socket, connection.clone()), turns.clone()));
    drive(connection, builder.serve_connection(socket, TowerToHyperService::new(gate)), turns, stopped).await;
}

/// What happens to a connection besides its calls.
enum Change {
    /// The connection is to be closed.
    Closed,
    /// The server stops.
    Stopped,
    /// The client is to open another connection.
    Retired,
    /// It is time to see whether the connection has expired.
    Look,
}

/// Waits for what happens to a connection next; once it is `stopping`, only for its end and the time to look.
async fn next_change(
    connection: &Connection,
    mut stopped: watch::Receiver<bool>,
    stopping: bool,
    look: Instant,
) -> Change {
    tokio::select! {
        () = connection.closed() => Change::Closed,
        _ = stopped.wait_for(|stopped| *stopped), if !stopping => Change::Stopped,
        () = connection.retired(), if !stopping => Change::Retired,
        () = sleep_until(look) => Change::Look,
    }
}

/// Serves a connection to its end.
async fn drive<C>(connection: &Arc<Connection>, http: C, turns: Turns, stopped: watch::Receiver<bool>)
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let network = connection.network();
    let limits = &network.limits;
    let mut http = pin!(http);
    // The end of an idle connection, once it is announced.
    let mut ending = None;
    let mut stopping = false;
    // In a set, the other events are looked at when one of them has come, not at each token.
    let mut others = FuturesUnordered::new();
    loop {
        if others.is_empty() {
            let look = ending.unwrap_or_else(|| {
                let expires = connection.expires_ns().and_then(|at_ns| network.clock.instant(at_ns));
                // Calls begin and end unnoticed here, and with them the time at which the connection expires.
                let next = Instant::now() + LOOK.min(limits.idle);
                expires.map_or(next, |expires| next.min(Instant::from_std(expires)))
            });
            others.push(next_change(connection, stopped.clone(), stopping, look));
        }
        let change = tokio::select! {
            result = turns.clone().count(http.as_mut()) => {
                if let Err(err) = result {
                    debug!(%err, "a connection failed");
                }
                return;
            }
            Some(change) = others.next() => change,
        };
        match change {
            Change::Closed => return,
            Change::Stopped => {
                stopping = true;
                http.as_mut().graceful_shutdown();
            }
            Change::Retired => {
                stopping = true;
                debug!(peer = %connection.peer(), "asking a client for another connection: too many resets or mistakes on this one");
                http.as_mut().graceful_shutdown();
            }
            Change::Look => {
                let is_announced = ending.take().is_some();
                if connection.has_expired() {
                    if is_announced || connection.begun() == 0 {
                        return connection.close();
                    }
                    http.as_mut().graceful_shutdown();
                    ending = Some(Instant::now() + GOODBYE);
                }
            }
        }
    }
}

/// Runs the calls of a connection as tasks that can be reset one by one.
#[derive(Clone)]
struct CallExecutor(Arc<Connection>);

impl<F> Executor<F> for CallExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let opened = self.0.open_call();
        let call = opened.0.clone();
        tokio::spawn(CALL.scope(call.clone(), async move {
            let unheard = async {
                call.ended().await;
                sleep(LAST_WORD).await;
            };
            // Dropping the stream resets it.
            tokio::select! {
                biased;
                () = call.to_reset() => {}
                _ = stream => {}
                () = unheard => {}
            }
            drop(opened);
        }));
    }
}

#[cfg(test)]
mod tests;
