//! Reports for pull requests, from recordings to exit codes.

use std::fs;

use clap::Parser;

use super::*;
use crate::explain::tests::{record, record_on};
use crate::{Cli, Command as Commands};

fn ci(words: &[&str]) -> anyhow::Result<ExitCode> {
    let Commands::Ci(args) = Cli::try_parse_from([&["trunkline", "ci"], words].concat())?.command else { panic!("ci") };
    run(&args)
}

#[test]
fn a_version_that_decides_otherwise_fails_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let (recording, saved) = (folder.path().join("r.jsonl.gz"), folder.path().join("saved"));
    record(&recording);
    let (path, to) = (recording.to_str().unwrap(), saved.to_str().unwrap());
    assert_eq!(ci(&[path, "--save", to]).unwrap(), ExitCode::SUCCESS);
    let json = folder.path().join("report.json");
    let words = [path, "--against", to, "--json", json.to_str().unwrap()];
    assert_eq!(ci(&words).unwrap(), ExitCode::SUCCESS);
    let read = || -> serde_json::Value { serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap() };
    assert!(read()[0]["diff"]["first"].is_null());

    // The other version had room for one request at a time, so this one decides otherwise: here it is the other way round.
    let (mut script, _) = Script::saved(&place(&saved, &recording).unwrap()).unwrap();
    script.cluster.engines.iter_mut().for_each(|engine| engine.core.max_batch_size = 1);
    let verdict = verdict("r".into(), &script, &budgets(&[])).unwrap();
    assert!(!verdict.exceeded.is_empty());
    let text = report(std::slice::from_ref(&verdict), &budgets(&[]));
    assert!(text.contains("**Over the budget in 1 of 1 recordings.**") && text.contains("| e2e_mean | "), "{text}");
    assert!(text.contains("First difference at ") && text.contains(" **over** | 5.00 % |"), "{text}");
    let lenient: Vec<Budget> =
        trunkline_sim_replay::diff::FIGURES.iter().map(|name| format!("{name}=1000000").parse().unwrap()).collect();
    let within = trunkline_sim_replay::ci::verdict("r".into(), &script, &budgets(&lenient)).unwrap();
    assert!(within.exceeded.is_empty());
    assert!(
        report(&[within], &budgets(&lenient)).contains("Decisions differ in 1 of 1 recordings, within the budget.")
    );
}

#[test]
fn requests_that_no_longer_complete_fail_whatever_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("r.jsonl.gz");
    record(&recording);
    let script = Script::load(&recording, &mut |_| {}).unwrap();
    let good = verdict("r".into(), &script, &budgets(&[])).unwrap();
    assert!(good.is_good());
    let mut lossy = good.clone();
    lossy.diff.alone = [2, 0];
    let text = report(&[good.clone(), lossy.clone()], &budgets(&[]));
    assert!(text.contains("**2 requests that completed before no longer do.**\n\n### r"), "{text}");
    assert!(text.ends_with(" changed in duration. 2 requests that completed before no longer do."), "{text}");
    let mut empty = good.clone();
    empty.diff.pairs.clear();
    assert!(report(std::slice::from_ref(&empty), &[]).contains("**Nothing to compare in 1 of 1 recordings.**"));
    assert!(!lossy.is_good() && !empty.is_good());
    assert_eq!((code(std::slice::from_ref(&good)), code(&[good, lossy])), (ExitCode::SUCCESS, ExitCode::from(NOT_MET)));
}

#[test]
fn what_cannot_be_compared_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("r.jsonl.gz");
    record(&recording);
    let (path, none) = (recording.to_str().unwrap(), folder.path().join("none"));
    let fault = |words: &[&str]| ci(words).unwrap_err().to_string();
    assert!(fault(&[path, "--against", none.to_str().unwrap()]).starts_with("cannot run "));
    assert!(fault(&[path, "--against", folder.path().to_str().unwrap()]).contains("cannot be read or written"));
    let copy = folder.path().join("b");
    fs::create_dir(&copy).unwrap();
    let second = copy.join("r.jsonl.gz");
    fs::copy(&recording, &second).unwrap();
    let both = fault(&[path, second.to_str().unwrap(), "--save", folder.path().join("s").to_str().unwrap()]);
    assert!(both.starts_with("two recordings are called "), "{both}");
    let saved = folder.path().join("saved");
    ci(&[path, "--save", saved.to_str().unwrap()]).unwrap();
    let against = ["--against", saved.to_str().unwrap()];
    let both = fault(&[&[path, second.to_str().unwrap()], &against[..]].concat());
    assert!(both.starts_with("two recordings are called "), "{both}");
    ci(&[&[second.to_str().unwrap()], &against[..]].concat()).unwrap();
    record_on(&second, "800");
    let other = fault(&[&[second.to_str().unwrap()], &against[..]].concat());
    assert!(other.contains(" is of another recording than ") && other.ends_with("; save it again"), "{other}");
    let refused = |words: &[&str]| Cli::try_parse_from([&["trunkline", "ci", "r"], words].concat()).is_err();
    assert!(
        refused(&[])
            && refused(&["--save", "s", "--against", "o"])
            && refused(&["--save", "s", "--json", "-"])
            && refused(&["--against", "o", "--budget", "e2e=1"])
    );
}
