//! Which request ids of clients are active.
//!
//! This is the one map that threads share. It stands at the edge: handlers write and read it, the core's thread does not know
//! it, and no guard of it is held across an await.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use trunkline_core::RequestId;

/// The active requests, by the ids their clients know.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<DashMap<String, RequestId>>);

/// An entry in [`Sessions`], which ends when this is dropped.
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
                vacant.insert(id);
                Some(Session { sessions: self.clone(), client_id: client_id.into() })
            }
        }
    }

    /// The core's id of an active request.
    pub(crate) fn find(&self, client_id: &str) -> Option<RequestId> {
        self.0.get(client_id).map(|id| *id)
    }
}

impl Session {
    /// The id the client knows.
    pub(crate) fn client_id(&self) -> &str {
        &self.client_id
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
        assert_eq!(sessions.find("a"), Some(RequestId(1)));
        assert_eq!(sessions.find("b"), None);
        drop(first);
        assert_eq!(sessions.find("a"), None);
        assert!(sessions.open("a", RequestId(3)).is_some());
    }
}
