//! Settings of sessions of `serve`: how many, how large, how long unused.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use trunkline_server::SessionOptions;

/// Longest time to live, seconds: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// Least memory of a transcript, bytes.
const BYTES_MIN: u64 = 1 << 12;

/// Settings of sessions; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Sessions")]
pub struct SessionSettings {
    /// Maximum number of sessions at once; more are refused. 0 refuses all [default: 1024].
    #[arg(long, value_name = "N")]
    pub max_sessions: Option<u32>,

    /// Maximum number of sessions of one client at once; more are refused. A client is the holder of a token, or without tokens everyone at one
    /// address [default: half of --max-sessions].
    #[arg(long, value_name = "N")]
    pub max_sessions_per_client: Option<u32>,

    /// Largest memory of one session with system text, turns, pins and summaries, bytes, and no less than four contexts of tokens. Beyond, the oldest
    /// turns outside of the context are forgotten [default: 1048576].
    #[arg(long, value_name = "BYTES")]
    pub session_bytes: Option<u64>,

    /// Delete a session after this time without a call [default: 3600].
    #[arg(long, value_name = "SECONDS")]
    pub session_ttl: Option<f64>,
}

impl SessionSettings {
    /// Returns the limits of a server's sessions.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn options(&self) -> anyhow::Result<SessionOptions> {
        let default = SessionOptions::default();
        let bytes = self.session_bytes.unwrap_or(default.bytes);
        ensure!(bytes >= BYTES_MIN, "session-bytes is {bytes}; it must be at least {BYTES_MIN}");
        let ttl = self.session_ttl.unwrap_or(default.ttl.as_secs_f64());
        ensure!(
            (0.001..=SECONDS_MAX).contains(&ttl),
            "session-ttl is {ttl}; it must be between 0.001 and {SECONDS_MAX} seconds"
        );
        Ok(SessionOptions {
            sessions: self.max_sessions.unwrap_or(default.sessions),
            per_client: self.max_sessions_per_client,
            bytes,
            ttl: Duration::from_secs_f64(ttl),
            ..default
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_server_and_wrong_ones_are_reported_by_name() {
        assert_eq!(SessionSettings::default().options().unwrap(), SessionOptions::default());
        let settings = SessionSettings {
            max_sessions: Some(7),
            max_sessions_per_client: Some(3),
            session_bytes: Some(1 << 16),
            session_ttl: Some(1.5),
        };
        let options = settings.options().unwrap();
        assert_eq!((options.sessions, options.per_client, options.bytes), (7, Some(3), 1 << 16));
        assert_eq!(options.ttl, Duration::from_millis(1500));
        let wrong = |settings: SessionSettings| settings.options().unwrap_err().to_string();
        let bytes = SessionSettings { session_bytes: Some(1), ..settings.clone() };
        assert_eq!(wrong(bytes), "session-bytes is 1; it must be at least 4096");
        let ttl = SessionSettings { session_ttl: Some(f64::NAN), ..settings };
        assert!(wrong(ttl).starts_with("session-ttl is NaN; it must be between"));
    }
}
