//! A real run of vLLM 0.19 (Llama-3.1-8B on an RTX 4090, 300 requests, 195 preemptions) against what its profile says it should take:
//! with vLLM's schedule, which judges the cost model, and with the core's, which judges both.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use trunkline_core::core::event::{Action, Event};
use trunkline_core::{BlockHash, Config, Core, Request, RequestId};
use trunkline_core::{Step, StepResult};
use trunkline_sim_perf::cost::Sample;
use trunkline_sim_perf::cost::table::Skew;
use trunkline_sim_perf::cost::{CostChoice, CostModel, Fitted, LowerBound, Parallel, Roofline, StepShape, Table};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::calibrate::{calibrate, from_benchmark};
use trunkline_sim_replay::{Settings, engines, replay};
use trunkline_sim_workload::Trace;
use trunkline_sim_workload::summary::{Kept, Summary};

use super::engine::{Engine, Job};
use crate::{data, errors, line};

/// Blocks that the engine reported, but for the one it keeps for itself.
const BLOCKS: u32 = 2588 - 1;

/// What vLLM wrote down of a request; seconds. `arrival_time` is by another clock than the rest.
#[derive(Deserialize)]
struct Real {
    output_toks: usize,
    arrival_time: f64,
    queued_ts: f64,
    first_token_ts: f64,
    last_token_ts: f64,
}

/// What was asked.
#[derive(Deserialize)]
struct Asked {
    input_tok_ids: Vec<u32>,
}

struct Run {
    table: Table,
    jobs: Vec<Job>,
    /// TTFT, TPOT, E2E.
    expected: [Summary; 3],
}

fn load(skew: Skew) -> Run {
    let folder = data("profiles/llmservingsim/RTX4090");
    let (hardware, model) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let table = Table::from_llmservingsim(&folder, hardware, model, Parallel::ONE, skew).unwrap();
    let text = fs::read_to_string(folder.join("vllm_requests.jsonl")).unwrap();
    let real: Vec<Real> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Nobody is queued before arriving, and who comes to an idle engine is queued at once: so far are the clocks apart.
    let clocks = real.iter().map(|r| r.queued_ts - r.arrival_time).fold(f64::INFINITY, f64::min);
    let first = real[0].arrival_time;
    let ns = |at_s: f64| (at_s * 1e9).round() as u64;
    let times = |r: &Real| {
        [r.arrival_time - first, r.first_token_ts - clocks - first, r.last_token_ts - clocks - first].map(ns)
    };
    let asked = File::open(data("profiles/llmservingsim/workload_sharegpt300.jsonl.gz")).unwrap();
    let asked = BufReader::new(MultiGzDecoder::new(asked)).lines();
    let prompts = asked.map(|line| serde_json::from_str::<Asked>(&line.unwrap()).unwrap().input_tok_ids);
    let jobs = real.iter().zip(prompts).map(|(r, prompt)| Job::new(prompt, r.output_toks, times(r)));
    let jobs: Vec<_> = jobs.collect();
    Run { table, expected: summaries(&jobs), jobs }
}

fn summaries(jobs: &[Job]) -> [Summary; 3] {
    let mut meters = [Kept::default(), Kept::default(), Kept::default()];
    for job in jobs {
        meters[0].record(job.first_ns - job.arrival_ns);
        if job.output > 1 {
            meters[1].record((job.end_ns - job.first_ns) / (job.output as u64 - 1));
        }
        meters[2].record(job.end_ns - job.arrival_ns);
    }
    meters.map(Kept::summary)
}

