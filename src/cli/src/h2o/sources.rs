//! Sources of texts, paragraph by paragraph: kinds of text of the project, and files of the user's.
//!
//! A benchmark brings a [`TextSet`] of its own, with no paragraph of [`CALIBRATION`]: figures of texts for which a model was calibrated would say
//! little about other texts.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use trunkline_quote::quoted;

use super::numbers::Numbers;

/// Kinds of text. Prose and code are documents and source of the project, as they once were; diary and talk come from a seeded generator, stories from that of
/// the model `small-world`, by other seeds than its training.
pub const KINDS: [&str; 5] = ["prose", "code", "diary", "talk", "stories"];

/// What the texts of the kinds are made from. No two sets have a paragraph in common.
#[derive(Debug)]
pub struct TextSet {
    /// Documents.
    pub prose: &'static str,
    /// Source code.
    pub code: &'static str,
    /// Stories.
    pub stories: &'static str,
    /// People in diaries and talks.
    pub people: [&'static str; 8],
    /// Seed of diaries and talks.
    pub seed: u64,
}

/// Texts by which heads are chosen that keep every token. They are copies, which do not change with the project.
pub static CALIBRATION: TextSet = TextSet {
    prose: include_str!("../../texts/prose.txt"),
    code: include_str!("../../texts/code.txt"),
    stories: include_str!("../../texts/stories.txt"),
    people: ["Laura", "Henry", "Sofia", "Max", "Emma", "Oscar", "Ida", "Felix"],
    seed: 1 << 32,
};

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
    /// down](Self::is_written). A file has the same paragraphs in every set, in several pieces where its lines are long.
    pub fn paragraphs(&self, set: &'static TextSet, number: u64) -> Box<dyn Iterator<Item = String> + '_> {
        match &self.file {
            Some(text) => Box::new(text.lines().flat_map(pieces)),
            None => paragraphs(&self.name, set, number),
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

fn paragraphs(kind: &str, set: &'static TextSet, number: u64) -> Box<dyn Iterator<Item = String>> {
    let lines = |text: &'static str| text.lines().map(|line| format!("{line}\n"));
    let mut numbers = Numbers::from_seed(0x7465_7874 ^ number ^ set.seed);
    match kind {
        "prose" => Box::new(lines(set.prose)),
        "code" => Box::new(lines(set.code)),
        "stories" => Box::new(lines(set.stories)),
        "diary" => Box::new((1..).map(move |day| diary(day, &set.people, &mut numbers))),
        _ => Box::new((0..).map(move |_| talk(&set.people, &mut numbers))),
    }
}

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
    use std::path::PathBuf;

    use super::*;

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
        let all: Vec<String> = source.paragraphs(&CALIBRATION, 3).collect();
        assert_eq!(all, ["Dear John,\n", "\n", "all is well.\n"]);
        assert!(Source::of_file(&file("talk.txt", "Hello")).unwrap().is_written());
        let fault = names(&["talk"], &[&file("talk.txt", "Hello")]).unwrap_err();
        assert!(fault.starts_with("two texts have the name 'talk', the second in "), "{fault}");
        let fault = names(&[], &[&file("empty.txt", " \n")]).unwrap_err();
        assert!(fault.ends_with("empty.txt is empty"), "{fault}");
        let fault = names(&[], &[&folder.path().join("none.txt")]).unwrap_err();
        assert!(fault.starts_with("cannot read the text "), "{fault}");
    }
}
