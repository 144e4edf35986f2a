//! Every fault that the content oracle is to find, made on purpose.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Four tokens to a block.
fn worker() -> OracleWorker {
    let limits = Config { block_size: 4, device_blocks: 8, host_blocks: 4, max_drafts: 2, ..Config::default() };
    OracleWorker::new(&limits, 1)
}

/// A request that is worth a block and a half.
fn request() -> Request {
    Request::new(RequestId(0), BlockHash(9), vec![1, 2, 3, 4, 5, 6], 6)
}

/// Which way a copy goes between the device and the host.
#[derive(Clone, Copy)]
enum Direction {
    Out,
    In,
}

/// A copy of pairs (device, host).
fn copy(id: u64, direction: Direction, pairs: &[(u32, u32)]) -> Transfer {
    let pairs = pairs.iter().copied();
    match direction {
        Direction::Out => {
            Transfer { id, from: Place::Device, to: Place::Host, pairs: pairs.collect(), ..Transfer::default() }
        }
        Direction::In => {
            let pairs = pairs.map(|(device, host)| (host, device)).collect();
            Transfer { id, from: Place::Host, to: Place::Device, pairs, ..Transfer::default() }
        }
    }
}

/// A step whose sequences all start, in slots and as requests 0, 1, ...: (computed, tokens, table).
fn step(id: u64, seqs: &[(u32, &[Token], &[u32])]) -> Step {
    let mut step = Step { id, ..Step::default() };
    for (n, (computed, tokens, table)) in seqs.iter().enumerate() {
        step.seqs.push(StepSeq {
            request: RequestId(n as u64),
            slot: n as u32,
            start: true,
            computed: *computed,
            n_tokens: tokens.len() as u32,
            n_history: 0,
            tokens_at: step.tokens.len() as u32,
            input_from_last: false,
            kv_write_from: *computed,
            table_keep: 0,
            blocks_at: step.blocks.len() as u32,
            n_blocks: table.len() as u32,
            sample: true,
            n_generated: 0,
            n_drafts: 0,
        });
        step.tokens.extend_from_slice(tokens);
        step.blocks.extend_from_slice(table);
        step.starts.push(Default::default());
    }
    step
}

fn run(worker: &mut OracleWorker, step: &Step) -> StepResult {
    worker.begin_step(step);
    worker.end_step(step)
}

/// A worker that has run request 0 on blocks 2 and 3.
fn after_a_prompt() -> OracleWorker {
    let mut worker = worker();
    worker.expect(&request());
    run(&mut worker, &step(1, &[(0, &request().prompt, &[2, 3])]));
    worker
}

/// The step after that: the first token generated runs on `table`, with its history.
fn decode(table: &[u32]) -> Step {
    let request = request();
    let tokens = [request.prompt.clone(), continuation(request.root, &request.prompt, 1)].concat();
    let mut step = step(2, &[(6, &tokens, table)]);
    step.seqs[0] = StepSeq { n_tokens: 1, n_history: 6, n_generated: 1, ..step.seqs[0] };
    step
}

/// A step of request 1, in the slot of request 0.
fn other(id: u64, table: &[u32]) -> Step {
    let mut step = step(id, &[(0, &[9], table)]);
    step.seqs[0].request = RequestId(1);
    step
}

fn fails(with: &str, f: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err(with);
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap();
    assert!(text.contains(with), "it should say '{with}', it says '{text}'");
}

#[test]
fn a_request_goes_to_the_host_and_comes_back_elsewhere() {
    let mut worker = after_a_prompt();
    worker.begin_transfer(&copy(1, Direction::Out, &[(2, 0), (3, 1)]));
    worker.end_transfer(1, true);
    worker.begin_transfer(&copy(2, Direction::In, &[(6, 1), (5, 0)]));
    worker.end_transfer(2, true);
    let text = continuation(request().root, &request().prompt, 2);
    assert_eq!(run(&mut worker, &decode(&[5, 6])).of(0), &text[1..]);
}

