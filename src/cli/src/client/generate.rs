//! `trunkline generate`: one request to a server.

use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Serialize;
use tonic::{Code, Request, Status, Streaming};
use trunkline_server::proto;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;

use crate::client::connection::{ConnectionArgs, status_error};

/// Exit status of a command ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

const EXAMPLES: &str = "\
Examples:
  trunkline generate 'Once upon a time'
  trunkline generate --max-tokens 200 --temperature 0.8 --seed 7 'Once upon a time'
  trunkline generate --json --token-ids 72,101,108,108,111
  trunkline generate --stop '.' - < prompt.txt
  trunkline generate --retain prompt:priority=80,ttl_ms=60000 --retain answer:priority=0 - < prompt.txt
  trunkline generate --prefetch - < prompt.txt
  trunkline generate --json --logprobs 3 'Once upon a time' | jq .logprobs
  trunkline generate --addr example.org:50051 --tls-ca ca.pem --token-file my-token 'Once upon a time'

Text goes to standard output as it comes, a line of figures to standard error. Ctrl-C cancels the request.";

/// Flags of what a prefetch does not do.
const OF_GENERATION: [&str; 15] = [
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "temperature",
    "seed",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "priority",
    "h2o",
    "reuse",
    "logprobs",
];

/// Continue a prompt on a running server.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct GenerateArgs {
    /// Prompt; `-` reads the prompt from standard input.
    #[arg(required_unless_present = "token_ids", conflicts_with = "token_ids")]
    prompt: Option<String>,

    /// Prompt as token ids, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    token_ids: Vec<u32>,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// Add no special tokens, such as one that begins a text, around the prompt.
    #[arg(long, conflicts_with = "token_ids")]
    no_special_tokens: bool,

    /// Generate nothing: bring what tiers hold of the prompt to the device, and print how much of it is there then.
    #[arg(long, conflicts_with_all = OF_GENERATION)]
    prefetch: bool,

    #[command(flatten)]
    stopping: StoppingArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Share cached blocks only with requests of an equal salt [default: none].
    #[arg(long, value_name = "SALT")]
    cache_salt: Option<String>,

    /// Tenant of the request, for policies that share service among tenants and for the tenant's own cache; a server with tokens allows
    /// the name of the token alone [default: the name of the token, else the salt].
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Priority under the policies that use priorities; lower is served first.
    #[arg(long, value_name = "P", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,

    /// Eviction within the sequence: off, probe or on [default: as the server was started].
    #[arg(long, value_name = "MODE")]
    h2o: Option<String>,

    /// Cached text to take KV from: prefix, which is exact, or anywhere, for runs of tokens cached at other places too [default: as the server was
    /// started].
    #[arg(long, value_name = "KIND")]
    reuse: Option<String>,

    /// Priority of a range of tokens in the prefix cache after the request, 0 to 100, where 35 is the default and lower is evicted first:
    /// `prompt`, `answer`, `FROM..TO` or `FROM..`, with a time to live if the priority shall fall to the default, as in
    /// `prompt:priority=80,ttl_ms=60000`. May be given more than once.
    #[arg(long, value_name = "SPEC", value_parser = crate::client::retain::hint)]
    retain: Vec<proto::RetentionHint>,

    /// Type of the KV for the request; some worker must have the type [default: the first worker's].
    #[arg(long, value_name = "TYPE")]
    kv_dtype: Option<String>,

    /// Id of the request in logs and for aborts [default: made by the server].
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Fail after this many seconds [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,

    /// Report the log probability of each token and of the N most likely alternatives. Needs --json.
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<u32>,

    /// Print one JSON object at the end instead of text.
    #[arg(long)]
    json: bool,
}

/// Conditions at which generation stops.
#[derive(Args)]
struct StoppingArgs {
    /// Tokens to generate, at most [default: 128, from the server].
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,

    /// Tokens to generate before any stop condition applies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_tokens: u32,

    /// Stop before this text. May be given more than once.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Stop after any of these tokens.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    stop_token_ids: Vec<u32>,

    /// Continue after the model's end-of-sequence token.
    #[arg(long)]
    ignore_eos: bool,
}

/// Choice of the next token.
#[derive(Args)]
pub struct SamplingArgs {
    /// Sampling temperature: 0 always takes the most likely token; 1 samples from the model's distribution.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,

    /// Seed of sampling; equal seeds give equal text [default: picked by the server].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Sample among the smallest set of tokens with at least this probability in total [default: 1].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Sample among this many most likely tokens; 0 is all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,

    /// Drop tokens less likely than this share of the most likely one.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,

    /// Make tokens seen before less likely (above 1) or more likely (below 1) [default: 1].
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
}

