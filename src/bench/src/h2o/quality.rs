//! Quality under eviction: perplexity, KL and top-1 agreement of a forced continuation, and recall of facts asked for after it.
//!
//! A text's prompt is computed once, without eviction. Each case then is a fork of it: it shares the blocks of the prompt, runs the rest of the
//! text one token per step, and evicts on the way. At the end each fact is asked for in a fork of the case, so no question sees another.

use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use trunkline_core::h2o::{REGISTRY, Rows, Scorer, Settings, State, Target};
use trunkline_port::ScoreKind;
use trunkline_text::Tokenizer;

use trunkline::h2o::divergence::{divergence, log_softmax};
use trunkline::h2o::rig::{Answer, Eviction, Reported, Rig, Run, Seq};
use trunkline::h2o::texts::{self, Expected, Fact, Text, recall};

/// Cases that run in one batch, at most.
const CASES_AT_ONCE: usize = 8;

/// A way to evict.
#[derive(Clone, Debug)]
pub struct Case {
    /// Scorer with parameters, as in the registry.
    pub scorer: String,
    /// Of each layer group that evicts, or one for all; they differ in weights alone.
    pub settings: Vec<Settings>,
}

impl Case {
    /// Returns the target of the evicting layers: one of so many tokens is kept.
    pub fn ratio(&self) -> f32 {
        match self.settings[0].target {
            Target::Adaptive { lossy_ratio } => lossy_ratio,
            Target::Static { keep_ratio } => 1.0 / keep_ratio,
        }
    }
}

/// Text after a prompt of so many tokens, and how much of it counts.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Tokens of the prompt, whole blocks.
    pub prompt: usize,
    /// Tokens after the prompt, whole blocks.
    pub after: usize,
    /// Tokens after the prompt before figures count: the first plan of most scorers.
    pub before: usize,
}

/// Sums over the counted tokens of one text, and the recall of its facts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Quality {
    /// Name of the text.
    pub text: String,
    /// Counted tokens.
    pub tokens: u32,
    /// Sum of the negative log likelihood of the text, nats.
    pub nats: f64,
    /// Sum of the divergence from the unevicted run, nats.
    pub kl: f64,
    /// Tokens whose most likely successor is that of the unevicted run.
    pub agree: u32,
    /// Sums of squares over counted tokens: of the change of the negative log likelihood, and of the divergence.
    pub change_squares: f64,
    pub kl_squares: f64,
    /// Sum over counted tokens of the tokens of the sequence, and of the tokens held by evicting layers.
    pub positions: u64,
    pub held: f64,
    /// Positions of the facts.
    pub facts: Vec<usize>,
    /// Share of the words recalled, by fact in the order of positions.
    pub recall: Vec<f64>,
    /// Tokens that the model would have gone on with, as text.
    pub answers: Vec<String>,
}

/// Log probabilities of the unevicted run, by token after the prompt.
type Baseline = Vec<Vec<f32>>;

/// Callback at the end of a text, for each case: gets the prompt, the number of the case, and the sequence.
pub type Look<'a> = &'a mut dyn FnMut(&Rig, &Seq, usize, &Seq) -> anyhow::Result<()>;

/// Measures all cases on one text. The first figures are those of the unevicted run.
///
/// # Errors
/// If the worker fails, blocks run out, or `look` fails.
pub fn measure(
    rig: &mut Rig,
    text: &Text,
    tokenizer: &Tokenizer,
    lengths: Lengths,
    cases: &[Case],
    look: Look<'_>,
) -> anyhow::Result<Vec<Quality>> {
    let prompt = &text.tokens[..lengths.prompt];
    let scorers: Vec<Arc<dyn Scorer>> = cases
        .iter()
        .map(|case| Ok(REGISTRY.make(&case.scorer, case.settings[0])?.into()))
        .collect::<anyhow::Result<_>>()?;
    let max_of_all = scorers.iter().any(|scorer| scorer.needs().kind == ScoreKind::Max);
    let mut origin = rig.start();
    let (_, of_all) = rig.prefill(&mut origin, prompt, max_of_all)?;
    let mut baseline = Baseline::new();
    let mut run = vec![Measured::new(rig.fork(&origin), text)];
    force(rig, text, lengths, &mut run, &mut |at, rows| {
        if baseline.len() <= at {
            baseline.push(log_softmax(&rows[0]));
        }
    })?;
    let mut out = finish(rig, text, tokenizer, run)?;
    let counted = baseline[lengths.before..].iter().zip(&text.tokens[lengths.prompt + lengths.before + 1..]);
    out[0].nats = counted.map(|(row, token)| -f64::from(row[*token as usize])).sum();
    out.resize_with(1 + cases.len(), Quality::default);
    for at_once in of_one_kind(&scorers) {
        let mut run = Vec::new();
        for at in &at_once {
            let (scorer, settings) = (&scorers[*at], cases[*at].settings.clone());
            let mut measured = Measured::new(rig.fork(&origin), text);
            let state = prompt_scores(rig, &mut origin, prompt, &**scorer, &settings, &of_all)?;
            measured.seq.eviction = Some(Eviction { scorer: Arc::clone(scorer), settings, state });
            rig.evict(&mut measured.seq);
            run.push(measured);
        }
        let mut sums = vec![Quality::default(); run.len()];
        force(rig, text, lengths, &mut run, &mut |at, rows| {
            let next = text.tokens[lengths.prompt + at + 1];
            for (sum, row) in sums.iter_mut().zip(rows) {
                compare(sum, &baseline[at], &log_softmax(row), next);
            }
        })?;
        for (case, measured) in at_once.iter().zip(&run) {
            look(rig, &origin, *case, &measured.seq)?;
        }
        let finished = finish(rig, text, tokenizer, run)?;
        for (case, (all, sums)) in at_once.iter().zip(finished.into_iter().zip(sums)) {
            // The unevicted run is the first.
            let Quality { text, tokens, positions, held, facts, recall, answers, .. } = all;
            out[1 + case] = Quality { text, tokens, positions, held, facts, recall, answers, ..sums };
        }
    }
    rig.end(origin);
    Ok(out)
}

