//! Figures of the operating system about the process, from `/proc/self` of Linux; missing elsewhere.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

use crate::network::limits::open_files_max;

/// Figures of the process, where the system has them.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Time on all processors, seconds.
    pub(super) cpu_s: f64,
    /// Memory in use, bytes.
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) open_files_max: Option<u64>,
}

impl Process {
    /// Reads the figures.
    pub(super) fn read() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 * 1e-9,
            resident_bytes: fs::read_to_string("/proc/self/status").ok().and_then(|status| resident_bytes(&status)),
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
            open_files_max: open_files_max(),
        }
    }
}

/// Returns the resident memory in the text of `/proc/self/status`, bytes (proc_pid_status(5)).
fn resident_bytes(status: &str) -> Option<u64> {
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_bytes("Name:\ttrunkline\nVmRSS:\t     12 kB\nThreads:\t3\n"), Some(12_288));
        assert_eq!(resident_bytes("Name:\ttrunkline\n"), None);
        #[cfg(target_os = "linux")]
        {
            let process = Process::read();
            assert!(process.resident_bytes > Some(1 << 20) && process.open_files > Some(2) && process.cpu_s > 0.0);
        }
    }
}
