//! The contract on the front page of [`Core`], rule by rule.

use trunkline_core::{
    Action, BlockKey, Config, Core, Event, FastForwardDriver, FastForwardResult, FinishReason, KnownBlock, Namespace,
    Request, RequestId, SteadyBatch, SteadySteps, StepResult, TierConfig, Token, Write,
};

const MS: u64 = 1_000_000;

fn config() -> Config {
    Config { block_size: 4, device_blocks: 64, max_steps_in_flight: 1, ..Config::default() }
}

fn unhashed(id: u64, max_tokens: u32) -> Request {
    Request::new(RequestId(id), Namespace::default().root(), vec![id as Token; 6], max_tokens)
}

fn submit(id: u64, max_tokens: u32) -> Event {
    let mut request = unhashed(id, max_tokens);
    request.hash_prompt(4);
    Event::Submit(Box::new(request))
}

/// A core, and the actions that nobody has performed yet.
struct Rig {
    core: Core,
    now_ns: u64,
    actions: Vec<Action>,
}

impl Rig {
    fn new(config: Config) -> Self {
        Self { core: Core::new(config).unwrap(), now_ns: 0, actions: Vec::new() }
    }

    fn joined(config: Config) -> Self {
        let mut rig = Self::new(config);
        rig.event(Event::WorkerJoined);
        rig
    }

    /// Delivers an event a millisecond after the last one, and returns its actions.
    fn event(&mut self, event: Event) -> Vec<Action> {
        self.now_ns += MS;
        self.core.handle(self.now_ns, event, &mut self.actions);
        std::mem::take(&mut self.actions)
    }
}

/// Returns the answer to the first step among actions: one token for each sequence that samples.
fn answer(actions: &[Action]) -> StepResult {
    let step = actions.iter().find_map(|action| if let Action::RunStep(step) = action { Some(step) } else { None });
    let step = step.expect("a step is among the actions");
    let mut result = StepResult { step: step.id, ..StepResult::default() };
    step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[9] } else { &[] }));
    result
}

fn steps(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::RunStep(_))).count()
}

fn ends(actions: &[Action]) -> Vec<(u64, FinishReason)> {
    let end = |action: &Action| match action {
        Action::Finish { request, reason, .. } => Some((request.0, *reason)),
        _ => None,
    };
    actions.iter().filter_map(end).collect()
}

#[test]
fn actions_are_appended_to_those_that_wait() {
    let mut rig = Rig::joined(config());
    rig.actions.push(Action::Drained);
    let actions = rig.event(submit(1, 2));
    assert!(matches!(actions[..], [Action::Drained, Action::RunStep(_)]), "{actions:?}");
}

#[test]
fn an_earlier_time_counts_as_the_latest_seen() {
    let digest = |times: [u64; 3]| {
        let mut core = Core::new(config()).unwrap();
        let mut actions = Vec::new();
        let mut request = unhashed(1, 2);
        request.hash_prompt(4);
        request.deadline_ns = Some(6 * MS);
        let events = [Event::WorkerJoined, Event::Submit(Box::new(request)), Event::Tick];
        times.into_iter().zip(events).for_each(|(now_ns, event)| core.handle(now_ns, event, &mut actions));
        (core.digest(), ends(&actions))
    };
    assert_eq!(digest([5 * MS, 0, MS]), digest([5 * MS, 5 * MS, 5 * MS]));
    assert_eq!(
        digest([7 * MS, 0, MS]).1,
        [(1, FinishReason::Timeout)],
        "the deadline has passed, whatever is said later"
    );
}

#[test]
fn requests_wait_for_a_worker() {
    let mut rig = Rig::new(config());
    assert!(rig.event(submit(1, 2)).is_empty() && rig.event(Event::Tick).is_empty());
    assert_eq!(steps(&rig.event(Event::WorkerJoined)), 1);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "hash the prompt first")]
fn a_prompt_that_is_not_hashed_is_noticed() {
    Rig::joined(config()).event(Event::Submit(Box::new(unhashed(1, 2))));
}

