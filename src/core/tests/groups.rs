//! Layer groups: blocks behind a window and blocks that attention hardly reads are given back, and prefixes are found where all groups
//! have them.

use trunkline_core::{
    Config, ConfigError, Event, H2oConfig, Keeps, Namespace, Preemption, Request, RequestId, SeqFault, WorkerFacts, h2o,
};
use trunkline_driver::{Direction, Driver};

/// Blocks of 4 tokens, `device_blocks` of them in each group, and steps of 16 tokens at most.
fn config(groups: &[Keeps], device_blocks: u32) -> Config {
    Config {
        block_size: 4,
        device_blocks,
        max_batch_tokens: 16,
        max_batch_size: 4,
        launch_watermark: 0.0,
        worker: WorkerFacts { groups: groups.to_vec(), ..WorkerFacts::default() },
        ..Config::default()
    }
}

fn prompt(n: u32) -> Vec<u32> {
    (100..100 + n).collect()
}

/// Keeps a third of each sequence of 24 tokens and more in the groups that evict, without the first and the last 4 tokens.
fn third(groups: &[Keeps], device_blocks: u32) -> Config {
    Config {
        h2o: H2oConfig {
            mode: h2o::Mode::On,
            ratio: Some(3.0),
            sink: 4,
            recent: 4,
            trigger: 24,
            interval: 2,
            ..H2oConfig::default()
        },
        ..config(groups, device_blocks)
    }
}

#[test]
fn blocks_behind_a_window_are_given_back_and_stay_cached() {
    let mut driver = Driver::with_content(config(&[Keeps::All, Keeps::Window(8)], 20), 1);
    driver.join();
    driver.submit(1, prompt(40), 9);
    let mut in_use = Vec::new();
    while !driver.has_ended(1) {
        in_use.push(driver.in_use());
        driver.answer();
    }
    // Each chunk takes four blocks in both groups, and leaves the two that the window of the next token touches: 4 + 4, 8 + 6, and for the
    // last two blocks 10 + 4. Then 40 tokens: ten blocks and two. A block more for each four tokens generated, and the window moves on.
    assert_eq!(in_use, [8, 14, 14, 14, 14, 14, 14, 15, 15, 15, 15]);
    assert_eq!((driver.usable(), driver.stats().idle_blocks), (40, 24), "twelve blocks in each group");
    driver.submit(2, prompt(40), 1);
    assert_eq!(driver.running(), [(2, 39, 1, true)], "all but the last token is found");
    assert_eq!(driver.in_use(), 10 + 2, "the window of token 39 touches the blocks 8 and 9");
    driver.run_to_end();
}

#[test]
fn a_window_lets_more_requests_in() {
    // Each of two prompts of 40 tokens needs ten blocks in each group, and keeps two in the window. Of 2 x 14 blocks the second gets
    // its twenty only because the first gives some back.
    let runs = |groups: &[Keeps]| {
        let mut driver = Driver::with_content(config(groups, 16), 1);
        driver.join();
        driver.submit(1, prompt(40), 20);
        (0..4).for_each(|_| driver.answer());
        driver.submit(2, (500..532).collect(), 4);
        driver.answer();
        driver.stats().running
    };
    assert_eq!((runs(&[Keeps::All, Keeps::All]), runs(&[Keeps::All, Keeps::Window(8)])), (1, 2));
}

#[test]
fn a_prompt_with_a_window_needs_no_more_blocks_than_it_has_at_once() {
    // A prompt of 80 tokens has 20 entries. With all positions kept in both groups it takes 40 blocks. With a window of 8 tokens it has 20 and,
    // in the second group, the 3 blocks that a window touches and those of a chunk of 16 tokens in the step and the one before: 2 x 5.
    let runs = |groups: &[Keeps], blocks: u32| {
        let mut driver = Driver::with_content(config(groups, blocks), 1);
        driver.join();
        driver.submit(1, prompt(80), 1);
        let mut most = driver.in_use();
        while !driver.has_ended(1) {
            driver.answer();
            most = most.max(driver.in_use());
        }
        driver.assert_all_said([1]);
        most
    };
    let window = [Keeps::All, Keeps::Window(8)];
    assert_eq!(runs(&[Keeps::All, Keeps::All], 20), 40);
    assert_eq!(runs(&window, 17), 26, "20 blocks, and 6 behind the start of the last window");
}

