//! A server that runs: its lines on standard output, and the summary at its end.

use std::io::{self, Write};

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tracing::info;
use trunkline_server::{Server, heed_signals};

use crate::model::weights_settings;
use crate::settings::network_settings::NetworkSettings;

/// Serves until a signal stops the server, with metrics on `scrapes` if there is a listener.
///
/// # Errors
/// If the server fails, or standard output cannot be written.
pub(super) async fn serve(mut server: Server, scrapes: Option<TcpListener>, tls: bool) -> anyhow::Result<()> {
    heed_signals(server.handle()).context("cannot listen for signals")?;
    let scheme = if tls { "https" } else { "http" };
    print(&format!("listening on {scheme}://{}", server.local_addr()))?;
    if let Some(scrapes) = scrapes {
        let addr = scrapes.local_addr()?;
        NetworkSettings::warn_of_metrics(addr);
        print(&format!("metrics on http://{addr}/metrics"))?;
        server = server.with_metrics(scrapes);
    }
    let outcome = server.run().await?;
    let stats = outcome.stats;
    info!(
        accepted = stats.requests.accepted,
        refused = stats.requests.refused,
        prompt_tokens = stats.tokens.prompt_tokens,
        cached_tokens = stats.tokens.cached_tokens,
        copied_tokens = stats.tokens.copied_tokens,
        generated_tokens = stats.tokens.generated_tokens,
        preemptions = stats.preemptions,
        restarted = stats.requests.restarted,
        drafted_tokens = outcome.counts.drafted,
        accepted_drafts = outcome.counts.accepted,
        "stopped"
    );
    weights_settings::report_reads(&outcome.counts.weights);
    print(&format!("digest {:016x}", outcome.digest))?;
    match outcome.failure {
        Some(failure) => bail!(failure),
        None => Ok(()),
    }
}

fn print(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