#[test]
fn copies_may_overlap_and_end_in_any_order() {
    let mut worker = after_a_prompt();
    worker.begin_transfer(&copy(1, Direction::Out, &[(2, 0)]));
    worker.begin_transfer(&copy(2, Direction::Out, &[(2, 1)]));
    worker.begin_transfer(&copy(3, Direction::In, &[(7, 3)]));
    // Block 2 is only read, by the copies and by the step.
    worker.begin_step(&decode(&[2, 3]));
    worker.end_transfer(3, true);
    worker.end_transfer(1, true);
    worker.end_step(&decode(&[2, 3]));
    worker.end_transfer(2, false);
}

#[test]
fn a_swap_of_the_wrong_blocks_is_found() {
    let mut worker = after_a_prompt();
    worker.begin_transfer(&copy(1, Direction::Out, &[(2, 0), (3, 1)]));
    worker.end_transfer(1, true);
    worker.begin_transfer(&copy(2, Direction::In, &[(5, 1), (6, 0)]));
    worker.end_transfer(2, true);
    fails("request 0 reads wrong KV at 0", || worker.begin_step(&decode(&[5, 6])));
}

#[test]
fn copies_in_each_others_way_are_found() {
    let out = |id, pairs: &[(u32, u32)]| copy(id, Direction::Out, pairs);
    let back = |id, pairs: &[(u32, u32)]| copy(id, Direction::In, pairs);
    let cases = [
        (out(1, &[(2, 0)]), out(2, &[(3, 0)]), "transfer 2 writes host block 0, which transfer 1 writes"),
        (out(1, &[(2, 0)]), back(2, &[(5, 0)]), "transfer 2 reads host block 0, which transfer 1 writes"),
        (out(1, &[(2, 0)]), back(2, &[(2, 1)]), "transfer 2 writes device block 2, which another transfer reads"),
        (back(1, &[(5, 0)]), back(2, &[(5, 1)]), "transfer 2 writes device block 5, which transfer 1 writes"),
        (back(1, &[(5, 0)]), out(2, &[(5, 1)]), "transfer 2 reads device block 5, which transfer 1 writes"),
        (back(1, &[(5, 0)]), out(2, &[(2, 0)]), "transfer 2 writes host block 0, which another transfer reads"),
        (out(1, &[(2, 0)]), out(2, &[(2, 1), (3, 1)]), "transfer 2 writes host block 1, which transfer 2 writes"),
        (out(1, &[(2, 0)]), out(2, &[(8, 1)]), "the device has 8 blocks, not 8"),
        (out(1, &[(2, 0)]), out(2, &[(2, 4)]), "the host has 4 blocks, not 4"),
        (out(1, &[(2, 0)]), out(2, &[]), "transfer 2 copies nothing"),
        (out(1, &[(2, 0)]), out(1, &[(3, 1)]), "numbered one after another"),
    ];
    for (first, second, with) in cases {
        let mut worker = after_a_prompt();
        worker.begin_transfer(&first);
        fails(with, || worker.begin_transfer(&second));
    }
}

#[test]
fn a_step_in_the_way_of_a_copy_is_found() {
    let out = copy(1, Direction::Out, &[(3, 0)]);
    let over_read = copy(1, Direction::In, &[(2, 0)]);
    let over_written = copy(1, Direction::In, &[(3, 0)]);
    for (transfer, at_step, at_transfer) in [
        (out, "request 0 writes block 3, which a transfer reads", "reads device block 3, which request 0 is writing"),
        (
            over_read,
            "request 0 reads block 2, which transfer 1 writes",
            "writes device block 2, which request 0 has in a step",
        ),
        (
            over_written,
            "request 0 reads block 3, which transfer 1 writes",
            "writes device block 3, which request 0 has in a step",
        ),
    ] {
        let mut worker = after_a_prompt();
        worker.begin_transfer(&transfer);
        fails(at_step, || worker.begin_step(&decode(&[2, 3])));
        let mut worker = after_a_prompt();
        worker.begin_step(&decode(&[2, 3]));
        fails(at_transfer, || worker.begin_transfer(&transfer));
    }
}

