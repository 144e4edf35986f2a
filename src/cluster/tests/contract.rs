//! The contract on the front page of [`Cluster`], rule by rule.

use std::collections::BTreeMap;
use std::ops::Range;

use trunkline_cluster::{Cluster, ClusterConfig, EngineId, EngineState, Input, Move, Output};
use trunkline_core::{
    Action, Config, Event, FastForwardDriver, FastForwardResult, Namespace, Refusal, Request, RequestId, SteadyBatch,
    SteadySteps, StepResult, Token,
};

const MS: u64 = 1_000_000;

/// A cluster whose workers say 7, and the steps in flight.
struct Rig {
    cluster: Cluster,
    now_ns: u64,
    steps: BTreeMap<u32, StepResult>,
}

impl Rig {
    /// Engines without workers.
    fn absent(n: usize) -> Self {
        let config = Config { block_size: 4, device_blocks: 64, max_steps_in_flight: 1, ..Config::default() };
        let config = ClusterConfig { router: "round_robin".into(), ..ClusterConfig::uniform(&config, n) };
        Self { cluster: Cluster::new(&config).unwrap(), now_ns: 0, steps: BTreeMap::new() }
    }

    fn joined(n: usize) -> Self {
        let mut rig = Self::absent(n);
        (0..n as u32).for_each(|engine| assert!(rig.engine(engine, Event::WorkerJoined).is_empty()));
        rig
    }

    /// Delivers an input a millisecond after the last one, and returns the outputs.
    fn input(&mut self, input: Input) -> Vec<Output> {
        self.now_ns += MS;
        let mut out = Vec::new();
        self.cluster.handle(self.now_ns, input, &mut out);
        self.cluster.check();
        for output in &out {
            if let Output::Engine(engine, Action::RunStep(step)) = output {
                let mut result = StepResult { step: step.id, ..StepResult::default() };
                step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
                self.steps.insert(engine.0, result);
            }
        }
        out
    }

    fn engine(&mut self, engine: u32, event: Event) -> Vec<Output> {
        self.input(Input::Engine(EngineId(engine), event))
    }

    fn client(&mut self, event: Event) -> Vec<Output> {
        self.input(Input::Client(event))
    }

    fn submit(&mut self, id: u64, max_tokens: u32) -> Vec<Output> {
        let mut request = Request::new(RequestId(id), Namespace::default().root(), vec![id as Token; 6], max_tokens);
        request.hash_prompt(4);
        self.client(Event::Submit(Box::new(request)))
    }

    /// Answers the step in flight of an engine.
    fn answer(&mut self, engine: u32) -> Vec<Output> {
        let result = self.steps.remove(&engine).expect("a step is in flight");
        self.engine(engine, Event::StepFinished(result))
    }

    fn at(&self, id: u64) -> Option<u32> {
        self.cluster.engine_of(RequestId(id)).map(|engine| engine.0)
    }
}

fn runs(out: &[Output], engine: u32) -> bool {
    out.iter().any(|output| matches!(output, Output::Engine(EngineId(at), Action::RunStep(_)) if *at == engine))
}

#[test]
fn outputs_are_appended_to_those_that_wait() {
    let mut rig = Rig::joined(1);
    let mut out = vec![Output::Emptied(EngineId(0))];
    rig.cluster.handle(MS, Input::Client(Event::Tick), &mut out);
    assert_eq!(out, [Output::Emptied(EngineId(0))]);
}

#[test]
fn a_tick_of_the_clock_is_for_the_engine_with_the_earliest_deadline() {
    let mut rig = Rig::joined(2);
    for (id, deadline_ns) in [(1, 900 * MS), (2, 100 * MS)] {
        let mut request = Request::new(RequestId(id), Namespace::default().root(), vec![id as Token; 6], 50);
        request.hash_prompt(4);
        request.deadline_ns = Some(deadline_ns);
        rig.client(Event::Submit(Box::new(request)));
    }
    assert_eq!((rig.at(1), rig.at(2), rig.cluster.next_deadline_ns()), (Some(0), Some(1), Some(100 * MS)));
    rig.now_ns = 100 * MS;
    let out = rig.client(Event::Tick);
    assert!(matches!(out[..], [Output::Engine(EngineId(1), Action::Finish { request: RequestId(2), .. })]), "{out:?}");
    assert_eq!(rig.cluster.next_deadline_ns(), Some(900 * MS));
}

