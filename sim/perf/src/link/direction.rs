//! Direction of a link, with its bandwidth shared equally by the active copies.
//!
//! A copy waits for its latency and then moves. With `n` active copies, each gets an n-th of the link's time. The direction keeps a
//! virtual clock (processor sharing) that advances at 1/n of real time: a copy with `w` nanoseconds of work that joins at virtual
//! time `v` ends at `v + w`, however many others come and go. An event costs O(log n) and touches no other copy. All arithmetic is
//! in whole numbers: ends round up to nanoseconds, virtual time rounds down to 2^-32 of one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use trunkline_core::Place;

/// Fractional bits of the virtual clock, per nanosecond.
const SHARE_BITS: u32 = 32;

/// Copy under way. The order decides between copies that end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copy {
    /// Transfer id of the core.
    pub id: u64,
    /// Time of the request for the copy, nanoseconds.
    pub asked_ns: u64,
    /// End of the latency, nanoseconds.
    pub begin_ns: u64,
    /// Time to move the bytes alone, nanoseconds.
    pub work_ns: u64,
    /// Source of the blocks.
    pub from: Place,
    /// Destination of the blocks.
    pub to: Place,
    /// Number of KV blocks in the copy.
    pub blocks: u32,
}

/// Next wake-up of a link direction; void once a later one was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeUp {
    /// Time of the wake-up, nanoseconds.
    pub at_ns: u64,
    /// Version of the direction's schedule; a wake-up of an older version is void.
    pub version: u64,
}

/// Direction of a link.
#[derive(Clone, Debug, Default)]
pub struct LinkDirection {
    /// Copies in their latency, which is equal for all, in the order of its end.
    waiting: VecDeque<Copy>,
    /// Moving copies, by the virtual time of their ends.
    moving: BinaryHeap<Reverse<(u128, Copy)>>,
    /// Virtual clock at `at_ns`.
    share: u128,
    at_ns: u64,
    /// Time and number of the last wake-up returned.
    wake_up_ns: Option<u64>,
    version: u64,
    /// Time with a copy in motion, nanoseconds.
    pub busy_ns: u64,
    /// Number of copies begun, and of blocks in them.
    pub copies: u64,
    pub blocks: u64,
}

impl LinkDirection {
    /// Begins a copy; calls come in the order of time.
    pub fn ask(&mut self, copy: Copy) {
        debug_assert!(self.waiting.back().is_none_or(|last| last.begin_ns <= copy.begin_ns), "one latency for all");
        self.copies += 1;
        self.blocks += u64::from(copy.blocks);
        self.waiting.push_back(copy);
    }

    /// Returns the next wake-up if it has changed. MUST be called after every change.
    pub fn next_wake_up(&mut self) -> Option<WakeUp> {
        let at_ns = self.waiting.front().map(|copy| copy.begin_ns).into_iter().chain(self.next_end_ns()).min();
        if at_ns == self.wake_up_ns {
            return None;
        }
        self.wake_up_ns = at_ns;
        self.version += 1;
        at_ns.map(|at_ns| WakeUp { at_ns, version: self.version })
    }

    /// Handles the wake-up `version`: starts copies past their latency and adds finished ones to `ended`. Does nothing if a later
    /// wake-up was returned.
    pub fn wake_up(&mut self, now_ns: u64, version: u64, ended: &mut Vec<Copy>) {
        if version != self.version || self.wake_up_ns != Some(now_ns) {
            return;
        }
        self.wake_up_ns = None;
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

    /// Cancels every copy at `now_ns` and adds them to `lost`: moving copies first, then those in their latency.
    pub fn lose(&mut self, now_ns: u64, lost: &mut Vec<Copy>) {
        self.advance(now_ns);
        while let Some(Reverse((_, copy))) = self.moving.pop() {
            lost.push(copy);
        }
        lost.extend(self.waiting.drain(..));
        // The wake_up that was given is void.
        self.wake_up_ns = None;
        self.version += 1;
    }

    /// Advances the virtual clock to `now_ns`; the active copies have not changed since the last call.
    fn advance(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        if let n @ 1.. = self.moving.len() {
            self.share += (u128::from(elapsed_ns) << SHARE_BITS) / n as u128;
            self.busy_ns += elapsed_ns;
        }
        self.at_ns = self.at_ns.max(now_ns);
    }

    /// Returns the end of the first moving copy if no other joins, nanoseconds.
    fn next_end_ns(&self) -> Option<u64> {
        let Reverse((end, _)) = self.moving.peek()?;
        // Rounded up, so that the virtual clock has reached the end at that time.
        let left = end.saturating_sub(self.share) * self.moving.len() as u128;
        let left_ns = u64::try_from(left.div_ceil(1 << SHARE_BITS)).unwrap_or(u64::MAX);
        Some(self.at_ns.saturating_add(left_ns))
    }
}

#[cfg(test)]
mod tests;
