//! Shares of clients: requests of one client at once, at most.
//!
//! Two shares are bounded. A request is *on the way* from its arrival until the first token or the end: while its text is tokenised, while it
//! waits, and while its prompt is computed. A request is *open* until its end. With bounds for each client, no client fills the queue, or the
//! running batch, for all others.

use std::net::IpAddr;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

/// Client to whom requests count: the holder of a token, or without tokens everyone at one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// Holder of a token, by the token's name.
    Token(Arc<str>),
    /// Address of the other end of a connection: all of IPv4, the first 64 bits of IPv6.
    Peer(IpAddr),
}

/// Requests at once, by client.
#[derive(Clone)]
pub(crate) struct Shares {
    most: u32,
    counts: Arc<DashMap<Client, u32>>,
}

/// A counted request; dropping the value counts the request out.
pub(crate) struct Share {
    client: Client,
    counts: Arc<DashMap<Client, u32>>,
}

impl Shares {
    /// Bounds the requests of each client by `most`.
    pub(crate) fn new(most: u32) -> Self {
        Self { most, counts: Arc::default() }
    }

    /// Returns the maximum number of requests of one client.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Counts in a request; returns `None` if the client is at its limit.
    pub(crate) fn enter(&self, client: Client) -> Option<Share> {
        let mut count = self.counts.entry(client.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share { client, counts: self.counts.clone() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // A client without requests leaves nothing behind.
        if let Entry::Occupied(mut count) = self.counts.entry(self.client.clone()) {
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
        let shares = Shares::new(2);
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
        assert_eq!(shares.counts.len(), 1);
    }
}
