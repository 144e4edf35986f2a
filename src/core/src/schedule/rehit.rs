//! The share of blocks that preempted sequences find in the cache again, learned from earlier preemptions.

/// One whole, in the unit of [`RehitRate`].
const WHOLE: u64 = 1024;
/// Weight of the estimate so far against one observation, plus one.
const WEIGHT: u64 = 8;

/// Share of the blocks left idle by preempted sequences that the sequences find again, in [`WHOLE`]ths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RehitRate(u64);

impl Default for RehitRate {
    fn default() -> Self {
        Self(WHOLE / 2)
    }
}

impl RehitRate {
    /// Notes that `found` of `left` blocks were found again.
    pub fn observe(&mut self, found: u32, left: u32) {
        if left > 0 {
            let share = u64::from(found.min(left)) * WHOLE / u64::from(left);
            self.0 = (self.0 * (WEIGHT - 1) + share) / WEIGHT;
        }
    }

    /// Returns the number of `blocks` expected to be found again.
    pub fn expect(self, blocks: u64) -> u64 {
        blocks * self.0 / WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_observations() {
        let mut rehit = RehitRate::default();
        assert_eq!(rehit.expect(100), 50);
        (0..60).for_each(|_| rehit.observe(10, 10));
        assert!(rehit.expect(1000) > 980);
        (0..60).for_each(|_| rehit.observe(0, 7));
        assert!(rehit.expect(1000) < 20);
        rehit.observe(5, 0);
        assert!(rehit.expect(1000) < 20, "no block left behind, nothing to learn");
    }
}
