//! Settings of `serve`: flags, then keys of a TOML file with the same names, then defaults.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use trunkline_core::config::{Setting, StepTarget};
use trunkline_quote::{cut, of_parser};

use crate::attach_settings::{ATTACH_KEYS, AttachSettings};
use crate::core_settings::{CoreFlags, CoreSettings, FileValue};
use crate::h2o_settings::{self, H2O_KEYS, H2oSettings};
use crate::log_settings::{LOG_KEYS, LogSettings};
use crate::network_settings::{NETWORK_KEYS, NetworkSettings};
use crate::routers::router_help;
use crate::session_settings::{SESSION_KEYS, SessionSettings};
use crate::simulate_settings::{SIMULATE_KEYS, SimulateSettings};
use crate::tier_settings::{TIER_KEYS, TierSettings};

/// Keys of the server itself; the others are settings of the core.
const SERVER_KEYS: [&str; 11] = [
    "listen",
    "model",
    "kv-dtype",
    "threads",
    "worker",
    "weights",
    "workers",
    "router",
    "roles",
    "share-cache",
    "step-timeout",
];

/// Policy of a server unless another is given: fair shares for clients. With one client the order is that of `fcfs`.
pub const POLICY_DEFAULT: &str = "vtc";

/// Flags of `serve` for settings of the core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServeFlags;

impl CoreFlags for ServeFlags {
    // The embedded worker decides these, and a server imitates no other engine.
    const OMITTED: &'static [&'static str] = &["align_chunks", "prefill_first", "swap_block_ns", "recompute_token_ns"];
    const COMPARED: &'static [&'static str] = &[];

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

/// Settings given on the command line or in a file; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Address to listen on; port 0 takes a free port [default: 127.0.0.1:50051].
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,

    /// Model: a Hugging Face folder (config.json, tokenizer.json, *.safetensors) or a GGUF file; 'random' is a model of
    /// random weights, whose text is noise [default: small-world, which is built in].
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,

    /// Element type of the KV cache: f32, f16, bf16, q8_0 or q4_0. Types of fewer bits hold more tokens in the same memory, and round keys and
    /// values: f16 to 11 significant bits, bf16 to 8, q8_0 and q4_0 to 8 and 4 bits with a scale for each 32 numbers [default: f32].
    #[arg(long, value_name = "TYPE")]
    pub kv_dtype: Option<String>,

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
    /// weights in dir=PATH, up to ahead=N groups ahead, or prefill_ahead=N in steps with prompts. With --simulate: resident, stream or
    /// stream_first, as for `replay` [default: resident].
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

    /// Limits of sessions.
    #[command(flatten)]
    pub sessions: SessionSettings,
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, a key is unknown, or a value is of another type; the error names the line.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the config file {name}"))?;
        match toml::from_str(&text) {
            Ok(settings) => Ok(settings),
            Err(err) => {
                let before = err.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                let mut message = of_parser(&err.message().replace('\n', " "));
                if message == "duplicate key" {
                    let key = err.span().and_then(|span| text.get(span)).unwrap_or_default();
                    message = format!("{} is given twice", cut(key));
                }
                bail!("config file {name}, line {line}: {message}")
            }
        }
    }

    /// Returns the settings, with values of `other` in place of missing ones.
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            model: self.model.or(other.model),
            kv_dtype: self.kv_dtype.or(other.kv_dtype),
            h2o: self.h2o.or(other.h2o),
            core: self.core.or(other.core),
            logs: self.logs.or(other.logs),
            threads: self.threads.or(other.threads),
            worker: self.worker.or(other.worker),
            weights: self.weights.or(other.weights),
            simulate: self.simulate.or(other.simulate),
            workers: self.workers.or(other.workers),
            attach: self.attach.or(other.attach),
            router: self.router.or(other.router),
            roles: self.roles.or(other.roles),
            share_cache: self.share_cache.or(other.share_cache),
            step_timeout: self.step_timeout.or(other.step_timeout),
            tiers: self.tiers.or(other.tiers),
            network: self.network.or(other.network),
            sessions: self.sessions.or(other.sessions),
        }
    }
}

