//! Tables follow from the formula, and integers come back from words.

use super::*;
use crate::huffman;

/// Points at which means and deviations of a context are taken.
const POINTS: usize = 8;

fn logistic(z: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-z * std::f64::consts::PI / 3f64.sqrt()))
}

/// Returns the lengths of the codes of a context. Lengths are in cells.
fn lengths(integers: Integers, context: usize) -> Vec<u8> {
    let n = 1usize << integers.symbol_bits;
    // Centres of the cells are numbers for Q4_0, and half a number below for Q8_0.
    let (first, range, peak) = match integers.dtype {
        Dtype::Q8_0 => (-16.5625, 1.0, 0),
        _ => (-7.5, 0.5, 8),
    };
    let cell = |at: usize| if integers.dtype == Dtype::Q8_0 { at } else { (at + 9) % n };
    let (class, bucket) = (context / BUCKETS, context % BUCKETS);
    let points = || (0..POINTS).map(|at| (at as f64 + 0.5) / POINTS as f64);
    let mut probabilities = vec![0.0; n];
    for mean in points().map(|point| (bucket as f64 + point) * range) {
        for (a, b) in points().flat_map(|a| points().map(move |b| (a, b))) {
            // Half octaves of the deviation less those of the scale: two numbers of a class, and both rounded down.
            for half_octaves in [2 * class as i32, 2 * class as i32 + 1].map(|own| f64::from(own + lowest(integers))) {
                let deviation = libm::exp2((half_octaves + a - b) / 2.0);
                for at in 0..n {
                    let low = first + at as f64;
                    let below = |x: f64| logistic((x - mean) / deviation);
                    probabilities[cell(at)] += below(low + 1.0) - below(low);
                    if cell(at) == peak {
                        // Integers are modulo 16 or 256: both ends are in one cell.
                        probabilities[peak] += below(first.min(low)) + 1.0 - below(first + n as f64);
                    }
                }
            }
        }
    }
    let total: f64 = probabilities.iter().sum();
    probabilities.iter_mut().for_each(|probability| *probability /= total);
    if class >= 2 {
        // One of 32 elements is the greatest, which makes the scale.
        probabilities[peak] += 1.0 / quant::BLOCK as f64;
    }
    let weight = |probability: &f64| libm::round(probability.max(1.0 / 32_768.0) * 2f64.powi(40)) as u64;
    huffman::lengths(&probabilities.iter().map(weight).collect::<Vec<u64>>())
}

/// Half octaves from a cell to the lower deviation of the first class.
fn lowest(integers: Integers) -> i32 {
    if integers.dtype == Dtype::Q8_0 { integers.class_origin - 6 } else { integers.class_origin }
}

#[test]
fn the_tables_are_those_of_the_formula() {
    for (dtype, name, pinned) in [(Dtype::Q8_0, "q8_0.txt", LENGTHS[0]), (Dtype::Q4_0, "q4_0.txt", LENGTHS[1])] {
        let integers = Integers::of(dtype);
        let line =
            |context| lengths(integers, context).iter().map(|length| format!("{length:x}")).collect::<String>() + "\n";
        let derived: String = (0..BUCKETS * CLASSES).map(line).collect();
        if let Some(folder) = std::env::var_os("TRUNKLINE_WRITE_TABLES") {
            std::fs::write(std::path::Path::new(&folder).join(name), &derived).unwrap();
        }
        assert!(pinned == derived, "{dtype:?}: the tables are not those of the formula");
    }
}

#[test]
fn every_integer_comes_back_from_its_word() {
    for (dtype, all) in [(Dtype::Q8_0, -128..=127i8), (Dtype::Q4_0, -8..=7)] {
        let integers = Integers::of(dtype);
        let bits = integers.symbol_bits + integers.stored.bits;
        for (q, flip) in all.flat_map(|q| [(q, 0), (q, -1)]) {
            let word = integers.word(q.into(), flip);
            let mask = if dtype == Dtype::Q8_0 { 0xff } else { 15 };
            assert!(word < 1 << bits);
            assert_eq!(integers.integer(word, flip) as u8 & mask, q as u8 & mask, "{dtype:?} {q} {flip}");
        }
    }
}

#[test]
fn scales_of_any_bits_are_read_as_floats_or_foretell_nothing() {
    for bits in 0..=u16::MAX {
        let value = f64::from(half::f16::from_bits(bits).to_f32());
        let Some(scale) = Scale::new(bits) else {
            assert!(value == 0.0 || !value.is_finite());
            continue;
        };
        let magnitude = 2f64.powi(scale.exponent + 1) / f64::from(scale.reciprocal);
        assert!((magnitude / value.abs() - 1.0).abs() < 1e-4 && scale.is_negative == (value < 0.0), "{bits:x}");
        let half_octaves = 2.0 * value.abs().log2();
        assert!(
            (f64::from(scale.half_octaves) - half_octaves.floor()).abs()
                <= f64::from(half_octaves.fract().abs() < 0.01 || half_octaves.fract().abs() > 0.99),
            "{bits:x}"
        );
    }
}
