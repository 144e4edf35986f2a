//! Steps and answers: each arrives as it was sent, and nonsense is refused without a panic.

use proptest::prelude::*;
use prost::Message;
use trunkline_attach::{Mirror, SentStep, StepEncoder, StepLimits, encode_done, wire};
use trunkline_port::{
    Dropped, FailedSeq, RequestId, Sampling, ScoreKind, Scored, SeqFault, SeqStart, Step, StepOutput, StepResult,
    StepSeq, TokenLogprobs, WeightReads,
};

const BLOCK: u32 = 4;
const LIMITS: StepLimits = StepLimits {
    vocab_size: 100,
    max_context: 64,
    block_size: BLOCK,
    blocks: 50,
    n_groups: 1,
    max_sequences: 8,
    max_tokens: 64,
    max_drafts: 2,
    max_logprobs: 5,
    penalties: true,
    grammars: true,
    prompt_logprobs: true,
    partial_writes: true,
    scores: true,
    score_lists: 3,
};

/// A prompt of `n` tokens that starts in `slot` behind `computed` cached tokens.
fn start(step: &mut Step, slot: u32, n: u32, computed: u32, sampling: Sampling) {
    let n_blocks = n.div_ceil(BLOCK);
    step.seqs.push(StepSeq {
        request: RequestId(100 + u64::from(slot)),
        slot,
        start: true,
        computed,
        n_tokens: n - computed,
        n_history: computed,
        tokens_at: step.tokens.len() as u32,
        kv_write_from: computed,
        blocks_at: step.blocks.len() as u32,
        n_blocks,
        sample: true,
        ..StepSeq::default()
    });
    step.tokens.extend((0..n).map(|i| (slot * 7 + i) % 100));
    step.blocks.extend((0..n_blocks).map(|i| (slot * 11 + i) % 50));
    step.starts.push(SeqStart { sampling, n_prompt: n, n_ahead: 0 });
}

/// A decode at `computed` with the table of `table` blocks.
fn decode(step: &mut Step, slot: u32, computed: u32, token: u32, n_generated: u32) {
    let grows = computed.is_multiple_of(BLOCK);
    step.seqs.push(StepSeq {
        request: RequestId(100 + u64::from(slot)),
        slot,
        computed,
        n_tokens: 1,
        tokens_at: step.tokens.len() as u32,
        kv_write_from: computed,
        table_keep: computed.div_ceil(BLOCK),
        blocks_at: step.blocks.len() as u32,
        n_blocks: grows.into(),
        sample: true,
        n_generated,
        ..StepSeq::default()
    });
    step.tokens.push(token);
    step.blocks.extend(grows.then_some(40 + slot));
}

fn wired(encoder: &mut StepEncoder, step: &Step) -> (wire::Step, SentStep) {
    let (message, sent) = encoder.encode(step);
    (wire::Step::decode(&message.encode_to_vec()[..]).unwrap(), sent)
}

#[test]
fn steps_arrive_as_they_were_sent_though_tokens_travel_once() {
    let (mut encoder, mut mirror) = (StepEncoder::new(3, BLOCK, 100), Mirror::new(LIMITS));
    let mut first = Step { id: 1, ..Step::default() };
    start(&mut first, 2, 10, 0, Sampling { logprobs: Some(1), ..Sampling::default() });
    start(&mut first, 0, 7, 4, Sampling { temperature: 0.5, seed: 9, ..Sampling::default() });
    let (message, sent) = wired(&mut encoder, &first);
    let mut step = Step::default();
    mirror.decode(&message, &mut step).unwrap();
    assert_eq!(step, first);

    let logprobs = vec![TokenLogprobs { request: RequestId(102), token: 55, logprob: -0.5, top: vec![(55, -0.5)] }];
    let mut output =
        StepOutput { result: StepResult { step: 1, ..StepResult::default() }, logprobs, ..StepOutput::default() };
    output.result.push(&[55]);
    output.result.push(&[66]);
    mirror.note(&step, &output.result);
    let done = encode_done(&step, output.clone(), 3, 17);
    assert!(done.counts.is_empty());
    let done = wire::StepDone::decode(&done.encode_to_vec()[..]).unwrap();
    assert_eq!(sent.decode(done), Ok(output));

    let mut second = Step { id: 2, ..Step::default() };
    decode(&mut second, 0, 7, 66, 1);
    decode(&mut second, 2, 10, 55, 1);
    let (message, _) = wired(&mut encoder, &second);
    assert!(message.starts.is_empty(), "no token travels twice");
    mirror.decode(&message, &mut step).unwrap();
    assert_eq!(step, second);
}