#[test]
fn blocks_promised_to_a_prompt_are_not_given_to_another() {
    // A step of 18 tokens has room for the second prompt alongside a chunk of 16. Of 2 x 18 blocks the first prompt has 8, and is promised 16 and 11;
    // the second needs 2, and gets them when the first has 18 and is promised 16.
    let config = Config { max_batch_tokens: 18, ..config(&[Keeps::All, Keeps::Window(8)], 18) };
    let mut driver = Driver::with_content(config, 1);
    driver.join();
    driver.submit(1, prompt(80), 2);
    driver.submit(2, vec![500, 501], 2);
    let mut waited = 0;
    while !driver.ids().contains(&2) {
        driver.answer();
        waited += 1;
    }
    assert_eq!((waited, driver.stats().preemptions), (2, 0));
    driver.run_to_end();
    driver.assert_all_said([1, 2]);
    driver.assert_empty();
}

#[test]
fn groups_keep_by_their_weights() {
    let weighted = |weights: &[f32], mode| {
        let mut config = third(&[Keeps::All, Keeps::Scored, Keeps::Window(8), Keeps::Scored], 20);
        (config.h2o.weights, config.h2o.mode) = (weights.to_vec(), mode);
        let mut driver = Driver::with_content(config, 1);
        driver.join();
        driver.submit(1, prompt(40), 30);
        driver.answer_until(|driver| driver.stats().h2o.h2o_plans == 1);
        let (h2o, in_use) = (driver.stats().h2o, driver.in_use());
        driver.answer_until(|driver| driver.has_ended(1));
        driver.submit(2, prompt(40), 1);
        driver.run_to_end();
        driver.assert_all_said([1, 2]);
        driver.assert_empty();
        (h2o.h2o_dropped_tokens, h2o.h2o_dropped_blocks, in_use)
    };
    // Of 42 tokens in 11 blocks the floors are the first and the last two, 10 tokens; a third is 14. The window touches three blocks.
    assert_eq!(weighted(&[1.0, 1.0], h2o::Mode::On), (28, 14, 11 + 4 + 3 + 4));
    // Beyond the floors, 6.4 tokens and 1.6 are two blocks and one; the mean of 24 and 28 tokens is dropped.
    assert_eq!(weighted(&[1.6, 0.4], h2o::Mode::On), (26, 13, 11 + 5 + 3 + 4));
    assert_eq!(weighted(&[0.0, 2.0], h2o::Mode::On), (28, 14, 11 + 3 + 3 + 5));
    assert_eq!(weighted(&[0.0, 2.0], h2o::Mode::Probe), (28, 0, 11 + 11 + 3 + 11));
}

#[test]
fn groups_drop_what_they_read_least_themselves() {
    let drops = |groups: &[Keeps], by_group| {
        let mut config = third(groups, 20);
        config.h2o.by_group = by_group;
        let mut driver = Driver::with_content(config, 1);
        driver.join();
        driver.submit(1, prompt(40), 30);
        driver.answer_until(|driver| driver.stats().h2o.h2o_plans == 1);
        let drops = driver.drops();
        driver.run_to_end();
        driver.assert_all_said([1]);
        driver.assert_empty();
        drops
    };
    // A group keeps one block of the eight between its floors. The worker's scores are a hash of request, list and entry.
    let (groups, others) = ([Keeps::All, Keeps::Scored, Keeps::Scored], [Keeps::Scored, Keeps::Scored, Keeps::Scored]);
    assert_eq!(drops(&groups, false), [(1, 1..6), (2, 1..6), (1, 7..9), (2, 7..9)], "blocks alike");
    assert_eq!(drops(&groups, true), [(1, 1..6), (1, 7..9), (2, 1..8)]);
    // The scores of the first group, which keeps everything, are those of nobody else.
    assert_eq!(drops(&others, true), [(1, 1..8), (2, 1..4), (2, 5..9)]);
}

