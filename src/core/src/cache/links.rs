//! Learned durations of transfers and prefills: whether a load or a swap pays, and when a transfer is overdue.

use crate::Place;
use crate::cache::timing::Timing;
use crate::config::Config;
use crate::config::TIERS_MAX;
use crate::request::wait::Wait;

/// A transfer is overdue if it takes so many times as long as expected.
const OVERDUE_FACTOR: u64 = 16;
/// A transfer is not overdue earlier, however fast its kind is: nanoseconds. A worker may pause for so long.
const OVERDUE_MIN_NS: u64 = 1_000_000_000;
/// Least estimate of a prefill before the first was measured, nanoseconds: the setting may be far off.
const UNMEASURED_NS: f64 = 1e9;
/// A tier is tried again once prompts that passed it over were computed for so many times as long as its last load was late: the trials of
/// a slow tier take a sixteenth of that time.
const TRIAL_FACTOR: f64 = 16.0;
/// Longest delay of a copy that counts for this, nanoseconds: a tier that was out of reach is tried again soon.
const LATE_MAX_NS: f64 = 1e9;
/// Weight of the setting of a tier's link or of prefills, in units of a measurement: see [`Timing::new`].
const START_AMOUNT: u32 = 64;
/// The same for the links with the host: the copies of one swapped sequence count for more.
const START_AMOUNT_OF_SWAPS: u32 = 16;
/// Share of the time of a load, or of computing, within which the beginning has to be computed and the rest loaded.
const HEAD_PAYS: f64 = 7.0 / 8.0;
/// Place of swaps among the kinds of copies that are left out where they are slow, after the tiers.
const SWAPS: usize = TIERS_MAX;
/// Kinds of measured transfers: out to the host, back, and to the device from each tier, and to the first tier.
const LINKS: usize = 3 + TIERS_MAX;

/// Returns the number of the link between two places. `None` for transfers among tiers.
fn link(from: Place, to: Place) -> Option<usize> {
    match (from, to) {
        (Place::Device, Place::Host) => Some(0),
        (Place::Host, _) => Some(1),
        (Place::Device, _) => Some(2),
        (Place::Tier(tier), Place::Device) => Some(3 + tier as usize),
        _ => None,
    }
}

/// Durations of transfers by link, and of prefills. Each starts with the configured estimate.
#[derive(Debug)]
pub(crate) struct Links {
    timeout_ns: u64,
    block_size: u32,
    copies: [Timing; LINKS],
    prefill: Timing,
    /// Time that prompts have to be computed before the estimate of a tier fades, nanoseconds; the last is for swaps.
    owed_ns: [f64; TIERS_MAX + 1],
}

