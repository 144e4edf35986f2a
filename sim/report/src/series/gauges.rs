//! Gauges of a fleet in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use trunkline_core::Stats;

use super::buckets::{Buckets, Gauge, Values};
use crate::observer::ReplicaChange;

/// Sum of the gauges of all replicas, with pending changes: ends of steps without a successor.
#[derive(Clone, Debug)]
pub(super) struct Gauges {
    replicas: Vec<Replica>,
    total: Values,
    now_ns: u64,
    /// End, replica and number of each step.
    ends: BinaryHeap<Reverse<(u64, u32, u64)>>,
}

#[derive(Clone, Debug)]
struct Replica {
    values: Values,
    /// Number of steps and failures so far, to identify stale ends.
    number: u64,
}

impl Gauges {
    /// Returns the gauges of idle replicas with the given numbers of device blocks; the last `off` replicas are not ready.
    pub(super) fn new(device_blocks: &[u64], off: u32) -> Self {
        let gauges = |blocks: u64, ready: usize| {
            let mut values = Values::default();
            values[Gauge::BlocksFree as usize] = blocks;
            values[Gauge::Ready as usize] = ready as u64;
            values
        };
        let ready = device_blocks.len() - off as usize;
        let replica = |(at, blocks): (usize, &u64)| Replica { values: gauges(*blocks, (at < ready).into()), number: 0 };
        let replicas = device_blocks.iter().enumerate().map(replica).collect();
        Self { replicas, total: gauges(device_blocks.iter().sum(), ready), now_ns: 0, ends: BinaryHeap::new() }
    }

    /// Records the start of a step with the gauges during it.
    pub(super) fn step(&mut self, begin_ns: u64, end_ns: u64, replica: u32, stats: &Stats, buckets: &mut Buckets) {
        self.pass(begin_ns, buckets);
        let ready = self.replicas[replica as usize].values[Gauge::Ready as usize];
        let number = self.set(replica, values(stats, ready));
        self.ends.push(Reverse((end_ns, replica, number)));
    }

    /// Records that a replica became ready, or is no longer.
    pub(super) fn change(&mut self, now_ns: u64, replica: u32, change: ReplicaChange, buckets: &mut Buckets) {
        let is_ready = matches!(change, ReplicaChange::Started | ReplicaChange::Back | ReplicaChange::Reopened);
        self.pass(now_ns, buckets);
        let now = u64::from(is_ready);
        let before = std::mem::replace(&mut self.replicas[replica as usize].values[Gauge::Ready as usize], now);
        let total = &mut self.total[Gauge::Ready as usize];
        *total = *total + now - before;
    }

    /// Records the failure of a replica. Its requests wait there if it `returns`.
    pub(super) fn fail(&mut self, now_ns: u64, replica: u32, returns: bool, buckets: &mut Buckets) {
        self.pass(now_ns, buckets);
        let mut values = self.replicas[replica as usize].values;
        let requests = [Gauge::Waiting, Gauge::Loading, Gauge::Running, Gauge::Swapped];
        let here = requests.iter().map(|gauge| std::mem::take(&mut values[*gauge as usize])).sum();
        values[Gauge::Waiting as usize] = if returns { here } else { 0 };
        let blocks = [Gauge::BlocksInUse, Gauge::BlocksCached, Gauge::BlocksFree];
        let all = blocks.iter().map(|gauge| std::mem::take(&mut values[*gauge as usize])).sum();
        values[Gauge::BlocksFree as usize] = all;
        self.set(replica, values);
    }

    /// Advances time to `to_ns`.
    pub(super) fn pass(&mut self, to_ns: u64, buckets: &mut Buckets) {
        while let Some(Reverse((end_ns, replica, number))) = self.ends.peek().copied()
            && end_ns < to_ns
        {
            self.ends.pop();
            if self.replicas[replica as usize].number == number {
                self.hold(end_ns, buckets);
                self.idle(replica);
            }
        }
        self.hold(to_ns, buckets);
    }

    fn hold(&mut self, to_ns: u64, buckets: &mut Buckets) {
        buckets.hold(self.now_ns, to_ns, &self.total);
        self.now_ns = self.now_ns.max(to_ns);
    }

    /// Empties the batch after a step without a successor; its blocks become cached. Waiting requests still wait, for a copy:
    /// otherwise a step would have begun.
    fn idle(&mut self, replica: u32) {
        let mut values = self.replicas[replica as usize].values;
        values[Gauge::Running as usize] = 0;
        values[Gauge::BlocksCached as usize] += std::mem::take(&mut values[Gauge::BlocksInUse as usize]);
        self.set(replica, values);
    }

    fn set(&mut self, replica: u32, values: Values) -> u64 {
        let replica = &mut self.replicas[replica as usize];
        for ((total, old), new) in self.total.iter_mut().zip(replica.values).zip(values) {
            *total = *total - old + new;
        }
        replica.values = values;
        replica.number += 1;
        replica.number
    }
}

fn values(stats: &Stats, ready: u64) -> Values {
    let mut values = Values::default();
    values[Gauge::Ready as usize] = ready;
    let mut set = |gauge: Gauge, value: u32| values[gauge as usize] = value.into();
    set(Gauge::Waiting, stats.waiting);
    set(Gauge::Loading, stats.loading);
    set(Gauge::Running, stats.running);
    set(Gauge::Swapped, stats.swapped);
    set(Gauge::BlocksInUse, stats.blocks_in_use());
    set(Gauge::BlocksCached, stats.idle_blocks);
    set(Gauge::BlocksFree, stats.free_blocks);
    for (at, tier) in stats.tiers.iter().enumerate() {
        values[Gauge::Tier as usize + at] = tier.blocks.into();
    }
    values
}
