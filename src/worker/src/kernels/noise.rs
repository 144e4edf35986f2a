//! Random numbers from a seed, equal on every machine.

/// Increment of a stream's state: 2^64 divided by the golden ratio.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers: SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Noise {
    state: u64,
}

impl Noise {
    /// Starts the stream of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Skips the next `n` numbers.
    pub(crate) fn skip(&mut self, n: u64) {
        self.state = self.state.wrapping_add(n.wrapping_mul(STRIDE));
    }

    /// Returns the next 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.skip(1);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next number, uniform in `-bound .. bound`.
    pub(crate) fn uniform(&mut self, bound: f32) -> f32 {
        // 24 bits, so that the conversion is exact.
        let unit = (self.bits() >> 40) as f32 / (1 << 24) as f32;
        (2.0 * unit - 1.0) * bound
    }

    /// Returns the next number, uniform in `0 .. 1`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64_and_can_be_entered_anywhere() {
        // The reference implementation's first numbers for state 0.
        let mut noise = Noise::new(0);
        let first = [noise.bits(), noise.bits(), noise.bits()];
        assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        let mut later = Noise::new(0);
        later.skip(2);
        assert_eq!(later.bits(), first[2]);
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut noise = Noise::new(9);
        for _ in 0..10_000 {
            assert!((-2.0..2.0).contains(&noise.uniform(2.0)));
            assert!((0.0..1.0).contains(&noise.unit()));
        }
    }
}
