//! The hostile clients. Each kind comes from a loopback address of its own, as if from a machine of its own.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Code;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::{AbortRequest, GenerateRequest, GetModelInfoRequest, Output, TokenIds};
use trunkline_tests::raw::RawClient;
use trunkline_tests::server::greedy;

use crate::Tally;
use crate::good::connect;

const GENERATE: &str = "/trunkline.v1.Inference/Generate";
/// Pause between two attempts of one kind.
const PAUSE: Duration = Duration::from_millis(50);
/// Flow-control window of a client that reads.
const WINDOW: u32 = 1 << 16;

/// A hostile client.
#[derive(Clone)]
struct Attack {
    name: &'static str,
    is_wanted: bool,
    from: SocketAddr,
    to: SocketAddr,
    end: Instant,
    tally: Tally,
}

/// Starts the attacks whose names contain `only`.
pub fn start(to: SocketAddr, end: Instant, tally: &Tally, only: &str) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut next = 1_u8;
    let mut attack = |name: &'static str| {
        next += 1;
        let is_wanted = name.contains(only);
        Attack { name, is_wanted, from: SocketAddr::from(([127, 0, 0, next], 0)), to, end, tally: tally.clone() }
    };
    repeat(&mut tasks, attack("never reads"), never_reads);
    repeat(&mut tasks, attack("long text"), long_text);
    repeat(&mut tasks, attack("unknown token ids"), unknown_ids);
    repeat(&mut tasks, attack("guessed abort"), guessed_abort);
    repeat(&mut tasks, attack("rapid reset"), rapid_reset);
    repeat(&mut tasks, attack("endless headers"), endless_headers);
    repeat(&mut tasks, attack("silent sockets"), silent_sockets);
    repeat(&mut tasks, attack("malformed message"), malformed);
    repeat(&mut tasks, attack("huge message"), huge);
    repeat(&mut tasks, attack("gone in the middle"), gone);
    repeat(&mut tasks, attack("flood beyond the queue"), flood);
    tasks
}

/// Repeats an attack until its end, and counts the attempts.
fn repeat<F: Future<Output = io::Result<()>> + Send + 'static>(
    tasks: &mut JoinSet<()>,
    attack: Attack,
    attempt: impl Fn(Attack) -> F + Send + 'static,
) {
    if !attack.is_wanted {
        return;
    }
    tasks.spawn(async move {
        let name = attack.name;
        while Instant::now() < attack.end {
            // An attempt ends with the others, however long it means to stay.
            let left = attack.end.saturating_duration_since(Instant::now());
            match timeout(left, attempt(attack.clone())).await {
                Ok(Ok(())) | Err(_) => attack.tally.count(&format!("attack: {name}")),
                Ok(Err(_)) => attack.tally.count(&format!("attack: {name}, cut by the server")),
            }
            sleep(PAUSE).await;
        }
    });
}

/// A request with much output.
fn long() -> GenerateRequest {
    GenerateRequest { output: Some(Output { logprobs: Some(20), ..Output::default() }), ..greedy("long", 400) }
}

impl Attack {
    async fn raw(&self, window: u32) -> io::Result<RawClient> {
        RawClient::connect(self.from, self.to, window).await
    }

    async fn client(&self) -> io::Result<trunkline_tests::server::Client> {
        connect(self.from.ip(), self.to).await.map_err(io::Error::other)
    }

    /// Counts an answer that should not be.
    fn expect(&self, name: &str, found: Code, expected: &[Code]) {
        if !expected.contains(&found) {
            self.tally.count(&format!("WRONG answer to {name}: {found:?}"));
        }
    }
}

async fn never_reads(attack: Attack) -> io::Result<()> {
    let mut raw = attack.raw(0).await?;
    for _ in 0..32 {
        raw.call(GENERATE, &long()).await?;
    }
    let mut resets = 0;
    while resets < 32 {
        let Some(frame) = raw.frame().await else { return Err(io::ErrorKind::ConnectionReset.into()) };
        // A refused call has headers and no output.
        resets += usize::from(frame.is_reset() || (frame.is_headers() && frame.flags & 1 != 0));
    }
    Ok(())
}

async fn long_text(attack: Attack) -> io::Result<()> {
    let mut client = attack.client().await?;
    let request = greedy(&"long text ".repeat(1_500_000), 4);
    if let Ok(Err(status)) = timeout(Duration::from_secs(2), client.open(request)).await {
        let busy = [Code::InvalidArgument, Code::ResourceExhausted, Code::Unknown, Code::Unavailable, Code::Cancelled];
        attack.expect("a long text", status.code(), &busy);
    }
    Ok(())
}