/// A mirror with sequences in slots 0 and 1, each with one sampled token.
fn begun() -> Mirror {
    let (mut encoder, mut mirror) = (StepEncoder::new(1, BLOCK, 100), Mirror::new(LIMITS));
    let mut step = Step { id: 1, ..Step::default() };
    start(&mut step, 0, 9, 0, Sampling::default());
    start(&mut step, 1, 4, 0, Sampling::default());
    mirror.decode(&encoder.encode(&step).0, &mut Step::default()).unwrap();
    let mut result = StepResult::default();
    result.push(&[1]);
    result.push(&[2]);
    mirror.note(&step, &result);
    mirror
}

fn bias_behind_the_vocabulary(step: &mut wire::Step) {
    step.starts[0].sampling.as_mut().unwrap().logit_bias.insert(100, 1.0);
}

#[test]
fn penalties_go_to_workers_that_have_them_alone() {
    type Change = fn(&mut Sampling);
    let changes: [(Change, &str); 3] = [
        (|sampling| sampling.frequency_penalty = 0.5, "frequency_penalty"),
        (|sampling| sampling.presence_penalty = -0.5, "presence_penalty"),
        (|sampling| sampling.logit_bias = [(99, 1.0), (3, -100.0)].into_iter().collect(), "logit_bias"),
    ];
    for (change, field) in changes {
        let (mut sampling, mut step, mut out) = (Sampling::default(), Step::default(), Step::default());
        change(&mut sampling);
        start(&mut step, 0, 9, 0, sampling);
        let (message, _) = wired(&mut StepEncoder::new(1, BLOCK, 100), &step);
        Mirror::new(LIMITS).decode(&message, &mut out).unwrap();
        assert_eq!(out.starts, step.starts);
        let fault = Mirror::new(StepLimits { penalties: false, ..LIMITS }).decode(&message, &mut out).unwrap_err();
        let line = format!("{field} is set; the worker did not announce penalties");
        assert!(fault.to_string().ends_with(&line), "{fault}");
    }
}

#[test]
fn every_broken_rule_of_a_step_is_named() {
    let mut step = Step { id: 5, ..Step::default() };
    decode(&mut step, 0, 9, 1, 1);
    decode(&mut step, 1, 4, 2, 1);
    start(&mut step, 2, 6, 0, Sampling::default());
    let (good, _) = StepEncoder::new(1, BLOCK, 100).encode(&step);
    type Break = fn(&mut wire::Step);
    let breaks: [(Break, &str); 22] = [
        (|step| step.computed.truncate(1), "column computed has 1 entries for 3 sequences"),
        (|step| step.slots[1] = 0, "slot 0 comes twice"),
        (|step| step.slots[1] = 1 << 16, "slot is 65536"),
        (|step| step.slots[1] = 7, "no sequence has begun in slot 7"),
        (|step| step.n_tokens[0] = 0, "n_tokens is 0"),
        (|step| step.computed[0] = 10, "tokens up to position 11 are to run, and 10 are known"),
        (|step| step.computed[0] = 8, "it samples after position 9 of 10"),
        (|step| step.sample[0] = 2, "sample is 2"),
        (|step| step.computed[0] = u32::MAX, "the end of the tokens to run is 4294967296"),
        (|step| step.table_keep[0] = 9, "table_keep is 9"),
        (|step| step.table_keep[0] = 2, "room for 8 tokens, and 10 are to be held"),
        (|step| step.n_blocks[0] = 5, "blocks has 3 entries; n_blocks asks for 8"),
        (|step| step.blocks[0] = 50, "an entry of blocks is 50"),
        (|step| step.starts[0].tokens[0] = 100, "the largest token is 100"),
        (|step| step.starts[0].tokens.clear(), "the number of tokens is 0"),
        (|step| step.starts[0].sampling = None, "without sampling parameters"),
        (|step| step.starts[0].sampling.as_mut().unwrap().top_p = f32::NAN, "top_p is NaN"),
        (|step| step.starts[0].sampling.as_mut().unwrap().presence_penalty = -2.5, "presence_penalty is -2.5"),
        (bias_behind_the_vocabulary, "the largest token of logit_bias is 100"),
        (|step| step.starts[0].index = 3, "starts contains sequence 3"),
        (|step| step.drops.push(wire::Drop { index: 0, group: 0, first: 2, n: 2 }), "the end of a drop is 4"),
        (|step| step.score_kind = 7, "score_kind is 7"),
    ];
    for (break_rule, expected) in breaks {
        let mut message = good.clone();
        break_rule(&mut message);
        let line = begun().decode(&message, &mut Step::default()).unwrap_err().to_string();
        assert!(line.contains(expected) && line.starts_with("step 5: "), "{line:?} does not say {expected:?}");
    }
    begun().decode(&good, &mut Step::default()).unwrap();
}

