//! Settings of `serve`, each a flag. `given.rs` takes them from a file and from the environment too.

use std::path::PathBuf;

use clap::Args;
use trunkline_core::config::{Setting, StepTarget};

use crate::settings::attach_settings::AttachSettings;
use crate::settings::core_settings::{CoreFlags, CoreSettings};
use crate::settings::h2o_settings::{self, H2oSettings};
use crate::settings::http_settings::HttpSettings;
use crate::settings::kv_settings::KvSettings;
use crate::settings::log_settings::LogSettings;
use crate::settings::network_settings::NetworkSettings;
use crate::settings::routers::router_help;
use crate::settings::session_settings::SessionSettings;
use crate::settings::simulate_settings::SimulateSettings;
use crate::settings::tier_settings::TierSettings;

/// Policy of a server unless another is given: fair shares for clients. With one client the order is that of `fcfs`.
pub const POLICY_DEFAULT: &str = "vtc";

/// Flags of `serve` for settings of the core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServeFlags;

impl CoreFlags for ServeFlags {
    // The embedded worker decides these, and a server imitates no other engine.
    const OMITTED: &'static [&'static str] =
        &["align_chunks", "prefill_first", "reserve_prompts", "swap_block_ns", "recompute_token_ns"];
    const COMPARED: &'static [&'static str] = &[];
    const IMITATES: bool = false;

    fn default_text(setting: &Setting) -> String {
        match setting.name {
            "device_blocks" => "1 GiB of KV, but room for 8192 tokens and at most 16384 blocks".into(),
            "block_size" => format!("{}, or {} with --h2o on", setting.default_text(), h2o_settings::BLOCK_SIZE),
            "policy" => POLICY_DEFAULT.into(),
            "target_step_ns" => StepTarget::SERVED.to_string(),
            "pipeline_stages" => "1, or those of the first attached worker".into(),
            "max_queued_tokens" => format!("{}, in effect no limit", setting.default_text()),
            _ => setting.default_text(),
        }
    }
}

/// Settings of a server; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Address to listen on; port 0 takes a free port [default: 127.0.0.1:50051].
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,

    /// Model: a Hugging Face folder (config.json, tokenizer.json, *.safetensors) or a GGUF file; 'random' is a model of
    /// random weights, whose text is noise [default: small-world, which is built in].
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,

    /// Type and memory of the KV, and the kernel.
    #[command(flatten)]
    pub kv: KvSettings,

    /// Eviction within sequences.
    #[command(flatten)]
    pub h2o: H2oSettings,

    /// Settings of the core.
    #[command(flatten)]
    pub core: CoreSettings<ServeFlags>,

    /// Log, requests and recording.
    #[command(flatten)]
    pub logs: LogSettings,

    /// Threads that compute the model, divided among the workers, at least one each [default: one per core of the machine].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Kind of the workers: `embedded` computes the model on the CPU; `null` or `null:STEP`, as in `null:10ms`, computes nothing and
    /// answers each step at once or after STEP, to measure the server itself [default: embedded].
    #[arg(long, value_name = "KIND")]
    pub worker: Option<String>,

    /// Placement of the weights: resident, or stream:memory_mib=N to keep N MiB of weights in memory and read the rest in every step from packed
    /// weights in dir=PATH, up to ahead=N groups ahead, reads=N at once, or prefill_ahead=N and prefill_reads=N in steps with prompts; compress=auto, on
    /// or off. With --simulate: resident, stream or stream_first, as for `replay` [default: resident].
    #[arg(long, value_name = "SPEC")]
    pub weights: Option<String>,

    /// A device that is simulated.
    #[command(flatten)]
    pub simulate: SimulateSettings,

    /// Embedded workers behind the port, up to 64, each with separate KV blocks; the weights are shared [default: 1, or 0 with
    /// --attached-workers].
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,

    /// Attached workers.
    #[command(flatten)]
    pub attach: AttachSettings,

    /// Router by name, with parameters.
    #[arg(long, value_name = "SPEC", help = router_help())]
    pub router: Option<String>,

    /// Role of each worker, embedded ones first, separated by commas: both, prefill, or decode [default: both for each].
    #[arg(long, value_name = "ROLES")]
    pub roles: Option<String>,

    /// Let tenants share cached blocks, unless a request asks otherwise: true or false. If false, each tenant has a cache of its own
    /// [default: false].
    #[arg(long, value_name = "BOOL")]
    pub share_cache: Option<bool>,

    /// Seconds after which a step may be taken for lost, and the worker replaced; longer for steps that are expected to take longer.
    /// 0 waits for ever [default: 60].
    #[arg(long, value_name = "SECONDS")]
    pub step_timeout: Option<f64>,

    /// Tiers behind the device.
    #[command(flatten)]
    pub tiers: TierSettings,

    /// Settings of the network edge.
    #[command(flatten)]
    pub network: NetworkSettings,

    /// Plain HTTP.
    #[command(flatten)]
    pub http: HttpSettings,

    /// Limits of sessions.
    #[command(flatten)]
    pub sessions: SessionSettings,
}

#[cfg(test)]
mod tests {
    use trunkline_core::Config;

    use super::*;

    #[test]
    fn without_a_setting_tenants_share_places_of_the_batch_and_the_cache() {
        let config = Config { policy: POLICY_DEFAULT.into(), device_blocks: 1000, ..Config::default() };
        let policy = config.make_policy().unwrap();
        assert!(policy.by_tenant() && policy.takes_seats());
        assert_eq!(config.tenant_floors().unwrap().0, 500);
    }
}
