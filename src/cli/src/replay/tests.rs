//! Flags become settings, and wrong flags are refused.

use std::fs;
use std::io::Write;

use clap::Parser;
use clap::error::ErrorKind;
use trunkline_core::config::StepTarget;
use trunkline_core::{Keeps, Preemption};
use trunkline_sim_perf::link::TierLink;

use super::*;

mod closed_loop;
mod engines;
mod hints;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ReplayArgs,
}

fn parse(words: &[&str]) -> Result<ReplayArgs, clap::Error> {
    Cli::try_parse_from([&["replay"], words].concat()).map(|cli| cli.args)
}

fn settings(words: &[&str]) -> anyhow::Result<Vec<Settings>> {
    let args = parse(words)?;
    Ok(runs(&args.settings, args.arrivals())?.settings)
}

fn fault(words: &[&str]) -> String {
    let message = run(parse(words).unwrap()).unwrap_err().to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message
}

/// A trace of 40 requests, ten in a second, that shares a prompt now and then.
fn small_trace() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for i in 0..40 {
        let (at_ms, id) = (i * 100, i % 7);
        writeln!(file, r#"{{"timestamp": {at_ms}, "input_length": 512, "output_length": 20, "hash_ids": [{id}]}}"#)
            .unwrap();
    }
    file
}

/// What a replay of the small trace writes as JSON.
fn json(words: &[&str]) -> serde_json::Value {
    let (trace, out) = (small_trace(), tempfile::NamedTempFile::new().unwrap());
    let paths = [trace.path().to_str().unwrap(), "--json", out.path().to_str().unwrap()];
    run(parse(&[&paths, words].concat()).unwrap()).unwrap();
    serde_json::from_str(&fs::read_to_string(out.path()).unwrap()).unwrap()
}

/// The settings of one run.
fn settings_of(words: &str) -> Settings {
    settings(&words.split(' ').collect::<Vec<_>>()).unwrap().remove(0)
}

/// The reports of replays of the small trace.
fn replayed(words: &[&str]) -> Vec<trunkline_sim_report::Report> {
    let args = parse(&[&["t"], words].concat()).unwrap();
    let Runs { settings, cost } = runs(&args.settings, args.arrivals()).unwrap();
    let trace = trunkline_sim_workload::Trace::load(small_trace().path(), None, None).unwrap();
    let stage = Stage { input: &Input::Loaded(trace), cost: &*cost, bar: &ProgressBar::hidden() };
    run::replay_all(&stage, &settings, false).unwrap().into_iter().map(|(report, _)| report).collect()
}

#[test]
fn digits_are_grouped() {
    assert_eq!([0, 999, 1_000, 144_793_823].map(crate::output::grouped), ["0", "999", "1,000", "144,793,823"]);
}

#[test]
fn a_recorded_replay_replays_to_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["r.jsonl", "r.jsonl.gz"] {
        let to = folder.path().join(name);
        let report = json(&["--replicas", "2", "--record", to.to_str().unwrap()]);
        let replayed = replay_recorded(&to, &mut |_| {}).unwrap();
        assert_eq!((replayed.requests, replayed.matches), (40, Some(true)));
        assert_eq!(report["digest"].as_str(), Some(&replayed.digest[..]), "{report}");
    }
    let trace = small_trace();
    let path = trace.path().to_str().unwrap();
    let error = fault(&[path, "--policy", "fcfs", "--policy", "sjf", "--record", "r"]);
    assert_eq!(error, "a recording is made of one replay, but 2 are compared; compare nothing");
}

#[test]
fn a_trace_or_a_recording_but_not_both() {
    assert!(parse(&[]).is_err());
    assert!(parse(&["trace", "--recorded", "file"]).is_err());
    for flags in [
        ["--replicas", "2"],
        ["--limit", "2"],
        ["--slice", "1.."],
        ["--speed", "2"],
        ["--policy", "fcfs"],
        ["--tenants", "1"],
        ["--load", "0.8"],
    ] {
        let error = parse(&[&["--recorded", "file"], &flags[..]].concat()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{flags:?}");
    }
    assert!(parse(&["--recorded", "file", "--serial"]).is_err());
    assert!(parse(&["--recorded", "file", "--json", "-"]).is_ok());
}

#[test]
fn flags_that_exclude_each_other() {
    let both = ["--serial", "--speed 2", "--load 0.8"];
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let words: Vec<_> = ["t"].into_iter().chain(both[a].split(' ')).chain(both[b].split(' ')).collect();
        assert_eq!(parse(&words).unwrap_err().kind(), ErrorKind::ArgumentConflict, "{words:?}");
    }
    assert!(parse(&["t", "--host-blocks", "1", "--host-memory-gb", "1"]).is_err());
}

