//! `trunkline worker check`: checks that a worker keeps the protocol.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use comfy_table::{Table, presets};
use tokio::net::TcpListener;
use trunkline_attach::check::{CheckRow, Verdict, run as run_checks};

const EXAMPLES: &str = "\
Examples:
  Check a worker: the command listens, the worker dials as it would dial a server:
    trunkline worker check 127.0.0.1:50052

  The embedded worker, in another terminal:
    trunkline worker --connect 127.0.0.1:50052

The status is 0 if the worker passes all checks of what it offers, else 1.";

/// Check a worker, which dials this command as it would dial a server.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    /// Address to listen on.
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:50052")]
    listen: String,

    /// Seconds to wait for each message of the worker, the first included.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

/// Waits for a worker, checks it and prints a table.
///
/// # Errors
/// If the address cannot be used, or a check fails.
pub(super) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the threads of the network")?;
    let rows = runtime.block_on(async {
        let listener = TcpListener::bind(&args.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
        let address = listener.local_addr()?;
        note(&format!("listening on http://{address}; start the worker, for example"));
        note(&format!("  trunkline worker --connect {address}"));
        let progress = |row: &CheckRow| note(&format!("{}: {}", row.name, word(&row.verdict)));
        anyhow::Ok(run_checks(listener, Duration::from_secs(args.timeout), progress).await)
    })?;
    writeln!(io::stdout(), "{}", table(&rows))?;
    let failed = rows.iter().filter(|row| matches!(row.verdict, Verdict::Fail(_))).count();
    match failed {
        0 => Ok(()),
        1 => bail!("1 of {} checks failed", rows.len()),
        _ => bail!("{failed} of {} checks failed", rows.len()),
    }
}

/// Reports progress; if standard error is closed, the line is lost.
fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail(_) => "FAIL",
        Verdict::NotOffered(_) => "not offered",
    }
}

fn table(rows: &[CheckRow]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for row in rows {
        let why = match &row.verdict {
            Verdict::Pass => String::new(),
            Verdict::Fail(line) => line.clone(),
            Verdict::NotOffered(ability) => format!("needs {ability}"),
        };
        table.add_row([row.name.to_owned(), word(&row.verdict).to_owned(), why]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_failed_and_why() {
        let rows = [
            CheckRow { name: "reset", verdict: Verdict::Fail("the worker did not answer".into()) },
            CheckRow { name: "swap out and in", verdict: Verdict::NotOffered("block_io") },
        ];
        let text = table(&rows).to_string();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        assert_eq!(lines, ["reset FAIL the worker did not answer", "swap out and in not offered needs block_io"]);
    }
}
