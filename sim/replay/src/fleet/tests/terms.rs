//! Priorities, deadlines, namespaces and known outputs of requests.

use super::autoscaling::watched;
use super::*;
use trunkline_sim_report::observer::{Observer, StepSeen};
use trunkline_sim_workload::trace::Terms;

/// Observer of every step, which disables fast-forward.
struct EveryStep;

impl Observer for EveryStep {
    fn ended(&mut self, _: &Outcome) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn step(&mut self, _: &StepSeen<'_>) {}
}

/// Sixty requests that arrive at once and take 40 steps each, four at a time; every third has to be done within 300 ms.
fn urgent_and_patient(patient_in_background: bool) -> Trace {
    let made = |i: u32| {
        let urgent = i % 3 == 2;
        let terms = Terms {
            priority: i32::from(!urgent),
            background: !urgent && patient_in_background,
            deadline_ns: Some(if urgent { 300 } else { 700 } * MS),
            ..Terms::default()
        };
        TraceRequest { terms, ..request(0, 64, 40, &[i]) }
    };
    trace((0..60).map(made).collect())
}

fn deadlines_met(policy: &str, patient_in_background: bool) -> (u64, u64) {
    let mut settings = settings(16, 4000);
    settings.core.policy = policy.into();
    settings.core.max_batch_size = 4;
    let report = run(&urgent_and_patient(patient_in_background), &settings);
    let deadlines = report.latencies.deadlines.unwrap();
    assert_eq!((report.requests, report.completed), (60, deadlines.met), "who misses a deadline is ended");
    (deadlines.met, deadlines.missed)
}

#[test]
fn edf_and_priority_meet_more_deadlines_than_fcfs() {
    // 41 ms for four requests: 28 until 300 ms, 68 until 700 ms.
    assert_eq!(deadlines_met("edf", false), (60, 0));
    assert_eq!(deadlines_met("priority", false), (60, 0));
    assert_eq!(deadlines_met("fcfs", true), (60, 0), "the patient ones wait in the background");
    let (met, missed) = deadlines_met("fcfs", false);
    assert!(met + missed == 60 && missed >= 8, "the last urgent ones come too late: {met} met, {missed} missed");
}

#[test]
fn deadlines_change_nothing_between_steps_and_fast_forwards() {
    let mut trace = conversations(200, 3);
    for (i, request) in trace.requests.iter_mut().enumerate() {
        request.terms.deadline_ns = (i % 4 == 0).then_some((5 + i as u64 % 50) * MS);
        request.terms.priority = (i % 3) as i32;
    }
    for (policy, replicas, steps) in [("fcfs", 1, 1), ("edf", 3, 1), ("priority", 2, 2)] {
        let mut settings = Settings { replicas, ..settings(16, 700) };
        settings.core.policy = policy.into();
        settings.core.max_steps_in_flight = steps;
        let fast = run(&trace, &settings);
        let stepped = replay_watched(&trace, &settings, &OneMs, &mut EveryStep).unwrap();
        assert_eq!((&fast.digest, fast.latencies), (&stepped.digest, stepped.latencies), "{policy}");
        let deadlines = fast.latencies.deadlines.unwrap();
        assert!(deadlines.missed > 0 && deadlines.met + deadlines.missed == 50, "{policy}: {deadlines:?}");
    }
}

#[test]
fn a_later_turn_finds_a_known_output() {
    let output: Box<[Token]> = (1000..1064).collect();
    let question: Vec<Token> = (0..64).collect();
    let later: Vec<Token> = question.iter().chain(&output).copied().chain(2000..2064).collect();
    let hits = |output: Option<Box<[Token]>>, namespace| {
        let first = TraceRequest {
            input_tokens: 64,
            output_tokens: 64,
            content: Content::Tokens(question.clone().into()),
            output,
            ..TraceRequest::default()
        };
        let second = TraceRequest {
            arrival_ns: 500 * MS,
            input_tokens: 192,
            content: Content::Tokens(later.clone().into()),
            terms: Terms { namespace, ..Terms::default() },
            ..TraceRequest::default()
        };
        run(&trace(vec![first, second]), &settings(16, 100)).tokens.prefix_hit_tokens
    };
    // The last token of an answer is never computed, so its block is not full.
    assert_eq!(hits(Some(output.clone()), 0), 112);
    assert_eq!(hits(None, 0), 64);
    assert_eq!(hits(Some(output.clone()), 1), 0, "namespaces share nothing");
}

#[test]
fn tenants_of_a_trace_are_reported() {
    let mut trace = conversations(40, 5);
    trace.requests.iter_mut().enumerate().for_each(|(i, request)| request.terms.tenant = u32::from(i % 4 == 0));
    assert_eq!(trace.tenants(), 2);
    let report = run(&trace, &Settings { tenants: Shares::traced(trace.tenants()), ..settings(16, 700) });
    let of_tenant: Vec<_> =
        report.fairness.unwrap().tenants.iter().map(|tenant| (tenant.requests, tenant.share)).collect();
    assert_eq!(of_tenant, [(30, 0.75), (10, 0.25)]);
}

#[test]
fn copied_tokens_are_counted_beside_hits() {
    let of = |anywhere| {
        let mut settings = settings(16, 100);
        settings.core.worker.reuse.anywhere = anywhere;
        let prompts: [Vec<Token>; 2] = [(0..128).collect(), (0..32).chain(900..907).chain(40..128).collect()];
        let asked = |(prompt, arrival_ms): (Vec<Token>, u64)| TraceRequest {
            arrival_ns: arrival_ms * MS,
            input_tokens: prompt.len() as u32,
            output_tokens: 2,
            content: Content::Tokens(prompt.into()),
            ..TraceRequest::default()
        };
        let (report, watch) = watched(&trace(prompts.into_iter().zip([0, 500]).map(asked).collect()), &settings);
        let outcomes: Vec<_> = watch.outcomes.iter().map(|it| (it.cached_tokens, it.copied_tokens)).collect();
        (report, outcomes)
    };
    let (report, outcomes) = of(0);
    assert_eq!((report.copies(), report.tokens.copied_tokens, outcomes[1]), (false, 0, (32, 0)));
    let (report, outcomes) = of(64);
    assert_eq!(outcomes, [(0, 0), (32, 87)], "all from 40 on, but for the last token");
    assert_eq!((report.copies(), report.tokens.copied_tokens), (true, 87));
    assert_eq!(report.tokens.copied_ratio, 87.0 / 255.0);
}

#[test]
fn edf_sees_the_clients_limits_and_a_report_names_the_lengths_it_sees_without_them() {
    let oracles = |policy: &str, limit| {
        let mut trace = urgent_and_patient(false);
        trace.requests.iter_mut().for_each(|request| request.terms.max_tokens = limit);
        let mut settings = settings(16, 4000);
        settings.core.policy = policy.into();
        run(&trace, &settings).settings.oracles
    };
    assert_eq!(oracles("edf", None), ["edf expects answers of max_tokens, which is their true length here"]);
    assert!(oracles("edf", Some(400)).is_empty() && oracles("fcfs", None).is_empty());
    // With one limit for all, long answers look as short as the others.
    let decisions = |limit| {
        let mut trace = urgent_and_patient(false);
        for (at, request) in trace.requests.iter_mut().enumerate() {
            request.arrival_ns = at as u64 * 5 * MS;
            request.output_tokens = if at % 2 == 0 { 10 } else { 70 };
            (request.terms.max_tokens, request.terms.deadline_ns) = (limit, Some(200 * MS));
        }
        let mut settings = settings(16, 4000);
        settings.core.policy = "edf".into();
        settings.core.max_batch_size = 4;
        run(&trace, &settings).digest
    };
    assert_ne!(decisions(None), decisions(Some(1_000)));
}
