//! Classes of published logs: how far estimates of the KV cache were from what engines logged.

use std::fmt;

use trunkline_sim_perf::model::Bits;

use crate::engine_memory::EngineMemory;
use crate::settings::Settings;

/// Engine and sort of model, with the errors of estimates against the logs of such runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogClass {
    /// Engine and sort of model.
    pub name: &'static str,
    /// Runs compared, and the least and the greatest error of the estimate, per cent; `None` if no run was.
    pub compared: Option<(u32, f64, f64)>,
}

const fn class(name: &'static str, runs: u32, least: f64, most: f64) -> LogClass {
    LogClass { name, compared: Some((runs, least, most)) }
}

// The test of this module compares these with its runs.
const DENSE: LogClass = class("dense models on vLLM", 18, -10.5, 1.2);
const EXPERTS: LogClass = class("models with experts on vLLM", 1, 24.0, 24.0);
const MXFP4: LogClass = class("MXFP4 on vLLM", 4, -3.2, 3.1);
const IMAGES: LogClass = class("vision-language models on vLLM", 1, -9.4, -9.4);
const HYBRID: LogClass = class("hybrid models on vLLM", 2, 5.3, 9.9);
const HYBRID_BOARDS: LogClass = class("hybrid models on vLLM, boards of compute capability 12", 4, -1.9, 121.2);
const RANKS: LogClass = class("experts of several ranks on vLLM", 2, -7.3, -0.8);
const V0: LogClass = class("vLLM V0", 2, 2.7, 3.7);
const SGLANG: LogClass = class("SGLang", 1, -1.1, -1.1);
/// Devices on which vLLM's own measurement takes several GiB more for hybrid vision-language models; why is not known here.
const BOARDS: std::ops::Range<f64> = 12.0..13.0;
const OTHER: LogClass = LogClass { name: "this engine or model", compared: None };

impl LogClass {
    /// Returns the class of a deployment.
    pub fn of(settings: &Settings) -> Self {
        let model = &settings.model;
        let is_odd =
            model.latent.is_some() || !model.extras.unread.is_empty() || model.extras.planned_as_full.is_some();
        match settings.memory {
            _ if is_odd => OTHER,
            EngineMemory::Same(memory) if memory.workspace.is_some() => V0,
            EngineMemory::Same(_) => OTHER,
            EngineMemory::Sglang { .. } if model.hybrid.is_none() => SGLANG,
            EngineMemory::Sglang { .. } => OTHER,
            EngineMemory::Vllm { .. } if model.hybrid.is_some() => {
                let is_board = settings.hardware.compute_capability.is_some_and(|it| BOARDS.contains(&it));
                if is_board { HYBRID_BOARDS } else { HYBRID }
            }
            EngineMemory::Vllm { .. } if settings.parallel.data > 1 => RANKS,
            EngineMemory::Vllm { .. } if model.extras.tower_bytes > 0 => IMAGES,
            EngineMemory::Vllm { .. } if model.experts.is_none() => DENSE,
            EngineMemory::Vllm { .. } if model.precision.experts == Bits::grouped(4, 8, 32) => MXFP4,
            EngineMemory::Vllm { .. } => EXPERTS,
        }
    }
}

