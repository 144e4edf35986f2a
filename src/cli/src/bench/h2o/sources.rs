//! Sources of the texts of the benchmark and of the calibration, paragraph by paragraph.
//!
//! The two have nothing in common: figures of texts for which a model was calibrated would say little about other texts.

use crate::bench::measure::Numbers;

/// Kinds of text. Prose and code are the project's own documents and source; diary and talk come from a seeded generator, stories from that of
/// the model `small-world`, by other seeds than its training.
pub const KINDS: [&str; 5] = ["prose", "code", "diary", "talk", "stories"];

/// Purpose of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Measures what is lost.
    Bench,
    /// Finds the heads that keep every token.
    Calibration,
}

const PROSE: [&[&str]; 2] = [
    &[
        include_str!("../../../../../ARCHITECTURE.md"),
        include_str!("../../../../../docs/design/walks.md"),
        include_str!("../../../../../docs/design/states.md"),
        include_str!("../../../../../docs/design/invariants.md"),
        include_str!("../../../../../docs/design/decisions.md"),
        include_str!("../../../../../CONTRIBUTING.md"),
        include_str!("../../../../../docs/replay.md"),
        include_str!("../../../../../docs/capacity.md"),
        include_str!("../../../../../docs/workers.md"),
    ],
    &[
        include_str!("../../../../../README.md"),
        include_str!("../../../../../docs/scenarios.md"),
        include_str!("../../../../../docs/fidelity.md"),
        include_str!("../../../../../docs/traces.md"),
    ],
];
const CODE: [&[&str]; 2] = [
    &[
        include_str!("../../../../core/src/tree.rs"),
        include_str!("../../../../core/src/waiting.rs"),
        include_str!("../../../../core/src/sequence.rs"),
        include_str!("../../../../core/src/scheduler.rs"),
        include_str!("../../../../core/src/kv.rs"),
        include_str!("../../../../core/src/admission.rs"),
    ],
    &[
        include_str!("../../../../text/src/tokenizer.rs"),
        include_str!("../../../../text/src/detokenizer.rs"),
        include_str!("../../../../text/src/stop_strings.rs"),
        include_str!("../../../../store/src/places.rs"),
        include_str!("../../../../store/src/copying.rs"),
        include_str!("../../../../store/src/store.rs"),
    ],
];
const STORIES: [&[&str]; 2] = [&[include_str!("stories.txt")], &[include_str!("calibration-stories.txt")]];

/// Returns `true` if a kind of text is written down, so that all its texts are parts of one. Texts of the other kinds have no end, and
/// each has its seed.
pub fn is_written(kind: &str) -> bool {
    !matches!(kind, "diary" | "talk")
}

/// Returns the paragraphs of a kind of text, each with a line end: those of text `number`, or of all texts if the kind [is written
/// down](is_written).
pub fn paragraphs(kind: &str, purpose: Purpose, number: u64) -> Box<dyn Iterator<Item = String>> {
    let at = purpose as usize;
    let lines =
        |texts: &'static [&'static str]| texts.iter().flat_map(|text| text.lines()).map(|line| format!("{line}\n"));
    let people = &PEOPLE[at];
    let seed = 0x7465_7874 ^ number ^ if purpose == Purpose::Calibration { 1 << 32 } else { 0 };
    let mut numbers = Numbers::from_seed(seed);
    match kind {
        "prose" => Box::new(lines(PROSE[at])),
        "code" => Box::new(lines(CODE[at])),
        "stories" => Box::new(lines(STORIES[at])),
        "diary" => Box::new((1..).map(move |day| diary(day, people, &mut numbers))),
        _ => Box::new((0..).map(move |_| talk(people, &mut numbers))),
    }
}