/// Key of the config file: of the server, of a simulated device, of its attached workers, of its tiers, of its network edge, of sessions, of eviction
/// within sequences, of its logs, or of a setting of the core.
enum Key {
    Server(&'static str),
    Simulate(&'static str),
    Tiers(&'static str),
    Attach(&'static str),
    Network(&'static str),
    Sessions(&'static str),
    H2o(&'static str),
    Logs(&'static str),
    Core(&'static Setting),
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(key: D) -> Result<Self, D::Error> {
        let key = String::deserialize(key)?;
        let core = || CoreSettings::<ServeFlags>::flags().map(|(setting, _)| setting);
        let server = SERVER_KEYS.into_iter().find(|known| *known == key).map(Key::Server);
        let simulate = || SIMULATE_KEYS.into_iter().find(|known| *known == key).map(Key::Simulate);
        let attach = || ATTACH_KEYS.into_iter().find(|known| *known == key).map(Key::Attach);
        let tiers = || TIER_KEYS.into_iter().find(|known| *known == key).map(Key::Tiers);
        let network = || NETWORK_KEYS.into_iter().find(|known| *known == key).map(Key::Network);
        let sessions = || SESSION_KEYS.into_iter().find(|known| *known == key).map(Key::Sessions);
        let h2o = || H2O_KEYS.into_iter().find(|known| *known == key).map(Key::H2o);
        let logs = || LOG_KEYS.into_iter().find(|known| *known == key).map(Key::Logs);
        let known =
            server.or_else(simulate).or_else(attach).or_else(tiers).or_else(network).or_else(sessions).or_else(h2o);
        known.or_else(logs).or_else(|| core().find(|setting| setting.flag == key).map(Key::Core)).ok_or_else(|| {
            let fixed = SERVER_KEYS.into_iter().chain(SIMULATE_KEYS).chain(ATTACH_KEYS).chain(TIER_KEYS);
            let fixed = fixed.chain(NETWORK_KEYS).chain(SESSION_KEYS).chain(H2O_KEYS).chain(LOG_KEYS);
            let known = fixed.chain(core().map(|setting| setting.flag));
            let known: Vec<String> = known.map(|key| format!("`{key}`")).collect();
            D::Error::custom(format!("unknown field `{key}`, expected one of {}", known.join(", ")))
        })
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(file: D) -> Result<Self, D::Error> {
        struct File;

        impl<'de> Visitor<'de> for File {
            type Value = Settings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("settings of serve")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut file: M) -> Result<Settings, M::Error> {
                let mut settings = Settings::default();
                while let Some(key) = file.next_key()? {
                    match key {
                        Key::Core(setting) => {
                            settings.core.insert(setting, file.next_value_seed(FileValue(setting.kind))?);
                        }
                        Key::Simulate(key) => settings.simulate.read(key, &mut file)?,
                        Key::Attach(key) => settings.attach.read(key, &mut file)?,
                        Key::Tiers(key) => settings.tiers.read(key, &mut file)?,
                        Key::Network(key) => settings.network.read(key, &mut file)?,
                        Key::Sessions(key) => settings.sessions.read(key, &mut file)?,
                        Key::H2o(key) => settings.h2o.read(key, &mut file)?,
                        Key::Logs(key) => settings.logs.read(key, &mut file)?,
                        Key::Server("listen") => settings.listen = Some(file.next_value()?),
                        Key::Server("model") => settings.model = Some(file.next_value()?),
                        Key::Server("kv-dtype") => settings.kv_dtype = Some(file.next_value()?),
                        Key::Server("worker") => settings.worker = Some(file.next_value()?),
                        Key::Server("weights") => settings.weights = Some(file.next_value()?),
                        Key::Server("workers") => settings.workers = Some(file.next_value()?),
                        Key::Server("router") => settings.router = Some(file.next_value()?),
                        Key::Server("share-cache") => settings.share_cache = Some(file.next_value()?),
                        Key::Server("step-timeout") => settings.step_timeout = Some(file.next_value()?),
                        Key::Server("roles") => settings.roles = Some(file.next_value()?),
                        Key::Server(_) => settings.threads = Some(file.next_value()?),
                    }
                }
                Ok(settings)
            }
        }

        file.deserialize_map(File)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use trunkline_core::Config;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn without_a_setting_tenants_share_places_of_the_batch_and_the_cache() {
        let config = Config { policy: POLICY_DEFAULT.into(), device_blocks: 1000, ..Config::default() };
        let policy = config.make_policy().unwrap();
        assert!(policy.by_tenant() && policy.takes_seats());
        assert_eq!(config.tenant_floors().unwrap(), 500);
    }

    fn load(text: &str) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunkline.toml");
        fs::write(&path, text).unwrap();
        Settings::load(&path).map_err(|err| {
            let message = format!("{err:#}");
            assert!(!message.contains('\n'), "one line: {message}");
            message
        })
    }

    #[test]
    fn every_setting_has_the_same_name_as_flag_and_as_key() {
        let flags = [
            "--listen=a:1",
            "--model=m",
            "--kv-dtype=f16",
            "--block-size=2",
            "--device-blocks=3",
            "--max-batch-tokens=4",
            "--max-batch-size=5",
            "--max-queue=6",
            "--max-queued-tokens=8589934592",
            "--max-steps-in-flight=2",
            "--pipeline-stages=2",
            "--max-step-logits=9",
            "--reuse-anywhere=16",
            "--reuse-recompute=8",
            "--reuse-on-request=true",
            "--target-step-ms=2.5",
            "--max-drafts=10",
            "--host-blocks=11",
            "--preemption=swap",
            "--launch-watermark=0.5",
            "--reserve-prompts=false",
            "--swap-in-watermark=12",
            "--policy=p",
            "--eviction=e",
            "--record=r",
            "--requests=q",
            "--log-format=json",
            "--threads=7",
            "--worker=null:10ms",
            "--simulate=h100-80g",
            "--parallel=tp2",
            "--cost=roofline",
            "--engine-overhead=850:12",
            "--weights=resident",
            "--simulate-text=echo",
            "--workers=2",
            "--attached-workers=3",
            "--worker-silence=4.5",
            "--worker-resume=5.5",
            "--worker-wait=6.5",
            "--worker-shared-memory=false",
            "--router=least_loaded",
            "--roles=both,both",
            "--copy-timeout-ms=5000",
            "--share-cache=true",
            "--step-timeout=1.5",
            "--host-mem=1GiB",
            "--disk=d",
            "--disk-size=2GiB",
            "--shared-mem=3GiB",
            "--remote=file:///r",
            "--compression=off",
            "--compression-layers=full",
            "--tier-write=back",
            "--tier-eviction=lfu",
            "--metrics=b:2",
            "--token-file=t",
            "--admin=true",
            "--tls-cert=c",
            "--tls-key=k",
            "--tls-client-ca=a",
            "--max-connections=12",
            "--max-connections-per-peer=13",
            "--max-calls-per-connection=14",
            "--max-queue-per-client=15",
            "--max-requests-per-client=16",
            "--first-request-timeout=1.5",
            "--idle-timeout=2.5",
            "--unread-timeout=3.5",
            "--drain-timeout=4.5",
            "--max-unread-bytes=1000000",
            "--max-sessions=17",
            "--max-sessions-per-client=18",
            "--session-bytes=2000000",
            "--session-ttl=8.5",
            "--h2o=on:ratio=3",
            "--h2o-layers=1,2",
            "--h2o-total=3",
            "--h2o-choice=shared",
            "--h2o-scorer=tova",
            "--h2o-ratio=4",
            "--h2o-sink=1",
            "--h2o-recent=2",
            "--h2o-block=48",
            "--h2o-trigger=4",
            "--h2o-interval=5",
            "--h2o-score-interval=3",
            "--h2o-alpha=0.5",
        ];
        let file: String = flags
            .iter()
            .map(|flag| {
                let (key, value) = flag[2..].split_once('=').unwrap();
                let is_bare = value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok();
                let value = if is_bare { value.into() } else { format!("'{value}'") };
                format!("{key} = {value}\n")
            })
            .collect();
        let from_flags = Cli::try_parse_from(["serve"].iter().chain(&flags)).unwrap().settings;
        assert_eq!(load(&file), Ok(from_flags.clone()));
        for (setting, _) in CoreSettings::<ServeFlags>::flags() {
            assert!(from_flags.core.has(setting.name), "a flag is missing above: {}", setting.flag);
        }
        let of_server = NETWORK_KEYS.into_iter().chain(SESSION_KEYS).chain(ATTACH_KEYS).chain(TIER_KEYS);
        for key in of_server.chain(SIMULATE_KEYS).chain(H2O_KEYS).chain(LOG_KEYS) {
            assert!(flags.iter().any(|flag| flag.starts_with(&format!("--{key}="))), "a flag is missing above: {key}");
        }
        assert_eq!(from_flags.clone().or(Settings::default()), from_flags);
        assert_eq!(Settings::default().or(from_flags.clone()), from_flags);
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = load("block-size = 32\npolicy = 'priority'\n").unwrap();
        let flags = Cli::try_parse_from(["serve", "--block-size", "8"]).unwrap().settings;
        let merged = flags.or(file);
        assert_eq!((merged.core.text("block_size"), merged.core.text("policy")), (Some("8"), Some("priority")));
        assert_eq!(merged.listen, None);
    }

    #[test]
    fn an_error_in_a_file_names_its_line() {
        let message = load("listen = 'a:1'\nblocksize = 32\n").unwrap_err();
        assert!(message.contains("line 2: unknown field `blocksize`"), "{message}");
        let message = load("block-size = 'big'\n").unwrap_err();
        assert!(message.contains("line 1: ") && message.contains("string"), "{message}");
        let message = load("block-size = 8\nlisten = 'a:1'\nblock-size = 16\n").unwrap_err();
        assert!(message.ends_with("line 3: block-size is given twice"), "{message}");
        let message = load("\n\nblock-size = -1\n").unwrap_err();
        assert!(message.contains("line 3: "), "{message}");
        assert!(load("block-size").is_err());
        let message = format!("{:#}", Settings::load(Path::new("none.toml")).unwrap_err());
        assert!(message.starts_with("cannot read the config file none.toml: "), "{message}");
    }
}
