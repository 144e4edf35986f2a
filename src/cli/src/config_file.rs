//! The settings of `serve`: flags, then a TOML file with the same names, then defaults.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;

use crate::routers::router_help;

/// A setting that is not given is `None`, on the command line as in the file.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Where to listen [default: 127.0.0.1:50051]. Port 0 takes a free port.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,

    /// Folder of a Hugging Face model: config.json, tokenizer.json, *.safetensors [default: a small model with made-up
    /// weights, whose text is noise].
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,

    /// Tokens in a KV block [default: 16].
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<u32>,

    /// KV blocks [default: as many as 1 GiB holds, between 2048 and 16384].
    #[arg(long, value_name = "N")]
    pub device_blocks: Option<u32>,

    /// Tokens run in one step at most; cached tokens do not count [default: 2048].
    #[arg(long, value_name = "N")]
    pub max_batch_tokens: Option<u32>,

    /// Requests run in one step at most [default: 256].
    #[arg(long, value_name = "N")]
    pub max_batch_size: Option<u32>,

    /// Requests waiting at most; more are refused [default: 1024].
    #[arg(long, value_name = "N")]
    pub max_queue: Option<u32>,

    /// Prompt tokens of waiting requests at most; what would exceed it is refused [default: 1099511627776, in effect none].
    #[arg(long, value_name = "N")]
    pub max_queued_tokens: Option<u64>,

    /// Positions sampled from in one step at most: one for each request that samples, and one for each draft
    /// [default: 65536].
    #[arg(long, value_name = "N")]
    pub max_step_logits: Option<u32>,

    /// While requests generate, cut prompts so that a step takes about this long, milliseconds; it bounds the time between
    /// two tokens; 0 is off [default: 0].
    #[arg(long, value_name = "MS")]
    pub target_step_ms: Option<f64>,

    /// Tokens that a request may guess from its own text and check in one step at most, while few requests run; the output
    /// is the same; 0 is off [default: 0].
    #[arg(long, value_name = "N")]
    pub max_drafts: Option<u32>,

    /// KV blocks in host memory, each as large as the others, for requests that are swapped out; 0 is none [default: 0].
    #[arg(long, value_name = "N")]
    pub host_blocks: Option<u32>,

    /// What becomes of a running request whose blocks are needed by others: swap, recompute, or cost, whichever of the two
    /// is estimated to cost less [default: cost].
    #[arg(long, value_name = "NAME")]
    pub preemption: Option<String>,

    /// Blocks that must stay usable for each running request when another is admitted [default: 1].
    #[arg(long, value_name = "BLOCKS")]
    pub launch_watermark: Option<f64>,

    /// Blocks that must stay usable for each running request when one is swapped in [default: 1].
    #[arg(long, value_name = "BLOCKS")]
    pub swap_in_watermark: Option<f64>,

    /// Order of waiting requests and choice of victims; an unknown name lists those there are [default: fcfs].
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,

    /// Which idle cached block goes first; an unknown name lists those there are [default: lru].
    #[arg(long, value_name = "NAME")]
    pub eviction: Option<String>,

    /// Record every event of the core, prompts included, for `trunkline replay --recorded`; compressed if the name ends in
    /// .gz [default: none].
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Threads that compute the model, divided among the workers, at least one each [default: one per core of the machine].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Workers behind the port, 1 to 64, each with its own KV blocks; the weights are shared [default: 1].
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,

    /// Router by name, with parameters.
    #[arg(long, value_name = "SPEC", help = router_help())]
    pub router: Option<String>,

    /// Role of each worker, separated by commas: both, prefill, or decode [default: both for each].
    #[arg(long, value_name = "ROLES")]
    pub roles: Option<String>,
}

impl Settings {
    /// Reads a file. Names and values must be known; the error says in which line they are not.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the config file {name}"))?;
        match toml::from_str(&text) {
            Ok(settings) => Ok(settings),
            Err(err) => {
                let before = err.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                let message = err.message().replace('\n', " ");
                bail!("config file {name}, line {line}: {message}")
            }
        }
    }

    /// These settings, and `other` where these say nothing.
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            model: self.model.or(other.model),
            block_size: self.block_size.or(other.block_size),
            device_blocks: self.device_blocks.or(other.device_blocks),
            max_batch_tokens: self.max_batch_tokens.or(other.max_batch_tokens),
            max_batch_size: self.max_batch_size.or(other.max_batch_size),
            max_queue: self.max_queue.or(other.max_queue),
            max_queued_tokens: self.max_queued_tokens.or(other.max_queued_tokens),
            max_step_logits: self.max_step_logits.or(other.max_step_logits),
            target_step_ms: self.target_step_ms.or(other.target_step_ms),
            max_drafts: self.max_drafts.or(other.max_drafts),
            host_blocks: self.host_blocks.or(other.host_blocks),
            preemption: self.preemption.or(other.preemption),
            launch_watermark: self.launch_watermark.or(other.launch_watermark),
            swap_in_watermark: self.swap_in_watermark.or(other.swap_in_watermark),
            policy: self.policy.or(other.policy),
            eviction: self.eviction.or(other.eviction),
            record: self.record.or(other.record),
            threads: self.threads.or(other.threads),
            workers: self.workers.or(other.workers),
            router: self.router.or(other.router),
            roles: self.roles.or(other.roles),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: Settings,
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
            "--block-size=2",
            "--device-blocks=3",
            "--max-batch-tokens=4",
            "--max-batch-size=5",
            "--max-queue=6",
            "--max-queued-tokens=8589934592",
            "--max-step-logits=9",
            "--target-step-ms=2.5",
            "--max-drafts=10",
            "--host-blocks=11",
            "--preemption=swap",
            "--launch-watermark=0.5",
            "--swap-in-watermark=12",
            "--policy=p",
            "--eviction=e",
            "--record=r",
            "--threads=7",
            "--workers=2",
            "--router=least_loaded",
            "--roles=both,both",
        ];
        let file: String = flags
            .iter()
            .map(|flag| {
                let (key, value) = flag[2..].split_once('=').unwrap();
                let value = if value.parse::<f64>().is_ok() { value.into() } else { format!("'{value}'") };
                format!("{key} = {value}\n")
            })
            .collect();
        let from_flags = Cli::try_parse_from(["serve"].iter().chain(&flags)).unwrap().settings;
        assert_eq!(load(&file), Ok(from_flags.clone()));
        assert_eq!(from_flags.clone().or(Settings::default()), from_flags);
        assert_eq!(Settings::default().or(from_flags.clone()), from_flags);
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = load("block-size = 32\npolicy = 'priority'\n").unwrap();
        let flags = Cli::try_parse_from(["serve", "--block-size", "8"]).unwrap().settings;
        let merged = flags.or(file);
        assert_eq!((merged.block_size, merged.policy.as_deref(), merged.listen), (Some(8), Some("priority"), None));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_line() {
        let message = load("listen = 'a:1'\nblocksize = 32\n").unwrap_err();
        assert!(message.contains("line 2: unknown field `blocksize`"), "{message}");
        let message = load("block-size = 'big'\n").unwrap_err();
        assert!(message.contains("line 1: ") && message.contains("string"), "{message}");
        let message = load("\n\nblock-size = -1\n").unwrap_err();
        assert!(message.contains("line 3: "), "{message}");
        assert!(load("block-size").is_err());
        let message = format!("{:#}", Settings::load(Path::new("none.toml")).unwrap_err());
        assert!(message.starts_with("cannot read the config file none.toml: "), "{message}");
    }
}
