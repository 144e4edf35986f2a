//! Request ids of clients: the active ones, and marks on the ones to be aborted.
//!
//! Each owner has ids of its own, so one client's ids neither collide with another's nor abort another's requests. Ids made by the
//! server are 128 random bits: without authentication, a caller who knows one may abort the request.
//!
//! A request is active before the core knows the request, while the prompt is tokenised, and an abort must not be lost then.
//! [`RequestIds::abort`] therefore marks the request before the abort is sent to the core, and the submitting handler looks for the
//! mark after sending the submission: either the abort is behind the submission, or the mark is seen.
//!
//! No other map of requests is shared by threads. The map stands at the edge: handlers write and read the map, the core's thread
//! does not know the map, and no guard is held across an await.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::Notify;
use tokio::time::timeout;
use trunkline_core::RequestId;

use crate::access::caller::{Caller, Owner};

/// Owner and id of a request.
type Key = (Owner, String);

/// The active requests, by the clients' ids.
#[derive(Clone, Default)]
pub(crate) struct RequestIds(Arc<Ids>);

#[derive(Default)]
struct Ids {
    active: DashMap<Key, Active>,
    /// Notified at the end of each entry.
    ended: Notify,
}

struct Active {
    id: RequestId,
    aborted: bool,
}

/// An entry in [`RequestIds`]; dropping the value ends the entry.
pub(crate) struct ActiveId {
    ids: RequestIds,
    key: Key,
}

impl RequestIds {
    /// Enters a request, unless the owner has an active one with the same id.
    pub(crate) fn open(&self, owner: Owner, client_id: &str, id: RequestId) -> Option<ActiveId> {
        let key = (owner, client_id.to_owned());
        match self.0.active.entry(key.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(Active { id, aborted: false });
                Some(ActiveId { ids: self.clone(), key })
            }
        }
    }

    /// Enters a request like [`RequestIds::open`]. An active request of the owner with the same id may be a cancelled one whose end is
    /// still on the way: waits for the end, for `patience` at most.
    pub(crate) async fn open_soon(
        &self,
        owner: Owner,
        client_id: &str,
        id: RequestId,
        patience: Duration,
    ) -> Option<ActiveId> {
        let opened = async {
            loop {
                // Registered before the look, so that no end is missed.
                let mut ended = pin!(self.0.ended.notified());
                ended.as_mut().enable();
                if let Some(active) = self.open(owner.clone(), client_id, id) {
                    return active;
                }
                ended.await;
            }
        };
        timeout(patience, opened).await.ok()
    }

    /// Marks the active requests with an id that the caller may abort; returns the core's ids of the requests. The abort MUST be
    /// sent to the core after the mark.
    ///
    /// A caller may abort own requests and, without authentication, those with an id made by the server; the holder of a token with
    /// the role admin may abort every request.
    pub(crate) fn abort(&self, caller: &Caller, client_id: &str) -> Vec<RequestId> {
        if let (Owner::Token(_), true) = (&caller.owner, caller.admin) {
            let named = self.0.active.iter_mut().filter(|active| active.key().1 == client_id);
            let mut found: Vec<RequestId> = named.map(|mut active| active.mark()).collect();
            found.sort_unstable();
            return found;
        }
        let owners = [caller.owner.clone(), caller.owner_of_made_id()];
        let mark = |owner| self.0.active.get_mut(&(owner, client_id.to_owned())).map(|mut active| active.mark());
        owners.into_iter().find_map(mark).into_iter().collect()
    }
}

impl Active {
    fn mark(&mut self) -> RequestId {
        self.aborted = true;
        self.id
    }
}

impl ActiveId {
    /// Returns the request id, chosen by the client or by the server.
    pub(crate) fn client_id(&self) -> &str {
        &self.key.1
    }

    /// Returns `true` if the request was aborted.
    pub(crate) fn aborted(&self) -> bool {
        self.ids.0.active.get(&self.key).is_some_and(|active| active.aborted)
    }
}

