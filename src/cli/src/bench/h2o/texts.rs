//! Texts with planted facts: five kinds of text, and sentences in them to be asked for later.
//!
//! A fact reads "The secret words of the tiger are: stone, ladder, ...": words that nothing else in the text suggests, so that they can only
//! be copied from their place. Facts stand at even distances. A question asks as a user would, in a conversation in which another fact was asked for and
//! answered before, and the answer begins as the fact does: with the sentence alone, models of a hundred million parameters confuse the
//! facts, even with every token in sight.

use std::ops::Range;

use anyhow::{Context, ensure};
use trunkline_text::Tokenizer;

use crate::bench::measure::Numbers;

/// Kinds of text. Prose and code are the project's own documents and source; diary and talk come from a seeded generator, stories from that of
/// the model `small-world`, by another seed than its training.
pub const KINDS: [&str; 5] = ["prose", "code", "diary", "talk", "stories"];
/// Text before a piece of text that is encoded as if it stood behind text.
const LETTER: &str = "a";
/// Words of a fact.
pub const FACT_WORDS: usize = 6;

const PROSE: &str =
    concat!(include_str!("../../../../../ARCHITECTURE.md"), "\n", include_str!("../../../../../CONTRIBUTING.md"));
const CODE: &str =
    concat!(include_str!("../../../../core/src/tree.rs"), include_str!("../../../../core/src/waiting.rs"));

const STORIES: &str = include_str!("stories.txt");

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

/// Makes the `number`-th text of a kind: a prompt of `prompt` tokens with `n_facts` facts at even distances, and `after` tokens more. The text is encoded
/// whole, with the tokens that a server puts in front of a prompt.
///
/// # Errors
/// If the tokenizer has no token for a part of the text, or the kind has too little text.
pub fn text(
    kind: &str,
    number: u64,
    tokenizer: &Tokenizer,
    prompt: usize,
    after: usize,
    n_facts: usize,
) -> anyhow::Result<Text> {
    ensure!(n_facts <= ANIMALS.len(), "a text has at most {} facts", ANIMALS.len());
    let needed = prompt + after;
    let mut numbers = Numbers::from_seed(0x6661_6374 ^ (number << 8) ^ kind.len() as u64);
    let mut paragraphs = paragraphs(kind, number);
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
            let paragraph = paragraphs.next().with_context(|| format!("'{kind}' has too little text"))?;
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
    ensure!(facts.len() == n_facts, "{} of {n_facts} facts found a place", facts.len());
    for (fact, place) in facts.iter_mut().zip(places) {
        fact.position = common(&tokenizer.encode(&written[..place])?, &tokens);
    }
    lead_in(&mut facts);
    Ok(Text { name: format!("{kind} {number}"), tokens: tokens[..needed].to_vec(), facts })
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

/// Returns the tokens of `text`, which MUST begin with a line end, behind other text: without a space or a begin token that the tokenizer puts in front of
/// all text.
///
/// # Errors
/// If the tokenizer has no token for a part of the text.
pub fn behind(text: &str, tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
    let (alone, both) =
        (tokenizer.encode_with(LETTER, false)?, tokenizer.encode_with(&format!("{LETTER}{text}"), false)?);
    Ok(both[common(&alone, &both)..].to_vec())
}

/// Returns the number of tokens of a paragraph behind a line end.
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
    let answered: Vec<String> =
        facts.iter().map(|fact| format!("{}{}.", fact.question, fact.answer())).collect();
    let before = answered.iter().cycle().skip(answered.len().saturating_sub(1));
    if answered.len() > 1 {
        facts.iter_mut().zip(before).for_each(|(fact, before)| fact.question.insert_str(0, before));
    }
}

/// Returns the paragraphs of a text, each with a line end. Texts of one kind with different numbers begin at different places.
fn paragraphs(kind: &str, number: u64) -> Box<dyn Iterator<Item = String>> {
    let lines = |text: &'static str| {
        let n = text.lines().count();
        text.lines().cycle().skip(number as usize * n / 3).take(n).map(|line| format!("{line}\n"))
    };
    let mut numbers = Numbers::from_seed(0x7465_7874 ^ number);
    match kind {
        "prose" => Box::new(lines(PROSE)),
        "code" => Box::new(lines(CODE)),
        "stories" => Box::new(lines(STORIES)),
        "diary" => Box::new((1..).map(move |day| diary(day, &mut numbers))),
        _ => Box::new((0..).map(move |_| talk(&mut numbers))),
    }
}

const PEOPLE: [&str; 8] = ["Anna", "Peter", "Maria", "Tom", "Clara", "John", "Eva", "Paul"];
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
fn diary(day: u32, numbers: &mut Numbers) -> String {
    let mut pick = |from: &[&'static str]| pick(from, numbers);
    let (who, other) = (pick(&PEOPLE), pick(&PEOPLE));
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
fn talk(numbers: &mut Numbers) -> String {
    let mut pick = |from: &[&'static str]| pick(from, numbers);
    let (who, other) = (pick(&PEOPLE), pick(&PEOPLE));
    format!("{who}: {} {}, {other}?\n{other}: {} {}\n", pick(&QUESTIONS), pick(&PLACES), pick(&ANSWERS), pick(&ENDS))
}

/// A token of the right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub token: u32,
    /// Number of the word; `None` for a comma or a space.
    pub word: Option<usize>,
}

/// Returns the tokens of a question behind a text, and those of the right answer. Both are encoded together: some tokenizers put a space in front of all
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
    // Bytes from the begin and the end of each word to the end of the answer.
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

    #[test]
    fn every_kind_has_its_facts_at_even_distances_and_never_two_alike() {
        for kind in KINDS {
            let tokenizer = Tokenizer::bytes();
            let made = text(kind, 1, &tokenizer, 6_000, 500, 6).unwrap();
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
            assert_eq!(
                text(kind, 1, &tokenizer, 6_000, 500, 6).unwrap().tokens,
                made.tokens,
                "equal seeds, equal texts"
            );
            assert_ne!(text(kind, 2, &tokenizer, 6_000, 500, 6).unwrap().tokens, made.tokens);
        }
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
        let json = include_str!("../../../../../models/small-world/tokenizer.json");
        let mut prepends: serde_json::Value = serde_json::from_str(json).unwrap();
        prepends["normalizer"] = serde_json::json!({ "type": "Prepend", "prepend": " " });
        [json, &prepends.to_string()].map(|json| Tokenizer::from_json("test", json.as_bytes()).unwrap())
    }

    #[test]
    fn answers_and_texts_have_the_tokens_of_whole_text_with_every_tokenizer() {
        for tokenizer in tokenizers() {
            let made = text("stories", 0, &tokenizer, 1024, 64, 3).unwrap();
            let bos = begin(&tokenizer).unwrap();
            assert_eq!((bos.len(), &made.tokens[..1]), (1, &bos[..]), "as a server's prompt");
            let whole = tokenizer.encode(tokenizer.decode(&made.tokens[..900]).trim_start_matches(' ')).unwrap();
            assert_eq!(whole[..890], made.tokens[..890], "no spaces between paragraphs");
            for fact in &made.facts {
                let (question, expected) = asked(fact, &tokenizer).unwrap();
                let answer: Vec<u32> = expected.iter().map(|expected| expected.token).collect();
                let place = made.tokens[fact.position..].windows(answer.len()).position(|tokens| tokens == answer);
                assert!(place.is_some_and(|place| place < 40), "the answer is what the text says");
                assert_eq!(tokenizer.decode(&[question, answer].concat()), format!("{}{}", fact.question, fact.answer()));
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
