//! Links of a replica: durations of copies of KV blocks.
//!
//! One link joins the device to the host's memory, the place of swapped requests and of the first tier of the prefix cache; one
//! more link joins the host to each further tier. Each device of a replica has a link to the host of its own, and copies its share of every
//! block at the same time: the host link here is that of the fullest device. The others carry whole blocks. A copy uses the link of the farther of its two ends. A link carries both
//! directions at once, each at its full rate; each is a direction of its own (`link/direction.rs`). A copy first takes the link's latency, without using its
//! rate, and then moves its bytes. Copies in one direction share the rate equally. Copies and steps do not slow each other down: a
//! link takes a few per cent of the device's memory bandwidth.
//!
//! With compression, the rate in each direction is the lower of the rates of link and codec: the copies of a direction share the
//! codec as they share the link.

use serde::{Deserialize, Serialize};
use trunkline_core::TIERS_MAX;
use trunkline_core::{Place, Transfer};

use crate::hardware::Hardware;

mod direction;

use self::direction::LinkDirection;
pub use self::direction::{Copy, WakeUp};

/// Link directions of a replica, at most: out and in for the host link and for the link of each further tier.
pub const LINK_DIRECTIONS: usize = 2 * TIERS_MAX;

/// Link between the host and a further tier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierLink {
    /// Rate in each direction, bytes/s.
    pub bytes_s: f64,
    /// Latency of a copy, seconds.
    pub latency_s: f64,
    /// Bytes in the tier per byte on the device: below 1 with compression.
    pub ratio: f64,
    /// Rate of the codec in each direction, in uncompressed bytes/s; `None` for no limit. Ignored without compression.
    pub codec_bytes_s: Option<f64>,
}

impl TierLink {
    /// Returns the time to move `bytes` device bytes alone, seconds.
    fn bytes_take_s(&self, bytes: f64) -> f64 {
        let link_s = bytes * self.ratio / self.bytes_s;
        match self.codec_bytes_s {
            Some(codec_bytes_s) if self.ratio < 1.0 => link_s.max(bytes / codec_bytes_s),
            _ => link_s,
        }
    }
}

/// Links of one replica: the host link, then the link of each further tier.
#[derive(Clone, Debug)]
pub struct Links(Vec<Link>);

#[derive(Clone, Debug)]
struct Link {
    latency_s: f64,
    block_s: f64,
    /// Directions away from the device and towards it.
    directions: [LinkDirection; 2],
}

/// Copies in one direction over one link, over all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LinkReport {
    /// Number of copies, each of one or more blocks.
    pub transfers: u64,
    /// Number of blocks copied.
    pub blocks: u64,
    /// Time with the bytes of at least one copy in motion, seconds, summed over replicas, without latencies.
    pub busy_s: f64,
}

/// Returns the distance of a place from the device, in links. A copy uses the link of the farther end.
fn distance(place: Place) -> usize {
    match place {
        Place::Device => 0,
        Place::Host => 1,
        Place::Tier(tier) => 1 + usize::from(tier),
    }
}

/// Returns the link direction of a copy: even away from the device, odd towards it; the nearest link first.
pub fn direction(from: Place, to: Place) -> usize {
    let (from, to) = (distance(from), distance(to));
    2 * (from.max(to) - 1) + usize::from(to < from)
}

/// Returns the name of a link direction, such as `to host`; `tiers` are the names of the tiers.
pub fn direction_name<'a>(direction: usize, mut tiers: impl Iterator<Item = &'a str>) -> String {
    let place = tiers.nth(direction / 2).unwrap_or("host");
    if direction.is_multiple_of(2) { format!("to {place}") } else { format!("from {place}") }
}

