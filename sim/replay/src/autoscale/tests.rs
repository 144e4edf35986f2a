//! Decisions of the policies, pinned.

use super::*;

fn at(s: u64, ready: u32, waiting: u32, running: u32) -> Observed {
    Observed { now_ns: s * SECOND_NS, ready, waiting, running, ..Observed::default() }
}

/// The answer of a policy that has seen nothing before, without limits.
fn wanted(spec: &str, observed: &Observed) -> u32 {
    REGISTRY.make(spec, ()).unwrap().desired(observed)
}

#[test]
fn load_is_divided_by_the_target_beyond_the_tolerance() {
    let of = |ready: u32, requests: u32| {
        wanted("load:target=10,tolerance_percent=10", &at(15, ready, requests / 2, requests - requests / 2))
    };
    assert_eq!([35, 36, 40, 44, 45].map(|requests| of(4, requests)), [4, 4, 4, 4, 5]);
    assert_eq!([0, 1, 10, 11, 30].map(|requests| of(4, requests)), [0, 1, 1, 2, 3]);
    let starting = Observed { starting: 3, ..at(15, 1, 10, 30) };
    assert_eq!(wanted("load:target=10", &starting), 4, "replicas that start count");
    let failed = Observed { failed: 1, ..at(15, 3, 10, 30) };
    assert_eq!(wanted("load:target=10", &failed), 4, "replicas under repair count");
}

#[test]
fn a_queue_orders_replicas_for_its_length_and_its_age() {
    let spec = "queue:target=8,age_ms=2000,running=32";
    assert_eq!(wanted(spec, &at(15, 2, 7, 64)), 2);
    assert_eq!(wanted(spec, &at(15, 2, 8, 64)), 3);
    assert_eq!(wanted(spec, &at(15, 2, 40, 64)), 7);
    let starting = Observed { starting: 3, ..at(15, 2, 16, 64) };
    assert_eq!(wanted(spec, &starting), 5, "two are ordered for the queue already");
    let age = |ms: u64| Observed { oldest_waiting_ns: ms * 1_000_000, ..at(15, 2, 1, 64) };
    assert_eq!((wanted(spec, &age(1_999)), wanted(spec, &age(2_000))), (2, 3));
    assert_eq!(wanted("queue:age_ms=0", &age(9_000)), 2);
    // An empty queue stops a replica only if the others have room.
    assert_eq!([33, 32, 0].map(|running| wanted(spec, &at(15, 2, 0, running))), [2, 1, 1]);
}

#[test]
fn missed_slos_order_replicas_and_slack_stops_one() {
    let spec = "slo:ttft_ms=1000,share_percent=90,step_percent=50,slack_percent=50";
    let with = |ms: &[u64], unserved: &[u64]| Observed {
        ttft_ns: ms.iter().map(|ms| ms * 1_000_000).collect(),
        unserved_ns: unserved.iter().map(|ms| ms * 1_000_000).collect(),
        ..at(15, 4, 0, 10)
    };
    let mut nine_of_ten = vec![800; 9];
    nine_of_ten.push(1_001);
    assert_eq!(wanted(spec, &with(&nine_of_ten, &[])), 4, "met, without slack");
    assert_eq!(wanted(spec, &with(&nine_of_ten, &[1_001])), 6, "a request that waits too long is a miss");
    assert_eq!(wanted(spec, &with(&nine_of_ten, &[999])), 4);
    assert_eq!(wanted(spec, &with(&[400; 10], &[])), 3, "half of the limit is slack");
    assert_eq!(wanted(spec, &with(&[], &[])), 3, "no request needs no replica");
    let starting = Observed { starting: 3, ..with(&[1_001], &[]) };
    assert_eq!(wanted(spec, &starting), 7, "three are on the way");
    let tpot = "slo:ttft_ms=0,tpot_ms=20";
    let slow = |ms: u64| Observed { tpot_ns: vec![ms * 1_000_000; 3], ..at(15, 4, 0, 10) };
    assert_eq!([10, 20, 21].map(|ms| wanted(tpot, &slow(ms))), [3, 4, 5]);
}

#[test]
fn requests_count_for_the_time_of_the_window() {
    let mut policy = REGISTRY.make("slo:ttft_ms=1000,window_s=30", ()).unwrap();
    let miss = Observed { ttft_ns: vec![2 * SECOND_NS], ..at(15, 4, 0, 10) };
    assert_eq!(policy.desired(&miss), 5);
    assert_eq!(policy.desired(&at(30, 4, 0, 10)), 5, "15 s ago");
    assert_eq!(policy.desired(&at(45, 4, 0, 10)), 3, "30 s ago");
}

#[test]
fn every_policy_begins_with_the_limits_and_wants_no_fewer_for_a_longer_queue() {
    for entry in REGISTRY.entries() {
        assert_eq!(entry.params[..LIMITS.len()], LIMITS, "{}", entry.name);
        let of = |waiting: u32| wanted(entry.name, &at(15, 3, waiting, 40));
        let all: Vec<u32> = (0..400).map(of).collect();
        assert!(all.is_sorted(), "{}: {all:?}", entry.name);
    }
}

#[test]
fn fewer_replicas_must_be_wanted_for_the_whole_stabilisation_window() {
    let mut scaler = Autoscaler::new("load:min=2,max=6,target=10,stabilisation_s=60", 2).unwrap();
    assert_eq!(scaler.desired(&at(15, 2, 0, 90)), 6, "no more than the highest number");
    assert_eq!(scaler.desired(&at(30, 6, 0, 30)), 6);
    assert_eq!(scaler.desired(&at(45, 6, 0, 10)), 6);
    assert_eq!(scaler.desired(&at(60, 6, 0, 10)), 6);
    assert_eq!(scaler.desired(&at(75, 6, 0, 10)), 6);
    assert_eq!(scaler.desired(&at(90, 6, 0, 10)), 3, "the highest of the last 60 s");
    assert_eq!(scaler.desired(&at(105, 3, 0, 10)), 2, "no fewer than the least number");
    let mut at_once = Autoscaler::new("load:target=10,stabilisation_s=0", 8).unwrap();
    assert_eq!(at_once.desired(&at(15, 8, 0, 11)), 2);
    let mut first = Autoscaler::new("load:target=10,stabilisation_s=60", 8).unwrap();
    assert_eq!([15, 60, 75].map(|s| first.desired(&at(s, 8, 0, 11))), [8, 8, 2], "the start counts as an answer");
}

#[test]
fn what_is_no_policy_is_refused_in_one_line() {
    let message = |spec: &str, initial: u32| Autoscaler::new(spec, initial).unwrap_err().to_string();
    assert_eq!(message("cpu", 1), "unknown autoscaling policy 'cpu'; there are: load, queue, slo");
    assert_eq!(
        message("load:target=0", 1),
        "autoscaling policy 'load': target is '0'; it must be a whole number between 1 and 1000000"
    );
    assert_eq!(message("load:min=4,max=2", 4), "autoscaling from 4 to 2 replicas; min must be at most max");
    assert_eq!(
        message("load:min=2,max=4", 5),
        "5 replicas at the start, but autoscaling keeps 2 to 4; change --replicas, or min and max"
    );
}