impl Drop for ActiveId {
    fn drop(&mut self) {
        self.ids.0.active.remove(&self.key);
        self.ids.0.ended.notify_waiters();
    }
}

/// Makes a request id that nobody can guess: 128 random bits, in hex digits.
///
/// # Errors
/// If the operating system has no random bits.
pub(crate) fn random_id() -> Result<String, getrandom::Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn caller(owner: Owner, admin: bool) -> Caller {
        Caller { owner, admin, ..Caller::local() }
    }

    fn token(name: &str) -> Owner {
        Owner::Token(name.into())
    }

    #[test]
    fn an_id_is_active_until_its_entry_is_dropped() {
        let ids = RequestIds::default();
        let me = caller(Owner::Connection(1), false);
        let first = ids.open(me.owner.clone(), "a", RequestId(1)).unwrap();
        assert!(ids.open(me.owner.clone(), "a", RequestId(2)).is_none());
        assert!(!first.aborted());
        assert_eq!(ids.abort(&me, "a"), [RequestId(1)]);
        assert_eq!(ids.abort(&me, "b"), []);
        assert!(first.aborted());
        drop(first);
        assert_eq!(ids.abort(&me, "a"), []);
        let next = ids.open(me.owner.clone(), "a", RequestId(3)).unwrap();
        assert!(!next.aborted(), "an abort is for one request, not for all of its id");
    }

    #[tokio::test]
    async fn an_id_whose_end_is_on_the_way_is_waited_for() {
        let ids = RequestIds::default();
        let open = |number, patience| ids.open_soon(Owner::Connection(1), "a", RequestId(number), patience);
        let first = open(1, Duration::ZERO).await.unwrap();
        assert!(open(2, Duration::ZERO).await.is_none());
        let mut next = pin!(open(3, Duration::from_secs(24 * 3600)));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(next.as_mut().poll(cx).is_pending());
        drop(first);
        assert!(next.await.is_some());
    }

    #[test]
    fn owners_neither_collide_nor_abort_each_other() {
        let ids = RequestIds::default();
        for (one, other) in [(Owner::Connection(1), Owner::Connection(2)), (token("one"), token("other"))] {
            let of_one = ids.open(one.clone(), "a", RequestId(1)).unwrap();
            let of_other = ids.open(other.clone(), "a", RequestId(2)).unwrap();
            assert_eq!(ids.abort(&caller(other.clone(), false), "a"), [RequestId(2)]);
            assert!(of_other.aborted() && !of_one.aborted());
            drop(of_other);
            assert_eq!(ids.abort(&caller(other, false), "a"), []);
        }
    }

    #[test]
    fn an_id_made_by_the_server_is_enough_without_tokens_only() {
        let ids = RequestIds::default();
        let (one, other) = (caller(Owner::Connection(1), false), caller(Owner::Connection(2), false));
        let _made = ids.open(one.owner_of_made_id(), "made", RequestId(1)).unwrap();
        assert_eq!(ids.abort(&other, "made"), [RequestId(1)]);

        let (one, other) = (caller(token("one"), false), caller(token("other"), false));
        let _made = ids.open(one.owner_of_made_id(), "with token", RequestId(2)).unwrap();
        assert_eq!(ids.abort(&other, "with token"), []);
        assert_eq!(ids.abort(&one, "with token"), [RequestId(2)]);
        let _same = ids.open(token("other"), "with token", RequestId(3)).unwrap();
        assert_eq!(ids.abort(&caller(token("boss"), true), "with token"), [RequestId(2), RequestId(3)]);
        let local = caller(Owner::Connection(3), true);
        assert_eq!(ids.abort(&local, "with token"), [], "without tokens an administrator owns no more than others");
    }

    #[test]
    fn ids_are_random() {
        let (one, other) = (random_id().unwrap(), random_id().unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 32 && one.bytes().all(|digit| digit.is_ascii_hexdigit()), "{one}");
    }
}