/// Converts seconds to nanoseconds.
fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl Links {
    /// Returns idle links for blocks of `block_bytes` bytes, of which a device has `device_bytes`; `far` are the links behind the host.
    pub fn new(hardware: &Hardware, device_bytes: u64, block_bytes: u64, far: &[TierLink]) -> Self {
        let link = |latency_s, block_s| Link {
            latency_s,
            block_s,
            directions: [LinkDirection::default(), LinkDirection::default()],
        };
        let mut links = vec![link(hardware.host_link_latency_s, block_s(hardware, device_bytes))];
        links.extend(far.iter().map(|far| link(far.latency_s, far.bytes_take_s(block_bytes as f64))));
        Self(links)
    }

    /// Begins a copy at `now_ns`. Returns its link direction, whose next wake-up may have changed.
    pub fn ask(&mut self, now_ns: u64, transfer: &Transfer) -> usize {
        let &Transfer { id, from, to, ref pairs, .. } = transfer;
        let direction = direction(from, to);
        let link = &mut self.0[direction / 2];
        let latency_ns = ns(link.latency_s);
        // Rounded together with the latency: a copy that is alone is exact to the nanosecond.
        let work_ns = ns(link.latency_s + link.block_s * pairs.len() as f64).saturating_sub(latency_ns);
        let begin_ns = now_ns.saturating_add(latency_ns);
        let blocks = pairs.len() as u32;
        link.directions[direction % 2].ask(Copy { id, asked_ns: now_ns, begin_ns, work_ns, from, to, blocks });
        direction
    }

    /// Returns the next wake-up of a link direction if it has changed. MUST be called after every change; an earlier wake-up is
    /// void.
    pub fn next_wake_up(&mut self, direction: usize) -> Option<WakeUp> {
        self.0[direction / 2].directions[direction % 2].next_wake_up()
    }

    /// Handles a wake-up of a link direction and adds the finished copies to `ended`. A void wake-up does nothing.
    pub fn wake_up(&mut self, now_ns: u64, direction: usize, version: u64, ended: &mut Vec<Copy>) {
        self.0[direction / 2].directions[direction % 2].wake_up(now_ns, version, ended);
    }

    /// Cancels all copies at `now_ns` because the replica failed, and returns them.
    pub fn lose(&mut self, now_ns: u64) -> Vec<Copy> {
        let mut lost = Vec::new();
        self.0.iter_mut().flat_map(|link| &mut link.directions).for_each(|direction| direction.lose(now_ns, &mut lost));
        lost
    }

    /// Sums the copies out and in over the link number `at` of all replicas; 0 is the host link.
    pub fn report<'a>(replicas: impl Iterator<Item = &'a Self>, at: usize) -> [LinkReport; 2] {
        let mut sums = [LinkReport::default(); 2];
        for link in replicas.filter_map(|links| links.0.get(at)) {
            for (sum, direction) in sums.iter_mut().zip(&link.directions) {
                sum.transfers += direction.copies;
                sum.blocks += direction.blocks;
                sum.busy_s += direction.busy_ns as f64 / 1e9;
            }
        }
        sums
    }
}

fn block_s(hardware: &Hardware, device_bytes: u64) -> f64 {
    device_bytes as f64 / hardware.host_link_bytes_s
}

