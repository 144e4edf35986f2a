//! Copies and look-ups in flight: their directions, and their ends as a worker reports them.

use trunkline_core::{BlockFault, Event, Lookup, Place, Transfer};

use crate::Driver;

/// Direction of a copy between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

impl Driver {
    /// Returns the directions and block counts of the copies in flight between device and host.
    pub fn moves(&self) -> Vec<(Direction, usize)> {
        let direction = |copy: &Transfer| match (copy.from, copy.to) {
            (Place::Device, Place::Host) => Direction::Out,
            (Place::Host, Place::Device) => Direction::In,
            (from, to) => panic!("a copy from {from:?} to {to:?}"),
        };
        self.copies.iter().map(|copy| (direction(copy), copy.pairs.len())).collect()
    }

    /// Ends the copy at this position of [`Self::copies`].
    pub fn finish_copy(&mut self, at: usize) {
        self.end_copy(at, true);
    }

    /// Fails the copy at this position of [`Self::copies`].
    pub fn fail_copy(&mut self, at: usize) {
        self.end_copy(at, false);
    }

    /// Fails the copy at this position of [`Self::copies`] on the way: its sources are good.
    pub fn interrupt_copy(&mut self, at: usize) {
        let id = self.copies.remove(at).id;
        self.worker.end_transfer(id, false);
        self.event(Event::TransferInterrupted(id));
    }

    /// Ends the copy at this position of [`Self::copies`] without the blocks of some pairs.
    pub fn end_copy_partly(&mut self, at: usize, faults: &[(u32, BlockFault)]) {
        let transfer = self.copies.remove(at).id;
        self.worker.end_transfer_partly(transfer, |pair| faults.iter().all(|(failed, _)| *failed as usize != pair));
        self.event(Event::TransferPartial { transfer, faults: faults.to_vec() });
    }

    /// Ends the copy at this position of [`Self::copies`], well or not.
    pub fn end_copy(&mut self, at: usize, ok: bool) {
        let Transfer { id, pairs, .. } = self.copies.remove(at);
        self.pass_copy(pairs.len());
        self.worker.end_transfer(id, ok);
        self.event(if ok { Event::TransferFinished(id) } else { Event::TransferFailed(id) });
    }

    /// Ends the look-up at this position of [`Self::lookups`] with what the storage has.
    pub fn end_lookup(&mut self, at: usize) {
        let Lookup { id, tier, keys } = self.lookups.remove(at);
        let found = keys.iter().take_while(|key| self.worker.stores(tier, key)).count();
        self.event(Event::LookupEnded { lookup: id, found: found as u32 });
    }
}
