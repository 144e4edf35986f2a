//! Request ids of clients: the active ones, and marks on the ones to be aborted.
//!
//! A request is active before the core knows the request, while the prompt is tokenised, and an abort must not be lost then.
//! [`Sessions::abort`] therefore marks the request before the abort is sent to the core, and the submitting handler looks for the
//! mark after sending the submission: either the abort is behind the submission, or the mark is seen.
//!
//! No other map is shared by threads. The map stands at the edge: handlers write and read the map, the core's thread does not know
//! the map, and no guard is held across an await.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use trunkline_core::RequestId;

/// The active requests, by the clients' ids.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<DashMap<String, Active>>);

struct Active {
    id: RequestId,
    aborted: bool,
}

/// An entry in [`Sessions`]; dropping the session ends the entry.
pub(crate) struct Session {
    sessions: Sessions,
    client_id: String,
}

impl Sessions {
    /// Enters a request, unless one with the same id is active.
    pub(crate) fn open(&self, client_id: &str, id: RequestId) -> Option<Session> {
        match self.0.entry(client_id.into()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(Active { id, aborted: false });
                Some(Session { sessions: self.clone(), client_id: client_id.into() })
            }
        }
    }

    /// Marks an active request as aborted; returns the core's id of the request. The abort MUST be sent to the core after the mark.
    pub(crate) fn abort(&self, client_id: &str) -> Option<RequestId> {
        self.0.get_mut(client_id).map(|mut active| {
            active.aborted = true;
            active.id
        })
    }
}

impl Session {
    /// Returns the request id, chosen by the client or by the server.
    pub(crate) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Returns `true` if the request was aborted.
    pub(crate) fn aborted(&self) -> bool {
        self.sessions.0.get(&self.client_id).is_some_and(|active| active.aborted)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.0.remove(&self.client_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_active_until_its_session_is_dropped() {
        let sessions = Sessions::default();
        let first = sessions.open("a", RequestId(1)).unwrap();
        assert!(sessions.open("a", RequestId(2)).is_none());
        assert!(!first.aborted());
        assert_eq!(sessions.abort("a"), Some(RequestId(1)));
        assert_eq!(sessions.abort("b"), None);
        assert!(first.aborted());
        drop(first);
        assert_eq!(sessions.abort("a"), None);
        let next = sessions.open("a", RequestId(3)).unwrap();
        assert!(!next.aborted(), "an abort is for one request, not for all of its id");
    }
}
