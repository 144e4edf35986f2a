//! Least work: prompt tokens to compute weighed against tokens held, given the prefixes that each engine is believed to cache.
//!
//! The cost of sending a request to an engine is, in tokens,
//!
//! ```text
//! cost = w * (prefill + prompt - known) + held
//! ```
//!
//! with
//!
//! * `known`: longest prefix of the prompt that the engine is believed to cache,
//! * `prefill`: prompt tokens that the engine has yet to compute for others ([`Load::prefill_tokens`]),
//! * `held`: tokens of its unfinished requests ([`Load::tokens`]),
//! * `w`: [`WEIGHT`].
//!
//! The lowest cost wins; ties go to the engine with the fewest tracked prefixes, then to the first. So an idle fleet fills all its
//! caches, and a popular prefix moves to a second engine as soon as the queue of the first costs more than computing the prefix again.
//!
//! A token to compute costs more than a token held, which only makes every step of others a little longer. By how much depends on the model, the device
//! and the lengths: [`super::added_time`] measures it.
//!
//! The form is that of the KV router of NVIDIA Dynamo, in tokens instead of blocks and without its random choice among near
//! equals. Mooncake's conductor (FAST 2025, algorithm 1) minimises queue plus prefill time, which is the first term. Prefixes are
//! tracked as in SGLang's router: a prefix counts as cached where it was sent, from `stale_ms` after it was sent, until newer
//! prefixes push it out ([`super::prefixes`]); engines are not asked.

use std::collections::VecDeque;

use trunkline_core::names::spec::Param;

use super::prefixes::Prefixes;
use super::{Incoming, LOAD_STALE, Load, Pick, Router, RouterContext, least};

pub(super) const NAME: &str = "prefix_affinity";

/// Weight of a token to compute against a token held: 8 and more bring a few per cent more hits on Mooncake's conversations, and longer tails of E2E.
const WEIGHT: u64 = 4;

pub(super) const PARAMS: [Param; 4] = [
    Param {
        key: "stale_ms",
        about: "delay until the prefix of a routed request is counted as cached",
        default: 0,
        min: 0,
        max: 86_400_000,
    },
    Param {
        key: "chunk_tokens",
        about: "granularity of tracked prefixes in tokens, at least a block",
        default: 128,
        min: 1,
        max: 1 << 20,
    },
    Param {
        key: "view_chunks",
        about: "chunks tracked per engine, at most; 0 is as many as its caches hold",
        default: 0,
        min: 0,
        max: 1 << 28,
    },
    LOAD_STALE,
];

/// A routed prefix that is not yet counted as cached.
#[derive(Debug)]
struct Sent {
    visible_ns: u64,
    engine: usize,
    chunks: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct PrefixAffinity {
    stale_ns: u64,
    blocks_per_chunk: usize,
    chunk_tokens: u64,
    views: Vec<Prefixes>,
    /// Sorted by `visible_ns`.
    sent: VecDeque<Sent>,
    /// Chunk hashes of the current request; kept to reuse its memory.
    chunks: Vec<u64>,
    known: Vec<u64>,
}

impl PrefixAffinity {
    pub(super) fn new(values: &[u64], context: RouterContext) -> Self {
        let [stale_ms, chunk_tokens, view_chunks, _] = values else { panic!("a value per parameter") };
        let block_size = u64::from(context.block_size);
        let blocks_per_chunk = chunk_tokens.div_ceil(block_size);
        // The smallest engine counts: blocks beyond the smallest cache are taken to be gone.
        let cache_blocks = context.engines.iter().map(|engine| engine.cache_blocks).min().unwrap_or(0);
        let held = (cache_blocks / blocks_per_chunk).clamp(1, u64::from(u32::MAX - 1));
        let capacity = if *view_chunks == 0 { held } else { *view_chunks };
        Self {
            stale_ns: stale_ms * 1_000_000,
            blocks_per_chunk: blocks_per_chunk as usize,
            chunk_tokens: blocks_per_chunk * block_size,
            views: vec![Prefixes::new(capacity as usize); context.engines.len()],
            sent: VecDeque::new(),
            chunks: Vec::new(),
            known: vec![0; context.engines.len()],
        }
    }

    fn admit_visible(&mut self, now_ns: u64) {
        while self.sent.front().is_some_and(|sent| sent.visible_ns <= now_ns) {
            let sent = self.sent.pop_front().expect("there is one in front");
            self.views[sent.engine].add(&sent.chunks);
        }
    }
}

impl Router for PrefixAffinity {
    fn pick(&mut self, now_ns: u64, request: &Incoming<'_>, loads: &[Load]) -> Pick {
        self.admit_visible(now_ns);
        self.chunks.clear();
        let whole = request.hashes.chunks_exact(self.blocks_per_chunk);
        self.chunks.extend(whole.map(|blocks| blocks[blocks.len() - 1].0 as u64));
        for (known, view) in self.known.iter_mut().zip(&self.views) {
            *known = view.longest(&self.chunks) as u64 * self.chunk_tokens;
        }
        let prompt_tokens = u64::from(request.prompt_tokens);
        let engine = least(loads, |engine, load| {
            let to_compute = load.prefill_tokens + prompt_tokens - self.known[engine];
            (WEIGHT * to_compute + load.tokens, self.views[engine].len())
        });
        if self.stale_ns == 0 {
            self.views[engine].add(&self.chunks);
        } else {
            let chunks = self.chunks.clone();
            self.sent.push_back(Sent { visible_ns: now_ns + self.stale_ns, engine, chunks });
        }
        // The last token of a prompt is always run. An empty prompt, which its engine refuses, has none.
        Pick { engine, known_tokens: self.known[engine].min(prompt_tokens.saturating_sub(1)) as u32 }
    }

    fn lost(&mut self, engine: usize) {
        self.views[engine].clear();
        self.sent.retain(|sent| sent.engine != engine);
    }
}
