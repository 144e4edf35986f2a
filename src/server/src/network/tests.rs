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

/// A call with a whole message, which was answered if `answered`.
fn call_at_work(connection: &Arc<Connection>, answered: bool) -> Opened {
    let call = connection.open_call();
    call.0.work(Client::Peer(connection.peer()));
    if answered {
        call.0.answer(true);
    }
    call
}

#[test]
fn a_new_connection_replaces_one_without_a_whole_message_and_none_at_work() {
    let network = network(NetworkLimits { connections: 5, connections_per_peer: Some(9), ..NetworkLimits::default() });
    let busy = network.admit(peer(1)).unwrap();
    let call = call_at_work(&busy.0, false);
    let known = network.admit(peer(2)).unwrap();
    drop(call_at_work(&known.0, true));
    let waiting = [network.admit(peer(3)).unwrap(), network.admit(peer(3)).unwrap()];
    let _calls_without_a_message = waiting.each_ref().map(|connection| connection.0.open_call());
    let other = network.admit(peer(4)).unwrap();
    let fresh = network.admit(peer(5)).unwrap();
    let closing = || [&busy, &known, &waiting[0], &waiting[1], &other, &fresh].map(|admitted| is_closing(&admitted.0));
    assert_eq!(closing(), [false, false, true, false, false, false], "one address had two");
    let _calls = [&waiting[1], &other, &fresh].map(|admitted| call_at_work(&admitted.0, true));
    let next = network.admit(peer(6)).unwrap();
    assert_eq!(closing(), [false, true, true, false, false, false], "all others are at work");
    let last = call_at_work(&next.0, true);
    assert!(network.admit(peer(7)).is_none());
    drop(call);
    assert!(network.admit(peer(7)).is_some() && is_closing(&busy.0), "no answer was there");
    drop(last);
    let counters = &network.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((read(&counters.accepted), read(&counters.refused), read(&counters.closed)), (8, 1, 3));
}

#[test]
fn calls_that_wait_take_half_of_a_connection_and_the_oldest_end() {
    let network = network(NetworkLimits { calls_per_connection: 4, ..NetworkLimits::default() });
    let connection = network.admit(peer(1)).unwrap();
    let calls = [0; 4].map(|_| connection.0.open_call());
    let works = call_at_work(&connection.0, false);
    network.end_waiting(Duration::from_secs(3600));
    let ended = || calls.each_ref().map(|call| call.0.end_status.get().is_some());
    assert_eq!(ended(), [false; 4], "their messages may be on the way");
    network.end_waiting(Duration::ZERO);
    assert_eq!(ended(), [true, true, false, false]);
    assert!(works.0.end_status.get().is_none());
}

#[test]
fn a_peer_at_its_limit_replaces_only_its_own_connections() {
    let network = network(NetworkLimits { connections_per_peer: Some(2), ..NetworkLimits::default() });
    let other = network.admit(peer(1)).unwrap();
    let mine = [network.admit(peer(2)).unwrap(), network.admit(peer(2)).unwrap()];
    let _third = network.admit(peer(2)).unwrap();
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
    let connection = network.admit(peer(1)).unwrap();
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

/// A whole answer is read as it is made, and sent at its end: its call has no output that waits, however long that takes.
#[test]
fn output_that_is_taken_is_not_unread() {
    let network = network(NetworkLimits { unread: Duration::ZERO, ..NetworkLimits::default() });
    let connection = network.admit(peer(1)).unwrap();
    let (call, _) = unread_call(&connection.0, 8, 0);
    call.0.take_unread(3);
    assert_eq!(call.0.unread_since_ns(), Some(0), "some of it waits");
    call.0.take_unread(5);
    assert_eq!(call.0.unread_since_ns(), None);
    network.end_unread();
    assert_eq!(network.counters.unread_ended.load(Ordering::Relaxed), 0);
    let (discarded, _) = unread_call(&connection.0, 8, 0);
    discarded.0.remove_unread(8);
    assert_eq!(discarded.0.unread_since_ns(), Some(0), "the client did not read what was discarded");
}

#[test]
fn beyond_the_bytes_the_call_unread_for_longest_ends() {
    let limits = NetworkLimits { unread_bytes: 100, unread_bytes_per_connection: 60, ..NetworkLimits::default() };
    let network = network(limits);
    let (one, other) = (network.admit(peer(1)).unwrap(), network.admit(peer(2)).unwrap());
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
    let connection = network.admit(peer(1)).unwrap();
    for _ in 0..20 {
        let answered = connection.0.open_call();
        answered.0.answer(true);
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
        let connection = network(NetworkLimits::default()).admit(peer(1)).unwrap();
        (1..most / 2).for_each(|_| note(&connection.0));
        assert!(!is_retiring(&connection.0));
        note(&connection.0);
        assert!(is_retiring(&connection.0) && !is_closing(&connection.0));
    }
}

#[test]
fn of_too_many_connections_in_the_middle_of_headers_the_first_is_closed() {
    let network = network(NetworkLimits { connections_per_peer: Some(99), ..NetworkLimits::default() });
    let connections: Vec<_> = (0..UNFINISHED_MAX + 2).map(|_| network.admit(peer(1)).unwrap()).collect();
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
fn bytes_being_received_are_bounded_and_the_oldest_message_with_a_part_of_them_ends() {
    let limits = NetworkLimits { incoming_bytes: 100, incoming_bytes_per_connection: 60, ..NetworkLimits::default() };
    let network = network(limits);
    let (one, other) = (network.admit(peer(1)).unwrap(), network.admit(peer(2)).unwrap());
    let receive = |connection: &Admitted, bytes: u64| {
        let call = connection.0.open_call();
        let result = call.0.add_incoming(bytes);
        assert!(result.is_ok() || call.0.end_status.get().is_some());
        call
    };
    let is_ended = |call: &Opened| call.0.end_status.get().is_some();
    let [small, half, next] = [1, 30, 29].map(|bytes| receive(&one, bytes));
    assert!(![&small, &half, &next].into_iter().any(is_ended), "just within");
    let message = receive(&one, 20);
    assert_eq!([&small, &half, &next, &message].map(is_ended), [false, true, false, false]);
    let too_long = receive(&other, 61);
    assert!(is_ended(&too_long), "alone on its connection");
    let fits = receive(&other, 51);
    assert_eq!([&small, &next, &message, &fits].map(is_ended), [false, false, false, true], "one has 50 of 101");
    let fits = receive(&other, 50);
    assert!(!is_ended(&fits));
    [small, half, next, message, too_long, fits].iter().for_each(|call| call.0.remove_incoming());
    let late = receive(&one, 60);
    assert!(!is_ended(&late) && late.0.add_incoming(1).is_err());
}

#[test]
fn a_connection_expires_without_a_first_request_and_when_idle() {
    let limits = NetworkLimits { first_request: Duration::ZERO, idle: Duration::MAX, ..NetworkLimits::default() };
    let silent = network(limits).admit(peer(1)).unwrap();
    assert!(silent.0.has_expired());
    let call = silent.0.open_call();
    assert_eq!(silent.0.expires_ns(), None);
    drop(call);
    assert!(!silent.0.has_expired(), "the limit on idle connections is another");
}
