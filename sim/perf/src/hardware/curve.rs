//! Time of a number of tokens or sequences, in straight pieces.
//!
//! Devices are not linear: a step of few tokens takes as long as reading the weights, an engine pads batches to the sizes that it has
//! graphs for, and kernels work on tiles of rows.

/// Piece of a [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// Number at which the piece begins.
    pub from: u64,
    /// Time of each one beyond, up to the next piece, seconds.
    pub each_s: f64,
}

/// Time of a number of tokens or sequences: pieces in rising order, the first of which begins at 0. The last one goes on without end. No pieces
/// take no time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Curve(pub &'static [Piece]);

impl Curve {
    /// Returns a curve of these pieces, which stay in memory for the life of the program.
    pub fn new(pieces: Vec<Piece>) -> Self {
        Self(pieces.leak())
    }

    /// Returns the time of `n`, seconds.
    pub fn time_s(&self, n: u64) -> f64 {
        let mut time_s = 0.0;
        for (at, piece) in self.0.iter().enumerate() {
            if n <= piece.from {
                break;
            }
            let end = self.0.get(at + 1).map_or(n, |next| n.min(next.from));
            time_s += (end - piece.from) as f64 * piece.each_s;
        }
        time_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_counts_for_what_is_beyond_its_beginning() {
        let of = |from, each_s| Piece { from, each_s };
        let curve = Curve::new(vec![of(0, 0.5), of(4, 2.0), of(8, 1.0)]);
        assert_eq!([0, 3, 4, 7, 8, 10].map(|n| curve.time_s(n)), [0.0, 1.5, 2.0, 8.0, 10.0, 12.0]);
        assert_eq!(Curve::default().time_s(9), 0.0);
    }
}
