//! Searches over recordings of simulated fleets, and the proof on requests that the search did not see.

use trunkline_sim_replay::rerun::Script;
use trunkline_sim_replay::tune::{TuneError, Tuned, tune};
use trunkline_sim_report::slo::Slos;
use trunkline_sim_workload::trace::{Content, Trace, TraceRequest, formats};

use crate::fixture::{recording_of, settings};

/// Bursts of one long prompt before many short ones, in the first half or in both; the rest comes one by one.
fn trace(bursts_in_both: bool) -> Trace {
    let request = |at: u32| {
        let (burst, place) = (at / 8, at % 8);
        let in_burst = bursts_in_both || at < 80;
        let gap_ns = if in_burst { u64::from(place) * 1_000_000 } else { u64::from(place) * 400_000_000 };
        let input_tokens = if place == 0 { 6000 } else { 60 };
        TraceRequest {
            arrival_ns: u64::from(burst) * 4_000_000_000 + gap_ns,
            input_tokens,
            output_tokens: 12,
            content: Content::Unique(at),
            ..TraceRequest::default()
        }
    };
    Trace { format: formats::SYNTHETIC, requests: (0..160).map(request).collect() }
}

fn tuned(bursts_in_both: bool, slo: &str) -> Tuned {
    let mut settings = settings(1, 4000);
    settings.core.max_batch_size = 2;
    let (_folder, path) = recording_of(&settings, &trace(bursts_in_both));
    let script = Script::load(&path, &mut |_| {}).unwrap();
    let slos = Slos::new(&[slo.parse().unwrap()], Some(1.0)).unwrap();
    tune(&[script], &slos, 60, &mut |_| {}).unwrap()
}

#[test]
fn what_helps_both_halves_is_recommended_with_its_gain() {
    let found = tuned(true, "ttft=300ms");
    let proof = found.proof.clone().unwrap();
    assert!(proof.confirmed && !found.best.is_empty(), "{found:?}");
    let gained = proof.within_after - proof.within_before;
    assert!(proof.gain[0] <= gained && gained <= proof.gain[1] && proof.gain[0] > 0.0, "{proof:?}");
    assert_eq!(proof.requests, 80);
    assert!(found.tried[0].changes.is_empty() && found.tried.len() > 10);
    let tries = |text: &str| found.tried.iter().any(|tried| tried.changes.iter().any(|it| it.to_string() == text));
    assert!(tries("target-step-ns=2x") && !tries("target-step-ns=0"), "0 is recorded");
    // Settings that no core has are tried without harm, and equal searches find the same.
    let again = tuned(true, "ttft=300ms");
    assert_eq!((again.best, again.proof), (found.best, found.proof));
}

#[test]
fn what_helps_the_searched_half_alone_is_not_recommended() {
    let found = tuned(false, "ttft=300ms");
    assert!(!found.best.is_empty(), "the first half gains: {found:?}");
    assert!(!found.proof.as_ref().unwrap().confirmed, "{found:?}");
}

#[test]
fn a_few_requests_prove_nothing() {
    let (_folder, path) =
        recording_of(&settings(1, 400), &Trace { requests: trace(true).requests[..40].to_vec(), ..trace(true) });
    let script = Script::load(&path, &mut |_| {}).unwrap();
    let slos = Slos::new(&["ttft=1s".parse().unwrap()], Some(1.0)).unwrap();
    let error = tune(&[script], &slos, 60, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(
        error,
        "40 requests completed, too few to search on one half and prove on the other; record at least 80"
    );
}

#[test]
fn halves_without_requests_and_unlike_recordings_are_refused() {
    let slos = Slos::new(&["ttft=1s".parse().unwrap()], Some(1.0)).unwrap();
    let script = |blocks: u32| {
        let (_folder, path) = recording_of(&settings(1, blocks), &trace(true));
        Script::load(&path, &mut |_| {}).unwrap()
    };
    let unlike = tune(&[script(4000), script(3000)], &slos, 60, &mut |_| {}).unwrap_err();
    assert!(matches!(unlike, TuneError::Settings), "{unlike}");
    let mut uneven = script(4000);
    let half = uneven.requests.len() / 2;
    uneven.requests[half + 10..].iter_mut().for_each(|served| served.end = None);
    let error = tune(&[uneven], &slos, 60, &mut |_| {}).unwrap_err();
    assert!(matches!(error, TuneError::TooFewInHalf { half: "second", found: 10 }), "{error}");
}
