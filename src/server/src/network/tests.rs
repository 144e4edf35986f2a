//! Tests of connections, calls and their limits.

use super::*;

fn network(limits: NetworkLimits) -> Arc<Network> {
    Network::new(limits, Clock::start())
}

fn peer(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 1))
}

fn is_closing(connection: &Connection) -> bool {
    connection.closing.load(Ordering::Relaxed)
}

fn is_retiring(connection: &Connection) -> bool {
    connection.retiring.load(Ordering::Relaxed)
}

/// A backlog that counts how often it was discarded.
#[derive(Default)]
struct Discards(AtomicU32);

impl Backlog for Discards {
    fn discard(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call with a backlog of `bytes`, unread since `since_ns`.
fn unread_call(connection: &Arc<Connection>, bytes: u64, since_ns: u64) -> (Opened, Arc<Discards>) {
    let call = connection.open_call();
    let discards = Arc::new(Discards::default());
    let backlog: Weak<Discards> = Arc::downgrade(&discards);
    call.0.set_backlog(backlog);
    assert!(call.0.add_unread(bytes));
    call.0.unread_since.store(since_ns + 1, Ordering::Relaxed);
    (call, discards)
}

#[test]
fn a_new_connection_replaces_the_one_without_a_call_for_longest_and_none_with_a_call() {
    let network = network(NetworkLimits { connections_per_peer: Some(9), ..NetworkLimits::default() });
    let busy = network.admit(peer(1), 3).unwrap();
    let call = busy.0.open_call();
    let silent = network.admit(peer(2), 3).unwrap();
    let used = network.admit(peer(3), 3).unwrap();
    drop(used.0.open_call());
    // The silent one never had a call, so it goes before one that had.
    let fourth = network.admit(peer(4), 3).unwrap();
    let (_fourth, _fifth) = (fourth.0.open_call(), network.admit(peer(5), 3).unwrap().0.open_call());
    assert!(is_closing(&silent.0) && is_closing(&used.0) && !is_closing(&busy.0) && !is_closing(&fourth.0));
    drop((silent, used));
    assert_eq!(network.open().0, 2, "the fifth was dropped, the others are there");
    let sixth = network.admit(peer(6), 2);
    assert!(sixth.is_none(), "each has a call");
    drop(call);
    assert!(network.admit(peer(6), 2).is_some());
    let counters = &network.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((read(&counters.accepted), read(&counters.refused), read(&counters.closed)), (6, 1, 3));
}

#[test]
fn a_peer_at_its_limit_replaces_only_its_own_connections() {
    let network = network(NetworkLimits { connections_per_peer: Some(2), ..NetworkLimits::default() });
    let other = network.admit(peer(1), 9).unwrap();
    let mine = [network.admit(peer(2), 9).unwrap(), network.admit(peer(2), 9).unwrap()];
    let _third = network.admit(peer(2), 9).unwrap();
    assert_eq!((is_closing(&other.0), is_closing(&mine[0].0), is_closing(&mine[1].0)), (false, true, false));
}

#[test]
fn one_ipv6_network_is_one_peer() {
    let of = |addr: &str| network_of(addr.parse().unwrap());
    assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::1"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
}

#[test]
fn unread_calls_end_by_time_and_are_reset_after_twice_the_time() {
    let network = network(NetworkLimits { unread: Duration::ZERO, ..NetworkLimits::default() });
    let connection = network.admit(peer(1), 9).unwrap();
    let read = connection.0.open_call();
    let (call, discards) = unread_call(&connection.0, 8, 0);
    network.end_unread();
    network.end_unread();
    assert_eq!(discards.0.load(Ordering::Relaxed), 1, "discarding once is enough");
    assert_eq!(network.counters.unread_ended.load(Ordering::Relaxed), 1);
    let noop = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::pin!(call.0.to_reset()).poll(noop).is_ready());
    assert!(std::pin::pin!(read.0.to_reset()).poll(noop).is_pending());
}

#[test]
fn beyond_the_bytes_the_call_unread_for_longest_ends() {
    let limits = NetworkLimits { unread_bytes: 100, unread_bytes_per_connection: 60, ..NetworkLimits::default() };
    let network = network(limits);
    let (one, other) = (network.admit(peer(1), 9).unwrap(), network.admit(peer(2), 9).unwrap());
    let discarded = |discards: &Discards| discards.0.load(Ordering::Relaxed);
    let calls = [unread_call(&one.0, 40, 3), unread_call(&one.0, 20, 2), unread_call(&other.0, 40, 5)];
    network.end_unread();
    assert_eq!(calls.each_ref().map(|(_, discards)| discarded(discards)), [0, 0, 0], "just within");
    // A discarded backlog gives its bytes back; these do not, so the next one is to end as well.
    let more = unread_call(&other.0, 1, 9);
    network.end_unread();
    assert_eq!(calls.each_ref().map(|(_, discards)| discarded(discards)), [1, 1, 1]);
    calls.iter().zip([40, 20, 40]).for_each(|((call, _), bytes)| call.0.remove_unread(bytes));
    let (last, in_one) = (unread_call(&other.0, 60, 8), unread_call(&one.0, 30, 1));
    network.end_unread();
    assert_eq!((discarded(&last.1), discarded(&in_one.1)), (1, 0), "the other connection alone is above its limit");
    drop(more);
}

#[test]
fn early_resets_replace_the_connection_after_a_burst_and_close_it_after_ten() {
    let network = network(NetworkLimits { early_resets: 20, ..NetworkLimits::default() });
    let connection = network.admit(peer(1), 9).unwrap();
    for _ in 0..20 {
        let answered = connection.0.open_call();
        answered.0.answer();
        drop((answered, connection.0.open_call()));
    }
    assert!(!is_retiring(&connection.0));
    (0..20).for_each(|_| drop(connection.0.open_call()));
    assert!(is_retiring(&connection.0) && !is_closing(&connection.0));
    (0..200).for_each(|_| drop(connection.0.open_call()));
    assert!(is_closing(&connection.0));
}

#[test]
fn mistakes_replace_the_connection_before_the_library_ends_it() {
    for (most, note) in
        [(MISTAKES_MAX, Connection::note_mistake as fn(&Connection)), (EMPTY_MAX, Connection::note_empty)]
    {
        let connection = network(NetworkLimits::default()).admit(peer(1), 9).unwrap();
        (1..most / 2).for_each(|_| note(&connection.0));
        assert!(!is_retiring(&connection.0));
        note(&connection.0);
        assert!(is_retiring(&connection.0) && !is_closing(&connection.0));
    }
}

#[test]
fn of_too_many_connections_in_the_middle_of_headers_the_first_is_closed() {
    let network = network(NetworkLimits { connections_per_peer: Some(99), ..NetworkLimits::default() });
    let connections: Vec<_> = (0..UNFINISHED_MAX + 2).map(|_| network.admit(peer(1), 99).unwrap()).collect();
    let begun: Vec<_> = connections.iter().map(|connection| connection.0.begin_headers()).collect();
    let closing = || connections.iter().filter(|connection| is_closing(&connection.0)).count();
    assert!(is_closing(&connections[0].0) && is_closing(&connections[1].0) && closing() == 2);
    connections[2].0.end_headers(begun[2]);
    connections[0].0.begin_headers();
    assert_eq!(closing(), 2, "one has ended");
}

#[test]
fn a_bucket_forgives_a_tenth_each_second() {
    let mut bucket = Bucket::default();
    const S: u64 = 1_000_000_000;
    assert_eq!((0..11).map(|_| bucket.pour(5 * S, 10)).max(), Some(11));
    assert_eq!(bucket.pour(7 * S, 10), 10, "two are forgiven");
    assert_eq!(bucket.pour(7 * S, 10), 11);
}

#[test]
fn bytes_being_received_are_bounded_per_connection_and_in_all() {
    let limits = NetworkLimits { incoming_bytes: 100, incoming_bytes_per_connection: 60, ..NetworkLimits::default() };
    let network = network(limits);
    let (one, other) = (network.admit(peer(1), 9).unwrap(), network.admit(peer(2), 9).unwrap());
    assert!(one.0.add_incoming(60) && !one.0.add_incoming(1));
    assert!(other.0.add_incoming(40) && !other.0.add_incoming(1));
    one.0.remove_incoming(60);
    assert!(other.0.add_incoming(20) && !other.0.add_incoming(1) && one.0.add_incoming(1));
}

#[test]
fn a_connection_expires_without_a_first_request_and_when_idle() {
    let limits = NetworkLimits { first_request: Duration::ZERO, idle: Duration::MAX, ..NetworkLimits::default() };
    let silent = network(limits).admit(peer(1), 9).unwrap();
    assert!(silent.0.has_expired());
    let call = silent.0.open_call();
    assert_eq!(silent.0.expires_ns(), None);
    drop(call);
    assert!(!silent.0.has_expired(), "the limit on idle connections is another");
}