impl Links {
    /// Creates the estimates of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            timeout_ns: if config.copy_timeout_ns == 0 { u64::MAX } else { config.copy_timeout_ns },
            block_size: config.block_size,
            copies: std::array::from_fn(|link| {
                Timing::new(config.swap_block_ns, if link < 2 { START_AMOUNT_OF_SWAPS } else { START_AMOUNT })
            }),
            prefill: Timing::new(config.recompute_token_ns, START_AMOUNT),
            owed_ns: [0.0; TIERS_MAX + 1],
        }
    }

    /// Takes in the duration of a transfer of so many blocks.
    pub fn observe(&mut self, from: Place, to: Place, blocks: usize, took_ns: u64) {
        let Some(link) = link(from, to) else { return };
        let avoided = match (from, to) {
            (Place::Tier(tier), Place::Device) => Some(tier as usize),
            (Place::Host, _) | (_, Place::Host) => Some(SWAPS),
            _ => None,
        };
        if let Some(kind) = avoided {
            let late_ns = took_ns as f64 - self.copies[link].estimate_ns(blocks as u32) as f64;
            let owed_ns = &mut self.owed_ns[kind];
            *owed_ns = if late_ns > 0.0 { owed_ns.max(TRIAL_FACTOR * late_ns.min(LATE_MAX_NS)) } else { 0.0 };
        }
        self.copies[link].observe(blocks as u32, took_ns);
    }

    /// Takes in the duration of a step with so many prompt tokens.
    pub fn observe_prefill(&mut self, tokens: u32, took_ns: u64) {
        self.prefill.observe(tokens, took_ns);
    }

    /// Returns the time after which a transfer of so many blocks is overdue, nanoseconds.
    pub fn patience_ns(&self, from: Place, to: Place, blocks: usize) -> u64 {
        let learned = link(from, to).map(|link| &self.copies[link]).filter(|timing| timing.is_learned());
        let expected_ns = learned.map_or(u64::MAX, |timing| timing.estimate_ns(blocks as u32));
        self.timeout_ns.min(expected_ns.saturating_mul(OVERDUE_FACTOR).max(OVERDUE_MIN_NS))
    }

    /// Returns the wait of a request, from now on, for a transfer of so many blocks. Without the transfer the tokens of `computed` blocks would be computed.
    pub fn wait(&self, now_ns: u64, from: Place, to: Place, blocks: usize, computed: usize) -> Wait {
        if self.timeout_ns == u64::MAX {
            return Wait::without_end(now_ns);
        }
        let expected_ns = link(from, to).map_or(0, |link| self.copies[link].estimate_ns(blocks as u32));
        Wait::for_copy(now_ns, expected_ns, self.compute_ns(computed) as u64)
    }

    /// Returns the number of leading blocks to load, to save the most time: the time to compute the tokens of the blocks, less the time
    /// of the transfers, which run side by side. `plan` yields, for each block, the tiers that it is copied from: one for each layer group.
    pub fn worthwhile<Copies: IntoIterator<Item = usize>>(&self, plan: impl IntoIterator<Item = Copies>) -> usize {
        let (mut best, mut most_ns) = (0, 0.0);
        for (n, saved_ns) in (1..).zip(self.savings(plan)) {
            if saved_ns >= most_ns {
                (best, most_ns) = (n, saved_ns);
            }
        }
        best
    }

    /// Returns, for each number of leading blocks of a plan, the time saved by loading them, nanoseconds.
    pub fn savings<Copies: IntoIterator<Item = usize>>(
        &self,
        plan: impl IntoIterator<Item = Copies>,
    ) -> impl Iterator<Item = f64> {
        let lines: [(f64, f64); TIERS_MAX] = std::array::from_fn(|tier| self.copies[3 + tier].line());
        let (_, token_ns) = self.prefill.line();
        let block_ns = token_ns * f64::from(self.block_size);
        let mut ends_ns = [0.0; TIERS_MAX];
        let (mut load_ns, mut saved_ns) = (0.0_f64, 0.0);
        plan.into_iter().map(move |tiers| {
            for tier in tiers {
                let (fixed_ns, copy_ns) = lines[tier];
                let end_ns: &mut f64 = &mut ends_ns[tier];
                *end_ns += if *end_ns == 0.0 { fixed_ns + copy_ns } else { copy_ns };
                load_ns = load_ns.max(*end_ns);
            }
            saved_ns += block_ns;
            saved_ns - load_ns
        })
    }

    /// Returns the number of leading blocks of a plan to compute while the others are loaded, so that all are there soonest; 0 unless that takes
    /// less than [`HEAD_PAYS`] of the time to load all, or to compute all, by times that were measured. `plan` yields, for each block, the tier that it is copied
    /// from, the last block first.
    pub fn head(&self, blocks: usize, plan: impl Iterator<Item = usize>) -> usize {
        if !self.prefill.is_measured() {
            return 0;
        }
        let (fixed_ns, token_ns) = self.prefill.line();
        let block_ns = token_ns * f64::from(self.block_size);
        let (mut ends_ns, mut load_ns) = ([0.0_f64; TIERS_MAX], 0.0_f64);
        let (mut best, mut least_ns) = (0, f64::INFINITY);
        for (head, tier) in (0..blocks).rev().zip(plan) {
            let (setup_ns, copy_ns) = self.copies[3 + tier].line();
            let end_ns = &mut ends_ns[tier];
            *end_ns += if *end_ns == 0.0 { setup_ns + copy_ns } else { copy_ns };
            load_ns = load_ns.max(*end_ns);
            let compute_ns = if head == 0 { 0.0 } else { fixed_ns + block_ns * head as f64 };
            if load_ns.max(compute_ns) <= least_ns {
                (best, least_ns) = (head, load_ns.max(compute_ns));
            }
        }
        let alone_ns = load_ns.min(fixed_ns + block_ns * blocks as f64);
        if least_ns < HEAD_PAYS * alone_ns { best } else { 0 }
    }

    /// Returns the time to compute the tokens of so many blocks, nanoseconds. Before the first prefill nobody knows, and a second is
    /// the least.
    pub fn compute_ns(&self, blocks: usize) -> f64 {
        let (_, token_ns) = self.prefill.line();
        let compute_ns = token_ns * f64::from(self.block_size) * blocks as f64;
        if self.prefill.is_measured() { compute_ns } else { compute_ns.max(UNMEASURED_NS) }
    }

    /// Returns the expected time to compute so many prompt tokens, nanoseconds; `None` before the first prefill.
    pub fn prefill_ns(&self, tokens: u64) -> Option<u64> {
        let (fixed_ns, token_ns) = self.prefill.line();
        self.prefill.is_measured().then_some((fixed_ns + token_ns * tokens as f64) as u64)
    }

    /// Returns the expected time to copy so many blocks to the host and back, nanoseconds.
    pub fn swap_ns(&self, blocks: u64) -> u64 {
        let [out, back] = [&self.copies[0], &self.copies[1]].map(Timing::line);
        (out.0 + back.0 + (out.1 + back.1) * blocks as f64) as u64
    }

    /// Returns the expected time to compute so many tokens again, alongside others, nanoseconds.
    pub fn recompute_ns(&self, tokens: u64) -> u64 {
        (self.prefill.line().1 * tokens as f64) as u64
    }

    /// Takes note of tokens computed again because a swap would have taken longer. As with a tier, the estimate of a slow host fades in the
    /// end, and one swap tries it again. Returns `true` if it faded.
    pub fn passed_over_host(&mut self, recompute_ns: u64) -> bool {
        if !self.copies[0].is_measured() {
            return false;
        }
        self.owed_ns[SWAPS] = (self.owed_ns[SWAPS] - recompute_ns as f64).max(0.0);
        let fades = self.owed_ns[SWAPS] == 0.0;
        if fades {
            self.copies[..2].iter_mut().for_each(Timing::fade);
        }
        fades
    }

    /// Returns the time saved by loading so many blocks from a tier, by so many copies, instead of computing them, nanoseconds; negative
    /// if computing is faster.
    pub fn saved_ns(&self, tier: usize, blocks: usize, copies: usize) -> f64 {
        let (fixed_ns, copy_ns) = self.copies[3 + tier].line();
        self.compute_ns(blocks) - fixed_ns - copy_ns * copies as f64
    }

    /// Takes note of a request admitted without loading so many blocks of a tier. Once computing them has taken many times as long as the last load of
    /// the tier was late, the estimate fades, so that the tier is tried again now and then.
    pub fn passed_over(&mut self, tier: usize, blocks: usize) {
        self.owed_ns[tier] -= self.compute_ns(blocks);
        if self.owed_ns[tier] <= 0.0 {
            self.owed_ns[tier] = 0.0;
            self.copies[3 + tier].fade();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SETTINGS;

    /// A block is sixteen tokens: 1.6 ms to compute, 84 us to load, to begin with.
    fn links() -> Links {
        Links::new(&Config { block_size: 16, swap_block_ns: 84_000, recompute_token_ns: 100_000, ..Config::default() })
    }

    #[test]
    fn a_load_pays_by_the_start_values_until_transfers_prove_slow_and_is_tried_again_later() {
        let mut links = links();
        let blocks = [[0], [0], [1]];
        assert_eq!(links.worthwhile(blocks), 3);
        // Every read of tier 1 takes 10 ms, however little is read.
        (0..100).for_each(|n| links.observe(Place::Tier(1), Place::Device, 1 + n % 8, 10_000_000));
        assert_eq!(links.worthwhile(blocks), 2, "one block is computed sooner");
        assert_eq!(links.worthwhile([[1]; 20]), 20, "but not twenty");
        // A load of 10 ms where 84 us were expected costs 16 times as much computing, 1.6 ms a block before the first prefill was measured.
        (0..200).for_each(|_| links.passed_over(1, 1));
        assert_eq!(links.worthwhile(blocks), 3);
        // A device that computes a token in 1 us loads nothing at 84 us a block.
        (0..100).for_each(|n| links.observe_prefill(100 + n, u64::from(5_000_000 + n * 1_000)));
        assert_eq!(links.worthwhile(blocks), 0);
    }

    #[test]
    fn a_slow_host_is_left_alone_after_its_first_copies_and_tried_again_later() {
        let mut links = links();
        links.observe_prefill(512, 51_200_000);
        let pays = |links: &Links| links.swap_ns(20) < links.recompute_ns(320);
        assert!(pays(&links), "3.4 ms against 32 ms");
        // Both ways take a hundred times as long as the setting says.
        for (from, to) in [(Place::Device, Place::Host), (Place::Host, Place::Device)] {
            links.observe(from, to, 20, 168_000_000);
        }
        assert!(!pays(&links));
        // 16 times 166 ms of computing, before the estimate begins to fade.
        let mut avoided = 0;
        while !pays(&links) {
            links.passed_over_host(links.recompute_ns(320));
            avoided += 1;
        }
        assert!((83..160).contains(&avoided), "{avoided}");
        (0..3).for_each(|_| links.observe(Place::Device, Place::Host, 20, 1_680_000));
        (0..3).for_each(|_| links.observe(Place::Host, Place::Device, 20, 1_680_000));
        assert!(pays(&links), "it has recovered");
    }

    /// Settings that say "estimated" are start values: each is given up for what is measured, here a thousand times as long.
    #[test]
    fn every_estimate_among_the_settings_yields_to_measurements() {
        let mut estimates = Vec::new();
        for setting in SETTINGS.iter().filter(|setting| setting.help().contains("stimated")) {
            let (expected, measured): (fn(&Links) -> u64, _) = match setting.name {
                "swap_block_ns" => {
                    let mut measured = links();
                    (0..8).for_each(|_| measured.observe(Place::Device, Place::Host, 20, 20 * 84_000_000));
                    (0..8).for_each(|_| measured.observe(Place::Host, Place::Device, 20, 20 * 84_000_000));
                    (|links| links.swap_ns(20), measured)
                }
                "recompute_token_ns" => {
                    let mut measured = links();
                    (0..8).for_each(|_| measured.observe_prefill(320, 320 * 100_000_000));
                    (|links| links.recompute_ns(320), measured)
                }
                other => panic!("{other} is an estimate, and nothing here says what it yields to"),
            };
            let (given, learned) = (expected(&links()), expected(&measured));
            assert!(learned > 700 * given, "{}: {given} ns as set, {learned} ns measured", setting.name);
            estimates.push(setting.name);
        }
        assert_eq!(estimates, ["swap_block_ns", "recompute_token_ns"]);
    }

    #[test]
    fn a_read_of_fixed_duration_saves_time_only_for_enough_blocks() {
        let mut links = links();
        (0..100).for_each(|n| links.observe(Place::Tier(1), Place::Device, 1 + n % 8, 10_000_000));
        (0..100).for_each(|n| links.observe_prefill(100 + n, u64::from(100 + n) * 100_000));
        let saved_ms = |blocks| (links.saved_ns(1, blocks, blocks) / 1e6).round();
        assert_eq!((saved_ms(1), saved_ms(20)), (-8.0, 22.0), "1.6 ms to compute a block, 10 ms to load any number");
    }

    #[test]
    fn the_ways_to_the_host_and_back_and_to_a_tier_are_measured_apart() {
        let ways = [(Place::Device, Place::Host), (Place::Host, Place::Device), (Place::Device, Place::Tier(0))];
        for (slow, (from, to)) in ways.into_iter().enumerate() {
            let mut links = links();
            (0..100).for_each(|n| links.observe(from, to, 1 + n % 20, 200_000_000));
            let is_slow = ways.map(|(from, to)| links.patience_ns(from, to, 10) < 4_000_000_000);
            assert_eq!(is_slow, [0, 1, 2].map(|way| way == slow), "only the measured one is expected in 200 ms");
        }
    }

    #[test]
    fn patience_is_the_setting_or_sixteen_times_what_was_measured() {
        let mut links = links();
        let patience = |links: &Links| links.patience_ns(Place::Device, Place::Tier(0), 10);
        assert_eq!(patience(&links), 30_000_000_000);
        (0..100).for_each(|n| links.observe(Place::Device, Place::Tier(0), 1 + n % 20, 200_000_000));
        assert!((3_000_000_000..3_400_000_000).contains(&patience(&links)), "{}", patience(&links));
        (0..200).for_each(|n| links.observe(Place::Device, Place::Tier(0), 1 + n % 20, 1_000));
        assert_eq!(patience(&links), OVERDUE_MIN_NS);
        assert_eq!(links.patience_ns(Place::Tier(0), Place::Tier(1), 10), 30_000_000_000, "not measured");
        let never = Links::new(&Config { copy_timeout_ns: 0, ..Config::default() });
        assert_eq!(never.patience_ns(Place::Device, Place::Host, 1), u64::MAX);
    }
}