/// The greatest relative error of mean and percentiles.
fn compare(title: &str, found: &[Summary; 3], expected: &[Summary; 3]) -> f64 {
    println!("{title}\n       mean    p50    p90    p95    p99    max");
    let mut worst: f64 = 0.0;
    for (what, (found, expected)) in ["TTFT", "TPOT", "E2E"].iter().zip(found.iter().zip(expected)) {
        let errors = errors(found, expected);
        println!("{}", line(what, &errors));
        worst = errors.iter().fold(worst, |worst, error| worst.max(error.abs()));
    }
    worst
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn with_vllms_schedule_latencies_are_within_two_per_cent() {
    for (skew, most) in [(Skew::Share(0.0), 0.02), (Skew::Fitted, 0.09)] {
        let run = load(skew);
        let mut engine = Engine::new(run.jobs, BLOCKS as usize, 2048, 256, &run.table);
        let found = summaries(engine.run());
        let title = format!("{skew:?}: {} steps, {} preemptions", engine.steps, engine.preemptions);
        let worst = compare(&title, &found, &run.expected);
        assert!(worst < most, "{worst}");
    }
}

/// Drives a core with the jobs' own prompts, as a replay of a trace does; traces do not hold tokens.
fn drive(jobs: &[Job], config: Config, cost: &dyn CostModel) -> (Vec<Job>, u64, u64) {
    let mut jobs = jobs.to_vec();
    let mut core = Core::new(config).unwrap();
    let (mut arrived, mut ended, mut now_ns) = (0, 0, 0);
    let mut in_flight: Option<(u64, Box<Step>)> = None;
    let mut actions = Vec::new();
    core.handle(0, Event::WorkerJoined, &mut actions);
    let mut generated = vec![0; jobs.len()];
    while ended < jobs.len() {
        let step_ends = in_flight.as_ref().map_or(u64::MAX, |(end_ns, _)| *end_ns);
        if arrived < jobs.len() && jobs[arrived].arrival_ns <= step_ends {
            now_ns = jobs[arrived].arrival_ns.max(now_ns);
            let job = &jobs[arrived];
            let mut request =
                Request::new(RequestId(arrived as u64), BlockHash(1), job.prompt.clone(), job.output as u32);
            request.hash_prompt(16);
            core.handle(now_ns, Event::Submit(Box::new(request)), &mut actions);
            arrived += 1;
        } else {
            let (end_ns, step) = in_flight.take().expect("someone runs");
            now_ns = end_ns;
            let mut result = StepResult { step: step.id, ..StepResult::default() };
            for seq in &step.seqs {
                let token = (1 << 31) | (seq.request.0 as u32).wrapping_mul(40_503).wrapping_add(seq.n_generated);
                result.push(if seq.sample { std::slice::from_ref(&token) } else { &[] });
            }
            core.handle(now_ns, Event::StepFinished(result), &mut actions);
        }
        for action in actions.drain(..) {
            match action {
                Action::RunStep(step) => in_flight = Some((now_ns + cost.step_ns(&StepShape::of(&step)), step)),
                Action::Token { request, .. } => {
                    let job = &mut jobs[request.0 as usize];
                    if std::mem::replace(&mut generated[request.0 as usize], 1) == 0 {
                        job.first_ns = now_ns;
                    }
                }
                Action::Finish { request, .. } => {
                    jobs[request.0 as usize].end_ns = now_ns;
                    ended += 1;
                }
                other => unreachable!("{other:?}"),
            }
        }
    }
    (jobs, core.stats().steps, core.stats().preemptions)
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn with_the_cores_schedule_latencies_are_near() {
    let run = load(Skew::Share(0.0));
    for (watermark, most) in [(0.0, 0.03), (1.0, 0.1)] {
        let mut config = engines::by_name("vllm-v1").unwrap().core(BLOCKS);
        config.launch_watermark = watermark;
        let (jobs, steps, preemptions) = drive(&run.jobs, config, &run.table);
        let title = format!("launch watermark {watermark}: {steps} steps, {preemptions} preemptions");
        let worst = compare(&title, &summaries(&jobs), &run.expected);
        assert!(worst < most, "{worst}");
    }
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn a_replay_of_the_workload_is_near() {
    let run = load(Skew::Share(0.0));
    let trace = data("profiles/llmservingsim/workload_sharegpt300.jsonl.gz");
    let trace = Trace::load(&trace, None, None).unwrap();
    let mut settings = Settings {
        cost: CostChoice::Table { layout: None, path: data("profiles/llmservingsim/RTX4090") },
        core: engines::by_name("vllm-v1").unwrap().core(BLOCKS),
        draft_acceptance: 0.0,
        ..Settings::new(*hardware::by_name("rtx4090-24g").unwrap(), *model::by_name("llama-3.1-8b").unwrap())
    };
    for (cost, most) in [(settings.cost.clone(), 0.015), (CostChoice::Auto, 0.05)] {
        settings.cost = cost;
        let cost = settings.cost_model().unwrap();
        let report = replay(&trace, &settings, &*cost, &mut |_| {}).unwrap();
        let title = format!("{}: {} steps, {} preemptions", cost.name(), report.batches.steps, report.preemptions);
        let worst =
            compare(&title, &[report.latencies.ttft_s, report.latencies.tpot_s, report.latencies.e2e_s], &run.expected);
        assert!(worst < most, "{worst}");
    }
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn a_roofline_fitted_to_the_profile_is_less_near() {
    let run = load(Skew::Share(0.0));
    let (hardware, model) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let roofline = Roofline::new(hardware, model);
    let config = engines::by_name("vllm-v1").unwrap().core(BLOCKS);
    let (jobs, steps, preemptions) = drive(&run.jobs, config, &roofline);
    let title = format!("{}: {steps} steps, {preemptions} preemptions", roofline.name());
    let worst = compare(&title, &summaries(&jobs), &run.expected);
    assert!(worst < 0.3, "{worst}");
}

/// Another model, whose every step is written down.
struct Watched<'a> {
    cost: &'a dyn CostModel,
    seen: RefCell<Vec<Sample>>,
}

impl CostModel for Watched<'_> {
    fn name(&self) -> &str {
        self.cost.name()
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        let step_ns = self.cost.step_ns(shape);
        self.seen.borrow_mut().push(Sample { shape: *shape, time_s: step_ns as f64 / 1e9 });
        step_ns
    }
}

/// What vLLM's benchmark would have written of these jobs.
fn benchmark(jobs: &[Job]) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let itls = |job: &Job| job.tokens_ns.windows(2).map(|pair| seconds(pair[1] - pair[0])).collect::<Vec<_>>();
    serde_json::json!({
        "input_lens": jobs.iter().map(|job| job.prompt.len()).collect::<Vec<_>>(),
        "start_times": jobs.iter().map(|job| seconds(job.arrival_ns)).collect::<Vec<_>>(),
        "ttfts": jobs.iter().map(|job| seconds(job.first_ns - job.arrival_ns)).collect::<Vec<_>>(),
        "itls": jobs.iter().map(itls).collect::<Vec<_>>(),
    })
    .to_string()
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn a_calibrated_model_is_near_what_it_was_calibrated_to() {
    let run = load(Skew::Share(0.0));
    let (hardware, model) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let watched = Watched { cost: &run.table, seen: RefCell::default() };
    let mut engine = Engine::new(run.jobs.clone(), BLOCKS as usize, 2048, 256, &watched);
    let jobs = engine.run().to_vec();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("benchmark.json");
    fs::write(&path, benchmark(&jobs)).unwrap();
    let limit = LowerBound::new(hardware, model, Parallel::ONE);
    for (what, samples, most) in
        [("every step", watched.seen.take(), 0.02), ("a benchmark", from_benchmark(&path, 2048).unwrap(), 0.02)]
    {
        let found = calibrate(model.name, &samples).unwrap();
        println!("from {what}, {} steps: {:?}\n{:?}", found.samples, found.residuals, found.time);
        let fitted = Fitted::new(found.time, limit);
        let config = engines::by_name("vllm-v1").unwrap().core(BLOCKS);
        let (jobs, steps, preemptions) = drive(&run.jobs, config, &fitted);
        let title = format!("{steps} steps, {preemptions} preemptions; against the real run:");
        let worst = compare(&title, &summaries(&jobs), &run.expected);
        assert!(worst < most, "{worst}");
    }
}
