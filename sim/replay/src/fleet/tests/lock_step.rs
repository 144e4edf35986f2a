//! Ranks of data-parallel attention, which step together.

use trunkline_cluster::Role;

use super::*;

/// A step takes a millisecond for each token of the fullest rank, and one for each token of all ranks.
struct FullestAndAll;

impl CostModel for FullestAndAll {
    fn name(&self) -> &str {
        "fullest and all"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        self.lock_step_ns(0, &[*shape])
    }

    fn lock_step_ns(&self, _: usize, shapes: &[StepShape]) -> u64 {
        let tokens = shapes.iter().map(|shape| shape.tokens);
        MS * (tokens.clone().max().unwrap_or(0) + tokens.sum::<u64>())
    }
}

fn ranks(replicas: u32, parallel: &str) -> Settings {
    let model = *model::by_name("mixtral-8x7b").unwrap();
    Settings { replicas, model, parallel: parallel.parse().unwrap(), ..settings(16, 4_000) }
}

fn replayed(trace: &Trace, settings: &Settings) -> Report {
    replay(trace, settings, &FullestAndAll, &mut |_| {}).unwrap()
}

/// First and last token of each request, milliseconds after the start of the trace.
fn times_ms(trace: &Trace, settings: &Settings) -> Vec<(u64, u64)> {
    let mut times = vec![(0, 0); trace.requests.len()];
    let mut watch = |outcome: &Outcome| {
        let arrival_ns = trace.requests[outcome.request as usize].arrival_ns;
        let ms = |ns: u64| (arrival_ns + ns) / MS;
        times[outcome.request as usize] = (ms(outcome.ttft_ns.unwrap()), ms(outcome.e2e_ns.unwrap()));
        ControlFlow::Continue(())
    };
    replay_watched(trace, settings, &FullestAndAll, &mut watch).unwrap();
    times
}

#[test]
fn all_ranks_begin_and_end_a_step_together() {
    let trace = trace(vec![request(0, 2, 3, &[1]), request(1, 3, 1, &[2]), request(100, 5, 1, &[3])]);
    // The first rank runs two tokens, until 4 ms. Its decode then shares a step with the other rank's three tokens, until 4 + 3 + 4 ms, and the last
    // one has a step of its own. The third request finds an idle group.
    assert_eq!(times_ms(&trace, &ranks(2, "dp2ep2")), [(4, 13), (11, 11), (110, 110)]);
    // Two replicas that share nothing run when they like.
    assert_eq!(times_ms(&trace, &ranks(2, "tp1")), [(4, 8), (7, 7), (110, 110)]);
    // So do two groups: the second request goes to the second replica, the third to the third.
    let later = Trace { requests: trace.requests.iter().cloned().chain([request(101, 1, 1, &[4])]).collect(), ..trace };
    assert_eq!(times_ms(&later, &ranks(4, "dp2")), [(4, 13), (11, 11), (110, 110), (112, 112)]);
}

#[test]
fn a_slow_rank_holds_its_group_up() {
    let trace = trace(vec![request(0, 2, 1, &[1]), request(50, 2, 1, &[2])]);
    let mut slow = ranks(2, "dp2");
    slow.routing.slow = vec!["1:3".parse().unwrap()];
    assert_eq!(times_ms(&trace, &slow), [(12, 12), (62, 62)]);
}

#[test]
fn ranks_complete_every_request_and_repeat_their_decisions() {
    let trace = conversations(150, 5);
    for (replicas, parallel) in [(2, "dp2"), (4, "dp4ep4"), (6, "tp2dp3ep6")] {
        for steps in [1, 2] {
            let mut settings = ranks(replicas, parallel);
            settings.core.max_steps_in_flight = steps;
            settings.core.device_blocks = 900;
            settings.routing.router = "least_loaded".into();
            let report = replayed(&trace, &settings);
            assert_eq!(report.completed, 150, "{parallel}, {steps} steps");
            assert_eq!(report.digest, replayed(&trace, &settings).digest);
            settings.parallel = Parallel::ONE;
            assert!(report.duration_s > replayed(&trace, &settings).duration_s, "waiting for others takes time");
        }
    }
}

#[test]
fn groups_that_cannot_step_together_are_refused() {
    let error = |settings: Settings| settings.validate().unwrap_err().to_string();
    assert_eq!(
        error(ranks(3, "dp2ep2")),
        "3 replicas for dp2: each replica is a rank, and 2 ranks share the experts; give a multiple of 2"
    );
    let mut failing = ranks(2, "dp2");
    failing.routing.failures = vec!["1@5".parse().unwrap()];
    assert_eq!(
        error(failing),
        "replicas with dp run in lock step, so none fails, starts or stops alone; leave failures and autoscaling out"
    );
    let mut roles = ranks(4, "dp2");
    roles.routing.roles = vec![Role::Prefill, Role::Prefill, Role::Decode, Role::Both];
    assert_eq!(
        error(roles.clone()),
        "replicas 2 to 3 are the ranks of one group with dp and have different roles; give them one role"
    );
    roles.routing.roles[3] = Role::Decode;
    assert_eq!(roles.validate(), Ok(()));
}
