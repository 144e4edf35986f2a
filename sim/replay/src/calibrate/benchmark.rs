//! Steps of a benchmark, reconstructed from the clients' view.
//!
//! The benchmarks of vLLM and SGLang, with details enabled, write per request `input_lens`, `output_lens`, `ttfts`, `itls` (gaps
//! between tokens, seconds) and, in newer versions, `start_times`. Every token therefore has a time. Tokens that reach clients
//! together come from one step: a step begins with one such group of tokens and ends with the next, and contains
//!
//! * a decode for each request with a token at the end and one before,
//! * chunks of prompts, up to the token budget of a step, as [`chunks`] fills them in.
//!
//! Skipped are steps with a returning request that had no token in the step before: the request was preempted, and the recomputed part is
//! unknown. Requests that failed are skipped too. A benchmark with several tokens in a chunk is refused ([`BenchmarkError::ManyTokens`]).
//!
//! How much of a prompt was found in the prefix cache is unknown: every token counts as computed. Benchmark without a prefix cache, or
//! with prompts that share nothing.
//!
//! The reconstruction is a sketch of the server's work. Prefer a recording where one exists.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use trunkline_quote::of_parser;

use trunkline_sim_perf::cost::{Sample, StepShape};
use trunkline_sim_workload::lines::{LineFault, Lines};
use trunkline_sim_workload::python_json::strict;
use trunkline_sim_workload::trace::LENGTH_TOKENS_MAX;

use chunks::{Gap, Prompt, fill};

mod chunks;

