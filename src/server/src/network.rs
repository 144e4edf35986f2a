//! State of the network edge: connections, the calls on them, and output that clients have not read.
//!
//! A *call* is one HTTP/2 stream with one gRPC request. A call is *unread* from the moment at which output is there until the
//! connection asks for more; the connection asks as soon as the client's flow-control window has taken everything before.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::warn;

use crate::network::clock::Clock;
use crate::network::limits::NetworkLimits;
use crate::network::log_limit::LogLimit;
use crate::network::places::{Crowded, Held, Place, Workplaces, first_to_go};
use crate::network::refusals::Refusals;
use crate::network::right::Right;
use crate::network::shares::Client;

/// Streams of a connection that the HTTP/2 library resets for the client's mistakes, at most, until the library ends the connection: the
/// library holds about half a kilobyte for each that the client has not read yet.
pub(crate) const MISTAKES_MAX: usize = 1024;
/// Frames of data without data on a connection, at most, until the HTTP/2 library ends the connection.
const EMPTY_MAX: usize = 100;
/// Early resets of a connection for which another was asked, in bursts, until the connection is closed.
const PATIENCE: u64 = 10;
/// Maximum number of connections in the middle of headers longer than a frame: each may hold 1.5 MB.
const UNFINISHED_MAX: usize = 64;

/// Counters of the network edge since the start.
#[derive(Default)]
pub(crate) struct NetworkCounters {
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Connections refused at a limit.
    pub(crate) refused: AtomicU64,
    /// Connections closed by the server: replaced at a limit, silent, idle, or with too many early resets.
    pub(crate) closed: AtomicU64,
    /// Calls ended because the client did not read.
    pub(crate) unread_ended: AtomicU64,
    /// Requests refused, by reason.
    pub(crate) refusals: Refusals,
    /// Requests without a valid token, or with a role that does not suffice.
    pub(crate) unauthorised: AtomicU64,
}

/// Output waiting for a client, which can be discarded.
pub(crate) trait Backlog: Send + Sync {
    /// Discards the output and lets the stream end with RESOURCE_EXHAUSTED.
    fn discard(&self);
}

/// The network edge of one server.
pub(crate) struct Network {
    pub(crate) limits: NetworkLimits,
    pub(crate) clock: Clock,
    pub(crate) counters: NetworkCounters,
    /// Notified if unread output is above a limit of several calls.
    pub(crate) over: Notify,
    /// Limits the lines about clients of another protocol.
    pub(crate) strangers: LogLimit,
    /// Limits the lines about calls that ended unread.
    unread_lines: LogLimit,
    unread_bytes: AtomicU64,
    incoming_bytes: AtomicU64,
    next: AtomicU64,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    calls: Mutex<BTreeMap<u64, Arc<Call>>>,
    /// Connections at work, by client.
    workplaces: Workplaces,
    /// Connections in the middle of headers longer than a frame, in the order of the beginnings.
    unfinished: Mutex<BTreeMap<u64, Arc<Connection>>>,
}

/// One connection.
pub(crate) struct Connection {
    network: Arc<Network>,
    number: u64,
    peer: IpAddr,
    opened_ns: u64,
    place: Place,
    /// Right of the client's certificate.
    right: Right,
    certificates: OnceLock<Vec<CertificateDer<'static>>>,
    /// Notified to close the connection.
    close: Notify,
    closing: AtomicBool,
    calls: AtomicU32,
    /// Calls begun so far.
    begun: AtomicU64,
    idle_since_ns: AtomicU64,
    unread_bytes: AtomicU64,
    incoming_bytes: AtomicU64,
    resets: Mutex<Bucket>,
    /// Streams that the HTTP/2 library reset for the client's mistakes.
    mistakes: AtomicUsize,
    /// Frames of data without data.
    empty: AtomicUsize,
    /// Notified to replace the connection in order.
    retire: Notify,
    retiring: AtomicBool,
}

/// One HTTP/2 stream.
pub(crate) struct Call {
    connection: Arc<Connection>,
    number: u64,
    opened_ns: u64,
    /// Notified to reset the stream.
    reset: Notify,
    /// Cancelled to end the call with a status.
    ended: CancellationToken,
    /// Status of a call that the server ends.
    end_status: OnceLock<Status>,
    /// Right of the call's token, if it has one.
    right: OnceLock<Right>,
    /// The client, once its message is there and it has rights.
    at_work: OnceLock<Client>,
    /// Bytes of the message so far, until a handler has it.
    incoming_bytes: AtomicU64,
    answered: AtomicBool,
    handled: AtomicBool,
    /// Time since which output waits, plus one; 0 if none does.
    unread_since: AtomicU64,
    /// Output in the backlog, bytes in memory.
    unread_bytes: AtomicU64,
    discarded: AtomicBool,
    backlog: OnceLock<Weak<dyn Backlog>>,
}