#[test]
fn weights_are_given_for_each_group_that_drops() {
    let fault = |groups: &[Keeps]| {
        let mut config = third(groups, 20);
        config.h2o.weights = vec![1.5, 0.5];
        config.validate().map_err(|error| error.to_string())
    };
    assert_eq!(fault(&[Keeps::All, Keeps::Scored, Keeps::Scored]), Ok(()));
    assert_eq!(fault(&[]), Ok(()), "nothing is divided yet");
    let message = "h2o weights has 2 numbers for 1 layer groups that drop tokens; give one for each";
    assert_eq!(fault(&[Keeps::All, Keeps::Scored]), Err(message.into()));
}

#[test]
fn a_sequence_keeps_the_share_of_the_plan_and_publishes_no_more() {
    let mut driver = Driver::with_content(third(&[Keeps::All, Keeps::Scored, Keeps::Scored], 20), 1);
    driver.join();
    driver.submit(1, prompt(40), 30);
    driver.answer_until(|driver| driver.stats().h2o.h2o_plans == 1);
    // After two decodes, 42 tokens in 11 blocks: a third is 14 tokens, so 4 blocks stay: the first, two by score, and the last two, which
    // hold the last four tokens.
    let h2o = driver.stats().h2o;
    assert_eq!((h2o.h2o_plans, h2o.h2o_dropped_tokens, h2o.h2o_dropped_blocks), (1, 28, 14));
    assert_eq!(driver.in_use(), 11 + 2 * 4);
    driver.answer_until(|driver| driver.has_ended(1));
    let published = driver.stats().published_blocks;
    assert_eq!(published, 10, "the prompt, and nothing after the first drop");
    // The prompt is found whole: dropped blocks stay cached.
    driver.submit(2, prompt(40), 1);
    assert_eq!(driver.running(), [(2, 39, 1, true)]);
    driver.run_to_end();
    driver.assert_empty();
}

#[test]
fn a_prefix_ends_where_a_group_has_no_block_any_more() {
    // Twelve entries in two groups. The first request drops blocks while it runs, and the second needs their memory.
    let mut driver = Driver::with_content(third(&[Keeps::All, Keeps::Scored], 16), 1);
    driver.join();
    driver.submit(1, prompt(40), 20);
    driver.answer_until(|driver| driver.stats().h2o.h2o_plans == 1);
    let idle = driver.stats().idle_blocks;
    assert_eq!(idle, 7, "dropped blocks of the prompt are cached");
    driver.submit(2, (500..524).collect(), 1);
    driver.answer();
    assert!(driver.stats().idle_blocks < idle, "and evicted when another needs them");
    driver.answer_until(|driver| driver.has_ended(1) && driver.has_ended(2));
    driver.submit(3, prompt(40), 1);
    let computed = driver.running()[0].1;
    assert!(computed < 39 && computed.is_multiple_of(4), "{computed} tokens are found, up to the first block evicted");
    driver.run_to_end();
}

#[test]
fn a_shared_block_loses_a_reader_and_no_contents() {
    let mut driver = Driver::with_content(third(&[Keeps::All, Keeps::Scored], 40), 1);
    driver.join();
    // The second request keeps all: it reads what the first drops.
    let mut keeps = Request::new(RequestId(2), Namespace::default().root(), prompt(40), 12);
    keeps.h2o = Some(h2o::Mode::Off);
    driver.submit(1, prompt(40), 12);
    driver.submit_request(keeps);
    driver.run_to_end();
    assert!(driver.stats().h2o.h2o_dropped_blocks > 0);
    assert_eq!(driver.usages[&2].cached_tokens, 39, "the second waits for the first");
    driver.assert_empty();
}

#[test]
fn a_probe_counts_and_drops_nothing() {
    let mut probe = third(&[Keeps::All, Keeps::Scored], 20);
    probe.h2o.mode = h2o::Mode::Probe;
    let mut driver = Driver::with_content(probe, 1);
    driver.join();
    driver.submit(1, prompt(40), 8);
    driver.run_to_end();
    let h2o = driver.stats().h2o;
    assert_eq!((h2o.h2o_plans, h2o.h2o_dropped_blocks), (3, 0));
    assert_eq!(h2o.h2o_dropped_tokens, 28, "what would be dropped is counted once");
    assert_eq!(driver.stats().published_blocks, 11);
}

