//! Recordings saved for other versions of the program.

use std::fs::File;
use std::io::BufReader;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use trunkline_sim_replay::ci::{budgets, verdict};
use trunkline_sim_replay::recorded::digest_of_lines;
use trunkline_sim_replay::rerun::{SavedFault, Script};

use crate::fixture::{recording, settings};

#[test]
fn a_saved_recording_runs_as_it_did_and_other_decisions_are_found_in_it() {
    let mut slow = settings(2, 400);
    slow.core.max_batch_size = 3;
    let ((_one, path), (folder, _)) = (recording(&settings(2, 400), 64), recording(&slow, 64));
    let (script, to) = (Script::load(&path, &mut |_| {}).unwrap(), folder.path().join("saved.gz"));
    script.save(digest_of_lines(&path).unwrap(), &to).unwrap();
    let (mut saved, digest) = Script::saved(&to).unwrap();
    assert_eq!(digest, digest_of_lines(&path).unwrap());
    let same = verdict("a".into(), &saved, &budgets(&[])).unwrap();
    assert_eq!((same.diff.first.clone(), same.exceeded.len(), same.diff.pairs.len()), (None, 0, 64));
    // A version that decides as a server with fewer seats would.
    saved.cluster.engines.iter_mut().for_each(|engine| engine.core.max_batch_size = 3);
    let other = verdict("a".into(), &saved, &budgets(&[])).unwrap();
    let first = other.diff.first.unwrap();
    assert!(first.decisions[0] != first.decisions[1] && first.decisions[0].starts_with("engine "), "{first:?}");
    assert!(other.exceeded.iter().any(|(budget, growth)| budget.figure == "e2e_mean" && *growth > 0.1));
}

#[test]
fn what_is_no_saved_recording_is_refused() {
    let (folder, path) = recording(&settings(1, 400), 8);
    let error = Script::saved(&path).unwrap_err().to_string();
    assert!(error.contains("not a recording saved by `trunkline ci --save`"), "{error}");
    let missing = Script::saved(&folder.path().join("none")).unwrap_err().to_string();
    assert!(missing.contains("cannot be read or written"), "{missing}");
}

#[test]
fn a_damaged_saved_recording_is_refused() {
    let (folder, path) = recording(&settings(2, 400), 24);
    let to = folder.path().join("saved.gz");
    Script::load(&path, &mut |_| {}).unwrap().save(String::new(), &to).unwrap();
    let whole: Value = serde_json::from_reader(BufReader::new(GzDecoder::new(File::open(&to).unwrap()))).unwrap();
    let read_changed = |change: &dyn Fn(&mut Value)| {
        let mut saved = whole.clone();
        change(&mut saved);
        let mut packed = GzEncoder::new(File::create(&to).unwrap(), Compression::fast());
        serde_json::to_writer(&mut packed, &saved).unwrap();
        packed.finish().unwrap();
        Script::saved(&to)
    };
    read_changed(&|_| {}).unwrap();
    let old = read_changed(&|saved| *saved = serde_json::json!({"trunkline_saved_recording": 1})).unwrap_err();
    assert!(matches!(old.fault, SavedFault::Version { found: 1 }), "{old}");
    let is_refused = |change: &dyn Fn(&mut Value)| {
        let error = read_changed(change).unwrap_err();
        assert!(matches!(error.fault, SavedFault::Damaged), "{error}");
    };
    is_refused(&|saved| {
        let entries = saved["entries"].as_array_mut().unwrap().iter_mut();
        let mut joined = entries.filter(|entry| entry["fixed"]["engine"] == 1);
        joined.next().unwrap()["fixed"]["engine"] = Value::from(7);
    });
    let last = |saved: &mut Value, name: &str, value: Value| {
        saved["requests"].as_array_mut().unwrap().last_mut().unwrap()[name] = value;
    };
    is_refused(&|saved| last(saved, "first_token_ns", Value::from(0)));
    is_refused(&|saved| last(saved, "at_ns", Value::from(0)));
    is_refused(&|saved| last(saved, "end", serde_json::json!([0, "length"])));
}
