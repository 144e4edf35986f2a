//! Tests of the acceptor: failing accepts.

use std::sync::atomic::{AtomicU32, Ordering};

use tonic::service::Routes;

use super::*;
use crate::access::Access;
use crate::network::clock::Clock;
use crate::network::limits::NetworkLimits;

/// A listener without descriptors.
struct Exhausted(Arc<AtomicU32>);

impl Accept for Exhausted {
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(io::Error::other("too many open files"))
    }
}

#[tokio::test]
async fn a_failing_accept_waits_before_the_next() {
    let network = Network::new(NetworkLimits::default(), Clock::start());
    let silent = network.admit(SocketAddr::from(([10, 0, 0, 1], 1))).unwrap();
    let gate =
        Gate::new(Routes::default(), Routes::default(), Arc::default(), Arc::new(Access::new(false, None).unwrap()));
    let attempts = Arc::new(AtomicU32::new(0));
    let acceptor = Acceptor { network, gate, tls: None };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(acceptor.serve(Exhausted(attempts.clone()), async { drop(stopped.await) }));
    silent.0.closed().await;
    // Without a pause, each of these would be an attempt.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
    drop(stop);
    serving.await.unwrap();
}

#[test]
fn an_end_of_one_connection_is_no_reason_to_pause() {
    assert!(concerns_one_connection(&io::ErrorKind::ConnectionAborted.into()));
    assert!(!concerns_one_connection(&io::Error::other("too many open files")));
}
