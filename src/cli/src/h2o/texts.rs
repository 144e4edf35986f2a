//! Texts with planted facts: sentences among text of a kind, to be asked for later.
//!
//! A fact reads "The secret words of the tiger are: stone, ladder, ...": words that nothing else in the text suggests, so that they can only
//! be copied from their place. Facts stand at even distances. A question asks as a user would, in a conversation in which another fact was asked for and
//! answered before, and the answer begins as the fact does: with the sentence alone, models of a hundred million parameters confuse the
//! facts, even with every token in sight.

use std::ops::Range;

use anyhow::{Context, ensure};
use trunkline_quote::quoted;
use trunkline_text::Tokenizer;

use super::numbers::Numbers;
use super::sources::{Source, TextSet};

/// Text before a piece of text that is encoded as if it stood after text.
const LETTER: &str = "a";
/// Tokens left out between two texts of a kind that is written down: paragraphs may have fewer tokens together than alone.
const MARGIN: usize = 64;
/// Words of a fact.
pub const FACT_WORDS: usize = 6;

const ANIMALS: [&str; 16] = [
    "tiger", "rabbit", "eagle", "horse", "dolphin", "spider", "monkey", "turtle", "camel", "wolf", "parrot", "donkey",
    "lion", "whale", "goat", "fox",
];

#[rustfmt::skip]
const SECRETS: [&str; 96] = [
    "apple", "river", "stone", "candle", "window", "garden", "silver", "pepper", "bottle", "ladder", "button", "copper",
    "forest", "winter", "orange", "pencil", "basket", "hammer", "carpet", "cotton", "engine", "feather", "ginger", "harbor",
    "island", "jacket", "kettle", "lemon", "marble", "needle", "onion", "paper", "quartz", "ribbon", "saddle", "tunnel",
    "umbrella", "velvet", "wagon", "yellow", "anchor", "bridge", "cherry", "desert", "elbow", "falcon", "grape", "honey",
    "iron", "jungle", "kitchen", "lantern", "mirror", "nickel", "ocean", "pillow", "rocket", "sugar", "thunder", "valley",
    "wheat", "almond", "blanket", "castle", "diamond", "emerald", "flower", "guitar", "helmet", "ivory", "jewel", "keyboard",
    "leather", "market", "napkin", "oyster", "planet", "raven", "scissors", "temple", "violin", "walnut", "butter", "coffee",
    "dragon", "eleven", "finger", "glass", "hotel", "insect", "jelly", "knife", "lake", "meadow", "number", "olive",
];

/// A planted fact.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Question about another fact with its right answer, the question about this one, and the answer up to the colon: the sentence of the fact.
    pub question: String,
    /// Words to be recalled, in order.
    pub words: Vec<&'static str>,
    /// Position of the fact's first token.
    pub position: usize,
}

impl Fact {
    fn new(animal: &str, words: Vec<&'static str>) -> Self {
        let asks = format!("\n\nQuestion: What are the secret words of the {animal}?\nAnswer:");
        Self { question: format!("{asks} The secret words of the {animal} are:"), words, position: 0 }
    }

    /// Returns the sentence that states the fact in a text.
    fn statement(&self) -> String {
        let (_, sentence) = self.question.rsplit_once("Answer: ").unwrap_or_default();
        format!("\n{sentence}{}.\n", self.answer())
    }

    /// Returns the right answer to the question.
    fn answer(&self) -> String {
        format!(" {}", self.words.join(", "))
    }
}

/// A text of one kind, in tokens.
#[derive(Clone, Debug)]
pub struct Text {
    /// Kind and number, such as `prose 1`.
    pub name: String,
    /// Prompt, then as many tokens as are measured.
    pub tokens: Vec<u32>,
    /// Facts, in the order of their positions.
    pub facts: Vec<Fact>,
}

/// A text to be made: a prompt of `prompt` tokens with `n_facts` facts at even distances, and `after` tokens more.
#[derive(Clone, Copy, Debug)]
pub struct Outline<'a> {
    /// Texts of the kinds.
    pub set: &'static TextSet,
    /// Source of the text.
    pub source: &'a Source,
    /// Number among the equally long texts of the source, which have no paragraph in common.
    pub number: u64,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens after the prompt.
    pub after: usize,
    /// Facts in the prompt.
    pub n_facts: usize,
}

