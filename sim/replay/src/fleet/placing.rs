//! Requests on their way to replicas, and the loads that follow from where they are.

use trunkline_core::event::Event;
use trunkline_core::{Request, RequestId};

use super::Fleet;
use crate::router::{Incoming, Pick};

impl Fleet<'_> {
    /// Makes a request that is under way, of no tenant yet.
    pub(super) fn request(&mut self, number: u64) -> Request {
        let traced = &self.flights.get(number).traced;
        let mut request = Request::new(RequestId(number), self.root, traced.prompt(), traced.output_tokens);
        request.hashes.reserve_exact(request.prompt.capacity() / self.block_size as usize);
        request.hash_prompt(self.block_size);
        request
    }

    pub(super) fn pick(&mut self, number: u64, request: &Request) -> Pick {
        let prompt_tokens = request.prompt.len() as u32;
        let incoming = Incoming { number, prompt_tokens, hashes: &request.hashes };
        let pick = self.router.pick(self.now_ns, &incoming, &self.loads);
        assert!(self.loads[pick.replica].open && pick.known_tokens <= prompt_tokens, "{pick:?} is no choice");
        pick
    }

    pub(super) fn place(&mut self, pick: Pick, request: Request) {
        let prompt_tokens = request.prompt.len() as u32;
        let flight = self.flights.get(request.id.0);
        flight.replica = pick.replica as u32;
        flight.prefill_tokens = prompt_tokens - pick.known_tokens;
        let load = &mut self.loads[pick.replica];
        load.requests += 1;
        load.tokens += u64::from(prompt_tokens);
        load.prefill_tokens += u64::from(flight.prefill_tokens);
        self.tell(pick.replica, Event::Submit(Box::new(request)));
    }

    /// A request was given a token by `replica`.
    pub(super) fn count_token(&mut self, replica: usize, request: RequestId) {
        let load = &mut self.loads[replica];
        load.tokens += 1;
        let prefill_tokens = std::mem::take(&mut self.flights.get(request.0).prefill_tokens);
        load.prefill_tokens -= u64::from(prefill_tokens);
    }

    /// A request left `replica`, where it had been given so many tokens.
    pub(super) fn leave(&mut self, replica: usize, request: RequestId, given_tokens: u32) {
        let flight = self.flights.get(request.0);
        flight.replica = u32::MAX;
        let prefill_tokens = std::mem::take(&mut flight.prefill_tokens);
        let load = &mut self.loads[replica];
        load.requests -= 1;
        load.tokens -= u64::from(flight.traced.input_tokens) + u64::from(given_tokens);
        load.prefill_tokens -= u64::from(prefill_tokens);
    }
}