/// Ends the step in front, and returns the number of its rows that were scored.
fn scored_rows(driver: &mut Driver) -> u32 {
    let rows = driver.steps[0].scored_rows(0);
    let result = driver.end_step();
    driver.begin_front();
    driver.event(Event::StepFinished(result));
    rows
}

#[test]
fn one_decode_step_in_several_is_scored_the_first_at_once_and_the_next_after_lost_steps() {
    for (score_interval, scored) in [(1, [1; 9]), (4, [1, 0, 0, 0, 1, 0, 0, 0, 1])] {
        let mut limits = third(&[Keeps::All, Keeps::Scored], 20);
        (limits.h2o.interval, limits.h2o.score_interval) = (16, score_interval);
        let mut driver = Driver::with_content(limits, 1);
        driver.join();
        driver.submit(1, prompt(12), 16);
        assert_eq!(scored_rows(&mut driver), 0, "the prompt");
        let rows: Vec<u32> = (0..9).map(|_| scored_rows(&mut driver)).collect();
        assert_eq!(rows, scored);
        driver.event(Event::WorkerResumed);
        let rows: Vec<u32> = (0..4).map(|_| scored_rows(&mut driver)).collect();
        assert_eq!(rows, scored[..4], "plans never lack scores");
    }
}

#[test]
fn a_worker_that_cannot_score_keeps_the_later_blocks() {
    let mut driver = Driver::with_content(third(&[Keeps::All, Keeps::Scored], 20), 1);
    driver.join();
    driver.submit(1, prompt(40), 8);
    while !driver.has_ended(1) {
        let mut result = driver.end_step();
        result.scores.clear();
        driver.begin_front();
        driver.event(Event::StepFinished(result));
    }
    driver.assert_texts();
    // Four blocks of a prompt of ten stay: the first, and those from the eighth on. The steps' number of plans is that of any worker.
    let h2o = driver.stats().h2o;
    assert_eq!((h2o.h2o_plans, h2o.h2o_dropped_blocks, driver.resets), (3, 7, 0));
    let mut wrong = Driver::with_content(third(&[Keeps::All, Keeps::Scored], 20), 1);
    wrong.join();
    wrong.submit(1, prompt(12), 4);
    wrong.answer();
    let mut result = wrong.end_step();
    result.scores.pop();
    wrong.begin_front();
    wrong.event(Event::StepFinished(result));
    assert_eq!(wrong.resets, 1, "too few scores are nonsense");
}

#[test]
fn a_window_of_no_token_is_refused() {
    let config = config(&[Keeps::All, Keeps::Window(0)], 20);
    assert_eq!(config.validate(), Err(ConfigError::EmptyWindow));
}

/// A request that keeps all and grows, and behind it one that evicts, which `device_blocks` blocks in each group cannot hold both.
fn crowded(preemption: Preemption, host_blocks: u32, device_blocks: u32) -> Driver {
    let groups = [Keeps::All, Keeps::Scored, Keeps::Window(8)];
    let config = Config { host_blocks, preemption, ..third(&groups, device_blocks) };
    let mut driver = Driver::with_content(config, 1);
    driver.join();
    let mut keeps = Request::new(RequestId(1), Namespace::default().root(), prompt(16), 60);
    keeps.h2o = Some(h2o::Mode::Off);
    driver.submit_request(keeps);
    driver.submit(2, (500..540).collect(), 40);
    driver
}

#[test]
fn what_a_sequence_holds_in_each_group_goes_out_and_comes_back() {
    let mut driver = crowded(Preemption::Swap, 64, 20);
    driver.answer_until(|driver| !driver.copies.is_empty());
    // 19 blocks in the group that keeps all, 12 fewer in the one that evicts, and the two that the window touches.
    assert_eq!(driver.stats().h2o.h2o_dropped_blocks, 12);
    assert_eq!(driver.moves(), [(Direction::Out, 19 + (19 - 12) + 2)]);
    driver.finish_copy(0);
    driver.answer_until(|driver| !driver.copies.is_empty());
    // The device has the ten blocks of the prompt still. What came after the first drop was never published: 9 blocks, 4 that were not
    // dropped, and the window.
    assert_eq!(driver.moves(), [(Direction::In, 9 + 4 + 2)]);
    assert_eq!(driver.running(), []);
    driver.finish_copy(0);
    let plans = driver.stats().h2o.h2o_plans;
    driver.run_to_end();
    assert!(driver.stats().h2o.h2o_plans > plans, "the planner goes on");
    driver.assert_texts();
    driver.assert_empty();
}

