//! KV heads that have to keep every token: those without whose far tokens the model would say something else.
//!
//! The model reads a text. Then one KV head at a time drops the blocks that `h2o` would drop at a ratio of 6, and the model reads on: the rest
//! of the text, and, after an instruction to repeat the text, its beginning. The loss of a head is the divergence of the next token's
//! distribution from that of the model with every token. Few heads lose much: those that fetch tokens from far back, which DuoAttention
//! (arXiv 2410.10819) finds by training. The repetition is that of KVzip (arXiv 2505.23416).
//!
//! A head drops tokens alone if it has a layer group of its own, and a step costs the more the more groups there are. So heads are measured in rounds: in each
//! some heads have a group of their own, and the others share about as many groups. The time grows with the number of heads, and not with its square.

use std::io::{self, Write};
use std::ops::Range;

use anyhow::{Context, ensure};
use trunkline_core::h2o::{REGISTRY, Scorer, Settings, Target};
use trunkline_port::{Keeps, LayerGroup, ModelInfo, RequestId};
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

use super::divergence::{divergence, log_softmax};
use super::full_heads::FullHeads;
use super::rig::{BLOCK, Rig, Run, Seq};
use super::sources::{CALIBRATION, Source};
use super::texts::{self, Outline};
use super::total::{self, Heads};

/// Tokens of a text by tokens that a head keeps while its loss is measured.
const RATIO: f32 = 6.0;
/// Last tokens that a head keeps, at most, as of the default of `--h2o on`.
const RECENT_MAX: usize = 256;
/// Of shorter texts, one of so many tokens. Scores then choose as large a share of the kept tokens as in a text of 4,096 tokens.
const RECENT_PART: usize = 16;
/// Minimum number of tokens of a text: of shorter ones the first and the last tokens alone are as many as a head may keep.
pub const TOKENS_MIN: u32 = 512;
/// Maximum number of tokens after a text: an instruction and the first tokens of the text, and those that are measured.
const BEHIND_MAX: usize = LEAD + MEASURED;
/// Tokens of the instruction and of the repetition's beginning, whole blocks.
const LEAD: usize = 64;
/// Tokens after each of which the next token's distribution is compared, in each of the two ways to read on.
const MEASURED: usize = 32;
const INSTRUCTION: &str = "\n\nRepeat the previous text exactly:\n";
/// Maximum number of heads that are measured in one round.
const HEADS_AT_ONCE: usize = 30;
/// Maximum number of tokens of each text, unless given.
const TOKENS_DEFAULT: usize = 2048;

/// Share of the floors, the first and last tokens that every head keeps, in a sequence for which heads are chosen: 288 of 4,096 tokens.
const FLOORS: f64 = 288.0 / 4096.0;

/// Loss of each KV head of a model that drops tokens alone, as shares that add up to 1; 0 for heads of layers with a sliding window.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadLosses {
    /// By the rest of the text: `[layer * n_kv_heads + head]`.
    pub rest: Vec<f64>,
    /// By the repetition of the text.
    pub repeated: Vec<f64>,
    /// Heads that keep every token at any total; without, heads are chosen by their losses.
    pub keep: Option<FullHeads>,
}

/// Returns the tokens of each text, whole blocks, if no number is given: 2,048, or as many as a context of `max_context` tokens holds, at least
/// [`TOKENS_MIN`].
pub fn default_tokens(max_context: u32) -> usize {
    let most = (max_context as usize).saturating_sub(BEHIND_MAX) / BLOCK * BLOCK;
    most.clamp(TOKENS_MIN as usize, TOKENS_DEFAULT)
}

/// Texts over which losses are measured.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// Tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// Sources of the texts.
    pub sources: &'a [Source],
    /// Texts of each source.
    pub texts: u32,
    /// Tokens of each text, whole blocks.
    pub tokens: usize,
    /// Threads that compute; 0 is one per core.
    pub threads: usize,
}

