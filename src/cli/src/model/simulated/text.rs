//! Text of simulated answers.
//!
//! Token `n` of an answer depends on the request and `n` alone, so neither batching nor preemption changes the answer:
//!
//! | kind | token `n` |
//! |---|---|
//! | `random` | a built-in passage, read round and round from a sentence that the request's seed picks |
//! | `echo` | token `n` of the prompt; after the prompt's end the model's end token, or the prompt again if there is none |

use std::str::FromStr;

use trunkline_core::draw::unit;
use trunkline_core::names::registry;
use trunkline_port::Token;
use trunkline_text::{Tokenizer, TokenizerError};

/// Stream of draws for the first sentence of an answer; see [`trunkline_core::draw`].
const SENTENCE_STREAM: u64 = 0x5e17;

/// Sentences of random answers.
const SENTENCES: [&str; 12] = [
    " The test ran through the night, and nobody had to watch.",
    " A queue is a promise that everyone will be served in time.",
    " The cat sat on the server because it was warm.",
    " Give a man a fish and you feed him for a day; teach him to fish and you never see him again.",
    " Rain fell on the harbour, and the ferries went on as if nothing had happened.",
    " Most of what we call luck is somebody else's preparation.",
    " The library keeps one copy of every book, and two of those that people love.",
    " When the bridge was finished, the old ferryman was the first to walk across.",
    " Nothing in this answer was computed; only its time was.",
    " She counted the steps twice, and both times there were ninety-nine.",
    " To be is to do, said the clock, and struck again.",
    " A short road with many gates is longer than a long road with none.",
];

/// Kind of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextKind {
    /// A built-in passage.
    #[default]
    Random,
    /// The prompt of the request.
    Echo,
}

impl FromStr for TextKind {
    type Err = registry::UnknownName;

    fn from_str(name: &str) -> Result<Self, registry::UnknownName> {
        registry::choose("simulate-text", &[("random", Self::Random), ("echo", Self::Echo)], name)
    }
}

/// Text of all answers of a server.
#[derive(Clone, Debug)]
pub struct Text {
    kind: TextKind,
    /// Tokens of the passage, and the start of each sentence there.
    passage: Vec<Token>,
    sentences: Vec<usize>,
    /// Token that ends an answer.
    end: Option<Token>,
}

impl Text {
    /// Prepares the text in tokens of `tokenizer`; `end` is the model's end token.
    ///
    /// # Errors
    /// If the tokenizer cannot tokenise plain English.
    pub fn new(kind: TextKind, tokenizer: &Tokenizer, end: Option<Token>) -> Result<Self, TokenizerError> {
        let (mut passage, mut sentences) = (Vec::new(), Vec::new());
        for sentence in SENTENCES {
            sentences.push(passage.len());
            passage.extend(tokenizer.encode_with(sentence, false)?);
        }
        Ok(Self { kind, passage, sentences, end })
    }

    /// Returns the kind of the text.
    pub fn kind(&self) -> TextKind {
        self.kind
    }

    /// Returns token `n` of the answer to a request.
    pub fn token(&self, seed: u64, prompt: &[Token], n: u32) -> Token {
        let n = n as usize;
        match self.kind {
            TextKind::Random => {
                let sentence = (unit(SENTENCE_STREAM, seed, 0) * self.sentences.len() as f64) as usize;
                self.passage[(self.sentences[sentence] + n) % self.passage.len()]
            }
            TextKind::Echo => match (prompt.get(n), self.end) {
                (Some(token), _) => *token,
                (None, Some(end)) => end,
                (None, None) => prompt[n % prompt.len()],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn answer(text: &Text, seed: u64, prompt: &[Token], n: u32) -> String {
        let tokens: Vec<Token> = (0..n).map(|n| text.token(seed, prompt, n)).collect();
        Tokenizer::bytes().decode(&tokens)
    }

    #[test]
    fn random_text_starts_with_a_sentence_of_the_seed_and_is_read_round_and_round() {
        let text = Text::new(TextKind::Random, &Tokenizer::bytes(), None).unwrap();
        let whole = SENTENCES.concat();
        let starts: BTreeSet<String> = (0..200).map(|seed| answer(&text, seed, &[], 20)).collect();
        assert_eq!(starts.len(), SENTENCES.len(), "every sentence is drawn");
        assert!(starts.iter().all(|start| SENTENCES.iter().any(|sentence| sentence.starts_with(start.as_str()))));
        let long = answer(&text, 7, &[], 2 * whole.len() as u32);
        assert_eq!(long.find(&whole).map(|at| long[at..].starts_with(&whole)), Some(true), "in order, and again");
    }

    #[test]
    fn an_echo_is_the_prompt_and_ends_with_it() {
        let tokenizer = Tokenizer::bytes();
        let prompt: Vec<Token> = tokenizer.encode("abc").unwrap();
        let text = |end| Text::new("echo".parse().unwrap(), &tokenizer, end).unwrap();
        let tokens = |end| (0..5).map(|n| text(end).token(1, &prompt, n)).collect::<Vec<_>>();
        assert_eq!(tokens(Some(257)), [&prompt[..], &[257, 257]].concat());
        assert_eq!(tokens(None), [&prompt[..], &prompt[..2]].concat());
        let message = "poem".parse::<TextKind>().unwrap_err().to_string();
        assert_eq!(message, "unknown simulate-text 'poem'; there are: random, echo");
    }
}
