//! The rules of the core, one small run each. The oracle in the workspace's `tests/` proves that they hold together.

use trunkline_core::{
    Config, ConfigError, Core, Event, FinishReason, Namespace, Refusal, Request, RequestId, StepResult, Token, policy,
};
use trunkline_driver::Driver;

const BLOCK: u32 = 4;

fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 32,
        max_batch_tokens: 16,
        max_batch_size: 4,
        max_queue: 8,
        max_context: 200,
        ..Config::default()
    }
}

fn prompt(n: u32) -> Vec<Token> {
    (0..n).collect()
}

fn request(id: u64, prompt: Vec<Token>, max_tokens: u32) -> Request {
    Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens)
}

/// Creates a core whose requests generate the tokens 500, 501, ...
fn without_worker(config: Config) -> Driver {
    Driver::without_worker(config).saying(|_, n| 500 + n)
}

/// Creates a core with a worker.
fn joined(config: Config) -> Driver {
    let mut bench = without_worker(config);
    bench.join();
    bench
}

#[test]
fn a_prompt_is_prefilled_in_whole_blocks_within_the_budget_and_then_decoded() {
    let mut bench = joined(Config { max_batch_tokens: 10, ..config() });
    bench.submit_request(request(1, prompt(19), 3));
    let mut seen = Vec::new();
    while !bench.steps.is_empty() {
        seen.extend(bench.running());
        bench.answer();
    }
    assert_eq!(seen, [(1, 0, 8, false), (1, 8, 8, false), (1, 16, 3, true), (1, 19, 1, true), (1, 20, 1, true)]);
    assert_eq!(bench.tokens, [(1, 500), (1, 501), (1, 502)]);
    assert_eq!(bench.ends, [(1, FinishReason::Length)]);
}

#[test]
fn decodes_go_first_and_prefill_takes_what_they_leave() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(3), 50));
    bench.answer();
    bench.submit_request(request(2, (100..160).collect(), 5));
    bench.answer();
    assert_eq!(bench.running(), [(1, 4, 1, true), (2, 0, 12, false)], "16 less one decode, in whole blocks");
    bench.answer();
    assert_eq!(bench.running(), [(1, 5, 1, true), (2, 12, 12, false)]);
}

#[test]
fn a_budget_below_a_block_still_prefills() {
    let mut bench = joined(Config { max_batch_tokens: 3, max_batch_size: 1, ..config() });
    bench.submit_request(request(1, prompt(8), 1));
    assert_eq!(bench.running(), [(1, 0, 3, false)]);
    bench.run_to_end();
    assert_eq!(bench.ends, [(1, FinishReason::Length)]);
}

#[test]
fn blocks_larger_than_a_step_do_not_stop_batching() {
    let mut bench = joined(Config { block_size: 16, device_blocks: 40, max_batch_tokens: 16, ..config() });
    bench.submit_request(request(1, prompt(3), 50));
    bench.answer();
    bench.submit_request(request(2, (100..150).collect(), 5));
    bench.answer();
    assert_eq!(
        bench.running(),
        [(1, 4, 1, true), (2, 0, 15, false)],
        "what the decode leaves, though it is not a block"
    );
    bench.run_to_end();
    assert_eq!(bench.ends.len(), 2);
}

#[test]
fn places_on_the_worker_are_as_many_as_the_batch_has_however_many_wait() {
    let mut bench = without_worker(Config { max_batch_size: 2, ..config() });
    for id in 0..8 {
        bench.submit_request(request(id, vec![id as u32; 5], 4));
    }
    bench.event(Event::WorkerJoined);
    while let Some(step) = bench.step() {
        assert!(step.seqs.iter().all(|seq| seq.slot < 2));
        bench.answer();
    }
    assert_eq!(bench.ends.len(), 8);
}

#[test]
fn deadlines_of_ended_requests_are_forgotten() {
    let mut bench = joined(config());
    for id in 0..500 {
        let mut request = request(id, prompt(3), 1);
        request.deadline_ns = Some(1_000_000 - id);
        bench.submit_request(request);
        bench.run_to_end();
        assert_eq!(bench.core.next_deadline_ns(), None, "nobody is left to time out");
    }
}

