//! Copies of a recording, as samples of the links that carry them.
//!
//! Copies in one direction share the link, so a sample is not a copy but a busy period: the time from the request for a copy, when none
//! was under way, to the next moment without one. A link that takes a latency and then moves so many blocks a second is busy for one latency
//! and the blocks of the period, whichever copy comes first.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use trunkline_core::Transfer;
use trunkline_sim_perf::link;

use super::least_squares;

/// Period in which one direction of a link carried copies without a break.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyPeriod {
    /// Number of the link: 0 to the host and the first tier, 1 to the second tier, and so on.
    pub link: usize,
    /// Blocks of the copies, all of which arrived.
    pub blocks: u64,
    /// Duration, seconds.
    pub time_s: f64,
}

/// Speed of a link, fitted to busy periods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFit {
    /// Number of the link.
    pub link: usize,
    /// Latency of a copy, seconds.
    pub latency_s: f64,
    /// Time for a block, seconds.
    pub block_s: f64,
    /// Number of busy periods in the fit.
    pub periods: usize,
    /// Median of the relative errors of the fit, without signs.
    pub median_error: f64,
}

/// Busy periods required: ten per coefficient.
pub const PERIODS_MIN: usize = 20;

/// Fits latency and rate of each link with at least [`PERIODS_MIN`] busy periods, in the order of the links. As with steps, errors are
/// relative, coefficients are non-negative, and all periods together take as long as measured.
pub fn fit_links(periods: &[BusyPeriod]) -> Vec<LinkFit> {
    let links: BTreeSet<usize> = periods.iter().map(|period| period.link).collect();
    links.into_iter().filter_map(|link| fit(link, periods)).collect()
}

fn fit(link: usize, periods: &[BusyPeriod]) -> Option<LinkFit> {
    let usable: Vec<_> = periods.iter().filter(|p| p.link == link && p.time_s > 0.0 && p.blocks > 0).collect();
    if usable.len() < PERIODS_MIN {
        return None;
    }
    let (latency_s, block_s) = speed(&usable);
    let predicted_s = |p: &BusyPeriod| latency_s + block_s * p.blocks as f64;
    let (measured, predicted) =
        usable.iter().fold((0.0, 0.0), |(measured, predicted), p| (measured + p.time_s, predicted + predicted_s(p)));
    let scale = measured / predicted;
    let mut errors: Vec<f64> = usable.iter().map(|p| (scale * predicted_s(p) / p.time_s - 1.0).abs()).collect();
    errors.sort_unstable_by(f64::total_cmp);
    let median_error = errors[errors.len() / 2];
    let (latency_s, block_s) = (scale * latency_s, scale * block_s);
    Some(LinkFit { link, latency_s, block_s, periods: usable.len(), median_error })
}

/// Returns the usual latency of a copy and time of a block, seconds. If copies of any size take equally long, or all are of one size, the blocks
/// take all the time: a link has some rate.
fn speed(periods: &[&BusyPeriod]) -> (f64, f64) {
    let row = |p: &&BusyPeriod| ([1.0 / p.time_s, p.blocks as f64 / p.time_s], 1.0);
    let [latency_s, block_s] = least_squares::robust(&periods.iter().map(row).collect::<Vec<_>>());
    if block_s > 0.0 {
        return (latency_s, block_s);
    }
    let row = |p: &&BusyPeriod| ([p.blocks as f64 / p.time_s], 1.0);
    let [block_s] = least_squares::robust(&periods.iter().map(row).collect::<Vec<_>>());
    (0.0, block_s)
}

/// Copies of one worker under way, by direction of a link.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    directions: BTreeMap<usize, Direction>,
    /// Directions of the copies under way, by id.
    under_way: BTreeMap<u64, usize>,
}

/// Busy period under way.
#[derive(Debug, Default)]
struct Direction {
    begun_ns: u64,
    copies: u64,
    blocks: u64,
    is_whole: bool,
}

impl Copies {
    pub(crate) fn begin(&mut self, at_ns: u64, transfer: &Transfer) {
        let number = link::direction(transfer.from, transfer.to);
        let direction = self.directions.entry(number).or_default();
        if direction.copies == 0 {
            *direction = Direction { begun_ns: at_ns, is_whole: true, ..Direction::default() };
        }
        direction.copies += 1;
        direction.blocks += transfer.pairs.len() as u64;
        self.under_way.insert(transfer.id, number);
    }

