//! Facts about the inside of a core that no action shows.

use super::*;
use crate::config::Preemption;
use crate::hash::Namespace;

/// A core whose worker answers each step at once.
struct Bench {
    core: Core,
    step: Option<Box<Step>>,
    actions: Vec<Action>,
}

impl Bench {
    fn new(config: Config) -> Self {
        let config = Config { block_size: 4, launch_watermark: 0.0, max_context: 200, ..config };
        let mut bench = Self { core: Core::new(config).unwrap(), step: None, actions: Vec::new() };
        bench.event(Event::WorkerJoined);
        bench
    }

    fn event(&mut self, event: Event) {
        self.core.handle(0, event, &mut self.actions);
        for action in self.actions.drain(..) {
            if let Action::RunStep(step) = action {
                self.step = Some(step);
            }
        }
    }

    fn submit(&mut self, id: u64, prompt: Vec<u32>, max_tokens: u32, deadline_ns: Option<u64>) {
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
        request.deadline_ns = deadline_ns;
        request.hash_prompt(4);
        self.event(Event::Submit(Box::new(request)));
    }

    fn answer(&mut self) {
        let step = self.step.take().expect("a step is in flight");
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
        self.event(Event::StepFinished(result));
    }

    fn live(&self, id: u64) -> bool {
        self.core.by_id.contains_key(&RequestId(id))
    }
}

#[test]
fn deadlines_of_ended_requests_take_no_memory_behind_the_next_one_either() {
    let mut bench = Bench::new(Config { device_blocks: 100, ..Config::default() });
    bench.submit(0, vec![1; 3], 190, Some(1_000));
    for id in 1..=1000 {
        bench.submit(id, vec![2; 3], 1, Some(1_000_000 + id));
        bench.event(Event::Abort(RequestId(id)));
        if id % 10 == 0 {
            bench.answer();
        }
        assert!(bench.core.deadlines.len() <= DEADLINES_SPARE + 2 * bench.core.by_id.len() + 1);
    }
    bench.event(Event::Abort(RequestId(0)));
    bench.answer();
    assert_eq!(bench.core.deadlines.len(), 0);
}

/// Requests 1 and 2 share two blocks; 2 is preempted with six more published, and 1 takes two of those before 2 is back.
fn preempted() -> Bench {
    let mut bench = Bench::new(Config { device_blocks: 12, preemption: Preemption::Recompute, ..Config::default() });
    bench.submit(1, (0..9).collect(), 24, None);
    bench.answer();
    bench.submit(2, (0..8).chain(100..109).collect(), 28, None);
    while bench.core.stats().preemptions == 0 {
        bench.answer();
    }
    while bench.live(1) || bench.core.is_waiting(RequestId(2)) {
        bench.answer();
    }
    bench
}

#[test]
fn only_blocks_left_idle_by_a_preemption_count_as_found_again() {
    // Of five or six blocks left idle about two thirds are found; with the two shared ones it would be all.
    let expected = preempted().core.state.rehit.expect(1024);
    assert!((513..560).contains(&expected), "{expected}");
}

#[test]
fn a_lost_worker_says_nothing_of_blocks_found_again() {
    let mut bench = Bench::new(Config { device_blocks: 40, ..Config::default() });
    bench.submit(1, (0..19).collect(), 24, None);
    bench.answer();
    bench.event(Event::WorkerLost);
    bench.event(Event::WorkerJoined);
    bench.answer();
    assert_eq!(bench.core.state.rehit.expect(1024), 512, "as in the beginning");
}

#[test]
fn sequences_in_neighbouring_slots_are_neighbours_in_memory() {
    // Sequences are requested from memory by address.
    let mut bench = Bench::new(Config { device_blocks: 64, ..Config::default() });
    for id in 0..3 {
        bench.submit(id, vec![1; 3], 4, None);
    }
    let sequences = &bench.core.state.sequences;
    let at = |slot: usize| (&raw const sequences[slot]).addr();
    assert_eq!([at(1) - at(0), at(2) - at(0)], [1, 2].map(|n| n * size_of::<Sequence>()));
}
