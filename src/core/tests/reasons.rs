//! Reasons behind decisions: what the head of the queue lacked, and who made cached blocks go.

use trunkline_core::{Config, Lack, Namespace, NotAdmitted, Reasons, Request, RequestId};
use trunkline_driver::{Driver, prompt};

const BLOCK: u32 = 4;

fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 12,
        max_batch_size: 2,
        max_batch_tokens: 64,
        launch_watermark: 0.0,
        ..Config::default()
    }
}

/// Runs requests of (prompt tokens, output tokens) up to the end, and returns the reasons of the whole run and the digest.
fn reasons(config: Config, asks: bool, requests: &[(u32, u32)]) -> (Reasons, u64) {
    let mut driver = Driver::new(config);
    if asks {
        driver.core.note_reasons();
    }
    for (id, (tokens, max_tokens)) in (1..).zip(requests) {
        driver.submit(id, prompt(id as u32, *tokens), *max_tokens);
    }
    let mut all = Reasons::default();
    while !driver.live.is_empty() {
        driver.answer();
        let Reasons { not_admitted, evicted } = driver.core.take_reasons();
        all.not_admitted.extend(not_admitted);
        all.evicted.extend(evicted);
    }
    (all, driver.core.digest())
}

fn lacks(reasons: &Reasons) -> Vec<(u64, Lack)> {
    let mut all: Vec<_> = reasons.not_admitted.iter().map(|NotAdmitted { request, lack }| (request.0, *lack)).collect();
    all.dedup();
    all
}

#[test]
fn the_head_of_the_queue_says_what_it_lacks() {
    // Two prompts of eight blocks in twelve.
    assert_eq!(lacks(&reasons(config(), true, &[(30, 3), (30, 3)]).0), [(2, Lack::Blocks)]);
    // Three requests for two seats; the third is the head once both have begun.
    assert_eq!(lacks(&reasons(config(), true, &[(5, 6), (5, 6), (5, 2)]).0), [(3, Lack::Seat)]);
    // A prompt that takes the whole step, twice.
    let few_tokens = Config { max_batch_tokens: 8, max_batch_size: 4, ..config() };
    assert_eq!(lacks(&reasons(few_tokens, true, &[(16, 2), (8, 2)]).0), [(2, Lack::Tokens)]);
    // The same prompt: the second waits for the blocks that the first computes in the next step.
    let mut driver = Driver::new(Config { max_batch_tokens: 16, max_batch_size: 4, ..config() });
    driver.core.note_reasons();
    driver.submit(1, prompt(1, 24), 2);
    driver.submit(2, prompt(1, 24), 2);
    driver.answer();
    assert!(driver.core.take_reasons().not_admitted.iter().any(|noted| noted.lack == Lack::Prefix));
}

#[test]
fn evictions_name_the_request_that_needed_the_room() {
    let (found, _) = reasons(Config { max_batch_size: 1, ..config() }, true, &[(40, 2), (40, 2)]);
    let mut first = Request::new(RequestId(1), Namespace::default().root(), prompt(1, 40), 2);
    first.hash_prompt(BLOCK);
    let tail_first: Vec<u64> = first.hashes.iter().rev().map(|hash| hash.fingerprint()).collect();
    let evicted: Vec<u64> = found.evicted.iter().flat_map(|evicted| evicted.fingerprints.clone()).collect();
    assert!(!evicted.is_empty() && tail_first.starts_with(&evicted), "{found:?}");
    assert!(found.evicted.iter().all(|evicted| evicted.by == Some(RequestId(2))));
}

#[test]
fn asking_changes_nothing_and_nobody_else_gets_reasons() {
    let run = |asks| reasons(config(), asks, &[(30, 3), (30, 3), (9, 20), (9, 20)]);
    let ((asked, digest), (nothing, other)) = (run(true), run(false));
    assert!(!asked.not_admitted.is_empty());
    assert_eq!((nothing, digest), (Reasons::default(), other));
}

#[test]
fn a_request_stands_where_it_is() {
    let mut driver = Driver::new(config());
    driver.submit(1, prompt(1, 30), 3);
    driver.submit(2, prompt(2, 30), 3);
    driver.answer();
    let standing =
        |driver: &Driver, id| driver.core.standing(RequestId(id)).map(|it| (format!("{:?}", it.state), it.blocks));
    assert_eq!(standing(&driver, 1), Some(("Decode".into(), 8)));
    assert_eq!(standing(&driver, 2), Some(("Waiting".into(), 0)));
    assert_eq!(driver.core.standings().count(), 2);
    driver.run_to_end();
    assert_eq!((standing(&driver, 1), driver.core.standings().count()), (None, 0));
}
