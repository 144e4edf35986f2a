//! Load on a running server: the requests of a trace at the times of the trace, over gRPC.
//!
//! Each prompt is sent as token ids, so prompts that share a prefix in the trace share one on the server. The server generates the number of
//! tokens that the trace has. Latencies are defined as in the reports of `trunkline replay`, and measured at the client.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, IntoRequest, Request, Status};
use trunkline_core::draw::unit;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, GetModelInfoRequest, Stopping, TokenIds};
use trunkline_sim_workload::Trace;
use trunkline_sim_workload::summary::{Kept, Summary};
use trunkline_sim_workload::trace::{self, Source, TraceRequest};

use crate::client::connection::{ConnectionArgs, status_error};
use crate::settings::selection::SelectionArgs;

/// Stream of draws that give the tokens of a trace ids below the vocabulary's size; see [`trunkline_core::draw`].
const TOKEN_STREAM: u64 = 0x70cf;
/// Codes of requests that a server refuses, as too large for it or because its queue is full.
const REFUSALS: [Code; 4] =
    [Code::InvalidArgument, Code::OutOfRange, Code::FailedPrecondition, Code::ResourceExhausted];
/// Connections that share the streams.
const CONNECTIONS: usize = 4;

const EXAMPLES: &str = "\
Examples:
  Two minutes of a trace on a running server, compared with the simulation of the same requests:
    trunkline replay examples/traces/chat-and-agents.jsonl.gz --slice 0s..120s --json replayed.json
    trunkline load examples/traces/chat-and-agents.jsonl.gz --slice 0s..120s --against replayed.json";

/// Send the requests of a trace to a running server at the times of the trace, and report latencies.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// Trace whose requests are sent.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    #[command(flatten)]
    part: SelectionArgs,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// Report of `trunkline replay --json` of the same trace: show the differences [default: none].
    #[arg(long, value_name = "REPORT")]
    against: Option<PathBuf>,

    /// Write JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Latencies seen by the clients, named as in the report of a replay.
#[derive(Clone, Copy, Debug, Serialize)]
struct Seen {
    requests: u64,
    /// Requests that the server refused, such as prompts too large for it; all else is of the others.
    refused: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    /// Time from the first request to the last token, seconds.
    duration_s: f64,
    ttft_s: Summary,
    tpot_s: Summary,
    e2e_s: Summary,
}

/// One request, seen by its client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    /// Tokens of the prompt, as the server counts them.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the server had cached.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Time to the first token.
    pub ttft_ns: u64,
    /// Time to the end of the stream.
    pub e2e_ns: u64,
}

/// What became of a load.
#[derive(Debug, Default)]
struct Outcome {
    streams: Vec<Stream>,
    refused: u64,
    /// Number of the first request that was refused, and why.
    first_refused: Option<(usize, Status)>,
    /// Time from the first request to the last token.
    duration: Duration,
}

impl Outcome {
    /// Takes in the answer to request `number`.
    ///
    /// # Errors
    /// If the server is not there or failed the request.
    fn add(&mut self, (number, answer): (usize, Result<Stream, Status>)) -> anyhow::Result<()> {
        match answer {
            Ok(stream) => self.streams.push(stream),
            Err(status) if REFUSALS.contains(&status.code()) => {
                self.refused += 1;
                if self.first_refused.as_ref().is_none_or(|(first, _)| number < *first) {
                    self.first_refused = Some((number, status));
                }
            }
            Err(status) => return Err(status).with_context(|| format!("request {number}")),
        }
        Ok(())
    }
}