impl SamplingArgs {
    /// Returns the parameters as a request has them.
    pub fn message(&self) -> proto::Sampling {
        proto::Sampling {
            temperature: Some(self.temperature),
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            ..proto::Sampling::default()
        }
    }
}

/// Output of `--json`.
#[derive(Debug, Default, Serialize)]
struct Report {
    request_id: String,
    text: String,
    token_ids: Vec<u32>,
    finish_reason: &'static str,
    /// Reason for an incomplete answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Token counts; sent only at the end of an answer.
    #[serde(flatten)]
    usage: Option<Usage>,
    /// Seconds from sending the request to its first token.
    ttft_s: Option<f64>,
    /// Seconds from sending the request to its end.
    e2e_s: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: u32,
    cached_tokens: u32,
    copied_tokens: u32,
    loaded_tokens: u32,
    pinned_tokens: u32,
    completion_tokens: u32,
    preemptions: u32,
}

impl From<proto::Usage> for Usage {
    fn from(usage: proto::Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            copied_tokens: usage.copied_tokens,
            loaded_tokens: usage.loaded_tokens,
            pinned_tokens: usage.pinned_tokens,
            completion_tokens: usage.completion_tokens,
            preemptions: usage.preemptions,
        }
    }
}

impl Usage {
    /// Returns what a prefetch did.
    fn prefetched(&self) -> String {
        let Self { prompt_tokens, cached_tokens, loaded_tokens, pinned_tokens, .. } = self;
        let pinned = if *pinned_tokens > 0 { format!(", {pinned_tokens} pinned") } else { String::new() };
        format!(
            "{cached_tokens} of {prompt_tokens} prompt tokens on the device ({loaded_tokens} loaded from tiers{pinned})"
        )
    }
}

#[derive(Debug, Serialize)]
struct TokenLogprob {
    token_id: u32,
    logprob: f32,
    top: Vec<(u32, f32)>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_string())?;
    let timeout = Duration::try_from_secs_f64(seconds).map_err(|err| err.to_string())?;
    if timeout.is_zero() { Err("it must be above 0".into()) } else { Ok(timeout) }
}

/// Sends the request and prints the answer.
///
/// # Errors
///
/// If the server cannot be reached, refuses the request, fails on the request or does not finish the answer.
pub fn run(args: GenerateArgs) -> anyhow::Result<ExitCode> {
    let request = request(&args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        tokio::select! {
            result = generate(&args, request) => result,
            // Ending the process closes the stream, which aborts the request on the server.
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
        }
    })
}

pub(crate) fn request(args: &GenerateArgs) -> anyhow::Result<proto::GenerateRequest> {
    use proto::generate_request::Prompt;
    let prompt = match &args.prompt {
        None => Prompt::TokenIds(proto::TokenIds { ids: args.token_ids.clone() }),
        Some(prompt) if prompt == "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input")?;
            Prompt::Text(text)
        }
        Some(prompt) => Prompt::Text(prompt.clone()),
    };
    let timeout_ms = args.timeout.map_or(Ok(0), |timeout| u32::try_from(timeout.as_millis().max(1)));
    Ok(proto::GenerateRequest {
        request_id: args.request_id.clone().unwrap_or_default(),
        prompt: Some(prompt),
        add_special_tokens: args.no_special_tokens.then_some(false),
        sampling: Some(args.sampling.message()),
        stopping: Some(proto::Stopping {
            max_tokens: if args.prefetch { Some(0) } else { args.stopping.max_tokens },
            min_tokens: args.stopping.min_tokens,
            stop: args.stopping.stop.clone(),
            stop_token_ids: args.stopping.stop_token_ids.clone(),
            ignore_eos: args.stopping.ignore_eos,
        }),
        output: Some(proto::Output { logprobs: args.logprobs, ..proto::Output::default() }),
        cache_salt: args.cache_salt.clone().unwrap_or_default(),
        tenant: args.tenant.clone().unwrap_or_default(),
        priority: args.priority,
        h2o: args.h2o.clone().unwrap_or_default(),
        reuse: args.reuse.clone().unwrap_or_default(),
        kv_dtype: args.kv_dtype.clone().unwrap_or_default(),
        retention: args.retain.clone(),
        prefetch: args.prefetch,
        timeout_ms: timeout_ms.context("--timeout is above 49 days; leave it out instead")?,
        ..Default::default()
    })
}

