//! `trunkline h2o`: tools for eviction within sequences.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use tracing::warn;
use trunkline_port::ModelInfo;
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

use crate::h2o::full_heads::FullHeads;
use crate::h2o::head_file::HeadFile;
use crate::h2o::head_loss::{self, HeadLosses, Reading, default_tokens, head_losses};
use crate::h2o::rig::BLOCK;
use crate::h2o::sources::{KINDS, Source};
use crate::h2o::total;
use crate::model::model_source::{ModelSource, log_facts};
use crate::model::revision::revision;
use crate::output::{print, table};

const EXAMPLES: &str = "\
Examples:
  Find the KV heads of a model that have to keep every token, and serve it with eviction in the others:
    trunkline h2o calibrate ./SmolLM2-135M-Instruct.Q4_1.gguf
    trunkline serve --model ./SmolLM2-135M-Instruct.Q4_1.gguf --h2o on";

/// Tools for eviction within sequences (H2O).
#[derive(Args)]
pub struct H2oArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find what a model loses if one of its KV heads drops tokens, and write it to a file next to the model, where `serve --h2o` finds it.
    ///
    /// The model reads texts, and reads on with one KV head at a time that has dropped what `--h2o on` would drop at a ratio of 6. Heads whose loss
    /// changes most what the model says next keep every token later; the others drop tokens, the fewer the more they lose.
    #[command(after_help = EXAMPLES)]
    Calibrate(CalibrateArgs),
}

/// Options of `h2o calibrate`.
#[derive(Args, Clone, Debug)]
struct CalibrateArgs {
    /// Hugging Face folder or GGUF file.
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Tokens of each text, whole blocks of 16; the context of the model must hold 96 more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(i64::from(head_loss::TOKENS_MIN)..=65_536))]
    tokens: Option<u32>,

    /// Texts of each kind: prose, code, a diary, talk and stories.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    texts: u32,

    /// Text file of your own, read as the project's kinds are; may be given several times.
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,

    /// Threads that compute, at most 1024; 0 is one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// File to write [default: h2o.toml in the folder of the model, or FILE.h2o.toml next to a GGUF file].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs a tool.
///
/// # Errors
/// If the model cannot be read or run, or the file cannot be written.
pub fn run(args: &H2oArgs) -> anyhow::Result<()> {
    let Command::Calibrate(args) = &args.command;
    let path = &args.model;
    let source = ModelSource::Path(path);
    let (tokenizer, model) = (source.tokenizer()?, source.model()?);
    log_facts(model.name(), model.facts());
    let info = model.info();
    let output = args.output.clone().unwrap_or_else(|| HeadFile::default_path(path));
    HeadFile::check_writable(&output)?;
    let file = calibrate(args, &tokenizer, model)?;
    if let Err(error) = file.write(&output) {
        print(&file.text()?)?;
        return Err(error.context("the losses are lost unless copied from above"));
    }
    let losses = file.losses()?;
    let full = losses.full_heads(&info, total::DEFAULT)?;
    print(&render(&losses, &full, &info))?;
    print(&format!("--h2o-layers {full}"))?;
    print(&format!("wrote {}", output.display()))
}

fn calibrate(args: &CalibrateArgs, tokenizer: &Tokenizer, model: Model) -> anyhow::Result<HeadFile> {
    let (name, info) = (model.name().to_owned(), model.info());
    let n = args.tokens.map_or_else(|| default_tokens(info.max_context), |tokens| tokens as usize / BLOCK * BLOCK);
    let revision =
        revision(&args.model).with_context(|| format!("cannot read the files of {}", args.model.display()))?;
    let (keep, note) = HeadFile::kept(&args.model, &revision, (info.n_layers, info.n_kv_heads));
    if let Some(note) = note {
        warn!("{note}");
    }
    let sources = &Source::all(&KINDS.map(str::to_owned), &args.text)?;
    let reading = Reading { tokenizer, sources, texts: args.texts, tokens: n, threads: args.threads };
    let losses = head_losses(model, &reading)?;
    Ok(HeadFile {
        model: name,
        revision,
        keep,
        tokens: n as u32,
        texts: args.texts * sources.len() as u32,
        kv_heads: info.n_kv_heads,
        rest: losses.rest,
        repeated: losses.repeated,
    })
}

/// Returns a table of the heads that lose most: those that keep every token, and as many more.
fn render(losses: &HeadLosses, full: &FullHeads, info: &ModelInfo) -> String {
    let joint = |head: &u32| losses.rest[*head as usize] + losses.repeated[*head as usize];
    let mut heads: Vec<u32> = (0..info.n_layers * info.n_kv_heads).collect();
    heads.sort_by(|a, b| full.contains(*b).cmp(&full.contains(*a)).then(joint(b).total_cmp(&joint(a))));
    let mut table = table();
    let keeps = format!("keeps at --h2o-total {}", total::DEFAULT);
    table.set_header(["KV head", "loss, rest of a text", "loss, repetition", &keeps]);
    for head in heads.into_iter().take(2 * full.len()) {
        let keeps = if full.contains(head) { "every token" } else { "what attention reads" };
        let name = format!("{}.{}", head / info.n_kv_heads, head % info.n_kv_heads);
        let percent = |shares: &[f64]| format!("{:.1} %", 100.0 * shares[head as usize]);
        table.add_row([name, percent(&losses.rest), percent(&losses.repeated), keeps.into()]);
    }
    table.to_string()
}
