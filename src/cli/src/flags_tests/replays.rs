//! Proofs for flags of `replay`, `plan` and `trace`.

use std::path::Path;

use clap::Parser;
use serde_json::Value;

use super::Entry;
use super::Proof::{Plans, Replays, Test, Traces};
use crate::{Cli, Command};

const OUTPUTS: &str = "src/cli/src/replay/tests.rs";

const EXPLAIN: &str = "src/cli/src/explain/tests.rs";
const DIFF: &str = "src/cli/src/diff/tests.rs";
const CI: &str = "src/cli/src/ci/tests.rs";
const TUNE: &str = "src/cli/src/tune/tests.rs";

/// Trace of the repository, of which a part is replayed.
const TRACE: &str = "examples/traces/chat-and-agents.jsonl.gz";
/// Requests of each replay.
const LIMIT: &str = "--limit=80";

/// Flags of replays, plans and traces. A plan has the flags of replays, from the same source.
pub const ENTRIES: &[Entry] = &[
    ("replay", "recorded", Test(OUTPUTS, "a_trace_or_a_recording_but_not_both")),
    ("replay", "json", Replays(&["--limit=70"], &[])),
    ("replay", "requests", Test(OUTPUTS, "requests_are_written_of_one_replay")),
    ("replay", "html", Test(OUTPUTS, "a_page_shows_all_runs_and_a_timeline_one")),
    ("replay", "record", Test(OUTPUTS, "a_recorded_replay_replays_to_its_digest")),
    ("explain", "request", Test(EXPLAIN, "the_slowest_are_listed_and_one_is_explained_with_what_would_have_helped")),
    ("explain", "slowest", Test(EXPLAIN, "the_slowest_are_listed_and_one_is_explained_with_what_would_have_helped")),
    ("explain", "what-if", Test(EXPLAIN, "the_slowest_are_listed_and_one_is_explained_with_what_would_have_helped")),
    ("diff", "with", Test(DIFF, "a_recording_is_compared_with_itself_and_with_its_run_under_changes")),
    ("ci", "against", Test(CI, "a_version_that_decides_otherwise_fails_its_budget")),
    ("ci", "save", Test(CI, "a_version_that_decides_otherwise_fails_its_budget")),
    ("ci", "budget", Test(CI, "a_version_that_decides_otherwise_fails_its_budget")),
    ("tune", "slo", Test(TUNE, "a_search_says_what_it_tried_and_what_the_other_half_confirms")),
    ("tune", "runs", Test(TUNE, "a_search_says_what_it_tried_and_what_the_other_half_confirms")),
    ("replay", "timeline", Test(OUTPUTS, "a_page_shows_all_runs_and_a_timeline_one")),
    ("replay", "timeline-window", Test(OUTPUTS, "a_page_shows_all_runs_and_a_timeline_one")),
    ("replay", "format", Test("sim/workload/src/trace/formats_tests.rs", "token_ids_are_the_prompt")),
    (
        "replay",
        "reorder",
        Test("sim/workload/src/trace/formats_tests.rs", "a_bounded_disorder_is_put_in_order_if_asked_for"),
    ),
    (
        "replay",
        "trace-block-size",
        Test(
            "sim/workload/src/trace/formats_tests.rs",
            "a_mooncake_trace_of_small_blocks_loses_what_is_shared_of_less_than_a_large_one",
        ),
    ),
    (
        "replay",
        "reuse-answers",
        Test("sim/workload/src/trace/formats_tests.rs", "chats_find_their_answers_if_asked_to"),
    ),
    ("replay", "slice", Replays(&["--slice=10.."], &[])),
    ("replay", "limit", Replays(&["--limit=50"], &[])),
    ("replay", "max-context", Replays(&["--max-context=900"], &[])),
    ("replay", "time-unit", Replays(&["--time-unit=us"], &[])),
    ("replay", "engine-log", Test("src/cli/src/replay/engine_log.rs", "lines_of_engines_are_read")),
    ("replay", "speed", Replays(&["--speed=9"], &[])),
    ("replay", "serial", Replays(&["--serial"], &[])),
    ("replay", "concurrency", Replays(&["--concurrency=3"], &[])),
    ("replay", "think-time", Replays(&["--think-time=0.7"], &["--concurrency=3"])),
    ("replay", "ramp", Replays(&["--ramp=5"], &["--concurrency=3"])),
    ("replay", "load", Replays(&["--load=0.9"], &[])),
    ("replay", "stream", Test(OUTPUTS, "a_trace_read_on_the_way_is_replayed_like_one_in_memory")),
    ("replay", "hardware", Replays(&["--hardware=a100-80g"], &[])),
    ("replay", "model", Replays(&["--model=qwen3-8b"], &[])),
    ("replay", "kv-dtype", Replays(&["--kv-dtype=fp8"], &[])),
    ("replay", "prefix-caching", Replays(&["--prefix-caching=false"], &[])),
    ("replay", "parallel", Replays(&["--parallel=tp2"], &[])),
    ("replay", "cost", Test(OUTPUTS, "how_steps_are_timed_is_a_choice")),
    ("replay", "engine-overhead", Replays(&["--engine-overhead=900:9"], &[])),
    ("replay", "weights", Replays(&["--weights=stream:device_layers=8"], &[])),
    ("replay", "gpu-memory-utilization", Replays(&["--gpu-memory-utilization=0.3"], &["--speed=99"])),
    ("replay", "h2o-layers", Replays(&["--h2o-layers=1,2,3,4,5,6,7,8,9,10,11,12"], &["--h2o=on", "--speed=20"])),
    ("replay", "h2o-total", Replays(&["--h2o-total=2"], &["--h2o=on", "--speed=20"])),
    ("replay", "replicas", Replays(&["--replicas=2"], &["--speed=20"])),
    ("replay", "fleet", Replays(&["--fleet=h100-80g,a100-80g"], &[])),
    ("replay", "engine", Replays(&["--engine=vllm-v1"], &["--speed=20"])),
    ("replay", "host-memory-gb", Replays(&["--host-memory-gb=64"], TIGHT)),
    ("replay", "draft-acceptance", Replays(&["--draft-acceptance=0.1"], &["--max-drafts=4"])),
    ("replay", "tenants", Replays(&["--tenants=0.9,0.1"], &[])),
    (
        "replay",
        "hints",
        Test("src/cli/src/replay/tests/hints.rs", "hints_are_followed_or_left_out_and_a_table_says_what_they_did"),
    ),
    ("replay", "router", Replays(&["--router=round_robin"], &["--replicas=3", "--speed=20"])),
    ("replay", "fail", Replays(&["--fail=0@1..2"], &["--replicas=2"])),
    ("replay", "roles", Replays(&["--roles=prefill,decode"], &["--shared-mem=64GB"])),
    ("replay", "slow", Replays(&["--slow=0:3"], &[])),
    ("replay", "autoscale", Replays(&["--autoscale=load:min=1,max=3,target=4"], &["--speed=20"])),
    ("replay", "mtbf", Replays(&["--mtbf=0.001"], &["--replicas=2"])),
    ("replay", "mttr", Replays(&["--mttr=1"], &["--replicas=2", "--mtbf=0.001"])),
    ("replay", "fault-seed", Replays(&["--fault-seed=7"], &["--replicas=2", "--mtbf=0.001"])),
    ("replay", "price", Replays(&["--price=h100-80g=2.5"], &[])),
    ("replay", "host-mem", Replays(&["--host-mem=64GB"], TIGHT)),
    ("replay", "disk-size", Replays(&["--disk-size=1TB"], SMALL_HOST)),
    ("replay", "shared-mem", Replays(&["--shared-mem=64GB"], TIGHT)),
    ("replay", "remote", Replays(&["--remote=1TB"], SMALL_HOST)),
    (
        "replay",
        "remote-shared",
        Replays(
            &["--remote-shared"],
            &["--replicas=2", "--remote=1TB", "--host-mem=2GB", "--device-blocks=600", "--speed=20"],
        ),
    ),
    ("replay", "links", Test("src/cli/src/replay/measured.rs", "the_slower_direction_of_each_link_counts")),
    ("replay", "disk-gb-s", Replays(&["--disk-gb-s=0.5"], DISK)),
    ("replay", "remote-gb-s", Replays(&["--remote-gb-s=0.5"], REMOTE)),
    ("replay", "disk-latency-us", Replays(&["--disk-latency-us=90000"], DISK)),
    ("replay", "remote-latency-us", Replays(&["--remote-latency-us=90000"], REMOTE)),
    ("replay", "compression", Replays(&["--compression=0.25"], DISK)),
    (
        "replay",
        "compression-gb-s",
        Replays(
            &["--compression-gb-s=0.2"],
            &["--compression=0.5", "--disk-size=1TB", "--host-mem=2GB", "--device-blocks=600", "--speed=20"],
        ),
    ),
    (
        "replay",
        "tier-write",
        Replays(&["--tier-write=second_use"], &["--host-mem=64GB", "--device-blocks=600", "--speed=20"]),
    ),
    (
        "replay",
        "tier-eviction",
        Replays(&["--tier-eviction=lfu"], &["--host-mem=2GB", "--device-blocks=600", "--speed=20"]),
    ),
    ("replay", "block-size", Replays(&["--block-size=64"], &[])),
    ("replay", "device-blocks", Replays(&["--device-blocks=600"], &["--speed=20"])),
    ("replay", "max-batch-tokens", Replays(&["--max-batch-tokens=256"], &["--speed=20"])),
    ("replay", "max-batch-size", Replays(&["--max-batch-size=2"], &["--speed=20"])),
    ("replay", "max-steps-in-flight", Replays(&["--max-steps-in-flight=2"], &["--speed=20"])),
    ("replay", "pipeline-stages", Test(OUTPUTS, "stages_are_filled_unless_steps_are_given")),
    ("replay", "align-chunks", Replays(&["--align-chunks=false"], &["--speed=20", "--max-batch-tokens=300"])),
    ("replay", "prefill-first", Replays(&["--prefill-first=true"], &["--speed=20"])),
    ("replay", "max-step-logits", Replays(&["--max-step-logits=256"], &["--max-drafts=8", "--speed=99"])),
    ("replay", "max-drafts", Replays(&["--max-drafts=4"], &[])),
    ("replay", "target-step-ms", Replays(&["--target-step-ms=9"], &["--speed=20"])),
    ("replay", "launch-watermark", Replays(&["--launch-watermark=60"], TIGHT)),
    (
        "replay",
        "reserve-prompts",
        Replays(&["--reserve-prompts=false"], &["--device-blocks=500", "--speed=50", "--max-batch-tokens=300"]),
    ),
    (
        "replay",
        "swap-in-watermark",
        Replays(
            &["--swap-in-watermark=90"],
            &["--device-blocks=400", "--speed=50", "--host-blocks=9000", "--preemption=swap", "--launch-watermark=0"],
        ),
    ),
    (
        "replay",
        "host-blocks",
        Replays(&["--host-blocks=9000"], &["--device-blocks=400", "--speed=50", "--launch-watermark=0"]),
    ),
    ("replay", "copy-timeout-ms", Replays(&["--copy-timeout-ms=1"], DISK)),
    (
        "replay",
        "preemption",
        Replays(&["--preemption=retract"], &["--device-blocks=400", "--speed=50", "--launch-watermark=0"]),
    ),
    (
        "replay",
        "swap-block-ns",
        Replays(
            &["--swap-block-ns=1"],
            &["--device-blocks=400", "--speed=50", "--host-blocks=9000", "--launch-watermark=0"],
        ),
    ),
    (
        "replay",
        "recompute-token-ns",
        Replays(
            &["--recompute-token-ns=1"],
            &["--device-blocks=400", "--speed=50", "--host-blocks=9000", "--launch-watermark=0"],
        ),
    ),
    ("replay", "h2o", Replays(&["--h2o=on"], &["--speed=20"])),
    ("replay", "policy", Replays(&["--policy=sjf"], TIGHT)),
    ("replay", "eviction", Replays(&["--eviction=lfu"], TIGHT)),
    ("replay", "reuse-anywhere", Replays(&["--reuse-anywhere=16"], &[])),
    ("replay", "reuse-recompute", Replays(&["--reuse-recompute=64"], &["--reuse-anywhere=16"])),
    ("replay", "reuse-on-request", Replays(&["--reuse-on-request=true"], &["--reuse-anywhere=16"])),
    ("plan", "slo", Plans(&["--slo=tpot_p95=9ms"], &[])),
    ("plan", "goodput", Plans(&["--goodput=0.1"], &["--slo=ttft=20ms", "--goodput=0.99"])),
    ("plan", "max-replicas", Plans(&["--max-replicas=1"], &["--slo=tpot_mean=1us"])),
    ("plan", "find-rate", Plans(&["--find-rate"], &[])),
    ("plan", "split", Plans(&["--split"], &["--shared-mem=64GB"])),
    ("plan", "complete", Plans(&["--complete"], &["--slo=tpot_mean=1us", "--max-replicas=2"])),
    ("plan", "daily-curve", Plans(&["--daily-curve=1.5:0.4"], &[])),
    ("plan", "start-delay", Plans(&["--start-delay=900"], &["--daily-curve=1.5:0.4"])),
    ("trace stats", "block-tokens", Traces(&["--block-tokens=64"], &["stats"])),
    ("trace stats", "capacities", Traces(&["--capacities=30"], &["stats"])),
    ("trace stats", "json", Traces(&["--limit=50"], &["stats"])),
    ("trace convert", "to-format", Traces(&["--to-format=vidur"], &["convert"])),
    ("trace generate", "to-format", Traces(&["--to-format=vidur"], &["generate"])),
    ("trace generate", "seed", Traces(&["--seed=99"], &["generate"])),
    ("trace generate", "requests", Traces(&["--requests=50"], &["generate"])),
];

