//! The program as a process: signals, logs, and the rights of the files that it writes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

/// Process of the program that ends with its value.
struct Running {
    child: Child,
    lines: Receiver<String>,
    /// Lines read so far, of standard output and standard error.
    seen: Vec<String>,
    address: String,
}

fn trunkline(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(words).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

impl Running {
    /// Starts the program under the usual mask, which lets everybody read files.
    fn start(words: &[&str]) -> Self {
        Self::start_after("umask 022", words)
    }

    /// Starts the program after a command of the shell.
    fn start_after(before: &str, words: &[&str]) -> Self {
        let (program, script) = (env!("CARGO_BIN_EXE_trunkline"), format!("{before}; exec \"$0\" \"$@\""));
        let mut command = Command::new("sh");
        command.args(["-c", &script, program]).args(words).env_remove("RUST_LOG");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let pipes: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for pipe in pipes {
            let send = send.clone();
            thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    // The test may have seen enough.
                    let _ = send.send(line);
                }
            });
        }
        Self { child, lines, seen: Vec::new(), address: String::new() }
    }

    /// Starts a server on a free port and waits until it listens.
    fn serve(flags: &[&str]) -> Self {
        Self::serve_after("umask 022", flags)
    }

    /// Does the same after a command of the shell.
    fn serve_after(before: &str, flags: &[&str]) -> Self {
        let mut server = Self::start_after(before, &[&["serve", "--listen=127.0.0.1:0"], flags].concat());
        let line = server.until(|line| line.starts_with("listening on "));
        server.address = line.rsplit('/').next().unwrap().to_owned();
        server
    }

    /// Waits for a line.
    fn until(&mut self, is_wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.lines.recv().unwrap_or_else(|_| panic!("the process ended: {:#?}", self.seen));
            self.seen.push(line.clone());
            if is_wanted(&line) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Ends the process by SIGTERM, and returns all lines.
    fn end(mut self) -> Vec<String> {
        self.signal("TERM");
        assert!(self.child.wait().unwrap().success(), "{:#?}", self.seen);
        self.seen.extend(self.lines.iter());
        std::mem::take(&mut self.seen)
    }

    /// Sends a request and returns the answer in JSON.
    fn generate(&self, flags: &[&str]) -> Result<Value, String> {
        let addr = format!("--addr={}", self.address);
        let fixed = ["generate", addr.as_str(), "--json", "--max-tokens=4", "--ignore-eos"];
        let output = trunkline(&[&fixed, flags].concat()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(&text).map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const RANDOM: &str = "--model=random";

fn path(dir: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    let text = path.display().to_string();
    (path, text)
}

#[test]
fn a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, text) = path(&dir, "requests.csv");
    let mut server = Running::serve(&[RANDOM, &format!("--requests={text}")]);
    let answer = server.generate(&["--request-id=mine\"1", "--tenant=acme", "the secret words"]).unwrap();
    assert_eq!((answer["request_id"].as_str(), answer["token_ids"].as_array().unwrap().len()), (Some("mine\"1"), 4));
    let line = server.until(|line| line.contains("trunkline::requests"));
    for part in ["request_id=\"mine\\\"1\"", "tenant=\"acme\"", "reason=\"length\"", "status=\"OK\"", "output_tokens=4"]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    // The file is moved away, as logrotate does, and opened again; the server goes on.
    let (moved, _) = path(&dir, "requests.1");
    fs::rename(&rows, &moved).unwrap();
    server.signal("HUP");
    server.until(|line| line.contains("told to read files again"));
    server.generate(&["--request-id=second", "--token-ids=1,2,3"]).unwrap();
    server.until(|line| line.contains("request_id=\"second\""));
    let lines = server.end();
    assert!(lines.iter().all(|line| !line.contains("secret words")), "no prompt is in the log: {lines:#?}");
    let [before, after] = [moved, rows].map(|path| fs::read_to_string(path).unwrap());
    assert_eq!((before.lines().count(), after.lines().count()), (2, 2), "a header and a row each: {before}{after}");
    assert!(
        before.lines().nth(1).unwrap().starts_with("\"mine\"\"1\",") && after.contains("\nsecond,"),
        "{before}{after}"
    );
}

#[test]
fn a_log_in_json_has_an_object_a_line() {
    let mut server = Running::serve(&[RANDOM, "--log-format=json"]);
    server.generate(&["--request-id=mine", "a prompt"]).unwrap();
    server.until(|line| line.contains("trunkline::requests"));
    let lines = server.end();
    let objects: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let plain: Vec<_> = lines.iter().filter(|line| !line.starts_with('{')).collect();
    assert!(plain.iter().all(|line| line.starts_with("listening on ") || line.starts_with("digest ")), "{plain:#?}");
    let request = objects.iter().find(|object| object["request_id"] == "mine").expect("a line of the request");
    assert_eq!((&request["target"], &request["status"]), (&"trunkline::requests".into(), &"OK".into()));
    assert_eq!((&request["level"], request["output_tokens"].as_u64()), (&"INFO".into(), Some(4)));
}

#[test]
fn a_token_file_is_read_again_at_sighup() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, text) = path(&dir, "tokens");
    let (own, own_text) = path(&dir, "own");
    fs::write(&tokens, "an-admin-token-0001 admin ops\n").unwrap();
    fs::write(&own, "a-users-token-00001\n").unwrap();
    let mut server = Running::serve(&[RANDOM, &format!("--token-file={text}")]);
    let with_token = format!("--token-file={own_text}");
    assert!(server.generate(&[&with_token, "a prompt"]).is_err());
    fs::write(&tokens, "a-users-token-00001 generate me\n").unwrap();
    server.signal("HUP");
    server.until(|line| line.contains("read the token file"));
    assert!(server.generate(&[&with_token, "a prompt"]).is_ok());
    server.end();
}

