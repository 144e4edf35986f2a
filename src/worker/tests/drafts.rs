//! Drafts change how many steps a text takes, and not a bit of the text.

mod rig;

use std::path::Path;
use std::sync::Arc;

use rig::{Rig, Seq};
use trunkline_port::{Sampling, TokenLogprobs};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, WorkerConfig};

const N: usize = 40;

/// A text that repeats itself, of its own length and period, so that drafts are made from the first step on.
fn prompt(i: usize) -> Vec<u32> {
    let text = format!("{}{i}{}", "round and round ".repeat(2 + i % 3), "abcdefgh"[..2 + i % 6].repeat(9));
    Tokenizer::bytes().encode(&text).unwrap()
}

fn samplings() -> [Sampling; 5] {
    // Cold enough for a token to repeat itself now and then.
    let hot = Sampling { temperature: 0.1, top_k: 20, top_p: 0.95, seed: 7, ..Sampling::default() };
    [
        Sampling::default(),
        // What is said is said again, so that drafts are right, and counts end each circle.
        Sampling { presence_penalty: -1.5, frequency_penalty: 0.3, ..hot.clone() },
        Sampling { repetition_penalty: 0.5, ..hot.clone() },
        Sampling { repetition_penalty: 0.8, seed: 8, logprobs: Some(2), ..hot },
        Sampling { repetition_penalty: 0.9, logprobs: Some(0), ..Sampling::default() },
    ]
}

fn config(block_size: u32, max_drafts: u32, threads: usize) -> WorkerConfig {
    WorkerConfig { block_size, device_blocks: 8192 / block_size, max_drafts, threads }
}

/// What a sequence was told, token by token.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    tokens: Vec<u32>,
    logits: Vec<Vec<u32>>,
    logprobs: Vec<TokenLogprobs>,
}

/// Runs sequences together until each has `N` tokens, at most `chunk` prompt tokens of each in a step.
fn run(rig: &mut Rig, mut seqs: Vec<Seq>, chunk: usize) -> Vec<Told> {
    let mut told = vec![Told::default(); seqs.len()];
    while seqs.iter().any(|seq| seq.output().len() < N) {
        let mut active: Vec<&mut Seq> = seqs.iter_mut().filter(|seq| seq.output().len() < N).collect();
        let (output, logits) = rig.step(&mut active, chunk);
        let mut logits = logits.iter();
        for (i, seq) in active.iter().enumerate() {
            let sampled = output.result.of(i);
            let told = &mut told[seq.id as usize];
            told.tokens.extend_from_slice(sampled);
            let rows = logits.by_ref().take(sampled.len());
            told.logits.extend(rows.map(|row| row.iter().map(|logit| logit.to_bits()).collect()));
        }
        assert!(logits.next().is_none(), "one row of logits for each token");
        for entry in output.logprobs {
            told[entry.request.0 as usize].logprobs.push(entry);
        }
    }
    for told in &mut told {
        // With drafts the last step may have gone further.
        let asked = !told.logprobs.is_empty();
        assert_eq!(told.logprobs.len(), if asked { told.tokens.len() } else { 0 });
        told.tokens.truncate(N);
        told.logits.truncate(N);
        told.logprobs.truncate(N);
    }
    told
}

fn seq(id: usize, i: usize) -> Seq {
    Seq::new(id as u32, &prompt(i), samplings()[i % 5].clone())
}

#[test]
fn the_text_is_the_same_with_any_number_of_drafts_chunks_and_blocks() {
    let model = Arc::new(Model::seeded(1));
    for i in 0..5 {
        let expected = run(&mut Rig::new(&model, 16, 512, 1), vec![seq(0, i)], usize::MAX);
        let mut accepted = 0;
        for max_drafts in 1..=15 {
            let (block_size, chunk) = ([1, 3, 16][max_drafts % 3], [usize::MAX, 1, 7, 20][max_drafts % 4]);
            let mut rig = Rig::with(&model, config(block_size, max_drafts as u32, 1 + max_drafts % 2));
            assert_eq!(run(&mut rig, vec![seq(0, i)], chunk), expected, "{max_drafts} drafts for prompt {i}");
            assert!(rig.accepted < rig.drafted, "some drafts are wrong");
            accepted += rig.accepted;
        }
        println!("prompt {i}: {accepted} drafts were right");
        assert!(accepted > 0, "no draft for prompt {i} was right");
    }
}