#[test]
fn a_prompt_that_comes_back_half_read_needs_no_more_than_its_window_beside() {
    let groups = [Keeps::All, Keeps::Window(8)];
    let limits = Config { host_blocks: 64, preemption: Preemption::Swap, max_batch_tokens: 8, ..config(&groups, 20) };
    let mut driver = Driver::with_content(limits, 1);
    driver.join();
    driver.submit(1, prompt(4), 60);
    (0..8).for_each(|_| driver.answer());
    // Of 40 blocks, 24 and at most nine of the window are promised, until request 1 needs a block too many.
    driver.submit(2, (500..596).collect(), 4);
    driver.answer_until(|driver| !driver.copies.is_empty());
    assert_eq!((driver.stats().swaps.swap_outs, driver.stats().waiting), (1, 0));
    driver.run_to_end();
    let swaps = driver.stats().swaps;
    assert_eq!(
        (swaps.swap_outs, swaps.swap_ins, driver.stats().preemptions),
        (1, 1, 1),
        "what was read is not read again"
    );
    driver.assert_texts();
    driver.assert_empty();
}

#[test]
fn slots_of_evicted_blocks_are_clean_for_what_comes_back_from_the_host() {
    // A pool that evicts a little more than it must, so that blocks of a table can be neighbours.
    let limits = Config {
        host_blocks: 4096,
        preemption: Preemption::Swap,
        max_batch_tokens: 4096,
        ..config(&[Keeps::All; 2], 1024)
    };
    let mut driver = Driver::with_content(limits, 1);
    driver.join();
    for id in 0..2 {
        driver.submit(id, (0..1960).map(|at| 10_000 * id as u32 + at).collect(), 400);
    }
    driver.run_to_end();
    let swaps = driver.stats().swaps;
    assert_eq!((swaps.swap_outs, swaps.swap_ins, driver.stats().preemptions), (1, 1, 1));
    driver.assert_texts();
    driver.assert_empty();
}

#[test]
fn a_host_without_room_for_every_group_takes_nothing() {
    for (host_blocks, swaps) in [(28, 1), (27, 0)] {
        let mut driver = crowded(Preemption::Swap, host_blocks, 20);
        driver.run_to_end();
        assert_eq!((driver.stats().swaps.swap_outs, driver.stats().preemptions), (swaps, 1), "{host_blocks}");
        driver.assert_texts();
        driver.assert_empty();
    }
}

#[test]
fn twice_as_many_requests_run_at_once_with_the_same_memory() {
    // Prompts of 15 blocks in each of four groups, of which a sequence that evicts keeps about four in three groups.
    let most_at_once = |mode: h2o::Mode| {
        let groups = [Keeps::All, Keeps::Scored, Keeps::Scored, Keeps::Scored];
        let mut config = third(&groups, 40);
        (config.h2o.mode, config.h2o.ratio, config.max_batch_size, config.max_batch_tokens) = (mode, Some(6.0), 16, 64);
        let mut driver = Driver::with_content(config, 1);
        driver.join();
        for id in 0..12u32 {
            driver.submit(id.into(), (0..60).map(|at| 1000 * id + at).collect(), 40);
        }
        let mut most = 0;
        while (0..12).any(|id| !driver.has_ended(id)) {
            most = most.max(driver.stats().running);
            driver.answer();
        }
        driver.assert_texts();
        most
    };
    let (off, on) = (most_at_once(h2o::Mode::Off), most_at_once(h2o::Mode::On));
    assert!(on >= 2 * off, "{on} at once with eviction, {off} without");
    assert_eq!((off, on), (2, 4));
}

