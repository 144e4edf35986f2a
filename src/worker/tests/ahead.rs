//! Steps that are made before the token of the step before is known give the text of steps made after it.

mod rig;

use std::sync::Arc;

use rig::{Rig, Seq};
use trunkline_port::Sampling;
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, WorkerConfig};

const N: usize = 30;

fn samplings() -> [Sampling; 4] {
    let hot = Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
    [
        Sampling::default(),
        Sampling { frequency_penalty: -0.4, presence_penalty: 0.7, ..hot.clone() },
        Sampling { repetition_penalty: 1.4, frequency_penalty: 0.5, ..Sampling::default() },
        Sampling { repetition_penalty: 0.6, temperature: 0.2, logprobs: Some(2), ..hot },
    ]
}

fn seq(id: usize) -> Seq {
    let prompt = Tokenizer::bytes().encode(&format!("{id} steps queued behind one another")).unwrap();
    Seq::new(id as u32, &prompt, samplings()[id % 4].clone())
}

/// Texts and logits of four sequences run together.
fn run(mut rig: Rig, chunk: usize) -> (Vec<Vec<u32>>, Vec<Vec<f32>>) {
    let mut seqs: Vec<Seq> = (0..4).map(seq).collect();
    let mut all = Vec::new();
    while seqs.iter().any(|seq| seq.output().len() < N) {
        all.extend(rig.step(&mut seqs.iter_mut().collect::<Vec<_>>(), chunk).1);
    }
    let expected = if rig.ahead { 4 * (N as u64 - 1) } else { 0 };
    assert_eq!(rig.steps_ahead, expected, "every decode but the first token ran ahead");
    (seqs.iter().map(|seq| seq.output().to_vec()).collect(), all)
}

#[test]
fn texts_and_logits_are_equal_with_and_without_the_token_in_the_step() {
    let model = Arc::new(Model::seeded(3));
    for (block_size, threads) in [(3, 1), (16, 2)] {
        let plain = run(Rig::new(&model, block_size, 512, threads), usize::MAX);
        let mut rig = Rig::new(&model, block_size, 512, threads);
        rig.ahead = true;
        assert!(run(rig, usize::MAX) == plain, "other texts or logits in blocks of {block_size}");
    }
}

#[test]
fn a_worker_that_drafts_also_knows_the_token_it_sampled() {
    let model = Arc::new(Model::seeded(3));
    let plain = run(Rig::new(&model, 16, 512, 1), usize::MAX);
    let config = WorkerConfig { block_size: 16, device_blocks: 512, max_drafts: 4, threads: 1 };
    let mut rig = Rig::with(&model, config);
    (rig.ahead, rig.max_drafts) = (true, 0);
    assert!(run(rig, usize::MAX) == plain);
}

#[test]
fn a_preempted_sequence_runs_ahead_again_once_it_has_sampled() {
    let model = Arc::new(Model::seeded(3));
    for id in 0..4 {
        let mut plain = seq(id);
        Rig::new(&model, 16, 512, 1).generate(&mut plain, N, usize::MAX);
        let mut rig = Rig::new(&model, 16, 512, 1);
        rig.ahead = true;
        let mut first = seq(id);
        rig.generate(&mut first, N / 2, usize::MAX);
        // Its slot is lost and its full blocks are shared; the tokens that it generated become input.
        let full = first.computed / 16 * 16;
        let mut again = Seq::new(9, &first.tokens, first.sampling.clone()).share(&first, 16, full);
        again.prompt_len = first.prompt_len;
        rig.generate(&mut again, N, usize::MAX);
        assert_eq!(again.output(), plain.output(), "sequence {id}");
        assert_eq!(rig.steps_ahead, N as u64 - 2, "every token but the first of each life");
    }
}
