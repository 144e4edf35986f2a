//! Objects in host memory, shared by the stores of one process: blocks travel from one engine to another, as from a prefill engine to a
//! decode engine.
//!
//! The memory keeps the objects used last, up to a limit in bytes, and all side tables: each store has a few small ones, and no frame can be
//! read without the table of the frame. Writers announce objects before the copies begin, so that a look-up in
//! between waits for the copies. No thread waits: the look-up begins when the last announced object is settled.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::TABLES;
use super::objects::{Objects, Then, Unanswered};

/// Host memory for blocks of several stores. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct SharedMemory(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    limit_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Object {
    bytes: Vec<u8>,
    /// Time of the last use, counted in uses.
    used: u64,
}

#[derive(Default)]
struct State {
    objects: HashMap<String, Object>,
    /// Names by the time of their last use, without side tables.
    order: BTreeMap<u64, String>,
    bytes: u64,
    /// Part of the bytes that is side tables.
    table_bytes: u64,
    uses: u64,
    /// Writers of announced objects, by name.
    announced: HashMap<String, u32>,
    /// Look-ups that wait, each with the announced names awaited.
    waiting: Vec<(Vec<String>, Then)>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { objects, bytes, announced, waiting, .. } = self;
        let (objects, announced, waiting) = (objects.len(), announced.len(), waiting.len());
        write!(out, "{objects} objects of {bytes} bytes, {announced} announced, {waiting} look-ups waiting")
    }
}

impl PartialEq for SharedMemory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedMemory {}

impl SharedMemory {
    /// Creates an empty memory for objects of `limit_bytes` in all.
    pub fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Memory { limit_bytes, state: Mutex::default() }))
    }

    /// Returns the most bytes of all objects.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes
    }

    /// Returns the bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, name: &str) {
        if let Some(object) = self.objects.remove(name) {
            self.order.remove(&object.used);
            self.bytes -= object.bytes.len() as u64;
            if name.contains(TABLES) {
                self.table_bytes -= object.bytes.len() as u64;
            }
        }
    }

    /// Makes an object the one used last.
    fn touch(&mut self, name: &str) {
        let Some(object) = self.objects.get_mut(name) else { return };
        self.uses += 1;
        if let Some(name) = self.order.remove(&object.used) {
            self.order.insert(self.uses, name);
        }
        object.used = self.uses;
    }
}

impl Objects for SharedMemory {
    fn put(&self, name: &str, bytes: Vec<u8>, _: Instant) -> Result<(), Unanswered> {
        let (len, limit) = (bytes.len() as u64, self.0.limit_bytes);
        if len > limit {
            return Err(Unanswered::Failed(format!("an object of {len} bytes is larger than the memory")));
        }
        let mut state = self.state();
        state.remove(name);
        if state.table_bytes + len > limit {
            return Err(Unanswered::Failed("the memory is full of side tables".to_owned()));
        }
        while state.bytes + len > limit {
            let oldest = state.order.values().next().cloned();
            oldest.into_iter().for_each(|oldest| state.remove(&oldest));
        }
        state.uses += 1;
        let used = state.uses;
        state.bytes += len;
        if name.contains(TABLES) {
            state.table_bytes += len;
        } else {
            state.order.insert(used, name.to_owned());
        }
        state.objects.insert(name.to_owned(), Object { bytes, used });
        Ok(())
    }

    fn get(&self, name: &str, limit: usize, _: Instant) -> Result<Option<Vec<u8>>, Unanswered> {
        let mut state = self.state();
        state.touch(name);
        Ok(state.objects.get(name).map(|object| object.bytes[..object.bytes.len().min(limit)].to_vec()))
    }

    fn has(&self, names: &[String], _: Instant) -> Result<Vec<bool>, Unanswered> {
        let state = self.state();
        Ok(names.iter().map(|name| state.objects.contains_key(name)).collect())
    }

    fn announce(&self, name: String) {
        *self.state().announced.entry(name).or_default() += 1;
    }

    fn settle(&self, name: &str) {
        let mut state = self.state();
        let Some(writers) = state.announced.get_mut(name) else { return };
        *writers -= 1;
        if *writers > 0 {
            return;
        }
        state.announced.remove(name);
        state.waiting.iter_mut().for_each(|(names, _)| names.retain(|awaited| awaited != name));
        let ready: Vec<_> = state.waiting.extract_if(.., |(names, _)| names.is_empty()).collect();
        drop(state);
        ready.into_iter().for_each(|(_, then)| then());
    }

    fn when_settled(&self, names: &[String], then: Then) {
        let mut state = self.state();
        let awaited: Vec<String> = names.iter().filter(|name| state.announced.contains_key(*name)).cloned().collect();
        if awaited.is_empty() {
            drop(state);
            return then();
        }
        state.waiting.push((awaited, then));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
        names.map(String::from).to_vec()
    }

    #[test]
    fn the_object_used_longest_ago_makes_room() {
        let memory = SharedMemory::new(10);
        for name in ["a", "b"] {
            memory.put(name, vec![1; 4], now()).unwrap();
        }
        assert_eq!(memory.get("a", 3, now()).unwrap(), Some(vec![1; 3]));
        memory.put("c", vec![2; 4], now()).unwrap();
        assert_eq!(memory.has(&names(["a", "b", "c"]), now()).unwrap(), [true, false, true]);
        memory.put("a", vec![3; 6], now()).unwrap();
        assert_eq!((memory.bytes(), memory.get("a", 9, now()).unwrap()), (10, Some(vec![3; 6])));
        assert!(memory.put("d", vec![0; 11], now()).is_err());
        assert_eq!(memory.has(&names(["a", "c"]), now()).unwrap(), [true, true], "what never fits costs nobody room");
    }

    #[test]
    fn side_tables_stay_and_take_their_part_of_the_memory() {
        let memory = SharedMemory::new(10);
        memory.put("v1/0/tables/1", vec![1; 4], now()).unwrap();
        for name in ["a", "b", "c"] {
            memory.put(name, vec![2; 4], now()).unwrap();
        }
        assert_eq!(memory.get("v1/0/tables/1", 9, now()).unwrap(), Some(vec![1; 4]));
        assert_eq!(memory.has(&names(["a", "b", "c"]), now()).unwrap(), [false, false, true]);
        memory.put("v1/0/tables/1", vec![3; 5], now()).unwrap();
        assert!(memory.put("d", vec![0; 6], now()).is_err());
        assert_eq!(memory.has(&names(["c"]), now()).unwrap(), [true], "what never fits costs nobody room");
        assert_eq!(memory.get("v1/0/tables/1", 9, now()).unwrap(), Some(vec![3; 5]));
    }

    #[test]
    fn a_look_up_begins_when_every_announced_object_is_settled() {
        let memory = SharedMemory::new(10);
        let calls = Arc::new(AtomicU32::new(0));
        let ask = |of: &[String]| {
            let calls = calls.clone();
            memory.when_settled(of, Box::new(move || _ = calls.fetch_add(1, Relaxed)));
        };
        ask(&names(["a"]));
        assert_eq!(calls.load(Relaxed), 1, "nothing is announced");
        for name in ["a", "a", "b"] {
            memory.announce(name.into());
        }
        ask(&names(["a", "b", "c"]));
        memory.settle("b");
        memory.settle("a");
        assert_eq!(calls.load(Relaxed), 1, "another writer of the same object is under way");
        memory.settle("a");
        assert_eq!(calls.load(Relaxed), 2);
        memory.settle("a");
        ask(&names(["a"]));
        assert_eq!(calls.load(Relaxed), 3);
    }
}
