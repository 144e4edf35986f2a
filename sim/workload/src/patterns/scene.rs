//! What patterns draw from: random numbers, blocks of new content, popularities.

use crate::rng_stream::RngStream;

/// Number of this part of a workload among the random streams of a seed.
const STREAM: u64 = 0x7061_7474_6572_6e73;

/// Source of a pattern's draws and blocks, and the size of the trace to make.
pub struct Scene {
    /// Capacity of the cache, blocks. Patterns measure think times and sets of documents by it.
    pub capacity: f64,
    /// Blocks of all prompts together, about.
    pub blocks: f64,
    rng: RngStream,
    next_block: u32,
}

/// Spread of lengths around a mean.
#[derive(Clone, Copy)]
pub enum Spread {
    Fixed,
    Geometric,
    Lognormal,
}

impl Scene {
    pub fn new(number: u64) -> Self {
        Self { capacity: 0.0, blocks: 0.0, rng: RngStream::new(number, STREAM, 0), next_block: 0 }
    }

    /// Makes `n` blocks of new content.
    pub fn new_blocks(&mut self, n: usize) -> Vec<u32> {
        let from = self.next_block;
        self.next_block += n as u32;
        (from..self.next_block).collect()
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.rng.unit() * n as f64) as usize
    }

    /// Draws a whole number from `min` to `max`, both included.
    pub fn whole(&mut self, min: usize, max: usize) -> usize {
        min + self.below(max - min + 1)
    }

    pub fn range(&mut self, min: f64, max: f64) -> f64 {
        min + (max - min) * self.rng.unit()
    }

    /// Draws so that equal ratios are equally likely.
    pub fn log_range(&mut self, min: f64, max: f64) -> f64 {
        min * libm::pow(max / min, self.rng.unit())
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.rng.unit() < probability
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        self.rng.exponential(mean)
    }

    /// Draws a lognormal factor with a mean of 1 and a standard deviation of its logarithm of `sigma`.
    pub fn factor(&mut self, sigma: f64) -> f64 {
        libm::exp(sigma * self.rng.normal() - sigma * sigma / 2.0)
    }

    /// Draws a geometric number of at least 1.
    pub fn geometric(&mut self, mean: f64) -> usize {
        if mean <= 1.0 { 1 } else { 1 + self.rng.exponential(-1.0 / libm::log1p(-1.0 / mean)) as usize }
    }

    /// Draws a number around `mean`: its fraction is the chance of one more.
    pub fn around(&mut self, mean: f64) -> usize {
        mean as usize + usize::from(self.chance(mean.fract()))
    }

    pub fn spread(&mut self) -> Spread {
        [Spread::Fixed, Spread::Geometric, Spread::Lognormal][self.below(3)]
    }

    /// Draws a length of at least one block.
    pub fn length(&mut self, mean: f64, spread: Spread) -> usize {
        match spread {
            Spread::Fixed => mean.round().max(1.0) as usize,
            Spread::Geometric => self.geometric(mean),
            Spread::Lognormal => (mean * self.factor(0.8)).round().max(1.0) as usize,
        }
    }

    /// Draws a time around `mean`.
    pub fn time(&mut self, mean: f64, spread: Spread) -> f64 {
        match spread {
            Spread::Fixed => mean * self.range(0.5, 1.5),
            Spread::Geometric => self.exponential(mean),
            Spread::Lognormal => mean * self.factor(1.2),
        }
    }

    /// Draws a mean length of prompts, at most `most` blocks, of which a cache holds some dozen.
    pub fn mean_length(&mut self, most: f64) -> f64 {
        let most = (self.capacity / 25.0).clamp(2.0, most);
        self.log_range(1.0, most)
    }

    /// Makes `n` contents of this mean length, none with more than a fifth of the cache.
    pub fn contents(&mut self, n: usize, mean: f64, spread: Spread) -> Vec<Vec<u32>> {
        let most = (self.capacity / 5.0) as usize + 1;
        (0..n)
            .map(|_| {
                let length = self.length(mean, spread).min(most);
                self.new_blocks(length)
            })
            .collect()
    }
}

/// Popularities after Zipf: the `n`-th has a weight of `1 / n^exponent`.
pub struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    pub fn new(n: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=n).map(|rank| libm::pow(rank as f64, -exponent));
        let sums = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        Self { sums }
    }

    /// Draws a rank, from 0.
    pub fn draw(&self, scene: &mut Scene) -> usize {
        let at = scene.range(0.0, self.sums[self.sums.len() - 1]);
        self.sums.partition_point(|sum| *sum <= at).min(self.sums.len() - 1)
    }
}

/// Returns the blocks of one prompt behind those of another.
pub fn behind(prefix: &[u32], blocks: Vec<u32>) -> Vec<u32> {
    let mut prompt = prefix.to_vec();
    prompt.extend(blocks);
    prompt
}