#[test]
fn room_for_drafts_is_as_good_as_written() {
    let mut drafts = decode(&[2, 3, 4]);
    drafts.seqs[0].n_drafts = 2;
    let mut worker = after_a_prompt();
    worker.begin_transfer(&copy(1, Direction::In, &[(4, 0)]));
    fails("request 0 writes block 4, which transfer 1 writes", || worker.begin_step(&drafts));
}

#[test]
fn a_write_behind_the_back_of_a_copy_is_found() {
    let mut worker = after_a_prompt();
    worker.begin_transfer(&copy(1, Direction::Out, &[(2, 0)]));
    worker.device.block(2)[1] = EMPTY;
    fails("device block 2 was written while transfer 1 read it", || worker.end_transfer(1, true));
    let mut worker = after_a_prompt();
    worker.begin_transfer(&copy(1, Direction::Out, &[(2, 0)]));
    worker.host.block(0)[1] = EMPTY;
    fails("host block 0 was written while transfer 1 wrote it", || worker.end_transfer(1, true));
    fails("the transfer is in flight", || worker.end_transfer(7, true));
}

#[test]
fn kv_that_is_not_there_is_found() {
    let mut failed = after_a_prompt();
    failed.begin_transfer(&copy(1, Direction::In, &[(2, 0)]));
    failed.end_transfer(1, false);
    fails("request 0 reads what a copy left unfinished at 0", || failed.begin_step(&decode(&[2, 3])));
    let mut lost = after_a_prompt();
    lost.reset();
    fails("request 0 reads what nobody wrote at 0", || lost.begin_step(&decode(&[2, 3])));
    fails("request 0 reads what nobody wrote at 3", || {
        run(&mut worker(), &step(1, &[(4, &[5], &[0, 1])]));
    });
    let mut reused = after_a_prompt();
    run(&mut reused, &other(2, &[2]));
    fails("request 0 reads wrong KV at 0", || reused.begin_step(&Step { id: 3, ..decode(&[2, 3]) }));
}

#[test]
fn host_blocks_do_not_outlive_the_worker() {
    let mut worker = after_a_prompt();
    worker.begin_transfer(&copy(1, Direction::Out, &[(2, 0), (3, 1)]));
    worker.end_transfer(1, true);
    worker.begin_transfer(&copy(2, Direction::In, &[(4, 0)]));
    worker.reset();
    worker.begin_transfer(&copy(3, Direction::In, &[(5, 0), (6, 1)]));
    worker.end_transfer(3, true);
    fails("request 0 reads what nobody wrote at 0", || worker.begin_step(&decode(&[5, 6])));
}

#[test]
fn tables_that_should_not_meet_are_found() {
    let mut worker = after_a_prompt();
    let shared = |a: &[u32], b: &[u32]| step(2, &[(4, &[9], a), (4, &[9], b)]);
    worker.forget(RequestId(0));
    run(&mut worker, &shared(&[2, 5], &[2, 6]));
    fails("have block 5, and one may write it", || worker.begin_step(&shared(&[2, 5], &[2, 5])));
    worker.reset();
    fails("have block 2 in two places", || worker.begin_step(&shared(&[2, 5], &[6, 2])));
    worker.reset();
    fails("request 1 has block 6 twice", || worker.begin_step(&shared(&[2, 5], &[6, 6])));
}

