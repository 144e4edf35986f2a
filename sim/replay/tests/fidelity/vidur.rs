//! Vidur's own runs of Sarathi-Serve and of vLLM's first scheduler (8B on an A100, Azure's conversations at two thirds of their rate and at
//! their own), replayed from Vidur's own tables.

use trunkline_core::Config;
use trunkline_core::config::PrefillFirst;
use trunkline_sim_perf::cost::{CostChoice, CostModel, Parallel, Roofline, StepShape, Table};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::{Arrivals, Settings, engines, replay};
use trunkline_sim_report::Report;
use trunkline_sim_workload::Trace;
use trunkline_sim_workload::summary::Summary;
use trunkline_sim_workload::trace::{ReaderOptions, Selection};

use crate::{data, errors, line};

/// Blocks of the run, and the longest sequence of its tables.
const BLOCKS: u32 = 30_208;
const CONTEXT_MAX: u32 = 4096;

fn run(requests: u64, block_size: u32) -> Report {
    let core = Config { block_size, ..engines::by_name("sarathi").unwrap().core(BLOCKS * 16 / block_size) };
    run_with(core, requests, 1.0 / 1.5)
}

fn run_with(core: Config, requests: u64, speed: f64) -> Report {
    let (profile, trace) = (data("profiles/vidur/llama3_8b_tp1"), data("traces/azure_conv_2023.csv.gz"));
    let selection = Selection { limit: requests, max_context: Some(CONTEXT_MAX), ..Selection::default() };
    let trace = Trace::load_selected(&trace, ReaderOptions::default(), &selection).unwrap();
    let settings = Settings {
        cost: CostChoice::Table { layout: None, path: profile },
        core,
        arrivals: Arrivals::Traced { speed },
        draft_acceptance: 0.0,
        ..Settings::new(*hardware::by_name("a100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap())
    };
    let cost = settings.cost_model().unwrap();
    replay(&trace, &settings, &*cost, &mut |_| {}).unwrap()
}

#[test]
#[cfg_attr(
    not(all(trunkline_profiles, trunkline_traces)),
    ignore = "TRUNKLINE_DATA names no folder with profiles/ and traces/"
)]
fn the_first_request_takes_as_long_to_the_microsecond() {
    let report = run(1, 16);
    let (ttft_ms, e2e_s) = (report.latencies.ttft_s.max * 1e3, report.latencies.e2e_s.max);
    println!("TTFT {ttft_ms} ms, E2E {e2e_s} s");
    assert!((ttft_ms - 29.00256).abs() < 1e-5, "{ttft_ms}");
    assert!((e2e_s - 0.4814835).abs() < 1e-6, "{e2e_s}");
}

#[test]
#[cfg_attr(
    not(all(trunkline_profiles, trunkline_traces)),
    ignore = "TRUNKLINE_DATA names no folder with profiles/ and traces/"
)]
fn the_whole_run_has_its_percentiles() {
    // What Vidur reports, seconds: mean, p50, p90, p95, p99, max. Its TPOT is the time between tokens after the first.
    let ttft = Summary { mean: 0.201219, p50: 0.116728, p90: 0.434908, p95: 0.621351, p99: 1.196509, max: 3.453711 };
    let tpot =
        Summary { mean: 0.0187916, p50: 0.0167053, p90: 0.0270990, p95: 0.0326410, p99: 0.0444755, max: 0.0479892 };
    let e2e = Summary { mean: 3.950100, p50: 2.682937, p90: 7.979438, p95: 9.253648, p99: 12.831547, max: 28.641607 };
    let report = run(u64::MAX, 16);
    println!("{} steps, wall {} s", report.batches.steps, report.wall_s);
    println!("       mean    p50    p90    p95    p99    max");
    for (what, found, expected) in [
        ("TTFT", &report.latencies.ttft_s, &ttft),
        ("TPOT", &report.latencies.tpot_s, &tpot),
        ("E2E", &report.latencies.e2e_s, &e2e),
    ] {
        let errors = errors(found, expected);
        println!("{}", line(what, &errors));
        assert!(errors.iter().all(|error| error.abs() < 0.005), "{what}: {errors:?}");
    }
    assert_eq!((report.completed, report.preemptions), (19_366, 0));
}

