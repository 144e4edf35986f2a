//! The replica that has the least to compute and to hold, given the prefixes it is believed to have.
//!
//! The cost of sending a request to a replica is, in tokens,
//!
//! ```text
//! cost = w * (prefill + prompt - known) + held
//! ```
//!
//! where `known` is the longest prefix of the prompt that the replica is believed to have, `prefill` the prompt tokens it is yet to
//! compute for others ([`Load::prefill_tokens`]), `held` the tokens of its unfinished requests ([`Load::tokens`]), and `w` is
//! `overlap_percent / 100`. The least cost wins; of equals the replica with the least in its view, then the first. So an
//! idle fleet fills all its caches, and a popular prefix moves to a second replica as soon as the first one's queue costs more than
//! computing the prefix again.
//!
//! A token to compute costs more than one held, which only makes every step of others a little longer. The default weight of 4 is where
//! the gain on Mooncake's conversation trace flattens out: 8 and more bring a few per cent more hits and longer tails of E2E.
//!
//! The form is that of the KV router of NVIDIA Dynamo, in tokens instead of blocks and with no random choice among near equals, by
//! which that router's runs differ. Mooncake's conductor (FAST 2025, algorithm 1) minimises queue plus prefill time, which is the first
//! term. The view is that of SGLang's router: a prefix is believed to be where it was sent, from `stale_ms` after it was sent, until
//! others pushed it out ([`super::prefixes`]); replicas are not asked. Loads are never stale: whoever sends requests and streams their
//! answers knows them.

use std::collections::VecDeque;

use trunkline_core::spec::Param;

use super::prefixes::Prefixes;
use super::{Incoming, Load, Pick, Router, Site, least};

pub(super) const PARAMS: [Param; 4] = [
    Param {
        key: "overlap_percent",
        about: "weight of tokens to compute against tokens held",
        default: 400,
        min: 0,
        max: 1_000_000,
    },
    Param {
        key: "stale_ms",
        about: "how long after a request was sent its prefix comes into view",
        default: 0,
        min: 0,
        max: 86_400_000,
    },
    Param {
        key: "chunk_tokens",
        about: "prefixes are told apart in steps of so many tokens, at least a block",
        default: 128,
        min: 1,
        max: 1 << 20,
    },
    Param {
        key: "view_chunks",
        about: "chunks in the view of a replica at most; 0 is as many as its caches hold",
        default: 0,
        min: 0,
        max: 1 << 28,
    },
];

/// A prefix on its way into the view.
#[derive(Debug)]
struct Sent {
    visible_ns: u64,
    replica: usize,
    chunks: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct PrefixAffinity {
    overlap_percent: u64,
    stale_ns: u64,
    blocks_per_chunk: usize,
    chunk_tokens: u64,
    views: Vec<Prefixes>,
    /// In the order of their times.
    sent: VecDeque<Sent>,
    /// Of the request at hand; kept for their memory.
    chunks: Vec<u64>,
    known: Vec<u64>,
}

impl PrefixAffinity {
    pub(super) fn new(values: &[u64], site: Site) -> Self {
        let [overlap_percent, stale_ms, chunk_tokens, view_chunks] = values else { panic!("a value per parameter") };
        let block_size = u64::from(site.block_size);
        let blocks_per_chunk = chunk_tokens.div_ceil(block_size);
        let held = (site.cache_blocks / blocks_per_chunk).clamp(1, u64::from(u32::MAX - 1));
        let capacity = if *view_chunks == 0 { held } else { *view_chunks };
        Self {
            overlap_percent: *overlap_percent,
            stale_ns: stale_ms * 1_000_000,
            blocks_per_chunk: blocks_per_chunk as usize,
            chunk_tokens: blocks_per_chunk * block_size,
            views: vec![Prefixes::new(capacity as usize); site.replicas],
            sent: VecDeque::new(),
            chunks: Vec::new(),
            known: vec![0; site.replicas],
        }
    }

    fn bring_into_view(&mut self, now_ns: u64) {
        while self.sent.front().is_some_and(|sent| sent.visible_ns <= now_ns) {
            let sent = self.sent.pop_front().expect("there is one in front");
            self.views[sent.replica].add(&sent.chunks);
        }
    }
}

impl Router for PrefixAffinity {
    fn pick(&mut self, now_ns: u64, request: &Incoming<'_>, loads: &[Load]) -> Pick {
        self.bring_into_view(now_ns);
        self.chunks.clear();
        let whole = request.hashes.chunks_exact(self.blocks_per_chunk);
        self.chunks.extend(whole.map(|blocks| blocks[blocks.len() - 1].0 as u64));
        for (known, view) in self.known.iter_mut().zip(&self.views) {
            *known = view.longest(&self.chunks) as u64 * self.chunk_tokens;
        }
        let prompt_tokens = u64::from(request.prompt_tokens);
        let replica = least(loads, |replica, load| {
            let to_compute = load.prefill_tokens + prompt_tokens - self.known[replica];
            let cost = u128::from(to_compute) * u128::from(self.overlap_percent) + u128::from(load.tokens) * 100;
            (cost, self.views[replica].len())
        });
        if self.stale_ns == 0 {
            self.views[replica].add(&self.chunks);
        } else {
            let chunks = self.chunks.clone();
            self.sent.push_back(Sent { visible_ns: now_ns + self.stale_ns, replica, chunks });
        }
        // The last token of a prompt is always run.
        Pick { replica, known_tokens: self.known[replica].min(prompt_tokens - 1) as u32 }
    }

    fn lost(&mut self, replica: usize) {
        self.views[replica].clear();
        self.sent.retain(|sent| sent.replica != replica);
    }
}
