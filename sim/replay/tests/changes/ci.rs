//! Recordings saved for other versions of the program.

use trunkline_sim_replay::ci::{budgets, verdict};
use trunkline_sim_replay::rerun::Script;

use crate::fixture::{recording, settings};

#[test]
fn a_saved_recording_runs_as_it_did_and_other_decisions_are_found_in_it() {
    let mut slow = settings(2, 400);
    slow.core.max_batch_size = 3;
    let ((_one, path), (folder, _)) = (recording(&settings(2, 400), 64), recording(&slow, 64));
    let (script, to) = (Script::load(&path, &mut |_| {}).unwrap(), folder.path().join("saved.gz"));
    script.save(&to).unwrap();
    let mut saved = Script::saved(&to).unwrap();
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
