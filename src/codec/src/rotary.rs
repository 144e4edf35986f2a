//! Rotary angles in integers: equal on every machine, because contexts that the encoder and the decoder see differently would turn a frame into
//! noise.
//!
//! A frequency is the fraction of a full turn by which a pair of elements is rotated from one position to the next, in units of 2^-64 turns.
//! The phase at a position is a product modulo 2^64, exact at any position.

/// Steps of a full turn in the table of sines: an error of 0.0015 radians at most.
const STEPS: usize = 4096;

/// Cosines and sines of the pairs of a head, as multiples of 2^-15; none for heads that are not rotated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Angles<'a> {
    pub cos: &'a [i16],
    pub sin: &'a [i16],
}

/// Cosines and sines of all steps of a turn.
pub(crate) struct Turn(Vec<[i16; 2]>);

impl Turn {
    /// Computes the table. `libm` computes sines from additions and multiplications alone, which are exact to the bit everywhere.
    pub(crate) fn new() -> Self {
        let angle = |step: usize| {
            let radians = step as f64 * (std::f64::consts::TAU / STEPS as f64);
            [libm::cos(radians), libm::sin(radians)].map(|x| libm::round(x * 32_767.0) as i16)
        };
        Self((0..STEPS).map(angle).collect())
    }

    /// Returns cosine and sine of a pair at a position.
    pub(crate) fn angle(&self, frequency: u64, position: u32) -> [i16; 2] {
        let phase = frequency.wrapping_mul(u64::from(position));
        self.0[(phase >> 52) as usize % STEPS]
    }
}

/// Returns the frequencies of plain rotary embeddings: pair `j` of `head_dim / 2` rotates by `theta^(-2j / head_dim)` radians from one position
/// to the next.
///
/// ```
/// let frequencies = trunkline_codec::rotary_frequencies(64, 10_000.0);
/// assert_eq!(frequencies.len(), 32);
/// // One radian is 1 / 2π of a turn.
/// assert_eq!(frequencies[0] >> 32, (2f64.powi(32) / std::f64::consts::TAU) as u64);
/// ```
pub fn rotary_frequencies(head_dim: u16, theta: f64) -> Vec<u64> {
    let half = head_dim / 2;
    (0..half)
        .map(|pair| {
            let radians = libm::pow(theta, -f64::from(pair) / f64::from(half));
            (radians / std::f64::consts::TAU * 2f64.powi(64)) as u64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_are_those_of_the_formula_at_any_position() {
        let turn = Turn::new();
        for (pair, frequency) in rotary_frequencies(64, 100_000.0).into_iter().enumerate() {
            for position in [0u32, 1, 77, 4_096, 1_000_003] {
                let radians = f64::from(position) * 100_000f64.powf(-(pair as f64) / 32.0);
                let [cos, sin] = turn.angle(frequency, position).map(|x| f64::from(x) / 32_767.0);
                assert!(
                    (cos - radians.cos()).abs() < 2e-3 && (sin - radians.sin()).abs() < 2e-3,
                    "{pair} at {position}"
                );
            }
        }
    }

    #[test]
    fn the_table_is_pinned() {
        let turn = Turn::new();
        let sum = turn.0.iter().enumerate().fold(0u64, |sum, (at, angle)| {
            sum.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(at as u64 ^ (angle[0] as u16 as u64) << 16 ^ angle[1] as u16 as u64)
        });
        assert_eq!(sum, 0x2b61_3bea_bddf_14d0, "frames of other machines would not be read");
    }
}
