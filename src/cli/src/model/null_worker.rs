//! A worker without a model, for measuring everything around a model: network, protocol and scheduling.
//!
//! The null worker answers each step at once or after a fixed time. The n-th token of every request is the n-th letter of the
//! alphabet, over and over; log probabilities are those of a uniform distribution over the vocabulary.

use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use trunkline_port::{
    CopyError, DeviceBlocks, ModelInfo, RequestId, Step, StepError, StepOutput, StepRunner, Token, TokenLogprobs,
};
use trunkline_quote::quoted;
use trunkline_server::{Backend, MakeWorker, SamplingOffer};
use trunkline_text::Tokenizer;

/// Longest sequence of the null worker, tokens.
pub const MAX_CONTEXT: u32 = 1 << 17;
/// Longest time of a step.
const STEP_MAX: Duration = Duration::from_secs(60);
/// Token of the letter `a` in the byte tokenizer; the letters follow in order.
const A: u32 = b'a' as u32;
const LETTERS: u32 = 26;

/// Kind of the workers of a server: `embedded`, or `null[:STEP]` as in `null:10ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerKind {
    /// The embedded worker, with a model on the CPU.
    #[default]
    Embedded,
    /// No model: steps take a fixed time.
    Null {
        /// Duration of each step.
        step: Duration,
    },
}

impl FromStr for WorkerKind {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.split_once(':') {
            None if text == "embedded" => Ok(Self::Embedded),
            None if text == "null" => Ok(Self::Null { step: Duration::ZERO }),
            Some(("null", step)) => Ok(Self::Null { step: duration(step)? }),
            _ => anyhow::bail!(
                "unknown worker {text}; there are: embedded, null, null:STEP as in null:10ms",
                text = quoted(text)
            ),
        }
    }
}

/// Reads the duration of a step: a number with the unit `us`, `ms` or `s`.
///
/// # Errors
/// If the text has no such unit, or the duration is negative or above 60 s.
pub fn duration(text: &str) -> anyhow::Result<Duration> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let with_unit = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, seconds) =
        with_unit.with_context(|| format!("{text} has no unit; give us, ms or s, as in 10ms", text = quoted(text)))?;
    let number: f64 =
        number.parse().with_context(|| format!("{text} is not a number with a unit", text = quoted(text)))?;
    let seconds = number * seconds;
    ensure!(
        (0.0..=STEP_MAX.as_secs_f64()).contains(&seconds),
        "{text} is outside of the range from 0 to {} s",
        STEP_MAX.as_secs(),
        text = quoted(text)
    );
    Ok(Duration::from_secs_f64(seconds))
}

/// A worker whose steps take a fixed time and compute nothing.
pub struct NullWorker {
    step: Duration,
    vocab_size: u32,
    /// Number of log probabilities asked for, by slot.
    logprobs: Vec<Option<u32>>,
}

impl NullWorker {
    /// Makes a worker with steps of duration `step` and token ids below `vocab_size`.
    pub fn new(step: Duration, vocab_size: u32) -> Self {
        Self { step, vocab_size, logprobs: Vec::new() }
    }

    /// Returns facts of a model that is none: no layers, no KV.
    pub fn info(vocab_size: u32) -> ModelInfo {
        ModelInfo {
            name: "null".into(),
            vocab_size,
            max_context: MAX_CONTEXT,
            kv_dtype: "none".into(),
            ..ModelInfo::default()
        }
    }

    /// Returns the token with index `n` of every answer.
    fn token(&self, n: u32) -> u32 {
        (A + n % LETTERS) % self.vocab_size
    }

    /// Notes the log probabilities that starting sequences ask for.
    fn start(&mut self, step: &Step) {
        let starting = step.seqs.iter().filter(|seq| seq.start);
        for (seq, start) in starting.zip(&step.starts) {
            let slot = seq.slot as usize;
            if self.logprobs.len() <= slot {
                self.logprobs.resize(slot + 1, None);
            }
            self.logprobs[slot] = start.sampling.logprobs;
        }
    }
}

impl StepRunner for NullWorker {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let begin = Instant::now();
        self.start(step);
        let mut output = StepOutput::default();
        output.result.step = step.id;
        output.result.ends.reserve(step.seqs.len());
        for seq in &step.seqs {
            if !seq.sample {
                output.result.push(&[]);
                continue;
            }
            let token = self.token(seq.n_generated);
            output.result.push(&[token]);
            let asked = self.logprobs.get(seq.slot as usize).copied().flatten();
            output.logprobs.extend(asked.map(|n_top| uniform_logprobs(seq.request, token, n_top, self.vocab_size)));
        }
        if let Some(left) = self.step.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
            thread::sleep(left);
        }
        Ok(output)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        Arc::new(NullBlocks)
    }

    fn reset(&mut self) {
        self.logprobs.clear();
    }
}