impl Reading<'_> {
    /// Makes the texts, the first of each source first.
    fn texts(&self) -> anyhow::Result<Vec<texts::Text>> {
        let numbers = (0..u64::from(self.texts)).flat_map(|number| self.sources.iter().map(move |of| (number, of)));
        let text = |(number, source)| {
            let (set, prompt, after) = (&CALIBRATION, self.tokens, MEASURED);
            texts::text(&Outline { set, source, number, prompt, after, n_facts: 0 }, self.tokenizer)
        };
        numbers.map(text).collect()
    }
}

/// Measures the loss of each KV head of a model.
///
/// # Errors
/// If the model's context cannot hold a text, a source has too little text, or the model cannot run.
pub fn head_losses(model: Model, reading: &Reading<'_>) -> anyhow::Result<HeadLosses> {
    check_context(reading.tokens, model.info().max_context as usize)?;
    let settings = settings(reading.tokens);
    let scorer = REGISTRY.make("h2o", settings)?;
    let texts = reading.texts()?;
    Measure { reading: *reading, texts, scorer, settings }.in_rounds(model, HEADS_AT_ONCE)
}

/// Checks that a context holds texts of so many tokens.
fn check_context(tokens: usize, context: usize) -> anyhow::Result<()> {
    let least = TOKENS_MIN as usize + BEHIND_MAX;
    ensure!(
        context >= least,
        "the model's context of {context} tokens is too short to find its KV heads, which takes {least}; name heads by hand, as in --h2o-layers 7,18.2"
    );
    let most = (context - BEHIND_MAX) / BLOCK * BLOCK;
    ensure!(
        tokens <= most,
        "texts of {tokens} tokens do not fit the model's context of {context}; give --tokens {most} at most"
    );
    Ok(())
}

impl HeadLosses {
    /// Returns the heads that keep every token: [`Self::keep`], or those that do if all heads, but for those of layers with a sliding window, are to
    /// have the total ratio `total`; at least one does, and one drops tokens.
    ///
    /// What a head that keeps one token of r loses is taken to grow with r, so that all together lose least if the tokens beyond the floors go with the root of
    /// each head's loss ([`FullHeads::groups`]). A head that would get more than there are keeps every token, and what it does not need
    /// goes to the others. So heads are taken one by one, in falling order of loss, until the next would not get all tokens.
    ///
    /// # Errors
    /// If the losses are of a model with other heads.
    pub fn full_heads(&self, info: &ModelInfo, total: f32) -> anyhow::Result<FullHeads> {
        self.check(info)?;
        if let Some(keep) = &self.keep {
            return Ok(self.join(keep.clone()));
        }
        let (_, mut others) = divide(info);
        let budget = others.len() as f64 * (1.0 / f64::from(total) - FLOORS);
        let mut full = Vec::new();
        while others.len() > 1 {
            let losses = self.joint(|head| others.contains(&head));
            let Some(at) = most_lossy(&losses, &others) else { break };
            let roots: f64 = others.iter().map(|head| losses[*head as usize].sqrt()).sum();
            let left = budget - full.len() as f64 * (1.0 - FLOORS);
            let gets = left * losses[others[at] as usize].sqrt() / roots;
            // Without any loss `gets` is not a number.
            if !full.is_empty() && (gets <= 1.0 - FLOORS || roots == 0.0) {
                break;
            }
            full.push(others.remove(at));
        }
        Ok(self.join(FullHeads::new(full, info.n_layers, info.n_kv_heads)))
    }

