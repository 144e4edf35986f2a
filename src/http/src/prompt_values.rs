//! Log probabilities of a prompt's tokens: `prompt_logprobs` of vLLM, and `echo` with `logprobs` of completions.

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use trunkline_server::proto::TokenLogprob;
use trunkline_text::Tokenizer;

use crate::failure::Failure;
use crate::logprobs::spell;

/// Maximum number of log probabilities of prompts in one answer: those of 100,000 tokens, with 20 in each place.
const VALUES_MAX: u64 = 1 << 21;

/// What a client wants to see of its prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    /// Most likely tokens in `prompt_logprobs`; `None` without it.
    pub(crate) shown: Option<u32>,
    /// Most likely tokens in the `logprobs` that begin with the prompt, if they do.
    pub(crate) echoed: Option<u32>,
    /// First token of each prompt, if `logprobs` begin with the prompt: it has no log probability.
    pub(crate) first_tokens: Vec<u32>,
}

/// Log probabilities of the tokens of one prompt, for its choices.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prompt {
    /// Those of the tokens from the second on.
    pub(crate) values: Vec<TokenLogprob>,
    shown: Option<u32>,
    /// First token, and the most likely tokens to list, if `logprobs` begin with the prompt.
    echoed: Option<(u32, u32)>,
}

impl Wanted {
    /// Returns the most likely tokens that are needed of each prompt; `None` without log probabilities.
    pub(crate) fn n_top(&self) -> Option<u32> {
        self.shown.max(self.echoed)
    }

    /// Returns a prompt by number, without values yet.
    pub(crate) fn prompt(&self, number: usize) -> Prompt {
        let first = self.first_tokens.get(number).copied();
        Prompt { values: Vec::new(), shown: self.shown, echoed: first.zip(self.echoed) }
    }

    /// Bounds the log probabilities of an answer to prompts of so many tokens together.
    ///
    /// # Errors
    /// If there are too many.
    pub(crate) fn check(&self, prompt_tokens: u64, choices: usize) -> Result<(), Failure> {
        let Some(n_top) = self.n_top() else { return Ok(()) };
        let values = prompt_tokens * choices as u64 * (u64::from(n_top) + 1);
        let param = if self.shown.is_some() { "prompt_logprobs" } else { "echo" };
        match values <= VALUES_MAX {
            true => Ok(()),
            false => Err(Failure::invalid(
                param,
                format!(
                    "{param} asks for {values} log probabilities of prompts; an answer has up to {VALUES_MAX}: ask for fewer, or send fewer prompts at once"
                ),
            )),
        }
    }
}

impl Prompt {
    /// Returns the first token, which has no log probability, and the others with theirs, if `logprobs` begin with the prompt.
    pub(crate) fn echoed(&self) -> Option<(u32, impl Iterator<Item = TokenLogprob> + '_)> {
        let (first, n_top) = self.echoed?;
        let cut = move |of: &TokenLogprob| {
            let top = of.top.iter().take(n_top as usize).cloned().collect();
            TokenLogprob { token_id: of.token_id, logprob: of.logprob, top }
        };
        Some((first, self.values.iter().map(cut)))
    }

    /// Returns `prompt_logprobs`, if it is wanted.
    pub(crate) fn shown<'a>(&'a self, tokenizer: &'a Tokenizer) -> Option<Shown<'a>> {
        self.shown.map(|n_top| Shown { values: &self.values, n_top: n_top as usize, tokenizer })
    }
}

/// `prompt_logprobs`: null for the first token, then an object for each, by token id.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    values: &'a [TokenLogprob],
    n_top: usize,
    tokenizer: &'a Tokenizer,
}

/// A token as vLLM shows it.
#[derive(Debug, Serialize)]
struct Ranked {
    logprob: f32,
    /// Place among all tokens, from 1; null for a token that is not one of the most likely.
    rank: Option<usize>,
    decoded_token: String,
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(Some(self.values.len() + 1))?;
        list.serialize_element(&None::<()>)?;
        for of in self.values {
            list.serialize_element(&Place { of, all: *self })?;
        }
        list.end()
    }
}

