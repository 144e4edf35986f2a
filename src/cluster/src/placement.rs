//! Table of placements: the engine of every request, and the resulting loads.

use std::collections::HashMap;

use trunkline_core::{Request, RequestId, Usage};

use crate::engine::EngineId;
use crate::handover::HandOver;
use crate::router::{Incoming, Load, Pick, Router};
use crate::witness::Witnesses;

/// A request and the engine of the request.
#[derive(Debug)]
pub(crate) struct Placed {
    pub engine: EngineId,
    /// Order of placement; unique.
    pub order: u64,
    /// Share of this request in [`Load::prefill_tokens`] of the engine; 0 after the first token.
    prefill_tokens: u32,
    /// Share of this request in [`Load::prefill_pairs`], likewise.
    prefill_pairs: u64,
    prompt_tokens: u32,
    /// Tokens generated before the request was placed here.
    pub generated_before: u32,
    /// Prompt tokens found in the cache of the prefill engine, after a hand-over; reported at the end.
    pub cached_tokens: Option<u32>,
    /// The rest of the request, during the stay on a prefill engine.
    pub handover: Option<HandOver>,
    /// Engines on which the request failed alone, before it was placed here.
    pub failed_on: Witnesses,
}

/// What a request brings along from other engines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Brings {
    /// Prompt tokens found in the cache of the prefill engine, after a hand-over.
    pub cached_tokens: Option<u32>,
    /// Engines on which the request failed alone.
    pub failed_on: Witnesses,
}

/// All requests placed on engines, and the router with the choice of engines.
pub(crate) struct Placements {
    router: Box<dyn Router>,
    /// Load of each engine, by index.
    loads: Vec<Load>,
    /// Placements by request. Never iterated in hash order.
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

    /// Returns the router, to tell it what it learns from.
    pub fn router(&mut self) -> &mut dyn Router {
        &mut *self.router
    }

    /// Reports to the router the loss of an engine's cache.
    pub fn lost(&mut self, engine: EngineId) {
        self.router.lost(engine.index());
    }

    /// Chooses one of the open engines. Returns `None` if no engine is open.
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

    /// Counts a request placed on an engine.
    pub fn place(
        &mut self,
        request: &Request,
        engine: EngineId,
        known_tokens: u32,
        brings: Brings,
        handover: Option<HandOver>,
    ) {
        let prompt_tokens = request.prompt.len() as u32;
        let prefill_tokens = prompt_tokens - known_tokens.min(prompt_tokens);
        let load = &mut self.loads[engine.index()];
        load.requests += 1;
        load.tokens += u64::from(prompt_tokens) + request.generated.len() as u64;
        load.answer_tokens += request.generated.len() as u64;
        load.prefill_tokens += u64::from(prefill_tokens);
        let prefill_pairs = pairs(prompt_tokens) - pairs(prompt_tokens - prefill_tokens);
        load.prefill_pairs += prefill_pairs;
        let order = self.next_order;
        self.next_order += 1;
        let generated_before = request.generated.len() as u32;
        let Brings { cached_tokens, failed_on } = brings;
        let placed = Placed {
            engine,
            order,
            prefill_tokens,
            prefill_pairs,
            prompt_tokens,
            generated_before,
            cached_tokens,
            handover,
            failed_on,
        };
        let before = self.placed.insert(request.id, placed);
        assert!(before.is_none(), "request {} is placed twice", request.id);
    }

    /// Counts a token generated for a request.
    pub fn count_token(&mut self, engine: EngineId, request: RequestId, token: u32, splits: bool) {
        let load = &mut self.loads[engine.index()];
        load.tokens += 1;
        load.answer_tokens += 1;
        // Most tokens are not the first of their request: those cost no look-up.
        if load.prefill_tokens == 0 && !splits {
            return;
        }
        let placed = self.placed.get_mut(&request).expect("a token of a request that has an engine");
        load.prefill_tokens -= u64::from(std::mem::take(&mut placed.prefill_tokens));
        load.prefill_pairs -= std::mem::take(&mut placed.prefill_pairs);
        if let Some(handover) = &mut placed.handover {
            handover.push(token);
        }
    }