#[test]
fn impossible_settings_are_reported_before_the_trace_is_read() {
    assert_eq!(fault(&["none", "--block-size", "0"]), "block_size is 0; it must be between 1 and 4096");
    assert!(fault(&["none", "--hardware", "tpu"]).starts_with("unknown hardware 'tpu'; there are: h100-80g, "));
    assert!(fault(&["none", "--model", "gpt"]).starts_with("unknown model 'gpt'; there are: llama-3.1-8b, "));
    assert!(fault(&["none", "--policy", "magic"]).starts_with("unknown policy 'magic'; there are: fcfs"));
    assert!(fault(&["none", "--policy", "fcfs", "--policy", "magic"]).starts_with("unknown policy 'magic'"));
    assert!(fault(&["none", "--eviction", "magic"]).starts_with("unknown eviction policy 'magic'; there are: lru"));
    let preemption = fault(&["none", "--preemption", "magic"]);
    assert_eq!(
        preemption,
        "unknown preemption 'magic'; there are: swap, recompute, cost, retract, recompute_at_once, retract_at_once"
    );
    let format = parse(&["none", "--format", "x"]).unwrap_err().to_string();
    assert!(format.contains("unknown trace format 'x'; there are: mooncake, azure, "), "{format}");
    assert!(fault(&["none", "--model", "llama-3.1-70b"]).starts_with("llama-3.1-70b does not fit on h100-80g"));
    assert!(fault(&["none", "--max-batch-tokens", "8"]).starts_with("max_batch_tokens is 8"));
    assert_eq!(fault(&["none"]), "none: no such file; check the path");
    // Set by hand, the number of blocks is believed.
    assert!(settings(&["t", "--model", "llama-3.1-70b", "--device-blocks", "10000000"]).is_ok());
}

#[test]
fn compression_has_a_ratio_and_a_speed() {
    let link = |words: &[&str]| {
        let given = ["t", "--host-mem", "8GB", "--disk-size", "80GB", "--disk-gb-s", "6"];
        settings(&[&given[..], words].concat()).unwrap()[0].far_links[0]
    };
    let plain = TierLink { bytes_s: 6e9, latency_s: 100e-6, ratio: 1.0, codec_bytes_s: None };
    assert_eq!(link(&[]), plain);
    let compressed = link(&["--compression", "0.5", "--compression-gb-s", "8"]);
    assert_eq!(compressed, TierLink { ratio: 0.5, codec_bytes_s: Some(8e9), ..plain });
    for speed in ["0", "-1", "nan", "inf"] {
        let flag = format!("--compression-gb-s={speed}");
        let words = ["none", "--host-mem", "8GB", "--disk-size", "80GB", "--compression", "0.5", &flag];
        let told = fault(&words);
        assert!(told.starts_with("compression speed of a tier's link is ") && told.ends_with("above 0"), "{told}");
    }
    assert!(parse(&["t", "--compression-gb-s", "8"]).is_err(), "of no compression");
    for flags in
        ["--tier-write back", "--tier-eviction lru", "--disk-gb-s 3", "--compression 0.5", "--remote-latency-us 9"]
    {
        let words = ["t"].into_iter().chain(flags.split(' ')).collect::<Vec<_>>();
        assert!(parse(&words).is_err(), "{flags} of no tier");
    }
    let late = ["none", "--host-mem", "1GB", "--disk-size", "1TB", "--disk-latency-us", "-1"];
    assert_eq!(fault(&late), "disk-latency-us is -1; it must be at least 0");
}

#[test]
fn impossible_numbers_are_reported_in_one_line() {
    let launch = fault(&["none", "--launch-watermark", "-1"]);
    assert_eq!(launch, "launch_watermark is -1; it must be between 0 and 1024");
    assert!(fault(&["none", "--swap-in-watermark", "nan"]).starts_with("swap_in_watermark is NaN; it must be"));
    assert!(fault(&["none", "--max-step-logits", "0"]).starts_with("max_step_logits is 0; it must be between 1 and"));
    assert!(fault(&["none", "--max-drafts", "65"]).starts_with("max_drafts is 65; it must be between 0 and 64"));
    assert!(fault(&["none", "--target-step-ms", "-1"]).starts_with("target_step_ms is '-1'; give milliseconds"));
    assert!(fault(&["none", "--host-memory-gb", "-1"]).starts_with("host-memory-gb is -1; it must be between 0 and"));
    assert!(fault(&["none", "--draft-acceptance", "1.1"]).starts_with("draft_acceptance is 1.1; it must be between 0"));
    assert!(fault(&["none", "--speed", "0"]).starts_with("speed is 0; it must be above 0"));
    assert!(fault(&["none", "--speed", "-2"]).starts_with("speed is -2; it must be above 0"));
    assert!(fault(&["none", "--tenants", "0.9,x"]).starts_with("tenants are '0.9,x'; give the share of each"));
    let swap = fault(&["none", "--preemption", "swap"]);
    assert_eq!(swap, "preemption is swap, but there is no host memory; give --host-memory-gb or --host-blocks");
    // The load is looked at when the trace is there.
    let trace = small_trace();
    assert!(fault(&[trace.path().to_str().unwrap(), "--load", "-1"]).starts_with("load is -1; it must be above 0"));
}

#[test]
fn a_narrower_kv_makes_more_blocks() {
    let blocks = |flags: &[&str]| {
        let flags: Vec<&str> = ["t"].into_iter().chain(flags.iter().copied()).collect();
        let all = settings(&flags).unwrap();
        (all[0].core.device_blocks, all[0].block_bytes(), all[0].model.label())
    };
    assert_eq!(blocks(&[]), blocks(&["--kv-dtype", "bf16"]));
    assert_eq!(blocks(&["--kv-dtype", "fp8"]), (58_087, 1 << 20, "llama-3.1-8b (KV of 8 bits)".into()));
    assert_eq!(blocks(&["--kv-dtype", "f32"]).1, 4 << 20);
    assert!(!settings(&["t", "--prefix-caching", "false"]).unwrap()[0].prefix_caching);
}

