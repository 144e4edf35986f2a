//! Ids of requests with several answers: a client knows one id, and the server has one for each answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Active requests with several answers, by the id that the client gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parents(Arc<Mutex<HashMap<String, Vec<u32>>>>);

/// A request with several answers, until this is dropped.
#[derive(Debug)]
pub(crate) struct Parent {
    id: String,
    n: u32,
    all: Parents,
}

/// Returns the id of one answer.
pub(crate) fn child(id: &str, choice: u32) -> String {
    format!("{id}-{choice}")
}

impl Parents {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<u32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request with `n` answers.
    pub(crate) fn open(&self, id: &str, n: u32) -> Parent {
        // Clients that do not know of each other may use one id: the server refuses the second's answers where they share requests.
        self.all().entry(id.to_owned()).or_default().push(n);
        Parent { id: id.to_owned(), n, all: self.clone() }
    }

    /// Returns these ids, and those of their answers.
    pub(crate) fn with_children(&self, mut ids: Vec<String>) -> Vec<String> {
        let all = self.all();
        for at in 0..ids.len() {
            let n = all.get(&ids[at]).and_then(|each| each.iter().max());
            for choice in 0..n.copied().unwrap_or(0) {
                ids.push(child(&ids[at], choice));
            }
        }
        ids
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let mut all = self.all.all();
        let Some(each) = all.get_mut(&self.id) else { return };
        if let Some(at) = each.iter().position(|n| *n == self.n) {
            each.swap_remove(at);
        }
        if each.is_empty() {
            all.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stands_for_its_answers_while_the_request_is_active() {
        let parents = Parents::default();
        let ids = || parents.with_children(vec!["a".into(), "b".into()]);
        let (first, second) = (parents.open("a", 2), parents.open("a", 3));
        assert_eq!(ids(), ["a", "b", "a-0", "a-1", "a-2"]);
        drop(second);
        assert_eq!(ids(), ["a", "b", "a-0", "a-1"]);
        drop(first);
        assert_eq!(ids(), ["a", "b"]);
        assert!(parents.all().is_empty());
    }
}