#[test]
fn a_partial_hit_runs_only_the_rest_and_the_budget_counts_only_that() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(14), 1));
    bench.run_to_end();
    let mut longer = prompt(12);
    longer.extend([70, 71, 72]);
    bench.submit_request(request(2, longer, 1));
    assert_eq!(bench.running(), [(2, 12, 3, true)]);
    bench.run_to_end();
    assert_eq!(bench.core.stats().tokens.cached_tokens, 12);
}

#[test]
fn a_full_hit_reruns_one_token_and_writes_no_shared_block() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(12), 1));
    bench.run_to_end();
    bench.submit_request(request(2, prompt(12), 2));
    assert_eq!(bench.running(), [(2, 11, 1, true)]);
    let step = bench.step().unwrap();
    assert_eq!(step.seqs[0].kv_write_from, 12, "position 11 lies in a shared block");
    assert_eq!(step.seqs[0].n_blocks, 3, "no private block is taken for it");
    bench.answer();
    let step = bench.step().unwrap();
    assert_eq!((step.seqs[0].kv_write_from, step.seqs[0].table_keep, step.seqs[0].n_blocks), (12, 3, 1));
    bench.run_to_end();
}

#[test]
fn generated_tokens_are_published_but_the_last_partial_block_is_not() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(6), 8));
    bench.run_to_end();
    // 6 + 8 tokens, of which the last was never run: 13 have KV, 3 blocks are full.
    assert_eq!(bench.core.stats().published_blocks, 3);
    let mut turn = prompt(6);
    turn.extend(500..508);
    turn.push(99);
    bench.submit_request(request(2, turn, 1));
    assert_eq!(bench.running(), [(2, 12, 3, true)]);
}

#[test]
fn a_prompt_that_another_is_computing_waits_for_it_and_those_behind_pass() {
    let mut bench = without_worker(config());
    bench.submit_request(request(1, prompt(8), 4));
    bench.submit_request(request(2, prompt(8), 4));
    bench.submit_request(request(3, vec![9, 9], 1));
    bench.event(Event::WorkerJoined);
    assert_eq!(bench.running(), [(1, 0, 8, true), (3, 0, 2, true)]);
    bench.answer();
    assert_eq!(bench.running(), [(1, 8, 1, true), (2, 7, 1, true)], "all of it but the last token is there");
    bench.run_to_end();
    assert_eq!(bench.core.stats().merged_blocks, 0);
    assert!(bench.all_blocks_usable());
}

#[test]
fn equal_blocks_that_are_computed_twice_merge() {
    let mut bench = without_worker(config());
    bench.submit_request(request(1, prompt(6), 4));
    let mut longer = prompt(6);
    longer.extend([500, 501, 9]);
    bench.submit_request(request(2, longer, 4));
    bench.event(Event::WorkerJoined);
    bench.answer();
    assert_eq!(bench.running(), [(1, 6, 1, true), (2, 4, 5, true)]);
    bench.answer();
    bench.answer();
    let stats = bench.core.stats();
    assert_eq!((stats.merged_blocks, stats.held_blocks), (1, 2));
    bench.run_to_end();
    assert!(bench.all_blocks_usable());
}

#[test]
fn namespaces_share_nothing() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(8), 1));
    bench.run_to_end();
    let mut salted = request(2, prompt(8), 1);
    salted.root = Namespace { salt: "tenant-b", ..Namespace::default() }.root();
    bench.submit_request(salted);
    assert_eq!(bench.running(), [(2, 0, 8, true)]);
}

#[test]
fn when_blocks_run_out_the_last_to_arrive_starts_over_and_says_the_same() {
    let mut bench = joined(Config { device_blocks: 8, ..config() });
    bench.submit_request(request(1, prompt(10), 20));
    bench.submit_request(request(2, (100..108).collect(), 20));
    bench.run_to_end();
    assert!(bench.core.stats().preemptions > 0);
    assert_eq!(bench.ends, [(1, FinishReason::Length), (2, FinishReason::Length)]);
    assert_eq!(bench.tokens.iter().filter(|(id, _)| *id == 2).count(), 20);
    assert!(bench.all_blocks_usable());
}

