//! Recordings made here, whole and damaged.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;
use trunkline_cluster::record::End;
use trunkline_cluster::{ClusterConfig, ROUTER_DEFAULT};
use trunkline_core::StepResult;
use trunkline_core::{BlockHash, Config, Core, RequestId};

use super::*;
use trunkline_sim_workload::trace::Terms;

/// A core whose every event is written down. The worker answers 1 ms later with the position as the token.
struct Recorder {
    core: Core,
    lines: Vec<String>,
    events: u64,
}

impl Recorder {
    fn new() -> Self {
        let config =
            Config { block_size: 4, device_blocks: 30, max_batch_size: 4, max_batch_tokens: 16, ..Config::default() };
        let header = Line::Header { trunkline_recording: record::VERSION, config: Box::new(config.clone()) };
        Self { core: Core::new(config).unwrap(), lines: vec![header.to_json()], events: 0 }
    }

    fn tell(&mut self, at_ns: u64, event: Event) -> Vec<Action> {
        self.lines.push(Line::Event { at_ns, engine: None, event: event.clone() }.to_json());
        self.events += 1;
        let mut actions = Vec::new();
        self.core.handle(at_ns, event, &mut actions);
        actions
    }

    /// A few requests that share prefixes and outgrow the device, one of them given up.
    fn run() -> Self {
        let mut recorder = Self::new();
        let mut pending = recorder.tell(0, Event::WorkerJoined);
        for id in 0..6u64 {
            let prompt = (0..10 + id as u32).map(|at| at + u32::from(at > 8) * id as u32).collect();
            let mut request = Request::new(RequestId(id), BlockHash(5), prompt, 20);
            request.hash_prompt(4);
            pending.extend(recorder.tell(id, Event::Submit(Box::new(request))));
        }
        let mut at_ns = 1_000_000;
        while let Some(Action::RunStep(step)) = pending.iter().find(|action| matches!(action, Action::RunStep(_))) {
            let mut result = StepResult { step: step.id, ..StepResult::default() };
            for seq in &step.seqs {
                result.push(if seq.sample { &[7] } else { &[] });
            }
            if at_ns == 5_000_000 {
                recorder.tell(at_ns, Event::Abort(RequestId(3)));
            }
            pending = recorder.tell(at_ns, Event::StepFinished(result));
            at_ns += 1_000_000;
        }
        assert!(recorder.core.stats().tokens.cached_tokens > 0 && recorder.core.stats().requests.finished == 6);
        recorder
    }

    fn digest(&self) -> String {
        format!("{:016x}", self.core.digest())
    }

    fn trailer(&self, digest: String) -> String {
        Line::End { end: End { at_ns: 99_000_000, digest, inputs: None } }.to_json()
    }

    /// Returns the trailer of a server's recording, which covers the inputs.
    fn whole_trailer(&self) -> String {
        let mut inputs = InputsDigest::default();
        self.lines.iter().for_each(|line| inputs.add(line.as_bytes()));
        let (digest, inputs) = (self.digest(), Some(inputs.to_string()));
        Line::End { end: End { at_ns: 99_000_000, digest, inputs } }.to_json()
    }

    fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

fn replay(bytes: impl AsRef<[u8]>) -> Result<Replayed, RecordingError> {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes.as_ref()).unwrap();
    replay_recorded(file.path(), &mut |_| {})
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_same_events_give_the_same_decisions() {
    let recorder = Recorder::run();
    let text = recorder.text() + &recorder.trailer(recorder.digest()) + "\n";
    let expected = Replayed {
        events: recorder.events,
        requests: 6,
        digest: recorder.digest(),
        recorded_digest: Some(recorder.digest()),
        matches: Some(true),
        inputs_match: None,
        cut_off: None,
    };
    assert_eq!(replay(&text).unwrap(), expected);
    assert_eq!(replay(gzip(&text)).unwrap(), expected);
    assert_eq!(replay(text.trim_end()).unwrap(), expected, "without the last newline");
}

#[test]
fn an_input_that_was_changed_without_a_change_of_a_decision_is_found() {
    let recorder = Recorder::run();
    let replayed = |lines: &[String]| {
        let replayed = replay(lines.join("\n") + "\n" + &recorder.whole_trailer() + "\n").unwrap();
        (replayed.digest == recorder.digest(), replayed.inputs_match, replayed.matches)
    };
    assert_eq!(replayed(&recorder.lines), (true, Some(true), Some(true)));
    let again = recorder.lines.iter().rposition(|line| line.contains("step_finished")).unwrap();
    let mut twice = recorder.lines.clone();
    twice.insert(again, twice[again].clone());
    // The core ignores the answer to a step that is not in flight.
    assert_eq!(replayed(&twice), (true, Some(false), Some(false)));
    let mut spaced = recorder.lines.clone();
    spaced[1] = spaced[1].replacen(':', ": ", 1);
    assert_eq!(replayed(&spaced), (true, Some(false), Some(false)));
}

#[test]
fn other_decisions_are_told() {
    let recorder = Recorder::run();
    let other = replay(recorder.text() + &recorder.trailer("0123456789abcdef".into()) + "\n").unwrap();
    assert_eq!((other.matches, other.digest), (Some(false), recorder.digest()));
    // An event more or less is another history.
    let mut fewer = recorder.lines.clone();
    fewer.truncate(fewer.len() - 1);
    fewer.push(recorder.trailer(recorder.digest()));
    assert_eq!(replay(fewer.join("\n")).unwrap().matches, Some(false));
}

#[test]
fn a_recording_that_was_cut_off_is_replayed_as_far_as_it_goes() {
    let recorder = Recorder::run();
    let text = recorder.text();
    let whole = replay(&text).unwrap();
    assert_eq!((whole.events, whole.matches, whole.cut_off), (recorder.events, None, Some(CutOff::NoTrailer)));
    assert_eq!(whole.digest, recorder.digest());

    let torn = replay(&text[..text.len() - 20]).unwrap();
    assert_eq!((torn.events, torn.matches, torn.cut_off), (recorder.events - 1, None, Some(CutOff::TornLine)));

    let compressed = gzip(&text);
    let torn = replay(&compressed[..compressed.len() - 9]).unwrap();
    assert_eq!((torn.matches, torn.cut_off), (None, Some(CutOff::TornGzip)));

    let header_only = replay(recorder.lines[0].clone() + "\n").unwrap();
    assert_eq!((header_only.events, header_only.cut_off), (0, Some(CutOff::NoTrailer)));
}

#[test]
fn damage_is_told_with_its_line() {
    let recorder = Recorder::run();
    let fault = |lines: &[&str]| {
        let error = replay(lines.join("\n") + "\n").unwrap_err();
        let message = error.to_string();
        message[message.find(", line").expect("names the line")..].to_string()
    };
    let header = &recorder.lines[0][..];
    let event = &recorder.lines[1][..];
    assert_eq!(fault(&[]), ", line 1: not a Trunkline recording: the first line is not a header");
    assert_eq!(fault(&[event, header]), ", line 1: not a Trunkline recording: the first line is not a header");
    assert_eq!(
        fault(&[header, event, header]),
        ", line 3: a second header, or a line after the trailer; this is more than one recording"
    );
    let end = recorder.trailer(recorder.digest());
    assert!(fault(&[header, &end, event]).starts_with(", line 3: a second header, or a line after the trailer"));
    assert!(fault(&[header, "{\"at_ns\":", event]).starts_with(", line 2: not a line of a Trunkline recording"));
    let late = event.replace("\"at_ns\":0", "\"at_ns\":9");
    assert!(fault(&[header, &late, event]).starts_with(", line 3: the time goes back from 9 to 0 ns"));
    for found in [2, 3, 7] {
        let version = header.replace(
            &format!("\"trunkline_recording\":{}", record::VERSION),
            &format!("\"trunkline_recording\":{found},\"of\":\"another form\""),
        );
        let wanted = format!(
            ", line 1: the recording has format version {found}, this program reads 4 and 5; replay it with the version that made it"
        );
        assert_eq!(fault(&[&version]), wanted);
    }
    let limits = header.replace("\"block_size\":4", "\"block_size\":0");
    assert_eq!(fault(&[&limits]), ", line 1: recorded limits: block_size is 0; it must be between 1 and 4096");

    let missing = replay_recorded(Path::new("no/such/recording"), &mut |_| {}).unwrap_err();
    assert_eq!(missing.to_string(), "no/such/recording: no such file; check the path");
}

/// A recording of two engines: four requests, and the worker of engine 0 is gone for good after its first step.
fn cluster_lines() -> (Vec<String>, String) {
    let core =
        Config { block_size: 4, device_blocks: 30, max_batch_size: 4, max_batch_tokens: 64, ..Config::default() };
    let config = ClusterConfig::uniform(&core, 2);
    let mut cluster = Cluster::new(&config).unwrap();
    let mut lines = vec![Line::header(&config).to_json()];
    let mut pending = Vec::new();
    let mut tell = |cluster: &mut Cluster, at_ns: u64, input: Input| {
        lines.push(Line::of(at_ns, &input, 2).to_json());
        let mut outputs = Vec::new();
        cluster.handle(at_ns, input, &mut outputs);
        outputs
    };
    for engine in 0..2 {
        tell(&mut cluster, 0, Input::Engine(EngineId(engine), Event::WorkerJoined));
    }
    for id in 0..4u64 {
        let mut request = Request::new(RequestId(id), BlockHash(5), vec![id as u32, 2, 3, 4, 5], 6);
        request.hash_prompt(4);
        pending.extend(tell(&mut cluster, id, Input::Client(Event::Submit(Box::new(request)))));
    }
    let mut at_ns = 1_000_000;
    let mut retired = false;
    while let Some(output) = pending.pop() {
        let Output::Engine(engine, Action::RunStep(step)) = output else { continue };
        if retired && engine.0 == 0 {
            continue;
        }
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
        pending.extend(tell(&mut cluster, at_ns, Input::Engine(engine, Event::StepFinished(result))));
        if !std::mem::replace(&mut retired, true) {
            pending.extend(tell(&mut cluster, at_ns, Input::Retire(EngineId(0))));
        }
        at_ns += 1_000_000;
    }
    assert_eq!(cluster.requests(), 0, "all requests ended, on engine 1");
    let digest = format!("{:016x}", cluster.digest());
    lines.push(Line::End { end: End { at_ns, digest: digest.clone(), inputs: None } }.to_json());
    (lines, digest)
}

#[test]
fn a_cluster_of_two_replays_with_the_engine_that_was_lost() {
    let (lines, digest) = cluster_lines();
    let replayed = replay(lines.join("\n") + "\n").unwrap();
    assert_eq!((replayed.requests, replayed.digest, replayed.matches), (4, digest, Some(true)));
    let without: Vec<String> = lines.into_iter().filter(|line| !line.contains("\"change\"")).collect();
    assert_eq!(replay(without.join("\n") + "\n").unwrap().matches, Some(false), "the retirement counts");
}

#[test]
fn an_engine_that_the_cluster_lacks_is_reported() {
    let (mut lines, _) = cluster_lines();
    lines[1] = lines[1].replace("\"engine\":0", "\"engine\":2");
    let error = replay(lines.join("\n") + "\n").unwrap_err().to_string();
    assert!(
        error.ends_with(", line 2: engine 2 is not in the recorded cluster, which has 2; the recording is damaged")
    );
    lines[0] = lines[0].replace(ROUTER_DEFAULT, "magic");
    let error = replay(lines.join("\n") + "\n").unwrap_err().to_string();
    assert!(error.contains(", line 1: recorded settings: unknown router 'magic'"), "{error}");
}

/// A recording of three requests of two tenants: the second asks on after the answer of the first, the third is given up.
fn conversation_recorded() -> Recorder {
    let mut recorder = Recorder::new();
    let mut pending = recorder.tell(0, Event::WorkerJoined);
    let mut at_ns = 1_000_000;
    let prompts = [vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5, 7, 7, 7, 7, 9], vec![8; 6]];
    for (id, prompt) in (0..).zip(prompts) {
        let mut request = Request::new(RequestId(id), BlockHash(5), prompt, 4);
        (request.tenant, request.priority) = (id * 1_000_000_007, -3);
        request.deadline_ns = (id == 1).then_some(at_ns + 2_000_000_000);
        request.hash_prompt(4);
        pending.extend(recorder.tell(at_ns, Event::Submit(Box::new(request))));
        while let Some(Action::RunStep(step)) = pending.iter().find(|action| matches!(action, Action::RunStep(_))) {
            let mut result = StepResult { step: step.id, ..StepResult::default() };
            step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
            at_ns += 1_000_000;
            if id == 2 {
                recorder.tell(at_ns, Event::Abort(RequestId(2)));
            }
            pending = recorder.tell(at_ns, Event::StepFinished(result));
        }
        at_ns += 1_000_000;
    }
    recorder
}

