//! The running sequences, and their slots on the worker.

/// The batch: slots of running sequences in order of admission, and the pool of worker slots.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Slots of the sequences in the batch, in order of admission.
    pub running: Vec<usize>,
    /// Slots of sequences preempted at once: out of the batch, but still run by steps in flight.
    pub preempted: Vec<usize>,
    /// Slots of running sequences that the next step leaves out, so that they can give up their seats when the steps in flight end.
    pub leaving: Vec<usize>,
    /// Worker slots not in use that were used before, the last freed at the end.
    free_worker_slots: Vec<u32>,
    /// First worker slot never used. Worker slots so stay below the size of the batch.
    next_worker_slot: u32,
}

impl Batch {
    /// Returns the number of sequences in the batch.
    pub fn len(&self) -> u32 {
        self.running.len() as u32
    }

    /// Appends a sequence. Returns its slot on the worker.
    pub fn enter(&mut self, slot: usize) -> u32 {
        self.running.push(slot);
        self.free_worker_slots.pop().unwrap_or_else(|| {
            self.next_worker_slot += 1;
            self.next_worker_slot - 1
        })
    }

    /// Removes a sequence, running or preempted. Its worker slot is freed separately, with [`Self::free_worker_slot`].
    pub fn leave(&mut self, slot: usize) {
        // Mostly the last to arrive leave early.
        if let Some(at) = self.running.iter().rposition(|other| *other == slot) {
            self.running.remove(at);
        } else if !self.preempted.is_empty() {
            self.preempted.retain(|other| *other != slot);
        }
    }

    /// Frees a worker slot for the next sequence that enters.
    pub fn free_worker_slot(&mut self, worker_slot: u32) {
        self.free_worker_slots.push(worker_slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_slots_stay_below_the_largest_batch_so_far() {
        let mut batch = Batch::default();
        assert_eq!([10, 20, 30].map(|slot| batch.enter(slot)), [0, 1, 2]);
        batch.leave(20);
        batch.free_worker_slot(1);
        assert_eq!((batch.enter(40), batch.running.as_slice()), (1, [10, 30, 40].as_slice()));
        assert_eq!((batch.enter(50), batch.len()), (3, 4));
    }
}
