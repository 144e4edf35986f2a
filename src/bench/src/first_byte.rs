//! The first byte of a long chat over HTTP, compared with what its tokenizer alone takes for the prompt.
//!
//! The server has the null worker, and the tokenizer and the template of a model. A run measures the tokenizer before and behind the chat, on the
//! same prompt, and then how soon short chats are answered while another long one is tokenised. Each run has a text of its own, so that no prompt
//! is in the cache.

mod chat;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use trunkline_core::blocks::hash::Namespace;
use trunkline_core::{Config, Request, RequestId};
use trunkline_http::Settings;
use trunkline_template::{ChatTemplate, Conversation};
use trunkline_text::Tokenizer;

use super::http_client;
use super::measure::{Report, quantile, time_ns};
use super::null_server::NullServer;
use trunkline::model::model_source::ModelSource;
use trunkline::model::null_worker::MAX_CONTEXT;
use trunkline::settings::http_settings::HttpSettings;

const NOTES: [&str; 4] = [
    "One server with the null worker; a streamed chat of 33 messages of words and numbers, over HTTP on the loopback.",
    "The first byte is that of the answer's body, since the first byte of the request. The bar: 1.2 times the tokenizer's own time.",
    "The rest is the first byte without the tokenizer: JSON, template, hashes, admission, transfer.",
    "Meanwhile: while a long chat is on the way to its first byte.",
];
/// Tokens in a block of the server.
const BLOCK_SIZE: u32 = 16;
/// Words by which the tokens of a word are estimated.
const SAMPLE_WORDS: usize = 4096;
/// Short chats of a run without a long one.
const SHORT_CHATS: usize = 20;

/// Chats to measure, and the model that makes prompts of them.
#[derive(Clone, Debug)]
pub struct Load {
    /// Model whose tokenizer and template are used; `None` for the one that is built in.
    pub model: Option<PathBuf>,
    /// File with the template; `None` for that of the model.
    pub template: Option<PathBuf>,
    /// Tokens of a long chat, about.
    pub tokens: u32,
    /// Measurements, each of another text.
    pub runs: u32,
}

/// A server, and what it makes prompts with.
struct Bench {
    server: NullServer,
    tokenizer: Tokenizer,
    template: Arc<ChatTemplate>,
}

/// One measurement, times in milliseconds.
struct Run {
    tokens: usize,
    bytes: usize,
    tokenizer: f64,
    first_byte: f64,
    first_token: f64,
    template: f64,
    hashes: f64,
    /// First bytes of short chats without and with a long one on the way, sorted.
    short: Vec<f64>,
    meanwhile: Vec<f64>,
}

/// Measures the chats of a load.
///
/// # Errors
/// If the tokenizer or the template cannot be read, the server cannot start, or a chat fails.
pub fn run(load: &Load, quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new("first-byte", quick, NOTES.to_vec());
    let bench = Bench::start(load)?;
    let words = bench.words(load.tokens)?;
    // Fills the tokenizer's own cache of words, and starts all threads.
    bench.measure(0, words)?;
    let runs = (1..=u64::from(load.runs)).map(|run| bench.measure(run, words)).collect::<anyhow::Result<Vec<Run>>>()?;
    bench.server.stop()?;
    let case = format!("{} tokens, {} KiB", runs[0].tokens, runs[0].bytes >> 10);
    let mut add = |what: &str, unit, value: &dyn Fn(&Run) -> f64| {
        report.add(what, case.clone(), unit, runs.iter().map(value).collect());
    };
    add("tokenizer alone", "ms", &|run| run.tokenizer);
    add("first byte", "ms", &|run| run.first_byte);
    add("first byte, ratio", "", &|run| run.first_byte / run.tokenizer);
    add("rest", "ms", &|run| run.first_byte - run.tokenizer);
    add("template alone", "ms", &|run| run.template);
    add("hashes alone", "ms", &|run| run.hashes);
    add("first token", "ms", &|run| run.first_token);
    add("first byte of a short chat", "ms", &|run| quantile(&run.short, 0.5));
    add("first byte of a short chat meanwhile", "ms", &|run| quantile(&run.meanwhile, 0.5));
    add("the slowest of them", "ms", &|run| quantile(&run.meanwhile, 1.0));
    Ok(report)
}

