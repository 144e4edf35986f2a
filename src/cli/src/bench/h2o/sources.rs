//! Sources of the texts of the benchmark and of the calibration, paragraph by paragraph: kinds of text of the project, and files of the user's.
//!
//! The project's texts for the two have nothing in common: figures of texts for which a model was calibrated would say little about other texts.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use trunkline_quote::quoted;

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

/// Longest piece of a line of a file, bytes: facts stand between pieces, so longer ones would move them, at last behind the prompt.
const PIECE: usize = 200;

/// Source of texts: one of [`KINDS`], or a file of the user's.
#[derive(Clone, Debug)]
pub struct Source {
    /// The kind, or the name of the file without its extension.
    pub name: String,
    /// Content of the file.
    file: Option<String>,
}

impl Source {
    /// Returns the source of one of [`KINDS`].
    pub fn of_kind(kind: &str) -> Self {
        Self { name: kind.to_owned(), file: None }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, is no UTF-8, or is empty.
    pub fn of_file(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the text {}", path.display()))?;
        ensure!(!text.trim().is_empty(), "the text {} is empty", path.display());
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, file: Some(text) })
    }

    /// Returns the sources of a run: `kinds`, or all of [`KINDS`] if neither a kind nor a file is named, then the files.
    ///
    /// # Errors
    /// If a file cannot be read, or two sources have one name.
    pub fn all(kinds: &[String], files: &[impl AsRef<Path>]) -> anyhow::Result<Vec<Self>> {
        let mut sources: Vec<Self> = if kinds.is_empty() && files.is_empty() {
            KINDS.map(Self::of_kind).to_vec()
        } else {
            kinds.iter().map(|kind| Self::of_kind(kind)).collect()
        };
        for path in files {
            let source = Self::of_file(path.as_ref())?;
            let name = &source.name;
            ensure!(
                sources.iter().all(|other| other.name != *name),
                "two texts have the name {name}, the second in {}; rename the file",
                path.as_ref().display(),
                name = quoted(name)
            );
            sources.push(source);
        }
        Ok(sources)
    }

    /// Returns `true` if all texts are parts of one that is written down. Texts of other sources have no end, and each has its seed.
    pub fn is_written(&self) -> bool {
        !matches!(self.name.as_str(), "diary" | "talk") || self.file.is_some()
    }

    /// Returns the paragraphs, each with a line end: those of text `number`, or of all texts if the source [is written
    /// down](Self::is_written). A file has the same paragraphs for either purpose, in several [`pieces`] where its lines are long.
    pub fn paragraphs(&self, purpose: Purpose, number: u64) -> Box<dyn Iterator<Item = String> + '_> {
        match &self.file {
            Some(text) => Box::new(text.lines().flat_map(pieces)),
            None => paragraphs(&self.name, purpose, number),
        }
    }
}

/// Returns a line with its end, in pieces of at most [`PIECE`] bytes: up to the last end of a sentence, else the last blank, else anywhere.
fn pieces(line: &str) -> impl Iterator<Item = String> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?;
        if text.len() <= PIECE {
            rest = None;
            return Some(format!("{text}\n"));
        }
        let most = &text[..text.floor_char_boundary(PIECE)];
        let ends = [". ", "! ", "? ", "; "].iter().filter_map(|end| most.rfind(end)).max().map(|at| at + 2);
        let at = ends.or_else(|| most.rfind(' ').map(|at| at + 1)).unwrap_or(most.len());
        rest = Some(&text[at..]);
        Some(text[..at].to_owned())
    })
}

fn paragraphs(kind: &str, purpose: Purpose, number: u64) -> Box<dyn Iterator<Item = String>> {
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
    use std::path::PathBuf;

    use super::*;

    /// Paragraphs in a row, and letters in them: single lines such as a bracket stand in all code.
    const ROW: usize = 4;
    const LETTERS: usize = 40;

    fn rows(kind: &str, purpose: Purpose) -> HashSet<String> {
        let source = Source::of_kind(kind);
        let numbers = 0..if source.is_written() { 1 } else { 12 };
        let rows = numbers.flat_map(|number| {
            let of_text: Vec<String> = source.paragraphs(purpose, number).take(20_000).collect();
            let n = if source.is_written() { ROW } else { 1 };
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

    #[test]
    fn long_lines_of_a_file_come_in_pieces_that_are_the_line() {
        let sentence = "All is well, and the boxes have arrived. ";
        let wide = "\u{6c34}".repeat(300);
        for line in [sentence.repeat(40), "word ".repeat(400), "x".repeat(999), wide, "a".repeat(PIECE), String::new()]
        {
            let all: Vec<String> = pieces(&line).collect();
            assert_eq!(all.concat(), format!("{line}\n"));
            assert!(all.iter().all(|piece| piece.len() <= PIECE + 1), "{all:?}");
        }
        let of = |line: &str| pieces(line).next().unwrap();
        assert_eq!(of(&sentence.repeat(40)), sentence.repeat(4), "whole sentences");
        assert_eq!(of(&"word ".repeat(400)), "word ".repeat(40), "whole words");
    }

    #[test]
    fn files_are_sources_beside_kinds_or_alone_and_names_differ() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let names = |kinds: &[&str], files: &[&PathBuf]| -> Result<Vec<String>, String> {
            let kinds: Vec<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
            let sources = Source::all(&kinds, files).map_err(|error| error.to_string())?;
            Ok(sources.into_iter().map(|source| source.name).collect())
        };
        let mine = file("my letters.txt", "Dear John,\n\nall is well.");
        assert_eq!(names(&[], &[]), Ok(KINDS.map(str::to_owned).to_vec()));
        assert_eq!(names(&[], &[&mine]), Ok(vec!["my letters".to_owned()]));
        assert_eq!(names(&["code"], &[&mine]), Ok(vec!["code".to_owned(), "my letters".to_owned()]));
        let source = Source::of_file(&mine).unwrap();
        for purpose in [Purpose::Bench, Purpose::Calibration] {
            let all: Vec<String> = source.paragraphs(purpose, 3).collect();
            assert_eq!(all, ["Dear John,\n", "\n", "all is well.\n"]);
        }
        assert!(Source::of_file(&file("talk.txt", "Hello")).unwrap().is_written());
        let fault = names(&["talk"], &[&file("talk.txt", "Hello")]).unwrap_err();
        assert!(fault.starts_with("two texts have the name 'talk', the second in "), "{fault}");
        let fault = names(&[], &[&file("empty.txt", " \n")]).unwrap_err();
        assert!(fault.ends_with("empty.txt is empty"), "{fault}");
        let fault = names(&[], &[&folder.path().join("none.txt")]).unwrap_err();
        assert!(fault.starts_with("cannot read the text "), "{fault}");
    }
}
