//! The server's process, as Linux shows it under `/proc`.

use std::fs;
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// Returns the resident memory of a process, mebibytes; 0 if there is no such process.
pub fn rss_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) >> 10
}

/// Prints the resident memory of a process every ten seconds until `end`.
pub async fn watch_memory(pid: u32, end: Instant) {
    let begin = Instant::now();
    while Instant::now() < end {
        println!("{:>6} s {:>6} MiB", begin.elapsed().as_secs(), rss_mib(pid));
        sleep(Duration::from_secs(10).min(end.saturating_duration_since(Instant::now()))).await;
    }
}

/// Returns the process that listens on a TCP port, if it is of this user.
pub fn listening_on(port: u16) -> Option<u32> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_port = words.get(1)?.ends_with(&format!(":{port:04X}"));
            // 0A is the state of a listening socket.
            (is_port && *words.get(3)? == "0A").then(|| words.get(9).map(|inode| (*inode).to_owned()))?
        })
    })?;
    let socket = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?;
    processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()))
    })
}
