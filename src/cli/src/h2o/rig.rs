//! A worker without a scheduler: sequences with block tables of their own, forks of sequences that share blocks, and eviction.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use trunkline_core::h2o::{Rows, Scorer, Settings, State};
use trunkline_port::{Dropped, Keeps, NO_BLOCK, RequestId, ScoreKind, Scored, SeqStart, Step, StepSeq};
use trunkline_worker::{Blocks, Model, Worker, WorkerConfig};

/// Tokens of a KV block by default, and always in `h2o calibrate`.
pub const BLOCK: usize = 16;
/// Tokens of a prefill chunk.
const CHUNK: usize = 512;

/// Eviction of one sequence: scorer, settings, and the state so far.
#[derive(Debug)]
pub struct Eviction {
    /// Scorer of the blocks.
    pub scorer: Arc<dyn Scorer>,
    /// Of each layer group that evicts, or one for all; they differ in weights alone.
    pub settings: Vec<Settings>,
    /// Scores, and what was dropped, so far.
    pub state: State,
}

/// A sequence: block tables, one for each layer group, and the number of computed tokens.
#[derive(Debug)]
pub struct Seq {
    slot: u32,
    tables: Vec<Vec<u32>>,
    /// Tokens with KV.
    pub computed: usize,
    /// Entries of the tables known to the worker; `None` before the first step.
    sent: Option<usize>,
    drops: Vec<Dropped>,
    /// Eviction, unless the sequence keeps all tokens.
    pub eviction: Option<Eviction>,
}

/// Tokens of one sequence to run in a step.
#[derive(Debug)]
pub struct Run<'a> {
    /// The sequence.
    pub seq: &'a mut Seq,
    /// Tokens to run.
    pub tokens: &'a [u32],
    /// Last rows to be scored.
    pub scored: Option<(u32, ScoreKind)>,
    /// `true` to get the logits after the last token.
    pub sample: bool,
    /// `true` to run tokens again whose KV is there already.
    pub again: bool,
}

/// Scores of a step, and the rows that were scored.
#[derive(Clone, Debug)]
pub struct Reported {
    /// Attention of the rows to each block, by list.
    pub scores: Vec<f32>,
    /// Rows that were scored.
    pub rows: Rows,
}

/// A block that a sequence holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Index of the block in the worker.
    pub block: u32,
    /// Number of the block in the sequence.
    pub index: usize,
    /// Number of the block's layer group.
    pub group: u8,
    /// Positions that the group keeps.
    pub keeps: Keeps,
    /// Layers, or single heads, of the block's group.
    pub layers: usize,
}

/// Results of one sequence in a step.
#[derive(Debug, Default)]
pub struct Answer {
    /// Logits after the last token, if they were asked for.
    pub logits: Vec<f32>,
    /// Attention of the scored rows to each block, by list.
    pub scores: Vec<f32>,
}

/// A worker and its free blocks.
pub struct Rig {
    worker: Worker,
    model: Arc<Model>,
    keeps: Vec<Keeps>,
    /// Layers, or single heads, of each group.
    layers: Vec<usize>,
    /// Tokens of a KV block.
    block: usize,
    readers: Vec<u32>,
    free: Vec<u32>,
    slots: Vec<u32>,
    steps: u64,
    max_context: usize,
    /// `true` if each group that evicts has scores of its own.
    scores_by_group: bool,
}

impl Rig {
    /// Starts a worker with memory for `tokens` tokens in all layers, in blocks of `block` tokens.
    ///
    /// # Errors
    /// If the memory or the threads cannot be had.
    pub fn new(
        model: Model,
        tokens: usize,
        block: usize,
        threads: usize,
        scores_by_group: bool,
    ) -> anyhow::Result<Self> {
        let info = model.info();
        let (mut keeps, mut layers) = (vec![Keeps::All], vec![info.n_layers as usize]);
        if !info.groups.is_empty() {
            keeps = info.groups.iter().map(|group| group.keeps).collect();
            layers = info.groups.iter().map(|group| group.layers.len() + group.heads.len()).collect();
        }
        let blocks = (tokens.div_ceil(block) * keeps.len()) as u32;
        let config = WorkerConfig { block_size: block as u32, device_blocks: blocks, max_drafts: 0, threads };
        let max_context = info.max_context as usize;
        let model = Arc::new(model);
        let worker = Worker::new(Arc::clone(&model), config)?;
        Ok(Self {
            worker,
            model,
            keeps,
            layers,
            block,
            readers: vec![0; blocks as usize],
            free: (0..blocks).rev().collect(),
            slots: (0..4096).rev().collect(),
            steps: 0,
            max_context,
            scores_by_group,
        })
    }