#[test]
fn a_tier_takes_blocks_from_before_in_order_and_before_its_first_use() {
    let tier =
        TierConfig { name: "host".into(), blocks: 8, write: Write::Through, eviction: "lru".into(), shared: false };
    let config = Config { tiers: vec![tier], ..config() };
    let known = |block: u32| {
        let key = BlockKey { hash: block.into(), fingerprint: block.into(), ..BlockKey::default() };
        KnownBlock { block, key, tokens: vec![block; 4] }
    };
    let adopted = |rig: &mut Rig, numbers: &[u32]| {
        rig.event(Event::TierFound { tier: 0, blocks: numbers.iter().map(|number| known(*number)).collect() });
        rig.core.stats().tiers[0].blocks
    };
    assert_eq!(adopted(&mut Rig::new(config.clone()), &[0, 1, 2]), 3);
    assert_eq!(adopted(&mut Rig::new(config.clone()), &[0, 2, 3]), 1, "block 1 is missing");
    let mut used = Rig::joined(config);
    let actions = used.event(submit(1, 1));
    let actions = used.event(Event::StepFinished(answer(&actions)));
    assert!(actions.iter().any(|action| matches!(action, Action::Transfer(_))), "the prompt is stored");
    let before = used.core.stats().tiers[0].blocks;
    assert_eq!(adopted(&mut used, &[0, 1, 2]), before, "these numbers are in use");
}

#[test]
fn as_many_steps_as_configured_wait_for_their_answers() {
    let mut rig = Rig::joined(Config { max_steps_in_flight: 2, ..config() });
    let first = rig.event(submit(1, 9));
    assert_eq!(steps(&first), 2, "two steps follow one another");
    assert_eq!(steps(&rig.event(submit(2, 9))), 0, "no third one, until the first is answered");
    assert_eq!(steps(&rig.event(Event::StepFinished(answer(&first)))), 1);
}

#[test]
fn after_a_wrong_answer_nothing_runs_until_the_worker_has_joined_and_everything_is_sent_again() {
    let mut rig = Rig::joined(config());
    let sent = rig.event(submit(1, 2));
    let right = answer(&sent);
    let wrong = StepResult { tokens: vec![9, 9], ends: vec![2], ..right.clone() };
    assert_eq!(rig.event(Event::StepFinished(wrong)), [Action::ResetWorker]);
    assert!(rig.event(Event::StepFinished(right)).is_empty(), "the step is lost");
    assert!(rig.event(submit(2, 2)).is_empty() && rig.event(Event::Tick).is_empty());
    let again = rig.event(Event::WorkerJoined);
    let [Action::RunStep(step)] = &again[..] else { panic!("{again:?}") };
    assert!(step.seqs.iter().all(|seq| seq.start && seq.computed == 0), "{step:?}");
}

#[test]
fn a_limit_of_drafts_is_for_steps_that_begin_later() {
    let drafts = |actions: &[Action]| match actions.last() {
        Some(Action::RunStep(step)) => (step.id, step.seqs[0].n_drafts),
        other => panic!("{other:?}"),
    };
    let mut rig = Rig::joined(Config { max_drafts: 2, ..config() });
    let prompt = rig.event(submit(1, 50));
    let (step, n_drafts) = drafts(&rig.event(Event::StepFinished(answer(&prompt))));
    assert_eq!(n_drafts, 2);
    assert!(rig.event(Event::DraftsLimited(0)).is_empty());
    let result = StepResult { step, tokens: vec![9; 3], ends: vec![3], ..StepResult::default() };
    let next = rig.event(Event::StepFinished(result));
    assert_eq!((next.len(), drafts(&next)), (4, (step + 1, 0)), "three tokens and a step: {next:?}");
}

#[test]
fn answers_to_what_is_not_in_flight_change_nothing() {
    let mut rig = Rig::joined(config());
    let sent = rig.event(submit(1, 3));
    rig.event(Event::StepFinished(answer(&sent)));
    let digest = rig.core.digest();
    let late = [
        Event::StepFinished(answer(&sent)),
        Event::TransferFinished(7),
        Event::TransferFailed(7),
        Event::TransferInterrupted(7),
        Event::TransferPartial { transfer: 7, faults: Vec::new() },
        Event::LookupEnded { lookup: 7, found: 3 },
        Event::Abort(RequestId(7)),
        Event::Stop(RequestId(7)),
        Event::Withdraw(RequestId(7)),
        Event::Fail(RequestId(7)),
    ];
    for event in late {
        assert!(rig.event(event).is_empty());
    }
    assert_eq!(rig.core.digest(), digest);
}

#[test]
fn a_deadline_that_nobody_reports_passes_at_the_next_event() {
    let mut rig = Rig::joined(config());
    let mut request = unhashed(1, 50);
    request.hash_prompt(4);
    request.deadline_ns = Some(10 * MS);
    let sent = rig.event(Event::Submit(Box::new(request)));
    assert_eq!(rig.core.next_deadline_ns(), Some(10 * MS));
    rig.now_ns = 20 * MS;
    let actions = rig.event(Event::StepFinished(answer(&sent)));
    assert_eq!(ends(&actions), [(1, FinishReason::Timeout)]);
    assert_eq!(rig.core.next_deadline_ns(), None);
}