#[test]
fn a_server_names_an_expired_certificate_at_its_start() {
    let pem = |name: &str| format!("{}/../../tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let lines = |cert: &str| {
        let flags =
            [RANDOM.to_owned(), format!("--tls-cert={}", pem(cert)), format!("--tls-key={}", pem("server.key"))];
        Running::serve(&flags.each_ref().map(String::as_str)).end()
    };
    let names = |lines: &[String]| lines.iter().filter(|line| line.contains("the TLS certificate expired ")).count();
    assert_eq!(names(&lines("server.pem")), 0);
    let expired = lines("expired.pem");
    assert_eq!(names(&expired), 1, "{expired:#?}");
}

/// Adds each file and folder below a folder, with its rights.
fn rights(folder: &Path, out: &mut Vec<(String, u32)>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        out.push((entry.path().display().to_string(), mode));
        if entry.path().is_dir() {
            rights(&entry.path(), out);
        }
    }
}

#[test]
fn a_prefetch_prints_how_much_of_the_prompt_is_on_the_device() {
    let server = Running::serve(&[RANDOM, "--block-size=8"]);
    let ids = "--token-ids=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18";
    let prefetch = |more: &[&str]| {
        let addr = format!("--addr={}", server.address);
        let output = trunkline(&[&["generate", addr.as_str(), "--prefetch", ids], more].concat()).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let line = |tokens| format!("{tokens} of 18 prompt tokens on the device (0 loaded from tiers)\n");
    assert_eq!(prefetch(&[]), (true, line(0), String::new()));
    server.generate(&[ids]).unwrap();
    assert_eq!(prefetch(&[]), (true, line(16), String::new()));
    let (_, json, _) = prefetch(&["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["cached_tokens"], &json["loaded_tokens"], &json["text"]), (&16.into(), &0.into(), &"".into()));
    server.end();
}

#[test]
fn nobody_else_may_read_what_a_server_writes() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["run.jsonl", "requests.jsonl", "disk", "remote"].map(|name| path(&dir, name).1);
    let [record, requests, disk, remote] = &names;
    // What was there before, readable by all.
    fs::write(record, "a recording of before\n").unwrap();
    let flags = [
        RANDOM.to_owned(),
        format!("--record={record}"),
        format!("--requests={requests}"),
        format!("--disk={disk}"),
        format!("--remote=file://{remote}"),
        "--block-size=8".to_owned(),
        "--disk-size=64MiB".to_owned(),
    ];
    let mut server = Running::serve(&flags.each_ref().map(String::as_str));
    server.generate(&["a prompt that is long enough for some blocks of eight tokens each"]).unwrap();
    server.until(|line| line.contains("trunkline::requests"));
    server.end();
    let mut found = Vec::new();
    rights(dir.path(), &mut found);
    let open: Vec<_> = found.iter().filter(|(_, mode)| mode & 0o077 != 0).collect();
    assert!(open.is_empty(), "others have rights: {open:?}");
    for kind in ["run.jsonl", "run.jsonl.old", "requests.jsonl", "disk/lock", ".tkv", "remote/v1"] {
        assert!(found.iter().any(|(path, _)| path.contains(kind)), "no {kind} was written: {found:#?}");
    }
}

#[test]
fn a_worker_goes_on_at_sighup_and_logs_in_json() {
    let mut server = Running::serve(&["--workers=0", RANDOM]);
    let connect = format!("--connect={}", server.address);
    let mut worker = Running::start(&["worker", "--log-format=json", RANDOM, "--device-blocks=64", &connect]);
    let dialling = worker.until(|line| line.contains("dialling"));
    assert!(serde_json::from_str::<Value>(&dialling).is_ok(), "{dialling}");
    server.until(|line| line.contains("serving "));
    assert!(server.generate(&["a prompt"]).is_ok());
    worker.signal("HUP");
    worker.until(|line| line.contains("there are no files to read again"));
    assert!(server.generate(&["another prompt"]).is_ok());
    worker.end();
    server.end();
}

#[test]
fn a_check_without_a_worker_ends_after_its_timeout() {
    let output = trunkline(&["worker", "check", "127.0.0.1:0", "--timeout=1"]).output().unwrap();
    assert!(!output.status.success());
    let output = trunkline(&["worker", "check", "127.0.0.1:0", "--timeout=0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 is not in 1.."), "{output:?}");
}

#[test]
fn a_message_shows_the_beginning_of_a_long_value_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(100_000);
    let file = |name: &str, text: String| {
        let (path, shown) = path(&dir, name);
        fs::write(path, text).unwrap();
        shown
    };
    let config = |name: &str, text: String| format!("--config={}", file(name, text));
    let trace = |name: &str, text: String| file(name, text);
    let flag = |name: &str| format!("--{name}={long}");
    let runs: Vec<Vec<String>> = vec![
        vec!["serve".into(), config("key.toml", format!("{long} = 1\n"))],
        vec!["serve".into(), config("value.toml", format!("policy = \"{long}\"\n"))],
        vec!["serve".into(), config("number.toml", format!("block-size = \"{long}\"\n"))],
        vec!["serve".into(), flag("policy")],
        vec!["serve".into(), flag("eviction")],
        vec!["serve".into(), format!("--policy=priority:{long}=1")],
        vec!["serve".into(), flag("target-step-ms")],
        vec!["serve".into(), flag("block-size")],
        vec!["serve".into(), flag("metrics")],
        vec!["serve".into(), flag("router")],
        vec!["serve".into(), flag("h2o")],
        vec!["serve".into(), flag("roles")],
        vec!["serve".into(), flag("remote")],
        vec!["serve".into(), "--worker".into(), format!("null:{long}")],
        vec!["replay".into(), trace("a.jsonl", format!("{{\"{long}\": 1}}\n"))],
        vec![
            "replay".into(),
            trace("b.jsonl", format!("{{\"timestamp\": \"{long}\", \"input_length\": 1, \"output_length\": 1}}\n")),
        ],
        vec!["replay".into(), trace("c.csv", format!("{long},b\n1,2\n"))],
        vec!["replay".into(), trace("d.jsonl", format!("{{\"timestamp\": 1, \"input_length\": \"{long}\"}}\n"))],
        vec!["plan".into(), trace("e.jsonl", String::new()), flag("slo")],
        vec!["sweep".into(), format!("--out={}", path(&dir, "out").1), file("f.toml", format!("{long} = 1\n"))],
        vec!["generate".into(), format!("--addr={long}"), "a".into()],
        vec!["worker".into(), flag("connect"), RANDOM.into()],
        vec![long.clone()],
    ];
    for run in runs {
        let words: Vec<&str> = run.iter().map(String::as_str).collect();
        let output = trunkline(&words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let about = words.iter().map(|word| word.chars().take(40).collect::<String>()).collect::<Vec<_>>().join(" ");
        assert!(!output.status.success(), "{about}");
        let shown = text.split(|c| c != 'x').map(str::len).max().unwrap_or_default();
        assert!(shown <= 200, "{about} shows {shown} characters: {text:.600}");
        // Quotes of a value in JSON count. Readers of traces keep no more than the beginning of a line.
        let says = ["(100000 characters)", "(100002 characters)", " of a known format: ", " of no known format; "];
        assert!(shown >= 199 && says.iter().any(|part| text.contains(part)), "{about}: {text:.600}");
    }
}

/// A collector of OpenTelemetry that keeps the spans.
#[cfg(feature = "otlp")]
mod collector {
    use std::net::SocketAddr;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
    use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::trace::v1::Span;
    use tokio::net::TcpListener;
    use tonic::transport::server::{Server, TcpIncoming};
    use tonic::{Request, Response, Status};

    struct Collector(Sender<Span>);

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: Request<ExportTraceServiceRequest>,
        ) -> Result<Response<ExportTraceServiceResponse>, Status> {
            let resources = request.into_inner().resource_spans;
            let spans = resources.into_iter().flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
            spans.for_each(|span| self.0.send(span).unwrap());
            Ok(Response::new(ExportTraceServiceResponse::default()))
        }
    }

    /// Starts a collector on a free port.
    pub fn start() -> (SocketAddr, Receiver<Span>) {
        let (send, spans) = channel();
        let (bound, address) = channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                let service = TraceServiceServer::new(Collector(send));
                Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
            });
        });
        (address.recv().unwrap(), spans)
    }

    /// Returns an attribute as a text.
    pub fn attribute(span: &Span, name: &str) -> Option<String> {
        let value = span.attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value?;
        Some(match value {
            Value::StringValue(text) => text,
            Value::IntValue(n) => n.to_string(),
            value => format!("{value:?}"),
        })
    }
}