/// Makes a text. The text is encoded whole, with the tokens that a server puts in front of a prompt.
///
/// # Errors
/// If the tokenizer has no token for a part of the text, or the source has too little text.
pub fn text(outline: &Outline<'_>, tokenizer: &Tokenizer) -> anyhow::Result<Text> {
    let Outline { source, number, prompt, after, n_facts, .. } = *outline;
    ensure!(n_facts <= ANIMALS.len(), "a text has at most {} facts", ANIMALS.len());
    let needed = prompt + after;
    let mut numbers = Numbers::from_seed(0x6661_6374 ^ (number << 8) ^ source.name.len() as u64);
    let mut paragraphs = paragraphs_of(outline, tokenizer)?;
    let (mut secrets, mut animals) = (SECRETS.to_vec(), ANIMALS.to_vec());
    let (mut written, mut facts, mut places) = (String::new(), Vec::<Fact>::new(), Vec::new());
    let mut n_tokens = begin(tokenizer)?.len();
    let tokens = loop {
        while n_tokens < needed {
            let next = (2 * facts.len() + 1) * prompt / (2 * n_facts.max(1));
            if facts.len() < n_facts && n_tokens >= next {
                let animal = animals.swap_remove(numbers.below(animals.len()));
                let word = |_| secrets.swap_remove(numbers.below(secrets.len()));
                let fact = Fact::new(animal, (0..FACT_WORDS).map(word).collect());
                places.push(written.len());
                n_tokens += length(&fact.statement(), tokenizer)?;
                written.push_str(&fact.statement());
                facts.push(fact);
            }
            let paragraph = paragraphs.next().with_context(|| too_little(outline, tokenizer))?;
            n_tokens += length(&paragraph, tokenizer)?;
            written.push_str(&paragraph);
        }
        let tokens = tokenizer.encode(&written)?;
        // Some tokenizers put a token at the end, too.
        if tokens.len() > needed {
            break tokens;
        }
        // The paragraphs have fewer tokens together than alone.
        n_tokens = tokens.len().min(needed - 1);
    };
    ensure!(
        facts.len() == n_facts,
        "{} of {n_facts} facts found a place in {}; give fewer --facts, or a longer --prompt",
        facts.len(),
        quoted(&source.name)
    );
    for (fact, place) in facts.iter_mut().zip(places) {
        fact.position = common(&tokenizer.encode(&written[..place])?, &tokens);
    }
    lead_in(&mut facts);
    Ok(Text { name: format!("{} {number}", source.name), tokens: tokens[..needed].to_vec(), facts })
}

/// Returns the paragraphs of a text and all after them: of a source that is written down after the paragraphs of the texts before.
fn paragraphs_of<'a>(
    outline: &Outline<'a>,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Box<dyn Iterator<Item = String> + 'a>> {
    let Outline { set, source, number, prompt, after, .. } = *outline;
    let mut paragraphs = source.paragraphs(set, number);
    let before = if source.is_written() { number } else { 0 };
    for _ in 0..before {
        let mut n_tokens = 0;
        while n_tokens < prompt + after + MARGIN {
            n_tokens += length(&paragraphs.next().with_context(|| too_little(outline, tokenizer))?, tokenizer)?;
        }
    }
    Ok(paragraphs)
}

/// Returns the message that a source has no such text.
fn too_little(outline: &Outline<'_>, tokenizer: &Tokenizer) -> String {
    let Outline { set, source, number, prompt, after, .. } = *outline;
    let lengths = source.paragraphs(set, 0).map(|paragraph| length(&paragraph, tokenizer).unwrap_or(0));
    let (all, needed) = (lengths.sum::<usize>(), prompt + after);
    format!(
        "{} has {all} tokens, too few for text {} of {needed} tokens; give fewer texts, or shorter ones",
        quoted(&source.name),
        number + 1
    )
}

/// Returns the tokens that the tokenizer puts in front of a prompt.
///
/// # Errors
/// If the tokenizer has no token for a letter.
pub fn begin(tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
    let (mut whole, plain) = (tokenizer.encode(LETTER)?, tokenizer.encode_with(LETTER, false)?);
    let n = whole.windows(plain.len().max(1)).position(|tokens| tokens == plain).unwrap_or(0);
    whole.truncate(n);
    Ok(whole)
}

/// Returns the tokens of `text`, which MUST begin with a line end, after other text: without a space or a BOS token that the tokenizer puts in front of
/// all text.
///
/// # Errors
/// If the tokenizer has no token for a part of the text.
pub fn behind(text: &str, tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
    let (alone, both) =
        (tokenizer.encode_with(LETTER, false)?, tokenizer.encode_with(&format!("{LETTER}{text}"), false)?);
    Ok(both[common(&alone, &both)..].to_vec())
}

/// Returns the number of tokens of a paragraph after a line end.
fn length(paragraph: &str, tokenizer: &Tokenizer) -> anyhow::Result<usize> {
    let (alone, both) = (behind("\n", tokenizer)?, behind(&format!("\n{paragraph}"), tokenizer)?);
    Ok(both.len().saturating_sub(alone.len()))
}

