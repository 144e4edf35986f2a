//! Table of placements: which engine has which request, and the loads that follow.

use std::collections::HashMap;

use trunkline_core::{Request, RequestId, Usage};

use crate::engine::EngineId;
use crate::handover::HandOver;
use crate::router::{Incoming, Load, Pick, Router};

/// A request and the engine that has it.
#[derive(Debug)]
pub(crate) struct Placed {
    pub engine: EngineId,
    /// Order of placement; unique.
    pub order: u64,
    /// Share of this request in [`Load::prefill_tokens`] of its engine; 0 after its first token.
    prefill_tokens: u32,
    prompt_tokens: u32,
    /// Tokens that the request had when it was placed here.
    generated_before: u32,
    /// Prompt tokens that the prefill engine found in its cache, after a hand-over.
    pub cached_tokens: Option<u32>,
    /// The rest of the request, while a prefill engine has it.
    pub handover: Option<HandOver>,
}

/// All requests that some engine has, and the router that chose the engine.
pub(crate) struct Placements {
    router: Box<dyn Router>,
    /// Load of each engine, by index.
    loads: Vec<Load>,
    /// Never iterated in its own order.
    placed: HashMap<RequestId, Placed, ahash::RandomState>,
    next_order: u64,
}

impl Placements {
    pub fn new(router: Box<dyn Router>, engines: usize) -> Self {
        let loads = vec![Load::default(); engines];
        Self { router, loads, placed: HashMap::default(), next_order: 0 }
    }

    pub fn len(&self) -> usize {
        self.placed.len()
    }

    pub fn load(&self, engine: EngineId) -> &Load {
        &self.loads[engine.index()]
    }

    pub fn get(&self, request: RequestId) -> Option<&Placed> {
        self.placed.get(&request)
    }

    /// Reports to the router that an engine has lost its cache.
    pub fn lost(&mut self, engine: EngineId) {
        self.router.lost(engine.index());
    }

    /// Chooses one of the engines that are open. Returns `None` if none is.
    pub fn pick(&mut self, now_ns: u64, request: &Request, is_open: impl Fn(EngineId) -> bool) -> Option<Pick> {
        let mut any = false;
        for (at, load) in self.loads.iter_mut().enumerate() {
            load.open = is_open(EngineId(at as u32));
            any |= load.open;
        }
        if !any {
            return None;
        }
        let prompt_tokens = request.prompt.len() as u32;
        let incoming = Incoming { number: request.id.0, prompt_tokens, hashes: &request.hashes };
        let pick = self.router.pick(now_ns, &incoming, &self.loads);
        assert!(self.loads[pick.engine].open && pick.known_tokens <= prompt_tokens, "{pick:?} is no choice");
        Some(pick)
    }

    /// Counts a request that goes to an engine.
    pub fn place(&mut self, request: &Request, engine: EngineId, known_tokens: u32, handover: Option<HandOver>) {
        let prompt_tokens = request.prompt.len() as u32;
        let prefill_tokens = prompt_tokens - known_tokens.min(prompt_tokens);
        let load = &mut self.loads[engine.index()];
        load.requests += 1;
        load.tokens += u64::from(prompt_tokens) + request.generated.len() as u64;
        load.prefill_tokens += u64::from(prefill_tokens);
        let order = self.next_order;
        self.next_order += 1;
        let generated_before = request.generated.len() as u32;
        let placed =
            Placed { engine, order, prefill_tokens, prompt_tokens, generated_before, cached_tokens: None, handover };
        let before = self.placed.insert(request.id, placed);
        assert!(before.is_none(), "request {} is placed twice", request.id);
    }

    /// Notes what the prefill engine of a request found in its cache, to be reported at the end.
    pub fn keep_cached_tokens(&mut self, request: RequestId, cached_tokens: u32) {
        if let Some(placed) = self.placed.get_mut(&request) {
            placed.cached_tokens = Some(cached_tokens);
        }
    }

    /// Counts a token that an engine generated for a request.
    pub fn count_token(&mut self, engine: EngineId, request: RequestId, token: u32, splits: bool) {
        let load = &mut self.loads[engine.index()];
        load.tokens += 1;
        // Most tokens are not the first of their request: those cost no look-up.
        if load.prefill_tokens == 0 && !splits {
            return;
        }
        let placed = self.placed.get_mut(&request).expect("a token of a request that has an engine");
        load.prefill_tokens -= u64::from(std::mem::take(&mut placed.prefill_tokens));
        if let Some(handover) = &mut placed.handover {
            handover.push(token);
        }
    }

    /// Counts tokens that an engine generated in fast-forwarded steps.
    pub fn count_tokens(&mut self, engine: EngineId, tokens: u32) {
        self.loads[engine.index()].tokens += u64::from(tokens);
    }

    /// Removes a request that leaves its engine with `generated` tokens in all.
    pub fn leave(&mut self, request: RequestId, generated: u32) -> Placed {
        let placed = self.placed.remove(&request).expect("a request leaves its engine once");
        let load = &mut self.loads[placed.engine.index()];
        load.requests -= 1;
        load.tokens -= u64::from(placed.prompt_tokens) + u64::from(generated);
        load.prefill_tokens -= u64::from(placed.prefill_tokens);
        placed
    }

    /// Removes a request that its engine refused.
    pub fn leave_refused(&mut self, request: RequestId) {
        let generated = self.placed.get(&request).map_or(0, |placed| placed.generated_before);
        self.leave(request, generated);
    }

    /// Returns the requests of an engine in the order in which they were placed.
    pub fn at(&self, engine: EngineId) -> Vec<RequestId> {
        let here = self.placed.iter().filter(|(_, placed)| placed.engine == engine);
        let mut requests: Vec<_> = here.map(|(id, placed)| (placed.order, *id)).collect();
        requests.sort_unstable();
        requests.into_iter().map(|(_, id)| id).collect()
    }

    /// Panics unless the loads are the sums over the requests.
    pub fn check(&self) {
        let mut requests = vec![0u32; self.loads.len()];
        let mut prefill_tokens = vec![0u64; self.loads.len()];
        for placed in self.placed.values() {
            requests[placed.engine.index()] += 1;
            prefill_tokens[placed.engine.index()] += u64::from(placed.prefill_tokens);
        }
        for (at, load) in self.loads.iter().enumerate() {
            assert_eq!((load.requests, load.prefill_tokens), (requests[at], prefill_tokens[at]), "load of engine {at}");
            assert!(load.requests > 0 || load.tokens == 0, "engine {at} has no request and {} tokens", load.tokens);
        }
    }
}

impl Placed {
    /// Returns the usage to report at the end of a request, given that of its last engine.
    pub fn usage(&self, last: Usage) -> Usage {
        Usage { cached_tokens: self.cached_tokens.unwrap_or(last.cached_tokens), ..last }
    }
}
