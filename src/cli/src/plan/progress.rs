//! Progress of a plan: a bar of the probes begun on a terminal, else a line for each probe, and for each half minute of a long one.

use std::io::{IsTerminal, stderr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trunkline_sim_replay::plan::News;

/// Time between two lines about the same probes.
const LINE_EVERY: Duration = Duration::from_secs(30);
/// Requests after which the clock is read again.
const LOOK_EVERY: u64 = 1024;

/// Display of the progress.
pub(super) struct Progress {
    bar: ProgressBar,
    lines: bool,
    /// Requests of the trace.
    requests: u64,
    probes: AtomicU64,
    last_line: Mutex<Instant>,
}

impl Progress {
    /// Begins the display of probes that replay so many requests each.
    pub fn new(requests: u64) -> Self {
        let lines = !stderr().is_terminal();
        let target = if lines { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {percent} % of the probes begun, {msg}");
        bar.set_style(style.expect("the template is right"));
        bar.set_message("none ended");
        Self { bar, lines, requests, probes: AtomicU64::new(0), last_line: Mutex::new(Instant::now()) }
    }

    /// Shows what happened.
    pub fn show(&self, news: News) {
        match news {
            News::Begun => self.bar.inc_length(self.requests),
            News::Request => {
                self.bar.inc(1);
                if self.lines && self.bar.position().is_multiple_of(LOOK_EVERY) && self.is_line_due() {
                    eprintln!("{} s: {} of the probes begun", self.bar.elapsed().as_secs(), self.share());
                }
            }
            News::Ended { replicas, speed, requests, met } => {
                // A probe that stopped leaves the rest of its requests out.
                self.bar.inc(self.requests.saturating_sub(requests));
                let ended = self.probes.fetch_add(1, Ordering::Relaxed) + 1;
                self.bar.set_message(format!("{ended} ended"));
                if self.lines {
                    let met = if met { "met" } else { "not met" };
                    let speed = if speed == 1.0 { String::new() } else { format!(" at a speed of {speed:.3}") };
                    eprintln!(
                        "{} s: probe {ended}, of {}{speed}: {met}; {} of the probes begun",
                        self.bar.elapsed().as_secs(),
                        super::replicas(replicas),
                        self.share()
                    );
                }
            }
        }
    }

    /// Ends the display.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn share(&self) -> String {
        let of = self.bar.length().unwrap_or(0).max(1);
        format!("{} %", self.bar.position().min(of) * 100 / of)
    }

    fn is_line_due(&self) -> bool {
        let Ok(mut last) = self.last_line.try_lock() else { return false };
        let is_due = last.elapsed() >= LINE_EVERY;
        if is_due {
            *last = Instant::now();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_probes_begun_and_a_stopped_one_is_whole() {
        let progress = Progress::new(100);
        let of = |requests| News::Ended { replicas: 2, speed: 1.0, requests, met: false };
        progress.show(News::Begun);
        (0..40).for_each(|_| progress.show(News::Request));
        assert_eq!(progress.share(), "40 %");
        progress.show(News::Begun);
        assert_eq!(progress.share(), "20 %");
        progress.show(of(40));
        assert_eq!(progress.share(), "50 %");
        (0..100).for_each(|_| progress.show(News::Request));
        progress.show(of(100));
        assert_eq!(progress.share(), "100 %");
    }
}
