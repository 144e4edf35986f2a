//! Shares of the queue: requests of one client on the way to their first token, at most.
//!
//! A request is *on the way* from its arrival until the first token or the end: while its text is tokenised, while it waits, and while its
//! prompt is computed. With a bound for each client, no client fills the queue for all others.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use crate::caller::Client;

/// Requests on the way, by client.
#[derive(Clone)]
pub(crate) struct QueueShares {
    most: u32,
    on_the_way: Arc<DashMap<Client, u32>>,
}

/// A request on the way; dropping the value ends the way.
pub(crate) struct OnTheWay {
    client: Client,
    on_the_way: Arc<DashMap<Client, u32>>,
}

impl QueueShares {
    /// Bounds the requests of each client by `most`.
    pub(crate) fn new(most: u32) -> Self {
        Self { most, on_the_way: Arc::default() }
    }

    /// Returns the requests of one client on the way, at most.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Counts in a request; returns `None` if as many of the client are on the way as may be.
    pub(crate) fn enter(&self, client: Client) -> Option<OnTheWay> {
        let mut count = self.on_the_way.entry(client.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(OnTheWay { client, on_the_way: self.on_the_way.clone() })
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        // A client without requests leaves nothing behind.
        if let Entry::Occupied(mut count) = self.on_the_way.entry(self.client.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn each_client_has_a_share_of_its_own_and_leaves_nothing_behind() {
        let shares = QueueShares::new(2);
        let (one, other) = (Client::Peer(IpAddr::V4(Ipv4Addr::LOCALHOST)), Client::Token("other".into()));
        let first = shares.enter(one.clone()).unwrap();
        let _second = shares.enter(one.clone()).unwrap();
        assert!(shares.enter(one.clone()).is_none());
        let of_other = shares.enter(other);
        assert!(of_other.is_some());
        drop(first);
        assert!(shares.enter(one.clone()).is_some(), "dropped at once");
        let _third = shares.enter(one.clone()).unwrap();
        assert!(shares.enter(one).is_none());
        drop(of_other);
        assert_eq!(shares.on_the_way.len(), 1);
    }
}
