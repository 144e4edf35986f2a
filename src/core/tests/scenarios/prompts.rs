//! Prompts, requests and limits of the scenarios.
//!
//! The driver's worker knows the right contents of every KV cell, so every scenario also proves that contents are right. All
//! blocks are counted after every event.

use trunkline_core::{Config, Namespace, Preemption, Request, RequestId, Token};
use trunkline_driver::Driver;

/// Tokens in a block, unless a scenario says otherwise.
pub const BLOCK: u32 = 16;

/// Configuration of the scenarios. KsanaLLM's tests have two ranks; with one rank, host block counts are halved.
pub fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 100,
        host_blocks: 100,
        max_batch_tokens: 4096,
        max_batch_size: 16,
        max_queue: 256,
        max_context: 2048,
        launch_watermark: 0.0,
        swap_in_watermark: 0.0,
        preemption: Preemption::Swap,
        ..Config::default()
    }
}

/// Returns `n` tokens of a family. No two families share a prefix.
pub fn text(family: u32, n: u32) -> Vec<Token> {
    (0..n).map(|at| family * 10_000 + at).collect()
}

/// Returns the first `shared` tokens of one family, then `own` tokens of another.
pub fn fork(shared_family: u32, shared: u32, own_family: u32, own: u32) -> Vec<Token> {
    [text(shared_family, shared), text(own_family, own)].concat()
}

/// Creates a request in the default namespace.
pub fn request(id: u64, prompt: Vec<Token>, max_tokens: u32) -> Request {
    Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens)
}

/// Submits a request that takes `blocks` blocks and needs one more after `room` decodes.
pub fn submit_filler(rig: &mut Driver, id: u64, blocks: u32, room: u32) {
    let Config { block_size, device_blocks, .. } = *rig.core.config();
    let prompt = blocks * block_size - room;
    rig.submit(id, text(900 + id as u32, prompt), (device_blocks * block_size - prompt).min(400));
}