#[test]
fn a_recording_is_a_trace_with_outputs_and_terms() {
    let recorder = conversation_recorded();
    let mut file = NamedTempFile::new().unwrap();
    file.write_all((recorder.text() + &recorder.trailer(recorder.digest()) + "\n").as_bytes()).unwrap();
    assert!(is_recording(file.path()));
    let recorded = load(file.path(), &mut |_| {}).unwrap();
    assert_eq!(recorded.replayed.matches, Some(true));
    assert_eq!((recorded.left_out, recorded.cut_short), (1, 0), "the last was given up before its first token");
    let [first, second] = &recorded.trace.requests[..] else { panic!("two requests: {:?}", recorded.trace) };
    assert_eq!((first.arrival_ns, second.arrival_ns), (0, 5_000_000));
    assert_eq!((first.output.as_deref(), second.output_tokens), (Some(&[7; 4][..]), 4));
    assert_eq!(second.prompt(), [1, 2, 3, 4, 5, 7, 7, 7, 7, 9]);
    let terms = Terms {
        tenant: 1,
        namespace: 0,
        priority: -3,
        background: false,
        deadline_ns: Some(2_000_000_000),
        max_tokens: second.terms.max_tokens,
    };
    assert_eq!(
        (first.terms, second.terms),
        (Terms { tenant: 0, deadline_ns: None, max_tokens: first.terms.max_tokens, ..terms }, terms)
    );
    assert!(first.terms.max_tokens >= Some(4) && second.terms.max_tokens >= Some(4), "the limits of the clients");
    let measured = recorded.measured;
    assert_eq!((measured.ttft_s.mean, measured.tpot_s.mean, measured.e2e_s.max), (1e-3, 1e-3, 4e-3));
    assert_eq!(measured.deadlines.map(|deadlines| (deadlines.met, deadlines.missed)), Some((1, 0)));
    assert_eq!(settings(file.path()).unwrap().engines[0].core, *recorder.core.config());
}

#[test]
fn what_is_no_recording_is_no_trace_of_one() {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"{\"timestamp\": 1}\n").unwrap();
    assert!(!is_recording(file.path()) && !is_recording(Path::new("none")));
    let empty = Recorder::new().text();
    std::fs::write(file.path(), empty).unwrap();
    let error = load(file.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.ends_with("no request of the recording got a token, so there is nothing to replay"), "{error}");
    let error = trunkline_sim_workload::Trace::load(file.path(), None, None).unwrap_err().to_string();
    assert!(error.contains("is the recording of a server; make a trace of it with"), "{error}");
}