/// Returns the cost of copying a block one way, of which a device has `device_bytes`, for [`trunkline_core::Config::swap_block_ns`]: its
/// bytes alone, since the blocks of a request share one latency.
pub fn swap_block_ns(hardware: &Hardware, device_bytes: u64) -> u64 {
    (block_s(hardware, device_bytes) * 1e9).ceil() as u64
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::hardware;

    const OUT: (Place, Place) = (Place::Device, Place::Host);
    const IN: (Place, Place) = (Place::Tier(0), Place::Device);
    const DOWN: (Place, Place) = (Place::Tier(0), Place::Tier(1));
    const UP: (Place, Place) = (Place::Tier(1), Place::Tier(0));

    /// 16 tokens of Llama-3.1-8B.
    const BLOCK_BYTES: u64 = 2 << 20;

    /// Links of which the one to the host moves a block in 100 us after 10 us, and the one to the disk in 1 ms after 1 ms, at half the
    /// size.
    fn links(codec_bytes_s: Option<f64>) -> Links {
        let hardware = Hardware {
            host_link_bytes_s: 2_097_152.0 / 100e-6,
            host_link_latency_s: 10e-6,
            ..*hardware::by_name("h100-80g").unwrap()
        };
        let disk = TierLink { bytes_s: 2_097_152.0 / 2e-3, latency_s: 1e-3, ratio: 0.5, codec_bytes_s };
        Links::new(&hardware, BLOCK_BYTES, BLOCK_BYTES, &[disk])
    }

    /// Asks for copies, each at a time with its ends and blocks, and says when each ended.
    fn ends(links: &mut Links, asked: &[(u64, (Place, Place), u32)]) -> Vec<u64> {
        let mut wake_ups = BinaryHeap::new();
        let mut ends = vec![0; asked.len()];
        for (id, (at_ns, (from, to), blocks)) in asked.iter().enumerate() {
            let pairs = (0..*blocks).map(|i| (i, i)).collect();
            let direction =
                links.ask(*at_ns, &Transfer { id: id as u64, from: *from, to: *to, pairs, ..Transfer::default() });
            wake_ups.extend(
                links.next_wake_up(direction).map(|wake_up| Reverse((wake_up.at_ns, direction, wake_up.version))),
            );
        }
        let mut ended = Vec::new();
        while let Some(Reverse((at_ns, direction, version))) = wake_ups.pop() {
            links.wake_up(at_ns, direction, version, &mut ended);
            ended.drain(..).for_each(|copy| ends[copy.id as usize] = at_ns);
            wake_ups.extend(
                links.next_wake_up(direction).map(|wake_up| Reverse((wake_up.at_ns, direction, wake_up.version))),
            );
        }
        ends
    }

    #[test]
    fn a_copy_that_is_alone_takes_latency_and_bytes_of_the_farther_link() {
        let end = |at_ns, ends_of, blocks| ends(&mut links(None), &[(at_ns, ends_of, blocks)])[0];
        assert_eq!(end(0, OUT, 1), 110_000);
        assert_eq!(end(5_000, IN, 10), 5_000 + 1_010_000);
        assert_eq!(end(0, DOWN, 2), 3_000_000);
        assert_eq!(end(0, (Place::Tier(1), Place::Device), 2), 3_000_000);
    }

    #[test]
    fn copies_of_one_direction_share_it_and_the_other_is_not_touched() {
        let mut links = links(None);
        let asked = [(0, OUT, 2), (0, OUT, 2), (0, IN, 1), (0, DOWN, 1), (1_000_000, OUT, 1)];
        // Both of the first two move from 10 us on, each at half the rate.
        assert_eq!(ends(&mut links, &asked), [410_000, 410_000, 110_000, 2_000_000, 1_110_000]);
        let other = self::links(None);
        let [out, into] = Links::report([&links, &other].into_iter(), 0);
        assert_eq!((out.transfers, out.blocks, out.busy_s), (3, 5, 500e-6));
        assert_eq!((into.transfers, into.blocks, into.busy_s), (1, 1, 100e-6));
        assert_eq!(Links::report([&links, &other].into_iter(), 1)[0].blocks, 1);
    }

    #[test]
    fn a_codec_that_is_slower_than_the_link_sets_the_pace_of_what_is_compressed() {
        // The link moves a block in 1 ms. A codec that takes 4 ms for one is the limit, one that takes 0.5 ms is not.
        let took = |block_s: f64, asked: &[_]| ends(&mut links(Some(2_097_152.0 / block_s)), asked);
        assert_eq!(took(4e-3, &[(0, DOWN, 1)]), [5_000_000]);
        assert_eq!(took(4e-3, &[(0, DOWN, 1), (0, DOWN, 1), (0, UP, 1)]), [9_000_000, 9_000_000, 5_000_000]);
        assert_eq!(took(0.5e-3, &[(0, DOWN, 1)]), [2_000_000]);
        assert_eq!(took(4e-3, &[(0, OUT, 1)]), [110_000], "the host's memory is not compressed");
        let plain = TierLink { bytes_s: 1e9, latency_s: 0.0, ratio: 1.0, codec_bytes_s: Some(1.0) };
        assert_eq!(plain.bytes_take_s(1e9), 1.0, "nothing to compress");
    }

    #[test]
    fn copies_that_are_lost_are_told_and_count_as_far_as_they_moved() {
        let mut links = links(None);
        for (id, (from, to)) in [(1, OUT), (2, IN), (3, DOWN)] {
            let direction = links.ask(0, &Transfer { id, from, to, pairs: vec![(0, 0)], ..Transfer::default() });
            let wake_up = links.next_wake_up(direction).unwrap();
            if wake_up.at_ns == 10_000 {
                links.wake_up(wake_up.at_ns, direction, wake_up.version, &mut Vec::new());
            }
        }
        assert_eq!(links.lose(60_000).iter().map(|copy| copy.id).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(links.lose(60_000), []);
        let [out, into] = Links::report([&links].into_iter(), 0);
        assert_eq!((out.busy_s, into.busy_s), (50e-6, 50e-6));
        assert_eq!(Links::report([&links].into_iter(), 1)[0].busy_s, 0.0, "it was in its latency");
    }

    #[test]
    fn directions_are_named_after_the_far_place() {
        let tiers = ["host", "disk"];
        let name = |(from, to)| direction_name(direction(from, to), tiers.into_iter());
        assert_eq!([OUT, IN, DOWN, UP].map(name), ["to host", "from host", "to disk", "from disk"]);
        assert_eq!(name((Place::Tier(1), Place::Device)), "from disk");
        assert_eq!(direction_name(0, [].into_iter()), "to host", "swapped requests need no tier");
    }

    #[test]
    fn what_a_block_costs() {
        let ns = |hardware| swap_block_ns(hardware::by_name(hardware).unwrap(), BLOCK_BYTES);
        // 2 MiB at 55 and at 25 GB/s.
        assert_eq!((ns("h100-80g"), ns("a100-80g")), (38_131, 83_887));
    }
}