/// Failure to read samples from a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// File cannot be read.
    #[error("{}: {fault}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Fault in reading its lines.
        fault: LineFault,
    },
    /// Not the result of a benchmark with details.
    #[error(
        "{}: not a benchmark with details ({}); run it with --save-detailed (vLLM) or --output-details (SGLang)",
        path.display(),
        of_parser(&fault.to_string())
    )]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        fault: serde_json::Error,
    },
    /// Arrays of different lengths.
    #[error("{}: {field} is of {found} requests, input_lens of {expected}", path.display())]
    Lengths {
        /// Path of the file.
        path: PathBuf,
        /// Name of the array.
        field: &'static str,
        /// Length of the array.
        found: usize,
        /// Length of the other arrays.
        expected: usize,
    },
    /// Several tokens in a chunk.
    #[error(
        "{}: {tokens} tokens came in {chunks} chunks, so steps cannot be told apart: with vLLM's --stream-interval or SGLang's \
         --stream-interval set it to 1; with speculative decoding benchmark without, and give the replay --max-drafts",
        path.display()
    )]
    ManyTokens {
        /// Path of the file.
        path: PathBuf,
        /// Tokens of all answers.
        tokens: u64,
        /// Chunks of all answers.
        chunks: u64,
    },
    /// Prompts computed in fewer steps than the token budget allows.
    #[error(
        "{}: {misfits} of {prompts} prompts were computed in fewer steps than {step_tokens} tokens a step allow: give the server's token \
         budget with --step-tokens, or benchmark without prefix cache",
        path.display()
    )]
    Budget {
        /// Path of the file.
        path: PathBuf,
        /// Prompts too long for the steps before their first token.
        misfits: u64,
        /// Prompts of all requests that did not fail.
        prompts: u64,
        /// Token budget as given on input.
        step_tokens: u64,
    },
    /// Benchmark without start times.
    #[error(
        "{}: does not say when requests started; use a benchmark that writes start_times, or send all at once (request rate inf, no limit of \
         concurrency)",
        path.display()
    )]
    NoStarts {
        /// Path of the file.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
struct Benchmark {
    input_lens: Vec<u64>,
    ttfts: Vec<f64>,
    itls: Vec<Vec<f64>>,
    output_lens: Option<Vec<u64>>,
    errors: Option<Vec<Option<String>>>,
    start_times: Option<Vec<f64>>,
    request_rate: Option<serde_json::Value>,
    max_concurrency: Option<u64>,
}

/// Window for tokens of one step, seconds: far shorter than a step, far longer than sending a batch of tokens.
const TOGETHER_S: f64 = 1e-3;
/// Share of the tokens that may lack a chunk of their own, in addition to one of each request: an engine may send the last two together, and hold
/// back half of a character.
const WITHOUT_CHUNK: f64 = 0.05;

/// Share of the prompts that may be too long for the steps before their first token: a client's clock sees some arrivals late.
const MISFITS_MAX: f64 = 0.25;

/// Token with its arrival, the arrival of the token before, its request and its number.
struct Seen {
    at_s: f64,
    before_s: f64,
    request: usize,
    number: u64,
}

/// Returns the steps of the benchmark at `path`: a JSON file, or the last line of several, plain, gzip or Zstandard. `step_tokens` is the token budget of a
/// step: vLLM's `max_num_batched_tokens`, SGLang's `chunked_prefill_size`.
///
/// # Errors
///
/// [`BenchmarkError`] if the file cannot be read, lacks details or start times, has several tokens in a chunk, or prompts too long for their steps.
pub fn from_benchmark(path: &Path, step_tokens: u64) -> Result<Vec<Sample>, BenchmarkError> {
    let text = whole(path).map_err(|fault| BenchmarkError::Unreadable { path: path.into(), fault })?;
    let text = strict(&String::from_utf8_lossy(&text));
    // SGLang adds a line per run; vLLM writes one object, perhaps over several lines.
    let last = || text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let benchmark: Benchmark = serde_json::from_str(&text)
        .or_else(|fault| serde_json::from_str(last()).map_err(|_| fault))
        .map_err(|fault| BenchmarkError::Malformed { path: path.into(), fault })?;
    let starts = benchmark.starts(path)?;
    benchmark.check_chunks(path)?;
    let (samples, misfits) = benchmark.samples(&starts, step_tokens);
    let prompts = (0..starts.len()).filter(|request| !benchmark.has_failed(*request)).count() as u64;
    if misfits as f64 > MISFITS_MAX * prompts as f64 {
        return Err(BenchmarkError::Budget { path: path.into(), misfits, prompts, step_tokens });
    }
    Ok(samples)
}

/// Returns the bytes of a file, plain, gzip or Zstandard.
fn whole(path: &Path) -> Result<Vec<u8>, LineFault> {
    let mut lines = Lines::open(path)?;
    let mut text = Vec::new();
    while let Some(line) = lines.next_line()? {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    Ok(text)
}

impl Benchmark {
    /// Returns the start of each request, seconds.
    fn starts(&self, path: &Path) -> Result<Vec<f64>, BenchmarkError> {
        let expected = self.input_lens.len();
        let at_once = self.max_concurrency.is_none()
            && self.request_rate.as_ref().is_some_and(|rate| *rate == "inf" || rate.as_f64() == Some(f64::INFINITY));
        let starts = match &self.start_times {
            Some(starts) => starts.clone(),
            None if at_once => vec![0.0; expected],
            None => return Err(BenchmarkError::NoStarts { path: path.into() }),
        };
        let of = |found: Option<usize>| found.unwrap_or(expected);
        for (field, found) in [
            ("ttfts", self.ttfts.len()),
            ("itls", self.itls.len()),
            ("start_times", starts.len()),
            ("output_lens", of(self.output_lens.as_ref().map(Vec::len))),
            ("errors", of(self.errors.as_ref().map(Vec::len))),
        ] {
            if found != expected {
                return Err(BenchmarkError::Lengths { path: path.into(), field, found, expected });
            }
        }
        Ok(starts)
    }

    /// Returns `true` if a request failed.
    fn has_failed(&self, request: usize) -> bool {
        let error = self.errors.as_ref().and_then(|errors| errors[request].as_ref());
        error.is_some_and(|error| !error.is_empty()) || self.output_lens.as_ref().is_some_and(|lens| lens[request] == 0)
    }

    /// Fails if chunks hold several tokens.
    fn check_chunks(&self, path: &Path) -> Result<(), BenchmarkError> {
        let Some(lens) = &self.output_lens else { return Ok(()) };
        let answered = (0..lens.len()).filter(|request| !self.has_failed(*request));
        let (mut tokens, mut chunks, mut spare) = (0, 0, 0.0);
        for request in answered {
            tokens += lens[request];
            chunks += 1 + self.itls[request].len() as u64;
            spare += 1.0 + WITHOUT_CHUNK * lens[request] as f64;
        }
        if tokens as f64 > chunks as f64 + spare {
            return Err(BenchmarkError::ManyTokens { path: path.into(), tokens, chunks });
        }
        Ok(())
    }

    /// Returns the tokens of a prompt, capped at the maximum of a trace.
    fn input(&self, request: usize) -> u64 {
        self.input_lens[request].min(u64::from(LENGTH_TOKENS_MAX))
    }

    /// Returns the samples, and the number of prompts too long for the steps before their first token.
    fn samples(&self, starts: &[f64], step_tokens: u64) -> (Vec<Sample>, u64) {
        let mut seen = Vec::new();
        let answered = |(request, _): &(usize, _)| !self.has_failed(*request);
        for (request, (start, ttft)) in starts.iter().zip(&self.ttfts).enumerate().filter(answered) {
            let mut at_s = start + ttft;
            seen.push(Seen { at_s, before_s: *start, request, number: 0 });
            for (gap, number) in self.itls[request].iter().zip(1..) {
                let before_s = at_s;
                at_s += gap;
                seen.push(Seen { at_s, before_s, request, number });
            }
        }
        seen.sort_unstable_by(|a, b| a.at_s.total_cmp(&b.at_s).then(a.request.cmp(&b.request)));
        let groups: Vec<&[Seen]> = seen.chunk_by(|a, b| b.at_s - a.at_s < TOGETHER_S).collect();
        let gaps = self.gaps(&groups);
        let filled = fill(&gaps, self.prompts(&groups, starts), step_tokens);
        let shapes = groups.iter().zip(&filled).map(|(group, filled)| self.decodes(group).and(filled.prompts));
        let known = |at: &usize| {
            let before_s = gaps[*at].before_s;
            let is_back = groups[*at].iter().any(|token| token.number > 0 && token.before_s < before_s - TOGETHER_S);
            !is_back && filled[*at].is_known
        };
        let samples = shapes.zip(&gaps).zip(&filled);
        let samples: Vec<_> =
            samples.map(|((shape, gap), filled)| Sample { shape, time_s: gap.end_s - filled.begin_s }).collect();
        // The first gap has no begin.
        let known = (1..samples.len()).filter(known).map(|at| samples[at]).collect();
        (known, filled.iter().skip(1).map(|filled| filled.misfits).sum())
    }

    /// Returns the gap that ends with each group of tokens.
    fn gaps(&self, groups: &[&[Seen]]) -> Vec<Gap> {
        let mut before_s = f64::NEG_INFINITY;
        let gap = |group: &&[Seen]| {
            let end_s = group[group.len() - 1].at_s;
            Gap { before_s: std::mem::replace(&mut before_s, end_s), end_s, decodes: self.decodes(group).decodes }
        };
        groups.iter().map(gap).collect()
    }

    /// Returns the prompts, with the gaps that their first tokens end.
    fn prompts(&self, groups: &[&[Seen]], starts: &[f64]) -> Vec<Prompt> {
        let of = |(last, group): (usize, &&[Seen])| {
            let first = group.iter().filter(|token| token.number == 0).map(|token| token.request);
            first.map(|request| Prompt::new(self.input(request), starts[request], last)).collect::<Vec<_>>()
        };
        groups.iter().enumerate().flat_map(of).collect()
    }

    /// Returns the shape of the decodes that ended in a step.
    fn decodes(&self, step: &[Seen]) -> StepShape {
        let later = step.iter().filter(|token| token.number > 0);
        later.fold(StepShape::default(), |shape, token| {
            shape.and(StepShape::decodes(1, self.input(token.request) + token.number))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(text: &str) -> Result<Vec<Sample>, BenchmarkError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        std::fs::write(&path, text).unwrap();
        from_benchmark(&path, 64)
    }

    #[test]
    fn tokens_that_come_together_are_of_one_step() {
        let samples = read(
            r#"{"input_lens": [100, 50], "output_lens": [3, 3], "start_times": [10.0, 10.05], "ttfts": [0.1, 0.07],
                "itls": [[0.02, 0.03], [0.0302, 0.01]], "request_rate": 5.0, "max_concurrency": null}"#,
        )
        .unwrap();
        // 10.10 first of A; 10.12 second of A and first of B; 10.15 third of A and second of B; 10.16 third of B.
        let shapes = [
            StepShape::decodes(1, 101).and(StepShape::prefill(50, 0)),
            StepShape::decodes(1, 102).and(StepShape::decodes(1, 51)),
            StepShape::decodes(1, 52),
        ];
        assert_eq!(samples.iter().map(|sample| sample.shape).collect::<Vec<_>>(), shapes);
        for (sample, time_s) in samples.iter().zip([0.02, 0.0302, 0.01]) {
            assert!((sample.time_s - time_s).abs() < 1e-6, "{sample:?}");
        }
    }

    #[test]
    fn a_prompt_too_long_for_a_step_fills_the_one_before() {
        let samples = read(
            r#"{"input_lens": [10, 100], "start_times": [0.0, 0.5], "ttfts": [1.0, 2.5],
                "itls": [[1.0, 1.0, 1.0], []], "request_rate": 1}"#,
        )
        .unwrap();
        let (first, rest) = (StepShape::prefill(63, 0), StepShape::prefill(37, 63));
        let shapes =
            [first.and(StepShape::decodes(1, 11)), rest.and(StepShape::decodes(1, 12)), StepShape::decodes(1, 13)];
        assert_eq!(samples.iter().map(|sample| sample.shape).collect::<Vec<_>>(), shapes);
    }

    #[test]
    fn the_last_of_several_runs_counts_and_all_at_once_needs_no_starts() {
        let run = |rate: &str, itl: f64| {
            format!(r#"{{"input_lens": [9], "ttfts": [0.125], "itls": [[{itl}]], "request_rate": {rate}}}"#)
        };
        for rate in ["\"inf\"", "Infinity"] {
            let samples = read(&format!("{}\n{}\n", run("1.0", 0.5), run(rate, 0.25))).unwrap();
            assert_eq!(samples, [Sample { shape: StepShape::decodes(1, 10), time_s: 0.25 }]);
        }
        let message = read(&run("1.0", 0.5)).unwrap_err().to_string();
        assert!(message.contains("b.json: does not say when requests started"), "{message}");
    }

    #[test]
    fn a_packed_benchmark_is_read() {
        let text = r#"{"input_lens": [9], "ttfts": [0.125], "itls": [[0.5]], "request_rate": Infinity}"#;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json.gz");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(text.as_bytes()).unwrap();
        std::fs::write(&path, packed.finish().unwrap()).unwrap();
        assert_eq!(from_benchmark(&path, 64).unwrap(), read(text).unwrap());
        let message = from_benchmark(&folder.path().join("c.json"), 64).unwrap_err().to_string();
        assert!(message.ends_with("c.json: no such file; check the path"), "{message}");
    }

    #[test]
    fn prompts_too_long_for_their_steps_are_refused() {
        // A prompt of 100 tokens alongside a decode, in one step.
        let message = read(
            r#"{"input_lens": [10, 100], "start_times": [0.0, 1.5], "ttfts": [1.0, 1.5],
                "itls": [[1.0, 1.0, 1.0], []], "request_rate": 1}"#,
        );
        let message = message.unwrap_err().to_string();
        assert!(
            message.contains("1 of 2 prompts were computed in fewer steps than 64 tokens a step allow: "),
            "{message}"
        );
    }

    #[test]
    fn failed_requests_are_left_out() {
        let text = |lens: &str, errors: &str| {
            format!(
                r#"{{"input_lens": [10, 500], "output_lens": {lens}, "start_times": [0.0, 1.0], "ttfts": [1.0, 0.0],
                "itls": [[1.0, 1.0, 1.0], []], "errors": {errors}}}"#
            )
        };
        let alone: Vec<_> = (11..14).map(|past| Sample { shape: StepShape::decodes(1, past), time_s: 1.0 }).collect();
        for (lens, errors) in [("[4, 0]", r#"["", "Internal"]"#), ("[4, 0]", "null"), ("[4, 9]", r#"[null, "x"]"#)] {
            assert_eq!(read(&text(lens, errors)).unwrap(), alone);
        }
        let message = read(&text("[4, 0]", "[]")).unwrap_err().to_string();
        assert!(message.ends_with("b.json: errors is of 0 requests, input_lens of 2"), "{message}");
    }

    #[test]
    fn several_tokens_in_a_chunk_are_refused() {
        let read_with = |tokens: u64| {
            let text = format!(
                r#"{{"input_lens": [10], "output_lens": [{tokens}], "start_times": [0.0], "ttfts": [1.0],
                "itls": [{:?}]}}"#,
                vec![1.0; 39]
            );
            read(&text)
        };
        // 40 chunks. A last token without a chunk is usual.
        assert_eq!(read_with(41).unwrap().len(), 39);
        let message = read_with(60).unwrap_err().to_string();
        assert!(message.contains("60 tokens came in 40 chunks") && message.contains("--max-drafts"), "{message}");
    }

    #[test]
    fn what_is_no_benchmark_is_refused() {
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert!(error("{}").contains("not a benchmark with details (missing field `input_lens`"), "{}", error("{}"));
        let short = r#"{"input_lens": [1, 2], "ttfts": [0.1], "itls": [[], []], "start_times": [0, 0]}"#;
        assert!(error(short).ends_with("b.json: ttfts is of 1 requests, input_lens of 2"), "{}", error(short));
    }
}
