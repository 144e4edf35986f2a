//! Texts with planted facts: five kinds of text, and sentences in them to be asked for later.
//!
//! A fact reads "The secret words of the tiger are: stone, ladder, ...": words that nothing else in the text suggests, so that they can only
//! be copied from their place. Facts stand at even distances. A question asks as a user would, in a conversation in which another fact was asked for and
//! answered before, and the answer begins as the fact does: with the sentence alone, models of a hundred million parameters confuse the
//! facts, even with every token in sight.

use anyhow::{Context, ensure};
use trunkline_text::Tokenizer;

use crate::bench::measure::Numbers;

/// Kinds of text. Prose and code are the project's own documents and source; diary and talk come from a seeded generator, stories from that of
/// the model `small-world`, by another seed than its training.
pub const KINDS: [&str; 5] = ["prose", "code", "diary", "talk", "stories"];
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

/// Makes the `number`-th text of a kind: a prompt of `prompt` tokens with `n_facts` facts at even distances, and `after` tokens more.
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
    let mut numbers = Numbers::from_seed(0x6661_6374 ^ (number << 8) ^ kind.len() as u64);
    let mut paragraphs = paragraphs(kind, number);
    let mut secrets = SECRETS.to_vec();
    let mut animals = ANIMALS.to_vec();
    let (mut tokens, mut facts) = (Vec::new(), Vec::<Fact>::new());
    while tokens.len() < prompt + after {
        let next = (2 * facts.len() + 1) * prompt / (2 * n_facts.max(1));
        if facts.len() < n_facts && tokens.len() >= next {
            let animal = animals.swap_remove(numbers.below(animals.len()));
            let words: Vec<&str> = (0..FACT_WORDS).map(|_| secrets.swap_remove(numbers.below(secrets.len()))).collect();
            let sentence = format!("\nThe secret words of the {animal} are:");
            let question =
                format!("\n\nQuestion: What are the secret words of the {animal}?\nAnswer: {}", sentence.trim_start());
            let stated = tokenizer.encode_with(&format!("{sentence} {}.\n", words.join(", ")), false)?;
            facts.push(Fact { question, words, position: tokens.len() });
            tokens.extend(stated);
        }
        let paragraph = paragraphs.next().with_context(|| format!("'{kind}' has too little text"))?;
        tokens.extend(tokenizer.encode_with(&paragraph, false)?);
    }
    ensure!(facts.len() == n_facts, "{} of {n_facts} facts found a place", facts.len());
    lead_in(&mut facts);
    tokens.truncate(prompt + after);
    Ok(Text { name: format!("{kind} {number}"), tokens, facts })
}

/// Puts before the question about each fact the one about the fact before it, and the right answer; before the first that about the last. A single fact is
/// asked for alone.
fn lead_in(facts: &mut [Fact]) {
    let answered: Vec<String> =
        facts.iter().map(|fact| format!("{} {}.", fact.question, fact.words.join(", "))).collect();
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
    /// Number of the word; `None` for a comma.
    pub word: Option<usize>,
}

/// Returns the tokens of the right answer to a question.
///
/// # Errors
/// If the tokenizer has no token for a part of it.
pub fn expected(fact: &Fact, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Expected>> {
    let mut out = Vec::new();
    for (number, word) in fact.words.iter().enumerate() {
        if number > 0 {
            out.extend(tokenizer.encode_with(",", false)?.into_iter().map(|token| Expected { token, word: None }));
        }
        let tokens = tokenizer.encode_with(&format!(" {word}"), false)?;
        out.extend(tokens.into_iter().map(|token| Expected { token, word: Some(number) }));
    }
    Ok(out)
}

/// Returns the tokens of a question and the right answer.
///
/// # Errors
/// If the tokenizer has no token for a part of them.
pub fn asked_tokens(fact: &Fact, tokenizer: &Tokenizer) -> anyhow::Result<usize> {
    Ok(tokenizer.encode_with(&fact.question, false)?.len() + expected(fact, tokenizer)?.len())
}

/// Returns the share of the words whose tokens are all as expected, `0.0..=1.0`.
pub fn recall(expected: &[Expected], answer: &[u32]) -> f64 {
    let words = expected.iter().filter_map(|expected| expected.word).max().map_or(0, |last| last + 1);
    let is_wrong = |word: usize| {
        let mut tokens = expected.iter().zip(answer).filter(|(expected, _)| expected.word == Some(word));
        tokens.any(|(expected, given)| expected.token != *given)
    };
    (0..words).filter(|word| !is_wrong(*word)).count() as f64 / words.max(1) as f64
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
        let words = vec!["stone", "river", "lake", "glass"];
        let fact = Fact { question: String::new(), words, position: 0 };
        let expected = expected(&fact, &Tokenizer::bytes()).unwrap();
        let share = |answer: &str| recall(&expected, &Tokenizer::bytes().encode(answer).unwrap());
        assert_eq!(share(" stone, river, lake, glass"), 1.0);
        assert_eq!(share(" stone, rivet, lake, class"), 0.5);
        assert_eq!(share(" stone; river; lake; glass"), 1.0, "commas do not count");
        assert_eq!(share(" -----, -----, ----, -----"), 0.0);
    }
}
