//! What scorers of blocks learn of a prompt: the rows that a worker reports, and second readings.

use trunkline_core::{Config, Event, H2oConfig, Keeps, Namespace, Request, RequestId, WorkerFacts, h2o};
use trunkline_driver::Driver;

/// Blocks of 4 tokens and steps of 16 tokens at most. Of each sequence of 24 tokens and more a third is kept in the second group.
fn config(scorer: &str) -> Config {
    Config {
        block_size: 4,
        device_blocks: 60,
        max_batch_tokens: 16,
        max_batch_size: 4,
        launch_watermark: 0.0,
        worker: WorkerFacts { groups: vec![Keeps::All, Keeps::Scored], ..WorkerFacts::default() },
        h2o: H2oConfig {
            mode: h2o::Mode::On,
            scorer: scorer.into(),
            ratio: Some(3.0),
            sink: 4,
            recent: 4,
            trigger: 24,
            interval: 2,
            ..H2oConfig::default()
        },
        ..Config::default()
    }
}

fn prompt(n: u32) -> Vec<u32> {
    (100..100 + n).collect()
}

/// Ends the step in front with these scores of blocks, and 0 for the others. Returns the number of rows that were scored.
fn answer_scoring(driver: &mut Driver, scores: &[(usize, f32)]) -> u32 {
    let rows = driver.steps[0].scored_rows(0);
    let mut result = driver.end_step();
    result.scores.fill(0.0);
    if rows > 0 {
        scores.iter().for_each(|(block, score)| result.scores[*block] = *score);
    }
    driver.begin_front();
    driver.event(Event::StepFinished(result));
    rows
}

#[test]
fn snapkv_keeps_what_the_last_rows_of_the_prompt_read_each_row_counting_alike() {
    let mut driver = Driver::new(config("snapkv:rows=12"));
    driver.submit(1, prompt(40), 9);
    // In chunks of 16, 16 and 8 tokens. Scores are means over the rows: block 1 has 4 x 0.5 in sum, block 2 8 x 0.3, block 6 4 x 0.2 + 8 x 0.25.
    let read: [&[(usize, f32)]; 3] = [&[], &[(1, 0.5), (6, 0.2)], &[(2, 0.3), (6, 0.25)]];
    let rows = read.map(|scores| answer_scoring(&mut driver, scores));
    assert_eq!(rows, [0, 4, 8], "the last 12 rows of the prompt");
    // Of 40 tokens in 10 blocks 14 stay, in the first block, the last and two more.
    assert_eq!(driver.drops(), [(1, 1..2), (1, 3..6), (1, 7..9)]);
    assert_eq!(answer_scoring(&mut driver, &[]), 0, "no row of the answer");
    driver.run_to_end();
}

#[test]
fn a_second_reading_is_background_work() {
    // Request 2 comes after 1 by arrival, deadline, time of arrival, or priority, and nevertheless before the prompt of 1 is read again.
    for policy in ["fcfs", "edf", "priority", "priority:ageing_ms=0"] {
        let limits = Config { policy: policy.into(), max_batch_size: 2, max_batch_tokens: 200, ..config("kvzip") };
        let mut driver = Driver::new(limits);
        let request = |id, n, most| Request::new(RequestId(id), Namespace::default().root(), prompt(n), most);
        let [priority, other] = if policy.ends_with("=0") { [-2, -1] } else { [0, 0] };
        driver.submit_request(Request { deadline_ns: Some(1_000_000), priority, ..request(1, 40, 9) });
        let (behind, tokens) = (request(2, 0, 3), (900..906).collect());
        driver.submit_request(Request { deadline_ns: Some(2_000_000), prompt: tokens, priority: other, ..behind });
        assert_eq!((driver.ids(), driver.stats().waiting), (vec![1], 1), "{policy}");
        driver.answer();
        while !driver.has_ended(2) {
            assert_eq!(driver.ids(), [1, 2], "{policy}");
            driver.answer();
        }
        let ids: Vec<RequestId> = driver.ids().into_iter().map(RequestId).collect();
        assert!(ids.len() == 2 && ids[0] == RequestId(1) && ids[1].is_inner(), "{policy}: {ids:?}");
        driver.run_to_end();
        assert!(driver.stats().h2o.h2o_dropped_blocks > 0, "{policy}");
    }
}