#[test]
fn a_block_filled_in_the_same_step_is_read_by_later_sequences_alone() {
    let mut worker = worker();
    (worker.in_step_hits, worker.max_drafts) = (true, 0);
    let expect = |worker: &mut OracleWorker| {
        (0..2).for_each(|id| worker.expect(&Request { id: RequestId(id), ..request() }));
    };
    let of = |id, seqs: &[(u32, &[Token], &[u32])]| {
        let mut step = step(id, seqs);
        step.seqs.iter_mut().for_each(|seq| seq.sample = seq.computed + seq.n_tokens == 6);
        step
    };
    // The first fills block 2 and begins block 3.
    let fills: (u32, &[Token], &[u32]) = (0, &[1, 2, 3, 4, 5], &[2, 3]);
    let reads: (u32, &[Token], &[u32]) = (4, &[5, 6], &[2, 5]);
    expect(&mut worker);
    let good = of(1, &[fills, reads]);
    worker.send_step(&good);
    run(&mut worker, &good);
    worker.reset();
    fails("request 0 reads what nobody wrote at 0", || worker.begin_step(&of(2, &[reads, fills])));
    worker.reset();
    let half: (u32, &[Token], &[u32]) = (0, &[1, 2, 3], &[2]);
    fails("have block 2, and one may write it", || worker.begin_step(&of(3, &[half, reads])));
    worker.reset();
    worker.forget(RequestId(0));
    let wrong = of(4, &[(0, &[7, 7, 7, 7, 7], &[2, 3]), reads]);
    worker.send_step(&wrong);
    worker.begin_step(&wrong);
    fails("request 1 reads wrong KV at 0", || _ = worker.end_step(&wrong));
}

#[test]
fn steps_of_the_wrong_shape_are_found() {
    let change = |change: fn(&mut Step, &mut StepSeq), with: &str| {
        let mut step = decode(&[2, 3]);
        let mut seq = step.seqs[0];
        change(&mut step, &mut seq);
        step.seqs[0] = seq;
        fails(with, || after_a_prompt().begin_step(&step));
    };
    change(|_, seq| seq.n_drafts = 2, "request 0 has room for 8 tokens and runs or drafts 9");
    change(|_, seq| seq.n_drafts = 3, "request 0 drafts 3 tokens");
    change(|_, seq| (seq.n_drafts, seq.sample) = (1, false), "request 0 drafts and does not sample");
    change(|_, seq| (seq.n_history, seq.tokens_at) = (0, 6), "request 0 is sent so much history");
    change(|step, _| step.tokens[5] += 1, "the history of request 0");
    change(|step, _| step.tokens[6] += 1, "request 0 is sent other tokens than its own");
    change(|_, seq| seq.n_generated = 2, "request 0 samples another token");
    change(|_, seq| seq.n_tokens = 0, "request 0 runs nothing");
    change(|_, seq| seq.table_keep = 1, "the mirror of request 0 is shorter");
    change(|step, _| step.starts.clear(), "sampling parameters come with `start`");
    change(|step, seq| step.seqs.push(*seq), "sampling parameters come with `start`");
    change(|step, seq| (step.seqs.push(*seq), step.starts.push(Default::default())).0, "is in the step twice");
}

#[test]
fn a_mirror_belongs_to_who_started_it() {
    let mut goes_on = decode(&[2, 3]);
    goes_on.starts.clear();
    goes_on.seqs[0] = StepSeq { start: false, n_history: 0, tokens_at: 6, ..goes_on.seqs[0] };
    run(&mut after_a_prompt(), &goes_on);
    fails("request 0 goes on without a start", || worker().begin_step(&goes_on));
    let mut worker = after_a_prompt();
    run(&mut worker, &other(2, &[7]));
    fails("request 0 goes on in a slot that another has started in", || {
        worker.begin_step(&Step { id: 3, ..goes_on.clone() });
    });
}

#[test]
fn drafts_answer_what_one_by_one_would() {
    let mut worker = worker();
    worker.right_drafts = 50;
    let long = Request::new(RequestId(0), BlockHash(9), vec![1], 20);
    let text = continuation(long.root, &long.prompt, 4);
    let mut lengths = [0; 4];
    for id in 1..200 {
        let mut step = step(id, &[(0, &[1], &[0])]);
        step.seqs[0].n_drafts = 2;
        worker.expect(&long);
        let result = run(&mut worker, &step);
        assert_eq!(result.of(0), &text[..result.tokens.len()]);
        lengths[result.tokens.len()] += 1;
    }
    assert!(lengths[0] == 0 && lengths[1..].iter().all(|n| *n > 10), "{lengths:?}");
    let accepted: usize = lengths.iter().enumerate().map(|(n, times)| n.saturating_sub(1) * times).sum();
    assert_eq!((worker.drafts_allowed, worker.drafts_accepted), (2 * 199, accepted as u64));
}