/// Settings of [`third`] with a scorer that reads prompts again, 16 tokens at a time.
fn zipped(groups: &[Keeps], device_blocks: u32) -> Config {
    let mut config = third(groups, device_blocks);
    config.h2o.scorer = "kvzip:part=16".into();
    config
}

#[test]
fn a_prompt_is_read_again_before_the_first_plan() {
    let mut driver = Driver::with_content(zipped(&[Keeps::All, Keeps::Scored], 40), 1);
    driver.join();
    driver.submit(1, prompt(40), 30);
    driver.answer_until(|driver| !driver.said(1).is_empty());
    // Ten blocks in parts of four, each after the prompt of 40 tokens, of which all is found, and after the block before the part.
    let mut parts = Vec::new();
    while driver.stats().h2o.h2o_plans == 0 {
        let inner = driver.running().into_iter().filter(|(id, ..)| *id > 1).map(|(_, begin, n, _)| (begin, n));
        parts.extend(inner);
        driver.answer();
    }
    assert_eq!(parts, [(40, 12), (52, 4), (40, 12), (52, 8), (40, 12)]);
    assert_eq!(driver.stats().h2o.h2o_reread_tokens, 16 + 20 + 12);
    assert!(driver.stats().h2o.h2o_dropped_blocks > 0);
    let (requests, tokens) = (driver.stats().requests, driver.stats().tokens);
    assert_eq!(
        (requests.accepted, tokens.prompt_tokens, tokens.cached_tokens),
        (1, 40, 0),
        "clients asked for no more"
    );
    driver.run_to_end();
    driver.assert_empty();
}

#[test]
fn a_prefix_is_read_again_once_for_all_its_readers() {
    let mut driver = Driver::with_content(zipped(&[Keeps::All, Keeps::Scored], 60), 1);
    driver.join();
    driver.submit(1, prompt(40), 30);
    driver.run_to_end();
    let once = driver.stats().h2o.h2o_reread_tokens;
    driver.submit(2, [prompt(40), (600..608).collect()].concat(), 30);
    driver.run_to_end();
    // Two blocks are new, after the last one of the prefix.
    assert_eq!((once, driver.stats().h2o.h2o_reread_tokens - once), (48, 12));
    // Blocks that left the cache take their scores along.
    driver.evict_idle();
    driver.submit(3, prompt(40), 30);
    driver.run_to_end();
    assert_eq!(driver.stats().h2o.h2o_reread_tokens, 48 + 12 + 48);
    driver.assert_empty();
}

#[test]
fn what_repeating_the_prompt_reads_stays() {
    // 45 tokens in twelve blocks, 15 to stay: the first block and the last two by the floors, which have 9, and two by score. The worker's
    // scores are a hash of request and entry. The first inner request reads the blocks 0 to 3 and gives 0.14, 0.25, 0.56 and 0.81, the
    // second reads 4 to 7, with 0.90, 0.98, 0.16 and 0.05, the third the rest, with 0.10 and 0.51.
    let mut driver = Driver::with_content(zipped(&[Keeps::All, Keeps::Scored], 40), 1);
    driver.join();
    driver.submit(1, prompt(40), 30);
    driver.answer_until(|driver| driver.stats().h2o.h2o_plans == 1);
    assert_eq!(driver.drops(), [(1, 1..4), (1, 6..10)], "blocks 4 and 5 stay");
}

#[test]
fn a_second_reading_ends_with_its_request() {
    let mut driver = Driver::with_content(zipped(&[Keeps::All, Keeps::Scored], 40), 1);
    driver.join();
    driver.submit(1, prompt(40), 30);
    driver.answer_until(|driver| driver.running().len() == 2);
    driver.abort(1);
    driver.answer();
    driver.assert_empty();
    // A worker that is lost takes the first reading along; the request starts over, and so does the reading.
    driver.submit(2, (700..740).collect(), 30);
    driver.answer_until(|driver| driver.running().len() == 2);
    driver.lose_worker();
    driver.join();
    driver.run_to_end();
    assert!(driver.stats().h2o.h2o_dropped_blocks > 0);
    driver.assert_empty();
}