    /// Counts tokens generated by an engine in fast-forwarded steps.
    pub fn count_tokens(&mut self, engine: EngineId, tokens: u64) {
        let load = &mut self.loads[engine.index()];
        load.tokens += tokens;
        load.answer_tokens += tokens;
    }

    /// Removes a request after `generated` tokens in all.
    pub fn leave(&mut self, request: RequestId, generated: u32) -> Placed {
        let placed = self.placed.remove(&request).expect("a request leaves its engine once");
        let load = &mut self.loads[placed.engine.index()];
        load.requests -= 1;
        load.tokens -= u64::from(placed.prompt_tokens) + u64::from(generated);
        load.answer_tokens -= u64::from(generated);
        load.prefill_tokens -= u64::from(placed.prefill_tokens);
        load.prefill_pairs -= placed.prefill_pairs;
        placed
    }

    /// Removes a request refused by the engine.
    pub fn leave_refused(&mut self, request: RequestId) {
        let generated = self.placed.get(&request).map_or(0, |placed| placed.generated_before);
        self.leave(request, generated);
    }

    /// Returns the requests of an engine in the order of placement.
    pub fn at(&self, engine: EngineId) -> Vec<RequestId> {
        let here = self.placed.iter().filter(|(_, placed)| placed.engine == engine);
        let mut requests: Vec<_> = here.map(|(id, placed)| (placed.order, *id)).collect();
        requests.sort_unstable();
        requests.into_iter().map(|(_, id)| id).collect()
    }

    /// Panics unless the loads are the sums over the requests.
    pub fn check(&self) {
        let mut requests = vec![0u32; self.loads.len()];
        let mut prefill = vec![(0u64, 0u64); self.loads.len()];
        for placed in self.placed.values() {
            requests[placed.engine.index()] += 1;
            let (tokens, pairs) = &mut prefill[placed.engine.index()];
            *tokens += u64::from(placed.prefill_tokens);
            *pairs += placed.prefill_pairs;
        }
        for (at, load) in self.loads.iter().enumerate() {
            assert_eq!(load.requests, requests[at], "load of engine {at}");
            assert_eq!((load.prefill_tokens, load.prefill_pairs), prefill[at], "prompts of engine {at}");
            assert!(load.requests > 0 || load.tokens == 0, "engine {at} has no request and {} tokens", load.tokens);
            assert!(load.answer_tokens <= load.tokens, "engine {at} has more tokens of answers than of all");
        }
    }
}

/// Returns the pairs of the first `n` tokens of a prompt and those that they attend to.
fn pairs(n: u32) -> u64 {
    u64::from(n) * (u64::from(n) + 1) / 2
}

impl Placed {
    /// Returns the usage to report at the end of a request, given the usage of the last engine.
    pub fn usage(&self, last: Usage) -> Usage {
        let cached_tokens = self.cached_tokens.unwrap_or(last.cached_tokens);
        Usage { cached_tokens, loaded_tokens: last.loaded_tokens.min(cached_tokens), ..last }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::Namespace;

    use super::*;
    use crate::router::{RouterContext, make};

    #[test]
    fn a_prompt_is_a_load_as_far_as_the_engine_does_not_know_it_until_the_first_token() {
        let context = RouterContext { engines: Vec::new(), block_size: 4 };
        let mut placements = Placements::new(make("round_robin", context).unwrap(), 1);
        let engine = EngineId(0);
        let request = |id| Request::new(RequestId(id), Namespace::default().root(), vec![1; 40], 5);
        let waits = |placements: &mut Placements, id, known_tokens| {
            placements.place(&request(id), engine, known_tokens, Brings::default(), None);
            placements.load(engine).prefill_tokens
        };
        assert_eq!(waits(&mut placements, 1, 0), 40);
        assert_eq!(waits(&mut placements, 2, 32), 40 + 8, "32 tokens are cached");
        assert_eq!(waits(&mut placements, 3, 99), 40 + 8, "no more than the prompt is known");
        placements.count_token(engine, RequestId(2), 7, false);
        placements.check();
        assert_eq!((placements.load(engine).prefill_tokens, placements.load(engine).tokens), (40, 121));
        placements.leave(RequestId(1), 0);
        assert_eq!(placements.load(engine).prefill_tokens, 0);
    }
}