    /// Returns the heads that keep every token for a total ratio of `total` at least and a ratio `evicting` of the other heads: [`Self::keep`], or the
    /// heads with the greatest losses, as many as the total allows, and at least one.
    ///
    /// # Errors
    /// If the losses are of a model with other heads.
    pub fn full_heads_at(&self, info: &ModelInfo, total: f32, evicting: f32) -> anyhow::Result<FullHeads> {
        let first = self.full_heads(info, total)?;
        if self.keep.is_some() {
            return Ok(first);
        }
        let (_, mut others) = divide(info);
        let reaches = |whole: usize, dropping: usize| {
            let heads = Heads { whole: whole as u32, dropping: dropping as u32 };
            total::of(evicting, heads, 0.0) >= total
        };
        let mut full = Vec::new();
        while others.len() > 1 && (full.is_empty() || reaches(full.len() + 1, others.len() - 1)) {
            let losses = self.joint(|head| others.contains(&head));
            let Some(at) = most_lossy(&losses, &others) else { break };
            full.push(others.remove(at));
        }
        Ok(self.join(FullHeads::new(full, info.n_layers, info.n_kv_heads)))
    }

    /// Checks that there is a loss for each head of a model.
    ///
    /// # Errors
    /// If the losses are of a model with other heads.
    pub fn check(&self, info: &ModelInfo) -> anyhow::Result<()> {
        let (n, heads) = (self.rest.len(), (info.n_layers * info.n_kv_heads) as usize);
        ensure!(
            n == heads && self.repeated.len() == heads && self.keep.as_ref().is_none_or(|keep| keep.n_all() == heads),
            "there are losses of {n} KV heads, and the model has {heads}; run trunkline h2o calibrate again"
        );
        Ok(())
    }

    /// Adds the losses to a set of heads. The two ways to read on count equally over the heads outside the set.
    pub fn join(&self, full: FullHeads) -> FullHeads {
        let losses = self.joint(|head| !full.contains(head));
        full.with_losses(losses)
    }

    /// Returns the loss of each head in both ways to read on, which count equally over the heads that drop tokens.
    fn joint(&self, drops: impl Fn(u32) -> bool) -> Vec<f64> {
        let [rest, repeated] = [&self.rest, &self.repeated].map(|shares| {
            let dropping = (0..).zip(shares).filter(|(head, _)| drops(*head));
            let all: f64 = dropping.map(|(_, share)| share).sum();
            shares.iter().map(move |share| if all > 0.0 { share / all } else { 0.0 })
        });
        rest.zip(repeated).map(|(rest, repeated)| rest + repeated).collect()
    }
}

/// Returns the place of the head with the greatest loss; of equal heads the lowest.
fn most_lossy(losses: &[f64], heads: &[u32]) -> Option<usize> {
    let loss = |at: &usize| losses[heads[*at] as usize];
    (0..heads.len()).rev().max_by(|a, b| loss(a).total_cmp(&loss(b)))
}

/// Texts to be read, and the way in which heads drop tokens.
struct Measure<'a> {
    reading: Reading<'a>,
    texts: Vec<texts::Text>,
    scorer: Box<dyn Scorer>,
    settings: Settings,
}

