//! Differences between a recorded replay and the same with changes.

use clap::Parser;
use trunkline_sim_replay::rerun::Script;

use super::*;
use crate::explain::tests::{Rig, parsed};
use crate::{Cli, Command};

fn diff(words: &[&str]) -> anyhow::Result<()> {
    let Command::Diff(args) = parsed(&[&["diff"], words].concat())? else { panic!("diff") };
    run(&args)
}

#[test]
fn a_recording_is_compared_with_itself_and_with_its_run_under_changes() {
    let rig = Rig::new();
    let (path, json) = (&rig.recording[..], &rig.results[..]);
    diff(&[path, path, "--json", json]).unwrap();
    assert!(rig.read()["first"].is_null());
    diff(&[path, "--with", "max-batch-size=1", "--with", "policy=sjf", "--json", json]).unwrap();
    let found = rig.read();
    assert!(found["first"]["decisions"][0] != found["first"]["decisions"][1]);
    assert_eq!(found["figures"].as_array().unwrap().len(), 6);
    let script = Script::load(path.as_ref(), &mut |_| {}).unwrap();
    let text = text(&with_changes(&script, &["max-batch-size=1".parse().unwrap()]).unwrap());
    for part in ["first difference at ", "ttft_p99", " requests: ", "E2E before", "after the first difference "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let refused = |words: &[&str]| Cli::try_parse_from([&["trunkline", "diff", "r"], words].concat()).is_err();
    assert!(refused(&[]) && refused(&["o", "--with", "policy=sjf"]) && refused(&["--with", "magic"]));
    let error = diff(&[path, "--with", "policy=fastest"]).unwrap_err().to_string();
    assert!(error.contains("fastest"), "{error}");
}