#[test]
fn two_long_prefills_never_hold_halves_of_what_both_need() {
    let mut bench = joined(Config { device_blocks: 10, ..config() });
    bench.submit_request(request(1, prompt(36), 2));
    bench.submit_request(request(2, (100..136).collect(), 2));
    assert_eq!(bench.running().len(), 1);
    bench.run_to_end();
    assert_eq!(bench.ends.len(), 2);
    assert_eq!(bench.core.stats().preemptions, 0);
}

#[test]
fn priority_admits_the_urgent_first_and_preempts_it_last() {
    let mut bench = without_worker(Config { policy: "priority".into(), max_batch_size: 1, ..config() });
    for (id, priority) in [(1, 5), (2, -3), (3, 5)] {
        let mut request = request(id, vec![id as u32; 3], 1);
        request.priority = priority;
        bench.submit_request(request);
    }
    bench.event(Event::WorkerJoined);
    bench.run_to_end();
    assert_eq!(bench.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 1, 3]);
}

#[test]
fn edf_admits_the_earliest_deadline_first_and_those_without_one_last() {
    let recompute_token_ns = 1;
    let mut bench = without_worker(Config { policy: "edf".into(), max_batch_size: 1, recompute_token_ns, ..config() });
    for (id, deadline_ns) in [(1, None), (2, Some(9_000)), (3, Some(8_000)), (4, Some(u64::MAX))] {
        let mut request = request(id, vec![id as u32; 3], 1);
        request.deadline_ns = deadline_ns;
        bench.submit_request(request);
    }
    bench.event(Event::WorkerJoined);
    bench.run_to_end();
    assert_eq!(bench.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 2, 4, 1]);
}

#[test]
fn under_every_policy_all_end_once_through_preemptions_aborts_and_lost_workers() {
    for name in policy::REGISTRY.names() {
        let limits = Config { device_blocks: 10, max_queue: 100, policy: name.into(), ..config() };
        let mut bench = joined(limits);
        for round in 0..20 {
            for id in round * 3..round * 3 + 3 {
                let mut request = request(id, vec![id as u32 % 7; 5 + id as usize % 4], 5 + id as u32 % 20);
                (request.tenant, request.priority) = (id % 4, id as i32 % 3);
                request.deadline_ns = (id % 5 == 0).then_some(u64::MAX - id);
                bench.submit_request(request);
            }
            bench.event(Event::Abort(RequestId(round * 2)));
            if round % 5 == 4 {
                bench.event(Event::WorkerLost);
                bench.event(Event::WorkerJoined);
            }
            bench.answer();
        }
        bench.run_to_end();
        let mut ended: Vec<_> = bench.ends.iter().map(|(id, _)| *id).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..60).collect::<Vec<_>>(), "{name}");
        assert!(bench.core.stats().preemptions > 0 && bench.all_blocks_usable(), "{name}");
    }
}