#[test]
fn a_refused_step_changes_nothing() {
    let mut step = Step { id: 5, ..Step::default() };
    decode(&mut step, 0, 9, 1, 1);
    decode(&mut step, 1, 4, 2, 1);
    let (good, _) = StepEncoder::new(1, BLOCK, 100).encode(&step);
    let mut bad = good.clone();
    bad.n_tokens[1] = 0;
    let mut mirror = begun();
    assert!(mirror.decode(&bad, &mut Step::default()).is_err());
    let mut out = Step::default();
    mirror.decode(&good, &mut out).unwrap();
    assert_eq!(out, step);
}

fn shorten<T>(list: &mut Vec<T>) {
    list.truncate(list.len() - 1);
}

fn sent() -> SentStep {
    let mut step = Step { id: 4, ..Step::default() };
    start(&mut step, 0, 5, 0, Sampling { logprobs: Some(2), ..Sampling::default() });
    start(&mut step, 1, 5, 0, Sampling::default());
    step.seqs[1].n_drafts = 2;
    start(&mut step, 2, 5, 0, Sampling::default());
    step.seqs[2].sample = false;
    step.scored.push(Scored { seq: 2, rows: 1 });
    StepEncoder::new(1, BLOCK, 100).encode(&step).1
}

#[test]
fn a_failed_sequence_is_a_column_of_the_answer_and_its_slot_goes_on() {
    let (mut encoder, mut mirror) = (StepEncoder::new(3, BLOCK, 100), Mirror::new(LIMITS));
    let mut first = Step { id: 1, ..Step::default() };
    start(&mut first, 2, 10, 0, Sampling { logprobs: Some(1), ..Sampling::default() });
    start(&mut first, 0, 7, 0, Sampling::default());
    start(&mut first, 1, 7, 0, Sampling::default());
    first.seqs[2].sample = false;
    let (message, sent) = wired(&mut encoder, &first);
    let mut step = Step::default();
    mirror.decode(&message, &mut step).unwrap();
    let mut output = StepOutput { result: StepResult { step: 1, ..StepResult::default() }, ..StepOutput::default() };
    output.result.push_failed(SeqFault::NotFinite);
    output.result.push(&[66]);
    output.result.push_failed(SeqFault::Unsupported);
    assert_eq!(encode_done(&step, output.clone(), 3, 17).weights, None, "all weights are in memory");
    output.weights =
        WeightReads { steps: 1, bytes: 9, reading_ns: 7, exposed_ns: 5, step_ns: u64::MAX, failed_reads: 2 };
    let done = encode_done(&step, output.clone(), 3, 17);
    assert_eq!((done.faults.clone(), done.counts.len()), (vec![1, 0, 2], 0));
    mirror.note(&step, &output.result);
    let done = wire::StepDone::decode(&done.encode_to_vec()[..]).unwrap();
    assert_eq!(sent.decode(done), Ok(output));
    // A step that was on the way runs both on.
    let mut second = Step { id: 2, ..Step::default() };
    decode(&mut second, 0, 7, 66, 1);
    decode(&mut second, 2, 10, 0, 1);
    mirror.decode(&wired(&mut encoder, &second).0, &mut step).unwrap();
    assert_eq!(step, second);
}

