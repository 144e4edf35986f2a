//! Limits and prompts of servers with tiers: a device too small for the prompts, so that blocks move.

use std::path::Path;

use trunkline_core::{Config, Preemption, TierConfig, Write};
use trunkline_server::Outcome;
use trunkline_sim_replay::recorded::replay_recorded;

use crate::server::{Client, TestServer, greedy};

/// Tokens in a block.
pub const BLOCK_SIZE: u32 = 16;
const HOST_BLOCKS: u32 = 200;
const TIER_BLOCKS: u32 = 1000;

/// Limits with a small device: it holds three quarters of [`prompts`], and writing back keeps room for one of them.
pub fn config(tiers: &[(&str, Write)]) -> Config {
    let tier = |(name, write): &(&str, Write)| TierConfig {
        name: (*name).into(),
        blocks: TIER_BLOCKS,
        write: *write,
        eviction: "lru".into(),
        shared: false,
    };
    Config {
        block_size: BLOCK_SIZE,
        device_blocks: 192,
        host_blocks: HOST_BLOCKS,
        preemption: Preemption::Swap,
        launch_watermark: 0.0,
        // The small model computes a block in some ten microseconds: without a load to measure, the usual estimate may not pay.
        swap_block_ns: 1_000,
        tiers: tiers.iter().map(tier).collect(),
        ..Config::default()
    }
}

/// Prompts of about 300 tokens with nothing in common.
pub fn prompts() -> Vec<String> {
    let words = |n: usize| (0..40).map(move |at| format!("word {n}{at} ")).collect::<String>();
    (0..12).map(words).collect()
}

/// Asks all prompts, one after another. Returns texts, and cached tokens of each.
pub async fn ask_all(client: &mut Client) -> (Vec<String>, Vec<u32>) {
    let (mut texts, mut cached) = (Vec::new(), Vec::new());
    for prompt in prompts() {
        let answer = client.ask(greedy(&prompt, 8)).await.unwrap();
        texts.push(answer.text);
        cached.push(answer.usage.cached_tokens);
    }
    (texts, cached)
}

/// Texts of a server without tiers.
pub async fn plain_texts() -> Vec<String> {
    let server = TestServer::start(Config { device_blocks: 512, ..config(&[]) }).await;
    let texts = ask_all(&mut server.client().await).await.0;
    server.drain().await;
    texts
}

/// Replays a recording: it gives the decisions of the run.
///
/// # Panics
/// Panics if the recording is malformed, or the decisions differ.
pub fn assert_replays(path: &Path, outcome: &Outcome) {
    let replayed = replay_recorded(path, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}