    /// Ends the worker, and returns the model, unless somebody else still has the model.
    pub fn into_model(self) -> Option<Model> {
        let Self { worker, model, .. } = self;
        drop(worker);
        Arc::into_inner(model)
    }

    /// Returns the tokens of a KV block.
    pub fn block(&self) -> u32 {
        self.block as u32
    }

    /// Creates a sequence without tokens.
    pub fn start(&mut self) -> Seq {
        let slot = self.slots.pop().expect("fewer sequences than slots");
        let tables = vec![Vec::new(); self.keeps.len()];
        Seq { slot, tables, computed: 0, sent: None, drops: Vec::new(), eviction: None }
    }

    /// Creates a sequence that shares all blocks of another, whose tokens fill whole blocks. The fork does not evict.
    pub fn fork(&mut self, of: &Seq) -> Seq {
        assert!(of.computed.is_multiple_of(self.block), "a partial block cannot be shared");
        let mut seq = self.start();
        seq.computed = of.computed;
        for (table, shared) in seq.tables.iter_mut().zip(&of.tables) {
            table.extend_from_slice(&shared[..of.computed / self.block]);
            table.iter().filter(|block| **block != NO_BLOCK).for_each(|block| self.readers[*block as usize] += 1);
        }
        seq
    }

    /// Returns the blocks of a sequence.
    pub fn end(&mut self, seq: Seq) {
        seq.tables.into_iter().flatten().for_each(|block| self.release(block));
        self.slots.push(seq.slot);
    }

    /// Returns the blocks that a sequence holds, group by group.
    pub fn held(&self, seq: &Seq) -> Vec<Held> {
        let mut held = Vec::new();
        for (((group, table), keeps), layers) in (0..=u8::MAX).zip(&seq.tables).zip(&self.keeps).zip(&self.layers) {
            let blocks = table.iter().enumerate().filter(|(_, block)| **block != NO_BLOCK);
            held.extend(blocks.map(|(index, block)| Held {
                block: *block,
                index,
                group,
                keeps: *keeps,
                layers: *layers,
            }));
        }
        held
    }

    /// Returns the layers of every block that a sequence would hold without eviction.
    pub fn whole_blocks(&self, seq: &Seq) -> impl Iterator<Item = usize> {
        let n = seq.tables[0].len();
        self.layers.iter().flat_map(move |layers| std::iter::repeat_n(*layers, n))
    }

    /// Returns the blocks of the worker as bytes.
    pub fn device(&self) -> Arc<Blocks> {
        Arc::new(self.worker.blocks())
    }

    fn release(&mut self, block: u32) {
        if block == NO_BLOCK {
            return;
        }
        let readers = &mut self.readers[block as usize];
        *readers -= 1;
        if *readers == 0 {
            self.free.push(block);
        }
    }

    /// Plans, and drops what the plan says from the tables of all evicting groups; the worker learns of it with the next step.
    pub fn evict(&mut self, seq: &mut Seq) {
        let Some(eviction) = &mut seq.eviction else { return };
        let Eviction { scorer, settings, state } = eviction;
        let request = RequestId(u64::from(seq.slot));
        let plans = state.plans(&**scorer, settings, request, seq.computed as u32);
        state.apply(settings, &plans);
        // A single plan is of all groups.
        for (group, plan) in self.evicting().into_iter().zip(plans.iter().cycle()) {
            for range in &plan.drops {
                self.drop_blocks(seq, group, range.start as usize / self.block..range.end as usize / self.block);
            }
        }
    }