/// Sends the load and prints the latencies.
///
/// # Errors
/// If the trace or the report cannot be read, the report is of another trace, or the server is not there or fails a request.
pub fn run(options: &LoadArgs) -> anyhow::Result<()> {
    let against = options.against.as_deref().map(report).transpose()?;
    let trace = Trace::load_selected(&options.trace, options.part.options(), &options.part.selection_at_speed()?)?;
    ensure!(!trace.requests.is_empty(), "{} has no request to send", options.trace.display());
    let runtime = Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    if let Some(report) = &against {
        check_same(report, &trace)?;
    }
    let outcome = runtime.block_on(send(&options.connection, &trace))?;
    if let Some((number, status)) = &outcome.first_refused {
        let (refused, all) = (outcome.refused, trace.requests.len());
        writeln!(
            io::stderr(),
            "refused {refused} of {all} requests, the first is number {number}: {}",
            status.message()
        )?;
    }
    ensure!(!outcome.streams.is_empty(), "the server refused every request");
    let seen = summary(&outcome);
    let text = match options.json {
        true => serde_json::to_string_pretty(&seen)?,
        false => table(&seen, against.as_ref()),
    };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

/// Reads the report of a replay.
fn report(path: &Path) -> anyhow::Result<serde_json::Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    if report["ttft_s"]["mean"].as_f64().is_none() {
        bail!("{} is not a report of one replay; write it with `trunkline replay --json`", path.display());
    }
    Ok(report)
}

/// Checks that a report is of this trace, by the numbers of requests and of prompt tokens.
fn check_same(report: &serde_json::Value, trace: &Trace) -> anyhow::Result<()> {
    let asked = || trace.requests.iter().filter(|request| !request.is_prefetch());
    let (requests, tokens) =
        (asked().count() as u64, asked().map(|request| u64::from(request.input_tokens)).sum::<u64>());
    let of = |key: &str| report[key].as_u64();
    let has_all = of("completed") == of("requests");
    let is_same = of("requests") == Some(requests) && (!has_all || of("prompt_tokens") == Some(tokens));
    ensure!(
        is_same,
        "the report is of another trace: {} requests with {} prompt tokens; this one has {requests} with {tokens}",
        report["requests"],
        report["prompt_tokens"]
    );
    Ok(())
}

/// Sends each request at its arrival time.
async fn send(connection: &ConnectionArgs, trace: &Trace) -> anyhow::Result<Outcome> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(InferenceClient::new(connection.connect().await?));
    }
    let mut asks = Request::new(GetModelInfoRequest {});
    connection.authorise(&mut asks)?;
    let vocab_size = clients[0].get_model_info(asks).await.map_err(status_error)?.into_inner().vocab_size;
    let (begin, mut source) = (Instant::now(), trace.source());
    let mut streams = JoinSet::new();
    let (mut seen, mut n_sent) = (Outcome::default(), 0);
    loop {
        let arrival = source.next_arrival_ns()?.map(|ns| (begin + Duration::from_nanos(ns)).into());
        let ended = match arrival {
            Some(arrival) => tokio::time::timeout_at(arrival, streams.join_next()).await.ok().flatten(),
            None => streams.join_next().await,
        };
        if let Some(stream) = ended {
            // A request that fails ends the load at once, however many are still to come; one that ends may bring the next forward.
            let (number, is_prefetch, answer): (usize, bool, Result<Stream, Status>) = stream?;
            source.ended(number as u64, begin.elapsed().as_nanos() as u64, trace::Outcome::Completed);
            // A prefetch has no latencies.
            if !is_prefetch || answer.is_err() {
                seen.add((number, answer))?;
            }
            continue;
        }
        let Some(arrival) = arrival else { break };
        tokio::time::sleep_until(arrival).await;
        let mut request = Request::new(request(&source.next_request()?.expect("the next arrival"), vocab_size));
        connection.authorise(&mut request)?;
        let (at, client) = (n_sent, clients[n_sent % CONNECTIONS].clone());
        let is_prefetch = request.get_ref().prefetch;
        streams.spawn(async move { (at, is_prefetch, read(client, request).await) });
        n_sent += 1;
    }
    seen.duration = begin.elapsed();
    Ok(seen)
}

/// Returns the request to send for a request of a trace.
fn request(traced: &TraceRequest, vocab_size: u32) -> GenerateRequest {
    let id = |token: &u32| (unit(TOKEN_STREAM, u64::from(*token), 0) * f64::from(vocab_size)) as u32;
    let ids = traced.prompt().iter().map(id).collect();
    GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids })),
        stopping: Some(Stopping { max_tokens: Some(traced.output_tokens), ignore_eos: true, ..Stopping::default() }),
        retention: traced.retention.iter().map(crate::client::retain::sent).collect(),
        prefetch: traced.is_prefetch(),
        ..GenerateRequest::default()
    }
}

