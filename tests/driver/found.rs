//! Lower bound of what a request finds in the cache: every block of an ended request, as long as nothing was evicted, lost or flushed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use trunkline_core::{Request, RequestId, Stats, Token};

/// Prefixes that must be in the cache, and what waiting requests must find of them.
#[derive(Debug)]
pub(crate) struct Found {
    block_size: usize,
    /// Digests of the prefixes that end a full block.
    prefixes: BTreeSet<u64>,
    /// Blocks that a request not run yet must find.
    bounds: BTreeMap<RequestId, u32>,
    evicted_blocks: u64,
    /// `false` if hashes collide, which costs hits.
    pub counts: bool,
}

impl Found {
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size: block_size as usize,
            prefixes: BTreeSet::new(),
            bounds: BTreeMap::new(),
            evicted_blocks: 0,
            counts: true,
        }
    }

    /// Digests of the prefixes of full blocks, shortest first.
    fn digests<'a>(&self, request: &Request, tokens: &'a [Token]) -> impl Iterator<Item = u64> + use<'a> {
        let mut hasher = DefaultHasher::new();
        request.root.0.hash(&mut hasher);
        tokens.chunks_exact(self.block_size).map(move |block| {
            block.hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Forgets everything: the worker was lost, or the cache flushed.
    pub fn forget(&mut self) {
        self.prefixes.clear();
        self.bounds.clear();
    }

    /// Forgets everything if a block was evicted since the last call.
    pub fn forget_evicted(&mut self, stats: &Stats) {
        if std::mem::replace(&mut self.evicted_blocks, stats.evicted_blocks) != stats.evicted_blocks {
            self.forget();
        }
    }

    /// Notes a new request.
    pub fn submitted(&mut self, request: &Request) {
        let bound = self.digests(request, &request.prompt).take_while(|digest| self.prefixes.contains(digest)).count();
        self.bounds.insert(request.id, bound as u32);
    }

    /// Notes that a request has generated all its tokens, which it did not do on another core.
    pub fn ended(&mut self, request: &Request, text: &[Token]) {
        // The last token was never run.
        let tokens = [&request.prompt, &text[..text.len().saturating_sub(1)]].concat();
        self.prefixes.extend(self.digests(request, &tokens).collect::<Vec<_>>());
    }

    /// Notes that a request runs for the first time, with KV of `computed` tokens.
    ///
    /// # Panics
    /// If that is less than what is there.
    pub fn runs(&mut self, request: &Request, computed: u32) {
        let Some(bound) = self.bounds.remove(&request.id) else { return };
        let least = (bound * self.block_size as u32).min(request.prompt.len() as u32 - 1);
        assert!(!self.counts || computed >= least, "request {} finds {computed} of {least} tokens", request.id);
    }
}