/// Divides cases into those that run in one batch: a step has scores of one kind.
fn of_one_kind(scorers: &[Arc<dyn Scorer>]) -> Vec<Vec<usize>> {
    let mut batches = Vec::new();
    for kind in [ScoreKind::Mean, ScoreKind::Max] {
        let of_kind: Vec<usize> = (0..scorers.len()).filter(|at| scorers[*at].needs().kind == kind).collect();
        batches.extend(of_kind.chunks(CASES_AT_ONCE).map(<[usize]>::to_vec));
    }
    batches
}

/// A sequence under measurement.
struct Measured {
    seq: Seq,
    quality: Quality,
}

impl Measured {
    fn new(seq: Seq, text: &Text) -> Self {
        Self { seq, quality: Quality { text: text.name.clone(), ..Quality::default() } }
    }
}

/// Returns the state of a sequence after the prompt, with the scores that the scorer needs from it.
pub fn prompt_scores(
    rig: &mut Rig,
    origin: &mut Seq,
    prompt: &[u32],
    scorer: &dyn Scorer,
    settings: &[Settings],
    of_all: &[Reported],
) -> anyhow::Result<State> {
    let needs = scorer.needs();
    let mut state = rig.state(scorer, settings);
    if needs.reread_tokens > 0 {
        let scores = rig.read_again(origin, prompt, needs.reread_tokens as usize)?;
        state.report_reread(scorer, &settings[0], &scores, rig.block());
    }
    let block = rig.block();
    let mut report = |reported: &Reported| state.report(scorer, &settings[0], &reported.scores, block, reported.rows);
    match (needs.kind, needs.prompt_rows) {
        (_, 0) => {}
        (ScoreKind::Max, _) => of_all.iter().for_each(&mut report),
        (ScoreKind::Mean, rows) => report(&rig.score_again(origin, prompt, rows.min(512) as usize)?),
    }
    Ok(state)
}

/// Runs the rest of the text through all sequences, one token per step, and evicts. `see` gets the logits after each counted token that
/// has a successor, by its number after the prompt.
fn force(
    rig: &mut Rig,
    text: &Text,
    lengths: Lengths,
    run: &mut [Measured],
    see: &mut dyn FnMut(usize, &[Vec<f32>]),
) -> anyhow::Result<()> {
    // The unevicted run is seen from its first token, so that numbers agree.
    let counts_from = if run[0].seq.eviction.is_some() { lengths.before } else { 0 };
    for at in 0..lengths.after {
        let token = [text.tokens[lengths.prompt + at]];
        let mut runs: Vec<Run<'_>> = run
            .iter_mut()
            .map(|measured| {
                let eviction = measured.seq.eviction.as_mut();
                let scored = eviction.and_then(|Eviction { scorer, state, .. }| {
                    let (rows, kind) = (state.begin_decode(&scorer.needs()), scorer.needs().kind);
                    (rows > 0).then_some((rows, kind))
                });
                Run { seq: &mut measured.seq, tokens: &token, scored, sample: true, again: false }
            })
            .collect();
        let answers = rig.step(&mut runs)?;
        let mut rows = Vec::with_capacity(answers.len());
        for (measured, answer) in run.iter_mut().zip(answers) {
            let Answer { logits, scores } = answer;
            rows.push(logits);
            let (seq, quality) = (&mut measured.seq, &mut measured.quality);
            if let Some(eviction) = &mut seq.eviction {
                let Eviction { scorer, settings, state } = eviction;
                if !scores.is_empty() {
                    state.report(&**scorer, &settings[0], &scores, rig.block(), Rows { n: 1, prefill: false });
                }
                state.count_steps(1);
            }
            if at >= lengths.before && at + 1 < lengths.after {
                let tokens = seq.computed as u32;
                quality.tokens += 1;
                quality.positions += u64::from(tokens);
                quality.held += rig.held_tokens(seq);
            }
            rig.evict(seq);
        }
        if at >= counts_from && at + 1 < lengths.after {
            see(at, &rows);
        }
    }
    Ok(())
}

