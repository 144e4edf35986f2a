//! Runs of recordings with changes.

use trunkline_core::RequestId;
use trunkline_sim_replay::Settings;
use trunkline_sim_replay::explain::{Of, explain};
use trunkline_sim_replay::rerun::{Change, Rerun, RerunError, Script, Sources, Timing, Until};
use trunkline_sim_replay::what_if::what_if;

use crate::fixture::{recording, settings};

fn script(settings: &Settings, n: u32) -> Script {
    let (_folder, path) = recording(settings, n);
    Script::load(&path, &mut |_| {}).unwrap()
}

fn change(text: &str) -> Change {
    text.parse().unwrap()
}

/// Returns the times to the end of the requests.
fn ends(script: &Script, run: &Rerun) -> Vec<u64> {
    script.requests.iter().zip(&run.requests).map(|(served, ended)| ended.end.unwrap().0 - served.at_ns).collect()
}

#[test]
fn a_run_without_a_change_is_the_recorded_one() {
    let script = script(&settings(3, 70), 64);
    assert_eq!(script.replayed.matches, Some(true));
    let run = script.rerun(&[], Timing::Recorded, Until::End).unwrap();
    assert_eq!((format!("{:016x}", run.digest), run.first_difference.clone()), (script.replayed.digest.clone(), None));
    let recorded: Vec<u64> = script.requests.iter().map(|served| served.e2e_ns().unwrap()).collect();
    assert_eq!(ends(&script, &run), recorded);
    assert_eq!(run.sources, Sources::default(), "no step was modelled");
    // With fitted times alone all takes about as long.
    let fitted = script.rerun(&[], Timing::Fitted, Until::End).unwrap();
    let sum = |ends: Vec<u64>| ends.iter().sum::<u64>() as f64;
    let ratio = sum(ends(&script, &fitted)) / sum(recorded);
    assert!((ratio - 1.0).abs() < 0.05 && fitted.sources.recorded_steps == 0, "{ratio}");
}

#[test]
fn up_to_the_first_difference_a_changed_run_is_the_recorded_one() {
    let script = script(&settings(2, 70), 64);
    for text in ["router=round_robin", "device-blocks=+400", "max-batch-size=3", "without=30"] {
        let run = script.rerun(&[change(text)], Timing::Recorded, Until::End).unwrap();
        let difference = run.first_difference.clone().unwrap_or_else(|| panic!("{text} changes nothing"));
        let mut before = 0;
        let is_before = |ns: u64| ns < difference.at_ns;
        for (served, ended) in script.requests.iter().zip(&run.requests) {
            if is_before(served.end.unwrap().0) {
                before += 1;
                assert_eq!(ended.end, served.end, "{text}: request {} ended before the difference", served.id);
            }
            if served.first_token_ns.is_some_and(is_before) {
                assert_eq!(ended.first_token_ns, served.first_token_ns, "{text}: request {}", served.id);
            }
        }
        if text == "without=30" {
            let left_out = script.requests.iter().find(|served| served.id == RequestId(30)).unwrap();
            assert_eq!(difference.at_ns, left_out.at_ns);
            assert!(before > 0, "requests of the bursts before have ended");
        }
        let again = script.rerun(&[change(text)], Timing::Recorded, Until::End).unwrap();
        assert_eq!(run, again, "{text}");
    }
    // Settings that the run already has change nothing.
    for text in ["max-batch-size=6", "device-blocks=+0"] {
        let run = script.rerun(&[change(text)], Timing::Recorded, Until::End).unwrap();
        assert_eq!(run.first_difference, None, "{text}");
    }
    // What is not there cannot be left out.
    let fault = |text: &str| script.rerun(&[change(text)], Timing::Recorded, Until::End).unwrap_err();
    assert!(matches!(fault("without=999"), RerunError::NoRequest(RequestId(999))));
    assert!(matches!(fault("hints=false"), RerunError::NoHints));
}

#[test]
fn a_changed_run_takes_the_time_that_a_server_with_the_change_takes() {
    // The server with the change is recorded, too.
    let before = settings(1, 400);
    let mut after = before.clone();
    after.core.max_batch_size = 3;
    let (script, truth) = (script(&before, 80), script(&after, 80));
    let run = script.rerun(&[change("max-batch-size=3")], Timing::Recorded, Until::End).unwrap();
    assert!(run.sources.fitted_steps > 100, "{:?}", run.sources);
    let predicted = ends(&script, &run).iter().sum::<u64>() as f64;
    let measured = truth.requests.iter().map(|served| served.e2e_ns().unwrap()).sum::<u64>() as f64;
    let unchanged = script.requests.iter().map(|served| served.e2e_ns().unwrap()).sum::<u64>() as f64;
    assert!((predicted / measured - 1.0).abs() < 0.03, "{predicted} {measured}");
    assert!(measured / unchanged > 1.1, "the change matters: {measured} {unchanged}");
}

#[test]
fn leaving_out_who_is_to_blame_saves_time() {
    let (_folder, path) = recording(&settings(1, 400), 80);
    let script = Script::load(&path, &mut |_| {}).unwrap();
    let slowest = explain(&path, &Of::Slowest(1), &mut |_| {}).unwrap().requests.remove(0);
    let at = script.requests.iter().position(|served| served.id == slowest.id).unwrap();
    let changes: Vec<Change> = slowest.blamed.iter().take(2).map(|it| Change::Without(it.request)).collect();
    assert_eq!(changes.len(), 2);
    let answer = what_if(&script, at, &changes).unwrap();
    assert!(answer.runs.iter().all(|run| run.saved_ns > Some(0)), "{answer:?}");
    let difference = answer.runs[0].first_difference.as_ref().unwrap();
    assert!(difference.recorded.as_ref().is_some_and(|text| text != &difference.decisions), "{difference:?}");
    assert!(answer.fit_error.is_some() && answer.fitted_e2e_ns.is_some());
    let impossible = what_if(&script, at, &[change("policy=fastest"), change("router=nearest")]).unwrap();
    assert!(impossible.runs.is_empty() && impossible.impossible.len() == 2, "{impossible:?}");
}

#[test]
fn a_short_recording_says_that_it_is_too_short() {
    let script = script(&Settings { replicas: 1, ..settings(1, 400) }, 1);
    let error = script.rerun(&[change("max-batch-tokens=32")], Timing::Recorded, Until::End).unwrap_err().to_string();
    assert!(error.starts_with("the recording has ") && error.ends_with("record a longer run"), "{error}");
}