async fn unknown_ids(attack: Attack) -> io::Result<()> {
    let mut client = attack.client().await?;
    let info = client.0.get_model_info(GetModelInfoRequest {}).await.map_err(io::Error::other)?.into_inner();
    let prompt = Prompt::TokenIds(TokenIds { ids: vec![1, info.vocab_size, u32::MAX] });
    let result = client.open(GenerateRequest { prompt: Some(prompt), ..greedy("", 4) }).await;
    let found = result.map_or_else(|status| status.code(), |_| Code::Ok);
    attack.expect("unknown token ids", found, &[Code::InvalidArgument]);
    Ok(())
}

async fn guessed_abort(attack: Attack) -> io::Result<()> {
    let mut client = attack.client().await?;
    let own = client.0.generate(greedy("own", 1)).await.map_err(io::Error::other)?;
    let id = own.metadata().get("trunkline-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    drop(own);
    let near = u128::from_str_radix(&id, 16).unwrap_or_default();
    let mut request_ids: Vec<String> = (0..64).map(|stream| format!("good-{stream}")).collect();
    request_ids.extend((1..1000).map(|guess| format!("{:032x}", near.wrapping_add(guess))));
    let found = client.0.abort(AbortRequest { request_ids }).await.map_err(io::Error::other)?.into_inner().found;
    if found > 0 {
        attack.tally.count("WRONG abort by a stranger");
    }
    Ok(())
}

async fn rapid_reset(attack: Attack) -> io::Result<()> {
    let mut raw = attack.raw(WINDOW).await?;
    for _ in 0..20_000 {
        let stream = raw.call(GENERATE, &long()).await?;
        raw.reset(stream).await?;
    }
    attack.tally.count("WRONG: 20000 resets on one connection");
    Ok(())
}

async fn endless_headers(attack: Attack) -> io::Result<()> {
    let mut raw = attack.raw(WINDOW).await?;
    let stream = raw.endless_headers(GENERATE).await?;
    for _ in 0..20_000 {
        raw.continuation(stream, 8000).await?;
    }
    attack.tally.count("WRONG: 20000 frames of headers");
    Ok(())
}

async fn silent_sockets(attack: Attack) -> io::Result<()> {
    let mut sockets = Vec::new();
    while sockets.len() < 400 {
        sockets.push(RawClient::silent(attack.from, attack.to).await?);
    }
    sleep(Duration::from_secs(15)).await;
    Ok(())
}

async fn malformed(attack: Attack) -> io::Result<()> {
    let mut raw = attack.raw(WINDOW).await?;
    for _ in 0..50 {
        let stream = raw.headers(GENERATE).await?;
        raw.data(stream, &[0, 0, 0, 0, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], true).await?;
        while !raw.frame().await.ok_or(io::ErrorKind::ConnectionReset)?.is_headers() {}
        // A request_id that is not UTF-8.
        let stream = raw.headers(GENERATE).await?;
        raw.data(stream, &[0, 0, 0, 0, 4, 0x0a, 2, 0xff, 0xfe], true).await?;
        while !raw.frame().await.ok_or(io::ErrorKind::ConnectionReset)?.is_headers() {}
    }
    Ok(())
}

async fn huge(attack: Attack) -> io::Result<()> {
    let mut client = attack.client().await?;
    let prompt = Prompt::TokenIds(TokenIds { ids: vec![u32::MAX; 4 << 20] });
    let result = client.open(GenerateRequest { prompt: Some(prompt), ..greedy("", 4) }).await;
    let found = result.map_or_else(|status| status.code(), |_| Code::Ok);
    // The connection may end before the message has been sent.
    attack.expect(
        "a huge message",
        found,
        &[Code::ResourceExhausted, Code::Unknown, Code::Cancelled, Code::Unavailable],
    );
    Ok(())
}

async fn gone(attack: Attack) -> io::Result<()> {
    for _ in 0..8 {
        let mut raw = attack.raw(WINDOW).await?;
        raw.call(GENERATE, &long()).await?;
        while !raw.frame().await.ok_or(io::ErrorKind::ConnectionReset)?.is_headers() {}
    }
    Ok(())
}

async fn flood(attack: Attack) -> io::Result<()> {
    // One connection may have fewer calls at once than the queue has room for.
    let clients = [attack.client().await?, attack.client().await?];
    let mut calls = JoinSet::new();
    for at in 0..2000 {
        let mut client = clients[at % 2].clone();
        calls.spawn(async move {
            client.ask(greedy(&format!("flood {at}"), 8)).await.map_or_else(|s| s.code(), |_| Code::Ok)
        });
    }
    while let Some(code) = calls.join_next().await {
        let code = code.map_err(io::Error::other)?;
        attack.expect(
            "a flood",
            code,
            &[Code::Ok, Code::ResourceExhausted, Code::Unavailable, Code::Unknown, Code::Cancelled],
        );
        attack.tally.count(&format!("flood: {code:?}"));
    }
    Ok(())
}
