//! Codes of the contexts: constants of the format, derived from a formula and from no data.
//!
//! An element of a channel is taken to be logistic about the predicted mean, with the channel's deviation: the distribution without parameter that
//! comes closest to real keys and values, whose tails are longer than a Gaussian's. Within a context the mean and the logarithm of the
//! deviation are uniform. The test below computes the lengths again and compares them with the tables.

use std::sync::OnceLock;

use crate::contexts::CONTEXTS;
use crate::huffman::{self, LENGTH_MAX};
use crate::shape::Dtype;
use crate::streams::{Codes, Entries, encoder_entry, no_entries};
use crate::values::{ESCAPE, Format};

/// For one and two coded bits of the mantissa: one line of hexadecimal digits for each context: the lengths of the codes of symbols 0, 1, ...
const LENGTHS: [&str; 2] = [include_str!("prior/bf16.txt"), include_str!("prior/f16.txt")];

/// Codes of all contexts for one number of coded bits.
pub(crate) struct Prior {
    /// Entries of an encoder by `context << bits of a symbol | symbol`.
    pub encoder: Box<Codes>,
    /// Entries of a decoder by `context << LENGTH_MAX` and the next [`LENGTH_MAX`] bits: the lane of the symbol, and the length of the code.
    pub decoder: Box<Entries>,
}

impl Prior {
    /// Returns the codes of a type whose elements stand on their own. FP8 has those of FP16, and F32 those of BF16.
    pub(crate) fn of(dtype: Dtype) -> &'static Self {
        static PRIORS: [OnceLock<Prior>; 2] = [OnceLock::new(), OnceLock::new()];
        let format = Format::of(dtype);
        let at = format.coded as usize - 1;
        let make =
            || Self::new(LENGTHS[at], format.symbol_bits(), CONTEXTS, Some(ESCAPE), |symbol| format.lane(symbol));
        PRIORS[at].get_or_init(make)
    }

    /// Reads a table of lengths: a line for each context, a digit for each symbol. Symbols without a code have that of the escape, if there is one. Entries of the
    /// decoder have the `part` of a symbol, of which the lowest six bits MUST be 0.
    ///
    /// # Panics
    /// If the table is malformed.
    pub(crate) fn new(
        lines: &str,
        symbol_bits: u32,
        contexts: usize,
        escape: Option<u16>,
        part: impl Fn(u16) -> u16,
    ) -> Self {
        let mut prior = Self { encoder: no_entries(), decoder: no_entries() };
        assert_eq!(lines.lines().count(), contexts, "tables have a line for each context");
        for (context, line) in lines.lines().enumerate() {
            let digit = |digit: u8| (digit as char).to_digit(16).expect("tables are hexadecimal") as u8;
            let lengths: Vec<u8> = line.bytes().map(digit).collect();
            assert_eq!(lengths.len(), 1 << symbol_bits, "tables have a length for each symbol");
            let codes = huffman::codes(&lengths);
            let encoder = &mut prior.encoder[context << symbol_bits..][..lengths.len()];
            for (symbol, entry) in encoder.iter_mut().enumerate() {
                let escape = escape.map(usize::from).filter(|escape| symbol == *escape || lengths[symbol] == 0);
                let coded = escape.unwrap_or(symbol);
                *entry = encoder_entry(codes[coded], lengths[coded], escape.is_some());
            }
            let entries = &mut prior.decoder[context << LENGTH_MAX..][..1 << LENGTH_MAX];
            assert!(huffman::fill_decoder(&lengths, &part, entries), "tables are complete codes");
        }
        prior
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contexts::{BUCKETS, bucket_bounds};

    /// Points at which means and deviations of a context are taken.
    const POINTS: usize = 8;
    /// Probability below which a symbol is escaped. A code of ten bits costs the other symbols 1.4 / 1024 bits a value, and saves some 50 bits.
    const ESCAPED: f64 = 1.0 / 32_768.0;

    fn logistic(z: f64) -> f64 {
        1.0 / (1.0 + libm::exp(-z * std::f64::consts::PI / 3f64.sqrt()))
    }

    /// Returns the lengths of a context's codes.
    fn lengths(format: Format, context: usize) -> Vec<u8> {
        let (low, high) = bucket_bounds(context % BUCKETS);
        let points = || (0..POINTS).map(|at| (at as f64 + 0.5) / POINTS as f64);
        let mut probabilities = vec![0.0; 1 << format.symbol_bits()];
        for mean in points().map(|point| low + (high - low) * point) {
            for deviation in points().map(|point| libm::exp2((point + (context / BUCKETS) as f64) / 2.0)) {
                for (symbol, probability) in probabilities.iter_mut().enumerate() {
                    let Some((low, high, negative)) = format.bounds(symbol as u8) else { continue };
                    let [low, high] = if negative { [-high, -low] } else { [low, high] };
                    *probability += logistic((high - mean) / deviation) - logistic((low - mean) / deviation);
                }
            }
        }
        let total = (POINTS * POINTS) as f64;
        let mut weights: Vec<u64> = probabilities
            .iter()
            .map(|probability| probability / total)
            .map(|probability| if probability < ESCAPED { 0 } else { libm::round(probability * 2f64.powi(40)) as u64 })
            .collect();
        weights[usize::from(ESCAPE)] = 1 << 20;
        huffman::lengths(&weights)
    }

    #[test]
    fn the_tables_are_those_of_the_formula() {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let format = Format::of(dtype);
            let line = |context| {
                lengths(format, context).iter().map(|length| format!("{length:x}")).collect::<String>() + "\n"
            };
            let derived: String = (0..CONTEXTS).map(line).collect();
            if let Some(folder) = std::env::var_os("TRUNKLINE_WRITE_TABLES") {
                let name = ["bf16.txt", "f16.txt"][usize::from(dtype.number())];
                std::fs::write(std::path::Path::new(&folder).join(name), &derived).unwrap();
            }
            assert!(
                LENGTHS[usize::from(dtype.number())] == derived,
                "{dtype:?}: the tables are not those of the formula"
            );
        }
    }
}
