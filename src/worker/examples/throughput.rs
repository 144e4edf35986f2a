//! Tokens per second of the embedded worker: `cargo run --release -p trunkline-worker --example throughput [FOLDER]`.
//!
//! Without a folder the seeded model is measured. Each sequence has a prompt of its own of 128 tokens.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use trunkline_port::{RequestId, Sampling, Step, StepSeq};
use trunkline_worker::{Model, Worker, WorkerConfig};

const BLOCK_SIZE: u32 = 16;
const PROMPT: u32 = 128;
const PREFILL: u32 = 2048;
const DECODE: u32 = 128;
const REPEATED: u32 = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Arc::new(match std::env::args().nth(1) {
        Some(folder) => Model::load(Path::new(&folder))?,
        None => Model::seeded(0),
    });
    println!("model {}, {:?}", model.name(), model.config());
    for threads in [1, 0] {
        let count = if threads == 0 { "one thread for each core".to_owned() } else { format!("{threads} thread") };
        println!("{count}:");
        let rate = |n_seqs: u32, prompt: u32, decode: u32| measure(&model, threads, n_seqs, prompt, decode);
        println!("  prefill, one prompt of {PREFILL}: {:8.0} tokens/s", rate(1, PREFILL, 0)?);
        for batch in [1, 16, 64] {
            println!("  decode, batch of {batch:2}:        {:8.0} tokens/s", rate(batch, PROMPT, DECODE)?);
        }
        for max_drafts in [0, 3, 7, 15] {
            let (rate, steps) = measure_drafts(&model, threads, max_drafts)?;
            println!("  decode, one that repeats itself, {max_drafts:2} drafts: {rate:8.0} tokens/s, {steps} steps");
        }
    }
    Ok(())
}

/// Tokens per second of the prefill if `decode` is 0, else of the decode steps after it.
fn measure(
    model: &Arc<Model>,
    threads: usize,
    n_seqs: u32,
    prompt: u32,
    decode: u32,
) -> Result<f64, Box<dyn std::error::Error>> {
    let blocks_each = (prompt + decode).div_ceil(BLOCK_SIZE);
    let device_blocks = n_seqs * blocks_each;
    let config = WorkerConfig { block_size: BLOCK_SIZE, device_blocks, host_blocks: 0, max_drafts: 0, threads };
    let mut worker = Worker::new(Arc::clone(model), config)?;
    let vocab = model.config().vocab_size;
    let mut step = Step { id: 1, ..Step::default() };
    for slot in 0..n_seqs {
        step.seqs.push(StepSeq {
            request: RequestId(slot.into()),
            slot,
            start: true,
            n_tokens: prompt,
            tokens_at: slot * prompt,
            blocks_at: slot * blocks_each,
            n_blocks: blocks_each,
            sample: true,
            ..StepSeq::default()
        });
        step.tokens.extend((0..prompt).map(|i| (slot * 31 + i * 7) % vocab));
        step.blocks.extend(slot * blocks_each..(slot + 1) * blocks_each);
        step.sampling.push(Sampling::default());
    }
    let begin = Instant::now();
    let mut tokens = worker.run(&step)?.result.tokens;
    if decode == 0 {
        return Ok(f64::from(n_seqs * prompt) / begin.elapsed().as_secs_f64());
    }
    let begin = Instant::now();
    for n in 1..decode {
        step.id += 1;
        for (slot, seq) in (0..).zip(&mut step.seqs) {
            let computed = seq.computed + seq.n_tokens;
            *seq = StepSeq {
                start: false,
                computed,
                n_tokens: 1,
                tokens_at: slot,
                table_keep: blocks_each,
                blocks_at: 0,
                n_blocks: 0,
                n_generated: n,
                ..*seq
            };
        }
        step.tokens = tokens;
        step.sampling.clear();
        tokens = worker.run(&step)?.result.tokens;
    }
    Ok(f64::from(n_seqs * (decode - 1)) / begin.elapsed().as_secs_f64())
}

/// Tokens per second, and steps, of the decode of one text that soon goes round in circles, with up to `max_drafts` drafts in
/// each step.
fn measure_drafts(
    model: &Arc<Model>,
    threads: usize,
    max_drafts: u32,
) -> Result<(f64, u64), Box<dyn std::error::Error>> {
    let device_blocks = (PROMPT + 2 * REPEATED + max_drafts).div_ceil(BLOCK_SIZE);
    let config = WorkerConfig { block_size: BLOCK_SIZE, device_blocks, host_blocks: 0, max_drafts, threads };
    let mut worker = Worker::new(Arc::clone(model), config)?;
    let seq = StepSeq {
        request: RequestId(0),
        start: true,
        n_tokens: PROMPT,
        n_blocks: device_blocks,
        sample: true,
        ..StepSeq::default()
    };
    let mut step = Step { id: 1, seqs: vec![seq], ..Step::default() };
    step.tokens.extend((0..PROMPT).map(|i| 100 + i % 8));
    step.blocks.extend(0..device_blocks);
    step.sampling.push(Sampling { repetition_penalty: 0.2, ..Sampling::default() });
    let (mut last, mut n) = (worker.run(&step)?.result.tokens[0], 1);
    step.sampling.clear();
    let begin = Instant::now();
    while n <= REPEATED {
        step.id += 1;
        step.tokens = vec![last];
        step.seqs[0] = StepSeq {
            start: false,
            computed: PROMPT + n - 1,
            n_tokens: 1,
            table_keep: device_blocks,
            n_blocks: 0,
            n_generated: n,
            n_drafts: max_drafts,
            ..step.seqs[0]
        };
        let tokens = worker.run(&step)?.result.tokens;
        n += tokens.len() as u32;
        last = tokens[tokens.len() - 1];
    }
    Ok((f64::from(n - 1) / begin.elapsed().as_secs_f64(), step.id - 1))
}