    /// Returns the lists of scores of a sequence in a step.
    pub fn n_lists(&self) -> usize {
        if self.scores_by_group { self.evicting().len().max(1) } else { 1 }
    }

    /// Returns the state of a sequence with the settings of the groups that evict.
    pub fn state(&self, scorer: &dyn Scorer, settings: &[Settings]) -> State {
        let needs = scorer.needs();
        if self.scores_by_group { State::by_group(&needs, settings.len()) } else { State::new(&needs, settings.len()) }
    }

    /// Returns the groups that evict, by number.
    fn evicting(&self) -> Vec<usize> {
        let evicts = |(group, keeps): (usize, &Keeps)| (*keeps == Keeps::Scored).then_some(group);
        self.keeps.iter().enumerate().filter_map(evicts).collect()
    }

    /// Returns the tokens that a sequence holds in the groups that evict, on average over their layers or heads.
    pub fn held_tokens(&self, seq: &Seq) -> f64 {
        let groups = self.evicting();
        let held = |group: usize| -> usize {
            let dropped = seq.tables[group].iter().filter(|block| **block == NO_BLOCK).count();
            seq.computed - dropped * self.block
        };
        let held: usize = groups.iter().map(|group| held(*group) * self.layers[*group]).sum();
        let layers: usize = groups.iter().map(|group| self.layers[*group]).sum();
        held as f64 / layers.max(1) as f64
    }

    /// Drops blocks of a sequence from the table of a group; the worker learns of it with the next step.
    pub fn drop_blocks(&mut self, seq: &mut Seq, group: usize, blocks: Range<usize>) {
        let entries = &mut seq.tables[group][blocks.clone()];
        let dropped: Vec<u32> = entries.to_vec();
        entries.fill(NO_BLOCK);
        dropped.into_iter().for_each(|block| self.release(block));
        // The first step sends the tables with their holes.
        if seq.sent.is_some() {
            let (first, n) = (blocks.start as u32, blocks.len() as u32);
            seq.drops.push(Dropped { seq: 0, group: group as u32, first, n });
        }
    }

