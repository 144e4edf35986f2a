//! Durations of steps, copies and look-ups in a run that was changed: recorded ones where the decision is the same, else those of a fit to the
//! recording itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use trunkline_core::{Lookup, Transfer};
use trunkline_sim_perf::cost::{Sample, StepShape};
use trunkline_sim_perf::link;

use super::decisions::fold;
use crate::calibrate::{BusyPeriod, Calibration, LinkFit, calibrate, fit_links};

/// Samples kept of a long recording for the fit, at most: then every second is dropped, again and again.
const SAMPLES_MAX: usize = 40_000;

/// Returns the mark of a copy on an engine.
pub(super) fn copy_mark(engine: u32, transfer: &Transfer) -> u64 {
    let places = link::direction(transfer.from, transfer.to) as u64;
    let begin = fold(fold(2, engine.into()), places);
    transfer.pairs.iter().fold(begin, |mark, (from, to)| fold(mark, u64::from(*from) << 32 | u64::from(*to)))
}

/// Durations shown by a recording.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times {
    steps: BTreeMap<u64, u64>,
    copies: BTreeMap<u64, u64>,
    samples: Vec<Sample>,
    /// Every so many steps is a sample.
    stride: usize,
    seen: usize,
    periods: Vec<BusyPeriod>,
    /// Sum and number of the durations of copies, and of their blocks, by direction.
    copied: BTreeMap<usize, (u64, u64)>,
    /// Blocks that a shared tier was found to hold.
    found: BTreeSet<u128>,
    lookups_ns: (u64, u64),
    #[serde(skip)]
    fit: Option<Calibration>,
    #[serde(skip)]
    links: Vec<LinkFit>,
}

/// Source of the durations of a changed run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sources {
    /// Steps after the first difference with their recorded durations, because they were the same.
    pub recorded_steps: u64,
    /// Steps with durations of the fit.
    pub fitted_steps: u64,
}

impl Times {
    pub fn step(&mut self, mark: u64, shape: StepShape, ns: u64) {
        self.steps.entry(mark).or_insert(ns);
        self.stride = self.stride.max(1);
        if self.seen.is_multiple_of(self.stride) {
            self.samples.push(Sample { shape, time_s: ns as f64 / 1e9 });
        }
        self.seen += 1;
        if self.samples.len() > SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.stride *= 2;
        }
    }

    pub fn copy(&mut self, mark: u64, direction: usize, blocks: u64, ns: u64) {
        self.copies.entry(mark).or_insert(ns);
        let (sum_ns, sum_blocks) = self.copied.entry(direction).or_default();
        (*sum_ns, *sum_blocks) = (*sum_ns + ns, *sum_blocks + blocks);
    }

    pub fn period(&mut self, period: BusyPeriod) {
        self.periods.push(period);
    }

    pub fn lookup(&mut self, lookup: &Lookup, found: u32, ns: u64) {
        self.found.extend(lookup.keys.iter().take(found as usize).map(|key| key.hash));
        self.lookups_ns = (self.lookups_ns.0 + ns, self.lookups_ns.1 + 1);
    }

    /// Fits the durations of what the recording does not show.
    pub fn fit(&mut self) {
        self.fit = calibrate("recorded", &self.samples).ok();
        self.links = fit_links(&self.periods);
    }

    /// Returns the fit of step times; `None` if the recording has too few steps.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.fit.as_ref()
    }

    /// Returns the number of recorded steps.
    pub fn n_steps(&self) -> usize {
        self.seen
    }

    /// Returns the recorded duration of a step, nanoseconds.
    pub fn recorded_step_ns(&self, mark: u64) -> Option<u64> {
        self.steps.get(&mark).copied()
    }

    /// Returns the fitted duration of a step, nanoseconds; `None` without a fit.
    pub fn fitted_step_ns(&self, shape: &StepShape) -> Option<u64> {
        self.fit.as_ref().map(|fit| ((fit.time.step_s(shape) * 1e9) as u64).max(1))
    }

    /// Returns the recorded duration of a copy, nanoseconds.
    pub fn recorded_copy_ns(&self, mark: u64) -> Option<u64> {
        self.copies.get(&mark).copied()
    }

    /// Returns the duration of a copy alone on its link, nanoseconds: fitted, or the mean of the recorded ones by blocks, or `block_ns` for each.
    pub fn copy_ns(&self, direction: usize, blocks: u64, block_ns: u64) -> u64 {
        if let Some(fit) = self.links.iter().find(|fit| fit.link == direction / 2) {
            return ((fit.latency_s + fit.block_s * blocks as f64) * 1e9) as u64;
        }
        match self.copied.get(&direction) {
            Some((ns, copied)) if *copied > 0 => ns * blocks / copied,
            _ => block_ns.saturating_mul(blocks),
        }
    }

    /// Returns the answer to a look-up that was not recorded, and its duration, nanoseconds: what look-ups of the recording found is there.
    pub fn answer(&self, lookup: &Lookup) -> (u32, u64) {
        let found = lookup.keys.iter().take_while(|key| self.found.contains(&key.hash)).count() as u32;
        (found, self.lookups_ns.0 / self.lookups_ns.1.max(1))
    }
}