#[test]
fn numbers_that_are_not_finite_fail_their_sequence_and_not_the_answer() {
    let entry = |logprob| wire::WorkerLogprob { logprob, top_ids: vec![3, 4], top_logprobs: vec![-1.0, logprob] };
    let good = wire::StepDone {
        id: 4,
        life: 1,
        tokens: vec![3, 5, 6],
        counts: vec![1, 2, 0],
        logprobs: vec![entry(-2.0)],
        scores: vec![0.5, 0.5],
        drafted: 2,
        accepted: 1,
        ..wire::StepDone::default()
    };
    let failed = |seq| FailedSeq { seq, fault: SeqFault::NotFinite };
    let sound = sent().decode(good.clone()).unwrap();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let output = sent().decode(wire::StepDone { logprobs: vec![entry(value)], ..good.clone() }).unwrap();
        assert_eq!((output.result.failed.clone(), output.logprobs.len()), (vec![failed(0)], 0));
        assert_eq!([output.result.of(0), output.result.of(1), output.result.of(2)], [&[][..], &[5, 6], &[]]);
        assert_eq!(output.result.scores, sound.result.scores);
        let output = sent().decode(wire::StepDone { scores: vec![0.5, value], ..good.clone() }).unwrap();
        let expected = StepResult { failed: vec![failed(2)], scores: vec![0.0, 0.0], ..sound.result.clone() };
        assert_eq!((output.result, &output.logprobs), (expected, &sound.logprobs));
    }
}

#[test]
fn every_broken_rule_of_an_answer_is_named() {
    let top = wire::WorkerLogprob { logprob: -1.0, top_ids: vec![3, 4], top_logprobs: vec![-1.0, -2.0] };
    let good = wire::StepDone {
        id: 4,
        life: 1,
        tokens: vec![3, 5, 6],
        counts: vec![1, 2, 0],
        logprobs: vec![top],
        scores: vec![0.5, 0.5],
        drafted: 2,
        accepted: 1,
        busy_us: 9,
        faults: vec![0; 3],
        prompt_logprobs: Vec::new(),
        weights: None,
    };
    let output = sent().decode(good.clone()).unwrap();
    assert_eq!((output.result.of(1), output.result.of(2)), (&[5, 6][..], &[][..]));
    type Break = fn(&mut wire::StepDone);
    let breaks: [(Break, &str); 15] = [
        (|done| shorten(&mut done.faults), "faults has 2 entries instead of 3"),
        (|done| done.faults[1] = 3, "faults[1] is 3; there are 0, 1 and 2"),
        (|done| done.faults[1] = 1, "counts[1] is 2; the sequence has 0 to 0"),
        (|done| done.id = 5, "it names step 5 of life 1"),
        (|done| done.life = 2, "it names step 4 of life 2"),
        (|done| shorten(&mut done.tokens), "tokens has 2 entries instead of 3"),
        (|done| shorten(&mut done.counts), "counts has 2 entries instead of 3"),
        (|done| done.counts[0] = 2, "counts[0] is 2; the sequence has 1 to 1"),
        (|done| done.counts[1] = 0, "counts[1] is 0; the sequence has 1 to 3"),
        (|done| done.counts[2] = 1, "counts[2] is 1; the sequence has 0 to 0"),
        (|done| done.tokens[1] = 100, "tokens contains token 100; token ids are below 100"),
        (|done| done.logprobs.clear(), "logprobs has 0 entries instead of 1"),
        (|done| shorten(&mut done.logprobs[0].top_ids), "top_ids has 1 entries instead of 2"),
        (|done| shorten(&mut done.scores), "scores has 1 entries instead of 2"),
        (|done| done.drafted = 3, "1 of 3 drafts were accepted, of at most 2"),
    ];
    for (break_rule, expected) in breaks {
        let mut message = good.clone();
        break_rule(&mut message);
        let line = sent().decode(message).unwrap_err().to_string();
        assert!(line.contains(expected) && line.starts_with("the answer to step 4: "), "{line:?}: no {expected:?}");
    }
}

