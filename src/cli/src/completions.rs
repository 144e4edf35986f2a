//! `trunkline completions`: completions of commands and flags for a shell.

use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  Complete commands and flags in this bash:
    source <(trunkline completions bash)

  In every zsh, from a folder of fpath:
    trunkline completions zsh > ~/.zfunc/_trunkline

  In every fish:
    trunkline completions fish > ~/.config/fish/completions/trunkline.fish";

/// Write completions of commands and flags for a shell to standard output.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Runs the command.
///
/// # Errors
/// If standard output is closed.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "trunkline", &mut script);
    io::stdout().write_all(&script).context("cannot write to standard output")
}