const TIGHT: &[&str] = &["--device-blocks=600", "--speed=50"];
const SMALL_HOST: &[&str] = &["--host-mem=2GB", "--device-blocks=600", "--speed=20"];
const DISK: &[&str] = &["--disk-size=1TB", "--host-mem=2GB", "--device-blocks=600", "--speed=20"];
const REMOTE: &[&str] = &["--remote=1TB", "--host-mem=2GB", "--device-blocks=600", "--speed=20"];

fn in_repository(file: &str) -> String {
    format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))
}

/// Removes what repeats the settings of a report.
fn figures(report: &mut Value) {
    match report {
        Value::Object(parts) => {
            parts.remove("settings");
            parts.values_mut().for_each(figures);
        }
        Value::Array(parts) => parts.iter_mut().for_each(figures),
        _ => {}
    }
}

/// Runs a command line, and returns the figures of its report.
fn run(words: &[&str], to: &Path) -> Result<String, String> {
    let json = format!("--json={}", to.display());
    let cli = Cli::try_parse_from([words, &[json.as_str()]].concat()).map_err(|error| error.to_string())?;
    let done = match cli.command {
        Command::Replay(args) => crate::replay::run(*args),
        Command::Plan(args) => crate::plan::run(*args).map(drop),
        Command::Trace(args) => crate::trace::run(args),
        _ => panic!("{words:?} is not a replay"),
    };
    done.map_err(|error| format!("{error:#}"))?;
    let mut report: Value = serde_json::from_str(&std::fs::read_to_string(to).unwrap()).unwrap();
    figures(&mut report);
    Ok(report.to_string())
}

