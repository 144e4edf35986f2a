//! Answers with a structure: the tokens that may be next in each, computed on threads of their own.
//!
//! The tokens that may follow depend on the answer so far alone, and not on the model. So they are computed as soon as the last token is known, while the
//! model runs the next step, and [`Following::allowed`] waits only for what is left of that. A sequence that begins again takes in its tokens
//! again, and is at the same place.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_grammar::{Allowed, Grammars, Matcher};
use trunkline_port::{Grammar, Step, StepSeq, Token};

use crate::error::WorkerError;
use crate::worker::mirror::Mirror;

/// Answers with a structure of one worker, by slot.
pub(crate) struct Structures {
    /// `None`: the worker cannot honour any.
    grammars: Option<Arc<Grammars>>,
    slots: Vec<Option<Structure>>,
    /// Started for the first of them.
    threads: Option<rayon::ThreadPool>,
    n_threads: usize,
}

/// One answer.
#[derive(Clone)]
struct Structure {
    /// Number of tokens of the prompt.
    n_prompt: u32,
    /// Number of generated tokens behind which a thread was asked to look for what may follow.
    looked_behind: Option<u32>,
    answer: Arc<Answer>,
}

/// Part of a [`Structure`] that threads share.
struct Answer {
    /// Number of generated tokens that are known. Only the worker's thread reads and writes it: it does not wait for the others.
    n_tokens: AtomicU32,
    progress: Mutex<Progress>,
}

/// Place of an answer in its grammar.
struct Progress {
    grammars: Option<Arc<Grammars>>,
    grammar: Grammar,
    matcher: Option<Matcher>,
    /// Generated tokens that the matcher has not taken in.
    pending: Vec<Token>,
    /// Tokens that may follow the last one that is known; `Err` if the answer cannot go on.
    next: Option<Result<Allowed, NoNext>>,
}

/// The answer cannot go on: its grammar is beyond the limits there, or the worker has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoNext;

/// An answer on which no thread is at work.
pub(crate) struct Following<'a> {
    answer: &'a Answer,
    progress: MutexGuard<'a, Progress>,
}

impl Structures {
    /// Makes the place for the answers of a worker that computes with `n_threads` threads.
    pub(crate) fn new(n_threads: usize) -> Self {
        Self { grammars: None, slots: Vec::new(), threads: None, n_threads }
    }

    /// Sets the compiler of grammars.
    pub(crate) fn set_grammars(&mut self, grammars: Arc<Grammars>) {
        self.grammars = Some(grammars);
    }

    /// Forgets all answers.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    /// Takes in the tokens of a step that the mirror has taken in, and begins to compute what the step needs.
    ///
    /// # Errors
    ///
    /// The system has no threads.
    pub(crate) fn apply(&mut self, step: &Step, mirror: &Mirror) -> Result<(), WorkerError> {
        let mut starts = step.starts.iter();
        for seq in &step.seqs {
            let at = seq.slot as usize;
            if seq.start {
                let start = starts.next().map(|start| (&start.sampling.grammar, start.n_prompt));
                let structure = start.and_then(|(grammar, n_prompt)| Some(self.structure(grammar.as_ref()?, n_prompt)));
                if structure.is_some() || self.slots.get(at).is_some_and(Option::is_some) {
                    self.slots.resize(self.slots.len().max(at + 1), None);
                    self.slots[at] = structure;
                }
            }
            let Some(structure) = self.slots.get(at).and_then(Option::as_ref) else { continue };
            structure.take_in(seq.computed - seq.n_history, step.history(seq));
            structure.take_in(seq.computed, mirror.run_tokens(step, seq));
        }
        self.look_ahead(step)
    }

    fn structure(&self, grammar: &Grammar, n_prompt: u32) -> Structure {
        let (grammars, grammar) = (self.grammars.clone(), grammar.clone());
        let progress = Progress { grammars, grammar, matcher: None, pending: Vec::new(), next: None };
        let answer = Answer { n_tokens: AtomicU32::new(0), progress: Mutex::new(progress) };
        Structure { n_prompt, looked_behind: None, answer: Arc::new(answer) }
    }

    /// Begins to compute what may follow in the answers that a step samples for.
    ///
    /// # Errors
    ///
    /// The system has no threads.
    pub(crate) fn look_ahead(&mut self, step: &Step) -> Result<(), WorkerError> {
        for seq in step.seqs.iter().filter(|seq| seq.sample) {
            let Some(Some(structure)) = self.slots.get_mut(seq.slot as usize) else { continue };
            let n_tokens = structure.answer.n_tokens.load(Ordering::Relaxed);
            if structure.looked_behind.replace(n_tokens) == Some(n_tokens) {
                continue;
            }
            let threads = match &mut self.threads {
                Some(threads) => threads,
                none => none.insert(threads(self.n_threads)?),
            };
            let answer = Arc::clone(&structure.answer);
            threads.spawn(move || {
                let _ = answer.following().allowed();
            });
        }
        Ok(())
    }