/// A leaky bucket.
#[derive(Clone, Copy, Default)]
struct Bucket {
    level: u64,
    at_ns: u64,
}

/// An admitted connection; dropping the value forgets the connection.
pub(crate) struct Admitted(pub(crate) Arc<Connection>);

/// An open call; dropping the value forgets the call.
pub(crate) struct Opened(pub(crate) Arc<Call>);

impl Network {
    pub(crate) fn new(limits: NetworkLimits, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            limits,
            clock,
            counters: NetworkCounters::default(),
            over: Notify::new(),
            strangers: LogLimit::default(),
            unread_lines: LogLimit::default(),
            unread_bytes: AtomicU64::new(0),
            incoming_bytes: AtomicU64::new(0),
            next: AtomicU64::new(1),
            connections: Mutex::default(),
            calls: Mutex::default(),
            workplaces: Workplaces::default(),
            unfinished: Mutex::default(),
        })
    }

    /// Admits a connection, or returns `None` if a limit is reached and every connection that counts is at work.
    pub(crate) fn admit(self: &Arc<Self>, peer: SocketAddr) -> Option<Admitted> {
        let peer = network_of(peer.ip());
        let mut connections = lock(&self.connections);
        let of_peer = connections.values().filter(|other| other.peer == peer).count();
        if of_peer >= self.limits.per_peer() as usize {
            self.replace(&mut connections, |other| other.peer == peer)?;
        }
        if connections.len() >= self.limits.connections as usize {
            self.replace(&mut connections, |_| true)?;
        }
        let connection = Arc::new(Connection::new(self.clone(), self.number(), peer));
        connections.insert(connection.number, connection.clone());
        count(&self.counters.accepted);
        Some(Admitted(connection))
    }

    /// Closes the connection that is first to give up its place, to make room for another.
    pub(crate) fn make_room(&self) {
        let _ = self.replace(&mut lock(&self.connections), |_| true);
    }

    fn replace(
        &self,
        connections: &mut BTreeMap<u64, Arc<Connection>>,
        counts: impl Fn(&Connection) -> bool,
    ) -> Option<()> {
        let held = connections.values().filter(|other| counts(other)).map(|other| other.held());
        let Some(number) = first_to_go(held) else {
            count(&self.counters.refused);
            return None;
        };
        if let Some(victim) = connections.remove(&number) {
            victim.close();
        }
        Some(())
    }

    /// Returns the number of open connections and of open calls.
    pub(crate) fn open(&self) -> (u64, u64) {
        (lock(&self.connections).len() as u64, lock(&self.calls).len() as u64)
    }

    /// Returns the unread output of all calls, bytes in memory.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.unread_bytes.load(Ordering::Relaxed)
    }

    /// Ends calls beyond the limits of unread output: by time, then by bytes, longest unread first.
    pub(crate) fn end_unread(&self) {
        let now_ns = self.clock.now_ns();
        let limit_ns = nanos(self.limits.unread);
        let mut calls: Vec<(u64, Arc<Call>)> =
            lock(&self.calls).values().filter_map(|call| Some((call.unread_since_ns()?, call.clone()))).collect();
        calls.sort_by_key(|(since_ns, call)| (*since_ns, call.number));
        for (since_ns, call) in &calls {
            let connection = &call.connection;
            let unread_ns = now_ns.saturating_sub(*since_ns);
            if unread_ns >= limit_ns.saturating_mul(2) {
                call.discard();
                call.reset();
            } else if unread_ns >= limit_ns {
                call.discard();
            } else if self.unread_bytes() > self.limits.unread_bytes
                || connection.unread_bytes.load(Ordering::Relaxed) > self.limits.unread_bytes_per_connection
            {
                call.discard_bytes();
            }
        }
    }

    /// Ends calls beyond half of the calls of a connection that are not at work, oldest first: they watch health, ask for reflection, or have
    /// waited for their message for `patience` at least. So one client behind a gateway does not take all calls of the others.
    pub(crate) fn end_waiting(&self, patience: Duration) {
        let before_ns = self.clock.now_ns().saturating_sub(nanos(patience));
        let most = self.limits.calls_per_connection / 2;
        let mut excess = BTreeMap::new();
        // In the order of the beginnings.
        let calls: Vec<Arc<Call>> = lock(&self.calls).values().cloned().collect();
        for call in calls.iter().filter(|call| call.opened_ns <= before_ns && !call.is_at_work()) {
            let connection = &call.connection;
            let excess = excess.entry(connection.number).or_insert_with(|| {
                connection.calls.load(Ordering::Relaxed).saturating_sub(connection.place.calls()).saturating_sub(most)
            });
            if *excess > 0 {
                *excess -= 1;
                let what = "of this connection watch health, ask for reflection, or wait for their message";
                call.end(Status::resource_exhausted(format!("more than {most} calls {what}; try again later")));
            }
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Connection {
    fn new(network: Arc<Network>, number: u64, peer: IpAddr) -> Self {
        let opened_ns = network.clock.now_ns();
        Self {
            network,
            number,
            peer,
            opened_ns,
            place: Place::default(),
            right: Right::default(),
            certificates: OnceLock::new(),
            close: Notify::new(),
            closing: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            idle_since_ns: AtomicU64::new(opened_ns),
            unread_bytes: AtomicU64::new(0),
            incoming_bytes: AtomicU64::new(0),
            resets: Mutex::default(),
            mistakes: AtomicUsize::new(0),
            empty: AtomicUsize::new(0),
            retire: Notify::new(),
            retiring: AtomicBool::new(false),
        }
    }

    pub(crate) fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Returns the address that stands for the client: all of IPv4, the first 64 bits of IPv6.
    pub(crate) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Returns the number of the connection, which no other connection of this server has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Asks for the end of the connection.
    pub(crate) fn close(&self) {
        if !self.closing.swap(true, Ordering::Relaxed) {
            count(&self.network.counters.closed);
            self.close.notify_one();
        }
    }

    /// Waits until someone has asked for the end of the connection.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }

    /// Asks for a replacement of the connection: the client is to open another one for new calls, and the calls under way go on.
    fn retire(&self) {
        if !self.retiring.swap(true, Ordering::Relaxed) {
            self.retire.notify_one();
        }
    }

    /// Waits until someone has asked for a replacement of the connection.
    pub(crate) async fn retired(&self) {
        self.retire.notified().await;
    }

    /// Registers a call.
    pub(crate) fn open_call(self: &Arc<Self>) -> Opened {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        let call = Arc::new(Call::new(self.clone()));
        lock(&self.network.calls).insert(call.number, call.clone());
        Opened(call)
    }

    /// Returns the number of calls so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns the time at which the connection is to be closed unless a call begins; `None` while there are calls. Calls end and
    /// begin unnoticed: ask again at that time.
    pub(crate) fn expires_ns(&self) -> Option<u64> {
        if self.begun() == 0 {
            return Some(self.opened_ns.saturating_add(nanos(self.network.limits.first_request)));
        }
        let idle_ns = nanos(self.network.limits.idle);
        (self.calls.load(Ordering::Relaxed) == 0)
            .then(|| self.idle_since_ns.load(Ordering::Relaxed).saturating_add(idle_ns))
    }

    /// Returns `true` if the connection is to be closed for want of a call.
    pub(crate) fn has_expired(&self) -> bool {
        self.expires_ns().is_some_and(|at_ns| at_ns <= self.network.clock.now_ns())
    }

    /// Returns what the connection has done for its place.
    fn held(&self) -> Held {
        let (standing, worked_ns) = self.place.standing();
        Held { number: self.number, peer: self.peer, standing, since_ns: worked_ns.unwrap_or(self.opened_ns) }
    }

    /// Notes a call that the client reset before the answer. After too many the connection is to be replaced, so that a client behind
    /// a gateway ends no call of another, and closed if resets come all the same.
    fn reset_early(&self) {
        let burst = u64::from(self.network.limits.early_resets);
        let level = lock(&self.resets).pour(self.network.clock.now_ns(), burst);
        if level > burst {
            self.retire();
        }
        if level > burst.saturating_mul(PATIENCE) {
            self.close();
        }
    }

    /// Notes a stream that the HTTP/2 library reset for a mistake of the client. With half of the mistakes at which the library ends the
    /// connection, the connection is to be replaced.
    pub(crate) fn note_mistake(&self) {
        self.note(&self.mistakes, MISTAKES_MAX);
    }

    /// Notes a frame of data without data, likewise.
    pub(crate) fn note_empty(&self) {
        self.note(&self.empty, EMPTY_MAX);
    }

    fn note(&self, counter: &AtomicUsize, most: usize) {
        if counter.fetch_add(1, Ordering::Relaxed) + 1 >= most / 2 {
            self.retire();
        }
    }

    /// Notes the beginning of headers longer than a frame, and returns their number. With too many connections in the middle of
    /// headers, the one that began first is closed.
    pub(crate) fn begin_headers(self: &Arc<Self>) -> u64 {
        let at = self.network.number();
        let mut unfinished = lock(&self.network.unfinished);
        unfinished.insert(at, self.clone());
        if unfinished.len() > UNFINISHED_MAX
            && let Some((_, oldest)) = unfinished.pop_first()
        {
            oldest.close();
        }
        at
    }

    /// Notes the end of headers longer than a frame.
    pub(crate) fn end_headers(&self, at: u64) {
        lock(&self.network.unfinished).remove(&at);
    }
}

impl Call {
    fn new(connection: Arc<Connection>) -> Self {
        Self {
            number: connection.network.number(),
            opened_ns: connection.network.clock.now_ns(),
            connection,
            reset: Notify::new(),
            ended: CancellationToken::new(),
            end_status: OnceLock::new(),
            right: OnceLock::new(),
            at_work: OnceLock::new(),
            incoming_bytes: AtomicU64::new(0),
            answered: AtomicBool::new(false),
            handled: AtomicBool::new(false),
            unread_since: AtomicU64::new(0),
            unread_bytes: AtomicU64::new(0),
            discarded: AtomicBool::new(false),
            backlog: OnceLock::new(),
        }
    }

    /// Returns a call without a connection, for tests and for services called without a network.
    pub(crate) fn detached(limits: NetworkLimits, clock: Clock) -> Arc<Self> {
        let connection = Connection::new(Network::new(limits, clock), 0, IpAddr::V4(Ipv4Addr::LOCALHOST));
        Arc::new(Self::new(Arc::new(connection)))
    }

    /// Returns a call without a connection that counts for the peer of this call, for work on behalf of the peer. The
    /// work has the rights of this call.
    pub(crate) fn on_behalf(&self) -> Arc<Self> {
        let Network { limits, clock, .. } = &*self.connection.network;
        let right = self.connection.right.clone();
        let connection = Connection::new(Network::new(limits.clone(), *clock), 0, self.connection.peer);
        let call = Self::new(Arc::new(Connection { right, ..connection }));
        Arc::new(Self { right: self.right.clone(), ..call })
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Resets the stream.
    fn reset(&self) {
        self.reset.notify_one();
    }

    /// Waits until the stream is to be reset.
    pub(crate) async fn to_reset(&self) {
        self.reset.notified().await;
    }

    /// Ends the call with a status, and discards waiting output. The first status counts.
    pub(crate) fn end(&self, status: Status) {
        if self.end_status.set(status).is_ok() {
            self.ended.cancel();
            if let Some(backlog) = self.backlog.get().and_then(Weak::upgrade) {
                backlog.discard();
            }
        }
    }

    /// Waits until the call is to end, and returns the status.
    pub(crate) async fn ended(&self) -> Status {
        self.ended.cancelled().await;
        self.end_status.get().cloned().unwrap_or_else(|| Status::cancelled("the call has ended"))
    }

    /// Returns the status of a call that the server has ended.
    pub(crate) fn end_status(&self) -> Option<Status> {
        self.end_status.get().cloned()
    }

    /// Notes that the message of a caller with rights is there. From now on the connection keeps its place, until the call ends. The call of a
    /// client with too many such connections, or calls on this one, ends. A call has one caller, who tells so once.
    pub(crate) fn work(&self, client: Client) {
        let (place, network) = (&self.connection.place, &self.connection.network);
        if self.is_at_work() {
            return;
        }
        match place.begin(&client, &network.workplaces, &network.limits) {
            Ok(()) => _ = self.at_work.set(client),
            Err(crowded) => self.end(Status::resource_exhausted(match crowded {
                Crowded::Connections => "this client uses too many connections; send calls on fewer of them",
                Crowded::Calls => "this client has its part of the calls of this connection; try again later",
            })),
        }
    }

    fn is_at_work(&self) -> bool {
        self.at_work.get().is_some()
    }

    /// Notes that response headers are there, of a call that `succeeds` so far.
    pub(crate) fn answer(&self, succeeds: bool) {
        self.answered.store(true, Ordering::Relaxed);
        if succeeds && self.is_at_work() {
            self.connection.place.answer(self.connection.network.clock.now_ns());
        }
    }

    /// Notes that a handler got the request's message.
    pub(crate) fn handle(&self) {
        self.handled.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a handler got the request's message.
    pub(crate) fn is_handled(&self) -> bool {
        self.handled.load(Ordering::Relaxed)
    }

    /// Sets the output to discard if the client does not read.
    pub(crate) fn set_backlog(&self, backlog: Weak<dyn Backlog>) {
        // A call has one request, hence one backlog.
        let _ = self.backlog.set(backlog);
    }

    /// Adds waiting output, bytes in memory; returns `false` if the call has too many.
    pub(crate) fn add_unread(&self, bytes: u64) -> bool {
        let network = &self.connection.network;
        let limits = &network.limits;
        let in_call = self.unread_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let here = self.connection.unread_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let in_all = network.unread_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if here > limits.unread_bytes_per_connection || in_all > limits.unread_bytes {
            network.over.notify_one();
        }
        self.note_unread();
        in_call <= limits.unread_bytes_per_call
    }

    /// Takes back waiting output that was taken, by the connection or for a whole answer. Without more, none is unread.
    pub(crate) fn take_unread(&self, bytes: u64) {
        self.remove_unread(bytes);
        if self.unread_bytes.load(Ordering::Relaxed) == 0 {
            self.note_read();
        }
    }

    /// Takes back waiting output that was discarded: the client has not read it.
    pub(crate) fn remove_unread(&self, bytes: u64) {
        self.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.connection.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.connection.network.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes that output waits for the client.
    pub(crate) fn note_unread(&self) {
        if self.unread_since.load(Ordering::Relaxed) == 0 {
            let now_ns = self.connection.network.clock.now_ns();
            self.unread_since.store(now_ns + 1, Ordering::Relaxed);
        }
    }

    /// Notes that the client has read all output so far.
    pub(crate) fn note_read(&self) {
        self.unread_since.store(0, Ordering::Relaxed);
    }

    fn unread_since_ns(&self) -> Option<u64> {
        self.unread_since.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Discards waiting output if there is any.
    fn discard_bytes(&self) {
        if self.unread_bytes.load(Ordering::Relaxed) > 0 {
            self.discard();
        }
    }

    /// Discards waiting output once; the stream then ends with RESOURCE_EXHAUSTED.
    pub(crate) fn discard(&self) {
        if !self.discarded.swap(true, Ordering::Relaxed) {
            let Connection { network, peer, .. } = &*self.connection;
            count(&network.counters.unread_ended);
            let bytes = self.unread_bytes.load(Ordering::Relaxed);
            let line = |calls| warn!(calls, %peer, bytes, "ended calls whose clients do not read their output");
            network.unread_lines.log(network.clock, line);
            if let Some(backlog) = self.backlog.get().and_then(Weak::upgrade) {
                backlog.discard();
            }
        }
    }
}

impl Bucket {
    /// Adds one drop, and returns the drops in the bucket. A tenth of `burst` leaks out each second.
    fn pour(&mut self, now_ns: u64, burst: u64) -> u64 {
        let leak_ns = 10_000_000_000 / burst.max(1);
        let leaked = now_ns.saturating_sub(self.at_ns) / leak_ns;
        self.level = self.level.saturating_sub(leaked) + 1;
        self.at_ns = if leaked > 0 { now_ns } else { self.at_ns };
        self.level
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        lock(&self.0.network.connections).remove(&self.0.number);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let call = &self.0;
        let connection = &call.connection;
        let now_ns = connection.network.clock.now_ns();
        connection.idle_since_ns.store(now_ns, Ordering::Relaxed);
        if let Some(client) = call.at_work.get() {
            connection.place.end(client, now_ns, &connection.network.workplaces);
        }
        connection.calls.fetch_sub(1, Ordering::Relaxed);
        lock(&connection.network.calls).remove(&call.number);
        if !call.answered.load(Ordering::Relaxed) {
            connection.reset_early();
        }
    }
}

/// Returns the part of an address that stands for one client: all of IPv4, the first 64 bits of IPv6.
pub(crate) fn network_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => IpAddr::V6((u128::from(addr) >> 64 << 64).into()),
        addr => addr,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Locks a map whose changes are single insertions and removals, whole even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) mod clock;
pub(crate) mod limits;
pub(crate) mod log_limit;
pub(crate) mod places;
mod receiving;
pub(crate) mod refusals;
pub(crate) mod right;
mod rights;
pub(crate) mod shares;
#[cfg(test)]
mod tests;
