//! Limits and memory of engines that are imitated.

use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_core::config::PrefillFirst;

use super::settings::SettingsArgs;
use super::*;

#[test]
fn an_engine_sets_the_defaults_of_limits() {
    let core = |words: &str| settings_of(&words.split_whitespace().collect::<Vec<_>>().join(" ")).core;
    let vllm = core("t --engine vllm-v1");
    assert_eq!((vllm.max_batch_tokens, vllm.max_batch_size, vllm.block_size), (8192, 1024, 16));
    assert_eq!(core("t --engine vllm-v1 --hardware a100-80g").max_batch_tokens, 2048);
    assert_eq!(core("t --engine vllm-v1 --fleet h100-80g,a100-80g").max_batch_tokens, 2048);
    assert_eq!((vllm.launch_watermark, vllm.swap_in_watermark, vllm.align_chunks), (0.0, 0.0, false));
    assert_eq!((vllm.preemption, vllm.host_blocks), (Preemption::RecomputeAtOnce, 0));
    let words = "t --engine vllm-v1 --block-size 32 --max-batch-tokens 4096 --max-batch-size 8 --launch-watermark 1 \
                 --swap-in-watermark 0.5 --align-chunks true --host-blocks 7 --preemption swap";
    let given = core(words);
    assert_eq!((given.max_batch_tokens, given.max_batch_size, given.block_size), (4096, 8, 32));
    assert_eq!((given.launch_watermark, given.swap_in_watermark, given.align_chunks), (1.0, 0.5, true));
    assert_eq!((given.preemption, given.host_blocks), (Preemption::Swap, 7));
    // A batch of 8 needs less workspace, and leaves more for KV.
    let tokens = |core: &Config| u64::from(core.device_blocks) * u64::from(core.block_size);
    assert!((tokens(&vllm) + 1..tokens(&vllm) * 11 / 10).contains(&tokens(&given)));
    let plain = core("t");
    assert_eq!((plain.max_batch_tokens, plain.launch_watermark, plain.align_chunks), (8192, 1.0, true));
    assert_eq!(plain.preemption, Preemption::Cost);
    let sglang = core("t --engine sglang");
    assert_eq!((sglang.max_steps_in_flight, &*sglang.policy), (2, "lpm_sorted"));
    let given = core("t --engine sglang --policy fcfs --max-steps-in-flight 1 --prefill-first false --block-size 1");
    assert_eq!((given.max_steps_in_flight, &*given.policy, given.prefill_first), (1, "fcfs", PrefillFirst::Off));
    assert_eq!(given.device_blocks / 16, sglang.device_blocks);
    let unknown = parse(&["t", "--engine", "orca"]).unwrap_err().to_string();
    assert!(unknown.contains("unknown engine 'orca'; there are: vllm-v1, vllm-v0, sglang, sarathi"), "{unknown}");
}

#[test]
fn blocks_fill_a_share_of_the_device_and_leave_the_engine_its_workspace() {
    let blocks = |words: &str| settings_of(format!("t {words}").trim()).core.device_blocks;
    assert_eq!(blocks("--gpu-memory-utilization 0.9"), blocks(""));
    assert!(blocks("--gpu-memory-utilization 0.5") < blocks("") / 2, "weights are as large");
    // The workspace takes 4.9 GiB, most of it for a sampler of 1,024 sequences, and CUDA 0.5 GB; a block has 2 MiB.
    let [vllm, without] = [blocks("--engine vllm-v1"), blocks("--gpu-memory-utilization 0.9")];
    assert!((2_700..2_760).contains(&(without - vllm)), "{without} {vllm}");
    assert_eq!(blocks("--engine vllm-v1 --gpu-memory-utilization 0.9"), vllm);
    assert!(blocks("--engine vllm-v1 --max-batch-size 64") > vllm, "a smaller sampler");
    for share in ["0", "-0.5", "1.01", "nan"] {
        let told = fault(&["none", "--gpu-memory-utilization", share]);
        assert!(told.starts_with("gpu-memory-utilization is ") && told.ends_with("above 0 and at most 1"), "{told}");
    }
    let told = fault(&["none", "--device-blocks", "9", "--gpu-memory-utilization", "0.8"]);
    assert!(told.starts_with("gpu-memory-utilization has no effect where the number of device blocks is"), "{told}");
}

#[test]
fn a_share_of_memory_is_for_the_engine_imitated_and_not_for_the_recorded_server() {
    let mut args = parse(&["t", "--engine", "vllm-v1", "--gpu-memory-utilization", "0.9"]).unwrap().settings;
    args.recorded = Some(Box::new(ClusterConfig::uniform(&Config { device_blocks: 777, ..Config::default() }, 1)));
    let blocks = |args: &SettingsArgs| {
        let settings = runs(args, Arrivals::TRACED).map_err(|error| error.to_string())?.settings;
        Ok::<_, String>(settings[0].core.device_blocks)
    };
    assert_eq!(blocks(&args.as_recorded()), Ok(777));
    assert!(blocks(&args).unwrap() > 20_000);
    let mut without = parse(&["t", "--gpu-memory-utilization", "0.9"]).unwrap().settings;
    without.recorded.clone_from(&args.recorded);
    assert!(blocks(&without).unwrap_err().starts_with("gpu-memory-utilization has no effect where"));
}

#[test]
fn each_kind_of_a_fleet_leaves_the_room_of_an_sglang_server_on_its_device() {
    let of = |words: &str| {
        let settings = settings_of(&format!("t --engine sglang {words}"));
        let others = settings.others.iter().map(|group| group.device_blocks);
        std::iter::once(settings.core.device_blocks).chain(others).collect::<Vec<_>>()
    };
    let (h100, h200) = (of("--hardware h100-80g")[0], of("--hardware h200-141g")[0]);
    assert_eq!(of("--fleet h100-80g,h200-141g"), [h100, h200]);
    assert_eq!(of("--fleet h200-141g,h100-80g"), [h200, h100]);
    // A chunk of 2,048 tokens leaves 10 GiB free instead of 13,440 MiB; blocks have 2 MiB.
    // The share of the device has three decimals.
    let more = of("--max-batch-tokens 2048")[0] - h100;
    assert!(more.abs_diff(3200 / 2) <= 40, "{more}");
}

#[test]
fn sglang_plans_recurrent_states_of_32_bits() {
    let next = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sim/perf/src/model/config/published/qwen3-next-80b.json");
    let states = |engine: &str| {
        let words = format!("t --model {next} --parallel tp4 --hardware h200-141g --engine {engine}");
        settings_of(&words).model.hybrid.unwrap().state_dtype_bytes
    };
    assert_eq!((states("vllm-v1"), states("sglang")), (None, Some(4)));
}