/// A sequence of a random step: its prompt, cached tokens, the first chunk, and rows that are scored.
#[derive(Clone, Debug)]
struct Drawn {
    prompt: Vec<u32>,
    cached: u32,
    chunk: u32,
    scored: u32,
    shared: u32,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let prompt = prop::collection::vec(0..100_u32, 2..40);
    (prompt, any::<u32>(), 1..40_u32, 0..3_u32, 0..2_u32).prop_map(|(prompt, cached, chunk, scored, shared)| {
        let cached = cached % prompt.len() as u32;
        Drawn { prompt, cached, chunk, scored, shared }
    })
}

/// Layer groups of random steps.
const GROUPS: u32 = 2;

impl Drawn {
    fn end(&self) -> u32 {
        (self.cached + self.chunk).min(self.prompt.len() as u32)
    }

    fn is_whole(&self) -> bool {
        self.end() == self.prompt.len() as u32
    }

    /// Adds the first part of the sequence to a step.
    fn begin(&self, slot: u32, step: &mut Step) {
        let n_blocks = self.end().div_ceil(BLOCK);
        let n_tokens = self.end() - self.cached;
        step.seqs.push(StepSeq {
            request: RequestId(u64::from(slot) << 40),
            slot,
            start: true,
            computed: self.cached,
            n_tokens,
            n_history: self.cached,
            tokens_at: step.tokens.len() as u32,
            kv_write_from: self.cached + self.shared,
            blocks_at: step.blocks.len() as u32,
            n_blocks,
            sample: self.is_whole(),
            n_drafts: self.shared,
            ..StepSeq::default()
        });
        let n_prompt = self.prompt.len() as u32;
        let sampling = Sampling { seed: u64::MAX - u64::from(slot), top_k: self.scored, ..Sampling::default() };
        step.starts.push(SeqStart { sampling, n_prompt, n_ahead: n_prompt - self.end() });
        step.tokens.extend(&self.prompt);
        step.blocks.extend((0..GROUPS * n_blocks).map(|i| (slot + i) % 50));
        if self.scored.min(n_tokens) > 0 {
            step.scored.push(Scored { seq: slot, rows: self.scored.min(n_tokens) });
        }
    }

    /// Adds the rest of the prompt, or a decode of the sampled token.
    fn go_on(&self, slot: u32, sampled: u32, step: &mut Step) {
        let (computed, held) = (self.end(), self.end().div_ceil(BLOCK));
        let run = if self.is_whole() { vec![sampled] } else { self.prompt[computed as usize..].to_vec() };
        let n_blocks = (computed + run.len() as u32).div_ceil(BLOCK) - held;
        let index = step.seqs.len() as u32;
        step.seqs.push(StepSeq {
            request: RequestId(u64::from(slot) << 40),
            slot,
            computed,
            n_tokens: run.len() as u32,
            tokens_at: step.tokens.len() as u32,
            kv_write_from: computed,
            table_keep: held,
            blocks_at: step.blocks.len() as u32,
            n_blocks,
            sample: true,
            n_generated: self.is_whole().into(),
            ..StepSeq::default()
        });
        step.tokens.extend(run);
        step.blocks.extend((0..GROUPS * n_blocks).map(|i| (slot + i) % 50));
        step.drops.push(Dropped { seq: index, group: 1, first: held - 1, n: 1 });
    }
}

