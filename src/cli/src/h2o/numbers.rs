//! Seeded numbers of texts and benchmarks.

/// Seed that all seeds are combined with.
pub const SEED: u64 = 0x7472_756e_6b6c_696e;

/// Pseudo-random numbers from a fixed seed (SplitMix64).
pub struct Numbers(u64);

impl Numbers {
    /// Starts the numbers of a seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(SEED ^ seed)
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns the next number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }

    /// Returns token ids of a vocabulary of 128 Ki.
    pub fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| (self.draw() >> 47) as u32).collect()
    }
}
