//! Requests on their way to replicas, and the loads that follow from where they are.

use trunkline_core::event::Event;
use trunkline_core::{Request, RequestId};

use super::{Fleet, NOWHERE, Placed};
use crate::router::{Incoming, Pick};
use crate::settings::Arrivals;

impl Fleet<'_> {
    /// Makes the `index`-th request, of no tenant yet.
    pub(super) fn request(&self, index: usize) -> Request {
        let traced = &self.trace.requests[index];
        let mut request = Request::new(RequestId(index as u64), self.root, traced.prompt(), traced.output_tokens);
        request.hashes.reserve_exact(request.prompt.capacity() / self.block_size as usize);
        request.hash_prompt(self.block_size);
        request
    }

    pub(super) fn pick(&mut self, index: usize, request: &Request) -> Pick {
        if self.arrivals == Arrivals::AtOnce {
            return Pick { replica: index % self.replicas.len(), known_tokens: 0 };
        }
        let prompt_tokens = request.prompt.len() as u32;
        let incoming = Incoming { number: index as u64, prompt_tokens, hashes: &request.hashes };
        let pick = self.router.pick(self.now_ns, &incoming, &self.loads);
        assert!(self.loads[pick.replica].open && pick.known_tokens <= prompt_tokens, "{pick:?} is no choice");
        pick
    }

    pub(super) fn place(&mut self, pick: Pick, request: Request) {
        let prompt_tokens = request.prompt.len() as u32;
        let prefill_tokens = prompt_tokens - pick.known_tokens;
        self.placed[request.id.0 as usize] = Placed { replica: pick.replica as u32, prefill_tokens };
        let load = &mut self.loads[pick.replica];
        load.requests += 1;
        load.tokens += u64::from(prompt_tokens);
        load.prefill_tokens += u64::from(prefill_tokens);
        self.tell(pick.replica, Event::Submit(Box::new(request)));
    }

    /// A request was given a token by `replica`.
    pub(super) fn count_token(&mut self, replica: usize, request: RequestId) {
        let load = &mut self.loads[replica];
        load.tokens += 1;
        let prefill_tokens = std::mem::take(&mut self.placed[request.0 as usize].prefill_tokens);
        load.prefill_tokens -= u64::from(prefill_tokens);
    }

    /// A request left `replica`, where it had been given so many tokens.
    pub(super) fn leave(&mut self, replica: usize, request: RequestId, given_tokens: u32) {
        let placed =
            std::mem::replace(&mut self.placed[request.0 as usize], Placed { replica: NOWHERE, prefill_tokens: 0 });
        let prompt_tokens = self.trace.requests[request.0 as usize].input_tokens;
        let load = &mut self.loads[replica];
        load.requests -= 1;
        load.tokens -= u64::from(prompt_tokens) + u64::from(given_tokens);
        load.prefill_tokens -= u64::from(placed.prefill_tokens);
    }
}