proptest! {
    #[test]
    fn random_steps_arrive_as_they_were_sent(seqs in prop::collection::vec(drawn(), 0..8), odd in any::<bool>()) {
        let limits = StepLimits { max_tokens: 1024, n_groups: GROUPS, ..LIMITS };
        let (mut encoder, mut mirror) = (StepEncoder::new(9, BLOCK, 100), Mirror::new(limits));
        let mut sent = Step { id: 1, ..Step::default() };
        (0..).zip(&seqs).for_each(|(slot, seq)| seq.begin(slot, &mut sent));
        let mut arrived = Step::default();
        mirror.decode(&wired(&mut encoder, &sent).0, &mut arrived).unwrap();
        prop_assert_eq!(&arrived, &sent);

        let mut result = StepResult::default();
        seqs.iter().for_each(|seq| result.push(&[77][..usize::from(seq.is_whole())]));
        mirror.note(&arrived, &result);
        let score_lists = if odd { LIMITS.score_lists } else { 0 };
        let mut sent = Step { id: 2, score_kind: ScoreKind::Max, score_lists, ..Step::default() };
        for (slot, seq) in (0..seqs.len() as u32).zip(&seqs).rev().filter(|(slot, _)| odd || slot % 2 == 0) {
            seq.go_on(slot, 77, &mut sent);
        }
        mirror.decode(&wired(&mut encoder, &sent).0, &mut arrived).unwrap();
        prop_assert_eq!(&arrived, &sent);
    }

    #[test]
    fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = wire::Step::decode(&bytes[..]) {
            let _ = begun().decode(&message, &mut Step::default());
        }
        if let Ok(message) = wire::StepDone::decode(&bytes[..]) {
            let _ = sent().decode(message);
        }
    }

    /// Messages of the right form with numbers of all sizes: nearer to good ones than random bytes.
    #[test]
    fn wrong_numbers_are_refused_without_a_panic(
        columns in prop::collection::vec(prop::collection::vec(prop_oneof![0..12_u32, any::<u32>()], 0..4), 13),
    ) {
        let mut columns = columns.into_iter();
        let mut next = || columns.next().unwrap_or_default();
        let mut message = wire::Step {
            slots: next(), computed: next(), n_tokens: next(), sample: next(), n_generated: next(), table_keep: next(),
            n_blocks: next(), blocks: next(), kv_write_from: next(), n_drafts: next(), scored_rows: next(),
            ..wire::Step::default()
        };
        let sampling = trunkline_attach::encode_sampling(&Sampling::default());
        message.starts = next().into_iter().map(|index| wire::Start {
            index, request: 1, tokens: vec![1; index as usize % 9], n_prompt: index, sampling: Some(sampling.clone()),
        }).collect();
        message.drops = next().into_iter().map(|n| wire::Drop { index: n % 3, group: n % 2, first: n, n }).collect();
        let (mut mirror, mut step) = (begun(), Step::default());
        if mirror.decode(&message, &mut step).is_ok() {
            for seq in &step.seqs {
                prop_assert_eq!(step.run_tokens(seq).len(), seq.n_tokens as usize);
                prop_assert_eq!(step.new_blocks(seq).len(), seq.n_blocks as usize);
            }
        }
    }
}

#[test]
fn scores_by_group_need_the_ability_and_have_a_list_for_each_group() {
    let mut step = Step { id: 5, score_lists: 3, ..Step::default() };
    start(&mut step, 0, 10, 0, Sampling::default());
    step.scored.push(Scored { seq: 0, rows: 1 });
    let (message, sent) = StepEncoder::new(1, BLOCK, 100).encode(&step);
    let mut arrived = Step::default();
    Mirror::new(LIMITS).decode(&message, &mut arrived).unwrap();
    assert_eq!(arrived.score_lists, 3);
    let error = Mirror::new(StepLimits { score_lists: 0, ..LIMITS }).decode(&message, &mut Step::default());
    let line = error.unwrap_err().to_string();
    assert!(line.contains("scores_by_group"), "{line}");
    // Ten tokens in three blocks, in each of three lists.
    let done = |n: usize| wire::StepDone {
        id: 5,
        life: 1,
        tokens: vec![7],
        scores: vec![0.5; n],
        ..wire::StepDone::default()
    };
    let error = sent.decode(done(3)).unwrap_err().to_string();
    assert!(error.contains("scores has 3 entries"), "{error}");
    assert_eq!(sent.decode(done(9)).unwrap().result.scores.len(), 9);
}