impl Bench {
    fn start(load: &Load) -> anyhow::Result<Self> {
        let model = load.model.as_deref().map(folder_of);
        let tokenizer = ModelSource::of(model).tokenizer()?;
        let settings = HttpSettings { chat_template: load.template.clone(), ..HttpSettings::default() }.door(model)?;
        let template = match settings.template {
            Some(template) => template,
            None => built_in()?,
        };
        let http = Settings { template: Some(Arc::clone(&template)), ..Settings::default() };
        let core = Config { block_size: BLOCK_SIZE, device_blocks: 2 * MAX_CONTEXT / BLOCK_SIZE, ..Config::default() };
        let server = NullServer::start(core, tokenizer.clone(), Duration::ZERO, http, |_| {})?;
        Ok(Self { server, tokenizer, template })
    }

    /// Returns the words of a message with which a chat has about so many tokens.
    fn words(&self, tokens: u32) -> anyhow::Result<usize> {
        let sample = chat::messages(u64::MAX, SAMPLE_WORDS / chat::MESSAGES);
        let each = self.tokenizer.encode_with(&self.prompt(&sample)?, false)?.len() as f64 / SAMPLE_WORDS as f64;
        Ok((f64::from(tokens) / each) as usize / chat::MESSAGES)
    }

    /// Returns the prompt that the template makes of messages.
    fn prompt(&self, messages: &Value) -> anyhow::Result<String> {
        let messages = serde_json::from_value(messages.clone())?;
        Ok(self.template.render_openai(&Conversation::new(messages, std::time::SystemTime::now()))?)
    }

    fn request(&self, messages: &Value) -> String {
        let body = json!({
            "messages": messages,
            "max_tokens": 1,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        http_client::request(&self.server.address, "/v1/chat/completions", &body)
    }

    /// Returns the tokens of a prompt, and the time that they take.
    fn tokenise(&self, prompt: &str) -> anyhow::Result<(Vec<u32>, f64)> {
        let begin = Instant::now();
        let ids = self.tokenizer.encode_with(prompt, false)?;
        Ok((ids, begin.elapsed().as_secs_f64() * 1e3))
    }

    /// Measures the chats of run number `run`, with so many words in a message.
    fn measure(&self, run: u64, words: usize) -> anyhow::Result<Run> {
        let address = &self.server.address;
        let messages = chat::messages(2 * run, words);
        let begin = Instant::now();
        let prompt = self.prompt(&messages)?;
        let template = begin.elapsed().as_secs_f64() * 1e3;
        let long = self.request(&messages);
        let (_, before) = self.tokenise(&prompt)?;
        let answer = chat::ask(address, &long, || {})?;
        let (ids, behind) = self.tokenise(&prompt)?;
        let (tokens, bytes) = (ids.len(), prompt.len());
        ensure!(answer.prompt_tokens == tokens as u64, "{} of {tokens} tokens arrived", answer.prompt_tokens);
        let mut request = Request::new(RequestId(0), Namespace::default().root(), ids, 1);
        let hashes = time_ns(|| request.hash_prompt(BLOCK_SIZE)) / 1e6;
        let short = self.request(&json!([{"role": "user", "content": "How are you?"}]));
        let times = (0..SHORT_CHATS).map(|_| Ok(chat::ask(address, &short, || {})?.first_byte));
        let mut without = times.collect::<anyhow::Result<Vec<f64>>>()?;
        let other = self.request(&chat::messages(2 * run + 1, words));
        let mut meanwhile = chat::ask_meanwhile(address, &other, &short)?;
        without.sort_by(f64::total_cmp);
        meanwhile.sort_by(f64::total_cmp);
        let tokenizer = (before + behind) / 2.0;
        let (first_byte, first_token) = (answer.first_byte, answer.first_token);
        Ok(Run { tokens, bytes, tokenizer, first_byte, first_token, template, hashes, short: without, meanwhile })
    }
}

/// Returns the folder of a `tokenizer.json`; a folder, or a GGUF file, stands for itself.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() && path.ends_with("tokenizer.json") => Path::new("."),
        Some(folder) if path.ends_with("tokenizer.json") => folder,
        _ => path,
    }
}

/// Returns the template for models that have none.
fn built_in() -> anyhow::Result<Arc<ChatTemplate>> {
    let source = ModelSource::Random.chat()?.context("there is a template for models without files")?;
    Ok(Arc::new(ChatTemplate::new(source)?))
}
