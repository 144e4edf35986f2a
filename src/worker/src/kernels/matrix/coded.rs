//! Products of quantised panels with rounded rows, see [`crate::kernels::rounded`].
//!
//! The codes of a panel are words, see `nibbles.rs` and `codes.rs`. A *span* is the inputs with a common scale; its products with
//! a row are summed as integers, exactly, and the sum is scaled once for each output. An output adds its spans in ascending order,
//! one fused addition for the scale and one for the offset: the order depends on neither the other rows nor the machine.

use std::array::from_fn;
use std::marker::PhantomData;

use pulp::NullaryFnOnce;

use crate::kernels::kernel::{LANES, Sums, vectorised};
#[cfg(target_arch = "x86_64")]
use crate::kernels::matrix::vnni::Vnni;
use crate::kernels::matrix::words::{Plain, Words};
use crate::kernels::prefetch::Ahead;
use crate::kernels::rounded::{Factors, GROUP, RoundedRows};

/// Inputs of a unit: four words of rows.
const UNIT: usize = 8;
const UNIT_PAIRS: usize = UNIT / 2;

/// Rows for which words are unpacked in registers, once for each [`Words::ROWS`]; for more, into memory, once for all.
const FEW: usize = 8;

/// Sums of a span for few rows: a sum is added to once in several cycles.
const CHAINS: usize = UNIT_PAIRS;

/// Units of a panel unpacked at a time for many rows: 8 KiB, which stay in the first-level cache.
const DEPTH: usize = 256 / UNIT;

/// Words to be requested from memory before their use.
const AHEAD: usize = 1024;

/// Four words of each of sixteen outputs: the weights of a unit.
type Unit<W> = [<W as Words>::Vector; UNIT_PAIRS];

/// Coding of weights as words.
pub(super) trait Code {
    /// Words of a unit for each output.
    const WORDS: usize;

    /// Unpacks a unit from words `[word][lane]`.
    fn unpack<W: Words>(vectors: W, words: &[u32]) -> [W::Vector; UNIT_PAIRS];
}

/// Codes of 4 bits, not negative: element 0 in bits 0 to 3, element 1 in bits 16 to 19, element 2 in bits 4 to 7 and so on.
pub(super) struct Nibble;

impl Code for Nibble {
    const WORDS: usize = 1;

    #[inline(always)]
    fn unpack<W: Words>(vectors: W, words: &[u32]) -> [W::Vector; UNIT_PAIRS] {
        let words = vectors.load(words.first_chunk().expect("sixteen lanes"));
        [
            vectors.nibbles::<0>(words),
            vectors.nibbles::<4>(words),
            vectors.nibbles::<8>(words),
            vectors.nibbles::<12>(words),
        ]
    }
}

/// Codes of 8 bits with a sign: elements 0, 2, 1, 3 in this order.
pub(super) struct Byte;

impl Code for Byte {
    const WORDS: usize = 2;

    #[inline(always)]
    fn unpack<W: Words>(vectors: W, words: &[u32]) -> [W::Vector; UNIT_PAIRS] {
        let first = vectors.bytes(vectors.load(words.first_chunk().expect("sixteen lanes")));
        let second = vectors.bytes(vectors.load(words[LANES..].first_chunk().expect("sixteen lanes")));
        [first[0], first[1], second[0], second[1]]
    }
}

/// Scales and offsets of the outputs of a span.
#[derive(Clone, Copy)]
pub(super) struct SpanFactors {
    pub(super) scales: Sums,
    pub(super) offsets: Sums,
}

/// The words of a panel and those behind them, with the factors of its spans by number.
pub(super) struct CodedPanel<'a, F> {
    words: &'a [u32],
    factors: F,
}

impl<'a, F: Fn(usize) -> SpanFactors> CodedPanel<'a, F> {
    /// Takes words, beginning with those of the panel, and the factors of a span of the panel by its number.
    pub(super) fn new(words: &'a [u32], factors: F) -> Self {
        Self { words, factors }
    }