async fn generate(args: &GenerateArgs, request: proto::GenerateRequest) -> anyhow::Result<ExitCode> {
    let mut request = Request::new(request);
    args.connection.authorise(&mut request)?;
    let channel = args.connection.connect().await?;
    let sent = Instant::now();
    let stream = InferenceClient::new(channel).generate(request).await.map_err(status_error)?.into_inner();
    let mut report = Report::default();
    let result = read(args, stream, &mut report, sent).await;
    report.e2e_s = sent.elapsed().as_secs_f64();
    let result = report.close(result);
    let mut stdout = io::stdout();
    if !args.json && !report.text.is_empty() && !report.text.ends_with('\n') {
        writeln!(stdout)?;
    }
    // Print the part before a failure too.
    if args.json && (report.usage.is_some() || !report.token_ids.is_empty()) {
        writeln!(stdout, "{}", serde_json::to_string(&report)?)?;
    }
    result?;
    if args.json {
        return Ok(ExitCode::SUCCESS);
    }
    let Some(usage) = &report.usage else { return Ok(ExitCode::SUCCESS) };
    if args.prefetch {
        writeln!(stdout, "{}", usage.prefetched())?;
        return Ok(ExitCode::SUCCESS);
    }
    let figures = format!(
        "{}: {} prompt tokens ({} cached{}), {} generated, TTFT {:.3} s, E2E {:.3} s",
        report.finish_reason,
        usage.prompt_tokens,
        usage.cached_tokens,
        if usage.copied_tokens > 0 { format!(", {} copied", usage.copied_tokens) } else { String::new() },
        usage.completion_tokens,
        report.ttft_s.unwrap_or(report.e2e_s),
        report.e2e_s,
    );
    // If standard error is closed, the answer still counts.
    let dim = io::stderr().is_terminal();
    let _ = if dim { writeln!(io::stderr(), "\x1b[2m{figures}\x1b[0m") } else { writeln!(io::stderr(), "{figures}") };
    Ok(ExitCode::SUCCESS)
}

async fn read(
    args: &GenerateArgs,
    mut stream: Streaming<proto::GenerateResponse>,
    report: &mut Report,
    sent: Instant,
) -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    while let Some(response) = stream.message().await.map_err(|status| report.failed(status))? {
        report.request_id = response.request_id;
        match response.event {
            Some(Event::Chunk(chunk)) => {
                report.ttft_s.get_or_insert_with(|| sent.elapsed().as_secs_f64());
                if !args.json {
                    stdout.write_all(chunk.text.as_bytes())?;
                    stdout.flush()?;
                }
                report.text.push_str(&chunk.text);
                report.token_ids.extend(chunk.token_ids);
                report.logprobs.extend(chunk.logprobs.into_iter().map(|of| TokenLogprob {
                    token_id: of.token_id,
                    logprob: of.logprob,
                    top: of.top.into_iter().map(|other| (other.token_id, other.logprob)).collect(),
                }));
            }
            Some(Event::Finish(finish)) => {
                let usage = finish.usage.unwrap_or_default();
                report.finish_reason = reason(finish.reason());
                report.usage = Some(usage.into());
                return Ok(());
            }
            // An event of a newer server, unknown to this client.
            None => {}
        }
    }
    bail!("the server closed the stream before its end")
}

impl Report {
    /// Turns the status of a failed request into an error; notes a timeout.
    fn failed(&mut self, status: Status) -> anyhow::Error {
        if status.code() == Code::DeadlineExceeded {
            self.finish_reason = "timeout";
        }
        status_error(status)
    }

    /// Closes the report. An incomplete answer is a failure, whether the server or a client ended it.
    fn close(&mut self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        let aborted = self.finish_reason == reason(proto::FinishReason::Abort);
        let result = match result {
            Ok(()) if aborted => Err(anyhow!("the request was aborted, or the server shut down, before its end")),
            result => result,
        };
        if let Err(err) = &result {
            self.error = Some(format!("{err:#}"));
            if self.finish_reason.is_empty() {
                self.finish_reason = "error";
            }
        }
        result
    }
}