#[test]
#[should_panic(expected = "WorkerLost comes from a worker")]
fn what_a_worker_says_needs_its_engine() {
    Rig::joined(2).client(Event::WorkerLost);
}

#[test]
#[should_panic(expected = "engine 2 of 2: WorkerJoined")]
fn an_engine_must_be_of_the_cluster() {
    Rig::joined(2).engine(2, Event::WorkerJoined);
}

#[test]
fn requests_wait_at_an_engine_that_is_expected() {
    let mut rig = Rig::absent(2);
    let out = rig.submit(1, 2);
    assert!(matches!(out[..], [Output::Placed { request: RequestId(1), engine: EngineId(0) }]), "{out:?}");
    assert!(runs(&rig.engine(0, Event::WorkerJoined), 0));
}

#[test]
fn the_place_of_a_request_comes_before_all_that_is_said_about_it() {
    let mut rig = Rig::joined(2);
    let out = rig.submit(1, 5);
    assert!(matches!(out[..], [Output::Placed { .. }, Output::Engine(EngineId(0), Action::RunStep(_))]), "{out:?}");
    let out = rig.input(Input::Retire(EngineId(0)));
    let [Output::Moved { request: RequestId(1), from: EngineId(0), to: EngineId(1), .. }, rest @ ..] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(runs(rest, 1));
}

/// Two engines; the step in flight of the first runs requests 1 and 3.
fn together() -> Rig {
    let mut rig = Rig::joined(2);
    (1..4).for_each(|id| _ = rig.submit(id, 5));
    rig.answer(0);
    assert_eq!((rig.at(1), rig.at(3), rig.steps[&0].ends.len()), (Some(0), Some(0), 2));
    rig
}

#[test]
fn a_lost_worker_keeps_its_requests_and_a_retired_one_does_not() {
    let mut rig = together();
    let late = rig.steps[&0].clone();
    assert!(rig.engine(0, Event::WorkerLost).is_empty());
    assert_eq!((rig.at(1), rig.at(3)), (Some(0), Some(0)));
    let digest = rig.cluster.digest();
    assert!(rig.engine(0, Event::StepFinished(late)).is_empty(), "the step is lost");
    assert_eq!(rig.cluster.digest(), digest);
    assert!(runs(&rig.engine(0, Event::WorkerJoined), 0), "they run here again");
    rig.input(Input::Retire(EngineId(0)));
    assert_eq!((rig.at(1), rig.at(3)), (Some(1), Some(1)));
}

#[test]
fn a_request_whose_step_is_lost_alone_is_tried_elsewhere() {
    let mut rig = Rig::joined(2);
    rig.submit(1, 5);
    let out = rig.engine(0, Event::WorkerLost);
    assert!(matches!(out[0], Output::Moved { request: RequestId(1), why: Move::Failed, .. }), "{out:?}");
}

#[test]
fn an_engine_that_was_drained_is_empty_before_it_stops_and_takes_nothing_until_it_is_opened() {
    let mut rig = Rig::joined(2);
    rig.submit(1, 2);
    assert!(rig.input(Input::DrainEngine(EngineId(0))).is_empty(), "the request runs to its end");
    rig.answer(0);
    assert_eq!(rig.answer(0).last(), Some(&Output::Emptied(EngineId(0))));
    rig.engine(0, Event::WorkerLost);
    rig.engine(0, Event::WorkerJoined);
    (2..4).for_each(|id| _ = rig.submit(id, 2));
    assert_eq!((rig.at(2), rig.at(3)), (Some(1), Some(1)));
    rig.input(Input::OpenEngine(EngineId(0)));
    (4..6).for_each(|id| _ = rig.submit(id, 2));
    assert!([rig.at(4), rig.at(5)].contains(&Some(0)));
}

#[test]
fn an_engine_whose_worker_must_be_reset_is_absent_until_it_joins() {
    let mut rig = together();
    let mut wrong = rig.steps.remove(&0).unwrap();
    wrong.push(&[7]);
    let out = rig.engine(0, Event::StepFinished(wrong));
    assert_eq!(out, [Output::Engine(EngineId(0), Action::ResetWorker)]);
    assert_eq!((rig.cluster.status(EngineId(0)).state, rig.at(1)), (EngineState::Absent, Some(0)));
    (4..6).for_each(|id| _ = rig.submit(id, 2));
    assert_eq!((rig.at(4), rig.at(5)), (Some(1), Some(1)));
    assert!(runs(&rig.engine(0, Event::WorkerJoined), 0));
}