/// Sends a request and reads the answer to the end.
///
/// # Errors
/// If the server is not there, or refuses or fails the request.
pub async fn read(
    mut client: InferenceClient<Channel>,
    request: impl IntoRequest<GenerateRequest>,
) -> Result<Stream, Status> {
    let begin = Instant::now();
    let elapsed_ns = || begin.elapsed().as_nanos() as u64;
    let mut seen = Stream::default();
    let mut stream = client.generate(request).await?.into_inner();
    loop {
        // A request with tokens was not refused, whatever ended it.
        let read = stream.message().await;
        let cut = |status: Status| if seen.output_tokens > 0 { Status::aborted(status.message()) } else { status };
        let Some(message) = read.map_err(cut)? else { return Ok(seen) };
        match message.event {
            Some(Event::Chunk(chunk)) => {
                seen.e2e_ns = elapsed_ns();
                if seen.output_tokens == 0 {
                    seen.ttft_ns = seen.e2e_ns;
                }
                seen.output_tokens += chunk.token_ids.len() as u32;
            }
            Some(Event::Finish(finish)) => {
                let usage = finish.usage.unwrap_or_default();
                (seen.prompt_tokens, seen.cached_tokens) = (usage.prompt_tokens, usage.cached_tokens);
            }
            _ => {}
        }
    }
}

fn summary(Outcome { streams, refused, duration, .. }: &Outcome) -> Seen {
    let (mut ttft, mut tpot, mut e2e) = (Kept::default(), Kept::default(), Kept::default());
    for stream in streams {
        ttft.record(stream.ttft_ns);
        e2e.record(stream.e2e_ns);
        if stream.output_tokens > 1 {
            tpot.record((stream.e2e_ns - stream.ttft_ns) / u64::from(stream.output_tokens - 1));
        }
    }
    let sum = |of: fn(&Stream) -> u32| streams.iter().map(|stream| u64::from(of(stream))).sum();
    Seen {
        requests: streams.len() as u64,
        refused: *refused,
        prompt_tokens: sum(|stream| stream.prompt_tokens),
        cached_tokens: sum(|stream| stream.cached_tokens),
        output_tokens: sum(|stream| stream.output_tokens),
        duration_s: duration.as_secs_f64(),
        ttft_s: ttft.summary(),
        tpot_s: tpot.summary(),
        e2e_s: e2e.summary(),
    }
}

