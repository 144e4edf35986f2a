//! Damage of bytes, drawn from a generator.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// Maximum number of bytes of a piece that is lost, repeated or foreign.
const PIECE_BYTES: usize = 40;

/// Returns bytes with one to three faults: flipped bits, an end too early, and pieces lost, repeated or foreign.
pub fn damaged(bytes: &[u8], rng: &mut Pcg64Mcg) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.random_range(1..=3) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = rng.random_range(0..bytes.len());
        let end = bytes.len().min(at + rng.random_range(1..=PIECE_BYTES));
        match rng.random_range(0..8) {
            0..4 => bytes[at] ^= 1 << rng.random_range(0..8),
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..end)),
            6 => {
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            _ => bytes[at..end].fill_with(|| rng.random()),
        }
    }
    bytes
}
