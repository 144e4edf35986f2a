//! Segments on their way from the first write to completion, for writers that wait for one to be complete: only then it can be emptied.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Number of segments on their way, and of those complete.
#[derive(Debug, Default)]
pub struct Finishing {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    unfinished: u64,
    finished: u64,
}

/// Segment on its way; complete when dropped.
#[derive(Debug)]
pub struct Unfinished(Arc<Finishing>);

impl Finishing {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a segment about to be written.
    pub fn begin(self: &Arc<Self>) -> Unfinished {
        self.counts().unfinished += 1;
        Unfinished(Arc::clone(self))
    }

    /// Returns the number of segments complete so far.
    pub fn finished(&self) -> u64 {
        self.counts().finished
    }

    /// Waits until more than `before` segments are complete. Returns `false` at once if none is on its way but `open` ones.
    pub fn wait(&self, before: u64, open: u64) -> bool {
        let mut counts = self.counts();
        loop {
            if counts.finished > before {
                return true;
            }
            if counts.unfinished <= open {
                return false;
            }
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut counts = self.0.counts();
        counts.unfinished -= 1;
        counts.finished += 1;
        drop(counts);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_the_next_complete_segment_and_not_for_open_ones() {
        let finishing = Arc::new(Finishing::default());
        let [first, second] = [(); 2].map(|()| finishing.begin());
        let before = finishing.finished();
        let waiting = std::thread::spawn({
            let finishing = Arc::clone(&finishing);
            move || finishing.wait(before, 1)
        });
        drop(first);
        assert!(waiting.join().unwrap());
        assert!(finishing.wait(before, 1), "one was complete since");
        assert!(!finishing.wait(finishing.finished(), 1), "only an open one is left");
        drop(second);
        assert_eq!(finishing.finished(), 2);
    }
}