impl Measure<'_> {
    /// Measures all heads, `at_once` in a round.
    fn in_rounds(&self, mut model: Model, at_once: usize) -> anyhow::Result<HeadLosses> {
        let info = model.info();
        let (windows, heads) = divide(&info);
        let n_all = (info.n_layers * info.n_kv_heads) as usize;
        let mut shares = [vec![0.0; n_all], vec![0.0; n_all]];
        // Forks share the text; each has blocks of its own behind it.
        let Reading { tokens, threads, .. } = self.reading;
        let memory = tokens + (at_once + 1) * (BEHIND_MAX + BLOCK);
        for (number, round) in heads.chunks(at_once).enumerate() {
            let groups = round_groups(&windows, &heads, round);
            let mut rig = Rig::new(model.with_groups(groups)?, memory, BLOCK, threads, true)?;
            let own: Vec<usize> = (windows.len()..windows.len() + round.len()).collect();
            let of_round = self.losses(&mut rig, &own, |text, n| {
                let measured = number * at_once + round.len();
                let (heads, texts) = (heads.len(), self.texts.len());
                progress(&format!("{text}, text {n} of {texts}: {measured} of {heads} KV heads measured"));
            })?;
            for (shares, losses) in shares.iter_mut().zip(of_round) {
                round.iter().zip(losses).for_each(|(head, loss)| shares[*head as usize] = loss);
            }
            model = rig.into_model().context("the worker still has the model")?;
        }
        for losses in &mut shares {
            let total: f64 = losses.iter().sum();
            losses.iter_mut().for_each(|loss| *loss = if total > 0.0 { *loss / total } else { 0.0 });
        }
        let [rest, repeated] = shares;
        Ok(HeadLosses { rest, repeated, keep: None })
    }

    /// Returns the loss of each group, if it drops tokens alone, over all texts: by the rest of the text, and by its repetition. `done` gets the name of
    /// each text that is read, and the number of texts so far.
    fn losses(&self, rig: &mut Rig, groups: &[usize], done: impl Fn(&str, usize)) -> anyhow::Result<[Vec<f64>; 2]> {
        let Reading { tokenizer, tokens, .. } = self.reading;
        let (instruction, begin) = (texts::behind(INSTRUCTION, tokenizer)?, texts::begin(tokenizer)?.len());
        let mut losses = [vec![0.0; groups.len()], vec![0.0; groups.len()]];
        for (n, text) in (1..).zip(&self.texts) {
            let (name, (text, rest)) = (&text.name, text.tokens.split_at(tokens));
            // Of the repetition, so much is there already that whole blocks are.
            let again = &text[begin..];
            let lead: Vec<u32> = instruction.iter().chain(again).copied().take(LEAD).collect();
            let repeated = &again[LEAD.saturating_sub(instruction.len())..][..MEASURED];
            let mut origin = rig.start();
            rig.prefill(&mut origin, text, false)?;
            self.add_losses(rig, (&mut origin, text), rest, groups, &mut losses[0])?;
            rig.prefill(&mut origin, &lead, false)?;
            self.add_losses(rig, (&mut origin, &[text, &lead].concat()), repeated, groups, &mut losses[1])?;
            rig.end(origin);
            done(name, n);
        }
        Ok(losses)
    }

    /// Adds the loss of each group when the model reads `tokens` behind a sequence with the tokens `prompt`.
    fn add_losses(
        &self,
        rig: &mut Rig,
        (origin, prompt): (&mut Seq, &[u32]),
        tokens: &[u32],
        groups: &[usize],
        losses: &mut [f64],
    ) -> anyhow::Result<()> {
        let dropped = self.dropped(rig, origin, prompt)?;
        // The groups that evict follow those with windows.
        let windowed = groups.iter().min().copied().unwrap_or_default();
        let whole = rig.fork(origin);
        let whole = read_on(rig, vec![whole], tokens)?.pop().context("the model with every token")?;
        let mut seqs = Vec::with_capacity(groups.len());
        for group in groups {
            let mut seq = rig.fork(origin);
            dropped[*group - windowed].iter().for_each(|blocks| rig.drop_blocks(&mut seq, *group, blocks.clone()));
            seqs.push(seq);
        }
        for (loss, rows) in losses.iter_mut().zip(read_on(rig, seqs, tokens)?) {
            *loss += whole.iter().zip(&rows).map(|(whole, row)| divergence(whole, row)).sum::<f64>();
        }
        Ok(())
    }

    /// Returns the blocks dropped by each evicting group after a prompt, by the group's scores of the last tokens between two plans.
    fn dropped(&self, rig: &mut Rig, origin: &mut Seq, prompt: &[u32]) -> anyhow::Result<Vec<Vec<Range<usize>>>> {
        let Self { scorer, settings, .. } = self;
        let reported = rig.score_again(origin, prompt, settings.interval_steps as usize)?;
        let of_all = vec![*settings; rig.n_lists()];
        let mut state = rig.state(&**scorer, &of_all);
        state.report(&**scorer, settings, &reported.scores, BLOCK as u32, reported.rows);
        state.count_steps(reported.rows.n);
        let plans = state.plans(&**scorer, &of_all, RequestId(0), prompt.len() as u32);
        let blocks = |positions: &Range<u32>| positions.start as usize / BLOCK..positions.end as usize / BLOCK;
        Ok(plans.iter().map(|plan| plan.drops.iter().map(blocks).collect()).collect())
    }
}