/// Returns the number of tokens with which both begin.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Puts before the question about each fact the one about the fact before it, and the right answer; before the first that about the last. A single fact is
/// asked for alone.
fn lead_in(facts: &mut [Fact]) {
    let answered: Vec<String> = facts.iter().map(|fact| format!("{}{}.", fact.question, fact.answer())).collect();
    let before = answered.iter().cycle().skip(answered.len().saturating_sub(1));
    if answered.len() > 1 {
        facts.iter_mut().zip(before).for_each(|(fact, before)| fact.question.insert_str(0, before));
    }
}

/// A token of the right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The token.
    pub token: u32,
    /// Number of the word; `None` for a comma or a space.
    pub word: Option<usize>,
}

/// Returns the tokens of a question after a text, and those of the right answer. Both are encoded together: some tokenizers put a space in front of all
/// text, and a word by itself then has other tokens than a word behind another.
///
/// # Errors
/// If the tokenizer has no token for a part of them.
pub fn asked(fact: &Fact, tokenizer: &Tokenizer) -> anyhow::Result<(Vec<u32>, Vec<Expected>)> {
    let mut question = behind(&fact.question, tokenizer)?;
    let whole = behind(&format!("{}{}", fact.question, fact.answer()), tokenizer)?;
    question.truncate(common(&question, &whole));
    let all = tokenizer.decode(&whole).len();
    let left = |n: usize| all - tokenizer.decode(&whole[..n]).len().min(all);
    // Bytes from the start and the end of each word to the end of the answer.
    let mut words: Vec<Range<usize>> = Vec::new();
    for word in fact.words.iter().rev() {
        let end = words.last().map_or(0, |behind| behind.end + ", ".len());
        words.push(end..end + word.len());
    }
    words.reverse();
    let expected = (question.len()..whole.len()).map(|at| {
        let (begin, end) = (left(at), left(at + 1));
        let word = words.iter().position(|word| word.start < begin && end < word.end);
        Expected { token: whole[at], word }
    });
    let expected = expected.collect();
    Ok((question, expected))
}

/// Returns the tokens of a question and the right answer.
///
/// # Errors
/// If the tokenizer has no token for a part of them.
pub fn asked_tokens(fact: &Fact, tokenizer: &Tokenizer) -> anyhow::Result<usize> {
    let (question, answer) = asked(fact, tokenizer)?;
    Ok(question.len() + answer.len())
}

