//! The link between a device and its host's memory: how long copies of KV blocks take.
//!
//! A link carries both directions at once, each at its full rate. Copies of one direction go one after another, in the order they
//! were asked for. A copy takes the link's latency and its bytes at the link's rate. Copies do not slow down steps, nor steps
//! copies: a link takes a few per cent of the device's memory bandwidth.

use serde::Serialize;
use trunkline_core::transfer::{Direction, Transfer};

use crate::hardware::Hardware;
use crate::model::Model;

/// The link of one replica.
#[derive(Clone, Debug)]
pub(crate) struct Link {
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

/// What was copied in one direction, over all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LinkReport {
    /// Copies, each of one or more blocks.
    pub transfers: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Time in which copies were under way, seconds, summed over replicas.
    pub busy_s: f64,
}

impl Link {
    /// An idle link that moves blocks of `block_size` tokens.
    pub(crate) fn new(hardware: &Hardware, model: &Model, block_size: u32) -> Self {
        Self {
            latency_s: hardware.host_link_latency_s,
            block_s: block_s(hardware, model, block_size),
            out: Lane::default(),
            into: Lane::default(),
        }
    }

    /// Queues a copy at `now_ns`; gives the time at which it ends.
    pub(crate) fn copy(&mut self, now_ns: u64, transfer: &Transfer) -> u64 {
        let blocks = transfer.pairs.len() as u64;
        let duration_ns = ((self.latency_s + self.block_s * blocks as f64) * 1e9).round() as u64;
        let lane = match transfer.direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.into,
        };
        lane.free_at_ns = lane.free_at_ns.max(now_ns) + duration_ns;
        lane.busy_ns += duration_ns;
        lane.copies += 1;
        lane.blocks += blocks;
        lane.free_at_ns
    }

    /// What went one way over `links`.
    pub(crate) fn report<'a>(links: impl Iterator<Item = &'a Self>, direction: Direction) -> LinkReport {
        let mut sum = LinkReport::default();
        for link in links {
            let lane = match direction {
                Direction::Out => &link.out,
                Direction::In => &link.into,
            };
            sum.transfers += lane.copies;
            sum.blocks += lane.blocks;
            sum.busy_s += lane.busy_ns as f64 / 1e9;
        }
        sum
    }
}

fn block_s(hardware: &Hardware, model: &Model, block_size: u32) -> f64 {
    (model.kv_bytes_per_token() * u64::from(block_size)) as f64 / hardware.host_link_bytes_s
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

    /// 16 tokens of Llama-3.1-8B are 2 MiB; here the link moves one in 100 us after 10 us.
    fn link() -> Link {
        let hardware = Hardware {
            host_link_bytes_s: 2_097_152.0 / 100e-6,
            host_link_latency_s: 10e-6,
            ..*hardware::by_name("h100-80g").unwrap()
        };
        Link::new(&hardware, model::by_name("llama-3.1-8b").unwrap(), 16)
    }

    fn transfer(direction: Direction, blocks: u32) -> Transfer {
        Transfer { id: 1, direction, pairs: (0..blocks).map(|i| (i, i)).collect() }
    }

    #[test]
    fn a_copy_takes_latency_and_bytes() {
        assert_eq!(link().copy(0, &transfer(Direction::Out, 1)), 110_000);
        assert_eq!(link().copy(5_000, &transfer(Direction::In, 10)), 5_000 + 1_010_000);
    }

    #[test]
    fn copies_of_one_direction_queue_and_the_other_does_not_wait() {
        let mut link = link();
        assert_eq!(link.copy(0, &transfer(Direction::Out, 3)), 310_000);
        assert_eq!(link.copy(100_000, &transfer(Direction::Out, 1)), 420_000, "waits for the first");
        assert_eq!(link.copy(100_000, &transfer(Direction::In, 1)), 210_000, "goes the other way at once");
        assert_eq!(link.copy(1_000_000, &transfer(Direction::Out, 1)), 1_110_000, "finds the link idle");
        let other = self::link();
        let out = Link::report([&link, &other].into_iter(), Direction::Out);
        assert_eq!((out.transfers, out.blocks), (3, 5));
        assert!((out.busy_s - 530e-6).abs() < 1e-9, "waiting is not counted twice, idling not at all: {}", out.busy_s);
        let into = Link::report([&link, &other].into_iter(), Direction::In);
        assert_eq!((into.transfers, into.blocks), (1, 1));
    }

    #[test]
    fn what_a_block_costs() {
        let ns =
            |hardware| swap_block_ns(hardware::by_name(hardware).unwrap(), model::by_name("llama-3.1-8b").unwrap(), 16);
        // 2 MiB at 55 and at 25 GB/s.
        assert_eq!((ns("h100-80g"), ns("a100-80g")), (38_131, 83_887));
    }
}