#[test]
fn vtc_gives_a_tenant_its_turn_however_many_requests_another_has() {
    let limits = || Config { max_batch_size: 1, max_queue: 100, policy: "vtc".into(), ..config() };
    let mut bench = without_worker(limits());
    for id in 0..10 {
        let mut request = request(id, vec![id as u32; 3], 2);
        request.tenant = u64::from(id >= 8);
        bench.submit_request(request);
    }
    bench.event(Event::WorkerJoined);
    bench.run_to_end();
    assert_eq!(bench.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 8, 1, 9, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn eviction_takes_the_least_recently_used_leaf() {
    let mut bench = joined(Config { device_blocks: 6, ..config() });
    bench.submit_request(request(1, (0..8).collect(), 1));
    bench.run_to_end();
    bench.submit_request(request(2, (100..108).collect(), 1));
    bench.run_to_end();
    // Touch the first, then need four blocks with two free: the second goes.
    bench.submit_request(request(3, (0..8).collect(), 1));
    bench.run_to_end();
    bench.submit_request(request(4, (200..216).collect(), 1));
    bench.run_to_end();
    assert_eq!(bench.core.stats().evicted_blocks, 2);
    bench.submit_request(request(5, (0..9).collect(), 1));
    assert_eq!(bench.running(), [(5, 8, 1, true)]);
}

#[test]
fn stop_tokens_end_a_request_but_not_before_min_tokens() {
    let mut bench = joined(config());
    let mut stopped = request(1, prompt(3), 10);
    stopped.stop_token_ids = vec![500, 502];
    stopped.min_tokens = 2;
    bench.submit_request(stopped);
    bench.run_to_end();
    assert_eq!(bench.tokens, [(1, 500), (1, 501), (1, 502)]);
    assert_eq!(bench.ends, [(1, FinishReason::Stop)]);
}

/// Brings a request into a state. Returns `true` if a step runs the request.
fn in_state(state: &str) -> (Driver, bool) {
    let mut bench = without_worker(Config { max_batch_tokens: 8, ..config() });
    let mut watched = request(1, prompt(12), 10);
    watched.deadline_ns = Some(1000);
    bench.submit_request(watched);
    match state {
        "waiting" => (bench, false),
        "prefill" => {
            bench.event(Event::WorkerJoined);
            (bench, true)
        }
        "decode" => {
            bench.event(Event::WorkerJoined);
            bench.answer();
            bench.answer();
            assert_eq!(bench.running(), [(1, 12, 1, true)]);
            (bench, true)
        }
        other => panic!("no state {other}"),
    }
}

#[test]
fn abort_stop_timeout_and_shutdown_end_a_request_in_every_state() {
    let ways: [(&str, FinishReason); 4] = [
        ("abort", FinishReason::Abort),
        ("stop", FinishReason::Stop),
        ("timeout", FinishReason::Timeout),
        ("shutdown", FinishReason::Abort),
    ];
    for state in ["waiting", "prefill", "decode"] {
        for (way, reason) in ways {
            let (mut bench, in_step) = in_state(state);
            match way {
                "abort" => bench.event(Event::Abort(RequestId(1))),
                "stop" => bench.event(Event::Stop(RequestId(1))),
                "timeout" => {
                    assert_eq!(bench.core.next_deadline_ns(), Some(1000));
                    bench.now_ns = 999;
                    bench.event(Event::Tick);
                }
                _ => bench.event(Event::Shutdown),
            }
            assert_eq!(bench.ends, [(1, reason)], "{state}, {way}: at once");
            assert_eq!(bench.core.next_deadline_ns(), None);
            let tokens = bench.tokens.len();
            assert_eq!(bench.usages[&1].completion_tokens as usize, tokens, "{state}, {way}: what was delivered");
            assert_eq!(bench.all_blocks_usable(), !in_step, "{state}, {way}: not while the worker writes its blocks");
            assert_eq!(bench.drained, u32::from(way == "shutdown" && !in_step));
            if in_step {
                bench.answer();
            }
            assert_eq!(bench.tokens.len(), tokens, "{state}, {way}: nothing is said after the end");
            assert!(bench.all_blocks_usable() && bench.steps.is_empty(), "{state}, {way}");
            assert_eq!(bench.drained, u32::from(way == "shutdown"));
        }
    }
}

#[test]
fn a_lost_worker_costs_time_and_three_in_a_row_cost_the_request() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(6), 3));
    for failures in 1..=trunkline_core::WORKER_FAILURES_MAX {
        assert!(!bench.steps.is_empty() && bench.ends.is_empty());
        bench.event(Event::WorkerLost);
        assert!(bench.steps.is_empty());
        assert_eq!(bench.core.stats().free_blocks, 32, "what the worker held is gone");
        assert_eq!(bench.ends.len(), usize::from(failures == trunkline_core::WORKER_FAILURES_MAX));
        bench.event(Event::WorkerJoined);
    }
    assert_eq!(bench.ends, [(1, FinishReason::Error)]);
}