    /// Computes the products with every row into `sums`. A span is `SPAN` units; without `OFFSETS` offsets are zero.
    pub(super) fn times_rows<C: Code, const SPAN: usize, const OFFSETS: bool>(
        &self,
        x: RoundedRows<'_>,
        sums: &mut [Sums],
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(vectors) = Vnni::try_new() {
            return vectors.vectorize(Product::<_, C, _, SPAN, OFFSETS>::new(self, vectors, x, sums));
        } else if let Some(vectors) = pulp::x86::V3::try_new() {
            return vectors.vectorize(Product::<_, C, _, SPAN, OFFSETS>::new(self, vectors, x, sums));
        }
        vectorised(
            #[inline(always)]
            || self.times_rows_with::<_, C, SPAN, OFFSETS>(Plain, x, sums),
        );
    }

    #[inline(always)]
    pub(super) fn times_rows_with<W: Words, C: Code, const SPAN: usize, const OFFSETS: bool>(
        &self,
        vectors: W,
        x: RoundedRows<'_>,
        sums: &mut [Sums],
    ) {
        sums.fill([0.0; LANES]);
        if sums.len() > FEW {
            return self.times_tiles::<W, C, SPAN, OFFSETS>(vectors, x, sums);
        }
        let mut row = 0;
        while row < sums.len() {
            let rest = &mut sums[row..];
            row += match rest.len() {
                8.. if W::ROWS == 8 => self.times_few::<W, C, 8, SPAN, OFFSETS>(vectors, x, row, rest),
                4.. => self.times_few::<W, C, 4, SPAN, OFFSETS>(vectors, x, row, rest),
                3 => self.times_few::<W, C, 3, SPAN, OFFSETS>(vectors, x, row, rest),
                2 => self.times_few::<W, C, 2, SPAN, OFFSETS>(vectors, x, row, rest),
                _ => self.times_few::<W, C, 1, SPAN, OFFSETS>(vectors, x, row, rest),
            };
        }
    }

    /// Computes the products with `R` rows, the first ones of `sums`: every word is unpacked in registers, once for all of them. Returns `R`.
    #[inline(always)]
    fn times_few<W: Words, C: Code, const R: usize, const SPAN: usize, const OFFSETS: bool>(
        &self,
        vectors: W,
        x: RoundedRows<'_>,
        row: usize,
        sums: &mut [Sums],
    ) -> usize {
        let step = SPAN * C::WORDS * LANES;
        let rows: [&[[u32; UNIT_PAIRS]]; R] = from_fn(|r| x.pairs(row + r).as_chunks().0);
        let groups: [&[Factors]; R] = from_fn(|r| x.factors(row + r));
        let mut totals = [[0.0; LANES]; R];
        for span in 0..rows[0].len() / SPAN {
            let words = &self.words[span * step..];
            Ahead::new(words.get(AHEAD..AHEAD + step).unwrap_or_default(), 1).step();
            let x: [&[[u32; UNIT_PAIRS]; SPAN]; R] =
                from_fn(|r| rows[r][span * SPAN..].first_chunk().expect("whole spans"));
            let mut products = [[vectors.zero(); CHAINS]; R];
            for unit in 0..SPAN {
                let weights = C::unpack(vectors, &words[unit * C::WORDS * LANES..][..C::WORDS * LANES]);
                for pair in 0..UNIT_PAIRS {
                    let chain = if R <= 2 { pair } else { 0 };
                    for r in 0..R {
                        products[r][chain] = vectors.add_products(products[r][chain], weights[pair], x[r][unit][pair]);
                    }
                }
            }
            let factors = (self.factors)(span);
            for (r, [a, b, c, d]) in products.into_iter().enumerate() {
                let sum = if R <= 2 { vectors.add(vectors.add(a, b), vectors.add(c, d)) } else { a };
                add_span::<W, OFFSETS>(vectors, &mut totals[r], sum, &factors, groups[r][span * SPAN * UNIT / GROUP]);
            }
        }
        sums[..R].copy_from_slice(&totals);
        R
    }