    /// Runs a step.
    ///
    /// # Errors
    /// If blocks run out, or the worker fails.
    pub fn step(&mut self, runs: &mut [Run<'_>]) -> anyhow::Result<Vec<Answer>> {
        self.steps += 1;
        let mut step = Step { id: self.steps, score_lists: self.n_lists() as u32, ..Step::default() };
        for run in runs.iter_mut() {
            self.add(run, &mut step)?;
        }
        let (output, logits) = self.worker.run_with_logits(&step)?;
        if let Some(failed) = output.result.failed.first() {
            anyhow::bail!("{}; check the model's weights", failed.fault);
        }
        let (mut logits, mut scores) = (logits.into_iter(), &output.result.scores[..]);
        let mut answers = Vec::with_capacity(runs.len());
        for (index, (run, seq)) in runs.iter_mut().zip(&step.seqs).enumerate() {
            let mut answer = Answer::default();
            if run.sample {
                answer.logits = logits.next().context("a row of logits for each sampling sequence")?;
            }
            if step.scored_rows(index) > 0 {
                let n = ((seq.computed + seq.n_tokens) as usize).div_ceil(self.block) * self.n_lists();
                answer.scores = scores[..n].to_vec();
                scores = &scores[n..];
            }
            run.seq.computed = (seq.computed + seq.n_tokens) as usize;
            answers.push(answer);
        }
        Ok(answers)
    }

    fn add(&mut self, run: &mut Run<'_>, step: &mut Step) -> anyhow::Result<()> {
        let computed = run.seq.computed - if run.again { run.tokens.len() } else { 0 };
        let end = computed + run.tokens.len();
        while run.seq.tables[0].len() * self.block < end {
            for table in &mut run.seq.tables {
                let block = self.free.pop().context("the blocks of the benchmark are used up")?;
                self.readers[block as usize] = 1;
                table.push(block);
            }
        }
        let keep = run.seq.sent.unwrap_or(0);
        let len = run.seq.tables[0].len();
        let index = step.seqs.len() as u32;
        let (scored_rows, score_kind) = run.scored.unwrap_or_default();
        step.seqs.push(StepSeq {
            request: RequestId(u64::from(run.seq.slot)),
            slot: run.seq.slot,
            start: run.seq.sent.is_none(),
            computed: computed as u32,
            n_tokens: run.tokens.len() as u32,
            tokens_at: step.tokens.len() as u32,
            kv_write_from: run.seq.computed as u32,
            table_keep: keep as u32,
            blocks_at: step.blocks.len() as u32,
            n_blocks: (len - keep) as u32,
            sample: run.sample,
            ..StepSeq::default()
        });
        if run.seq.sent.is_none() {
            step.starts.push(SeqStart::default());
        }
        if scored_rows > 0 {
            step.scored.push(Scored { seq: index, rows: scored_rows.min(run.tokens.len() as u32) });
            step.score_kind = score_kind;
        }
        step.tokens.extend_from_slice(run.tokens);
        run.seq.tables.iter().for_each(|table| step.blocks.extend_from_slice(&table[keep..]));
        step.drops.extend(run.seq.drops.drain(..).map(|drop| Dropped { seq: index, ..drop }));
        run.seq.sent = Some(len);
        Ok(())
    }

    /// Computes a prompt in chunks. Returns the logits after it, and what every distinct need of scorers would have been reported.
    ///
    /// # Errors
    /// Fails as [`Self::step`] does.
    pub fn prefill(
        &mut self,
        seq: &mut Seq,
        prompt: &[u32],
        max_of_all: bool,
    ) -> anyhow::Result<(Vec<f32>, Vec<Reported>)> {
        let (mut logits, mut reported) = (Vec::new(), Vec::new());
        for chunk in prompt.chunks(CHUNK) {
            let rows = chunk.len() as u32;
            let scored = max_of_all.then_some((rows, ScoreKind::Max));
            let mut answers =
                self.step(&mut [Run { seq: &mut *seq, tokens: chunk, scored, sample: true, again: false }])?;
            let answer = answers.pop().context("an answer for each sequence")?;
            logits = answer.logits;
            if max_of_all {
                reported.push(Reported { scores: answer.scores, rows: Rows { n: rows, prefill: true } });
            }
        }
        Ok((logits, reported))
    }

    /// Runs the last `rows` tokens of a computed prompt again, and returns their mean scores. No KV is written.
    ///
    /// # Errors
    /// Fails as [`Self::step`] does.
    pub fn score_again(&mut self, seq: &mut Seq, prompt: &[u32], rows: usize) -> anyhow::Result<Reported> {
        ensure!(seq.computed == prompt.len(), "the prompt is computed whole");
        let tokens = &prompt[prompt.len().saturating_sub(rows)..];
        let n = tokens.len() as u32;
        let scored = Some((n, ScoreKind::Mean));
        let mut answers = self.step(&mut [Run { seq, tokens, scored, sample: false, again: true }])?;
        let scores = answers.pop().context("an answer for each sequence")?.scores;
        Ok(Reported { scores, rows: Rows { n, prefill: true } })
    }

    /// Reads a computed prompt of whole blocks again in parts, each after the prompt and the block before the part, as the core does. Returns the
    /// scores of its blocks; those of parts without room in the model's context are 0.
    ///
    /// # Errors
    /// Fails as [`Self::step`] does.
    pub fn read_again(&mut self, of: &Seq, prompt: &[u32], part_tokens: usize) -> anyhow::Result<Vec<f32>> {
        let room = self.max_context.saturating_sub(prompt.len() + self.block + 1);
        let part_tokens = part_tokens.min(room) / self.block * self.block;
        let mut scores = vec![0f32; prompt.len() / self.block];
        let parts = (0..prompt.len()).step_by(part_tokens.max(1)).take_while(|_| part_tokens > 0);
        for begin in parts {
            let (lead, end) = (begin.saturating_sub(self.block), (begin + part_tokens).min(prompt.len()));
            let mut fork = self.fork(of);
            self.prefill(&mut fork, &prompt[lead..begin], false)?;
            let (_, reported) = self.prefill(&mut fork, &prompt[begin..end], true)?;
            self.end(fork);
            for reported in reported {
                let own = begin / self.block..end / self.block;
                for list in reported.scores.chunks_exact(reported.scores.len() / self.n_lists()) {
                    let new = scores[own.clone()].iter_mut().zip(&list[own.clone()]);
                    new.for_each(|(score, new)| *score = score.max(*new));
                }
            }
        }
        Ok(scores)
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::h2o::{REGISTRY, Target};

    use super::*;
    use crate::h2o::choice::Choice;
    use crate::h2o::full_heads::FullHeads;

    fn rig(full: &[u32]) -> Rig {
        let model = Model::seeded(3);
        let info = model.info();
        let groups = FullHeads::of_layers(full, info.n_layers, info.n_kv_heads).groups(&[], Choice::Shared).unwrap();
        Rig::new(model.with_groups(groups).unwrap(), 1024, BLOCK, 1, false).unwrap()
    }

    fn prompt() -> Vec<u32> {
        (0..96).map(|n| (n * 37 % 251) as u32).collect()
    }

    fn decode(rig: &mut Rig, seq: &mut Seq, token: u32) -> Answer {
        let scored = seq.eviction.as_ref().map(|_| (1, ScoreKind::Mean));
        rig.step(&mut [Run { seq, tokens: &[token], scored, sample: true, again: false }]).unwrap().pop().unwrap()
    }

    #[test]
    fn a_fork_computes_the_logits_of_its_origin_and_all_blocks_come_back() {
        let mut rig = rig(&[0]);
        let before = rig.free.len();
        let mut seq = rig.start();
        rig.prefill(&mut seq, &prompt(), false).unwrap();
        let mut fork = rig.fork(&seq);
        assert_eq!(decode(&mut rig, &mut fork, 5).logits, decode(&mut rig, &mut seq, 5).logits);
        rig.end(seq);
        rig.end(fork);
        assert_eq!(rig.free.len(), before);
    }

    #[test]
    fn eviction_frees_blocks_that_nobody_else_reads_and_changes_the_logits() {
        let mut rig = rig(&[0]);
        let mut seq = rig.start();
        rig.prefill(&mut seq, &prompt(), false).unwrap();
        let (mut plain, mut thin) = (rig.fork(&seq), rig.fork(&seq));
        rig.end(seq);
        let target = Target::Adaptive { lossy_ratio: 2.5 };
        let settings = Settings {
            sink_tokens: 16,
            recent_tokens: 16,
            block_tokens: 16,
            trigger_tokens: 32,
            target,
            ..Settings::default()
        };
        let scorer: Arc<dyn Scorer> = REGISTRY.make("streaming", settings).unwrap().into();
        let state = State::new(&scorer.needs(), 1);
        thin.eviction = Some(Eviction { scorer, settings: vec![settings], state });
        rig.evict(&mut thin);
        assert_eq!((rig.held_tokens(&thin), rig.held_tokens(&plain)), (48.0, 96.0));
        assert_ne!(decode(&mut rig, &mut thin, 5).logits, decode(&mut rig, &mut plain, 5).logits);
        let free = rig.free.len();
        rig.end(plain);
        // The other evicting groups lose the three blocks that `thin` dropped; `plain` was their last reader.
        let evicting = rig.keeps.len() - 1;
        assert_eq!(rig.free.len() - free, evicting * 3 + rig.keeps.len());
    }

    #[test]
    fn scores_of_rows_run_again_are_those_of_the_first_run() {
        let mut rig = rig(&[]);
        let (mut once, mut again) = (rig.start(), rig.start());
        let prompt = prompt();
        rig.prefill(&mut again, &prompt, false).unwrap();
        let scored = Some((8, ScoreKind::Mean));
        let first =
            rig.step(&mut [Run { seq: &mut once, tokens: &prompt, scored, sample: false, again: false }]).unwrap();
        assert_eq!(rig.score_again(&mut again, &prompt, 8).unwrap().scores, first[0].scores);
        assert!((first[0].scores.iter().sum::<f32>() - 1.0).abs() < 1e-4);
    }
}
