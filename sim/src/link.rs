//! The links of a replica: how long copies of KV blocks take.
//!
//! One link joins the device to its host's memory, where swapped requests and the first tier of the prefix cache lie; one
//! more joins the host to each tier behind that. A copy goes over the link of the farther of its two ends. A link carries
//! both directions at once, each at its full rate. Copies of one direction go one after another, in the order they
//! were asked for. A copy takes the link's latency and its bytes at the link's rate. Copies do not slow down steps, nor steps
//! copies: a link takes a few per cent of the device's memory bandwidth.

use serde::{Deserialize, Serialize};
use trunkline_core::transfer::{Place, Transfer};

use crate::hardware::Hardware;
use crate::model::Model;

/// What joins a far tier to the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierLink {
    /// Rate in each direction, bytes/s.
    pub bytes_s: f64,
    /// What each copy takes beside its bytes, seconds.
    pub latency_s: f64,
    /// Bytes of a block there for each of its bytes on the device: below 1 if it is compressed.
    pub ratio: f64,
}

/// The links of one replica: to the host, then to each tier behind that.
#[derive(Clone, Debug)]
pub(crate) struct Links(Vec<Link>);

#[derive(Clone, Debug)]
struct Link {
    latency_s: f64,
    block_s: f64,
    out: Lane,
    into: Lane,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// When the last copy asked for ends.
    free_at_ns: u64,
    busy_ns: u64,
    copies: u64,
    blocks: u64,
}

/// When a copy will have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub end_ns: u64,
    pub duration_ns: u64,
}

/// What was copied in one direction over one link, over all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LinkReport {
    /// Copies, each of one or more blocks.
    pub transfers: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Time in which copies were under way, seconds, summed over replicas.
    pub busy_s: f64,
}

/// How far a place is from the device, in links.
fn distance(place: Place) -> usize {
    match place {
        Place::Device => 0,
        Place::Host => 1,
        Place::Tier(tier) => 1 + tier as usize,
    }
}

impl Links {
    /// Idle links that move blocks of `block_size` tokens; `far` are those behind the host.
    pub(crate) fn new(hardware: &Hardware, model: &Model, block_size: u32, far: &[TierLink]) -> Self {
        let link = |latency_s, block_s| Link { latency_s, block_s, out: Lane::default(), into: Lane::default() };
        let block_bytes = block_bytes(model, block_size);
        let mut links = vec![link(hardware.host_link_latency_s, block_s(hardware, model, block_size))];
        links.extend(far.iter().map(|far| link(far.latency_s, block_bytes * far.ratio / far.bytes_s)));
        Self(links)
    }

    /// Queues a copy at `now_ns`.
    pub(crate) fn copy(&mut self, now_ns: u64, transfer: &Transfer) -> Copied {
        let (from, to) = (distance(transfer.from), distance(transfer.to));
        let link = &mut self.0[from.max(to) - 1];
        let blocks = transfer.pairs.len() as u64;
        let duration_ns = ((link.latency_s + link.block_s * blocks as f64) * 1e9).round() as u64;
        let lane = if to > from { &mut link.out } else { &mut link.into };
        lane.free_at_ns = lane.free_at_ns.max(now_ns) + duration_ns;
        lane.busy_ns += duration_ns;
        lane.copies += 1;
        lane.blocks += blocks;
        Copied { end_ns: lane.free_at_ns, duration_ns }
    }

    /// The replica is gone at `now_ns`, and with it every copy that has not ended.
    pub(crate) fn lose(&mut self, now_ns: u64) {
        for lane in self.0.iter_mut().flat_map(|link| [&mut link.out, &mut link.into]) {
            // Copies follow each other without gaps, so what is left of them is busy time.
            lane.busy_ns -= lane.free_at_ns.saturating_sub(now_ns);
            lane.free_at_ns = lane.free_at_ns.min(now_ns);
        }
    }

    /// What went out, and in, over the `at`-th link of all replicas; 0 is that to the host.
    pub(crate) fn report<'a>(replicas: impl Iterator<Item = &'a Self>, at: usize) -> [LinkReport; 2] {
        let mut sums = [LinkReport::default(); 2];
        for link in replicas.filter_map(|links| links.0.get(at)) {
            for (sum, lane) in sums.iter_mut().zip([&link.out, &link.into]) {
                sum.transfers += lane.copies;
                sum.blocks += lane.blocks;
                sum.busy_s += lane.busy_ns as f64 / 1e9;
            }
        }
        sums
    }
}

