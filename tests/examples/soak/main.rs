//! Hostile clients of every kind beside 64 that behave, against a running server.
//!
//! ```text
//! trunkline serve --listen 127.0.0.1:50061 &
//! cargo run --release -p trunkline-tests --example soak -- --seconds 1800 127.0.0.1:50061
//! ```
//!
//! The clients that behave compare every text with the text that the same prompt had alone. The program prints their latencies
//! alone and beside the others, the memory of the server every ten seconds, and what became of each attack. It fails if a text
//! differs, an abort by a stranger succeeds, an attack gets an answer that it should not, or blocks do not come back.

mod attacks;
mod process;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use trunkline_core::Config;
use trunkline_server::proto::GenerateRequest;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_tests::server::{Client, TestServer, greedy};

/// Streams that behave.
const STREAMS: usize = 64;
/// Connections that they share.
const CONNECTIONS: usize = 8;
/// Tokens of each of their answers.
const TOKENS: u32 = 48;
/// Pause before a request that the full queue refused is sent again.
const RETRY: Duration = Duration::from_millis(20);
const USAGE: &str = "usage: soak [--seconds N] [--pid PID] HOST:PORT|self";

/// Command line.
struct Args {
    /// `None`: a server in this process, for a short try.
    addr: Option<SocketAddr>,
    seconds: u64,
    pid: Option<u32>,
}

/// Counts by name, of all clients.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<String, u64>>>);

impl Tally {
    /// Adds one to a count.
    pub fn count(&self, name: &str) {
        *self.0.lock().expect("no client panics while counting").entry(name.into()).or_default() += 1;
    }

    fn sum(&self, prefix: &str) -> u64 {
        let counts = self.0.lock().expect("no client panics while counting");
        counts.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
    }
}

/// Times of the streams that behave, milliseconds.
#[derive(Default)]
struct Latencies {
    first_token: Vec<f64>,
    whole: Vec<f64>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let own = if args.addr.is_none() { Some(TestServer::start(Config::default()).await) } else { None };
    let addr = args.addr.or_else(|| own.as_ref().map(TestServer::addr)).expect("an address or a server of our own");
    let Some(pid) = args.pid.or_else(|| process::listening_on(addr.port())) else {
        eprintln!("no process of this user listens on {addr}; give its --pid");
        return ExitCode::from(2);
    };
    let tally = Tally::default();
    let texts = Arc::new(alone(addr).await);
    println!("{} texts alone; server is process {pid}, {} MiB", texts.len(), process::rss_mib(pid));

    let calm = Duration::from_secs((args.seconds / 10).clamp(5, 60));
    let before = behave(addr, &texts, Instant::now() + calm, &tally).await;
    print("alone", &before);

    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut hostile = attacks::start(addr, end, &tally);
    let memory = tokio::spawn(process::watch_memory(pid, end));
    let beside = behave(addr, &texts, end, &tally).await;
    while hostile.join_next().await.is_some() {}
    let _ = memory.await;
    print("under attack", &beside);

    let came_back = settled(addr).await;
    println!("memory at the end {} MiB", process::rss_mib(pid));
    for (name, n) in tally.0.lock().expect("all clients have ended").iter() {
        println!("{n:>10} {name}");
    }
    let wrong = tally.sum("WRONG");
    println!("{wrong} wrong, blocks {}", if came_back { "all back" } else { "MISSING" });
    if wrong == 0 && came_back && !beside.whole.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let (mut addr, mut seconds, mut pid) = (None, 60, None);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            value.parse().map_err(|_| format!("{word} is '{value}'; give a number"))
        };
        match word.as_str() {
            "--seconds" => seconds = number()?,
            "--pid" => pid = Some(number()? as u32),
            "self" => addr = Some(None),
            other => addr = Some(Some(other.parse().map_err(|_| format!("'{other}' is no address"))?)),
        }
    }
    Ok(Args { addr: addr.ok_or("the address is missing")?, seconds, pid })
}

/// A client with a connection of its own.
pub async fn client(addr: SocketAddr) -> Result<Client, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}"))?;
    Ok(Client(InferenceClient::new(endpoint.connect().await?)))
}

