//! Steps and copies as they were, not as they were to be: each is held back until no failure of its replica can cut it short.

use std::collections::VecDeque;

use trunkline_core::TIERS_MAX;
use trunkline_core::transfer::Place;

use crate::cost::StepShape;
use crate::observer::{StepSeen, TransferSeen};

/// Directions of links that a replica has at most: out and in over the link to the host, and over that to each tier behind it.
pub(crate) const LANES: usize = 2 * TIERS_MAX;

/// A step that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastStep {
    pub replica: u32,
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Whether its replica failed before its end, so that nothing came of it.
    pub cut: bool,
    pub shape: StepShape,
    /// Device blocks in use while it ran.
    pub blocks_in_use: u32,
}

/// A copy that is over, while it had its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastCopy {
    pub replica: u32,
    /// Which direction of which link; see [`lane_name`].
    pub lane: usize,
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Whether its replica failed before its end.
    pub cut: bool,
    pub from: Place,
    pub to: Place,
    pub blocks: u32,
}

/// Holds back what a failure could still cut.
#[derive(Clone, Debug)]
pub(crate) struct Settling(Vec<Held>);

/// What a replica has under way. Copies of a lane are in the order in which they end.
#[derive(Clone, Debug, Default)]
struct Held {
    step: Option<PastStep>,
    lanes: [VecDeque<PastCopy>; LANES],
}

impl Settling {
    pub(crate) fn new(replicas: u32) -> Self {
        Self(vec![Held::default(); replicas as usize])
    }

    /// A step begins. Gives the one before it, which has ended if it had not been cut.
    pub(crate) fn step(&mut self, seen: &StepSeen<'_>) -> Option<PastStep> {
        let stats = seen.stats;
        self.0[seen.replica as usize].step.replace(PastStep {
            replica: seen.replica,
            begin_ns: seen.begin_ns,
            end_ns: seen.end_ns,
            cut: false,
            shape: seen.shape,
            blocks_in_use: stats.held_blocks + stats.private_blocks + stats.moving_blocks,
        })
    }

    /// A copy is asked for. Adds those of its lane that have ended to `over`.
    pub(crate) fn transfer(&mut self, seen: &TransferSeen, over: &mut Vec<PastCopy>) {
        let lane = lane(seen.from, seen.to);
        let held = &mut self.0[seen.replica as usize].lanes[lane];
        while let Some(copy) = held.pop_front_if(|copy| copy.end_ns <= seen.asked_ns) {
            over.push(copy);
        }
        held.push_back(PastCopy {
            replica: seen.replica,
            lane,
            begin_ns: seen.end_ns - seen.duration_ns,
            end_ns: seen.end_ns,
            cut: false,
            from: seen.from,
            to: seen.to,
            blocks: seen.blocks,
        });
    }

    /// A replica fails. Gives its step, cut if it was not over, and adds its copies to `over` as far as they had begun.
    pub(crate) fn fail(&mut self, now_ns: u64, replica: u32, over: &mut Vec<PastCopy>) -> Option<PastStep> {
        let held = &mut self.0[replica as usize];
        for copy in held.lanes.iter_mut().flat_map(|lane| lane.drain(..)).filter(|copy| copy.begin_ns < now_ns) {
            over.push(PastCopy { end_ns: copy.end_ns.min(now_ns), cut: copy.end_ns > now_ns, ..copy });
        }
        let step = held.step.take()?;
        Some(PastStep { end_ns: step.end_ns.min(now_ns), cut: step.end_ns > now_ns, ..step })
    }

    /// The replay has ended: gives the last steps, and adds the last copies to `over`.
    pub(crate) fn end(&mut self, over: &mut Vec<PastCopy>) -> Vec<PastStep> {
        over.extend(self.0.iter_mut().flat_map(|held| &mut held.lanes).flat_map(|lane| lane.drain(..)));
        self.0.iter_mut().filter_map(|held| held.step.take()).collect()
    }
}

/// How far a place is from the device, in links; a copy goes over the link of the farther of its ends.
fn distance(place: Place) -> usize {
    match place {
        Place::Device => 0,
        Place::Host => 1,
        Place::Tier(tier) => 1 + usize::from(tier),
    }
}

/// Even is away from the device, odd towards it; the nearest link first.
fn lane(from: Place, to: Place) -> usize {
    let (from, to) = (distance(from), distance(to));
    2 * (from.max(to) - 1) + usize::from(to < from)
}

/// What a lane is called, where `tiers` are the names of the tiers.
pub(crate) fn lane_name<'a>(lane: usize, mut tiers: impl Iterator<Item = &'a str>) -> String {
    let place = tiers.nth(lane / 2).unwrap_or("host");
    if lane.is_multiple_of(2) { format!("to {place}") } else { format!("from {place}") }
}

#[cfg(test)]
mod tests {
    use trunkline_core::Stats;

    use super::*;

    fn step(settling: &mut Settling, begin_ns: u64, end_ns: u64) -> Option<(u64, u64, bool)> {
        let stats = &Stats::default();
        let past = settling.step(&StepSeen { replica: 0, begin_ns, end_ns, shape: StepShape::default(), stats });
        past.map(|past| (past.begin_ns, past.end_ns, past.cut))
    }

    fn copy(settling: &mut Settling, asked_ns: u64, end_ns: u64, duration_ns: u64) -> Vec<(u64, u64, bool)> {
        let (from, to) = (Place::Device, Place::Tier(0));
        let mut over = Vec::new();
        let seen = TransferSeen { replica: 0, asked_ns, end_ns, duration_ns, from, to, blocks: 1 };
        settling.transfer(&seen, &mut over);
        spans(&over)
    }

    fn spans(over: &[PastCopy]) -> Vec<(u64, u64, bool)> {
        over.iter().map(|copy| (copy.begin_ns, copy.end_ns, copy.cut)).collect()
    }

    #[test]
    fn a_failure_cuts_what_is_under_way_and_drops_what_had_not_begun() {
        let mut settling = Settling::new(1);
        assert_eq!(step(&mut settling, 0, 10), None);
        assert_eq!(step(&mut settling, 10, 20), Some((0, 10, false)));
        assert_eq!(copy(&mut settling, 10, 14, 4), []);
        // These two queue: one has the link when the replica fails, one waits for it.
        assert_eq!(copy(&mut settling, 14, 18, 4), [(10, 14, false)]);
        assert_eq!(copy(&mut settling, 14, 22, 4), []);
        let mut over = Vec::new();
        let cut = settling.fail(16, 0, &mut over).unwrap();
        assert_eq!((cut.end_ns, cut.cut), (16, true));
        assert_eq!(spans(&over), [(14, 16, true)]);
        assert_eq!(settling.fail(17, 0, &mut over), None);
        // After the failure nothing of before is left.
        assert_eq!(step(&mut settling, 30, 40), None);
        let whole = settling.fail(40, 0, &mut over).unwrap();
        assert_eq!((whole.end_ns, whole.cut), (40, false), "it ended in the instant of the failure");
        assert_eq!(settling.end(&mut over), []);
    }

    #[test]
    fn lanes_are_named_for_where_they_lead() {
        let tiers = ["host", "disk"];
        let name = |from, to| lane_name(lane(from, to), tiers.into_iter());
        assert_eq!(name(Place::Device, Place::Host), "to host");
        assert_eq!(name(Place::Tier(0), Place::Device), "from host");
        assert_eq!(name(Place::Tier(0), Place::Tier(1)), "to disk");
        assert_eq!(name(Place::Tier(1), Place::Device), "from disk");
        assert_eq!(lane_name(0, [].into_iter()), "to host", "swapped requests need no tier");
    }
}
