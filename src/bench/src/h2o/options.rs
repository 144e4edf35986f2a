//! Options of `trunkline-bench h2o`.

use std::path::PathBuf;

use clap::Args;
use trunkline_core::h2o::Settings;

use trunkline::h2o::choice::Choice;
use trunkline::h2o::sources;
use trunkline::settings::h2o_settings;

/// Numbers of the planner, and of the KV blocks that plans are made of.
#[derive(Clone, Debug, Args)]
pub struct PlannerOptions {
    /// First tokens that are never dropped.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub sink: u32,

    /// Last tokens that are never dropped.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub recent: u32,

    /// Tokens kept or dropped together, a multiple of those of a KV block [default: a KV block].
    #[arg(long, value_name = "N")]
    pub block: Option<u32>,

    /// Tokens of a KV block: 4, 8, 16, 32 or 64; of a server with --h2o on 8 unless given.
    #[arg(long, value_name = "N", default_value_t = h2o_settings::BLOCK_SIZE, value_parser = block_size)]
    pub block_size: u32,

    /// Tokens from one whose attention is scored to the next, for the scorer h2o; 16 at most.
    #[arg(long, value_name = "N", default_value_t = Settings::default().score_interval, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub score_interval: u32,
}

impl PlannerOptions {
    /// Returns the tokens kept or dropped together.
    pub fn block_tokens(&self) -> u32 {
        self.block.unwrap_or(self.block_size)
    }
}

/// Reads the tokens of a KV block.
fn block_size(text: &str) -> Result<u32, String> {
    let sizes = [4, 8, 16, 32, 64];
    let size = text.parse().ok().filter(|size| sizes.contains(size));
    size.ok_or_else(|| "it must be 4, 8, 16, 32 or 64".to_owned())
}

/// Options of `trunkline-bench h2o`.
#[derive(Clone, Debug, Args)]
pub struct H2oOptions {
    /// Model: a Hugging Face folder or a GGUF file, or 'random' for random weights [default: small-world, which is built in].
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,

    /// Threads that compute, at most 1024; 0 is one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,

    /// Tokens of each prompt, whole KV blocks [default: 2048, or as many as fit the model's context].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(256..=131_072))]
    pub prompt: Option<u32>,

    /// Tokens of each text after its prompt, whole KV blocks.
    #[arg(long, value_name = "N", default_value_t = 144, value_parser = clap::value_parser!(u32).range(32..=65_536))]
    pub after: u32,

    /// Kinds of text: prose and code of the project, and diary, talk and stories from generators [default: all, or none with --text].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = sources::KINDS)]
    pub kinds: Vec<String>,

    /// Text file of your own, a kind by itself; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub text: Vec<PathBuf>,

    /// Texts of each kind.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub texts: u32,

    /// Facts in each text.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub facts: u32,

    /// Scorers to compare, separated by semicolons, with parameters, as in 'h2o;snapkv:rows=64' [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ';')]
    pub scorers: Vec<String>,

    /// Total ratio for which heads that keep everything are chosen, and the ratio of the others: tokens of all heads by tokens kept [default: of the
    /// case in the gates file, else 2.5].
    #[arg(long, value_name = "RATIO")]
    pub total: Option<String>,

    /// Ratios of the evicting heads: one of so many tokens is kept [default: as the total asks].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub ratios: Vec<f32>,

    /// Element type of the KV cache: f32, f16, bf16, q8_0 or q4_0.
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    pub kv_dtype: String,

    /// Layers, or single KV heads as LAYER.HEAD, that keep everything, or 'none' [default: as the total asks, by the file of `h2o calibrate`, else by
    /// what it would find].
    #[arg(long, value_name = "LIST")]
    pub full_layers: Option<String>,

    /// Choice of the blocks to drop: by the scores of each KV head, or by one score for all heads.
    #[arg(long, value_enum, default_value_t = Choice::Own)]
    pub choice: Choice,

    #[command(flatten)]
    pub planner: PlannerOptions,

    /// Requests at once to a server with memory for four, with and without eviction; 0 for no server.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub requests: u32,

    /// Gates [default: those of the project].
    #[arg(long, value_name = "FILE")]
    pub gates: Option<PathBuf>,

    /// Write JSON instead of a table.
    #[arg(long)]
    pub json: bool,

    /// Make fewer and smaller runs: takes seconds, for a test; the figures are not meaningful.
    #[arg(long)]
    pub quick: bool,
}
