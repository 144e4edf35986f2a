//! What is generated for a sequence depends on the sequence alone: bit for bit.

mod rig;

use std::sync::Arc;

use rig::{Rig, Seq};
use trunkline_port::{Sampling, TokenLogprobs};
use trunkline_text::Tokenizer;
use trunkline_worker::{Kernel, Model, WeightKind};

const BLOCKS: u32 = 1024;

fn prompt(i: usize) -> Vec<u32> {
    let text = format!("{i} sheep, {} goats. The prompt number {i} is of its own length{}", i * i, "!".repeat(i * 3));
    Tokenizer::bytes().encode(&text).unwrap()
}

fn samplings() -> [Sampling; 4] {
    let hot = Sampling { temperature: 0.9, top_k: 50, top_p: 0.95, min_p: 0.01, seed: 7, ..Sampling::default() };
    let bias = [(101, 0.5), (32, -0.5)].into_iter().collect();
    [
        Sampling::default(),
        Sampling { frequency_penalty: 0.3, presence_penalty: 0.2, logit_bias: bias, ..hot.clone() },
        Sampling { repetition_penalty: 1.3, seed: 8, ..hot },
        Sampling { repetition_penalty: 1.2, presence_penalty: -0.3, logprobs: Some(3), ..Sampling::default() },
    ]
}

fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    logits.iter().map(|logits| logits.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// Tokens and logits of one sequence run alone with its prompt whole.
fn alone(model: &Arc<Model>, i: usize, n: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut rig = Rig::new(model, 16, 64, 1);
    let mut seq = Seq::new(0, &prompt(i), samplings()[i % 4].clone());
    let logits = rig.generate(&mut seq, n, usize::MAX);
    (seq.output().to_vec(), bits(&logits))
}

/// A model with F32 weights, and one with BF16 weights and the fastest kernel of the machine.
fn models(seed: u64) -> [Arc<Model>; 2] {
    let fast = Model::seeded_of_kind(WeightKind::Bf16, 2, seed).with_kernel(Kernel::of_machine());
    [Model::seeded(seed), fast].map(Arc::new)
}

#[test]
fn chunks_blocks_and_threads_do_not_matter() {
    models(1).iter().for_each(check_chunks_blocks_and_threads);
}

fn check_chunks_blocks_and_threads(model: &Arc<Model>) {
    for i in [3, 6, 11] {
        let expected = alone(model, i, 12);
        for (block_size, chunk, threads) in
            [(16, 1, 1), (16, 5, 2), (16, 16, 3), (1, 7, 1), (3, 33, 2), (64, 64, 1), (128, 50, 2)]
        {
            let mut rig = Rig::new(model, block_size, BLOCKS, threads);
            let mut seq = Seq::new(5, &prompt(i), samplings()[i % 4].clone());
            let logits = rig.generate(&mut seq, 12, chunk);
            assert_eq!((seq.output().to_vec(), bits(&logits)), expected, "block {block_size}, chunk {chunk}");
        }
    }
}

#[test]
fn a_batch_of_64_with_prefills_among_decodes_gives_what_each_gives_alone() {
    models(2).iter().for_each(check_a_batch_of_64);
}

fn check_a_batch_of_64(model: &Arc<Model>) {
    let n = 10;
    let mut rig = Rig::new(model, 16, BLOCKS, 2);
    let mut seqs: Vec<Seq> =
        (0..64).map(|i| Seq::new(i, &prompt(i as usize), samplings()[i as usize % 4].clone())).collect();
    // Sequences join one by one, so that most steps have decodes and chunks of prompts.
    let mut logits = vec![Vec::new(); 64];
    let mut joined = 1;
    while seqs.iter().any(|seq| seq.output().len() < n) {
        let mut active: Vec<&mut Seq> = seqs.iter_mut().take(joined).filter(|seq| seq.output().len() < n).collect();
        let before: Vec<(usize, usize)> = active.iter().map(|seq| (seq.id as usize, seq.tokens.len())).collect();
        let (_, step_logits) = rig.step(&mut active, 40);
        let sampled = active.iter().zip(before).filter(|(seq, (_, len))| seq.tokens.len() > *len);
        for ((_, (id, _)), row) in sampled.zip(step_logits) {
            logits[id].push(row);
        }
        joined = 64.min(joined + 5);
    }
    for (i, seq) in seqs.iter().enumerate() {
        assert_eq!((seq.output().to_vec(), bits(&logits[i])), alone(model, i, n), "sequence {i}");
    }
}

#[test]
fn the_kernel_decides_about_the_bits_of_bf16_alone() {
    let machine = Kernel::of_machine();
    for (kind, differs) in [(WeightKind::Bf16, machine != Kernel::Portable), (WeightKind::F16, false)] {
        let model = |kernel| Arc::new(Model::seeded_of_kind(kind, 2, 5).with_kernel(kernel));
        let (portable, fast) = (model(Kernel::Portable), model(machine));
        assert_eq!(fast.kernel() != Kernel::Portable, differs, "a model without BF16 names no other kernel");
        assert_eq!(alone(&portable, 4, 4) != alone(&fast, 4, 4), differs, "{}", kind.name());
    }
}

#[test]
fn shared_blocks_are_read_and_never_written() {
    let model = Arc::new(Model::seeded(3));
    let prompt = prompt(20);
    let expected = {
        let mut rig = Rig::new(&model, 16, 64, 1);
        let mut seq = Seq::new(0, &prompt, Sampling::default());
        let logits = rig.generate(&mut seq, 8, usize::MAX);
        (seq.output().to_vec(), bits(&logits))
    };
    let mut rig = Rig::new(&model, 16, BLOCKS, 1);
    let mut first = Seq::new(0, &prompt, Sampling::default());
    rig.generate(&mut first, 1, usize::MAX);
    // A prefix of whole blocks, and a prompt that is cached to its last token, which is run once more but not stored.
    let full = prompt.len() / 16 * 16;
    let mut second = Seq::new(1, &prompt, Sampling::default()).share(&first, 16, full);
    let logits = rig.generate(&mut second, 8, usize::MAX);
    assert_eq!((second.output().to_vec(), bits(&logits)), expected);
    let cached = &prompt[..full];
    let mut third = Seq::new(2, cached, Sampling::default()).share(&first, 16, full);
    assert_eq!(third.computed, full - 1);
    let mut whole = Seq::new(3, cached, Sampling::default());
    let again = rig.generate(&mut third, 8, usize::MAX);
    assert_eq!(bits(&again), bits(&rig.generate(&mut whole, 8, usize::MAX)));

    // To see the protection, run other tokens over the shared blocks: with it nothing changes, without it all does.
    let mut rogue = first.clone();
    let wrong: Vec<u32> = prompt.iter().map(|token| (token + 1) % 256).collect();
    let protected = |rig: &mut Rig, id: u32, write_from: u32, table: &[u32]| {
        let mut seq = Seq::new(id, &wrong, Sampling::default());
        seq.table = table.to_vec();
        seq.write_from = write_from;
        rig.generate(&mut seq, 1, usize::MAX);
    };
    let reread = |rig: &mut Rig, id: u32, from: &Seq| {
        let mut seq = Seq::new(id, &prompt, Sampling::default()).share(from, 16, full);
        let logits = rig.generate(&mut seq, 8, usize::MAX);
        bits(&logits)
    };
    protected(&mut rig, 4, wrong.len() as u32, &rogue.table);
    assert_eq!(reread(&mut rig, 5, &rogue), expected.1);
    rogue.table.truncate(full / 16);
    protected(&mut rig, 6, 0, &rogue.table);
    assert_ne!(reread(&mut rig, 7, &rogue), expected.1);
}

#[test]
fn a_preempted_sequence_goes_on_where_it_was() {
    let model = Arc::new(Model::seeded(4));
    for i in 0..4 {
        let expected = alone(&model, i, 14);
        let mut rig = Rig::new(&model, 16, 64, 1);
        let mut seq = Seq::new(0, &prompt(i), samplings()[i].clone());
        let mut logits = rig.generate(&mut seq, 6, usize::MAX);
        // Its blocks are lost; it starts again in another slot with everything it had as input.
        let mut again = Seq::new(9, &seq.tokens, samplings()[i].clone());
        again.prompt_len = seq.prompt_len;
        logits.extend(rig.generate(&mut again, 14, 9));
        assert_eq!((again.output().to_vec(), bits(&logits)), expected);
        // And the same with the KV kept in its blocks and only the slot lost.
        let mut rig = Rig::new(&model, 16, 64, 1);
        let mut seq = Seq::new(0, &prompt(i), samplings()[i].clone());
        let mut logits = rig.generate(&mut seq, 6, usize::MAX);
        rig.worker.reset();
        let mut again = Seq::new(9, &seq.tokens, samplings()[i].clone());
        (again.prompt_len, again.computed, again.table) = (seq.prompt_len, seq.computed, seq.table.clone());
        logits.extend(rig.generate(&mut again, 14, 9));
        assert_eq!((again.output().to_vec(), bits(&logits)), expected);
    }
}

#[test]
fn log_probabilities_come_for_those_who_asked_in_step_order() {
    let model = Arc::new(Model::seeded(5));
    let mut rig = Rig::new(&model, 16, 64, 1);
    let asked = [None, Some(0), Some(2), None, Some(300)];
    let mut seqs: Vec<Seq> = (0..5)
        .map(|i| Seq::new(i, &prompt(1), Sampling { logprobs: asked[i as usize], ..Sampling::default() }))
        .collect();
    let (output, logits) = rig.step(&mut seqs.iter_mut().collect::<Vec<_>>(), usize::MAX);
    let got: Vec<(u64, usize)> = output.logprobs.iter().map(|entry| (entry.request.0, entry.top.len())).collect();
    assert_eq!(got, [(1, 0), (2, 2), (4, 258)]);
    for entry in &output.logprobs {
        let i = entry.request.0 as usize;
        assert_eq!(entry.token, *seqs[i].output().last().unwrap());
        let sum: f64 = logits[i].iter().map(|logit| f64::from(*logit).exp()).sum();
        let exact = f64::from(logits[i][entry.token as usize]) - sum.ln();
        assert!((f64::from(entry.logprob) - exact).abs() < 1e-5);
        // Greedy: the token is the most likely one.
        assert!(entry.top.first().is_none_or(|top| *top == (entry.token, entry.logprob)));
    }
}

#[test]
fn the_seeded_model_talks_and_says_the_same_everywhere() {
    let mut texts = Vec::new();
    for seed in 0..4 {
        let model = Arc::new(Model::seeded(seed));
        let mut rig = Rig::new(&model, 16, 64, 1);
        let mut seq = Seq::new(0, &Tokenizer::bytes().encode("Once upon a time").unwrap(), Sampling::default());
        rig.generate(&mut seq, 200, usize::MAX);
        let output = seq.output();
        assert!(output.iter().all(|token| *token < 256), "special tokens are never likely");
        let distinct: std::collections::HashSet<&u32> = output.iter().collect();
        assert!(distinct.len() > 40, "{} distinct tokens", distinct.len());
        let pairs: std::collections::HashSet<&[u32]> = output.windows(2).collect();
        assert!(pairs.len() > 100, "{} distinct pairs", pairs.len());
        texts.push(Tokenizer::bytes().decode(&output[..32]));
    }
    // Pinned: the arithmetic rounds the same way on every machine.
    assert_eq!(
        texts,
        [
            "z-_+{)'*+~@]/]@z-/]/]l@^~?4E3:/j",
            "=*:gX8*k4HARlz&022/A+633hAUY[0&2",
            "gh(^r8v-eC]-N(\"h]^%pv]WeC-a^4S^%",
            "~(]bm%|{Gsm2-wh\"]s4H9$$K~(h(]]]]",
        ]
    );
}

/// Log probability of a token and of others in its place, bit for bit.
type Value = (u32, u32, Vec<(u32, u32)>);

fn value(of: &TokenLogprobs) -> Value {
    (of.token, of.logprob.to_bits(), of.top.iter().map(|(token, logprob)| (*token, logprob.to_bits())).collect())
}

/// Runs sequences to their first token, and returns the values of their prompts by request.
fn valued(rig: &mut Rig, seqs: &mut [Seq], chunk: usize) -> Vec<Vec<Value>> {
    let mut values = vec![Vec::new(); seqs.len()];
    while seqs.iter().any(|seq| seq.output().is_empty()) {
        let mut active: Vec<&mut Seq> = seqs.iter_mut().filter(|seq| seq.output().is_empty()).collect();
        let (output, _) = rig.step(&mut active, chunk);
        for prompt in output.prompts {
            let values = &mut values[prompt.request.0 as usize];
            assert_eq!(prompt.first as usize, values.len() + 1, "in order, without a gap");
            values.extend(prompt.tokens.iter().map(value));
        }
    }
    values
}

#[test]
fn the_values_of_a_prompt_are_those_of_its_tokens_when_they_are_generated() {
    let model = Arc::new(Model::seeded(6));
    for logprobs in [0, 3] {
        let mut rig = Rig::new(&model, 16, BLOCKS, 2);
        let sampling = Sampling { logprobs: Some(logprobs), ..samplings()[1].clone() };
        let mut spoken = Seq::new(0, &prompt(2)[..3], sampling);
        let mut said = Vec::new();
        while spoken.output().len() < 150 {
            said.extend(rig.step(&mut [&mut spoken], usize::MAX).0.logprobs.iter().map(value));
        }
        // More rows than are in memory at once; the draws of the answer have no say in the values.
        for chunk in [usize::MAX, 7, 1] {
            let mut read = [Seq::new(0, &spoken.tokens, samplings()[2].clone())];
            read[0].prompt_logprobs = Some(logprobs);
            let values = valued(&mut Rig::new(&model, 16, BLOCKS, 1), &mut read, chunk);
            assert_eq!((values[0].len(), &values[0][2..]), (152, &said[..]), "chunks of {chunk}");
        }
    }
}

#[test]
fn prompts_valued_in_one_batch_have_the_values_of_each_alone_and_the_answers_of_prompts_without() {
    let model = Arc::new(Model::seeded(5));
    let asks = |i: u32| [Some(2), None, Some(0)][i as usize % 3];
    let seq = |i: u32, id| {
        let mut seq = Seq::new(id, &prompt(i as usize), samplings()[i as usize % 4].clone());
        seq.prompt_logprobs = asks(i);
        seq
    };
    let mut together: Vec<Seq> = (0..9).map(|i| seq(i, i)).collect();
    let values = valued(&mut Rig::new(&model, 16, BLOCKS, 2), &mut together, 11);
    for i in 0..9 {
        let mut one = [seq(i, 0)];
        assert_eq!(valued(&mut Rig::new(&model, 16, BLOCKS, 1), &mut one, usize::MAX)[0], values[i as usize]);
        let expected = alone(&model, i as usize, 1).0;
        assert_eq!([together[i as usize].output(), one[0].output()], [&expected[..], &expected]);
        assert_eq!(values[i as usize].len(), asks(i).map_or(0, |_| together[i as usize].prompt_len - 1));
    }
}
