//! The last batches of a publisher, for replay.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::Batch;

/// Tokens and hashes that the batches of a history may have together.
const NUMBERS_MAX: usize = 1 << 24;

/// Batches without a gap, oldest first. Heartbeats take no room.
#[derive(Debug, Default)]
pub(crate) struct History {
    entries: VecDeque<Entry>,
    batches_max: usize,
    numbers: usize,
}

#[derive(Debug)]
struct Entry {
    batch: Arc<Batch>,
    /// Heartbeats right behind the batch.
    beats: u64,
    numbers: usize,
}

impl History {
    /// Creates an empty history of so many batches, at most.
    pub fn new(batches_max: usize) -> Self {
        Self { batches_max, ..Self::default() }
    }

    /// Adds the next batch.
    pub fn push(&mut self, batch: &Arc<Batch>) {
        if let Some(last) = self.entries.back_mut().filter(|_| batch.events.is_empty()) {
            last.beats += 1;
            return;
        }
        let numbers = batch.numbers();
        self.numbers += numbers;
        self.entries.push_back(Entry { batch: batch.clone(), beats: 0, numbers });
        while self.entries.len() > self.batches_max || self.numbers > NUMBERS_MAX {
            let Some(first) = self.entries.pop_front() else { return };
            self.numbers -= first.numbers;
        }
    }

    /// Returns the number of the first batch that is there.
    pub fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.batch.seq)
    }

    /// Returns the batches from a number on, as far as they are there.
    pub fn from(&self, seq: u64) -> Vec<Arc<Batch>> {
        let begin = self.entries.partition_point(|entry| entry.batch.seq + entry.beats < seq);
        let all = self.entries.range(begin..).flat_map(|Entry { batch, beats, .. }| {
            let beat = |n| Arc::new(Batch { seq: batch.seq + n, ts: batch.ts, rank: batch.rank, events: Vec::new() });
            std::iter::once(batch.clone()).chain((1..=*beats).map(beat))
        });
        all.skip_while(|batch| batch.seq < seq).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Removed};

    fn batch(seq: u64, blocks: usize) -> Arc<Batch> {
        let removed = Event::Removed(Removed { hashes: vec![seq; blocks], medium: "GPU", group: None });
        Arc::new(Batch { seq, ts: 0.5, rank: 0, events: if blocks > 0 { vec![removed] } else { Vec::new() } })
    }

    fn seqs(history: &History, from: u64) -> Vec<u64> {
        history.from(from).iter().map(|batch| batch.seq).collect()
    }

    #[test]
    fn the_last_batches_are_there_with_the_heartbeats_between_them() {
        let mut history = History::new(2);
        assert_eq!((history.first(), seqs(&history, 0)), (None, vec![]));
        [batch(0, 0), batch(1, 1), batch(2, 0), batch(3, 0), batch(4, 1), batch(5, 0)]
            .iter()
            .for_each(|b| history.push(b));
        assert_eq!((history.first(), seqs(&history, 0)), (Some(1), vec![1, 2, 3, 4, 5]));
        assert_eq!((seqs(&history, 3), seqs(&history, 6)), (vec![3, 4, 5], vec![]));
        assert!(history.from(5)[0].events.is_empty());
        history.push(&batch(6, 1));
        assert_eq!(history.first(), Some(4), "two batches, however many heartbeats");
    }

    #[test]
    fn large_batches_leave_room_for_fewer() {
        let mut history = History::new(100);
        (0..5).for_each(|seq| history.push(&batch(seq, NUMBERS_MAX / 2)));
        assert_eq!(seqs(&history, 0), [3, 4]);
        history.push(&batch(5, NUMBERS_MAX + 1));
        assert_eq!((history.first(), seqs(&history, 0)), (None, vec![]));
    }
}
