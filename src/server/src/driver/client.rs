//! Client of a request: the reader of the output, and all that the log of requests says at the end.

use tokio::sync::oneshot;
use trunkline_cluster::EngineId;
use trunkline_core::{Refusal, RequestId, Usage};
use trunkline_port::{PromptLogprobs, TokenLogprobs};

use crate::requests::outbox::{OutboxSender, Unavailable};
use crate::requests::request_events::{Ending, Engines, Label, RequestEvent};
use crate::requests::request_times::{End, RequestTimes};

/// Client of a request known to the cluster.
pub(super) struct Client {
    pub(super) outputs: OutboxSender,
    pub(super) accepted: Option<oneshot::Sender<Result<(), Refusal>>>,
    /// Reason for which the request is about to end.
    pub(super) unavailable: Option<Unavailable>,
    /// Engine that the request left first because it failed alone there.
    pub(super) failed_on: Option<EngineId>,
    /// `true` if it failed alone on another one, too.
    pub(super) failed_elsewhere: bool,
    pub(super) times: RequestTimes,
    pub(super) label: Label,
    pub(super) engines: Engines,
    /// Tokens of the prompt whose log probabilities are on the way to the client.
    prompt_logprobs: u32,
}

impl Client {
    /// Creates the client of a request that goes to the core.
    pub(super) fn new(
        label: Label,
        times: RequestTimes,
        outputs: OutboxSender,
        accepted: oneshot::Sender<Result<(), Refusal>>,
    ) -> Self {
        Self {
            outputs,
            accepted: Some(accepted),
            unavailable: None,
            failed_on: None,
            failed_elsewhere: false,
            times,
            label,
            engines: Engines::default(),
            prompt_logprobs: 0,
        }
    }

    /// Notifies the handler once of the core's acceptance. A handler no longer there has dropped the stream.
    pub(super) fn accept(&mut self) {
        if let Some(accepted) = self.accepted.take() {
            let _ = accepted.send(Ok(()));
        }
    }

    /// Takes the log probabilities of a prompt that the client does not have yet, if there are some. A request that moved computes its prompt again.
    pub(super) fn news_of(&mut self, prompt: &mut PromptLogprobs) -> Option<Vec<TokenLogprobs>> {
        let known = (self.prompt_logprobs + 1).saturating_sub(prompt.first) as usize;
        let mut tokens = std::mem::take(&mut prompt.tokens);
        tokens.drain(..known.min(tokens.len()));
        self.prompt_logprobs += tokens.len() as u32;
        Some(tokens).filter(|tokens| !tokens.is_empty())
    }

    /// Notes that the request failed alone on an engine.
    pub(super) fn fail_on(&mut self, engine: EngineId) {
        self.failed_elsewhere |= *self.failed_on.get_or_insert(engine) != engine;
    }

    /// Returns the event of the request's end.
    pub(super) fn into_event(self, id: RequestId, end: End, usage: Usage, end_ns: u64) -> RequestEvent {
        let ending = Ending::Ended(end, self.outputs.reader());
        let Self { times, label, engines, .. } = self;
        RequestEvent { label, number: Some(id), ending, engines, times, end_ns, usage }
    }
}
