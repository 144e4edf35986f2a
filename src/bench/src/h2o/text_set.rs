//! Texts of the benchmark. They are copies, which do not change with the project: figures of two versions are of the same texts.

use trunkline::h2o::sources::TextSet;

/// Texts of every kind.
pub static BENCH: TextSet = TextSet {
    prose: include_str!("../../texts/prose.txt"),
    code: include_str!("../../texts/code.txt"),
    stories: include_str!("../../texts/stories.txt"),
    people: ["Anna", "Peter", "Maria", "Tom", "Clara", "John", "Eva", "Paul"],
    seed: 0,
};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use trunkline::h2o::sources::{CALIBRATION, KINDS, Source};

    use super::*;

    /// Paragraphs in a row, and letters in them: single lines such as a bracket stand in all code.
    const ROW: usize = 4;
    const LETTERS: usize = 40;

    fn rows(kind: &str, set: &'static TextSet) -> HashSet<String> {
        let source = Source::of_kind(kind);
        let numbers = 0..if source.is_written() { 1 } else { 12 };
        let rows = numbers.flat_map(|number| {
            let of_text: Vec<String> = source.paragraphs(set, number).take(20_000).collect();
            let n = if source.is_written() { ROW } else { 1 };
            of_text.windows(n).map(<[String]>::concat).collect::<Vec<_>>()
        });
        rows.filter(|row| row.chars().filter(|letter| letter.is_alphabetic()).count() >= LETTERS).collect()
    }

    #[test]
    fn no_paragraph_of_the_benchmark_is_in_a_text_for_the_calibration() {
        for kind in KINDS {
            let (bench, calibration) = (rows(kind, &BENCH), rows(kind, &CALIBRATION));
            assert!(bench.len() > 500 && calibration.len() > 300, "{kind}: {} {}", bench.len(), calibration.len());
            let both: Vec<&String> = bench.intersection(&calibration).collect();
            assert_eq!(both, [""; 0], "{kind}");
        }
    }
}