/// Returns the command line of a proof, whose own flags replace those of all.
fn line<'a>(command: &'a str, trace: &'a str, all: &[&'a str], flags: &[&'a str]) -> Vec<&'a str> {
    let name = |flag: &str| flag.split('=').next().map(str::to_owned);
    // A search for the rate sets replicas and speed itself.
    let finds_rate = flags.contains(&"--find-rate");
    let kept = all
        .iter()
        .filter(|flag| !(finds_rate && (flag.starts_with("--max-replicas") || flag.starts_with("--speed"))))
        .filter(|flag| !flags.iter().any(|other| name(other) == name(flag) && name(flag).as_deref() != Some("--slo")));
    ["trunkline", command, trace].into_iter().chain(kept.copied()).chain(flags.iter().copied()).collect()
}

/// Returns the fault of a proof, if the flag changes nothing.
fn fault(command: &str, flag: &str, all: &[&str], (with, needed): (&[&str], &[&str])) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let (trace, to) = (in_repository(TRACE), folder.path().join("report.json"));
    let name = |flag: &str| flag.split('=').next().map(str::to_owned);
    let others = needed.iter().filter(|flag| !with.iter().any(|other| name(other) == name(flag)));
    let flags: Vec<&str> = others.chain(with).copied().collect();
    let without = run(&line(command, &trace, all, needed), &to);
    let changed = run(&line(command, &trace, all, &flags), &to);
    let problem = match (without, changed) {
        (Ok(without), Ok(changed)) if without != changed => return None,
        (Ok(_), Ok(_)) => "has no effect".to_owned(),
        (Err(error), _) | (_, Err(error)) => error,
    };
    Some(format!("{command} --{flag}, {flags:?}: {problem}"))
}