/// Returns the log probabilities of a token, and of `n_top` other tokens, if all are equally likely.
pub fn uniform_logprobs(request: RequestId, token: Token, n_top: u32, vocab_size: u32) -> TokenLogprobs {
    let logprob = -(vocab_size as f32).ln();
    TokenLogprobs { request, token, logprob, top: (0..n_top.min(vocab_size)).map(|id| (id, logprob)).collect() }
}

/// Returns a backend of null workers whose steps take `step`.
pub fn null_backend(model: ModelInfo, tokenizer: Tokenizer, step: Duration) -> Backend {
    let vocab_size = model.vocab_size;
    let workers: MakeWorker = Arc::new(move |_| Ok(Box::new(NullWorker::new(step, vocab_size))));
    Backend {
        model,
        further_kv: Vec::new(),
        tokenizer,
        workers,
        stores: Vec::new(),
        offer: SamplingOffer { grammars: false, prompt_logprobs: false, ..SamplingOffer::default() },
    }
}

/// Blocks without contents, of one byte each: the least that a store copies.
struct NullBlocks;

impl DeviceBlocks for NullBlocks {
    fn block_bytes(&self) -> usize {
        1
    }

    fn read(&self, _: u32, _: &mut [u8]) -> Result<(), CopyError> {
        Ok(())
    }

    fn write(&self, _: u32, _: &[u8]) -> Result<(), CopyError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use trunkline_port::{Sampling, SeqStart, StepSeq};

    use super::*;

    #[test]
    fn a_kind_is_read_with_the_time_of_its_steps() {
        assert_eq!("embedded".parse::<WorkerKind>().unwrap(), WorkerKind::Embedded);
        for (text, step) in
            [("null", 0), ("null:0s", 0), ("null:250us", 250), ("null:1.5ms", 1500), ("null:2s", 2_000_000)]
        {
            let step = Duration::from_micros(step);
            assert_eq!(text.parse::<WorkerKind>().unwrap(), WorkerKind::Null { step }, "{text}");
        }
        for (text, message) in [
            ("nil", "unknown worker 'nil'"),
            ("embedded:1s", "unknown worker"),
            ("null:10", "'10' has no unit"),
            ("null:xms", "'xms' is not a number"),
            ("null:-1ms", "'-1ms' is outside"),
            ("null:61s", "'61s' is outside"),
            ("null:nans", "'nans' is outside"),
        ] {
            let error = text.parse::<WorkerKind>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn every_sampling_sequence_gets_the_letter_of_its_position_and_the_log_probabilities_asked_for() {
        let seq = |slot: u32, n_generated, sample| StepSeq {
            request: RequestId(u64::from(slot) + 7),
            slot,
            start: true,
            computed: 0,
            n_tokens: 1,
            n_history: 0,
            tokens_at: slot,
            input_from_last: false,
            kv_write_from: 0,
            table_keep: 0,
            blocks_at: 0,
            n_blocks: 0,
            sample,
            n_generated,
            n_drafts: 0,
        };
        let asks = Sampling { logprobs: Some(2), ..Sampling::default() };
        let step = Step {
            id: 5,
            seqs: vec![seq(0, 27, true), seq(1, 0, false), seq(2, 1, true)],
            tokens: vec![1; 3],
            blocks: Vec::new(),
            starts: vec![SeqStart::default(), SeqStart::default(), asks.into()],
            ..Step::default()
        };
        let mut worker = NullWorker::new(Duration::ZERO, 258);
        let output = worker.run(&step).unwrap();
        assert_eq!(output.result.step, 5);
        let tokens: Vec<&[u32]> = (0..3).map(|i| output.result.of(i)).collect();
        let (b, none): ([u32; 1], [u32; 0]) = ([u32::from(b'b')], []);
        assert_eq!(tokens, [&b[..], &none, &b]);
        assert_eq!(output.logprobs.len(), 1);
        assert_eq!((output.logprobs[0].request, output.logprobs[0].top.len()), (RequestId(9), 2));
        worker.reset();
        assert!(NullWorker::new(Duration::ZERO, 3).token(5) < 3, "ids are below the vocabulary's size");
    }
}
