//! `trunkline h2o`: tools for eviction within sequences.

pub mod layer_file;
pub mod retrieval;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

use self::layer_file::LayerFile;
use self::retrieval::far_reading;
use crate::bench::h2o::rig::BLOCK;
use crate::bench::h2o::texts;
use crate::output::{print, table};
use crate::revision::revision;

const EXAMPLES: &str = "\
Examples:
  Find the layers of a model that read far back, and serve it with eviction in the others:
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
    /// Find the layers of a model that read far back, and write them to a file beside the model, where `serve --h2o` finds it.
    ///
    /// The model reads texts that stand twice in its context. Layers whose attention goes from the second copy back to the first keep every
    /// token later; the others may drop tokens.
    #[command(after_help = EXAMPLES)]
    Calibrate(CalibrateArgs),
}

/// Options of `h2o calibrate`.
#[derive(Args, Clone, Debug)]
struct CalibrateArgs {
    /// Hugging Face folder or GGUF file.
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Tokens of each text, whole blocks of 16; the context of the model must hold twice as many and 64 more.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(128..=65_536))]
    tokens: u32,

    /// Texts of each kind: prose, code, a diary, talk and stories.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    texts: u32,

    /// Layers that keep every token [default: 27.5 % of all layers].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,

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
    let output = args.output.clone().unwrap_or_else(|| LayerFile::default_path(path));
    file.write(&output)?;
    print(&render(&file))?;
    print(&format!("wrote {}", output.display()))
}

fn calibrate(args: &CalibrateArgs, tokenizer: &Tokenizer, model: Model) -> anyhow::Result<LayerFile> {
    let (name, info) = (model.name().to_owned(), model.info());
    let n = args.tokens as usize / BLOCK * BLOCK;
    let needed = 2 * n + retrieval::BETWEEN_MAX;
    ensure!(
        needed <= info.max_context as usize,
        "{n} tokens twice need a context of {needed}, and the model has {}; give fewer --tokens",
        info.max_context
    );
    let shares = far_reading(model, tokenizer, n, args.texts, args.threads)?;
    let layers = match args.layers {
        Some(layers) => retrieval::first_layers(&shares, &info, layers as usize),
        None => retrieval::full_layers(&shares, &info),
    };
    Ok(LayerFile {
        model: name,
        revision: revision(&args.model)
            .with_context(|| format!("cannot read the files of {}", args.model.display()))?,
        layers,
        tokens: n as u32,
        texts: args.texts * texts::KINDS.len() as u32,
        shares,
    })
}

/// Returns a table of the layers, those that read back most first.
fn render(file: &LayerFile) -> String {
    let mut table = table();
    table.set_header(["layer", "share of far reading", "keeps"]);
    let mut order: Vec<usize> = (0..file.shares.len()).collect();
    order.sort_by(|a, b| file.shares[*b].total_cmp(&file.shares[*a]));
    for layer in order {
        let keeps = if file.layers.contains(&(layer as u32)) { "every token" } else { "what attention reads" };
        table.add_row([layer.to_string(), format!("{:.1} %", 100.0 * file.shares[layer]), keeps.into()]);
    }
    table.to_string()
}