#[test]
fn a_wrong_draft_that_counts_as_computed_is_found() {
    let mut worker = worker();
    worker.right_drafts = 0;
    worker.expect(&request());
    let mut first = step(1, &[(0, &request().prompt, &[2, 3])]);
    first.seqs[0].n_drafts = 2;
    while worker.device.block(3)[2] == EMPTY {
        run(&mut worker, &first);
    }
    let text = continuation(request().root, &request().prompt, 2);
    let mut second = step(2, &[(7, &[request().prompt, text].concat(), &[2, 3])]);
    second.seqs[0] = StepSeq { n_tokens: 1, n_history: 7, n_generated: 2, ..second.seqs[0] };
    fails("request 0 reads wrong KV at 6, 7 are computed", || worker.begin_step(&second));
}

#[test]
fn dictated_tokens_are_kept_and_compared() {
    let mut worker = worker();
    worker.expect_dictated(&request());
    let mut first = step(1, &[(0, &request().prompt, &[2, 3])]);
    first.seqs[0].n_drafts = 1;
    worker.begin_step(&first);
    assert_eq!(worker.end_step_with(&first, |_| vec![900, 901]).tokens, [900, 901]);
    // Known tokens: the prompt and the two dictated. Position 6 has KV, for 900 was an accepted draft's input.
    let history = [&request().prompt[..], &[900, 901]].concat();
    let mut second = step(2, &[(7, &history, &[2, 3])]);
    second.seqs[0] = StepSeq { n_tokens: 1, n_history: 7, n_generated: 2, ..second.seqs[0] };
    worker.begin_step(&second);
    worker.end_step_with(&second, |_| vec![902]);
    worker.begin_step(&Step { id: 3, ..first.clone() });
    fails("request 0 samples other tokens than before", || {
        worker.end_step_with(&Step { id: 3, ..first.clone() }, |_| vec![899]);
    });
}

#[test]
fn dictated_answers_accept_only_drafts_that_were_allowed_and_leave_others_wrong() {
    let mut first = step(1, &[(0, &request().prompt, &[2, 3])]);
    first.seqs[0].n_drafts = 1;
    let mut worker = worker();
    worker.expect_dictated(&request());
    worker.begin_step(&first);
    worker.end_step_with(&first, |_| vec![900]);
    let history = [&request().prompt[..], &[900, 901]].concat();
    worker.truths.get_mut(&RequestId(0)).unwrap().learn(RequestId(0), 1, &[901]);
    let mut second = step(2, &[(7, &history, &[2, 3])]);
    second.seqs[0] = StepSeq { n_tokens: 1, n_history: 7, n_generated: 2, ..second.seqs[0] };
    fails("request 0 reads wrong KV at 6, 7 are computed", || worker.begin_step(&second));
    let mut worker = self::worker();
    worker.begin_step(&first);
    fails("request 0 has 2 drafts accepted", || {
        worker.end_step_with(&first, |_| vec![900, 901, 902]);
    });
}

#[test]
fn a_later_request_with_the_same_id_is_not_confused_with_the_first() {
    let mut worker = worker();
    worker.expect_dictated(&request());
    let first = step(1, &[(0, &request().prompt, &[2, 3])]);
    worker.begin_step(&first);
    worker.end_step_with(&first, |_| vec![900]);
    worker.forget(RequestId(0));
    worker.expect_dictated(&Request::new(RequestId(0), BlockHash(9), vec![8, 8, 8], 6));
    // A step that was sent before the first one ended still runs it.
    let mut second = step(2, &[(6, &[900], &[])]);
    second.starts.clear();
    second.seqs[0] = StepSeq { start: false, table_keep: 2, n_generated: 1, ..second.seqs[0] };
    worker.begin_step(&second);
    worker.end_step_with(&second, |_| vec![901]);
    let truth = &worker.truths[&RequestId(0)];
    assert_eq!(truth.tokens, [8, 8, 8], "its token is not taken for the later request's");
}