/// Request of a stream that behaves.
fn request(stream: usize) -> GenerateRequest {
    let prefix = "The trunk line runs from here to there, and all the branches leave from it. ";
    let text = format!("{}Branch {stream}.", &prefix[..20 + 8 * (stream % 7)]);
    GenerateRequest { request_id: format!("good-{stream}"), ..greedy(&text, TOKENS) }
}

/// The texts of all streams, each asked for while nothing else runs.
async fn alone(addr: SocketAddr) -> Vec<String> {
    let mut client = client(addr).await.expect("the server listens");
    let mut texts = Vec::new();
    for stream in 0..STREAMS {
        texts.push(client.ask(request(stream)).await.expect("the server answers").text);
    }
    texts
}

/// Runs the streams that behave until `end`.
async fn behave(addr: SocketAddr, texts: &Arc<Vec<String>>, end: Instant, tally: &Tally) -> Latencies {
    let mut streams = JoinSet::new();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(client(addr).await.expect("the server listens"));
    }
    for stream in 0..STREAMS {
        let (mut client, texts, tally) = (clients[stream % CONNECTIONS].clone(), texts.clone(), tally.clone());
        streams.spawn(async move {
            let mut latencies = Latencies::default();
            while Instant::now() < end {
                let (text, first_token, whole) = ask(&mut client, stream, &tally).await;
                tally.count("good: answers");
                if text != texts[stream] {
                    tally.count("WRONG text of a stream that behaves");
                }
                latencies.first_token.push(first_token.as_secs_f64() * 1e3);
                latencies.whole.push(whole.as_secs_f64() * 1e3);
            }
            latencies
        });
    }
    let mut all = Latencies::default();
    while let Some(latencies) = streams.join_next().await {
        let latencies = latencies.expect("no stream panics");
        all.first_token.extend(latencies.first_token);
        all.whole.extend(latencies.whole);
    }
    all
}

/// Asks until there is an answer; returns the text, and the times to the first token and to the end, refusals included.
async fn ask(client: &mut Client, stream: usize, tally: &Tally) -> (String, Duration, Duration) {
    static LOUD: AtomicU64 = AtomicU64::new(0);
    let sent = Instant::now();
    loop {
        match read(client, stream).await {
            Ok((text, first_token)) => return (text, first_token.duration_since(sent), sent.elapsed()),
            Err(status) if status.code() == Code::ResourceExhausted => tally.count("good: refused by the full queue"),
            Err(status) => {
                tally.count(&format!("WRONG status of a stream that behaves: {:?}", status.code()));
                if LOUD.fetch_add(1, Ordering::Relaxed) < 10 {
                    eprintln!("{status}");
                }
            }
        }
        sleep(RETRY).await;
    }
}

async fn read(client: &mut Client, stream: usize) -> Result<(String, Instant), Status> {
    let mut answer = client.open(request(stream)).await?;
    let (mut text, mut first_token) = (String::new(), None);
    while let Some(message) = answer.message().await? {
        match message.event {
            Some(Event::Chunk(chunk)) => {
                first_token.get_or_insert_with(Instant::now);
                text.push_str(&chunk.text);
            }
            Some(Event::Finish(_)) | None => {}
        }
    }
    Ok((text, first_token.unwrap_or_else(Instant::now)))
}

/// Waits up to two minutes for all requests to end; returns `true` if every block came back.
async fn settled(addr: SocketAddr) -> bool {
    let mut client = client(addr).await.expect("the server listens");
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
    let quantile = |times: &[f64], q: f64| {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        let at = (times.len() as f64 * q) as usize;
        times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    };
    let (first, whole) = (&latencies.first_token, &latencies.whole);
    println!(
        "{name}: {} answers, first token p50 {:.1} ms p99 {:.1} ms, whole answer p50 {:.1} ms p99 {:.1} ms",
        whole.len(),
        quantile(first, 0.5),
        quantile(first, 0.99),
        quantile(whole, 0.5),
        quantile(whole, 0.99),
    );
}
