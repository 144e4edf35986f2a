//! Search for the blocks of a disk tier after a restart, on a thread of its own: a start waits for a slow disk only for a limited time.
//!
//! Blocks found by then are in slots from the start. Those found later are offered a batch at a time, and the owner of the slots answers which of them get
//! a slot ([`Search::decide`]). Until then their records count as live, so that their segments stay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use trunkline_port::KnownBlock;

use crate::counters::FaultCounts;

use super::log::Log;
use super::recovery::{FoundBlock, Old, search};
use super::segment::Location;

/// Maximum number of blocks offered at once.
const OFFERED_MAX: usize = 1024;

/// Receiver of blocks found after the start, numbered for [`Search::decide`].
pub type TakeFound = Box<dyn FnMut(Vec<KnownBlock>) + Send>;

/// A search, shared by its thread and the tier.
#[derive(Default)]
pub struct Search {
    state: Mutex<State>,
    changed: Condvar,
    is_stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Blocks found and not taken or offered yet, oldest first.
    found: Vec<FoundBlock>,
    /// Blocks offered and not decided about, by number.
    offered: HashMap<u32, Arc<Location>>,
    next_number: u32,
    take: Option<TakeFound>,
    /// `true` when the search has ended.
    is_done: bool,
    /// `true` when all segments were searched.
    is_all: bool,
    dropped: FaultCounts,
}

impl std::fmt::Debug for Search {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search").field("is_done", &self.state().is_done).finish_non_exhaustive()
    }
}

impl Search {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Searches segments, and offers what is found once a receiver is there. Ends when every block has been taken or decided about. A panic ends the
    /// search, and no wait for it: segments that were not searched stay, as at a slow disk.
    pub fn run(&self, log: &Log, old: Vec<Old>) {
        let mut newest = Vec::new();
        let searched = trunkline_foreign::call(|| {
            search(log, old, &self.is_stopped, &mut newest, |found| {
                self.state().found.extend(found);
                self.offer();
            })
        });
        self.state().found.append(&mut newest);
        self.offer();
        let folder = log.limits.folder.display();
        let dropped = match &searched {
            Ok(searched) => {
                searched.lines().iter().for_each(|line| tracing::warn!("{folder}: {line}"));
                searched.dropped()
            }
            Err(panicked) => {
                tracing::error!(
                    "{folder}: the search for blocks panicked: {panicked}; those not found yet are found by the next start"
                );
                FaultCounts::default()
            }
        };
        let mut state = self.state();
        (state.is_done, state.is_all, state.dropped) = (true, searched.is_ok(), dropped);
        self.changed.notify_all();
        while !state.found.is_empty() && state.take.is_none() && !self.is_stopped() {
            state = self.wait(state);
        }
        drop(state);
        self.offer();
    }

    /// Waits for the end of the search, or for `until` if that is earlier. Returns the blocks found, and `true` if all segments were searched.
    pub fn take_at_start(&self, until: Option<Instant>) -> (Vec<FoundBlock>, bool) {
        let mut state = self.state();
        while !state.is_done {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.wait(state),
                Some(left) if left.is_zero() => break,
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        let found = std::mem::take(&mut state.found);
        self.changed.notify_all();
        (found, state.is_all)
    }

    /// Offers blocks found from now on to `take`, from the thread of the search.
    pub fn offer_to(&self, take: TakeFound) {
        self.state().take = Some(take);
        self.changed.notify_all();
    }

    /// Offers the blocks found so far, if there is a receiver, and waits for its decisions.
    fn offer(&self) {
        loop {
            let mut state = self.state();
            while !state.offered.is_empty() && !self.is_stopped() {
                state = self.wait(state);
            }
            if state.found.is_empty() || self.is_stopped() {
                return;
            }
            let Some(mut take) = state.take.take() else { return };
            let n = state.found.len().min(OFFERED_MAX);
            let batch: Vec<FoundBlock> = state.found.drain(..n).collect();
            let mut known = Vec::new();
            for FoundBlock { location, tokens } in batch {
                let number = state.next_number;
                state.next_number = number.wrapping_add(1);
                known.push(KnownBlock { block: number, key: location.key, tokens });
                state.offered.insert(number, location);
            }
            drop(state);
            take(known);
            self.state().take = Some(take);
        }
    }

    /// Puts offered blocks into the slots that they have got, and gives the others up.
    pub fn decide(&self, log: &Log, blocks: &[(u32, Option<u32>)]) {
        let mut state = self.state();
        for (number, slot) in blocks {
            if let (Some(location), Some(slot)) = (state.offered.remove(number), *slot) {
                log.put(slot, location);
            }
        }
        self.changed.notify_all();
    }

    /// Returns the records dropped, by reason; none before the end of the search.
    pub fn dropped(&self) -> FaultCounts {
        self.state().dropped
    }

    /// Ends the search after the read under way.
    pub fn stop(&self) {
        // Under the lock, so that no thread begins to wait after it has looked.
        let state = self.state();
        self.is_stopped.store(true, Relaxed);
        self.changed.notify_all();
        drop(state);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Relaxed)
    }
}
