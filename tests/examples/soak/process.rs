//! Processes: those of this program, and the server's as Linux shows it under `/proc`.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// Clock ticks of `/proc` in a second, as Linux shows them on every machine.
const TICKS_PER_S: f64 = 100.0;

/// A child process of this program, ended with its value.
pub struct Own(pub Child);

impl Own {
    /// Starts this program with other arguments, as a polite process if `nice`: one that leaves the processor to all others.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(arguments: &[String], nice: bool) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let mut command = if nice { Command::new("nice") } else { Command::new(&program) };
        if nice {
            command.args(["-n", "19"]).arg(&program);
        }
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map(Self)
    }

    /// Reads the first line that the process prints.
    ///
    /// # Errors
    /// If the process prints none.
    pub fn address(&mut self) -> io::Result<SocketAddr> {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        BufReader::new(stdout).read_line(&mut line)?;
        line.trim().parse().map_err(io::Error::other)
    }

    /// Waits for the end of the process, and returns all that it printed.
    ///
    /// # Errors
    /// If the output cannot be read.
    pub fn output(&mut self) -> io::Result<String> {
        let mut text = String::new();
        if let Some(stdout) = &mut self.0.stdout {
            stdout.read_to_string(&mut text)?;
        }
        self.0.wait()?;
        Ok(text)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the resident memory of a process, mebibytes; 0 if there is no such process.
pub fn rss_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) >> 10
}

/// Returns the processor time of a process so far, seconds; 0 if there is no such process.
pub fn cpu_s(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0.0 };
    // User and system time are fields 14 and 15 of the line, the name being field 2.
    rest.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}

/// Resident memory of a process over time, mebibytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// After the warm-up.
    pub early: u64,
    /// At the end.
    pub last: u64,
    /// At any time.
    pub most: u64,
}

/// Watches the resident memory of a process until `end`, and prints it every thirty seconds. The warm-up is a minute, or half of the
/// time if that is shorter.
pub async fn watch_memory(pid: u32, end: Instant) -> Memory {
    let begin = Instant::now();
    let warm = (end.saturating_duration_since(begin) / 2).min(Duration::from_secs(60));
    let (mut memory, mut next_print) = (Memory::default(), Duration::ZERO);
    while Instant::now() < end {
        let (now, rss) = (begin.elapsed(), rss_mib(pid));
        if now <= warm {
            memory.early = rss;
        }
        (memory.last, memory.most) = (rss, memory.most.max(rss));
        if now >= next_print {
            println!("{:>6} s {rss:>6} MiB", now.as_secs());
            next_print += Duration::from_secs(30);
        }
        sleep(Duration::from_secs(1).min(end.saturating_duration_since(Instant::now()))).await;
    }
    memory
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
