//! Every way to end a request in every state of swapping: nothing is left, on the device or on the host.

use trunkline_core::{Event, FinishReason, RequestId};
use trunkline_driver::Driver;

use crate::scenes::{VICTIM, swapped, swapping_in, swapping_out, victim};

const WAYS: [(&str, FinishReason); 4] = [
    ("abort", FinishReason::Abort),
    ("stop", FinishReason::Stop),
    ("timeout", FinishReason::Timeout),
    ("shutdown", FinishReason::Abort),
];

/// A rig with a victim in a state of swapping, and `true` if a copy for the victim is in flight.
fn in_state(state: &str) -> (Driver, bool) {
    let mut victim = victim();
    victim.deadline_ns = Some(100_000);
    match state {
        "swapping out" => (swapping_out(victim), true),
        "swapped" => (swapped(victim), false),
        "swapping in" => (swapping_in(victim), true),
        other => panic!("no state {other}"),
    }
}

fn end(rig: &mut Driver, way: &str) {
    match way {
        "abort" => rig.abort(VICTIM),
        "stop" => rig.event(Event::Stop(RequestId(VICTIM))),
        "timeout" => {
            rig.now_ns = 100_000;
            rig.event(Event::Tick);
        }
        _ => rig.event(Event::Shutdown),
    }
}

#[test]
fn a_request_ends_in_every_state_of_swapping() {
    for state in ["swapping out", "swapped", "swapping in"] {
        for (way, reason) in WAYS {
            for copy_succeeds in [true, false] {
                let (mut rig, copying) = in_state(state);
                let tokens = rig.said(VICTIM).len();
                end(&mut rig, way);
                assert!(rig.ends.contains(&(VICTIM, reason)), "{state}, {way}: at once");
                assert_eq!(rig.host_free() < 100, copying, "{state}, {way}: until the copy ends");
                if copying {
                    if copy_succeeds { rig.finish_copy(0) } else { rig.fail_copy(0) }
                }
                assert_eq!(rig.host_free(), 100, "{state}, {way}");
                rig.run_to_end();
                rig.assert_empty();
                assert_eq!(rig.said(VICTIM).len(), tokens, "{state}, {way}: nothing is said after the end");
                assert_eq!(rig.drained, u32::from(way == "shutdown"));
            }
        }
    }
}

#[test]
fn the_first_reason_to_end_stands() {
    for state in ["swapping out", "swapping in"] {
        let (mut rig, _) = in_state(state);
        end(&mut rig, "stop");
        end(&mut rig, "abort");
        end(&mut rig, "timeout");
        rig.finish_copy(0);
        assert!(rig.ends.contains(&(VICTIM, FinishReason::Stop)), "{state}");
        rig.run_to_end();
        rig.assert_empty();
    }
}

#[test]
fn a_request_that_ends_while_its_worker_is_lost_ends_once() {
    for state in ["swapping out", "swapping in"] {
        let (mut rig, _) = in_state(state);
        rig.abort(VICTIM);
        rig.lose_worker();
        assert!(rig.ends.contains(&(VICTIM, FinishReason::Abort)), "{state}");
        rig.join();
        rig.run_to_end();
        rig.assert_empty();
    }
}

#[test]
fn a_core_with_a_swapped_request_drains() {
    let mut rig = swapped(victim());
    rig.event(Event::Drain);
    rig.abort_now(1);
    assert_eq!(rig.drained, 0);
    rig.run_to_end();
    assert_eq!((rig.drained, rig.ends[1]), (1, (VICTIM, FinishReason::Length)));
    rig.assert_empty();
}
