//! One direction of a link, whose bandwidth the copies under way share equally.
//!
//! A copy waits for its latency and then moves. When `n` copies move, each has an n-th of the link's time. So the lane keeps a clock of
//! its own, the share that a copy has had which moved all along: it goes on at 1/n. A copy that needs `w` nanoseconds of the link and joins when
//! that clock shows `v` has ended when it shows `v + w`, whoever comes and goes meanwhile; an event costs O(log n), and no copy is looked at
//! until its turn. All of it is whole numbers: ends are rounded up to nanoseconds, the clock's shares down to 2^-32 of one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use trunkline_core::transfer::Place;

/// A nanosecond of the lane's own clock is 2 to the power of this.
const SHARE_BITS: u32 = 32;

/// A copy on its way. The order is that in which those end that end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copy {
    /// The core's number of it.
    pub id: u64,
    /// Time of the request for the copy, nanoseconds.
    pub asked_ns: u64,
    /// When its latency is over.
    pub begin_ns: u64,
    /// How long it moves if it is alone.
    pub work_ns: u64,
    /// Source of the blocks.
    pub from: Place,
    /// Destination of the blocks.
    pub to: Place,
    /// Number of KV blocks in the copy.
    pub blocks: u32,
}

/// When a lane is to be looked at again. A turn counts only as long as no later one was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Time of the wake-up, nanoseconds.
    pub at_ns: u64,
    /// Version of the direction's schedule; a wake-up of an older version is void.
    pub version: u64,
}

/// One direction of a link.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Copies in their latency, which is the same for all: in the order in which they begin to move.
    waiting: VecDeque<Copy>,
    /// Copies that move, with what the clock of shares shows when they end.
    moving: BinaryHeap<Reverse<(u128, Copy)>>,
    /// The clock of shares, up to `at_ns`.
    share: u128,
    at_ns: u64,
    /// The turn that was given last, and how many were.
    turn_ns: Option<u64>,
    version: u64,
    /// Time in which copies moved.
    pub busy_ns: u64,
    /// Copies asked for, and the blocks in them.
    pub copies: u64,
    pub blocks: u64,
}

impl Lane {
    /// A copy is asked for, not before those that were.
    pub fn ask(&mut self, copy: Copy) {
        debug_assert!(self.waiting.back().is_none_or(|last| last.begin_ns <= copy.begin_ns), "one latency for all");
        self.copies += 1;
        self.blocks += u64::from(copy.blocks);
        self.waiting.push_back(copy);
    }

    /// When something happens next, if that is news: to be asked after every change.
    pub fn next_turn(&mut self) -> Option<Turn> {
        let at_ns = self.waiting.front().map(|copy| copy.begin_ns).into_iter().chain(self.next_end_ns()).min();
        if at_ns == self.turn_ns {
            return None;
        }
        self.turn_ns = at_ns;
        self.version += 1;
        at_ns.map(|at_ns| Turn { at_ns, version: self.version })
    }

    /// The turn of this number has come: copies whose latency is over begin to move, and those that have moved are added to `ended`. Nothing
    /// happens if another was given since.
    pub fn turn(&mut self, now_ns: u64, version: u64, ended: &mut Vec<Copy>) {
        if version != self.version || self.turn_ns != Some(now_ns) {
            return;
        }
        self.turn_ns = None;
        self.advance(now_ns);
        while let Some(copy) = self.waiting.pop_front_if(|copy| copy.begin_ns <= now_ns) {
            self.moving.push(Reverse((self.share + (u128::from(copy.work_ns) << SHARE_BITS), copy)));
        }
        // At the end of time everything ends: a link may be too slow for its copies to end before.
        while let Some(Reverse((end, copy))) = self.moving.peek()
            && (*end <= self.share || now_ns == u64::MAX)
        {
            ended.push(*copy);
            self.moving.pop();
        }
    }

    /// Every copy is lost at `now_ns`. They are added to `lost`: those that moved first, then those that had not begun to.
    pub fn lose(&mut self, now_ns: u64, lost: &mut Vec<Copy>) {
        self.advance(now_ns);
        while let Some(Reverse((_, copy))) = self.moving.pop() {
            lost.push(copy);
        }
        lost.extend(self.waiting.drain(..));
        // The turn that was given is void.
        self.turn_ns = None;
        self.version += 1;
    }

    /// The clock of shares goes on to `now_ns`; the same copies moved since it was last read.
    fn advance(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        if let n @ 1.. = self.moving.len() {
            self.share += (u128::from(elapsed_ns) << SHARE_BITS) / n as u128;
            self.busy_ns += elapsed_ns;
        }
        self.at_ns = self.at_ns.max(now_ns);
    }

    /// When the first of the copies that move ends, if none joins before.
    fn next_end_ns(&self) -> Option<u64> {
        let Reverse((end, _)) = self.moving.peek()?;
        // Rounded up, so that the clock of shares is there when the time is.
        let left = end.saturating_sub(self.share) * self.moving.len() as u128;
        let left_ns = u64::try_from(left.div_ceil(1 << SHARE_BITS)).unwrap_or(u64::MAX);
        Some(self.at_ns.saturating_add(left_ns))
    }
}

#[cfg(test)]
mod tests;
