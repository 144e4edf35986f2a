//! Settings of attached workers of `serve`.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use trunkline_server::AttachOptions;

/// Longest time that a setting may have, seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// Settings of attached workers; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Attached workers")]
pub struct AttachSettings {
    /// Engines for workers that attach over gRPC (`trunkline worker --connect`, `trunkline-worker`), besides --workers. With no embedded
    /// worker the first one to attach decides about the model, and --model serves for its tokenizer alone [default: 0, or 1 with
    /// --workers 0].
    #[arg(long, value_name = "N")]
    pub attached_workers: Option<usize>,

    /// Seconds without a message after which the connection of an attached worker counts as broken [default: 10].
    #[arg(long, value_name = "SECONDS")]
    pub worker_silence: Option<f64>,

    /// Longest time, in seconds, for an attached worker with a broken connection to come back with its KV; then other workers continue its
    /// requests, or earlier if computing them again takes less [default: 10].
    #[arg(long, value_name = "SECONDS")]
    pub worker_resume: Option<f64>,

    /// Seconds for which requests wait for a worker if none is left; then they end with UNAVAILABLE, and new ones are refused until a
    /// worker attaches [default: 60].
    #[arg(long, value_name = "SECONDS")]
    pub worker_wait: Option<f64>,

    /// true or false: copy blocks through shared memory to and from attached workers on this machine with the same user; blocks of others
    /// travel in messages [default: true].
    #[arg(long, value_name = "BOOL")]
    pub worker_shared_memory: Option<bool>,
}

impl AttachSettings {
    /// Returns the options of a server with so many engines for attached workers.
    ///
    /// # Errors
    /// If a time is out of range.
    pub fn options(&self, engines: usize) -> anyhow::Result<AttachOptions> {
        let default = AttachOptions::default();
        Ok(AttachOptions {
            engines,
            silence: seconds("worker-silence", self.worker_silence, 0.1, default.silence)?,
            resume: seconds("worker-resume", self.worker_resume, 0.0, default.resume)?,
            wait: seconds("worker-wait", self.worker_wait, 0.0, default.wait)?,
            shared_memory: self.worker_shared_memory.unwrap_or(default.shared_memory),
            ..default
        })
    }
}

fn seconds(name: &str, value: Option<f64>, min: f64, default: Duration) -> anyhow::Result<Duration> {
    let Some(seconds) = value else { return Ok(default) };
    ensure!(
        (min..=SECONDS_MAX).contains(&seconds),
        "{name} is {seconds:?}; it must be between {min} and {SECONDS_MAX} seconds"
    );
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tests::given;

    #[test]
    fn times_are_within_their_range() {
        let options = given(&["--worker-silence=2.5", "--worker-resume=0"]).attach.options(3).unwrap();
        assert_eq!((options.engines, options.silence), (3, Duration::from_millis(2500)));
        assert_eq!((options.resume, options.wait), (Duration::ZERO, AttachOptions::default().wait));
        assert!(options.shared_memory);
        assert!(!given(&["--worker-shared-memory=false"]).attach.options(1).unwrap().shared_memory);
        let error = given(&["--worker-silence=0"]).attach.options(1).unwrap_err();
        assert_eq!(error.to_string(), "worker-silence is 0.0; it must be between 0.1 and 86400 seconds");
    }
}
