//! Explanations of a recorded replay, from the command line to JSON and text.

use std::fs;
use std::path::Path;

use clap::Parser;
use serde_json::Value;

use super::*;
use crate::{Cli, Command};

const TRACE: &str = "examples/traces/chat-and-agents.jsonl.gz";

fn command(words: &[&str]) -> Command {
    Cli::try_parse_from([&["trunkline"], words].concat()).unwrap().command
}

/// Records a replay of the trace of the repository on too few blocks.
pub(crate) fn record(to: &Path) {
    record_on(to, "900");
}

/// Records such a replay on so many blocks.
pub(crate) fn record_on(to: &Path, blocks: &str) {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(TRACE);
    let json = to.with_extension("json");
    let words = ["replay", trace.to_str().unwrap(), "--limit", "120", "--replicas", "2", "--device-blocks", blocks];
    let outputs = ["--policy", "fcfs", "--record", to.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let Command::Replay(args) = command(&[&words[..], &outputs[..]].concat()) else { panic!("a replay") };
    crate::replay::run(*args).unwrap();
}

/// Returns the command of these words.
pub(crate) fn parsed(words: &[&str]) -> anyhow::Result<Command> {
    Ok(Cli::try_parse_from([&["trunkline"], words].concat())?.command)
}

/// A recording, and a file for results.
pub(crate) struct Rig {
    _folder: tempfile::TempDir,
    pub(crate) recording: String,
    pub(crate) results: String,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (recording, results) = (path("r.jsonl.gz"), path("results.json"));
        record(Path::new(&recording));
        Self { _folder: folder, recording, results }
    }

    /// Returns the results of the last command.
    pub(crate) fn read(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(&self.results).unwrap()).unwrap()
    }
}

fn explain(words: &[&str]) -> anyhow::Result<()> {
    let Command::Explain(args) = command(&[&["explain"], words].concat()) else { panic!("an explanation") };
    run(&args)
}

fn json(recording: &Path, words: &[&str]) -> Value {
    let to = recording.with_extension("explained");
    explain(&[&[recording.to_str().unwrap(), "--json", to.to_str().unwrap()], words].concat()).unwrap();
    serde_json::from_str(&fs::read_to_string(to).unwrap()).unwrap()
}

#[test]
fn the_slowest_are_listed_and_one_is_explained_with_what_would_have_helped() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("r.jsonl.gz");
    record(&recording);
    let slowest = json(&recording, &["--slowest", "3"]);
    assert_eq!(slowest["requests"].as_array().unwrap().len(), 3);
    let first = &slowest["requests"][0];
    let (id, ns) = (first["id"].to_string(), |value: &Value| value.as_u64().unwrap());
    let one = json(&recording, &["--request", &id, "--what-if", "--what-if", "max-batch-size=1"]);
    let explained = &one["requests"][0];
    assert_eq!(explained["parts"], first["parts"]);
    let parts: u64 = explained["parts"].as_object().unwrap().values().map(ns).sum();
    assert_eq!(parts, ns(&explained["ended_ns"]) - ns(&explained["submitted_ns"]));
    let answer = &one["what_if"][0];
    let changes: Vec<&str> =
        answer["runs"].as_array().unwrap().iter().map(|run| run["change"].as_str().unwrap()).collect();
    for change in ["max-batch-size=1", "device-blocks=x2", "policy=sjf", "router=round_robin"] {
        assert!(changes.contains(&change), "{change}: {changes:?}");
    }
    let found = trunkline_sim_replay::explain::explain(
        &recording,
        &Of::Requests(vec![RequestId(id.parse().unwrap())]),
        &mut |_| {},
    );
    let found = found.unwrap();
    let script = Script::load(&recording, &mut |_| {}).unwrap();
    let answers = answers(&script, &found.requests, &["policy=sjf".parse().unwrap()], false).unwrap();
    let text = render::requests(&found.requests, &answers);
    for line in ["E2E ", "held by request", "what if ", "policy=sjf ", "Steps have their recorded times where"] {
        assert!(text.lines().any(|it| it.trim_start().starts_with(line)), "{line}: {text}");
    }
    assert!(render::slowest(&found.requests).contains("most to blame"));
}

#[test]
fn what_cannot_be_explained_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("r.jsonl.gz");
    record(&recording);
    let path = recording.to_str().unwrap();
    let fault = |words: &[&str]| explain(&[&[path], words].concat()).unwrap_err().to_string();
    assert!(
        fault(&["--request", "99999"])
            .ends_with("has no request 99999; `trunkline explain` without --request lists the slowest")
    );
    assert!(
        fault(&["--request", "1", "--what-if", "magic"]).starts_with("the change is 'magic'; give without=REQUEST")
    );
    let missing = explain(&["no/such/file"]).unwrap_err().to_string();
    assert_eq!(missing, "no/such/file: no such file; check the path");
    let refused = |words: &[&str]| Cli::try_parse_from([&["trunkline", "explain", "r"], words].concat()).is_err();
    assert!(refused(&["--what-if"]) && refused(&["--slowest", "0"]) && refused(&["--slowest", "3", "--request", "1"]));
}