#[test]
fn a_batch_in_which_some_draft_gives_what_each_gives_alone() {
    let model = Arc::new(Model::seeded(2));
    let n = 20;
    let alone = |i| run(&mut Rig::new(&model, 16, 512, 1), vec![seq(0, i)], usize::MAX).remove(0);
    for (block_size, max_drafts) in [(1, 5), (3, 2), (16, 11)] {
        let mut rig = Rig::with(&model, config(block_size, max_drafts, 2));
        let together = run(&mut rig, (0..n).map(|i| seq(i, i)).collect(), 13);
        for (i, mut told) in together.into_iter().enumerate() {
            told.logprobs.iter_mut().for_each(|entry| entry.request.0 = 0);
            assert_eq!(told, alone(i), "sequence {i} in blocks of {block_size}");
        }
        assert!(rig.accepted > 0);
    }
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_steps() {
    let model = Arc::new(Model::seeded(1));
    // Tokens that were seen become likelier, so the text soon goes round in circles.
    let sampling = Sampling { repetition_penalty: 0.5, ..Sampling::default() };
    let mut steps = Vec::new();
    let mut texts = Vec::new();
    for max_drafts in [0, 7] {
        let mut rig = Rig::with(&model, config(16, max_drafts, 1));
        let mut seq = Seq::new(0, &prompt(0), sampling.clone());
        rig.generate(&mut seq, 200, usize::MAX);
        assert_eq!(rig.steps + rig.accepted, seq.output().len() as u64);
        texts.push(seq.output()[..200].to_vec());
        steps.push(rig.steps);
        println!("up to {max_drafts} drafts: {} steps, {} of {} drafts right", rig.steps, rig.accepted, rig.drafted);
    }
    assert_eq!(texts[0], texts[1]);
    assert!(steps[1] * 2 < steps[0], "{} steps with drafts, {} without", steps[1], steps[0]);
}

#[test]
fn a_preempted_sequence_and_one_from_shared_blocks_draft_from_their_history() {
    let model = Arc::new(Model::seeded(4));
    for i in 0..5 {
        let expected = run(&mut Rig::new(&model, 16, 512, 1), vec![seq(0, i)], usize::MAX).remove(0);
        let mut rig = Rig::with(&model, config(16, 6, 1));
        let mut first = seq(0, i);
        rig.generate(&mut first, N / 2, usize::MAX);
        // Its slot is lost and its blocks are shared; what it generated becomes input.
        let full = first.computed / 16 * 16;
        let mut again = Seq::new(9, &first.tokens, first.sampling.clone()).share(&first, 16, full);
        again.prompt_len = first.prompt_len;
        rig.generate(&mut again, N, 5);
        assert_eq!(again.output()[..N], expected.tokens, "prompt {i}");
        // The first one's blocks are as they were: nothing was drafted into them.
        rig.generate(&mut first, N, usize::MAX);
        assert_eq!(first.output()[..N], expected.tokens, "prompt {i}");
    }
}

#[test]
fn drafts_end_where_the_context_ends() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/mha-tied-f32");
    let model = Arc::new(Model::load(&folder).unwrap());
    let context = model.config().max_context as usize;
    let circle: Vec<u32> = [5, 6, 7].into_iter().cycle().take(context - 9).collect();
    let sampling = Sampling { repetition_penalty: 0.3, ..Sampling::default() };
    let mut texts = Vec::new();
    for max_drafts in [0, 15] {
        let mut rig = Rig::with(&model, config(16, max_drafts, 1));
        let mut seq = Seq::new(0, &circle, sampling.clone());
        // The last token needs no KV, so the text may be one longer than the context.
        rig.generate(&mut seq, 10, 100);
        assert_eq!(rig.drafted > 0, max_drafts > 0);
        assert_eq!(seq.output().len(), 10);
        texts.push(seq.output().to_vec());
    }
    assert_eq!(texts[0], texts[1]);
}
