//! Clock of simulated devices.

use std::thread;
use std::time::{Duration, Instant};

/// Monotonic clock that can be waited for. Tests put one in place that passes at once.
pub trait Clock: Send + Sync {
    /// Returns the present time, nanoseconds.
    fn now_ns(&self) -> u64;

    /// Returns at `at_ns`, or at once if that time has passed.
    fn wait_until(&self, at_ns: u64);
}

/// Time since the start of the program's simulation.
pub struct RealTime(Instant);

impl RealTime {
    /// Starts the clock at zero.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RealTime {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn wait_until(&self, at_ns: u64) {
        if let Some(left) = Duration::from_nanos(at_ns).checked_sub(self.0.elapsed()) {
            thread::sleep(left);
        }
    }
}

/// Clock that stands still except for waiting, which takes no time.
#[cfg(test)]
#[derive(Default)]
pub struct ManualTime(std::sync::atomic::AtomicU64);

#[cfg(test)]
impl ManualTime {
    /// Lets time pass without anybody waiting.
    pub fn pass(&self, ns: u64) {
        self.0.fetch_add(ns, std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Clock for ManualTime {
    fn now_ns(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn wait_until(&self, at_ns: u64) {
        self.0.fetch_max(at_ns, std::sync::atomic::Ordering::SeqCst);
    }
}