/// Vidur's batches of vLLM's scheduler: 4,096 tokens, 128 sequences. What it reports of three runs, seconds: mean, p50, p90 and p99 of the
/// time to the first token; p50, p90 and p99 of the time between tokens after the first, and to the end.
#[test]
#[cfg_attr(
    not(all(trunkline_profiles, trunkline_traces)),
    ignore = "TRUNKLINE_DATA names no folder with profiles/ and traces/"
)]
fn runs_of_vllms_first_scheduler_have_their_percentiles() {
    let runs = [
        (
            ("two thirds of the rate", BLOCKS, 1.0 / 1.5),
            [0.1757, 0.0996, 0.3897, 0.9591],
            [0.01989, 0.04329, 0.1038],
            [3.477, 10.05, 19.98],
        ),
        (
            ("and 4,000 blocks", 4000, 1.0 / 1.5),
            [0.2522, 0.1010, 0.4599, 3.239],
            [0.01990, 0.04470, 0.07456],
            [3.556, 9.931, 20.21],
        ),
        (
            ("the whole rate", BLOCKS, 1.0),
            [9.093, 0.220, 38.46, 63.31],
            [0.03937, 0.1380, 0.1758],
            [10.73, 56.35, 101.2],
        ),
    ];
    let modes = [PrefillFirst::Whole, PrefillFirst::Padded];
    for (((name, blocks, speed), ttft, tpot, e2e), mode) in
        runs.into_iter().flat_map(|run| modes.map(|mode| (run, mode)))
    {
        let preset = engines::by_name("vllm-v0").unwrap().core(blocks);
        let core = Config { max_batch_tokens: CONTEXT_MAX, max_batch_size: 128, prefill_first: mode, ..preset };
        let report = run_with(core, u64::MAX, speed);
        let of = |s: &Summary| [s.p50, s.p90, s.p99];
        let latencies = &report.latencies;
        let [p50, p90, p99] = of(&latencies.ttft_s);
        let found =
            [&[latencies.ttft_s.mean, p50, p90, p99][..], &of(&latencies.tpot_s), &of(&latencies.e2e_s)].concat();
        let expected = [&ttft[..], &tpot, &e2e].concat();
        let errors: Vec<f64> = found.iter().zip(&expected).map(|(found, expected)| found / expected - 1.0).collect();
        let each: Vec<String> = errors.iter().map(|error| format!("{:+.2}", 100.0 * error)).collect();
        println!("{name}, {mode}: {} % ({} preemptions)", each.join(" "), report.preemptions);
        // Vidur pads prompts, and keeps a hundredth of the blocks free.
        let is_equal = mode == PrefillFirst::Padded && blocks == BLOCKS;
        let limit = if is_equal { 0.005 } else { 0.03 };
        assert!(errors.iter().all(|error| error.abs() < limit), "{name}, {mode}: {errors:?}");
    }
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn a_table_of_two_devices_includes_what_they_tell_each_other() {
    let profile = data("profiles/vidur/llama2_70b_tp2");
    let text = r#"{"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "vocab_size": 32000}"#;
    let model = model::parse_config("llama-2-70b", text).unwrap();
    let hardware = hardware::by_name("a100-80g").unwrap();
    let table = Table::from_vidur(&profile, hardware, &model, Parallel::tensor(2)).unwrap();
    let roofline = Roofline::parallel(hardware, &model, Parallel::tensor(2));
    for shape in [StepShape::decodes(1, 100), StepShape::decodes(64, 2000), StepShape::prefill(2048, 0)] {
        let (table_ms, roofline_ms) = (table.step_ns(&shape) as f64 / 1e6, roofline.step_ns(&shape) as f64 / 1e6);
        println!("{table_ms:.1} ms in the table, {roofline_ms:.1} ms by the roofline");
        assert!((0.7..1.3).contains(&(roofline_ms / table_ms)), "{shape:?}");
    }
}
