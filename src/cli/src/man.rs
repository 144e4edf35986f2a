//! `trunkline man`: pages for man, made from the help texts.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};

const EXAMPLES: &str = "\
Examples:
  Read the page of the program:
    trunkline man | man -l -

  Install a page for each command, for `man trunkline-serve`:
    trunkline man /usr/local/share/man/man1";

/// Write pages for man: the program's to standard output, or those of all commands to a folder.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Folder for a page of each command, which has to be there [default: none, the page of the program goes to standard output].
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// If the folder cannot be written, or standard output is closed.
pub fn run(args: &ManArgs) -> anyhow::Result<()> {
    let command = crate::Cli::command();
    if let Some(folder) = &args.folder {
        return clap_mangen::generate_to(command, folder)
            .with_context(|| format!("cannot write pages for man to {}", folder.display()));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).context("cannot make the page")?;
    io::stdout().write_all(&page).context("cannot write to standard output")
}