fn compare(sum: &mut Quality, baseline: &[f32], case: &[f32], next: u32) {
    let (kl, change) = (divergence(baseline, case), f64::from(baseline[next as usize] - case[next as usize]));
    sum.kl += kl;
    sum.kl_squares += kl * kl;
    sum.change_squares += change * change;
    sum.nats -= f64::from(case[next as usize]);
    sum.agree += u32::from(argmax(baseline) == argmax(case));
}

/// Asks for the facts, and ends the sequences. Answers are forced: after each word the model sees the right one, and a word counts if the
/// model would have gone on with it.
fn finish(rig: &mut Rig, text: &Text, tokenizer: &Tokenizer, run: Vec<Measured>) -> anyhow::Result<Vec<Quality>> {
    let mut asked = Vec::new();
    for measured in &run {
        for fact in &text.facts {
            asked.push(Asked::new(rig.fork(&measured.seq), fact, tokenizer)?);
        }
    }
    while asked.iter().any(Asked::is_open) {
        let mut open: Vec<&mut Asked> = asked.iter_mut().filter(|asked| asked.is_open()).collect();
        let mut runs: Vec<Run<'_>> = open
            .iter_mut()
            .map(|asked| {
                let Asked { seq, input, .. } = &mut **asked;
                Run { seq, tokens: input, scored: None, sample: true, again: false }
            })
            .collect();
        let answers = rig.step(&mut runs)?;
        for (asked, answer) in open.into_iter().zip(answers) {
            asked.take(argmax(&answer.logits) as u32);
        }
    }
    let mut asked = asked.into_iter();
    let mut out = Vec::new();
    for Measured { seq, mut quality } in run {
        for fact in &text.facts {
            let asked = asked.next().context("an answer for each fact")?;
            quality.facts.push(fact.position);
            quality.recall.push(recall(&asked.expected, &asked.answer));
            quality.answers.push(tokenizer.decode(&asked.answer));
            rig.end(asked.seq);
        }
        rig.end(seq);
        out.push(quality);
    }
    Ok(out)
}

/// A question on its way.
struct Asked {
    seq: Seq,
    /// Tokens to run next: the question, then the right token.
    input: Vec<u32>,
    expected: Vec<Expected>,
    /// Tokens that the model would have gone on with.
    answer: Vec<u32>,
}

impl Asked {
    fn new(seq: Seq, fact: &Fact, tokenizer: &Tokenizer) -> anyhow::Result<Self> {
        let (input, expected) = texts::asked(fact, tokenizer)?;
        Ok(Self { seq, input, expected, answer: Vec::new() })
    }

    fn is_open(&self) -> bool {
        self.answer.len() < self.expected.len()
    }

    fn take(&mut self, token: u32) {
        self.input = vec![self.expected[self.answer.len()].token];
        self.answer.push(token);
    }
}

fn argmax(row: &[f32]) -> usize {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_do_not_diverge_and_others_do() {
        let (row, other) = (log_softmax(&[1.0, 3.0, 2.0]), log_softmax(&[3.0, 1.0, 2.0]));
        assert!((row.iter().map(|p| p.exp()).sum::<f32>() - 1.0).abs() < 1e-6);
        let mut sum = Quality::default();
        compare(&mut sum, &row, &row, 1);
        assert_eq!((sum.kl, sum.agree), (0.0, 1));
        assert!((sum.nats + f64::from(row[1])).abs() < 1e-9);
        compare(&mut sum, &row, &other, 1);
        assert!(sum.kl > 1.0 && sum.agree == 1);
        assert!((sum.kl_squares - sum.kl * sum.kl).abs() < 1e-9 && (sum.change_squares - 4.0).abs() < 1e-5);
        assert_eq!(argmax(&[2.0, 2.0, 1.0]), 0);
    }
}
