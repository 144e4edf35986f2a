//! The door to `llguidance`: all calls of its code go through here.

use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};
use std::thread;

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, earley};
use trunkline_port::Token;
use trunkline_text::Tokenizer;

use crate::allowed::Allowed;
use crate::error::{GrammarError, MatchError};
use crate::sources::Source;

/// Bytes of the stack of a thread that compiles: the library does so by recursion. The system gives memory only to pages that are used.
const STACK_BYTES: usize = 64 << 20;
/// Fuel for the expressions of a grammar. The library's default is for the largest schemas, of megabytes; [`crate::sources::BYTES_MAX`] is a fraction.
const COMPILE_FUEL: u64 = 200_000;
/// States of the expressions of one answer, at most, of one to two kilobytes each, as the library says.
const STATES_MAX: usize = 16_384;
/// Characters of a message of the library that are kept.
const MESSAGE_CHARS_MAX: usize = 240;

/// The library with the vocabulary of a model.
pub(crate) struct Library {
    tokenizer: Tokenizer,
    vocab_size: u32,
    ends: Vec<Token>,
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
}

impl Library {
    pub(crate) fn new(tokenizer: Tokenizer, vocab_size: u32, ends: Vec<Token>) -> Self {
        Self { tokenizer, vocab_size, ends, factory: OnceLock::new() }
    }

    /// Compiles a grammar within the limits of the library.
    pub(crate) fn matcher(&self, source: Source) -> Result<Matcher, GrammarError> {
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        let grammar = match source {
            Source::Schema(schema) => TopLevelGrammar::from_json_schema(schema),
            Source::Regex(regex) => TopLevelGrammar::from_regex(&regex),
            Source::Lark(grammar) => TopLevelGrammar::from_lark(grammar),
        };
        let matcher = on_a_deep_stack(|| llguidance::Matcher::new(factory.create_parser(grammar)))?;
        match matcher.get_error() {
            None => Ok(Matcher(matcher)),
            Some(message) => Err(refusal(&message)),
        }
    }

    /// Makes the tables of the vocabulary.
    fn factory(&self) -> Result<ParserFactory, GrammarError> {
        let words = self.words()?;
        let ends: Vec<Token> = self.ends.iter().copied().filter(|end| *end < self.vocab_size).collect();
        let first = *ends.first().ok_or(GrammarError::NoEnd)?;
        let made = on_a_deep_stack(|| {
            let trie = TokTrie::from(&TokRxInfo::new(self.vocab_size, first), &words).with_eos_tokens(&ends);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new(&env, InferenceCapabilities::default(), &earley::SlicedBiasComputer::json_slices())
        })?;
        let mut factory = made.map_err(|error| refusal(&error.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        (limits.initial_lexer_fuel, limits.max_lexer_states) = (COMPILE_FUEL, STATES_MAX);
        // With them a message has the grammar and the text so far.
        limits.verbose_errors = false;
        Ok(factory)
    }

    /// Returns the bytes of each token. Special tokens have a mark in front, so that no text is one.
    fn words(&self) -> Result<Vec<Vec<u8>>, GrammarError> {
        let word = |id| {
            let (bytes, is_special) = self.tokenizer.piece(id).ok_or(GrammarError::Tokenizer)?;
            let mark: &[u8] = if is_special { &[TokTrie::SPECIAL_TOKEN_MARKER] } else { &[] };
            Ok([mark, bytes].concat())
        };
        (0..self.vocab_size).map(word).collect()
    }
}

/// Runs code of the library on a thread with a large stack.
fn on_a_deep_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, GrammarError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let thread = thread
            .spawn_scoped(scope, || trunkline_foreign::call(run))
            .map_err(|error| GrammarError::TooComplex(format!("the system has no memory for a stack: {error}")))?;
        let ran = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        ran.map_err(|panicked| GrammarError::Malformed(format!("the library failed on it: {panicked}")))
    })
}

/// Returns the first line of a message of the library. Further ones have the source once more.
fn line(message: &str) -> String {
    let first = message.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason was given");
    first.chars().take(MESSAGE_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn refusal(message: &str) -> GrammarError {
    let line = line(message);
    let is_limit = ["too big", "too large", "too complex", "too deeply", "fuel", "precomputation", "too many"];
    match is_limit.into_iter().any(|words| line.contains(words)) {
        true => GrammarError::TooComplex(line),
        false => GrammarError::Malformed(line),
    }
}

/// Follows one answer.
pub struct Matcher(llguidance::Matcher);

impl Matcher {
    /// Returns a matcher at the same place that shares nothing with this one.
    pub(crate) fn fork(&self) -> Self {
        Self(self.0.deep_clone())
    }

    /// Takes in the next token of the answer. Behind the end of the grammar anything may follow.
    ///
    /// # Errors
    ///
    /// The token does not go with the grammar, or the place that it leads to is beyond the limits. The matcher is of no use any more.
    pub fn push(&mut self, token: Token) -> Result<(), MatchError> {
        if self.0.is_stopped() && !self.0.is_error() {
            return Ok(());
        }
        let pushed = trunkline_foreign::call(|| self.0.consume_token(token));
        match pushed {
            Ok(Ok(())) if self.0.stop_reason().is_ok() => Ok(()),
            Ok(_) if self.0.stop_reason() == StopReason::InternalError => Err(MatchError::Token(token)),
            Ok(Ok(())) => Err(MatchError::Stuck(format!("the grammar is beyond its limits: {}", self.0.stop_reason()))),
            Ok(Err(error)) => Err(MatchError::Stuck(line(&error.to_string()))),
            Err(panicked) => Err(MatchError::Stuck(panicked.to_string())),
        }
    }

    /// Returns the tokens that may be next: those that end an answer if the grammar is complete.
    ///
    /// # Errors
    ///
    /// The place in the grammar is beyond the limits, or no token may follow there. The matcher is of no use any more.
    pub fn allowed(&mut self) -> Result<Allowed, MatchError> {
        match trunkline_foreign::call(|| self.0.compute_mask_or_eos()) {
            Ok(Ok(_)) if !self.0.stop_reason().is_ok() => Err(MatchError::Stuck(self.0.stop_reason().to_string())),
            Ok(Ok(mask)) => Ok(Allowed::of_words(mask.as_slice().to_vec())),
            Ok(Err(error)) => Err(MatchError::Stuck(line(&error.to_string()))),
            Err(panicked) => Err(MatchError::Stuck(panicked.to_string())),
        }
    }
}