    /// Returns the answer of a sequence, if it has a structure, once no thread is at work on it.
    pub(crate) fn of(&self, seq: &StepSeq) -> Option<Following<'_>> {
        let structure = self.slots.get(seq.slot as usize)?.as_ref()?;
        Some(structure.answer.following())
    }
}

fn threads(n: usize) -> Result<rayon::ThreadPool, WorkerError> {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(n).thread_name(|i| format!("grammar-{i}"));
    builder.build().map_err(|error| WorkerError::Threads { threads: n, problem: error.to_string() })
}

impl Structure {
    /// Takes in tokens of the sequence, the first at position `at`: those that were generated and are not known yet.
    fn take_in(&self, at: u32, tokens: &[Token]) {
        let known = self.n_prompt + self.answer.n_tokens.load(Ordering::Relaxed);
        let new = tokens.get(known.saturating_sub(at) as usize..).unwrap_or_default();
        if !new.is_empty() {
            let mut following = self.answer.following();
            new.iter().for_each(|token| following.push(*token));
        }
    }
}

impl Answer {
    fn following(&self) -> Following<'_> {
        Following { answer: self, progress: self.progress.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl Following<'_> {
    /// Notes the next token of the answer.
    pub(crate) fn push(&mut self, token: Token) {
        self.answer.n_tokens.fetch_add(1, Ordering::Relaxed);
        self.progress.pending.push(token);
        self.progress.next = None;
    }

    /// Returns the tokens that may follow.
    ///
    /// # Errors
    ///
    /// The answer cannot go on.
    pub(crate) fn allowed(&mut self) -> Result<&Allowed, NoNext> {
        let progress = &mut *self.progress;
        if progress.next.is_none() {
            progress.next = Some(progress.find());
        }
        progress.next.as_ref().map_or(Err(NoNext), |next| next.as_ref().map_err(|no_next| *no_next))
    }
}

impl Progress {
    fn find(&mut self) -> Result<Allowed, NoNext> {
        let matcher = match &mut self.matcher {
            Some(matcher) => matcher,
            none => {
                // The door compiled it, and it is kept; if it is not any more, it is compiled again.
                let compiled = self.grammars.as_ref().ok_or(NoNext)?.compile(&self.grammar).map_err(|_| NoNext)?;
                if self.pending.is_empty() {
                    *none = Some(compiled.matcher());
                    return Ok(compiled.first().clone());
                }
                none.insert(compiled.matcher())
            }
        };
        self.pending.drain(..).try_for_each(|token| matcher.push(token)).map_err(|_| NoNext)?;
        matcher.allowed().map_err(|_| NoNext)
    }
}

#[cfg(test)]
mod tests {
    use trunkline_port::GrammarKind;
    use trunkline_text::Tokenizer;

    use super::*;

    fn structures() -> Structures {
        let mut structures = Structures::new(1);
        structures.set_grammars(Arc::new(Grammars::new(Tokenizer::bytes(), 258, vec![257])));
        structures
    }

    fn take_in(structure: &Structure, at: u32, text: &str) {
        structure.take_in(at, &text.bytes().map(Token::from).collect::<Vec<_>>());
    }

    fn next(structure: &Structure) -> Result<Vec<Token>, NoNext> {
        structure.answer.following().allowed().map(|allowed| allowed.tokens().collect())
    }

    #[test]
    fn tokens_of_an_answer_are_taken_in_once_however_steps_divide_them() {
        let structures = structures();
        let behind = |parts: &[(u32, &str)]| {
            let structure = structures.structure(&Grammar::new(GrammarKind::Regex, "abcd"), 3);
            parts.iter().for_each(|(at, text)| take_in(&structure, *at, text));
            next(&structure)
        };
        let is_next = |c: char| Ok(vec![u32::from(c)]);
        assert_eq!(behind(&[]), is_next('a'));
        assert_eq!(behind(&[(0, "xyz")]), is_next('a'));
        assert_eq!(behind(&[(0, "xyzab")]), is_next('c'));
        assert_eq!(behind(&[(0, "xy"), (2, "za"), (4, "b"), (4, "b"), (5, "c")]), is_next('d'));
        assert_eq!(behind(&[(3, "ab"), (2, "zabc")]), is_next('d'), "a step that was sent again");
        assert_eq!(behind(&[(0, "xyzabcd")]), Ok(vec![257]));
        assert_eq!(behind(&[(0, "xyzb")]), Err(NoNext));
    }

    #[test]
    fn a_worker_without_grammars_goes_no_further() {
        let grammar = Grammar::new(GrammarKind::Regex, "a");
        assert_eq!(next(&Structures::new(1).structure(&grammar, 0)), Err(NoNext));
        assert_eq!(next(&structures().structure(&Grammar::new(GrammarKind::Regex, "("), 0)), Err(NoNext));
        let structure = structures().structure(&grammar, 0);
        assert_eq!(next(&structure), Ok(vec![97]));
        structure.answer.following().push(97);
        assert_eq!(next(&structure), Ok(vec![257]), "what was allowed before is forgotten");
    }
}