#[test]
fn flags_of_replay_change_its_figures() {
    let faults = ENTRIES.iter().filter_map(|(_, flag, proof)| match proof {
        Replays(with, needed) => fault("replay", flag, &[LIMIT], (with, needed)),
        _ => None,
    });
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn flags_of_plan_change_its_answer() {
    let all = [LIMIT, "--slo=ttft_p99=2s", "--max-replicas=3", "--speed=4"];
    let faults = ENTRIES.iter().filter_map(|(_, flag, proof)| match proof {
        Plans(with, needed) => fault("plan", flag, &all, (with, needed)),
        _ => None,
    });
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Returns what `trace` makes: statistics, or a file.
fn traced(kind: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (trace, to) = (in_repository(TRACE), folder.path().join("out.jsonl"));
    let spec = in_repository("examples/workloads/chat-and-agents.toml");
    let path = to.display().to_string();
    if kind == "stats" {
        let all: Vec<&str> =
            [LIMIT].into_iter().filter(|_| !flags.iter().any(|flag| flag.starts_with("--limit"))).collect();
        return run(&[&["trunkline", "trace", "stats", &trace], &all[..], flags].concat(), &to).unwrap();
    }
    let of = if kind == "convert" { (&trace, LIMIT) } else { (&spec, "--requests=40") };
    let has_number = flags.iter().any(|flag| flag.starts_with("--requests"));
    let all: Vec<&str> = [of.1].into_iter().filter(|_| !has_number).collect();
    let words = [&["trunkline", "trace", kind, of.0, path.as_str()], &all[..], flags].concat();
    let Command::Trace(args) = Cli::try_parse_from(words).unwrap().command else { panic!("no trace") };
    crate::trace::run(args).unwrap();
    std::fs::read_to_string(to).unwrap()
}

#[test]
fn flags_of_trace_change_what_it_makes() {
    for (_, flag, proof) in ENTRIES {
        if let Traces(with, kind) = proof {
            assert_eq!(traced(kind[0], &[]), traced(kind[0], &[]), "the same of the same");
            assert_ne!(traced(kind[0], &[]), traced(kind[0], with), "trace {} --{flag} has no effect", kind[0]);
        }
    }
}
