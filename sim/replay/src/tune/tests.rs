//! Searches over recordings of simulated fleets, and the proof on requests that the search did not see.

use trunkline_sim_workload::trace::{Content, Trace, TraceRequest, formats};

use super::*;
use crate::rerun::tests::{recording_of, settings};

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
fn a_range_that_reaches_zero_confirms_nothing() {
    let kept = |within: bool, e2e_ns: f64| Kept { within, e2e_ns };
    let block = |before: bool, after: bool| vec![(kept(before, 2e9), kept(after, 2e9)); 10];
    let gains = |n: usize| [vec![block(false, true); n], vec![block(true, true); BLOCKS - n]].concat();
    assert!(!proof(&gains(1)).confirmed, "one block of twenty is missed by every third drawing");
    let half = proof(&gains(10));
    assert!(half.confirmed && half.within_before == 0.5 && half.within_after == 1.0, "{half:?}");
    assert!(half.gain[0] > 0.2 && half.gain[1] < 0.8, "{half:?}");
    let worse = proof(&vec![block(true, false); BLOCKS]);
    assert!(!worse.confirmed && worse.gain == [-1.0; 2]);
    // With all within the limits either way, the mean time decides.
    let faster = proof(&vec![vec![(kept(true, 2e9), kept(true, 1e9)); 5]; BLOCKS]);
    assert!(faster.confirmed && faster.e2e_change == [-0.5; 2] && faster.slower == 0.0);
    let equal = proof(&vec![vec![(kept(true, 2e9), kept(true, 2e9)); 5]; BLOCKS]);
    assert!(!equal.confirmed);
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