#[test]
fn flags_become_settings() {
    let words = "t --host-memory-gb 64 --preemption swap --launch-watermark 2.5 --swap-in-watermark 0.5 --max-step-logits 999 \
                 --target-step-ms 12.5 --max-drafts 4 --draft-acceptance 0.7 --tenants 3,1 --speed 2";
    let all = settings(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    let [settings] = &all[..] else { panic!("one run") };
    let core = &settings.core;
    assert_eq!((core.host_blocks, core.preemption), (30_517, Preemption::Swap));
    assert_eq!((core.launch_watermark, core.swap_in_watermark), (2.5, 0.5));
    assert_eq!((core.max_step_logits, core.target_step_ns, core.max_drafts), (999, StepTarget::Ns(12_500_000), 4));
    assert_eq!((settings.draft_acceptance, settings.arrivals), (0.7, Arrivals::Traced { speed: 2.0 }));
    assert_eq!(settings.tenants.as_slice(), [0.75, 0.25]);
    // 2 MiB at 55 GB/s.
    assert_eq!(core.swap_block_ns, 38_131);
    assert!((20_000..28_000).contains(&core.recompute_token_ns), "{}", core.recompute_token_ns);
}

#[test]
fn a_fleet_may_be_of_several_kinds() {
    let report = json(&["--fleet", "h100-80g,a100-80g:tp2*2", "--router", "least_loaded", "--fail", "2@1..2"]);
    let settings = &report["settings"];
    assert_eq!(
        (&report["completed"], &settings["replicas"], &settings["hardware"]),
        (&40.into(), &3.into(), &"h100-80g".into())
    );
    let group = &settings["groups"][1];
    assert_eq!((&group["hardware"], &group["parallel"]), (&"a100-80g".into(), &"tp2pp1".into()));
    assert!(group["device_blocks"].as_u64() > settings["groups"][0]["device_blocks"].as_u64());
    // What is given is given to all.
    let words = "t --fleet h100-80g,l4-24g*2 --device-blocks 900 --swap-block-ns 5 --recompute-token-ns 6 --policy edf";
    let given = settings_of(words);
    for replica in 0..3 {
        let core = given.core_of(replica);
        assert_eq!(
            (core.device_blocks, core.swap_block_ns, core.recompute_token_ns, &core.policy[..]),
            (900, 5, 6, "edf")
        );
    }
    for flags in [["--hardware", "l4-24g"], ["--replicas", "2"], ["--parallel", "tp2"]] {
        let error = parse(&[&["t", "--fleet", "h100-80g"], &flags[..]].concat()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{flags:?}");
    }
    let bad = parse(&["t", "--fleet", "h100-80g*x"]).unwrap_err().to_string();
    assert!(bad.contains("fleet is 'h100-80g*x'; give HARDWARE[:SHAPE][*REPLICAS]"), "{bad}");
    assert!(fault(&["none", "--fleet", "h100-80g,tpu"]).starts_with("unknown hardware 'tpu'; there are: "));
    let heads = fault(&["none", "--fleet", "h100-80g,a100-80g:tp3"]);
    assert_eq!(heads, "tp3 does not divide the 32 query heads of llama-3.1-8b");
    let table = render::report(&replayed(&["--fleet", "h100-80g,a100-80g:tp2*2"])[0]);
    assert!(table.contains("1 x h100-80g, 2 x a100-80g tp2pp1, llama-3.1-8b"), "{table}");
}

#[test]
fn ranks_of_data_parallel_attention_are_replicas() {
    let of = |words: &str| settings_of(&format!("trace --model qwen3-30b-a3b {words}"));
    let ranks = of("--parallel dp2ep2");
    assert_eq!((ranks.replicas, ranks.parallel.data, ranks.parallel.expert), (2, 2, 2));
    assert_eq!(of("--parallel dp2ep2 --replicas 6").replicas, 6);
    assert_eq!(of("--parallel tp2ep2").replicas, 1);
    // A rank holds the KV of its own requests in all heads, and half of the experts.
    let (one, half) = (of("--parallel tp1"), of("--parallel tp2"));
    assert!(one.core.device_blocks < ranks.core.device_blocks && ranks.core.device_blocks < half.core.device_blocks);
    assert!(fault(&["trace", "--parallel", "dp2"]).contains("dp2 divides experts, and llama-3.1-8b has none"));
    let three = fault(&["trace", "--model", "qwen3-30b-a3b", "--parallel", "dp2", "--replicas", "3"]);
    assert!(three.starts_with("3 replicas for dp2: each replica is a rank"), "{three}");
    let reports = replayed(&["--model", "qwen3-30b-a3b", "--parallel", "dp2ep2", "--limit", "10"]);
    assert!(
        reports[0].settings.cost_model.starts_with("roofline tp1dp2ep2pp1, ranks in lock step ("),
        "{}",
        reports[0].settings.cost_model
    );
}

#[test]
fn stages_are_filled_unless_steps_are_given() {
    let of = |words: &str| {
        let settings = settings_of(&format!("t --model llama-3.1-70b {words}"));
        let core = |replica| settings.core_of(replica);
        (0..settings.n_replicas() as usize)
            .map(|replica| (core(replica).pipeline_stages, core(replica).max_steps_in_flight))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("--parallel tp4"), [(1, 1)]);
    assert_eq!(of("--parallel tp2pp2"), [(2, 4)]);
    assert_eq!(of("--parallel pp4 --engine vllm-v1"), [(4, 4)]);
    assert_eq!(of("--parallel pp4 --max-steps-in-flight 1"), [(1, 1)]);
    assert_eq!(of("--parallel pp4 --max-steps-in-flight 6"), [(4, 6)]);
    assert_eq!(of("--parallel pp4 --pipeline-stages 1"), [(1, 1)]);
    assert_eq!(of("--fleet h100-80g:tp4,h100-80g:tp2pp2,h100-80g:pp4"), [(1, 1), (2, 4), (4, 8)]);
    let tokens = |words: &str| {
        settings_of(format!("t --model llama-3.1-70b --parallel pp4 {words}").trim_end()).core.max_batch_tokens
    };
    assert_eq!(
        ["", "--max-steps-in-flight 1", "--max-batch-tokens 8192", "--engine vllm-v1"].map(tokens),
        [2048, 8192, 8192, 8192]
    );
    let mixed = settings_of("t --fleet h100-80g,h100-80g:pp2");
    assert_eq!([0, 1].map(|replica| mixed.core_of(replica).max_batch_tokens), [8192, 4096]);
    let batches = |words: &str| settings_of(words).core.worker.pipeline_batches.name();
    assert_eq!(["t", "t --engine sarathi", "t --engine vllm-v1"].map(batches), ["even", "apart", "ready"]);
    let wrong = fault(&["t", "--model", "llama-3.1-70b", "--parallel", "pp4", "--pipeline-stages", "2"]);
    assert!(wrong.starts_with("pipeline_stages is 2, but a replica has 4; give the replica as many"), "{wrong}");
}

#[test]
fn an_engine_adds_its_own_time_to_steps() {
    let name = |words: &str| settings_of(words).cost_model().unwrap().name().to_string();
    assert!(name("t --engine-overhead 850:12").ends_with("; engine overhead 850 us a step, 12 us a sequence"));
    assert!(
        name("t --fleet h100-80g,a100-80g --engine-overhead 40")
            .ends_with("; engine overhead 40 us a step, 0 us a sequence")
    );
    assert!(!name("t").contains("overhead"));
    let wrong = parse(&["t", "--engine-overhead", "fast"]).unwrap_err().to_string();
    assert!(wrong.contains("engine overhead 'fast' is not STEP_US or STEP_US:SEQUENCE_US"), "{wrong}");
}

#[test]
fn eviction_within_sequences_divides_the_layers() {
    let of = |words: &str| settings_of(words);
    assert!(of("t").group_sizes.is_empty());
    let fourth = of("t --h2o on:ratio=4");
    assert_eq!((fourth.group_sizes.as_slice(), fourth.core.device_blocks), (&[8; 4][..], of("t").core.device_blocks));
    let keeps = [Keeps::All, Keeps::Scored, Keeps::Scored, Keeps::Scored];
    assert_eq!((fourth.core.worker.groups.as_slice(), fourth.core.h2o.ratio), (&keeps[..], Some(4.0)));
    let given = of("t --h2o probe --h2o-layers 0,8,16,24,31");
    assert_eq!(given.core.worker.groups.len(), given.group_sizes.len());
    assert_eq!((given.group_sizes[0], given.group_sizes.iter().sum::<u32>()), (5, 32));
    assert_eq!(given.core.worker.groups.iter().filter(|keeps| **keeps == Keeps::All).count(), 1);
    let layers = fault(&["none", "--h2o-layers", "32"]);
    assert_eq!(layers, "h2o-layers names layer 32; the model has the layers 0 to 31");
}

#[test]
fn a_total_sets_the_ratio_of_eviction_as_in_a_server() {
    let ratio = |words: &str| settings_of(words).core.h2o.ratio;
    assert_eq!(ratio("t"), None);
    assert_eq!(ratio("t --h2o on"), ratio("t --h2o on --h2o-total 2.5"));
    // A quarter of the heads keeps every token, and the others hold a block and an interval more than plans keep, of 4,096 tokens.
    let near = |found: Option<f32>, kept: f32| (found.unwrap() / (0.75 / kept) - 1.0).abs() < 1e-4;
    let excess = 0.75 * 32.0 / 4096.0;
    assert!(near(ratio("t --h2o on"), 1.0 / 2.5 - 0.25 - excess));
    assert!(near(ratio("t --h2o on --h2o-total 2"), 1.0 / 2.0 - 0.25 - excess));
    let both = fault(&["none", "--h2o", "on:ratio=4", "--h2o-total", "3"]);
    assert_eq!(both, "h2o-total and h2o-ratio contradict each other; give one of them");
    let off = fault(&["none", "--h2o-total", "3"]);
    assert_eq!(off, "h2o-total has no effect unless heads drop tokens; add --h2o on");
    let far = fault(&["none", "--h2o", "on", "--h2o-total", "4"]);
    assert_eq!(far, "h2o-total is 4, but 64 of 256 KV heads keep every token; give 3.73 at most");
}

#[test]
fn layers_with_windows_are_groups_of_their_own() {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let with = |more: &str, flags: &str| {
        let text = format!(
            r#"{{"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_hidden_layers": 26, "vocab_size": 9000,
            "num_key_value_heads": 4{more}}}"#
        );
        fs::write(file.path(), text).unwrap();
        settings_of(&format!("t --model {}{flags}", file.path().display()))
    };
    let (window, plain) = (Keeps::Window(512), with("", ""));
    assert!(plain.group_sizes.is_empty());
    let gemma = with(r#", "sliding_window": 512, "sliding_window_pattern": 6"#, "");
    let keeps = [Keeps::All, window, window, window, window, window, window];
    assert_eq!((&gemma.core.worker.groups[..], &gemma.group_sizes[..]), (&keeps[..], &[4, 4, 4, 4, 4, 3, 3][..]));
    // Groups of four layers in a pool for 28: a fourteenth is unused.
    assert_eq!(gemma.core.device_blocks, (u64::from(plain.core.device_blocks) * 26 / 28) as u32);
    let dropping = with(r#", "sliding_window": 512, "sliding_window_pattern": 6"#, " --h2o on").core.worker.groups;
    let count = |keeps| dropping.iter().filter(|group| **group == keeps).count();
    assert_eq!((count(Keeps::All), count(Keeps::Scored), count(window)), (1, 3, 22));
    let mistral = with(r#", "sliding_window": 4096"#, "");
    let keeps = [Keeps::Window(4096); 7];
    assert_eq!((&mistral.core.worker.groups[..], &mistral.group_sizes[..]), (&keeps[..], &[4, 4, 4, 4, 4, 3, 3][..]));
    assert_eq!(mistral.core.device_blocks, (u64::from(plain.core.device_blocks) * 26 / 28) as u32);
}

#[test]
fn how_steps_are_timed_is_a_choice() {
    let name = |words: &str| json(&words.split(' ').collect::<Vec<_>>())["settings"]["cost_model"].clone();
    assert!(name("--cost roofline").as_str().unwrap().starts_with("roofline (held-out error"));
    let streamed = name("--model llama-3.1-70b --weights stream --hardware rtx4090-24g --limit 2");
    let expected = "0 layers streamed from disk, 80 from the host, roofline (error not measured for llama-3.1-70b tp1; of llama-3.1-8b there";
    assert!(streamed.as_str().unwrap().starts_with(expected), "{streamed}");
    let placed = json(
        &"--model llama-3.1-70b --weights stream_first:host_layers=50 --hardware rtx4090-24g --limit 2"
            .split(' ')
            .collect::<Vec<_>>(),
    );
    let text = "stream_first:device_layers=0,host_layers=50,disk_mb_s=6000,link_mb_s=0,device_window=2,host_window=4";
    assert_eq!(
        (&placed["settings"]["weights"], &placed["settings"]["host_bytes"]["weights"]),
        (&text.into(), &92_408_905_728u64.into())
    );
    assert_eq!(fault(&["none", "--cost", "table:no/such"]), "no/such: no such folder; check the path");
    let not_fitted = fault(&["none", "--cost", "fitted"]);
    assert!(not_fitted.starts_with("h100-80g has no measured step times of llama-3.1-8b"), "{not_fitted}");
    let spread = fault(&["none", "--weights", "stream", "--parallel", "tp2"]);
    assert_eq!(spread, "weights stream to one device only, but parallel is tp2pp1");
    let layers = fault(&["none", "--weights", "stream:device_layers=33"]);
    assert_eq!(layers, "33 layers are to stay in memory, the model has 32");
    for (flag, value, part) in [
        ("--cost", "magic", "unknown cost model 'magic'; there are: auto, roofline, fitted, table:PATH"),
        ("--cost", "table", "cost model 'table' needs a folder, as in table:PATH"),
        (
            "--weights",
            "stream:disk=1",
            "'stream' has no parameter 'disk'; it has: device_layers, host_layers, disk_mb_s",
        ),
    ] {
        let error = parse(&["t", flag, value]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_part_of_a_trace_can_be_replayed() {
    let figures = |words: &str| {
        let report = json(&words.split(' ').collect::<Vec<_>>());
        (report["requests"].as_u64().unwrap(), report["prompt_tokens"].as_u64().unwrap())
    };
    assert_eq!(figures("--slice 5..9"), (4, 4 * 512));
    assert_eq!(figures("--slice 1s..2s --limit 3"), (3, 3 * 512));
    assert_eq!(figures("--max-context 120"), (40, 40 * 100));
    assert_eq!(figures("--reorder 4 --limit 7"), (7, 7 * 512));
    let trace = small_trace();
    let beyond = fault(&[trace.path().to_str().unwrap(), "--slice", "99.."]);
    assert!(beyond.contains("99.."), "{beyond}");
}

#[test]
fn a_trace_read_on_the_way_is_replayed_like_one_in_memory() {
    let same = |words: &[&str]| {
        let (mut read_before, mut read_on_the_way) = (json(words), json(&[words, &["--stream"]].concat()));
        for report in [&mut read_before, &mut read_on_the_way] {
            report["settings"]["trace"].take();
            report["wall_s"].take();
        }
        assert_eq!(read_before, read_on_the_way);
        read_before["requests"].as_u64().unwrap()
    };
    assert_eq!(same(&["--replicas", "3", "--speed", "3"]), 40);
    assert_eq!(same(&["--slice", "5..30", "--serial"]), 25);
    let bad = tempfile::NamedTempFile::new().unwrap();
    fs::write(bad.path(), fs::read_to_string(small_trace().path()).unwrap() + "{}\n").unwrap();
    let path = bad.path().to_str().unwrap();
    let (before, on_the_way) = (fault(&[path]), fault(&[path, "--stream"]));
    assert!(before.contains("line 41") && before == on_the_way, "{before} / {on_the_way}");
}

#[test]
fn outputs_that_cannot_be_written_are_reported_before_the_replay() {
    // There is no such trace: reading it first would give another error.
    let told = fault(&["no-trace.csv", "--html", "no-folder/x.html"]);
    assert!(told.starts_with("cannot write --html to no-folder/x.html"), "{told}");
    let told = fault(&["no-trace.csv", "--json", "no-folder/x.json"]);
    assert!(told.starts_with("cannot write --json to no-folder/x.json"), "{told}");
    let told = fault(&["no-trace.csv", "--json", "x", "--requests", "x"]);
    assert_eq!(told, "--json and --requests both write x; give each a file of its own");
    let told = fault(&["none", "--html", "-"]);
    assert_eq!(told, "--html writes a file, and '-' is standard output for --json alone; name a file, or /dev/stdout");
    assert!(!Path::new("x").exists());
}

#[test]
fn a_workload_is_generated_during_the_replay() {
    let workload = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let spec = r#"
        seed = 1
        requests = 50
        [[population]]
        name = "chat"
        arrivals = { process = "poisson", sessions-per-s = 2 }
        input-tokens = { kind = "constant", value = 300 }
        output-tokens = { kind = "uniform", min = 5, max = 90 }
        session = { turns = { kind = "constant", value = 3 }, think-s = { kind = "exponential", mean = 1 } }
    "#;
    fs::write(workload.path(), spec).unwrap();
    let path = workload.path().to_str().unwrap();
    let report = |words: &[&str]| -> serde_json::Value {
        let out = tempfile::NamedTempFile::new().unwrap();
        run(parse(&[&[path, "--json", out.path().to_str().unwrap()], words].concat()).unwrap()).unwrap();
        serde_json::from_str(&fs::read_to_string(out.path()).unwrap()).unwrap()
    };
    let (one, again, few) = (report(&[]), report(&[]), report(&["--limit", "20"]));
    assert_eq!((&one["completed"], &one["digest"]), (&50.into(), &again["digest"]));
    assert_eq!(few["completed"], 20);
    assert!(one["prefix_hit_tokens"].as_u64() > Some(0), "turns have those before them in the cache");
    // Users wait for answers: a slower replica is asked later.
    let slow = report(&["--slow", "0:40"]);
    assert!(slow["duration_s"].as_f64().unwrap() > one["duration_s"].as_f64().unwrap() + 1.0);
    assert!(fault(&[path, "--slice", "2.."]).ends_with("of the flags about traces only --limit is for it"));
    assert!(fault(&[path, "--load", "0.5"]).contains("trunkline trace generate"));
}

#[test]
fn costs_that_are_given_are_believed() {
    let given = settings(&["t", "--swap-block-ns", "5", "--recompute-token-ns", "6"]).unwrap();
    assert_eq!((given[0].core.swap_block_ns, given[0].core.recompute_token_ns), (5, 6));
    assert_eq!(given[0].core.host_blocks, 0);
}

#[test]
fn every_policy_meets_every_eviction_and_preemption() {
    let words = "t --policy fcfs --policy edf --eviction lru --eviction lfu --preemption cost --preemption recompute";
    let runs = settings(&words.split(' ').collect::<Vec<_>>()).unwrap();
    let names: Vec<_> = runs.iter().map(|run| (&run.core.policy[..], &run.core.eviction[..])).collect();
    assert_eq!(names.len(), 8);
    assert_eq!((names[0], names[2], names[4]), (("fcfs", "lru"), ("fcfs", "lfu"), ("edf", "lru")));
}

#[test]
fn every_router_is_a_run_and_faults_are_in_each() {
    let words = "t --replicas 3 --router round_robin --router random2:seed=3 --fail 1@30..60 --fail 2@5 --slow 0:1.5";
    let runs = settings(&words.split(' ').collect::<Vec<_>>()).unwrap();
    assert_eq!(runs.iter().map(|run| &run.routing.router[..]).collect::<Vec<_>>(), ["round_robin", "random2:seed=3"]);
    for run in runs {
        assert_eq!(run.routing.failures.iter().map(ToString::to_string).collect::<Vec<_>>(), ["1@30..60", "2@5"]);
        assert_eq!(run.routing.slow[0].to_string(), "0:1.5");
    }
    assert!(fault(&["none", "--router", "magic"]).starts_with("unknown router 'magic'; there are: round_robin, "));
    assert!(fault(&["none", "--fail", "1"]).starts_with("failure is '1'; give REPLICA@SECONDS"));
    assert_eq!(fault(&["none", "--slow", "1:2"]), "replica 1 is to be slow, but there are 1, numbered from 0");
}

#[test]
fn requests_are_written_of_one_replay() {
    let (trace, out) = (small_trace(), tempfile::NamedTempFile::new().unwrap());
    let paths = [trace.path().to_str().unwrap(), "--requests", out.path().to_str().unwrap(), "--json", "/dev/null"];
    run(parse(&paths).unwrap()).unwrap();
    let text = fs::read_to_string(out.path()).unwrap();
    assert_eq!(text.lines().count(), 41);
    assert!(text.starts_with("id,arrival_s,replica,tenant,"));
    let several = fault(&["none", "--requests", "x", "--policy", "fcfs", "--policy", "edf"]);
    assert_eq!(several, "requests are written of one replay, but 2 are compared; compare nothing");
}

#[test]
fn a_page_shows_all_runs_and_a_timeline_one() {
    let (trace, folder) = (small_trace(), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (page, timeline) = (path("a.html"), path("a.json"));
    let trace = trace.path().to_str().unwrap();
    let start = [trace, "--json", "/dev/null", "--html", &page];
    run(parse(&[&start[..], &["--timeline", &timeline, "--timeline-window", "0.5..2"]].concat()).unwrap()).unwrap();
    let one = fs::read_to_string(&page).unwrap();
    assert!(one.contains("class=\"cards\"") && one.contains("40 requests on one replica"));
    let events: serde_json::Value = serde_json::from_str(&fs::read_to_string(&timeline).unwrap()).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    // The latest begin of a request within the window.
    let begin = |event: &&serde_json::Value| event["ph"] == "b" && event["name"] == "request";
    assert_eq!(events.iter().rfind(begin).unwrap()["ts"].as_f64().unwrap(), 1.9e6);
    run(parse(&[&start[..], &["--policy", "fcfs", "--policy", "sjf"]].concat()).unwrap()).unwrap();
    let two = fs::read_to_string(&page).unwrap();
    assert!(two.contains("2 runs of 40 requests") && two.contains("\"label\":\"sjf\""));

    let several = fault(&["none", "--timeline", "x", "--policy", "fcfs", "--policy", "edf"]);
    assert_eq!(several, "a timeline is written of one replay, but 2 are compared; compare nothing");
    assert!(fault(&[trace, "--html", &path("none/a.html")]).starts_with("cannot write --html to "));
    for window in ["1", "2..1", "x..3", "-1..2"] {
        let flag = format!("--timeline-window={window}");
        let message = parse(&["none", "--timeline", "x", &flag]).unwrap_err().to_string();
        assert!(message.contains("give START..END in seconds, such as 60..120"), "{message}");
    }
    assert!(parse(&["none", "--timeline-window", "1..2"]).is_err(), "of no timeline");
}

#[test]
fn one_run_is_a_report_and_several_are_a_list_in_their_order() {
    let one = json(&[]);
    assert_eq!(one["completed"], 40);
    let several = json(&["--policy", "edf", "--policy", "fcfs", "--policy", "priority"]);
    let several = several.as_array().expect("a list");
    let policies: Vec<_> = several.iter().map(|report| report["settings"]["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["edf", "fcfs", "priority"]);
    // Run alongside others it decides the same as alone.
    assert_eq!(several[1]["digest"], one["digest"]);
    assert_eq!(several[1]["ttft_s"], one["ttft_s"]);
}

#[test]
fn a_load_sets_the_speed_of_every_run() {
    let reports = json(&["--load", "0.5", "--policy", "fcfs", "--policy", "edf"]);
    for report in reports.as_array().unwrap() {
        let number = |field: &str| report["load"][field].as_f64().unwrap();
        assert_eq!(number("fraction"), 0.5);
        assert!((number("arrival_requests_s") / number("capacity_requests_s") - 0.5).abs() < 1e-9);
        assert!((number("arrival_requests_s") / number("speed") - 10.0).abs() < 1e-9, "the trace has ten in a second");
        assert_eq!(report["settings"]["speed"], report["load"]["speed"]);
    }
}

#[test]
fn tables_show_the_settings_that_were_given() {
    let reports = replayed;
    let one = render::report(&reports(&["--tenants", "0.9,0.1", "--host-blocks", "8", "--speed", "2"])[0]);
    for part in ["2 times as fast as in the trace", "cost, 8 blocks of host memory", "swapped out", "TTFT of tenant 1"]
    {
        assert!(one.contains(part), "{part}: {one}");
    }
    let copied = render::report(&reports(&["--reuse-anywhere", "64"])[0]);
    assert!(copied.contains(" copied ") && !one.contains(" copied "), "{copied}");
    let two = compare::table(&reports(&["--policy", "fcfs", "--policy", "edf", "--tenants", "0.9,0.1"]));
    let starts = |word: &str| two.lines().filter(|line| line.trim_start().starts_with(word)).count();
    // A row of each, and one for each of its tenants; what they have in common stands above, once.
    assert_eq!((starts("fcfs"), starts("edf"), starts("eviction")), (3, 3, 1), "{two}");
    assert!(two.contains("service gap"), "{two}");
    let routers = compare::table(&reports(&["--replicas", "2", "--router", "random2", "--router", "least_loaded"]));
    assert!(routers.lines().any(|line| line.trim_start().starts_with("least_loaded")), "{routers}");
    let evictions = compare::table(&reports(&["--eviction", "lru", "--eviction", "lfu"]));
    assert!(evictions.lines().any(|line| line.trim_start().starts_with("lfu")), "{evictions}");
}

#[test]
fn replicas_start_and_stop_by_a_policy_and_cost_what_they_run() {
    let policy = "load:min=2,max=5,target=1,interval_s=1,start_delay_s=1,stabilisation_s=0";
    let autoscaled = settings_of(&format!("t --autoscale {policy}"));
    assert_eq!((autoscaled.replicas, autoscaled.initial_replicas()), (5, 2));
    assert_eq!(settings_of(&format!("t --autoscale {policy} --replicas 4")).initial_replicas(), 4);
    let reports =
        replayed(&["--replicas", "2", "--autoscale", "none", "--autoscale", policy, "--price", "h100-80g=3.6"]);
    let [fixed, scaled] = &reports[..] else { panic!("two runs") };
    assert_eq!((fixed.settings.autoscale.as_deref(), scaled.settings.autoscale.as_deref()), (None, Some(policy)));
    let service = fixed.fleet.service.as_ref().unwrap();
    assert!((service.total_cost.unwrap() - 2.0 * 3.6 * fixed.duration_s / 3600.0).abs() < 1e-9);
    let four = &replayed(&["--replicas", "2", "--parallel", "tp4", "--price", "h100-80g=3.6"])[0];
    let cost = four.fleet.service.as_ref().unwrap().total_cost.unwrap();
    assert!((cost - 2.0 * 4.0 * 3.6 * four.duration_s / 3600.0).abs() < 1e-9, "four devices each");
    assert!(render::report(four).contains(", at 14.40 an hour for a replica"));
    let table = compare::table(&reports);
    for part in ["none, 2 replicas", &format!("{policy}, 2 at the start"), "replica-hours", "cost"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let one = render::report(scaled);
    for part in ["autoscale", "ready replicas", "2 to", "starts", "replica-hours"] {
        assert!(one.contains(part), "{part}: {one}");
    }
    assert!(!render::report(&replayed(&[])[0]).contains("replica-hours"));
}

#[test]
fn failures_at_random_are_listed() {
    let reports = replayed(&["--replicas", "2", "--mtbf", "0.0003", "--mttr", "0.01", "--fault-seed", "3"]);
    let service = reports[0].fleet.service.as_ref().unwrap();
    assert!(service.failures > 0 && service.failed.len() as u64 == service.failures);
    let text = render::report(&reports[0]);
    for part in ["at random: MTBF 0.0003 h, MTTR 0.01 min, seed 3", &format!("{} times: ", service.failures)] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let other = replayed(&["--replicas", "2", "--mtbf", "0.0003", "--mttr", "0.01"]);
    assert_ne!(other[0].digest, reports[0].digest, "another seed");
}

#[test]
fn wrong_policies_failures_and_prices_are_refused_in_one_line() {
    let unknown = fault(&["none", "--autoscale", "cpu"]);
    assert!(unknown.starts_with("unknown autoscaling policy 'cpu'; there are: load, queue"), "{unknown}");
    assert_eq!(
        fault(&["none", "--autoscale", "load:target=0"]),
        "autoscaling policy 'load': target is '0'; it must be a whole number between 1 and 1000000"
    );
    assert_eq!(
        fault(&["none", "--autoscale", "queue:min=3,max=2"]),
        "autoscaling from 3 to 2 replicas; min must be at most max"
    );
    assert_eq!(
        fault(&["none", "--autoscale", "load:max=4", "--replicas", "6"]),
        "6 replicas at the start, but autoscaling keeps 1 to 4; change --replicas, or min and max"
    );
    for flags in [["--fleet", "h100-80g*2"], ["--roles", "prefill,decode"]] {
        let error = parse(&[&["t", "--autoscale", "load"], &flags[..]].concat()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{flags:?}");
    }
    assert_eq!(fault(&["none", "--mtbf", "-1"]), "mtbf is -1; it must be from 0.0001 to 10000000 hours");
    assert!(parse(&["t", "--mttr", "5"]).is_err(), "a repair without a failure");
    assert_eq!(fault(&["none", "--price", "x"]), "price is 'x'; give HARDWARE=PRICE, such as h100-80g=2.5");
    assert_eq!(
        fault(&["none", "--price", "a100-80g=1"]),
        "price of 'a100-80g', which is not planned with; name it in --hardware"
    );
    assert_eq!(fault(&["none", "--price", "h100-80g=0"]), "price of h100-80g is 0; it must be a number above 0");
    assert_eq!(
        fault(&["none", "--fleet", "h100-80g,a100-80g", "--price", "a100-80g=1"]),
        "price of 'h100-80g' is missing; the fleet has it too"
    );
}