#[test]
fn a_request_that_cannot_be_computed_ends_and_those_beside_it_go_on() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(6), 2));
    bench.submit_request(request(2, vec![9; 6], 2));
    bench.answer();
    assert_eq!(bench.running().len(), 2);
    bench.event(Event::Fail(RequestId(2)));
    bench.event(Event::WorkerLost);
    bench.event(Event::WorkerJoined);
    assert_eq!(bench.ends, [(2, FinishReason::Error)]);
    bench.run_to_end();
    assert_eq!(bench.ends, [(2, FinishReason::Error), (1, FinishReason::Length)]);
}

#[test]
fn the_late_answer_of_a_lost_worker_is_ignored_and_nonsense_is_not_believed() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(6), 2));
    let late = bench.step().unwrap().id;
    bench.event(Event::WorkerLost);
    bench.event(Event::WorkerJoined);
    let current = bench.step().unwrap().id;
    bench.event(Event::StepFinished(StepResult {
        step: late,
        tokens: vec![9],
        ends: vec![1],
        ..StepResult::default()
    }));
    assert!(bench.tokens.is_empty());
    bench.event(Event::StepFinished(StepResult {
        step: current,
        tokens: vec![9, 9],
        ends: vec![2, 2],
        ..StepResult::default()
    }));
    assert!(bench.tokens.is_empty() && bench.steps.is_empty() && bench.resets == 1);
    bench.event(Event::WorkerJoined);
    assert!(!bench.steps.is_empty(), "the step is run again");
    bench.run_to_end();
    assert_eq!(bench.ends, [(1, FinishReason::Length)]);
}

#[test]
fn what_cannot_run_is_refused_at_the_door() {
    let mut bench = without_worker(Config { max_context: 200, device_blocks: 8, max_queue: 2, ..config() });
    bench.submit_request(request(0, vec![], 0));
    bench.submit_request(request(1, vec![], 1));
    bench.submit_request(request(2, prompt(4), 0));
    bench.submit_request(request(3, prompt(198), 3));
    bench.submit_request(request(4, prompt(32), 2));
    bench.submit_request(request(5, prompt(32), 1));
    bench.submit_request(request(5, prompt(3), 1));
    bench.submit_request(request(1 << 63, prompt(3), 1));
    bench.submit_request(request(6, prompt(3), 1));
    bench.submit_request(request(7, prompt(3), 1));
    bench.event(Event::Drain);
    bench.submit_request(request(8, prompt(3), 1));
    let never = Refusal::NeverFits { prompt_tokens: 32, max_tokens: 2, needed: 9, capacity: 8 };
    let long = Refusal::ContextTooLong { prompt_tokens: 198, max_tokens: 3, context: 200 };
    assert_eq!(
        bench.refusals,
        [
            (0, Refusal::EmptyPrompt),
            (1, Refusal::EmptyPrompt),
            (2, Refusal::NoTokensAsked),
            (3, long),
            (4, never),
            (5, Refusal::DuplicateId),
            (1 << 63, Refusal::ReservedId),
            (7, Refusal::QueueFull { limit: 2 }),
            (8, Refusal::Draining),
        ]
    );
    bench.event(Event::WorkerJoined);
    bench.run_to_end();
    assert_eq!(bench.ends, [(5, FinishReason::Length), (6, FinishReason::Length)]);
    assert_eq!(bench.drained, 1);
}

#[test]
fn flush_forgets_idle_blocks_and_leaves_held_ones() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(8), 1));
    bench.run_to_end();
    bench.submit_request(request(2, (50..58).collect(), 3));
    bench.answer();
    bench.event(Event::FlushCache);
    assert_eq!(bench.flushed, [2]);
    assert_eq!(bench.core.stats().held_blocks, 2);
    bench.run_to_end();
}

#[test]
fn history_is_sent_only_to_a_sampler_that_needs_it() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(12), 1));
    bench.run_to_end();
    let mut penalised = request(2, prompt(14), 1);
    penalised.sampling.repetition_penalty = 1.3;
    bench.submit_request(penalised);
    let step = bench.step().unwrap();
    assert_eq!(step.history(&step.seqs[0]), prompt(12));
    assert_eq!(step.run_tokens(&step.seqs[0]), [12, 13]);
}