    /// Computes the products with many rows: a part of the panel is unpacked once for all of them.
    #[inline(always)]
    fn times_tiles<W: Words, C: Code, const SPAN: usize, const OFFSETS: bool>(
        &self,
        vectors: W,
        x: RoundedRows<'_>,
        sums: &mut [Sums],
    ) {
        let units = x.pairs(0).len() / UNIT_PAIRS;
        let mut weights: [Unit<W>; DEPTH] = [[vectors.zero(); UNIT_PAIRS]; DEPTH];
        let mut factors = [SpanFactors { scales: [0.0; LANES], offsets: [0.0; LANES] }; DEPTH];
        for from in (0..units).step_by(DEPTH) {
            let depth = DEPTH.min(units - from);
            let words = self.words[from * C::WORDS * LANES..].chunks_exact(C::WORDS * LANES);
            for (unit, words) in weights[..depth].iter_mut().zip(words) {
                *unit = C::unpack(vectors, words);
            }
            for (span, factors) in factors[..depth / SPAN].iter_mut().enumerate() {
                *factors = (self.factors)(from / SPAN + span);
            }
            let part = Part { from, weights: &weights[..depth], factors: &factors[..depth / SPAN] };
            let mut row = 0;
            while row < sums.len() {
                row += match sums.len() - row {
                    8.. if W::ROWS == 8 => part.add_tile::<8, SPAN, OFFSETS>(vectors, x, row, sums),
                    4.. => part.add_tile::<4, SPAN, OFFSETS>(vectors, x, row, sums),
                    3 => part.add_tile::<3, SPAN, OFFSETS>(vectors, x, row, sums),
                    2 => part.add_tile::<2, SPAN, OFFSETS>(vectors, x, row, sums),
                    _ => part.add_tile::<1, SPAN, OFFSETS>(vectors, x, row, sums),
                };
            }
        }
    }
}

/// The products of a panel with rows, to be computed with the vectors of the machine: a closure would not be compiled for them.
struct Product<'a, W, C, F, const SPAN: usize, const OFFSETS: bool> {
    panel: &'a CodedPanel<'a, F>,
    vectors: W,
    x: RoundedRows<'a>,
    sums: &'a mut [Sums],
    code: PhantomData<C>,
}

impl<'a, W, C, F, const SPAN: usize, const OFFSETS: bool> Product<'a, W, C, F, SPAN, OFFSETS> {
    fn new(panel: &'a CodedPanel<'a, F>, vectors: W, x: RoundedRows<'a>, sums: &'a mut [Sums]) -> Self {
        Self { panel, vectors, x, sums, code: PhantomData }
    }
}

impl<W: Words, C: Code, F: Fn(usize) -> SpanFactors, const SPAN: usize, const OFFSETS: bool> NullaryFnOnce
    for Product<'_, W, C, F, SPAN, OFFSETS>
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.panel.times_rows_with::<W, C, SPAN, OFFSETS>(self.vectors, self.x, self.sums);
    }
}

/// Some units of a panel, unpacked, and the factors of their spans.
struct Part<'a, W: Words> {
    /// First unit.
    from: usize,
    weights: &'a [Unit<W>],
    factors: &'a [SpanFactors],
}