const PEOPLE: [[&str; 8]; 2] = [
    ["Anna", "Peter", "Maria", "Tom", "Clara", "John", "Eva", "Paul"],
    ["Laura", "Henry", "Sofia", "Max", "Emma", "Oscar", "Ida", "Felix"],
];
const PLACES: [&str; 8] = [
    "the old mill",
    "the harbour",
    "the railway station",
    "the village school",
    "the market square",
    "the library",
    "the lighthouse",
    "the farm behind the hill",
];
const WEATHER: [&str; 6] = [
    "It rained all morning",
    "The sun came out early",
    "A cold wind blew from the north",
    "Fog lay over the fields",
    "The night had been clear and frosty",
    "Clouds gathered over the mountains",
];
const DEEDS: [&str; 10] = [
    "repaired the roof of the shed",
    "carried two sacks of flour across the bridge",
    "wrote a long letter to a friend in the city",
    "painted the fence beside the road",
    "looked for the lost dog until noon",
    "baked bread for the whole street",
    "sold three baskets of apples",
    "read aloud from a book about distant countries",
    "counted the boats that came home",
    "planted beans and potatoes in the garden",
];
const ENDS: [&str; 6] = [
    "In the evening everybody was tired but content.",
    "Nobody spoke of it again that week.",
    "We agreed to try it once more tomorrow.",
    "That was more than any of us had expected.",
    "Later there was soup, and music until midnight.",
    "I shall not forget the look on their faces.",
];
const QUESTIONS: [&str; 6] = [
    "Have you seen the new clock at",
    "When did you last walk to",
    "Do you remember who owned",
    "What happened yesterday at",
    "Is it true that they want to sell",
    "How long does it take to get to",
];
const ANSWERS: [&str; 6] = [
    "I was there on Monday, and nothing had changed.",
    "My brother knows more about that than I do.",
    "They say it will be finished before the winter.",
    "It is not as far as you think, if you take the path along the river.",
    "I only heard the noise and saw people running.",
    "Ask the baker, he keeps a list of everything.",
];

fn pick<'a>(from: &[&'a str], numbers: &mut Numbers) -> &'a str {
    from[numbers.below(from.len())]
}

/// Returns a day of a diary.
fn diary(day: u32, people: &[&'static str], numbers: &mut Numbers) -> String {
    let mut pick = |from: &[&'static str]| pick(from, numbers);
    let (who, other) = (pick(people), pick(people));
    format!(
        "Day {day}. {}, and {who} {} near {}. {other} {}, and afterwards {}. {}\n",
        pick(&WEATHER),
        pick(&DEEDS),
        pick(&PLACES),
        pick(&DEEDS),
        pick(&DEEDS),
        pick(&ENDS)
    )
}

/// Returns a question and an answer.
fn talk(people: &[&'static str], numbers: &mut Numbers) -> String {
    let mut pick = |from: &[&'static str]| pick(from, numbers);
    let (who, other) = (pick(people), pick(people));
    format!("{who}: {} {}, {other}?\n{other}: {} {}\n", pick(&QUESTIONS), pick(&PLACES), pick(&ANSWERS), pick(&ENDS))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Paragraphs in a row, and letters in them: single lines such as a bracket stand in all code.
    const ROW: usize = 4;
    const LETTERS: usize = 40;

    fn rows(kind: &str, purpose: Purpose) -> HashSet<String> {
        let numbers = 0..if is_written(kind) { 1 } else { 12 };
        let rows = numbers.flat_map(|number| {
            let of_text: Vec<String> = paragraphs(kind, purpose, number).take(20_000).collect();
            let n = if is_written(kind) { ROW } else { 1 };
            of_text.windows(n).map(<[String]>::concat).collect::<Vec<_>>()
        });
        rows.filter(|row| row.chars().filter(|letter| letter.is_alphabetic()).count() >= LETTERS).collect()
    }

    #[test]
    fn no_paragraph_of_the_benchmark_is_in_a_text_for_the_calibration() {
        for kind in KINDS {
            let (bench, calibration) = (rows(kind, Purpose::Bench), rows(kind, Purpose::Calibration));
            assert!(bench.len() > 500 && calibration.len() > 300, "{kind}: {} {}", bench.len(), calibration.len());
            let both: Vec<&String> = bench.intersection(&calibration).collect();
            assert_eq!(both, [""; 0], "{kind}");
        }
    }
}
