//! Workers that need more than the embedded one: all tokens at the start, own blocks for all that runs, and a connection that may break.

use trunkline_core::{Config, Event, FinishReason, Namespace, Request, RequestId, Token, WorkerFacts};
use trunkline_driver::Driver;

fn config() -> Config {
    Config { block_size: 4, device_blocks: 32, max_batch_tokens: 8, max_batch_size: 4, ..Config::default() }
}

fn prompt(len: u32) -> Vec<Token> {
    (0..len).collect()
}

#[test]
fn a_sequence_is_sent_whole_once_if_workers_want_that() {
    let mut bench =
        Driver::new(Config { worker: WorkerFacts { all_tokens: true, ..WorkerFacts::default() }, ..config() });
    bench.submit(1, prompt(20), 2);
    let step = bench.step().unwrap();
    let (seq, start) = (&step.seqs[0], &step.starts[0]);
    assert_eq!((seq.n_history, seq.n_tokens, start.n_ahead, start.n_prompt), (0, 8, 12, 20));
    assert_eq!(step.all_tokens(seq, start), prompt(20));
    assert_eq!(step.run_tokens(seq), prompt(8), "the first chunk alone runs");
    bench.answer();
    let step = bench.step().unwrap();
    assert!(step.starts.is_empty());
    assert_eq!(step.tokens, (8..16).collect::<Vec<_>>());
    bench.run_to_end();
    // Cached tokens are sent too.
    bench.submit(2, prompt(22), 1);
    let step = bench.step().unwrap();
    let (seq, start) = (&step.seqs[0], &step.starts[0]);
    assert_eq!((seq.n_history, seq.n_tokens, start.n_ahead), (20, 2, 0));
    assert_eq!(step.all_tokens(seq, start), prompt(22));
}

#[test]
fn a_prompt_cached_to_its_end_runs_one_token_or_its_last_block() {
    for (whole_block_hits, cached, blocks) in [(false, 15, 0), (true, 12, 1)] {
        let mut bench =
            Driver::new(Config { worker: WorkerFacts { whole_block_hits, ..WorkerFacts::default() }, ..config() });
        bench.submit(1, prompt(16), 1);
        bench.run_to_end();
        bench.submit(2, prompt(16), 3);
        let free = bench.core.stats().free_blocks;
        let seq = *bench.seqs().next().unwrap();
        assert_eq!((seq.computed, seq.n_tokens), (cached, 16 - cached));
        // The write begins behind the shared block, or in the block of its own.
        assert_eq!(seq.kv_write_from, if whole_block_hits { 12 } else { 16 });
        assert_eq!(32 - free, 4 + blocks);
        bench.run_to_end();
        bench.submit(3, prompt(18), 1);
        assert_eq!(bench.seqs().next().unwrap().computed, 16, "hits that end below the last token anyway stay whole");
        bench.run_to_end();
        bench.assert_texts();
    }
}

#[test]
fn a_prompt_joins_the_step_that_computes_its_prefix_if_the_worker_can_read_it_there() {
    for in_step_hits in [false, true] {
        let worker = WorkerFacts { in_step_hits, ..WorkerFacts::default() };
        let mut bench = Driver::with_content(Config { max_batch_tokens: 16, worker, ..config() }, 1);
        // Chunks of 16 and 4 tokens. The second prompt has 18 of these 20 in common, four whole blocks and a half.
        bench.submit(1, prompt(20), 3);
        bench.submit(2, [prompt(18), vec![90; 4]].concat(), 3);
        bench.submit(3, prompt(20), 3);
        bench.join();
        let steps: Vec<Vec<(u64, u32, u32)>> = std::iter::from_fn(|| {
            let step = bench.step().map(|step| step.seqs.iter().map(|seq| (seq.request.0, seq.computed, seq.n_tokens)));
            let step = step.map(Iterator::collect)?;
            bench.answer();
            Some(step)
        })
        .take(2)
        .collect();
        let mut second = vec![(1, 16, 4), (2, 16, 6)];
        second.extend(in_step_hits.then_some((3, 19, 1)));
        assert_eq!(steps, [vec![(1, 0, 16)], second]);
        bench.run_to_end();
        assert_eq!(bench.stats().tokens.cached_tokens, 16 + 19);
        bench.assert_all_said([1, 2, 3]);
        bench.assert_empty();
    }
}

#[test]
fn a_worker_that_comes_back_starts_over_if_blocks_of_its_lost_steps_were_found() {
    let worker = WorkerFacts { in_step_hits: true, ..WorkerFacts::default() };
    let mut bench = Driver::with_content(Config { max_steps_in_flight: 2, worker, ..config() }, 1);
    bench.submit(1, prompt(8), 9);
    bench.submit(2, prompt(10), 9);
    bench.join();
    let second: Vec<_> = bench.steps[1].seqs.iter().map(|seq| (seq.request.0, seq.computed)).collect();
    assert_eq!(second, [(1, 8), (2, 8)], "the second request reads what a step in flight computes");
    bench.event(Event::WorkerResumed);
    assert!(bench.steps.is_empty(), "the worker is reset");
    bench.join();
    assert_eq!((bench.stats().requests.restarted, bench.stats().preemptions), (2, 0));
    bench.run_to_end();
    bench.assert_all_said([1, 2]);
    bench.assert_empty();
}

#[test]
fn a_worker_that_comes_back_keeps_its_kv_and_gets_every_sequence_again() {
    let mut bench = Driver::new(Config { max_steps_in_flight: 2, ..config() });
    bench.submit(1, prompt(6), 9);
    bench.answer();
    bench.answer();
    bench.submit(2, vec![7; 12], 3);
    bench.answer();
    assert!(bench.steps.len() == 2, "two steps are lost");
    let before = bench.running();
    bench.event(Event::WorkerResumed);
    let step = bench.step().unwrap();
    assert!(step.seqs.iter().all(|seq| seq.start && !seq.input_from_last && seq.table_keep == 0), "{step:?}");
    let first = step.seqs.iter().find(|seq| seq.request == RequestId(1)).unwrap();
    let known = before.iter().find(|running| running.0 == 1).unwrap();
    assert!(first.computed > 6 && first.computed <= known.1, "{first:?}: nothing is computed twice but the lost steps");
    assert_eq!(first.n_blocks, (first.computed + 1).div_ceil(4), "the whole table");
    assert_eq!(bench.core.stats().preemptions, 0);
    bench.run_to_end();
    assert_eq!(bench.ends.len(), 2);
    bench.assert_texts();
}

#[test]
fn requests_that_ended_in_a_lost_step_leave_and_a_worker_that_never_joined_does_not_come_back() {
    let mut bench = Driver::new(config());
    bench.submit(1, prompt(6), 9);
    bench.submit(2, vec![7; 6], 9);
    bench.answer();
    bench.event(Event::Abort(RequestId(1)));
    bench.event(Event::Withdraw(RequestId(2)));
    bench.event(Event::WorkerResumed);
    assert_eq!(bench.ends, [(1, FinishReason::Abort)]);
    assert_eq!(bench.withdrawn.len(), 1);
    assert!(bench.steps.is_empty() && bench.all_blocks_usable());

    let mut bench = Driver::without_worker(config());
    bench.submit_request(Request::new(RequestId(1), Namespace::default().root(), prompt(6), 1));
    bench.event(Event::WorkerResumed);
    assert!(bench.steps.is_empty());
}