    /// Ends the copy with this id, and with it the period if no other copy is under way. A period is no sample if blocks of it
    /// did not arrive.
    pub(crate) fn end(&mut self, at_ns: u64, id: u64, is_whole: bool) -> Option<BusyPeriod> {
        let number = self.under_way.remove(&id)?;
        let direction = self.directions.get_mut(&number)?;
        direction.copies -= 1;
        direction.is_whole &= is_whole;
        let time_s = (at_ns - direction.begun_ns) as f64 / 1e9;
        let has_ended = direction.copies == 0 && direction.is_whole;
        has_ended.then_some(BusyPeriod { link: number / 2, blocks: direction.blocks, time_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_core::Place;

    fn transfer(id: u64, from: Place, to: Place, blocks: u32) -> Transfer {
        Transfer { id, from, to, pairs: (0..blocks).map(|block| (block, block)).collect(), ..Transfer::default() }
    }

    #[test]
    fn copies_that_overlap_are_one_period() {
        let mut copies = Copies::default();
        let (device, tier) = (Place::Device, Place::Tier(0));
        copies.begin(0, &transfer(1, device, tier, 3));
        // The other way, and another link: periods of their own.
        copies.begin(500, &transfer(2, tier, device, 1));
        copies.begin(600, &transfer(3, tier, Place::Tier(1), 2));
        copies.begin(1_000, &transfer(4, device, Place::Host, 5));
        assert_eq!(copies.end(2_000, 1, true), None);
        assert_eq!(copies.end(2_500, 2, true), Some(BusyPeriod { link: 0, blocks: 1, time_s: 2e-6 }));
        assert_eq!(copies.end(2_600, 3, true), Some(BusyPeriod { link: 1, blocks: 2, time_s: 2e-6 }));
        assert_eq!(copies.end(4_000, 4, true), Some(BusyPeriod { link: 0, blocks: 8, time_s: 4e-6 }));
        assert_eq!(copies.end(5_000, 4, true), None);
        copies.begin(6_000, &transfer(5, device, tier, 1));
        assert_eq!(copies.end(7_000, 5, true), Some(BusyPeriod { link: 0, blocks: 1, time_s: 1e-6 }));
    }

    #[test]
    fn a_period_with_a_failed_copy_is_no_sample() {
        let mut copies = Copies::default();
        copies.begin(0, &transfer(1, Place::Device, Place::Host, 3));
        copies.begin(0, &transfer(2, Place::Device, Place::Host, 3));
        assert_eq!(copies.end(10, 1, false), None);
        assert_eq!(copies.end(20, 2, true), None);
    }

    #[test]
    fn latency_and_rate_of_each_link_are_found() {
        let periods = |link: usize, latency_s: f64, block_s: f64, n: u64| {
            (0..n).map(move |at| {
                let blocks = 1 + at * 7 % 40;
                BusyPeriod { link, blocks, time_s: latency_s + block_s * blocks as f64 }
            })
        };
        let mut all: Vec<_> = periods(0, 50e-6, 200e-6, 60).chain(periods(2, 3e-3, 1e-3, 40)).collect();
        // Too few.
        all.extend(periods(1, 1e-3, 1e-3, 19));
        let found = fit_links(&all);
        assert_eq!(found.iter().map(|fit| (fit.link, fit.periods)).collect::<Vec<_>>(), [(0, 60), (2, 40)]);
        for (fit, (latency_s, block_s)) in found.iter().zip([(50e-6, 200e-6), (3e-3, 1e-3)]) {
            assert!((fit.latency_s / latency_s - 1.0).abs() < 1e-3, "{fit:?}");
            assert!((fit.block_s / block_s - 1.0).abs() < 1e-3, "{fit:?}");
            assert!(fit.median_error < 1e-3, "{fit:?}");
        }
        assert_eq!(fit_links(&[]), []);
    }

    #[test]
    fn all_periods_together_take_as_long_as_measured() {
        let period =
            |at: u64| BusyPeriod { link: 0, blocks: 4, time_s: if at.is_multiple_of(4) { 2e-3 } else { 1e-3 } };
        let [fit] = fit_links(&(0..40).map(period).collect::<Vec<_>>())[..] else { panic!("one link") };
        // Of one size: the blocks take all of it.
        assert!(fit.latency_s == 0.0 && (4.0 * fit.block_s - 1.25e-3).abs() < 1e-9, "{fit:?}");
    }
}