/// Returns the latencies in milliseconds, with those of a replay and the differences if there is a report.
fn table(seen: &Seen, against: Option<&serde_json::Value>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let head = ["", "mean", "p50", "p90", "p99"];
    table.set_header(head);
    for (name, key, summary) in
        [("TTFT", "ttft_s", &seen.ttft_s), ("TPOT", "tpot_s", &seen.tpot_s), ("E2E", "e2e_s", &seen.e2e_s)]
    {
        let live = [summary.mean, summary.p50, summary.p90, summary.p99];
        let mut row = |name: String, cells: [String; 4]| {
            table.add_row(std::iter::once(name).chain(cells));
        };
        row(format!("{name} ms"), live.map(|s| format!("{:.2}", s * 1e3)));
        let Some(report) = against else { continue };
        let replayed = ["mean", "p50", "p90", "p99"].map(|figure| report[key][figure].as_f64().unwrap_or(0.0));
        row("  in the replay".into(), replayed.map(|s| format!("{:.2}", s * 1e3)));
        let differences = std::array::from_fn(|i| format!("{:+.1} %", (live[i] / replayed[i] - 1.0) * 100.0));
        row("  difference".into(), differences);
    }
    for column in 1..head.len() {
        table.column_mut(column).expect("five columns").set_cell_alignment(CellAlignment::Right);
    }
    let Seen { requests, prompt_tokens, cached_tokens, output_tokens, duration_s, .. } = seen;
    format!(
        "{requests} requests in {duration_s:.1} s: {prompt_tokens} prompt tokens, {cached_tokens} of them cached, {output_tokens} generated\n\n{}",
        table.trim_fmt()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use trunkline_sim_workload::trace::Content;

    use super::*;

    fn traced(number: u32) -> TraceRequest {
        TraceRequest {
            arrival_ns: 0,
            input_tokens: 64,
            output_tokens: 7,
            content: Content::Unique(number),
            ..TraceRequest::default()
        }
    }

    #[test]
    fn equal_contents_are_equal_prompts_within_the_vocabulary() {
        let ids = |number| match request(&traced(number), 1000).prompt.unwrap() {
            Prompt::TokenIds(ids) => ids.ids,
            other => panic!("{other:?}"),
        };
        assert_eq!(ids(5), ids(5));
        assert!(ids(5).iter().all(|id| *id < 1000) && ids(5).iter().collect::<BTreeSet<_>>().len() > 30);
        // Numbers 1000 apart would be one prompt if ids were cut to the vocabulary.
        assert_ne!(ids(5), ids(1005));
        assert_eq!(request(&traced(5), 1000).stopping.unwrap().max_tokens, Some(7));
    }

    #[test]
    fn figures_are_those_of_a_replay_and_stand_beside_them() {
        let stream = |ttft_ms: u64, e2e_ms: u64, output_tokens| Stream {
            prompt_tokens: 10,
            cached_tokens: 3,
            output_tokens,
            ttft_ns: ttft_ms * 1_000_000,
            e2e_ns: e2e_ms * 1_000_000,
        };
        let streams = vec![stream(10, 50, 5), stream(20, 20, 1)];
        let seen = summary(&Outcome { streams, duration: Duration::from_secs(2), ..Outcome::default() });
        assert_eq!((seen.requests, seen.prompt_tokens, seen.cached_tokens, seen.output_tokens), (2, 20, 6, 6));
        assert_eq!((seen.ttft_s.mean, seen.tpot_s.mean, seen.e2e_s.p99), (0.015, 0.01, 0.05));
        let of = |mean: f64| serde_json::json!({ "mean": mean, "p50": mean, "p90": mean, "p99": mean });
        let report = serde_json::json!({ "ttft_s": of(0.01), "tpot_s": of(0.01), "e2e_s": of(0.1) });
        let text = table(&seen, Some(&report));
        assert!(text.contains("+50.0 %") && text.contains("-50.0 %") && text.contains("+0.0 %"), "{text}");
        assert!(!table(&seen, None).contains('%'));
    }

    #[test]
    fn refused_requests_are_counted_and_failed_ones_end_the_load() {
        let mut outcome = Outcome::default();
        for number in [3, 1, 2] {
            outcome.add((number, Err(Status::invalid_argument(format!("too large: {number}"))))).unwrap();
        }
        outcome.add((0, Ok(Stream::default()))).unwrap();
        assert_eq!((outcome.streams.len(), outcome.refused), (1, 3));
        assert_eq!(outcome.first_refused.as_ref().unwrap().0, 1);
        assert_eq!((summary(&outcome).requests, summary(&outcome).refused), (1, 3));
        let failed = outcome.add((7, Err(Status::unavailable("gone")))).unwrap_err();
        assert!(format!("{failed:#}").starts_with("request 7: "), "{failed:#}");
    }

    #[test]
    fn a_report_of_another_trace_is_refused() {
        let trace = Trace { format: trace::formats::AZURE, requests: (0..3).map(traced).collect() };
        let report = |requests, completed, prompt_tokens| serde_json::json!({ "requests": requests, "completed": completed, "prompt_tokens": prompt_tokens });
        assert!(check_same(&report(3, 3, 192), &trace).is_ok());
        assert!(check_same(&report(3, 2, 128), &trace).is_ok(), "one was refused");
        assert!(check_same(&report(4, 4, 192), &trace).is_err());
        let fault = check_same(&report(3, 3, 200), &trace).unwrap_err().to_string();
        assert_eq!(fault, "the report is of another trace: 3 requests with 200 prompt tokens; this one has 3 with 192");
    }

    #[test]
    fn a_file_that_is_no_report_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        fs::write(&path, "[]").unwrap();
        let message = format!("{:#}", report(&path).unwrap_err());
        assert!(
            message.ends_with("is not a report of one replay; write it with `trunkline replay --json`"),
            "{message}"
        );
    }
}
