//! `trunkline h2o`: tools for eviction within sequences.

pub mod full_heads;
pub mod head_file;
pub mod head_loss;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

use self::head_file::HeadFile;
use self::head_loss::{HeadLosses, head_losses};
use crate::bench::h2o::rig::BLOCK;
use crate::bench::h2o::texts;
use crate::output::{print, table};
use crate::revision::revision;

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
    /// Find the KV heads of a model that have to keep every token, and write them to a file beside the model, where `serve --h2o` finds it.
    ///
    /// The model reads texts, and reads on with one KV head at a time that has dropped what `--h2o on` would drop at a ratio of 6. Heads whose loss
    /// changes most what the model says next keep every token later; the others may drop tokens.
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
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(i64::from(head_loss::TOKENS_MIN)..=65_536))]
    tokens: u32,

    /// Texts of each kind: prose, code, a diary, talk and stories.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    texts: u32,

    /// KV heads that keep every token, of all layers together [default: 27.5 % of all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    heads: Option<u32>,

    /// Threads that compute, at most 1024; 0 is one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// File to write [default: h2o.toml in the folder of the model, or FILE.h2o.toml beside a GGUF file].
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
    let tokenizer = Tokenizer::load(path)?;
    let model = Model::load(path).with_context(|| format!("cannot load the model {}", path.display()))?;
    let file = calibrate(args, &tokenizer, model)?;
    let output = args.output.clone().unwrap_or_else(|| HeadFile::default_path(path));
    file.write(&output)?;
    print(&render(&file)?)?;
    print(&format!("--h2o-layers {}", file.keep))?;
    print(&format!("wrote {}", output.display()))
}

fn calibrate(args: &CalibrateArgs, tokenizer: &Tokenizer, model: Model) -> anyhow::Result<HeadFile> {
    let (name, info) = (model.name().to_owned(), model.info());
    let n = args.tokens as usize / BLOCK * BLOCK;
    let losses = head_losses(model, tokenizer, n, args.texts, args.threads)?;
    let full = match args.heads {
        Some(heads) => losses.first_heads(&info, heads as usize),
        None => losses.full_heads(&info),
    };
    Ok(HeadFile {
        model: name,
        revision: revision(&args.model)
            .with_context(|| format!("cannot read the files of {}", args.model.display()))?,
        keep: full.to_string(),
        tokens: n as u32,
        texts: args.texts * texts::KINDS.len() as u32,
        kv_heads: info.n_kv_heads,
        rest: losses.rest,
        repeated: losses.repeated,
    })
}

/// Returns a table of the heads that lose most: those that keep every token, and half as many more.
fn render(file: &HeadFile) -> anyhow::Result<String> {
    let full = file.full_heads()?;
    let losses = HeadLosses { rest: file.rest.clone(), repeated: file.repeated.clone() };
    let mut table = table();
    table.set_header(["KV head", "loss, rest of a text", "loss, repetition", "keeps"]);
    for head in losses.order().into_iter().take(full.len() + full.len().div_ceil(2)) {
        let keeps = if full.contains(head) { "every token" } else { "what attention reads" };
        let name = format!("{}.{}", head / file.kv_heads, head % file.kv_heads);
        let percent = |shares: &[f64]| format!("{:.1} %", 100.0 * shares[head as usize]);
        table.add_row([name, percent(&losses.rest), percent(&losses.repeated), keeps.into()]);
    }
    Ok(table.to_string())
}