fn reason(reason: proto::FinishReason) -> &'static str {
    match reason {
        proto::FinishReason::Unspecified => "unspecified",
        proto::FinishReason::Stop => "stop",
        proto::FinishReason::Length => "length",
        proto::FinishReason::Abort => "abort",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: GenerateArgs,
    }

    fn parse(words: &[&str]) -> Result<proto::GenerateRequest, clap::Error> {
        let args = Cli::try_parse_from([&["generate"], words].concat())?.args;
        Ok(request(&args).expect("the request can be made"))
    }

    #[test]
    fn a_prompt_is_text_or_token_ids_and_not_both() {
        use proto::generate_request::Prompt;
        assert_eq!(parse(&["hello"]).unwrap().prompt, Some(Prompt::Text("hello".into())));
        let ids = proto::TokenIds { ids: vec![1, 2, 3] };
        assert_eq!(parse(&["--token-ids", "1,2,3"]).unwrap().prompt, Some(Prompt::TokenIds(ids)));
        assert!(parse(&[]).is_err());
        assert!(parse(&["hello", "--token-ids", "1"]).is_err());
        assert!(parse(&["--token-ids", "1,x"]).is_err());
    }

    #[test]
    fn the_default_is_greedy_and_leaves_the_rest_to_the_server() {
        let request = parse(&["hello"]).unwrap();
        let sampling = proto::Sampling { temperature: Some(0.0), ..Default::default() };
        assert_eq!(request.sampling, Some(sampling));
        assert_eq!(request.stopping, Some(proto::Stopping::default()));
        assert_eq!(request.timeout_ms, 0);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_a_failure_and_says_why() {
        let json = |report: &Report| serde_json::to_value(report).unwrap();
        let begun = || Report { text: "ab".into(), token_ids: vec![97, 98], ..Report::default() };

        let usage = || proto::Usage { prompt_tokens: 5, completion_tokens: 2, ..proto::Usage::default() }.into();
        let mut whole = Report { finish_reason: "length", usage: Some(usage()), ..begun() };
        assert!(whole.close(Ok(())).is_ok());
        assert_eq!((&json(&whole)["prompt_tokens"], json(&whole).get("error")), (&5.into(), None));

        let mut aborted = Report { finish_reason: "abort", usage: Some(usage()), ..begun() };
        assert!(aborted.close(Ok(())).is_err());
        assert_eq!(json(&aborted)["finish_reason"], "abort");

        for (status, finish_reason, error) in [
            (Status::deadline_exceeded("time was up"), "timeout", "timeout: time was up"),
            (Status::internal("broken"), "error", "the server says: broken"),
        ] {
            let mut report = begun();
            let failed = report.failed(status);
            assert_eq!(report.close(Err(failed)).unwrap_err().to_string(), error);
            let json = json(&report);
            assert_eq!((&json["finish_reason"], &json["error"]), (&finish_reason.into(), &error.into()));
            assert_eq!((&json["text"], json.get("prompt_tokens")), (&"ab".into(), None));
        }
    }

    #[test]
    fn a_prefetch_asks_for_no_tokens_and_says_what_is_on_the_device() {
        let request = parse(&["hello", "--prefetch", "--retain", "prompt:priority=100,ttl_ms=1000,pin=1"]).unwrap();
        assert!(request.prefetch && request.retention[0].pin);
        assert_eq!(request.stopping.unwrap().max_tokens, Some(0));
        let mut usage: Usage =
            proto::Usage { prompt_tokens: 41, cached_tokens: 32, loaded_tokens: 16, ..Default::default() }.into();
        assert_eq!(usage.prefetched(), "32 of 41 prompt tokens on the device (16 loaded from tiers)");
        usage.pinned_tokens = 8;
        assert_eq!(usage.prefetched(), "32 of 41 prompt tokens on the device (16 loaded from tiers, 8 pinned)");
    }

    #[test]
    fn a_prefetch_with_a_flag_of_generation_is_refused_by_the_name_of_the_flag() {
        for flag in OF_GENERATION {
            let flag = format!("--{}", flag.replace('_', "-"));
            let value = if flag == "--ignore-eos" { flag.clone() } else { format!("{flag}=1") };
            // Log probabilities are only in the JSON.
            let error = parse(&["hello", "--prefetch", "--json", &value]).unwrap_err().to_string();
            let first = error.lines().next().unwrap();
            assert!(first.contains("'--prefetch' cannot be used with") && first.contains(&flag), "{error}");
        }
    }

    #[test]
    fn flags_reach_the_request() {
        let request =
            parse(&["hello", "--stop", "a", "--stop", "-b", "--timeout", "1.5", "--priority", "-4", "--tenant", "t"])
                .unwrap();
        assert_eq!(request.stopping.unwrap().stop, ["a", "-b"]);
        assert_eq!((request.timeout_ms, request.priority, &request.tenant[..]), (1500, -4, "t"));
        assert_eq!((request.add_special_tokens, parse(&["hello"]).unwrap().add_special_tokens), (None, None));
        assert_eq!(parse(&["hello", "--no-special-tokens"]).unwrap().add_special_tokens, Some(false));
        assert!(parse(&["--token-ids", "1", "--no-special-tokens"]).is_err());
        assert!(parse(&["hello", "--tls-cert", "c", "--tls-key", "k"]).is_err(), "a certificate needs TLS");
        assert!(parse(&["hello", "--timeout", "0"]).is_err());
        assert!(parse(&["hello", "--timeout", "nan"]).is_err());
        assert!(parse(&["hello", "--logprobs", "2"]).is_err(), "log probabilities are only in the JSON");
        assert_eq!(parse(&["hello", "--logprobs", "2", "--json"]).unwrap().output.unwrap().logprobs, Some(2));
    }
}
