//! Objects in remote storage, behind a trait, so that tests can make a store hang or fail.

use std::fmt::Debug;
use std::time::Instant;

/// Reason for no answer from remote storage. The object may be good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The deadline passed.
    #[error("no answer before the deadline")]
    Deadline,
    /// The store refused, or the way to the store is broken.
    #[error("{0}")]
    Failed(String),
}

/// Objects by name. Every call ends before its deadline, whatever the store does.
pub trait Objects: Debug + Send + Sync {
    /// Writes an object, whole or not at all; replaces one of the same name.
    ///
    /// # Errors
    /// If the store has not answered before the deadline, or refused.
    fn put(&self, name: &str, bytes: Vec<u8>, deadline: Instant) -> Result<(), Unanswered>;

    /// Reads an object of at most `limit` bytes. Returns `None` if there is none; longer objects are cut behind `limit`.
    ///
    /// # Errors
    /// If the store has not answered before the deadline, or refused.
    fn get(&self, name: &str, limit: usize, deadline: Instant) -> Result<Option<Vec<u8>>, Unanswered>;

    /// Returns `true` for each name of an object. The questions are under way at once.
    ///
    /// # Errors
    /// If the store has not answered before the deadline, or refused.
    fn has(&self, names: &[String], deadline: Instant) -> Result<Vec<bool>, Unanswered>;

    /// Notes that an object is about to be written by this process. [`Self::settle`] MUST follow.
    fn announce(&self, _name: String) {}

    /// Notes the end of an announced write, well or not.
    fn settle(&self, _name: &str) {}

    /// Calls `then` when none of the objects is announced: at once, or from the thread that settles the last. Storage that does not see the
    /// writes of others calls it at once.
    fn when_settled(&self, _names: &[String], then: Then) {
        then();
    }
}

/// Something to do later, once.
pub type Then = Box<dyn FnOnce() + Send>;