#[test]
fn an_id_is_one_for_all_engines_and_free_after_the_end() {
    let mut rig = Rig::joined(2);
    rig.submit(1, 1);
    let out = rig.submit(1, 1);
    let refused = Action::Refuse { request: RequestId(1), refusal: Refusal::DuplicateId };
    assert_eq!(out, [Output::Engine(EngineId(0), refused)]);
    assert!(matches!(
        rig.answer(0)[..],
        [Output::Engine(_, Action::Token { .. }), Output::Engine(_, Action::Finish { .. })]
    ));
    assert!(matches!(rig.submit(1, 1)[..], [Output::Placed { .. }, Output::Engine(_, Action::RunStep(_))]));
}

#[test]
fn the_end_of_a_drain_is_reported_once_for_all_engines() {
    let mut rig = Rig::joined(2);
    (1..3).for_each(|id| _ = rig.submit(id, 1));
    assert!(rig.client(Event::Drain).is_empty());
    let drained = Output::Cluster(Action::Drained);
    assert!(!rig.answer(0).contains(&drained), "the other engine has a request");
    assert_eq!(rig.answer(1).last(), Some(&drained));
    assert!(rig.client(Event::Tick).is_empty());
}

/// A driver that lets each step run to its end.
struct Patient;

impl FastForwardDriver for Patient {
    fn on_steps_begin(&mut self, begin_ns: u64, _: &SteadyBatch, _: u32) -> SteadySteps {
        SteadySteps { begun: 1, end_ns: begin_ns + MS, skip: false }
    }

    fn generate(&mut self, _: RequestId, numbers: Range<u32>, tokens: &mut Vec<Token>) {
        tokens.extend(numbers.map(|_| 7));
    }

    fn on_tokens(&mut self, _: RequestId, _: u32) {}
}

/// Two engines with a request each, the first in the middle of a fast-forward.
fn paused() -> Rig {
    let mut rig = Rig::joined(2);
    (1..3).for_each(|id| _ = rig.submit(id, 50));
    rig.answer(0);
    let result = rig.cluster.fast_forward(rig.now_ns + MS, EngineId(0), &mut Patient, &mut Vec::new());
    assert!(matches!(result, FastForwardResult::Paused { .. }), "{result:?}");
    rig
}

#[test]
fn beside_a_paused_fast_forward_the_other_engines_take_everything() {
    let mut rig = paused();
    assert!(rig.client(Event::Tick).is_empty());
    assert!(runs(&rig.answer(1), 1));
    assert!(!rig.client(Event::Abort(RequestId(2))).is_empty());
    rig.submit(3, 5);
    assert_eq!(rig.at(3), Some(0), "the engine itself takes requests");
}

#[test]
#[should_panic(expected = "a fast-forward is under way: Abort")]
fn a_paused_fast_forward_takes_nothing_else() {
    paused().client(Event::Abort(RequestId(1)));
}

/// Runs requests to their end, with or without handing memory back. Returns the digest.
fn digest(hands_back: bool) -> u64 {
    let mut rig = Rig::joined(2);
    (1..5).for_each(|id| _ = rig.submit(id, 5));
    while let Some(engine) = rig.steps.keys().next().copied() {
        let mut out = rig.answer(engine);
        if hands_back {
            drop(rig.cluster.take_remains());
            drop(rig.cluster.spare_result(EngineId(engine)));
            for output in out.drain(..) {
                if let Output::Engine(engine, Action::RunStep(step)) = output {
                    rig.cluster.recycle(engine, step);
                }
            }
        }
    }
    assert_eq!(rig.cluster.requests(), 0);
    rig.cluster.digest()
}

#[test]
fn memory_that_is_handed_back_changes_no_decision() {
    assert_eq!(digest(true), digest(false));
}

#[test]
fn a_cluster_moves_to_another_thread() {
    fn moves<T: Send>(_: &T) {}
    moves(&Rig::absent(1).cluster);
}