/// Sends a request of HTTP and returns the first line of the answer, once it is whole.
#[cfg(feature = "otlp")]
fn complete(address: &str, header: &str, body: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n");
    write!(stream, "{head}content-type: application/json\r\n{header}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap().to_owned()
}

#[cfg(feature = "otlp")]
#[test]
fn requests_are_spans_of_their_clients_traces() {
    let (collector, spans) = collector::start();
    let mut server = Running::serve(&[RANDOM, &format!("--otlp-traces-endpoint=http://{collector}")]);
    let parent = |flags| format!("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
    let good = r#"{"prompt":"the secret words","max_tokens":4,"ignore_eos":true}"#;
    assert_eq!(complete(&server.address, &parent("01"), good), "HTTP/1.1 200 OK");
    assert_eq!(complete(&server.address, &parent("00"), good), "HTTP/1.1 200 OK");
    let long = good.replace("\"max_tokens\":4", "\"max_tokens\":99999999");
    assert_eq!(complete(&server.address, "traceparent: nonsense", &long), "HTTP/1.1 400 Bad Request");
    server.until(|line| line.contains("trunkline::requests"));
    server.end();
    let spans: Vec<_> = spans.try_iter().collect();
    let [span, refused] = &spans[..] else { panic!("the client of the second does not record its trace: {spans:#?}") };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ids = (hex(&span.trace_id), hex(&span.parent_span_id));
    assert_eq!((&ids.0[..], &ids.1[..]), ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"));
    let of = |name| collector::attribute(span, name).unwrap_or_default();
    assert_eq!(of("gen_ai.usage.completion_tokens"), "4");
    assert_eq!((of("gen_ai.response.finish_reason"), of("trunkline.engines")), ("length".into(), "0".into()));
    let events: Vec<_> = span.events.iter().map(|event| &event.name[..]).collect();
    assert_eq!(events, ["queued", "admitted", "first_token"]);
    let times: Vec<_> = span.events.iter().map(|event| event.time_unix_nano).collect();
    assert!(times.is_sorted() && span.start_time_unix_nano <= times[0] && times[2] <= span.end_time_unix_nano);
    assert!(refused.parent_span_id.is_empty() && refused.status.as_ref().is_some_and(|status| status.code == 2));
    assert!(!format!("{spans:?}").contains("secret"), "no prompt: {spans:#?}");
}

/// Bytes of the embedding of [`write_model`].
const EMBEDDING_MIB: usize = 64;

/// Writes a model in F32 with a large embedding, which is the head as well, and small layers.
fn write_model(folder: &Path) {
    const HIDDEN: usize = 128;
    const INNER: usize = 1024;
    let vocab = (EMBEDDING_MIB << 20) / 4 / HIDDEN;
    let small = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/small-world"));
    fs::copy(small.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": true, "vocab_size": vocab,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 256, "eos_token_id": 1, "rms_norm_eps": 1e-5,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (square, wide) = (vec![HIDDEN, HIDDEN], vec![INNER, HIDDEN]);
    let parts = ["q", "k", "v", "o"].map(|part| (format!("self_attn.{part}_proj"), square.clone())).into_iter();
    let parts = parts.chain(["gate", "up"].map(|part| (format!("mlp.{part}_proj"), wide.clone())));
    let parts = parts.chain([("mlp.down_proj".to_owned(), vec![HIDDEN, INNER])]);
    let norms = ["input_layernorm", "post_attention_layernorm"].map(|norm| (norm.to_owned(), vec![HIDDEN]));
    let parts: Vec<_> = parts.chain(norms).collect();
    let layers =
        (0..3).flat_map(|layer| parts.iter().map(move |(part, shape)| (format!("layers.{layer}.{part}"), shape)));
    let ends = [("embed_tokens".to_owned(), &vec![vocab, HIDDEN]), ("norm".to_owned(), &square[..1].to_vec())];
    let (mut header, mut data, mut seed) = (serde_json::Map::new(), Vec::new(), 1u32);
    for (name, shape) in layers.chain(ends) {
        let from = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            data.extend(((seed >> 8) as f32 / 2f32.powi(26) - 0.125).to_le_bytes());
        }
        let tensor = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]});
        header.insert(format!("model.{name}.weight"), tensor);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(folder.join("model.safetensors"), [&length, header.as_bytes(), &data].concat()).unwrap();
}

#[test]
fn a_server_starts_serves_and_mends_its_weights_under_one_limit_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path());
    let flags = [
        format!("--model={}", dir.path().display()),
        format!("--weights=stream:memory_mib={}", EMBEDDING_MIB + 4),
        "--device-blocks=16".to_owned(),
        "--threads=1".to_owned(),
        format!("--timeline={}", dir.path().join("timeline.json").display()),
    ];
    // The start packs the embedding, which is in memory twice for a moment; a third time is beyond the limit. `ulimit -d` counts KiB that may be written.
    let limit = format!("ulimit -d {}", (5 * EMBEDDING_MIB / 2) << 10);
    let mut server = Running::serve_after(&limit, &flags.each_ref().map(String::as_str));
    let answer = |server: &Running| server.generate(&["--token-ids=1,2,3"]).unwrap()["token_ids"].clone();
    let expected = answer(&server);
    let is_packed = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "packed");
    let packed = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).find(is_packed).unwrap();
    let sound = fs::read(&packed).unwrap();
    let (mut damaged, groups_end) = (sound.clone(), u64::from_le_bytes(*sound[8..].first_chunk().unwrap()) as usize);
    damaged[4096..groups_end].iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
    fs::write(&packed, damaged).unwrap();
    assert_eq!(answer(&server), expected);
    server.until(|line| line.contains("wrote packed weights again"));
    assert!(fs::read(&packed).unwrap() == sound, "the file is whole");
    server.end();
    let timeline: Value = serde_json::from_slice(&fs::read(dir.path().join("timeline.json")).unwrap()).unwrap();
    let slices = |name: &str| -> Vec<f64> {
        let events = timeline["traceEvents"].as_array().unwrap().iter();
        events
            .filter(|event| event["ph"] == "X" && event["name"] == name)
            .map(|event| event["dur"].as_f64().unwrap())
            .collect()
    };
    let [steps, reads, computes] = ["decode 1", "read", "compute"].map(slices);
    assert!(steps.len() >= 6 && reads.len() >= 8 && computes.len() >= 8, "{timeline:#}");
    assert!(reads.iter().chain(&computes).all(|duration| *duration > 0.0), "{timeline:#}");
}
