//! Hostile clients of every kind alongside 64 streams that behave.
//!
//! ```text
//! cargo run --release -p trunkline-tests --example soak -- --seconds 1800 self
//! ```
//!
//! Three processes: a server with steps of a fixed time (`self`; else the server at the address given), the hostile clients, and the clients
//! that behave. The hostile clients' process gives way to the other two (nice 19), so the clients that behave feel what the hostile ones do
//! to the server, and not the work of making the attacks. Each hostile client, and each of the eight clients that behave, has a loopback
//! address of its own.
//!
//! The clients that behave compare every text with the text that the same prompt had alone. The program judges, and fails if
//!
//! * a text differs, an abort by a stranger succeeds, an attack gets an answer that it should not, or blocks do not come back,
//! * the latency of whole answers during the attacks, median or 99th percentile, is more than 1.2 times the latency alone,
//! * the server's resident memory grows by more than a tenth after the first minute.

mod args;
mod attacks;
mod good;
mod own;
mod process;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::args::{Args, Role};
use crate::good::{Latencies, STREAMS, quantile};
use crate::process::{Memory, Own};

/// Latency during the attacks over latency alone, at most.
const RATIO_MAX: f64 = 1.2;
/// Resident memory at the end over the memory after the warm-up, at most.
const GROWTH_MAX: f64 = 1.1;
/// Memory by which a process may grow in any case, mebibytes.
const GROWTH_MIB: u64 = 8;

/// Counts by name, of all clients.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<String, u64>>>);

impl Tally {
    /// Adds one to a count.
    pub fn count(&self, name: &str) {
        self.add(name, 1);
    }

    fn add(&self, name: &str, n: u64) {
        *self.0.lock().expect("no client panics while counting").entry(name.into()).or_default() += n;
    }

    fn print(&self) {
        for (name, n) in self.0.lock().expect("no client panics while counting").iter() {
            println!("{n:>10} {name}");
        }
    }

    /// Adds the counts that another process printed.
    fn read(&self, text: &str) {
        for line in text.lines() {
            if let Some((n, name)) = line.trim_start().split_once(' ')
                && let Ok(n) = n.parse()
            {
                self.add(name, n);
            }
        }
    }

    fn sum(&self, prefix: &str) -> u64 {
        let counts = self.0.lock().expect("no client panics while counting");
        counts.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = match args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("{message}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match args.role {
        Role::Server => own::serve(Duration::from_millis(args.step_ms)).await,
        Role::Hostile => {
            let Some(addr) = args.addr else { return ExitCode::from(2) };
            let tally = Tally::default();
            let end = Instant::now() + Duration::from_secs(args.seconds);
            attacks::start(addr, end, &tally, &args.only).join_all().await;
            tally.print();
            ExitCode::SUCCESS
        }
        Role::Judge => match judge(&args).await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(err) => {
                eprintln!("{err}");
                ExitCode::from(2)
            }
        },
    }
}

/// Runs the soak, prints the findings, and returns `true` if all goals are met.
async fn judge(args: &Args) -> io::Result<bool> {
    let (_own, addr, pid) = server(args)?;
    let tally = Tally::default();
    let texts = Arc::new(good::alone(addr).await);
    println!("{} texts alone; server at {addr} is process {pid}, {} MiB", texts.len(), process::rss_mib(pid));

    let calm = Duration::from_secs((args.seconds / 5).clamp(10, 120));
    let used = process::cpu_s(pid);
    let alone = good::behave(addr, &texts, Instant::now() + calm, &tally).await;
    print("alone", &alone);
    println!("processor time of the server: {:.2} of a core", (process::cpu_s(pid) - used) / calm.as_secs_f64());

    let attack = Duration::from_secs(args.seconds);
    let arguments = ["--hostile", "--seconds", &args.seconds.to_string(), "--only", &args.only, &addr.to_string()];
    let mut hostile = Own::start(&arguments.map(str::to_owned), true)?;
    let end = Instant::now() + attack;
    let used = process::cpu_s(pid);
    let memory = tokio::spawn(process::watch_memory(pid, end));
    let attacked = good::behave(addr, &texts, end, &tally).await;
    print("during the attacks", &attacked);
    println!(
        "processor time during the attacks: server {:.2}, hostile clients {:.2} of a core",
        (process::cpu_s(pid) - used) / attack.as_secs_f64(),
        process::cpu_s(hostile.0.id()) / attack.as_secs_f64(),
    );
    let memory = memory.await.map_err(io::Error::other)?;
    tally.read(&tokio::task::spawn_blocking(move || hostile.output()).await.map_err(io::Error::other)??);
    let came_back = settled(addr).await;
    tally.print();
    Ok(verdicts(&alone, &attacked, memory, tally.sum("WRONG"), came_back))
}

