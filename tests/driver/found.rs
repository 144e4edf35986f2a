//! Lower bound of what a request finds in the cache: every block of an ended request, as long as nothing was evicted, lost or flushed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use trunkline_core::{Config, Request, RequestId, Stats, Token};

/// Prefixes that must be in the cache, and what waiting requests must find of them.
#[derive(Debug)]
pub(crate) struct Found {
    block_size: usize,
    /// `true` if hits end at whole blocks below the last token.
    whole_block_hits: bool,
    /// Digests of the prefixes that end a full block.
    prefixes: BTreeSet<u64>,
    /// Blocks that a request not run yet must find.
    bounds: BTreeMap<RequestId, u32>,
    /// Requests there during a flush: nobody finds their blocks.
    hidden: BTreeSet<RequestId>,
    evicted_blocks: u64,
    /// `false` if hashes collide, which costs hits.
    pub counts: bool,
}

impl Found {
    pub fn new(config: &Config) -> Self {
        Self {
            block_size: config.block_size as usize,
            whole_block_hits: config.worker.whole_block_hits,
            prefixes: BTreeSet::new(),
            bounds: BTreeMap::new(),
            hidden: BTreeSet::new(),
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

    /// Forgets everything in the cache, and what the requests that are `live` put there until they end.
    pub fn flush(&mut self, live: impl Iterator<Item = RequestId>) {
        self.forget();
        self.hidden.extend(live);
    }

    /// Forgets everything if a block was evicted since the last call.
    pub fn forget_evicted(&mut self, stats: &Stats) {
        if std::mem::replace(&mut self.evicted_blocks, stats.evicted_blocks) != stats.evicted_blocks {
            self.forget();
        }
    }

    /// Forgets everything if a block was evicted in the pass under way, whose ends are not noted yet.
    pub fn forget_evicting(&mut self, stats: &Stats) {
        if self.evicted_blocks != stats.evicted_blocks {
            self.forget();
        }
    }

    /// Notes a new request.
    pub fn submitted(&mut self, request: &Request) {
        let bound = self.digests(request, &request.prompt).take_while(|digest| self.prefixes.contains(digest)).count();
        // With log probabilities of its prompt it finds nothing.
        self.bounds.insert(request.id, if request.prompt_logprobs.is_some() { 0 } else { bound as u32 });
        self.hidden.remove(&request.id);
    }

    /// Notes that a request has generated all its tokens, which it did not do on another core.
    pub fn ended(&mut self, request: &Request, text: &[Token]) {
        if self.hidden.remove(&request.id) {
            return;
        }
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
        let (size, last) = (self.block_size as u32, request.prompt.len() as u32 - 1);
        let least = (bound * size).min(if self.whole_block_hits { last / size * size } else { last });
        assert!(!self.counts || computed >= least, "request {} finds {computed} of {least} tokens", request.id);
    }
}
