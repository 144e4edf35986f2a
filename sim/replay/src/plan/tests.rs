//! Answers against those of trying everything.

use super::*;
use crate::fleet::replay;
use trunkline_sim_perf::cost::{Residuals, StepErrors, StepShape, TimeRange};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::slo::Slo;
use trunkline_sim_workload::trace::{Content, TraceRequest, formats};

const MS: u64 = 1_000_000;

/// Steps get longer with what is in them.
struct Linear;

impl CostModel for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        MS + shape.tokens * 20_000
    }
}

fn steady(n: u32, gap_ms: u64) -> Trace {
    let request = |i: u32| TraceRequest {
        arrival_ns: u64::from(i) * gap_ms * MS,
        input_tokens: 100 + i * 37 % 100,
        output_tokens: 20,
        content: Content::Unique(i),
        ..TraceRequest::default()
    };
    Trace { format: formats::AZURE, requests: (0..n).map(request).collect() }
}

fn settings(replicas: u32, device_blocks: u32) -> Settings {
    Settings {
        replicas,
        core: trunkline_core::Config { device_blocks, ..Settings::core() },
        draft_acceptance: 0.5,
        ..Settings::new(*hardware::by_name("h100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap())
    }
}

fn slos(specs: &[&str], goodput: Option<f64>) -> Slos {
    Slos::new(&specs.iter().map(|spec| spec.parse::<Slo>().unwrap()).collect::<Vec<_>>(), goodput).unwrap()
}

fn answer(trace: &Trace, settings: Settings, slos: &Slos, goal: Goal, complete: bool) -> Result<Answer, PlanError> {
    let candidate = Candidate { settings, cost: &Linear, price_hour: Some(2.0) };
    plan(trace, &candidate, &Search { slos, goal, complete, split: false }, &|_| {})
}

#[test]
fn the_least_number_of_replicas_is_that_of_trying_all() {
    let trace = steady(400, 1);
    let mut answers = Vec::new();
    for (specs, goodput) in [
        (&["ttft_p99=40ms"][..], None),
        (&["ttft_p99=15ms", "tpot_p95=20ms"], None),
        (&["e2e_mean=90ms"], None),
        (&["ttft=12ms", "e2e=200ms"], Some(0.9)),
        (&["itl_p99=12ms"], None),
        (&["ttft_p99=1us"], None),
    ] {
        let slos = slos(specs, goodput);
        let met: Vec<bool> = (1..=24)
            .map(|replicas| {
                let mut judge = Judge::new(&slos, 400);
                let settings = settings(replicas, 2_000);
                let report = replay_watched(&trace, &settings, &Linear, &mut |outcome: &Outcome| {
                    judge.see(outcome);
                    ControlFlow::Continue(())
                });
                judge.figures(&report.unwrap()).iter().all(|figure| figure.met)
            })
            .collect();
        let expected = met.iter().position(|met| *met).map(|at| at as u32 + 1);
        assert!(met.is_sorted(), "more replicas are never worse here: {specs:?} {met:?}");
        for complete in [false, true] {
            let found = answer(&trace, settings(7, 2_000), &slos, Goal::Replicas { max: 24 }, complete).unwrap();
            assert_eq!(found.best.as_ref().map(|probe| probe.replicas), expected, "{specs:?}");
            assert!(found.monotone);
            assert!(found.probes.is_sorted_by_key(|probe| probe.replicas));
            for probe in &found.probes {
                assert_eq!(probe.met, met[probe.replicas as usize - 1]);
                assert!(
                    probe.met || !complete || probe.figures.iter().any(|figure| !figure.met && figure.margin < 0.0)
                );
                assert_eq!(probe.stopped_by.is_some(), probe.figures.is_empty());
                assert!(!complete || probe.stopped_by.is_none());
            }
            let easiest = found.probes.last().unwrap();
            assert!(found.best.is_some() || !easiest.figures.is_empty(), "it is told by how much all fail");
            if let Some(best) = found.best {
                assert!(best.figures.iter().all(|figure| figure.met && figure.margin >= 0.0));
                assert!(expected == Some(1) || found.probes.iter().any(|probe| probe.replicas == best.replicas - 1));
                assert!(found.probes.iter().any(|probe| probe.replicas == best.replicas + 1));
            }
        }
        answers.push(expected);
    }
    assert!(answers.contains(&None) && answers.iter().flatten().any(|n| *n > 2), "{answers:?}");
}

#[test]
fn the_highest_rate_is_met_and_a_little_more_is_not() {
    let slos = slos(&["ttft_p99=20ms"], None);
    // From far below what the trace asks to far above.
    for gap_ms in [1, 4, 100] {
        let trace = steady(400, gap_ms);
        let found = answer(&trace, settings(2, 2_000), &slos, Goal::Rate, false).unwrap();
        let best = found.best.clone().unwrap();
        assert!(best.met && found.monotone && !found.at_end);
        assert_eq!(best.replicas, 2);
        let p99_at = |speed| {
            let settings = Settings { arrivals: Arrivals::Traced { speed }, ..settings(2, 2_000) };
            replay(&trace, &settings, &Linear, &mut |_| {}).unwrap().latencies.ttft_s.p99
        };
        assert!(p99_at(best.speed) <= 0.02 && p99_at(best.speed * 2f64.powf(1.0 / 32.0)) > 0.02);
        assert!((best.arrival_requests_s.unwrap() / best.speed - 1_000.0 / gap_ms as f64).abs() < 1e-6);
    }
    // What a lone request cannot meet, no rate can.
    let never = self::slos(&["ttft_p99=1us"], None);
    assert_eq!(answer(&steady(20, 10), settings(1, 2_000), &never, Goal::Rate, false).unwrap().best, None);
    let at_once = answer(&steady(20, 0), settings(1, 2_000), &never, Goal::Rate, false).unwrap_err().to_string();
    assert_eq!(
        at_once,
        "all requests of the trace arrive at one instant, or after answers, so it has no rate to multiply; --load and --find-rate need arrivals at \
         times of their own"
    );
}

#[test]
fn prices_are_per_token() {
    let trace = steady(100, 10);
    let easy = slos(&["e2e_max=100s"], None);
    let found = answer(&trace, settings(1, 2_000), &easy, Goal::Replicas { max: 3 }, false).unwrap();
    assert!(!found.is_saturated() && found.load.is_some_and(|load| load > 0.0), "{:?}", found.load);
    let best = found.best.unwrap();
    let report = replay(&trace, &settings(1, 2_000), &Linear, &mut |_| {}).unwrap();
    let million = 2.0 * report.duration_s / 3600.0 / (100.0 * 20.0 / 1e6);
    assert!((best.price_million_output_tokens.unwrap() / million - 1.0).abs() < 1e-9);
    assert!(best.price_million_tokens.unwrap() < million);
    assert_eq!(best.utilisation, Some(report.fleet.utilisation));
}

#[test]
fn what_no_fleet_can_do_is_told() {
    let trace = steady(100, 10);
    let slos = slos(&["ttft=1s"], Some(0.99));
    let told = |settings, goal| answer(&trace, settings, &slos, goal, false).unwrap_err().to_string();
    // Ten blocks hold prompts of 141 tokens and less.
    let too_large = told(settings(1, 10), Goal::Replicas { max: 8 });
    let expected = "of 100 requests are too large for h100-80g, more than the SLOs allow whatever the number of replicas; give it more \
                    blocks, or shorten them with --max-context";
    assert!(too_large.starts_with("at least ") && too_large.ends_with(expected), "{too_large}");
    let slos = self::slos(&["ttft_p99=1s"], None);
    let refused = answer(&trace, settings(1, 10), &slos, Goal::Replicas { max: 8 }, false).unwrap_err().to_string();
    assert!(refused.ends_with(expected), "without a goodput: {refused}");
    assert_eq!(told(settings(1, 1_000), Goal::Replicas { max: 0 }), "the most replicas is 0; it must be at least 1");
    let mut faulty = settings(1, 1_000);
    faulty.routing.slow = vec!["0:2".parse().unwrap()];
    assert_eq!(
        told(faulty, Goal::Replicas { max: 2 }),
        "replicas that fail or are slow can be planned with only for a given number of replicas; look for the rate"
    );
    let candidate = Candidate { settings: settings(1, 1_000), cost: &Linear, price_hour: Some(-1.0) };
    let search = Search { slos: &slos, goal: Goal::Rate, complete: false, split: false };
    let price = plan(&trace, &candidate, &search, &|_| {}).unwrap_err().to_string();
    assert_eq!(price, "price of h100-80g is -1; it must be a number above 0");
}

#[test]
fn a_split_is_found_that_trying_all_divisions_finds_too() {
    let trace = steady(300, 1);
    for specs in [&["ttft_p99=30ms", "tpot_p99=9ms"][..], &["ttft_p99=60ms", "tpot_p99=4ms"], &["e2e_p99=150ms"]] {
        let slos = slos(specs, None);
        let meets = |replicas: u32, prefill: u32| {
            let mut settings = settings(replicas, 2_000);
            let role = |at| if at < prefill { Role::Prefill } else { Role::Decode };
            settings.routing.roles = (0..replicas).map(role).collect();
            let mut judge = Judge::new(&slos, 300);
            let report = replay_watched(&trace, &settings, &Linear, &mut |outcome: &Outcome| {
                judge.see(outcome);
                ControlFlow::Continue(())
            });
            judge.figures(&report.unwrap()).iter().all(|figure| figure.met)
        };
        let least = (2..=12).find(|replicas| (1..*replicas).any(|prefill| meets(*replicas, prefill)));
        for complete in [false, true] {
            let candidate = Candidate { settings: settings(1, 2_000), cost: &Linear, price_hour: None };
            let search = Search { slos: &slos, goal: Goal::Replicas { max: 12 }, complete, split: true };
            let answer = plan(&trace, &candidate, &search, &|_| {}).unwrap();
            let best = answer.best.as_ref();
            assert_eq!(best.map(|best| best.replicas), least, "{specs:?} {:?}", answer.probes);
            assert!(best.is_none_or(|best| meets(best.replicas, best.prefill.unwrap())));
            assert_eq!(answer.load, None);
        }
    }
}

#[test]
fn a_split_needs_two_replicas_and_no_roles() {
    let trace = steady(10, 1);
    let slos = slos(&["ttft_p99=1s"], None);
    let error = |settings: Settings, goal, split| {
        let candidate = Candidate { settings, cost: &Linear, price_hour: None };
        plan(&trace, &candidate, &Search { slos: &slos, goal, complete: false, split }, &|_| {})
            .unwrap_err()
            .to_string()
    };
    let max = |max| Goal::Replicas { max };
    assert!(error(settings(1, 2_000), max(1), true).starts_with("a split needs at least 2 replicas"));
    assert!(error(settings(1, 2_000), Goal::Rate, true).starts_with("a split is found for the least number"));
    let mut roles = settings(2, 2_000);
    roles.routing.roles = vec![Role::Prefill, Role::Decode];
    assert!(error(roles, max(4), false).starts_with("roles are those of a given number of replicas"));
}

#[test]
fn an_slo_that_a_request_alone_does_not_meet_is_met_by_no_number_of_replicas() {
    // A prompt of 100 tokens and more takes 3 ms and more.
    let (trace, few) = (steady(200, 1), Goal::Replicas { max: 2 });
    let alone = |specs: &[&str]| {
        let answer = answer(&trace, settings(1, 400), &slos(specs, None), few, false).unwrap();
        assert_eq!(answer.best, None);
        answer.alone.iter().map(|figure| (figure.name.clone(), figure.met)).collect::<Vec<_>>()
    };
    let (ttft, e2e) = ("ttft_p99".to_owned(), "e2e_p99".to_owned());
    assert_eq!(alone(&["ttft_p99=4ms", "e2e_p99=40ms"]), [(ttft.clone(), false), (e2e.clone(), true)]);
    assert_eq!(alone(&["ttft_p99=6ms", "e2e_p99=40ms"]), [(ttft, true), (e2e, true)], "more replicas would do");
    let met = answer(&trace, settings(1, 400), &slos(&["e2e_p99=10s"], None), few, false).unwrap();
    assert!(met.best.is_some() && met.alone.is_empty());
}

/// Steps as of [`Linear`], with an error of so much for all kinds of batch, or for none.
struct Doubtful(Option<f64>);

impl CostModel for Doubtful {
    fn name(&self) -> &str {
        "doubtful"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        Linear.step_ns(shape)
    }

    fn errors(&self, _: usize) -> StepErrors {
        let of = self.0.map(|median| Residuals { median, p95: 1.0, bias: -median / 2.0 });
        StepErrors { prefill: of, decode: of, mixed: of }
    }
}

/// Steps as of [`Linear`], of which nothing but a range is known.
struct Ranged;

impl CostModel for Ranged {
    fn name(&self) -> &str {
        "ranged"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        Linear.step_ns(shape)
    }

    fn range(&self, _: usize) -> Option<TimeRange> {
        Some(TimeRange { low: 0.5, high: 2.5, launches_s: 0.0, why: "nobody measured it" })
    }
}

/// Steps as of [`Linear`], so many times as long.
struct Times(f64);

impl CostModel for Times {
    fn name(&self) -> &str {
        "times"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        (Linear.step_ns(shape) as f64 * self.0).round() as u64
    }
}

#[test]
fn an_error_of_step_times_makes_the_answer_a_range() {
    let trace = steady(400, 1);
    let slos = slos(&["ttft_p99=40ms"], None);
    for goal in [Goal::Replicas { max: 32 }, Goal::Rate] {
        let plan = |cost: &(dyn CostModel + Sync)| {
            let candidate = Candidate { settings: settings(2, 5_000), cost, price_hour: None };
            plan(&trace, &candidate, &Search { slos: &slos, goal, complete: false, split: false }, &|_| {}).unwrap()
        };
        let range = plan(&Doubtful(Some(0.4))).range.unwrap();
        let ends = [range.if_faster, range.if_slower].map(|probe| probe.map(|it| (it.replicas, it.speed)));
        // The same as planning with steps that are so much shorter or longer.
        let expected = [1.0 / 1.4, 1.0 / 0.6].map(|times| plan(&Times(times)).best.map(|it| (it.replicas, it.speed)));
        assert_eq!(ends, expected, "{goal:?}");
        assert_ne!(expected[0], expected[1]);
        assert_eq!(plan(&Doubtful(Some(0.0))).range.unwrap().if_slower, plan(&Linear).best);
        assert_eq!(plan(&Doubtful(None)).range, None, "an unknown error gives no range");
        let range = plan(&Ranged).range.unwrap();
        let ends = [range.if_faster, range.if_slower].map(|probe| probe.map(|it| (it.replicas, it.speed)));
        let expected = [0.5, 2.5].map(|times| plan(&Times(times)).best.map(|it| (it.replicas, it.speed)));
        assert_eq!((ends, range.doubt), (expected, Doubt::Times(Ranged.range(0).unwrap())), "{goal:?}");
    }
}

#[test]
fn a_range_says_when_slower_steps_can_be_met_by_no_number() {
    let trace = steady(50, 10);
    // A prompt of 199 tokens takes 5 ms alone.
    let slos = slos(&["ttft_max=5500us"], None);
    let candidate = Candidate { settings: settings(1, 5_000), cost: &Doubtful(Some(0.5)), price_hour: None };
    let search = Search { slos: &slos, goal: Goal::Replicas { max: 4 }, complete: false, split: false };
    let answer = plan(&trace, &candidate, &search, &|_| {}).unwrap();
    let range = answer.range.unwrap();
    assert!(answer.best.is_some() && range.if_faster.is_some());
    assert_eq!(range.if_slower, None);
}

#[test]
fn each_hour_of_a_day_has_the_answer_of_its_own_search() {
    let trace = steady(300, 2);
    let slos = slos(&["ttft_p99=15ms"], None);
    let mut rates = [1.0; 24];
    (rates[3], rates[5], rates[9], rates[10], rates[14]) = (0.25, 0.0, 2.0, 2.5, 0.5);
    let day = |max, start_delay_s| {
        let candidate = Candidate { settings: settings(1, 2_000), cost: &Linear, price_hour: Some(2.0) };
        let search = Search { slos: &slos, goal: Goal::Replicas { max }, complete: false, split: false };
        let day = Day { curve: trunkline_sim_workload::daily::DailyCurve::new(&rates).unwrap(), start_delay_s };
        plan_day(&trace, &candidate, &search, &day, &|_| {})
    };
    let found = day(24, 0.0).unwrap();
    let replicas: Vec<u32> = found.hours.iter().map(|hour| hour.replicas().unwrap()).collect();
    assert_eq!((replicas[5], &found.hours[5].best), (0, &None), "closed");
    for hour in [0, 3, 9, 10, 14, 23] {
        let settings = Settings { arrivals: Arrivals::Traced { speed: rates[hour] }, ..settings(1, 2_000) };
        let alone = answer(&trace, settings, &slos, Goal::Replicas { max: 24 }, false).unwrap();
        assert_eq!(replicas[hour], alone.best.unwrap().replicas, "hour {hour}");
        assert!((found.hours[hour].arrival_requests_s - 500.0 * rates[hour]).abs() < 1e-6);
    }
    assert!(replicas[3] < replicas[0] && replicas[0] < replicas[10], "{replicas:?}");
    let (fixed, following) = (found.fixed.unwrap(), found.following.unwrap());
    assert_eq!(fixed.replica_hours, f64::from(replicas[10]) * 24.0);
    assert_eq!(following.replica_hours, replicas.iter().map(|n| f64::from(*n)).sum::<f64>());
    assert_eq!((fixed.cost, following.cost), (Some(2.0 * fixed.replica_hours), Some(2.0 * following.replica_hours)));
    assert_eq!(found.peak.best.unwrap().replicas, replicas[10]);
    // An hour without an answer leaves the day without one.
    let small = day(replicas[10] - 1, 0.0).unwrap();
    assert!(small.fixed.is_none() && small.hours[10].best.is_none() && small.hours[3].best.is_some());
    assert_eq!(day(24, 4_000.0).unwrap_err().to_string(), "start delay is 4000; it must be from 0 to 3600 seconds");
}

#[test]
fn ranks_in_lock_step_are_planned_by_the_rate() {
    let (trace, slos) = (steady(100, 1), slos(&["ttft_p99=40ms"], None));
    let mut ranks = settings(2, 4_000);
    (ranks.model, ranks.parallel) = (*model::by_name("mixtral-8x7b").unwrap(), "dp2ep2".parse().unwrap());
    let fault = answer(&trace, ranks.clone(), &slos, Goal::Replicas { max: 8 }, false).unwrap_err().to_string();
    assert_eq!(fault, "replicas with dp are ranks of a group in lock step; give their number and look for the rate");
    let found = answer(&trace, ranks.clone(), &slos, Goal::Rate, false).unwrap();
    assert_eq!(found.best.unwrap().replicas, 2);
}