/// Starts a server of our own, or finds the process of the server at the address given. The value ends the server.
fn server(args: &Args) -> io::Result<(Option<Own>, SocketAddr, u32)> {
    if let Some(addr) = args.addr {
        let found = args.pid.or_else(|| process::listening_on(addr.port()));
        let missing = || io::Error::other(format!("no process of this user listens on {addr}; give its --pid"));
        return Ok((None, addr, found.ok_or_else(missing)?));
    }
    let mut own = Own::start(&["--server".into(), "--step-ms".into(), args.step_ms.to_string()], false)?;
    let (addr, pid) = (own.address()?, own.0.id());
    Ok((Some(own), addr, pid))
}

/// Prints the verdict on each goal; returns `true` if all are met.
fn verdicts(alone: &Latencies, attacked: &Latencies, memory: Memory, wrong: u64, came_back: bool) -> bool {
    let mut all = true;
    let mut verdict = |is_met: bool, text: String| {
        println!("{} {text}", if is_met { "met   " } else { "MISSED" });
        all &= is_met;
    };
    for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
        let (before, after) = (quantile(&alone.whole, q), quantile(&attacked.whole, q));
        let ratio = after / before;
        let text = format!("latency {name}: {before:.1} ms alone, {after:.1} ms during the attacks, ratio {ratio:.3}");
        verdict(ratio <= RATIO_MAX, format!("{text} (goal {RATIO_MAX})"));
    }
    let Memory { early, last, most } = memory;
    let limit = ((early as f64 * GROWTH_MAX) as u64).max(early + GROWTH_MIB);
    let text = format!("memory: {early} MiB after the warm-up, {last} MiB at the end, {most} MiB at most");
    verdict(last <= limit, format!("{text} (goal {limit} at the end)"));
    verdict(wrong == 0, format!("{wrong} wrong of {} texts and all attacks", attacked.whole.len()));
    verdict(came_back, format!("blocks {}", if came_back { "all back" } else { "MISSING" }));
    all
}

/// Waits up to two minutes for all requests to end; returns `true` if every block came back.
async fn settled(addr: SocketAddr) -> bool {
    let mut client = good::connect(IpAddr::V4(Ipv4Addr::LOCALHOST), addr).await.expect("the server listens");
    for _ in 0..240 {
        let info = client.info().await;
        let (load, blocks) = (info.load.unwrap_or_default(), info.blocks.unwrap_or_default());
        if load.waiting + load.running + blocks.held + blocks.private == 0 {
            println!("at the end: {:?}", info.network.unwrap_or_default());
            return true;
        }
        sleep(Duration::from_millis(500)).await;
    }
    false
}

fn print(name: &str, latencies: &Latencies) {
    let (first, whole) = (&latencies.first_token, &latencies.whole);
    let each = |times| [0.5, 0.9, 0.99].map(|q| format!("{:.1}", quantile(times, q))).join(" / ");
    println!(
        "{name}: {} answers of {STREAMS} streams, p50 / p90 / p99 first token {} ms, whole answer {} ms",
        whole.len(),
        each(first),
        each(whole)
    );
}
