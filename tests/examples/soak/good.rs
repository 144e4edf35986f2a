//! The clients that behave, and their latencies.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use trunkline_server::proto::GenerateRequest;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_tests::server::{Client, greedy};

use crate::Tally;

/// Streams that behave.
pub const STREAMS: usize = 64;
/// Clients of these streams, each with an address and a connection of its own.
const CLIENTS: usize = 8;
/// Tokens of each of their answers.
const TOKENS: u32 = 48;
/// Pause before a request that the full queue refused is sent again.
const RETRY: Duration = Duration::from_millis(20);

/// Times of the streams that behave, milliseconds, in ascending order.
#[derive(Default)]
pub struct Latencies {
    /// From the request to the first token.
    pub first_token: Vec<f64>,
    /// From the request to the end of the answer.
    pub whole: Vec<f64>,
}

/// Returns a quantile of times in ascending order; NaN if there are none.
pub fn quantile(times: &[f64], q: f64) -> f64 {
    let at = (times.len() as f64 * q) as usize;
    times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Connects from a loopback address, as a machine of that address would.
///
/// # Errors
/// If the server cannot be reached.
pub async fn connect(from: IpAddr, to: SocketAddr) -> Result<Client, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{to}"))?.local_address(to.ip().is_loopback().then_some(from));
    Ok(Client(InferenceClient::new(endpoint.connect().await?)))
}

/// Request of a stream that behaves.
fn request(stream: usize) -> GenerateRequest {
    let prefix = "The trunk line runs from here to there, and all the branches leave from it. ";
    let text = format!("{}Branch {stream}.", &prefix[..20 + 8 * (stream % 7)]);
    GenerateRequest { request_id: format!("good-{stream}"), ..greedy(&text, TOKENS) }
}

/// The texts of all streams, each asked for while nothing else runs.
pub async fn alone(addr: SocketAddr) -> Vec<String> {
    let mut client = connect(address(0), addr).await.expect("the server listens");
    let mut texts = Vec::new();
    for stream in 0..STREAMS {
        texts.push(client.ask(request(stream)).await.expect("the server answers").text);
    }
    texts
}

/// Address of a client that behaves.
fn address(client: usize) -> IpAddr {
    IpAddr::from([127, 0, 1, 1 + client as u8])
}

/// Runs the streams that behave until `end`.
pub async fn behave(addr: SocketAddr, texts: &Arc<Vec<String>>, end: Instant, tally: &Tally) -> Latencies {
    let mut streams = JoinSet::new();
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        clients.push(connect(address(client), addr).await.expect("the server listens"));
    }
    for stream in 0..STREAMS {
        let (mut client, texts, tally) = (clients[stream % CLIENTS].clone(), texts.clone(), tally.clone());
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
    all.first_token.sort_by(f64::total_cmp);
    all.whole.sort_by(f64::total_cmp);
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