#[test]
fn limits_out_of_range_are_named() {
    let error = |config: Config| Core::new(config).err().unwrap();
    assert!(matches!(error(Config { block_size: 0, ..config() }), ConfigError::OutOfRange { name: "block_size", .. }));
    let few = error(Config { max_batch_tokens: 3, ..config() });
    assert!(matches!(few, ConfigError::BatchTokensBelowSize { tokens: 3, .. }), "{few:?}");
    let unknown = error(Config { policy: "fifo".into(), ..config() });
    assert!(matches!(unknown, ConfigError::Registry(_)), "{unknown:?}");
}

#[test]
fn a_withdrawn_request_continues_on_another_core() {
    let mut first = joined(config());
    first.submit_request(request(1, prompt(6), 5));
    first.answer();
    first.answer();
    assert!(first.running()[0].3, "a decode is in flight");
    first.event(Event::Withdraw(RequestId(1)));
    assert_eq!(first.withdrawn, [], "a step may still write its blocks");
    first.answer();
    let request = first.withdrawn.pop().expect("the step ended");
    assert_eq!(
        (&request.prompt, &request.generated),
        (&prompt(6), &vec![500, 501]),
        "the last step's token is dropped"
    );
    assert_eq!(request.hashes.len(), 6 / BLOCK as usize);
    assert_eq!((first.core.stats().requests.withdrawn, first.core.stats().requests.finished), (1, 0));
    assert!(first.all_blocks_usable() && first.ends.is_empty());
    first.event(Event::Withdraw(RequestId(1)));
    assert_eq!(first.withdrawn, [], "an unknown id is ignored");

    let mut second = joined(config());
    second.event(Event::Submit(Box::new(request)));
    let seq = second.step().expect("a step").seqs[0];
    assert_eq!(
        (seq.n_tokens, seq.n_generated, seq.sample),
        (8, 2, true),
        "prompt and generated tokens are run at once"
    );
    second.run_to_end();
    assert_eq!(second.tokens.len(), 3, "two of five tokens were generated before");
    assert_eq!(second.ends, [(1, FinishReason::Length)]);
}

#[test]
fn a_request_that_ends_while_it_is_withdrawn_ends_here() {
    let mut bench = joined(config());
    bench.submit_request(request(1, prompt(6), 5));
    bench.event(Event::Withdraw(RequestId(1)));
    bench.event(Event::Abort(RequestId(1)));
    assert_eq!(bench.ends, [(1, FinishReason::Abort)], "at once, not when the step ends");
    bench.answer();
    assert_eq!(bench.withdrawn, []);

    bench.submit_request(request(2, prompt(6), 5));
    bench.submit_request(request(3, prompt(7), 5));
    bench.event(Event::Withdraw(RequestId(2)));
    bench.event(Event::WorkerLost);
    bench.event(Event::Withdraw(RequestId(3)));
    let back: Vec<u64> = bench.withdrawn.iter().map(|request| request.id.0).collect();
    assert_eq!(back, [2, 3], "with the worker gone nothing works on them");

    let mut used_up = request(4, prompt(6), 2);
    used_up.generated = vec![7, 8];
    bench.submit_request(used_up);
    assert_eq!(bench.refusals.last(), Some(&(4, Refusal::NoTokensAsked)));
}

#[test]
fn equal_blocks_of_equal_hash_after_different_prefixes_do_not_match() {
    let mut bench = joined(config());
    let prompt = |first: u32| [vec![first; 4], vec![9; 4], vec![0]].concat();
    let mut other = request(1, prompt(1), 1);
    other.hash_prompt(BLOCK);
    let hash = other.hashes[1];
    bench.submit_request(other);
    bench.run_to_end();
    bench.submit_request(request(2, vec![2; 5], 1));
    bench.run_to_end();
    let mut forged = request(3, prompt(2), 1);
    forged.hash_prompt(BLOCK);
    forged.hashes[1] = hash;
    bench.submit_request(forged);
    assert_eq!(bench.running(), [(3, 4, 5, true)], "the first block, and not the second of the other prompt");
    bench.run_to_end();
}