impl fmt::Display for LogClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match self.compared {
            None => write!(f, "{name}: not compared with any engine's log"),
            Some((1, error, _)) => write!(f, "{name}: {error:+.1} % off the log of one run"),
            Some((runs, least, most)) => write!(f, "{name}: {least:+.1} to {most:+.1} % off the logs of {runs} runs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_sim_perf::cost::Parallel;
    use trunkline_sim_perf::hardware;
    use trunkline_sim_perf::memory::StatePages;
    use trunkline_sim_perf::model::{self, Model, parse_config};

    use super::*;
    use crate::engines;

    /// Run of an engine whose log says the memory of its KV cache.
    struct Run {
        engine: &'static str,
        device: &'static str,
        model: &'static str,
        parallel: &'static str,
        share: f64,
        /// Tokens and sequences of a step, if they were given.
        batch: Option<(u32, u32)>,
        /// GiB of KV on a device; below 0 where the engine refused to start.
        gib: f64,
    }

    const fn run(
        engine: &'static str,
        device: &'static str,
        model: &'static str,
        parallel: &'static str,
        share: f64,
        gib: f64,
    ) -> Run {
        Run { engine, device, model, parallel, share, batch: None, gib }
    }

    const fn with(batch: (u32, u32), run: Run) -> Run {
        Run { batch: Some(batch), ..run }
    }

    /// Logs that users and projects published, of vLLM 0.6 to 0.28 and SGLang 0.4: benchmarks of dennislee22/vLLM-benchmarking and of BLIS, tables of llm-d
    /// on H100 (vLLM 0.11), vllm#10511, #10517, #21348, #23278, #27508, vllm-project/recipes#12, #551 and #831, noonghunna/club-3090#612, and those of
    /// LLMServingSim. What a log has in tokens is here in memory.
    const RUNS: [Run; 37] = [
        run("vllm-v1", "a100-80g", "qwen2-7b", "tp1", 0.5, 24.83),
        run("vllm-v1", "a100-80g", "qwen2-7b", "tp2", 0.25, 12.02),
        run("vllm-v1", "a100-80g", "qwen2-7b", "tp2", 0.5, 31.83),
        with((2048, 128), run("vllm-v1", "h100-80g", "llama-2-7b", "tp1", 0.9, 58.30)),
        with((2048, 128), run("vllm-v1", "h100-80g", "llama-3.1-70b", "tp4", 0.9, 37.14)),
        with((8192, 128), run("vllm-v1", "h100-80g", "llama-3.1-70b", "tp4", 0.9, 36.93)),
        with((2048, 128), run("vllm-v1", "h100-80g", "mistral-nemo", "tp1", 0.9, 47.00)),
        with((2048, 128), run("vllm-v1", "h100-80g", "qwen2-7b", "tp1", 0.9, 55.86)),
        with((2048, 128), run("vllm-v1", "h100-80g", "yi-34b", "tp2", 0.9, 38.07)),
        run("vllm-v1", "h100-80g", "llama-3.1-8b", "tp1", 0.9, 51.38),
        run("vllm-v1", "h100-80g", "qwen3-0.6b", "tp1", 0.9, 64.45),
        run("vllm-v1", "h100-80g", "qwen3-32b", "tp2", 0.9, 34.49),
        run("vllm-v1", "h100-80g", "qwen3-32b", "tp1", 0.9, 4.45),
        run("vllm-v1", "h100-80g", "llama-3.3-70b-fp8", "tp2", 0.9, 32.00),
        run("vllm-v1", "h100-80g", "llama-3.3-70b-fp8", "tp1", 0.9, -1.44),
        run("vllm-v1", "rtx4090-24g", "llama-3.1-8b", "tp1", 0.9, 5.05),
        run("vllm-v1", "a100-40g", "llama-3.1-8b", "tp1", 0.9, 19.92),
        run("vllm-v1", "h100-80g", "llama-3.1-8b", "tp1", 0.92, 56.21),
        run("vllm-v1", "h100-80g", "qwen3-8b", "tp1", 0.9, 53.54),
        run("vllm-v1", "a100-80g", "gpt-oss-120b", "tp4", 0.8, 45.32),
        run("vllm-v1", "h100-80g", "gpt-oss-120b", "tp1", 0.9, -2.14),
        run("vllm-v1", "h100-80g", "gpt-oss-120b", "tp1", 0.95, 3.33),
        run("vllm-v1", "h100-80g", "gpt-oss-20b", "tp1", 0.9, 50.28),
        run("vllm-v1", "a100-80g", "gpt-oss-20b", "tp1", 0.65, 36.56),
        run("vllm-v1", "h100-80g", "mistral-small-3.2", "tp1", 0.95, 28.20),
        run("vllm-v1", "rtxpro6000-96g", "qwen3-30b-a3b", "dp2ep2", 0.92, 55.41),
        run("vllm-v1", "h200-141g", "qwen3-coder-480b-fp8", "dp8ep8", 0.9, 48.66),
        run("vllm-v1", "h100-80g", "qwen3.6-27b-fp8", "tp1", 0.95, 40.96),
        with((8192, 512), run("vllm-v1", "h100-80g", "qwen3.6-27b-fp8", "tp1", 0.95, 40.52)),
        run("vllm-v1", "rtxpro6000-96g", "qwen3.6-27b-fp8", "tp1", 0.92, 44.93),
        run("vllm-v1", "rtx5090-32g", "qwen3.8-27b-fp8-kv", "tp2", 0.92, 5.76),
        run("vllm-v1", "rtxpro6000-96g", "qwen3.6-27b", "tp1", 0.95, 26.61),
        with((8192, 1), run("vllm-v1", "rtx5090-32g", "qwen3.6-35b-a3b-nvfp4", "tp1", 0.92, 5.98)),
        run("vllm-v0", "h100-80g", "llama-3.1-8b", "tp1", 0.9, 53.29),
        with((29_000, 256), run("vllm-v0", "rtx3090-24g", "llama-3.1-8b", "tp1", 0.9, 2.887)),
        run("sglang", "h100-80g", "qwen3-235b-fp8", "tp4", 0.93, 16.46),
        run("vllm-v1", "h100-80g", "qwen3-235b-fp8", "tp4", 0.9, 8.11),
    ];

    const FP8: &str = r#", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}"#;

    /// Returns a dense model by its published dimensions.
    fn dense(family: &str, [layers, hidden, heads, kv_heads, head, width, vocab]: [u64; 7], more: &str) -> String {
        format!(
            r#"{{"model_type": "{family}", "num_hidden_layers": {layers}, "hidden_size": {hidden}, "num_attention_heads": {heads},
            "num_key_value_heads": {kv_heads}, "head_dim": {head}, "intermediate_size": {width}, "vocab_size": {vocab}{more}}}"#
        )
    }

    fn gpt_oss(layers: u64, experts: u64) -> String {
        let more = format!(
            r#", "num_local_experts": {experts}, "num_experts_per_tok": 4, "quantization_config": {{"quant_method": "mxfp4"}}"#
        );
        dense("gpt_oss", [layers, 2880, 64, 8, 64, 2880, 201_088], &more)
    }

    fn experts([layers, hidden, heads, kv_heads, count, width]: [u64; 6], more: &str) -> String {
        let more =
            format!(r#", "num_experts": {count}, "num_experts_per_tok": 8, "moe_intermediate_size": {width}{more}"#);
        dense("qwen3_moe", [layers, hidden, heads, kv_heads, 128, 6144, 151_936], &more)
    }

    /// Returns a hybrid of Qwen3.5's kind, which sees.
    fn qwen3_5([layers, hidden, heads, kv_heads, width, values]: [u64; 6], more: &str) -> String {
        let hybrid = format!(
            r#", "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": {values}, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32"{more}, "vision_config": {{"depth": 27,
            "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": {hidden}, "spatial_merge_size": 2}}"#
        );
        dense("qwen3_5", [layers, hidden, heads, kv_heads, 256, width, 248_320], &hybrid)
    }

    fn named(name: &'static str) -> Model {
        let config = match name {
            "qwen2-7b" => dense("qwen2", [28, 3584, 28, 4, 128, 18_944, 152_064], ""),
            "llama-2-7b" => dense("llama", [32, 4096, 32, 32, 128, 11_008, 32_000], ""),
            "mistral-nemo" => dense("mistral", [40, 5120, 32, 8, 128, 14_336, 131_072], ""),
            "yi-34b" => dense("llama", [60, 7168, 56, 8, 128, 20_480, 64_000], ""),
            "qwen3-0.6b" => dense("qwen3", [28, 1024, 16, 8, 128, 3072, 151_936], r#", "tie_word_embeddings": true"#),
            "qwen3-32b" => dense("qwen3", [64, 5120, 64, 8, 128, 25_600, 151_936], ""),
            "llama-3.3-70b-fp8" => dense("llama", [80, 8192, 64, 8, 128, 28_672, 128_256], FP8),
            "gpt-oss-20b" => gpt_oss(24, 32),
            "gpt-oss-120b" => gpt_oss(36, 128),
            "mistral-small-3.2" => {
                let tower = r#", "vision_config": {"model_type": "pixtral", "num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096}"#;
                dense("mistral", [40, 5120, 32, 8, 128, 32_768, 131_072], tower)
            }
            "qwen3-235b-fp8" => experts([94, 4096, 64, 4, 128, 1536], FP8),
            "qwen3-coder-480b-fp8" => experts([62, 6144, 96, 8, 160, 2560], FP8),
            "qwen3.6-27b" => qwen3_5([64, 5120, 24, 4, 17_408, 48], ""),
            "qwen3.6-27b-fp8" => qwen3_5([64, 5120, 24, 4, 17_408, 48], FP8),
            "qwen3.8-27b-fp8-kv" => qwen3_5(
                [64, 5120, 24, 4, 17_408, 48],
                r#", "quantization_config": {"quant_method": "fp8", "kv_cache_scheme": "static"}"#,
            ),
            "qwen3.6-35b-a3b-nvfp4" => {
                let more = r#", "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
                    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
                    "ignore": ["*self_attn*", "*linear_attn*", "*shared_expert*"]}"#;
                qwen3_5([40, 2048, 16, 2, 512, 32], more)
            }
            preset => return *model::by_name(preset).unwrap(),
        };
        parse_config(name, &config).unwrap()
    }

    /// Returns the settings of a run, and the error of the estimate, per cent; `None` if both say that there is no room.
    fn compare(run: &Run) -> (Settings, Option<f64>) {
        let (device, model) = (*hardware::by_name(run.device).unwrap(), named(run.model));
        let engine = engines::by_name(run.engine).unwrap().on(&[device]);
        let parallel: Parallel = run.parallel.parse().unwrap();
        let mut settings = Settings {
            parallel,
            core: engine.core(1000),
            memory: engine.memory.with_utilization(run.share),
            ..Settings::new(device, engine.keeps(model))
        };
        if let Some((tokens, sequences)) = run.batch {
            (settings.core.max_batch_tokens, settings.core.max_batch_size) = (tokens, sequences);
        }
        if let Some(pages) = StatePages::of(&settings.model, parallel).filter(|_| engine.memory.has_state_pages()) {
            settings.core.block_size = pages.block_tokens;
        }
        let [(_, least), _] = settings.memory_parts();
        let gib = least.kv() as f64 / f64::from(1 << 30);
        let is_refused = run.gib < 0.0 && gib == 0.0;
        (settings, (!is_refused).then(|| 100.0 * (gib / run.gib - 1.0)))
    }

    #[test]
    fn classes_state_the_errors_of_their_runs() {
        type Stated = Option<(u32, f64, f64)>;
        let mut found: Vec<(&str, Stated, u32, f64, f64)> = Vec::new();
        for run in &RUNS {
            let (settings, error) = compare(run);
            let class = LogClass::of(&settings);
            println!("{:32} {:14} {:22} {:7} {:?}", class.name, run.device, run.model, run.parallel, error);
            let Some(error) = error else { continue };
            match found.iter_mut().find(|(name, ..)| *name == class.name) {
                Some((.., n, least, most)) => (*n, *least, *most) = (*n + 1, least.min(error), most.max(error)),
                None => found.push((class.name, class.compared, 1, error, error)),
            }
        }
        for (name, stated, n, least, most) in &found {
            println!("{name}: Some(({n}, {least:.1}, {most:.1}))");
            let (runs, low, high) = stated.expect("compared");
            assert_eq!(runs, *n, "{name}");
            assert!((low - least).abs() < 0.1 && (high - most).abs() < 0.1, "{name}: {least:.2} to {most:.2}");
        }
        assert_eq!(found.len(), 9);
    }

    #[test]
    fn a_class_says_how_far_off_estimates_were() {
        assert_eq!(EXPERTS.to_string(), "models with experts on vLLM: +24.0 % off the log of one run");
        assert_eq!(DENSE.to_string(), "dense models on vLLM: -10.5 to +1.2 % off the logs of 18 runs");
        assert_eq!(OTHER.to_string(), "this engine or model: not compared with any engine's log");
    }
}