/// Returns the share of the words whose tokens are all as expected, `0.0..=1.0`.
pub fn recall(expected: &[Expected], answer: &[u32]) -> f64 {
    let words = expected.iter().filter_map(|expected| expected.word).max().map_or(0, |last| last + 1);
    let is_right = |word: usize| {
        let mut tokens = expected.iter().zip(answer).filter(|(expected, _)| expected.word == Some(word)).peekable();
        tokens.peek().is_some() && tokens.all(|(expected, given)| expected.token == *given)
    };
    (0..words).filter(|word| is_right(*word)).count() as f64 / words.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2o::sources::{CALIBRATION, KINDS};

    fn outline(source: &Source, number: u64) -> Outline<'_> {
        Outline { set: &CALIBRATION, source, number, prompt: 6_000, after: 500, n_facts: 6 }
    }

    #[test]
    fn every_kind_has_its_facts_at_even_distances_and_never_two_alike() {
        for kind in KINDS {
            let (tokenizer, source) = (Tokenizer::bytes(), Source::of_kind(kind));
            let made = text(&outline(&source, 1), &tokenizer).unwrap();
            assert_eq!((made.tokens.len(), made.facts.len()), (6_500, 6));
            let all = tokenizer.decode(&made.tokens);
            for (n, fact) in made.facts.iter().enumerate() {
                let (before, stated) = fact.question.rsplit_once("Answer: ").unwrap();
                let other = &made.facts[(n + 5) % 6].words.join(", ");
                assert!(before.contains(&format!("are: {other}.\n\nQuestion: ")), "{kind}: {before}");
                assert!(!fact.question.contains(&fact.words.join(", ")));
                let sentence = format!("\n{stated} {}.", fact.words.join(", "));
                assert_eq!(all.matches(&sentence).count(), 1, "{kind}: {sentence}");
                assert_eq!(all[fact.position..].find(&sentence), Some(0));
                assert!(fact.position.abs_diff((2 * n + 1) * 500) < 700, "{kind}: {}", fact.position);
            }
            assert_eq!(text(&outline(&source, 1), &tokenizer).unwrap().tokens, made.tokens, "equal seeds, equal texts");
        }
    }

    #[test]
    fn facts_stand_at_even_distances_in_a_file_of_long_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter.txt");
        let sentence = |n: u32| format!("The {n}. of {} boxes arrived, and was put on shelf {}. ", 2 * n, n * n);
        let line = |begin: u32| (begin..begin + 20).map(sentence).collect::<String>();
        std::fs::write(&path, (0..40).map(|n| line(20 * n) + "\n").collect::<String>()).unwrap();
        let source = Source::of_file(&path).unwrap();
        let made = text(&outline(&source, 0), &Tokenizer::bytes()).unwrap();
        for (n, fact) in made.facts.iter().enumerate() {
            assert!(fact.position.abs_diff((2 * n + 1) * 500) < 350, "{n}: {}", fact.position);
        }
    }

    #[test]
    fn texts_of_one_kind_share_no_paragraph_and_their_number_is_limited() {
        let tokenizer = Tokenizer::bytes();
        for kind in KINDS {
            let source = Source::of_kind(kind);
            let paragraphs = |number| {
                let made = text(&Outline { n_facts: 0, ..outline(&source, number) }, &tokenizer).unwrap();
                let all: Vec<String> = tokenizer.decode(&made.tokens).lines().map(str::to_owned).collect();
                // Fewer lines may be the end of one file of code and the beginning of its tests.
                all.windows(6).map(<[String]>::concat).collect::<Vec<_>>()
            };
            let all: Vec<Vec<String>> = (0..5).map(paragraphs).collect();
            for (at, one) in all.iter().enumerate() {
                assert!(all[..at].iter().flatten().all(|row| !one.contains(row)), "{kind} {at}");
            }
        }
        let stories = Source::of_kind("stories");
        let many = Outline { ..outline(&stories, 9) };
        let fault = text(&many, &tokenizer).unwrap_err().to_string();
        assert!(fault.ends_with("too few for text 10 of 6500 tokens; give fewer texts, or shorter ones"), "{fault}");
    }

    #[test]
    fn an_answer_counts_by_whole_words() {
        let fact = Fact::new("wolf", vec!["stone", "river", "lake", "glass"]);
        let (question, expected) = asked(&fact, &Tokenizer::bytes()).unwrap();
        assert_eq!(Tokenizer::bytes().decode(&question), fact.question);
        let share = |answer: &str| recall(&expected, &Tokenizer::bytes().encode(answer).unwrap());
        assert_eq!(share(" stone, river, lake, glass"), 1.0);
        assert_eq!(share(" stone, rivet, lake, class"), 0.5);
        assert_eq!(share(" stone; river; lake; glass"), 1.0, "commas do not count");
        assert_eq!(share(" -----, -----, ----, -----"), 0.0);
    }

    /// Returns the tokenizer of the built-in model, and the same with a space in front of all text, as Llama 2 has.
    fn tokenizers() -> [Tokenizer; 2] {
        let json = include_str!("../../../../models/small-world/tokenizer.json");
        let mut prepends: serde_json::Value = serde_json::from_str(json).unwrap();
        prepends["normalizer"] = serde_json::json!({ "type": "Prepend", "prepend": " " });
        [json, &prepends.to_string()].map(|json| Tokenizer::from_json("test", json.as_bytes()).unwrap())
    }

    #[test]
    fn answers_and_texts_have_the_tokens_of_whole_text_with_every_tokenizer() {
        for tokenizer in tokenizers() {
            let stories = Source::of_kind("stories");
            let made =
                text(&Outline { prompt: 1024, after: 64, n_facts: 3, ..outline(&stories, 0) }, &tokenizer).unwrap();
            let bos = begin(&tokenizer).unwrap();
            assert_eq!((bos.len(), &made.tokens[..1]), (1, &bos[..]), "as a server's prompt");
            let whole = tokenizer.encode(tokenizer.decode(&made.tokens[..900]).trim_start_matches(' ')).unwrap();
            assert_eq!(whole[..890], made.tokens[..890], "no spaces between paragraphs");
            for fact in &made.facts {
                let (question, expected) = asked(fact, &tokenizer).unwrap();
                let answer: Vec<u32> = expected.iter().map(|expected| expected.token).collect();
                let place = made.tokens[fact.position..].windows(answer.len()).position(|tokens| tokens == answer);
                assert!(place.is_some_and(|place| place < 40), "the answer is what the text says");
                assert_eq!(
                    tokenizer.decode(&[question, answer].concat()),
                    format!("{}{}", fact.question, fact.answer())
                );
                for (number, word) in fact.words.iter().enumerate() {
                    let of_word = expected.iter().filter(|expected| expected.word == Some(number));
                    let tokens: Vec<u32> = of_word.map(|expected| expected.token).collect();
                    assert_eq!(tokenizer.decode(&tokens).trim(), *word);
                }
                let commas = expected.iter().filter(|expected| expected.word.is_none());
                assert!(commas.map(|comma| tokenizer.decode(&[comma.token])).all(|text| text.trim() == ","));
            }
        }
    }
}