/// Returns the settings of `h2o` for a text of so many tokens.
fn settings(tokens: usize) -> Settings {
    Settings {
        recent_tokens: (tokens / RECENT_PART).min(RECENT_MAX) as u32,
        block_tokens: BLOCK as u32,
        trigger_tokens: 0,
        target: Target::Adaptive { lossy_ratio: RATIO },
        ..Settings::default()
    }
}

/// Shows progress. If standard error is closed, the line is lost.
fn progress(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Divides a model into layer groups with windows, as groups of heads, and the other heads.
fn divide(info: &ModelInfo) -> (Vec<LayerGroup>, Vec<u32>) {
    let per_layer = info.n_kv_heads;
    let windowed = info.groups.iter().filter(|group| matches!(group.keeps, Keeps::Window(_)));
    let heads = |layers: &[u32]| layers.iter().flat_map(|layer| layer * per_layer..(layer + 1) * per_layer).collect();
    let windows: Vec<LayerGroup> = windowed
        .map(|group| LayerGroup { heads: heads(&group.layers), keeps: group.keeps, ..LayerGroup::default() })
        .collect();
    let is_windowed = |head: &u32| windows.iter().any(|group| group.heads.contains(head));
    let others = (0..info.n_layers * per_layer).filter(|head| !is_windowed(head)).collect();
    (windows, others)
}

/// Returns the layer groups of a round: those with windows, one of each head of the round, and about as many of the other heads, which evict too, so that
/// all heads count in scores.
fn round_groups(windows: &[LayerGroup], heads: &[u32], round: &[u32]) -> Vec<LayerGroup> {
    let evicts = |heads: &[u32]| LayerGroup { heads: heads.to_vec(), keeps: Keeps::Scored, ..LayerGroup::default() };
    let others: Vec<u32> = heads.iter().copied().filter(|head| !round.contains(head)).collect();
    let size = others.len().div_ceil(round.len().max(1)).max(1);
    windows.iter().cloned().chain(round.chunks(1).map(evicts)).chain(others.chunks(size).map(evicts)).collect()
}

/// Runs `tokens`, one per step, through sequences, and ends them. Returns the log probabilities after each token, by sequence.
fn read_on(rig: &mut Rig, mut seqs: Vec<Seq>, tokens: &[u32]) -> anyhow::Result<Vec<Vec<Vec<f32>>>> {
    let mut rows = vec![Vec::with_capacity(tokens.len()); seqs.len()];
    for token in tokens.chunks(1) {
        let run = |seq| Run { seq, tokens: token, scored: None, sample: true, again: false };
        let answers = rig.step(&mut seqs.iter_mut().map(run).collect::<Vec<_>>())?;
        rows.iter_mut().zip(answers).for_each(|(rows, answer)| rows.push(log_softmax(&answer.logits)));
    }
    seqs.into_iter().for_each(|seq| rig.end(seq));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use trunkline_core::h2o::State;

    use super::*;
    use crate::h2o::choice::Choice;
    use crate::h2o::sources::KINDS;

    fn losses_of(model: Model, tokenizer: &Tokenizer) -> HeadLosses {
        let sources = &KINDS.map(Source::of_kind);
        let reading = Reading { tokenizer, sources, texts: 1, tokens: TOKENS_MIN as usize, threads: 1 };
        head_losses(model, &reading).unwrap()
    }

    fn losses(rest: [f64; 10], repeated: [f64; 10]) -> HeadLosses {
        HeadLosses { rest: rest.to_vec(), repeated: repeated.to_vec(), keep: None }
    }

    #[test]
    fn both_ways_count_alike_over_the_heads_that_drop() {
        let rest = [0.5, 0.2, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0];
        let repeated = [0.9, 0.0, 0.0, 0.025, 0.075, 0.0, 0.0, 0.0, 0.0, 0.0];
        let heads = losses(rest, repeated).join(FullHeads::new(vec![0, 9], 5, 2));
        // Shares of the others: 0.4, 0.2, 0.2, 0.2 and 0, 0, 1/4, 3/4. Heads 4 and 3 lose most.
        let groups = heads.groups(&[], Choice::Shared).unwrap();
        assert_eq!([&groups[1].heads[..], &groups[2].heads[..]], [&[3, 4][..], &[1, 2]]);
        let ratio = f64::from(groups[1].weight) / f64::from(groups[2].weight);
        assert!((ratio - (1.4f64 / 0.6).sqrt()).abs() < 0.002, "{ratio}");
    }

    #[test]
    fn heads_keep_every_token_until_the_next_would_not_get_all() {
        let rest = [0.4, 0.02, 0.1, 0.1, 0.05, 0.02, 0.03, 0.1, 0.11, 0.07];
        let (losses, none) = (losses(rest, rest), ModelInfo { n_layers: 5, n_kv_heads: 2, ..ModelInfo::default() });
        let full = |total| losses.full_heads(&none, total).unwrap().to_string();
        // Roots of the losses: 0.632, 0.332, three of 0.316, 0.265, 0.224, 0.173, two of 0.141; their sum is 2.856. At a total of 2.5 there are 3.297 texts
        // beyond the floors: head 0.0 would get 0.730 of one, where 0.930 are beyond the floors. At 2 it would get 0.951, and then the first of the others 0.502. At
        // 1.1 six would get more than all, and the seventh 0.924.
        assert_eq!([full(2.5), full(2.0)], ["0.0"; 2], "one at least");
        assert_eq!(full(1.1), "0.0,1,3.1,4");
        let windows = LayerGroup { layers: vec![1, 4], keeps: Keeps::Window(64), ..LayerGroup::default() };
        let windowed = ModelInfo { groups: vec![windows], ..none.clone() };
        assert_eq!(losses.full_heads(&windowed, 1.4).unwrap().to_string(), "0.0,3.1");
        let (windows, heads) = divide(&windowed);
        let groups = |round: &[u32]| -> Vec<Vec<u32>> {
            round_groups(&windows, &heads, round).into_iter().map(|group| group.heads).collect()
        };
        assert_eq!(
            groups(&[0, 1, 4, 5, 6, 7]),
            [vec![2, 3, 8, 9], vec![0], vec![1], vec![4], vec![5], vec![6], vec![7]]
        );
        assert_eq!(groups(&[5, 6]), [vec![2, 3, 8, 9], vec![5], vec![6], vec![0, 1], vec![4, 7]]);
    }

    #[test]
    fn a_head_counts_by_both_ways_to_read_on() {
        let rest = [0.3, 0.2, 0.2, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0];
        let repeated = [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9];
        let info = ModelInfo { n_layers: 5, n_kv_heads: 2, ..ModelInfo::default() };
        let full = losses(rest, repeated).full_heads(&info, 2.0).unwrap();
        // Without head 4.1 the repetition is the loss of head 1.0 alone.
        assert_eq!(full.to_string(), "1.0,4.1");
        let none = losses([0.0; 10], [0.0; 10]).full_heads(&info, 2.5).unwrap();
        assert_eq!(none.to_string(), "0.0", "heads that lose nothing");
        let keep = Some(FullHeads::new(vec![2, 5], 5, 2));
        let fixed = HeadLosses { keep, ..losses(rest, repeated) }.full_heads(&info, 2.0).unwrap();
        assert_eq!(fixed.to_string(), "1.0,2.1");
        let other = ModelInfo { n_layers: 6, ..info };
        let fault = losses(rest, repeated).full_heads(&other, 2.0).unwrap_err().to_string();
        assert_eq!(fault, "there are losses of 10 KV heads, and the model has 12; run trunkline h2o calibrate again");
    }

    #[test]
    fn scores_choose_among_the_blocks_between_the_first_and_the_last() {
        for (tokens, recent, chosen) in [(TOKENS_MIN, 32, 2), (2048, 128, 12), (4096, 256, 25), (65_536, 256, 665)] {
            let settings = settings(tokens as usize);
            assert_eq!(settings.recent_tokens, recent);
            let scorer = REGISTRY.make("h2o", settings).unwrap();
            let mut state = State::new(&scorer.needs(), 1);
            state.count_steps(settings.interval_steps);
            let plans = state.plans(&*scorer, &[settings], RequestId(0), tokens);
            let dropped: u32 = plans[0].drops.iter().map(|positions| positions.end - positions.start).sum();
            assert_eq!((tokens - dropped - 32 - recent) / BLOCK as u32, chosen, "{tokens} tokens");
        }
    }

    #[test]
    fn every_head_of_a_model_loses_and_heads_are_told_apart() {
        let (model, tokenizer) = (Model::seeded(5), Tokenizer::bytes());
        let info = model.info();
        let losses = losses_of(model, &tokenizer);
        for shares in [&losses.rest, &losses.repeated] {
            assert_eq!(shares.len(), (info.n_layers * info.n_kv_heads) as usize);
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares.iter().all(|share| *share > 0.0));
            assert!(shares.iter().enumerate().all(|(at, share)| !shares[..at].contains(share)), "{shares:?}");
        }
        assert_ne!(losses.rest, losses.repeated);
    }

    #[test]
    fn a_layer_with_a_window_is_left_alone() {
        let group = |layer, keeps| LayerGroup { layers: vec![layer], keeps, ..LayerGroup::default() };
        let groups = vec![group(0, Keeps::Window(64)), group(1, Keeps::All)];
        let model = Model::seeded(5).with_groups(groups).unwrap();
        let losses = losses_of(model, &Tokenizer::bytes());
        assert_eq!(losses.rest[..2], [0.0, 0.0]);
        assert!(losses.rest[2..].iter().all(|share| *share > 0.0));
    }
    #[test]
    fn rounds_find_what_all_heads_at_once_find() {
        let tokenizer = Tokenizer::bytes();
        let (tokenizer, sources) = (&tokenizer, &KINDS.map(Source::of_kind));
        let reading = Reading { tokenizer, sources, texts: 1, tokens: TOKENS_MIN as usize, threads: 1 };
        let settings = settings(reading.tokens);
        let scorer = || REGISTRY.make("h2o", settings).unwrap();
        let found = |at_once| {
            let measure = Measure { reading, texts: reading.texts().unwrap(), scorer: scorer(), settings };
            measure.in_rounds(Model::seeded(5), at_once).unwrap()
        };
        assert_eq!(found(3), found(HEADS_AT_ONCE));
    }

    #[test]
    fn groups_of_a_round_are_bounded_and_waste_at_most_as_many_heads_as_there_are() {
        let heads: Vec<u32> = (0..384).collect();
        for round in heads.chunks(HEADS_AT_ONCE) {
            let groups = round_groups(&[], &heads, round);
            let largest = groups.iter().map(|group| group.heads.len()).max().unwrap();
            assert!(groups.len() <= 2 * HEADS_AT_ONCE && groups.len() * largest <= 2 * heads.len(), "{}", groups.len());
        }
    }

    #[test]
    fn short_contexts_have_texts_that_fit_and_the_shortest_a_message_of_their_own() {
        assert_eq!([4096, 2048, 1000, 608].map(default_tokens), [2048, 1952, 896, 512]);
        for context in [4096, 2048, 1000, 608] {
            check_context(default_tokens(context), context as usize).unwrap();
        }
        let fault = |tokens, context| check_context(tokens, context).unwrap_err().to_string();
        let most = "texts of 2048 tokens do not fit the model's context of 2048; give --tokens 1952 at most";
        assert_eq!(fault(2048, 2048), most);
        let short = "the model's context of 512 tokens is too short to find its KV heads, which takes 608; name heads by hand, as in --h2o-layers 7,18.2";
        assert_eq!(fault(512, 512), short);
    }
}
