//! Differences between recordings of simulated fleets.

use std::fs;
use std::io::Read;

use flate2::read::GzDecoder;
use trunkline_sim_replay::diff::{DiffError, Figure, of_recordings, with_changes};
use trunkline_sim_replay::rerun::Script;
use trunkline_sim_workload::trace::{Content, Trace, TraceRequest, formats};

use crate::fixture::{recording, recording_of, settings};

#[test]
fn a_recording_differs_from_itself_in_nothing() {
    let (_folder, path) = recording(&settings(2, 70), 48);
    let diff = of_recordings(&path, &path).unwrap();
    assert_eq!((diff.first.clone(), diff.pairs.len(), diff.alone), (None, 48, [0, 0]));
    assert!(diff.pairs.iter().all(|pair| pair.before == pair.after && pair.id == pair.other_id));
    let script = Script::load(&path, &mut |_| {}).unwrap();
    let same = with_changes(&script, &[]).unwrap();
    assert_eq!((same.first, same.pairs, same.figures), (None, diff.pairs, diff.figures));
}

#[test]
fn the_first_decision_that_differs_is_found_and_the_effect_on_each_request() {
    let before = settings(2, 400);
    let mut after = before.clone();
    after.core.max_batch_size = 3;
    let ((_one, one), (_other, other)) = (recording(&before, 64), recording(&after, 64));
    let two = of_recordings(&one, &other).unwrap();
    let script = Script::load(&one, &mut |_| {}).unwrap();
    let changed = with_changes(&script, &["max-batch-size=3".parse().unwrap()]).unwrap();
    // The recorded decisions, and those of the server with the other settings.
    let (first, of_change) = (two.first.unwrap(), changed.first.unwrap());
    assert_ne!(first.decisions[0], first.decisions[1]);
    assert_eq!(first.at_ns[0], of_change.at_ns[0], "{first:?} {of_change:?}");
    assert_eq!(first.decisions, of_change.decisions);
    assert_eq!((two.pairs.len(), changed.pairs.len()), (64, 64));
    let mean = |diff: &[Figure]| diff.iter().find(|figure| figure.name == "e2e_mean").unwrap().change();
    let (found, predicted) = (mean(&two.figures), mean(&changed.figures));
    assert!(found > 0.1 && (found - predicted).abs() < 0.03, "{found} {predicted}");
    for (pair, change) in two.pairs.iter().zip(&changed.pairs) {
        assert_eq!(pair.before, change.before);
    }
}

#[test]
fn requests_of_two_recordings_are_matched_by_their_prompts() {
    let ((_one, one), (_other, other)) = (recording(&settings(1, 400), 40), recording(&settings(1, 400), 24));
    let diff = of_recordings(&one, &other).unwrap();
    assert_eq!((diff.pairs.len(), diff.alone), (24, [16, 0]));
    let first = diff.first.unwrap();
    assert!(first.at_ns[0] >= 3_000_000_000, "the last requests that both have come in the third second: {first:?}");
}

#[test]
fn prompts_that_differ_behind_their_last_full_block_are_two() {
    let trace = |ends: [u32; 2]| {
        let request = |end: u32| TraceRequest {
            input_tokens: 20,
            output_tokens: 4,
            content: Content::Tokens((0..19).chain([end]).collect::<Vec<u32>>().into()),
            ..TraceRequest::default()
        };
        Trace { format: formats::SYNTHETIC, requests: ends.map(request).to_vec() }
    };
    let ((_one, one), (_other, other)) =
        (recording_of(&settings(1, 400), &trace([70, 80])), recording_of(&settings(1, 400), &trace([80, 70])));
    let diff = of_recordings(&one, &other).unwrap();
    assert_eq!(diff.pairs.len(), 2);
    assert!(diff.pairs.iter().all(|pair| pair.id != pair.other_id), "{:?}", diff.pairs);
}

#[test]
fn a_recording_with_other_decisions_is_refused_in_both_places() {
    let (folder, path) = recording(&settings(1, 400), 8);
    let mut text = String::new();
    GzDecoder::new(&fs::read(&path).unwrap()[..]).read_to_string(&mut text).unwrap();
    let digest = Script::load(&path, &mut |_| {}).unwrap().replayed.digest;
    let other = folder.path().join("other.jsonl");
    fs::write(&other, text.replace(&digest, "0123456789abcdef")).unwrap();
    for (before, after) in [(&path, &other), (&other, &path)] {
        let error = of_recordings(before, after).unwrap_err();
        assert!(matches!(&error, DiffError::Decisions(refused) if *refused == other), "{error}");
    }
}
