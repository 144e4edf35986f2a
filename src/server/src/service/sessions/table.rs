//! All sessions of a server, within limits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::Status;
use trunkline_chat::Chat;
use trunkline_quote::quoted;

use crate::access::caller::{Caller, Owner};
use crate::network::refusals::Reason;
use crate::network::shares::Shares;
use crate::service::request_ids::random_id;
use crate::service::sessions::entry::Entry;
use crate::service::sessions::setup::Setup;
use crate::service::submission::Rejection;

/// Looks for unused sessions in the time to live of one, at most, besides those of a call that adds a session.
const LOOKS_PER_TTL: u64 = 16;

/// Limits of the sessions of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionOptions {
    /// Maximum number of sessions at once.
    pub sessions: u32,
    /// Maximum number of sessions of one client at once; `None` for half of `sessions`. A client is the holder of a token, or without tokens
    /// everyone at one address.
    pub per_client: Option<u32>,
    /// Memory of one session, at most, bytes: prefix, turns, pins and summaries. Beyond, the oldest turns outside of the context are forgotten.
    pub bytes: u64,
    /// Time without a call after which a session is deleted.
    pub ttl: Duration,
    /// Time for a summary, and for computing the new context, at most.
    pub compaction: Duration,
    /// Marks of the model's chat template around a message of the user that asks for an answer: before and behind the request for a summary,
    /// unless a session has a request of its own.
    pub marks: Option<(String, String)>,
}

impl Default for SessionOptions {
    /// 1024 sessions, 1 MiB and an hour for each, and two minutes for a summary.
    fn default() -> Self {
        Self {
            sessions: 1024,
            per_client: None,
            bytes: 1 << 20,
            ttl: Duration::from_secs(3600),
            compaction: Duration::from_secs(120),
            marks: None,
        }
    }
}

/// All sessions of a server.
pub(crate) struct SessionTable {
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    per_client: Shares,
    /// Time of the next look for unused sessions.
    next_look_ns: AtomicU64,
    options: SessionOptions,
}

impl SessionTable {
    pub(crate) fn new(options: SessionOptions) -> Self {
        let per_client = options.per_client.unwrap_or(options.sessions.div_ceil(2));
        Self {
            entries: Mutex::default(),
            per_client: Shares::new(per_client),
            next_look_ns: AtomicU64::new(0),
            options,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session of a caller.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the caller or the server is at its limit of sessions.
    pub(crate) fn add(&self, caller: &Caller, setup: Setup, chat: Chat, now_ns: u64) -> Result<Arc<Entry>, Status> {
        self.expire(now_ns);
        let id = random_id().map_err(Rejection::NoRandomness)?;
        let refuse = |whose: &str, most: u32| {
            caller.call.connection().network().counters.refusals.count(Reason::SessionLimit);
            Status::resource_exhausted(format!(
                "{whose} {most} sessions, which is the limit; delete one, or try again later"
            ))
        };
        let share = self.per_client.enter(caller.client());
        let share = share.ok_or_else(|| refuse("this client has", self.per_client.most()))?;
        let mut entries = self.lock();
        if entries.len() >= self.options.sessions as usize {
            return Err(refuse("the server has", self.options.sessions));
        }
        let entry = Entry::new(id.clone(), caller.owner_of_made_id(), setup, chat, share, now_ns);
        entries.insert(id, entry.clone());
        Ok(entry)
    }

    /// Returns a session that the caller may use, and notes the use.
    ///
    /// # Errors
    /// NOT_FOUND if there is no such session, or the session is another caller's.
    pub(crate) fn find(&self, caller: &Caller, id: &str, now_ns: u64) -> Result<Arc<Entry>, Status> {
        if now_ns >= self.next_look_ns.load(Ordering::Relaxed) {
            self.expire(now_ns);
        }
        let found = self.lock().get(id).filter(|entry| !self.is_over(entry, now_ns)).cloned();
        let found = found.filter(|entry| may_use(caller, entry));
        let entry = found.ok_or_else(|| no_session(id))?;
        entry.lock().used_ns = now_ns;
        Ok(entry)
    }

    /// Returns the number of sessions, without those that nobody used for the time to live.
    pub(crate) fn open(&self, now_ns: u64) -> usize {
        self.expire(now_ns);
        self.lock().len()
    }

    /// Removes a session from the table.
    pub(crate) fn remove(&self, id: &str) {
        self.lock().remove(id);
    }

    /// Returns the sessions that the caller may use, by id. Without tokens nobody but an administrator sees any.
    pub(crate) fn list(&self, caller: &Caller, now_ns: u64) -> Vec<Arc<Entry>> {
        self.expire(now_ns);
        let seen = |entry: &&Arc<Entry>| caller.admin || (entry.owner != Owner::Anyone && entry.owner == caller.owner);
        self.lock().values().filter(seen).cloned().collect()
    }

    fn ttl_ns(&self) -> u64 {
        u64::try_from(self.options.ttl.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns `true` if nobody used a session of the table for the time to live. Every call and every compaction under way holds the
    /// entry, and while the table is locked, no other may take it.
    fn is_over(&self, entry: &Arc<Entry>, now_ns: u64) -> bool {
        Arc::strong_count(entry) == 1 && now_ns.saturating_sub(entry.lock().used_ns) > self.ttl_ns()
    }

    /// Deletes the sessions that nobody used for the time to live.
    fn expire(&self, now_ns: u64) {
        self.next_look_ns.store(now_ns.saturating_add(self.ttl_ns() / LOOKS_PER_TTL), Ordering::Relaxed);
        let mut over = Vec::new();
        self.lock().retain(|_, entry| {
            let stays = !self.is_over(entry, now_ns);
            if !stays {
                over.push(entry.clone());
            }
            stays
        });
        // No turn runs, so there is nothing to abort.
        for entry in over {
            let _ = entry.delete();
        }
    }
}

fn may_use(caller: &Caller, entry: &Entry) -> bool {
    let is_admin = matches!(caller.owner, Owner::Token(_)) && caller.admin;
    entry.owner == Owner::Anyone || entry.owner == caller.owner || is_admin
}

/// Returns the status for a session that is not there.
pub(crate) fn no_session(id: &str) -> Status {
    Status::not_found(format!("session_id {} names no session of this caller; it may have expired", quoted(id)))
}

#[cfg(test)]
mod tests {
    use trunkline_chat::{Fixed, Frame, Limits, Wanted};

    use super::*;

    #[tokio::test]
    async fn a_session_that_a_call_holds_does_not_expire() {
        let options = SessionOptions { ttl: Duration::from_nanos(100), ..SessionOptions::default() };
        let (table, caller) = (SessionTable::new(options), Caller::local());
        let limits = Limits::new(128, Fixed::default(), Wanted::default(), 1 << 20).unwrap();
        let chat = Chat::new(vec![1], Frame::default(), limits);
        let (settings, frame, instruction, lead) = Default::default();
        let setup = Setup { settings, frame, instruction, lead, sampled: false, context: 128, summary_context: 128 };
        let held = table.add(&caller, setup, chat, 0).unwrap();
        assert!(table.find(&caller, &held.id, 1_000).is_ok());
        let id = held.id.clone();
        drop(held);
        assert!(table.find(&caller, &id, 1_100).is_ok(), "used at 1,000");
        assert!(table.find(&caller, &id, 1_201).is_err());
    }
}