fn block_bytes(model: &Model, block_size: u32) -> f64 {
    (model.kv_bytes_per_token() * u64::from(block_size)) as f64
}

fn block_s(hardware: &Hardware, model: &Model, block_size: u32) -> f64 {
    block_bytes(model, block_size) / hardware.host_link_bytes_s
}

/// What copying a block of `block_size` tokens one way costs, for [`trunkline_core::Config::swap_block_ns`]: its bytes alone, because
/// a request's blocks share one latency.
pub fn swap_block_ns(hardware: &Hardware, model: &Model, block_size: u32) -> u64 {
    (block_s(hardware, model, block_size) * 1e9).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hardware, model};

    const OUT: (Place, Place) = (Place::Device, Place::Host);
    const IN: (Place, Place) = (Place::Tier(0), Place::Device);

    /// 16 tokens of Llama-3.1-8B are 2 MiB; here the link to the host moves one in 100 us after 10 us, and that to the disk
    /// one in 1 ms after 1 ms, at half the size.
    fn links() -> Links {
        let hardware = Hardware {
            host_link_bytes_s: 2_097_152.0 / 100e-6,
            host_link_latency_s: 10e-6,
            ..*hardware::by_name("h100-80g").unwrap()
        };
        let disk = TierLink { bytes_s: 2_097_152.0 / 2e-3, latency_s: 1e-3, ratio: 0.5 };
        Links::new(&hardware, model::by_name("llama-3.1-8b").unwrap(), 16, &[disk])
    }

    fn transfer((from, to): (Place, Place), blocks: u32) -> Transfer {
        Transfer { id: 1, from, to, pairs: (0..blocks).map(|i| (i, i)).collect() }
    }

    #[test]
    fn a_copy_takes_latency_and_bytes_of_the_farther_link() {
        assert_eq!(links().copy(0, &transfer(OUT, 1)).end_ns, 110_000);
        assert_eq!(links().copy(5_000, &transfer(IN, 10)).end_ns, 5_000 + 1_010_000);
        assert_eq!(links().copy(0, &transfer((Place::Tier(0), Place::Tier(1)), 2)).end_ns, 3_000_000);
        assert_eq!(links().copy(0, &transfer((Place::Tier(1), Place::Device), 2)).end_ns, 3_000_000);
    }

    #[test]
    fn copies_of_one_direction_queue_and_the_other_does_not_wait() {
        let mut links = links();
        assert_eq!(links.copy(0, &transfer(OUT, 3)).end_ns, 310_000);
        assert_eq!(links.copy(100_000, &transfer(OUT, 1)).end_ns, 420_000, "waits for the first");
        assert_eq!(links.copy(100_000, &transfer(IN, 1)).end_ns, 210_000, "goes the other way at once");
        assert_eq!(
            links.copy(100_000, &transfer((Place::Tier(0), Place::Tier(1)), 1)).end_ns,
            2_100_000,
            "another link"
        );
        assert_eq!(links.copy(1_000_000, &transfer(OUT, 1)).end_ns, 1_110_000, "finds the link idle");
        let other = self::links();
        let [out, into] = Links::report([&links, &other].into_iter(), 0);
        assert_eq!((out.transfers, out.blocks), (3, 5));
        assert!((out.busy_s - 530e-6).abs() < 1e-9, "waiting is not counted twice, idling not at all: {}", out.busy_s);
        assert_eq!((into.transfers, into.blocks), (1, 1));
        assert_eq!(Links::report([&links, &other].into_iter(), 1)[0].blocks, 1);
    }

    #[test]
    fn what_a_block_costs() {
        let ns =
            |hardware| swap_block_ns(hardware::by_name(hardware).unwrap(), model::by_name("llama-3.1-8b").unwrap(), 16);
        // 2 MiB at 55 and at 25 GB/s.
        assert_eq!((ns("h100-80g"), ns("a100-80g")), (38_131, 83_887));
    }
}