#[test]
fn a_prompt_that_fails_the_worker_when_repeated_is_repeated_once() {
    for is_named in [true, false] {
        let mut driver = Driver::with_content(zipped(&[Keeps::All, Keeps::Scored], 40), 1);
        driver.join();
        driver.submit(1, prompt(40), 30);
        driver.answer_until(|driver| driver.running().len() == 2);
        let inner = driver.ids().into_iter().find(|id| *id > 1).unwrap();
        if is_named {
            driver.event(Event::Fail(RequestId(inner)));
        }
        driver.lose_worker();
        driver.join();
        driver.run_to_end();
        let h2o = driver.stats().h2o;
        assert_eq!(
            (h2o.h2o_reread_tokens, h2o.h2o_dropped_blocks > 0),
            (16, true),
            "one part was begun, and plans go on"
        );
        driver.assert_all_said([1]);
        driver.assert_empty();
    }
}

#[test]
fn a_second_reading_that_fails_alone_is_given_up_and_its_request_goes_on() {
    let mut driver = Driver::with_content(zipped(&[Keeps::All, Keeps::Scored], 40), 1);
    driver.join();
    driver.submit(1, prompt(40), 30);
    driver.answer_until(|driver| driver.running().len() == 2);
    let inner = driver.ids().into_iter().find(|id| *id > 1).unwrap();
    driver.answer_failing(inner, SeqFault::NotFinite);
    driver.run_to_end();
    let h2o = driver.stats().h2o;
    assert_eq!((h2o.h2o_reread_tokens, h2o.h2o_dropped_blocks > 0), (16, true), "one part was begun, and plans go on");
    assert_eq!((driver.resets, driver.stats().requests.restarted), (0, 0));
    driver.assert_all_said([1]);
    driver.assert_empty();
}

#[test]
fn a_cached_copy_is_read_again_all_the_same() {
    let mut config = zipped(&[Keeps::All, Keeps::Scored], 80);
    config.max_context = 200;
    let mut driver = Driver::with_content(config, 1);
    driver.join();
    let twice = [prompt(16), prompt(16)].concat();
    driver.submit_request(Request {
        h2o: Some(h2o::Mode::Off),
        ..Request::new(RequestId(1), Namespace::default().root(), twice, 1)
    });
    driver.run_to_end();
    driver.submit(2, prompt(16), 30);
    driver.answer_until(|driver| driver.ids().iter().any(|id| *id > 2));
    let inner = driver.running().into_iter().find(|(id, ..)| *id > 2).unwrap();
    assert_eq!((inner.1, inner.2), (16, 12), "the copy is run, and scored, from its first row on");
    driver.run_to_end();
    driver.assert_empty();
}

#[test]
fn blocks_that_were_never_read_again_do_not_rank_last() {
    // The scores of the first ten blocks are kept; there is no room behind 56 tokens to read the other four again.
    let mut config = zipped(&[Keeps::All, Keeps::Scored], 60);
    config.max_context = 64;
    let mut driver = Driver::with_content(config, 1);
    driver.join();
    driver.submit(1, prompt(40), 10);
    driver.run_to_end();
    let read = driver.stats().h2o.h2o_reread_tokens;
    driver.submit(2, [prompt(40), (600..616).collect()].concat(), 8);
    driver.answer_until(|driver| !driver.drops().is_empty());
    assert_eq!(driver.stats().h2o.h2o_reread_tokens, read);
    assert_eq!(driver.drops(), [(1, 2..4), (1, 5..11), (1, 12..13)], "blocks 4 and 11 stay, by what the answer reads");
    driver.run_to_end();
    driver.assert_empty();
}

#[test]
fn a_prompt_without_room_behind_it_is_thinned_without_a_second_reading() {
    // 44 tokens of context: nothing fits behind 40 tokens. The later blocks stay.
    let mut config = zipped(&[Keeps::All, Keeps::Scored], 40);
    config.max_context = 44;
    let mut driver = Driver::with_content(config, 1);
    driver.join();
    driver.submit(1, prompt(40), 4);
    driver.run_to_end();
    let h2o = driver.stats().h2o;
    assert_eq!((h2o.h2o_reread_tokens, h2o.h2o_plans > 0), (0, true));
}