#[test]
fn a_request_ends_once_and_its_id_is_free_again() {
    let mut rig = Rig::joined(config());
    let sent = rig.event(submit(1, 50));
    assert!(matches!(rig.event(submit(1, 50))[..], [Action::Refuse { request: RequestId(1), .. }]), "it lives");
    assert_eq!(ends(&rig.event(Event::Abort(RequestId(1)))), [(1, FinishReason::Abort)]);
    assert!(rig.event(Event::StepFinished(answer(&sent))).is_empty(), "its step in flight has nothing to say");
    assert_eq!(steps(&rig.event(submit(1, 50))), 1);
}

#[test]
fn a_withdrawn_request_is_forgotten_here_and_goes_on_elsewhere() {
    let mut rig = Rig::joined(config());
    let sent = rig.event(submit(1, 2));
    rig.event(Event::WorkerLost);
    let mut actions = rig.event(Event::Withdraw(RequestId(1)));
    let Some(Action::Withdrawn(request)) = actions.pop() else { panic!("{actions:?}") };
    assert!(rig.event(Event::WorkerJoined).is_empty() && rig.event(Event::StepFinished(answer(&sent))).is_empty());
    assert_eq!(steps(&Rig::joined(config()).event(Event::Submit(request))), 1);
}

#[test]
fn a_drain_is_reported_once_when_all_has_ended() {
    let mut rig = Rig::joined(config());
    let sent = rig.event(submit(1, 1));
    assert!(rig.event(Event::Drain).is_empty(), "a request is left");
    assert!(matches!(rig.event(submit(2, 1))[..], [Action::Refuse { request: RequestId(2), .. }]));
    let actions = rig.event(Event::StepFinished(answer(&sent)));
    assert_eq!(actions.last(), Some(&Action::Drained), "{actions:?}");
    assert!(rig.event(Event::Drain).is_empty(), "reported once");
}

/// Runs requests to their end, with or without handing memory back. Returns the digest.
fn digest(hands_back: bool) -> u64 {
    let mut rig = Rig::joined(config());
    let mut actions = Vec::new();
    (1..4).for_each(|id| actions.extend(rig.event(submit(id, 5))));
    while steps(&actions) > 0 {
        let mut result = answer(&actions);
        if hands_back {
            let mut spare = rig.core.spare_result();
            (spare.step, spare.tokens, spare.ends) = (result.step, result.tokens, result.ends);
            result = spare;
            drop(rig.core.take_remains());
            let steps = actions.drain(..).filter_map(|action| match action {
                Action::RunStep(step) => Some(step),
                _ => None,
            });
            steps.for_each(|step| rig.core.recycle(step));
        }
        actions = rig.event(Event::StepFinished(result));
    }
    assert_eq!(rig.core.stats().requests.finished, 3);
    rig.core.digest()
}

#[test]
fn memory_that_is_handed_back_changes_no_decision() {
    assert_eq!(digest(true), digest(false));
}

/// A driver that lets each step run to its end.
struct Patient;

impl FastForwardDriver for Patient {
    fn on_steps_begin(&mut self, begin_ns: u64, _: &SteadyBatch, _: u32) -> SteadySteps {
        SteadySteps { begun: 1, end_ns: begin_ns + MS, skip: false }
    }

    fn generate(&mut self, _: RequestId, numbers: std::ops::Range<u32>, tokens: &mut Vec<Token>) {
        tokens.extend(numbers.map(|_| 9));
    }

    fn on_tokens(&mut self, _: RequestId, _: u32) {}
}

/// A core in the middle of a fast-forward.
fn paused() -> Rig {
    let mut rig = Rig::joined(config());
    let sent = rig.event(submit(1, 50));
    rig.event(Event::StepFinished(answer(&sent)));
    let result = rig.core.fast_forward(rig.now_ns + MS, &mut Patient, &mut rig.actions);
    assert!(matches!(result, FastForwardResult::Paused { .. }), "{result:?}");
    rig
}

#[test]
fn a_paused_fast_forward_takes_requests_and_ticks() {
    let mut rig = paused();
    assert!(rig.event(Event::Tick).is_empty() && rig.event(submit(2, 5)).is_empty());
    let result = rig.core.fast_forward(rig.now_ns, &mut Patient, &mut rig.actions);
    assert!(matches!(result, FastForwardResult::Ended { .. }), "the second request is admitted: {result:?}");
    assert_eq!(steps(&rig.actions), 1);
}

#[test]
#[should_panic(expected = "a fast-forward is under way: Abort")]
fn a_paused_fast_forward_takes_nothing_else() {
    paused().event(Event::Abort(RequestId(1)));
}

#[test]
fn a_core_moves_to_another_thread() {
    fn moves<T: Send>(_: &T) {}
    moves(&Rig::new(config()).core);
}