/// The tokens in one place.
struct Place<'a> {
    of: &'a TokenLogprob,
    all: Shown<'a>,
}

impl Serialize for Place<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { of, all } = self;
        let top = &of.top[..of.top.len().min(all.n_top)];
        let ranked = |token: u32, logprob: f32| {
            let rank = of.top.iter().position(|other| other.token_id == token).map(|at| at + 1);
            Ranked { logprob, rank, decoded_token: spell(all.tokenizer, token) }
        };
        let mut map = to.serialize_map(None)?;
        map.serialize_entry(&of.token_id, &ranked(of.token_id, of.logprob))?;
        for other in top.iter().filter(|other| other.token_id != of.token_id) {
            map.serialize_entry(&other.token_id, &ranked(other.token_id, other.logprob))?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use trunkline_server::proto::Alternative;

    use super::*;

    fn prompt(wanted: &Wanted) -> Prompt {
        let top = |pairs: &[(u8, f32)]| {
            pairs.iter().map(|(token, logprob)| Alternative { token_id: (*token).into(), logprob: *logprob }).collect()
        };
        let values = vec![
            TokenLogprob { token_id: b'b'.into(), logprob: -2.0, top: top(&[(b'c', -0.5), (b'b', -2.0)]) },
            TokenLogprob { token_id: b'z'.into(), logprob: -9.0, top: top(&[(b'c', -0.5), (b'd', -1.5)]) },
        ];
        Prompt { values, ..wanted.prompt(0) }
    }

    #[test]
    fn prompt_logprobs_has_the_token_and_the_most_likely_ones_in_each_place() {
        let tokenizer = Tokenizer::bytes();
        let json = |shown| {
            let prompt = prompt(&Wanted { shown, ..Wanted::default() });
            prompt.shown(&tokenizer).map(|shown| serde_json::to_string(&shown).unwrap())
        };
        assert_eq!(json(None), None);
        let b = r#""98":{"logprob":-2.0,"rank":2,"decoded_token":"b"}"#;
        let z = r#""122":{"logprob":-9.0,"rank":null,"decoded_token":"z"}"#;
        let c = r#""99":{"logprob":-0.5,"rank":1,"decoded_token":"c"}"#;
        assert_eq!(json(Some(0)).unwrap(), format!("[null,{{{b}}},{{{z}}}]"));
        assert_eq!(json(Some(1)).unwrap(), format!("[null,{{{b},{c}}},{{{z},{c}}}]"));
    }

    #[test]
    fn an_echo_lists_as_many_as_it_asks_for_and_the_worker_is_asked_for_the_most() {
        let wanted = Wanted { shown: Some(2), echoed: Some(1), first_tokens: vec![b'a'.into()] };
        assert_eq!((wanted.n_top(), Wanted::default().n_top()), (Some(2), None));
        let prompt = prompt(&wanted);
        let (first, values) = prompt.echoed().unwrap();
        assert_eq!((first, values.map(|of| of.top.len()).collect::<Vec<_>>()), (b'a'.into(), vec![1, 1]));
        assert!(Wanted { echoed: None, ..wanted }.prompt(0).echoed().is_none());
    }

    #[test]
    fn the_values_of_an_answer_are_bounded() {
        let wanted = Wanted { shown: Some(20), ..Wanted::default() };
        assert!(wanted.check(99_864, 1).is_ok() && Wanted::default().check(u64::MAX, 1).is_ok());
        let line = wanted.check(99_865, 1).unwrap_err().json();
        assert!(line.contains(r#""param":"prompt_logprobs""#) && line.contains("asks for 2097165 log prob"), "{line}");
        let echoed = Wanted { echoed: Some(0), ..Wanted::default() };
        assert!(echoed.check(1 << 20, 2).is_ok());
        assert!(echoed.check(1 << 20, 3).unwrap_err().json().contains(r#""param":"echo""#));
    }
}
