//! Reproducible pseudo-random numbers: each is a hash of its purpose and subject, so every replay draws the same numbers.

/// Purpose of a draw. Draws for different purposes are independent.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Tenant of a request.
    Tenant = 1,
    /// Acceptance of a draft token.
    Draft = 2,
    /// Candidate replicas for a request.
    Route = 16,
}

/// Mixes the bits of `value` with SplitMix64's finaliser: every input bit flips half the output bits on average.
pub const fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draws a number uniformly from `[0, 1)` for a request and a position.
pub fn unit(purpose: Purpose, request: u64, position: u64) -> f64 {
    let hash = mix(mix(mix(purpose as u64) ^ request) ^ position);
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_apart_from_each_other() {
        for purpose in [Purpose::Tenant, Purpose::Draft, Purpose::Route] {
            let mut counts = [0u32; 10];
            for request in 0..1_000 {
                for position in 0..100 {
                    let x = unit(purpose, request, position);
                    assert!((0.0..1.0).contains(&x));
                    counts[(x * 10.0) as usize] += 1;
                }
            }
            // Ten thousand expected in each, 95 standard deviation.
            assert!(counts.iter().all(|n| n.abs_diff(10_000) < 500), "{counts:?}");
        }
        assert_ne!(unit(Purpose::Tenant, 1, 2), unit(Purpose::Tenant, 2, 1));
        assert_ne!(unit(Purpose::Tenant, 1, 2), unit(Purpose::Draft, 1, 2));
        // Reports depend on the draws, so they must not change between versions unnoticed.
        assert_eq!((unit(Purpose::Tenant, 7, 0) * 1e6) as u64, 967_429);
    }
}