impl<W: Words> Part<'_, W> {
    /// Adds the products with `R` rows. Returns `R`.
    #[inline(always)]
    fn add_tile<const R: usize, const SPAN: usize, const OFFSETS: bool>(
        &self,
        vectors: W,
        x: RoundedRows<'_>,
        row: usize,
        sums: &mut [Sums],
    ) -> usize {
        let pairs: [&[u32]; R] = from_fn(|r| &x.pairs(row + r)[self.from * UNIT_PAIRS..]);
        let groups: [&[Factors]; R] = from_fn(|r| &x.factors(row + r)[self.from * UNIT / GROUP..]);
        let mut totals: [Sums; R] = from_fn(|r| sums[row + r]);
        for (span, (units, factors)) in self.weights.chunks_exact(SPAN).zip(self.factors).enumerate() {
            let mut products = [vectors.zero(); R];
            for (unit, weights) in units.iter().enumerate() {
                let at = (span * SPAN + unit) * UNIT_PAIRS;
                // References of a constant length are checked once for the unit.
                let x: [&[u32; UNIT_PAIRS]; R] = from_fn(|r| pairs[r][at..].first_chunk().expect("whole units"));
                for pair in 0..UNIT_PAIRS {
                    for r in 0..R {
                        products[r] = vectors.add_products(products[r], weights[pair], x[r][pair]);
                    }
                }
            }
            for (r, products) in products.into_iter().enumerate() {
                let group = groups[r][span * SPAN * UNIT / GROUP];
                add_span::<W, OFFSETS>(vectors, &mut totals[r], products, factors, group);
            }
        }
        sums[row..row + R].copy_from_slice(&totals);
        R
    }
}

/// Scales the products of a span and adds them to the sums of a row.
#[inline(always)]
fn add_span<W: Words, const OFFSETS: bool>(
    vectors: W,
    sums: &mut Sums,
    products: W::Vector,
    factors: &SpanFactors,
    group: Factors,
) {
    let mut total = *sums;
    for (lane, product) in vectors.values(products).iter().enumerate() {
        total[lane] = product.mul_add(factors.scales[lane] * group.scale, total[lane]);
        if OFFSETS {
            total[lane] = factors.offsets[lane].mul_add(group.sum, total[lane]);
        }
    }
    *sums = total;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::noise::Noise;
    use crate::kernels::rounded::{Rounded, Rounding};

    /// Products of two panels of random words with some rows, as bits.
    fn products<W: Words, C: Code, const SPAN: usize>(vectors: W, rows: usize) -> Vec<[u32; LANES]> {
        let (inputs, mut noise) = (19 * 32, Noise::new(5));
        let x: Vec<f32> = (0..rows * inputs).map(|_| noise.uniform(2.0)).collect();
        let mut rounded = Rounded::default();
        rounded.parts(&x, inputs, rows).iter_mut().for_each(Rounding::run);
        let n_words = inputs / UNIT * C::WORDS * LANES;
        let words: Vec<u32> = (0..n_words).map(|_| (noise.uniform(1.0) * 2e9) as i32 as u32).collect();
        let factors: Vec<SpanFactors> = (0..inputs / UNIT)
            .map(|_| SpanFactors { scales: from_fn(|_| noise.uniform(1.0)), offsets: from_fn(|_| noise.uniform(1.0)) })
            .collect();
        let panel = CodedPanel::new(&words, |span| factors[span]);
        let mut sums = vec![[f32::NAN; LANES]; rows];
        panel.times_rows_with::<W, C, SPAN, true>(vectors, rounded.rows(inputs, 0..rows), &mut sums);
        sums.into_iter().map(|sums| sums.map(f32::to_bits)).collect()
    }

    /// Products with vectors of the machine, to be compared with those of plain arrays.
    #[cfg(target_arch = "x86_64")]
    struct Compared<W>(W, usize);

    #[cfg(target_arch = "x86_64")]
    impl<W: Words> NullaryFnOnce for Compared<W> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Self(vectors, rows) = self;
            assert_eq!(products::<_, Nibble, 4>(vectors, rows), products::<_, Nibble, 4>(Plain, rows));
            assert_eq!(products::<_, Byte, 4>(vectors, rows), products::<_, Byte, 4>(Plain, rows));
            assert_eq!(products::<_, Byte, 2>(vectors, rows), products::<_, Byte, 2>(Plain, rows));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_vectors_of_the_machine_give_the_bits_of_plain_arrays() {
        for rows in 1..=21 {
            pulp::x86::V3::try_new().inspect(|avx2| avx2.vectorize(Compared(*avx2, rows)));
            Vnni::try_new().inspect(|vnni| vnni.vectorize(Compared(*vnni, rows)));
        }
    }
}
