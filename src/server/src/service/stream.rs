//! The response stream of one request: tokens in, text out.
//!
//! Everything here runs at the connection's request for the next message, on tokio's threads. While the connection has no room,
//! tokens wait in the request's channel, and the next chunk carries all waiting tokens.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio_stream::Stream;
use tonic::Status;
use trunkline_core::{FinishReason, Token, Usage};
use trunkline_port::TokenLogprobs;
use trunkline_text::{Detokenizer, StopMatcher};

use crate::proto;
use crate::proto::finish::StoppedBy;
use crate::proto::generate_response::Event;
use crate::requests::outbox::Output;
use crate::requests::request_times::RequestTimes;
use crate::service::submission::Submitted;

/// Maximum number of outputs taken from the channel at once.
const OUTPUTS_PER_CHUNK_MAX: usize = 64;

/// Maximum number of log probabilities of a prompt in one message: with 20 alternatives each below the 4 MiB that clients take.
const PROMPT_LOGPROBS_PER_CHUNK_MAX: usize = 4096;

/// The response stream of one request. Dropping the stream before the request's end aborts the request.
pub struct Generation {
    submitted: Submitted,
    client_id: String,
    taken: Vec<Output>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Send the stop string that is found.
    with_stop: bool,
    has_stops: bool,
    min_tokens: u32,
    n_tokens: u32,
    last_token: Token,
    /// `false` for tokens without text.
    spells: bool,
    /// `false` for messages without the id of the request.
    names: bool,
    stopping: Option<Stopping>,
    /// `true` once the stream ends before its request: the client did not read, or the decoder failed.
    failed: bool,
    ready: VecDeque<Result<proto::GenerateResponse, Status>>,
}

/// A stop string was found; further generated tokens are not for the client.
struct Stopping {
    stop: String,
    /// `true` once the core's queue took the stop. If the queue was full, the stop is sent again with the next output.
    notified: bool,
}

impl Stopping {
    fn at(stop: String) -> Self {
        Self { stop, notified: false }
    }
}

impl Generation {
    pub(crate) fn new(submitted: Submitted, detokenizer: Detokenizer, stops: Vec<String>, min_tokens: u32) -> Self {
        Self {
            client_id: submitted.client_id().into(),
            submitted,
            taken: Vec::new(),
            detokenizer,
            has_stops: !stops.is_empty(),
            stops: StopMatcher::new(stops),
            with_stop: false,
            min_tokens,
            n_tokens: 0,
            last_token: 0,
            spells: true,
            names: true,
            stopping: None,
            failed: false,
            ready: VecDeque::new(),
        }
    }

    /// Sends the stop string that ends the text, too.
    pub(crate) fn with_stop(self, with_stop: bool) -> Self {
        Self { with_stop, ..self }
    }

    /// Leaves out the text, for a client that turns tokens into text itself. It is made nevertheless if stop strings have to be found in it.
    #[must_use]
    pub fn tokens_only(mut self) -> Self {
        self.spells = self.has_stops;
        self
    }

    /// Leaves the id of the request out of messages, for a reader that knows it.
    #[must_use]
    pub fn without_id(self) -> Self {
        Self { names: false, ..self }
    }

    /// Returns the number of tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.submitted.prompt_tokens()
    }

    /// Returns the id of the request, the client's or the server's.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    fn take(&mut self, outputs: &mut Vec<Output>) {
        let mut chunk = proto::Chunk::default();
        let (mut end, mut failure) = (None, None);
        for output in outputs.drain(..) {
            match output {
                Output::Prompt(tokens) => self.prompt(tokens),
                Output::Token { .. } if self.stopping.is_some() => {}
                Output::Token { token, logprobs } => self.token(token, logprobs, &mut chunk),
                Output::Finish { reason, usage, times } => end = Some((reason, usage, times)),
                Output::Failed { elsewhere } => failure = Some(failed_alone(elsewhere)),
                Output::Unavailable(why) => failure = Some(Status::unavailable(why.message())),
            }
        }
        self.tell_stop();
        if end.is_some() && self.stopping.is_none() && self.spells {
            let rest = self.detokenizer.finish();
            self.text(rest, &mut chunk);
            self.stops.finish(&mut chunk.text);
        }
        if !chunk.token_ids.is_empty() || !chunk.text.is_empty() {
            self.send(Event::Chunk(chunk));
        }
        if let Err(why) = self.detokenizer.check() {
            // Dropping the stream aborts the request.
            self.failed = true;
            self.ready.push_back(Err(Status::internal(why.to_string())));
        } else if let Some((reason, usage, times)) = end {
            self.end(reason, usage, &times);
        }
        if let Some(status) = failure {
            self.submitted.end();
            self.ready.push_back(Err(status));
        }
    }

    /// Sends log probabilities of the prompt: all come before the first token.
    fn prompt(&mut self, tokens: Vec<TokenLogprobs>) {
        let mut rest = tokens.into_iter().map(message).peekable();
        while rest.peek().is_some() {
            let prompt_logprobs = rest.by_ref().take(PROMPT_LOGPROBS_PER_CHUNK_MAX).collect();
            self.send(Event::Chunk(proto::Chunk { prompt_logprobs, ..proto::Chunk::default() }));
        }
    }

    fn token(&mut self, token: Token, logprobs: Option<TokenLogprobs>, chunk: &mut proto::Chunk) {
        self.n_tokens += 1;
        self.last_token = token;
        chunk.token_ids.push(token);
        chunk.logprobs.extend(logprobs.map(message));
        if !self.spells {
            return;
        }
        let text = self.detokenizer.push(token);
        self.text(text, chunk);
        if self.has_stops && self.stopping.is_none() {
            let stop = self.stops.push_left_out(self.detokenizer.left_out(token), self.may_stop(), &mut chunk.text);
            self.stop_at(stop, chunk);
        }
    }

    fn text(&mut self, text: String, chunk: &mut proto::Chunk) {
        if self.has_stops {
            let stop = self.stops.push(&text, self.may_stop(), &mut chunk.text);
            self.stop_at(stop, chunk);
        } else if chunk.text.is_empty() {
            chunk.text = text;
        } else {
            chunk.text.push_str(&text);
        }
    }

    fn stop_at(&mut self, stop: Option<String>, chunk: &mut proto::Chunk) {
        chunk.text.push_str(stop.as_deref().filter(|_| self.with_stop).unwrap_or_default());
        self.stopping = stop.map(Stopping::at);
    }

    fn may_stop(&self) -> bool {
        self.n_tokens >= self.min_tokens
    }

    fn tell_stop(&mut self) {
        if let Some(stopping) = self.stopping.as_mut().filter(|stopping| !stopping.notified) {
            stopping.notified = self.submitted.stop();
        }
    }

    fn send(&mut self, event: Event) {
        let request_id = if self.names { self.client_id.clone() } else { String::new() };
        self.ready.push_back(Ok(proto::GenerateResponse { request_id, event: Some(event) }));
    }

    /// Returns the status of a stream without an end.
    fn unfinished(&mut self) -> Status {
        if self.submitted.outputs().is_discarded() {
            // Dropping the stream aborts the request if the core has not noticed yet.
            self.failed = true;
            if let Some(status) = self.submitted.outputs().end_status() {
                return status;
            }
            return Status::resource_exhausted("the client did not read the output fast enough; the request was ended");
        }
        // The core's thread has ended without a word about this request.
        self.submitted.end();
        Status::unavailable("the server has stopped")
    }

    fn end(&mut self, reason: FinishReason, usage: Usage, times: &RequestTimes) {
        self.submitted.end();
        let stopped_by = match (self.stopping.take(), reason) {
            (Some(Stopping { stop, .. }), _) => Some(StoppedBy::StopString(stop)),
            (None, FinishReason::Stop) => Some(StoppedBy::StopTokenId(self.last_token)),
            (None, _) => None,
        };
        let reason = match reason {
            _ if stopped_by.is_some() => proto::FinishReason::Stop,
            FinishReason::Stop => proto::FinishReason::Stop,
            FinishReason::Length => proto::FinishReason::Length,
            FinishReason::Abort => proto::FinishReason::Abort,
            FinishReason::Timeout => {
                let n = self.n_tokens;
                self.ready.push_back(Err(Status::deadline_exceeded(format!("time was up after {n} generated tokens"))));
                return;
            }
            FinishReason::Error | FinishReason::NotFinite | FinishReason::Unsupported => {
                self.ready.push_back(Err(worker_failure(reason)));
                return;
            }
        };
        let usage = proto::Usage {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            copied_tokens: usage.copied_tokens,
            // After a stop string the core may have generated more than the client was sent.
            completion_tokens: self.n_tokens,
            preemptions: usage.preemptions,
            loaded_tokens: usage.loaded_tokens,
            pinned_tokens: usage.pinned_tokens,
        };
        let [queue_ms, prefill_ms, decode_ms] = times.parts_ns().map(|ns| ns as f64 * 1e-6);
        let timings = Some(proto::Timings { queue_ms, prefill_ms, decode_ms });
        self.send(Event::Finish(proto::Finish { reason: reason.into(), usage: Some(usage), timings, stopped_by }));
    }
}

/// Returns the message of a token's log probabilities.
fn message(of: TokenLogprobs) -> proto::TokenLogprob {
    let top = of.top.into_iter().map(|(token_id, logprob)| proto::Alternative { token_id, logprob });
    proto::TokenLogprob { token_id: of.token, logprob: of.logprob, top: top.collect() }
}

/// Returns the status of a request that ended because the worker failed.
pub(crate) fn worker_failure(reason: FinishReason) -> Status {
    match reason {
        FinishReason::NotFinite => Status::internal(
            "the model's logits for this request are not finite (NaN or infinity), so there is no next token; only this request \
             ended, and the same tokens will fail again: check the model's weights and their type",
        ),
        FinishReason::Unsupported => Status::invalid_argument(
            "the worker cannot honour the sampling parameters of this request, or cannot follow the grammar of its answer any further; \
             only this request ended",
        ),
        _ => failed_alone(false),
    }
}

/// Returns the status of a request that failed alone, and `elsewhere` on another worker before.
pub(crate) fn failed_alone(elsewhere: bool) -> Status {
    Status::internal(match elsewhere {
        true => {
            "the request failed alone on more than one worker, without a token in between: it is taken to be the cause"
        }
        false => {
            "the request failed on the only worker that could run it: the request may be the cause, or the worker is broken"
        }
    })
}

impl Stream for Generation {
    type Item = Result<proto::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(message) = this.ready.pop_front() {
                return Poll::Ready(Some(message));
            }
            if this.submitted.has_ended() || this.failed {
                return Poll::Ready(None);
            }
            let mut taken = std::mem::take(&mut this.taken);
            let polled = this.submitted.outputs().poll_recv_many(cx, &mut taken, OUTPUTS_PER_CHUNK_MAX);
            if let Poll::Ready(0) = polled {
                let status = this.unfinished();
                this.ready.push_back(Err(status));
            }
            this.take(&mut taken);
            this.taken = taken;
            ready!(polled);
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ready.len(), None)
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;
    use trunkline_core::RequestId;
    use trunkline_text::Tokenizer;

    use super::*;
    use crate::access::caller::{Caller, Owner};
    use crate::driver::commands::Command;
    use crate::driver::queue::{DriverHandle, queue};
    use crate::network::Call;
    use crate::network::limits::NetworkLimits;
    use crate::requests::outbox::{OutboxSender, outbox};
    use crate::service::request_ids::RequestIds;

    const ID: RequestId = RequestId(1);

    struct Setup {
        commands: crossbeam_channel::Receiver<Command>,
        driver: DriverHandle,
        ids: RequestIds,
        outputs: OutboxSender,
        generation: Generation,
    }

    fn setup(stop: &[&str], min_tokens: u32) -> Setup {
        let (driver, commands) = queue(1);
        let ids = RequestIds::default();
        let active = ids.open(Owner::Connection(0), "client's", ID).unwrap();
        let limits = NetworkLimits { unread_bytes_per_call: 10_000, ..NetworkLimits::default() };
        let (outputs, received) = outbox(Call::detached(limits, driver.clock()));
        let detokenizer = Tokenizer::bytes().detokenizer(true);
        let stop = stop.iter().map(|stop| (*stop).into()).collect();
        let generation =
            Generation::new(Submitted::new(ID, active, driver.clone(), received), detokenizer, stop, min_tokens);
        Setup { commands, driver, ids, outputs, generation }
    }

    impl Setup {
        fn say(&self, text: &str) {
            for token in Tokenizer::bytes().encode(text).unwrap() {
                assert!(self.outputs.send(Output::Token { token, logprobs: None }));
            }
        }

        fn finish(&self, reason: FinishReason) {
            let usage = Usage { prompt_tokens: 5, completion_tokens: 99, ..Usage::default() };
            assert!(self.outputs.send(Output::Finish { reason, usage, times: RequestTimes::default() }));
        }

        async fn chunk(&mut self) -> (usize, String) {
            match self.generation.next().await.unwrap().unwrap().event.unwrap() {
                Event::Chunk(chunk) => (chunk.token_ids.len(), chunk.text),
                Event::Finish(finish) => panic!("the end comes too early: {finish:?}"),
            }
        }

        /// The reason, the number of tokens, and what stopped it; nothing comes after it.
        async fn end(&mut self) -> (proto::FinishReason, u32, Option<StoppedBy>) {
            match self.generation.next().await.unwrap().unwrap().event.unwrap() {
                Event::Chunk(chunk) => panic!("not the end: {chunk:?}"),
                Event::Finish(finish) => {
                    assert_eq!(self.ids.abort(&Caller::local(), "client's"), [], "the id is free when the end is sent");
                    assert!(self.generation.next().await.is_none());
                    (finish.reason(), finish.usage.unwrap().completion_tokens, finish.stopped_by)
                }
            }
        }
    }

    #[tokio::test]
    async fn tokens_that_wait_come_in_one_chunk() {
        let mut setup = setup(&[], 0);
        setup.say("abc");
        assert_eq!(setup.chunk().await, (3, "abc".into()));
        setup.say("d");
        setup.finish(FinishReason::Length);
        assert_eq!(setup.chunk().await, (1, "d".into()));
        assert_eq!(setup.end().await, (proto::FinishReason::Length, 4, None));
        drop(setup.generation);
        assert!(setup.commands.is_empty(), "there is nothing to abort");
    }

    #[tokio::test]
    async fn after_a_stop_string_the_core_is_notified_and_later_tokens_are_dropped() {
        let mut setup = setup(&["END"], 0);
        setup.say("abcE");
        assert_eq!(setup.chunk().await, (4, "abc".into()));
        setup.say("NDxyz");
        assert_eq!(setup.chunk().await, (2, String::new()));
        assert!(matches!(setup.commands.try_recv(), Ok(Command::Stop(ID))));
        setup.say("more");
        setup.finish(FinishReason::Length);
        assert_eq!(setup.end().await, (proto::FinishReason::Stop, 6, Some(StoppedBy::StopString("END".into()))));
        assert!(setup.commands.is_empty());
    }

    #[tokio::test]
    async fn a_stop_string_is_sent_to_those_who_ask_for_it() {
        let mut setup = setup(&["END"], 0);
        setup.generation.with_stop = true;
        setup.say("abcENDxyz");
        assert_eq!(setup.chunk().await, (6, "abcEND".into()));
        setup.finish(FinishReason::Length);
        assert_eq!(setup.end().await, (proto::FinishReason::Stop, 6, Some(StoppedBy::StopString("END".into()))));
    }

    #[tokio::test]
    async fn a_stop_string_may_name_a_special_token_that_the_text_leaves_out() {
        const EOS: u32 = 257;
        for (stop, text) in [("<eos>", "done"), ("ne<eos>", "do"), ("ne<eos>\n", "do"), ("eos", "done")] {
            let mut setup = setup(&[stop], 0);
            setup.say("done");
            assert!(setup.outputs.send(Output::Token { token: EOS, logprobs: None }));
            setup.say("\n more");
            let n_tokens = 5 + u32::from(stop.ends_with('\n'));
            assert_eq!(setup.chunk().await, (n_tokens as usize, text.into()), "{stop}");
            assert!(matches!(setup.commands.try_recv(), Ok(Command::Stop(ID))));
            setup.finish(FinishReason::Stop);
            let stopped = Some(StoppedBy::StopString(stop.into()));
            assert_eq!(setup.end().await, (proto::FinishReason::Stop, n_tokens, stopped));
        }
        // An end token that no stop string names is not in the text.
        let mut setup = setup(&["never"], 0);
        setup.say("done");
        assert!(setup.outputs.send(Output::Token { token: EOS, logprobs: None }));
        setup.finish(FinishReason::Stop);
        assert_eq!(setup.chunk().await, (5, "done".into()));
        assert_eq!(setup.end().await.2, Some(StoppedBy::StopTokenId(EOS)));
    }

    #[tokio::test]
    async fn what_was_held_back_comes_at_the_end() {
        let mut setup = setup(&["END"], 0);
        setup.say("abEN");
        setup.finish(FinishReason::Stop);
        assert_eq!(setup.chunk().await, (4, "abEN".into()));
        let last = u32::from(b'N');
        assert_eq!(setup.end().await, (proto::FinishReason::Stop, 4, Some(StoppedBy::StopTokenId(last))));
    }

    #[tokio::test]
    async fn a_full_queue_is_notified_of_the_stop_later() {
        let mut setup = setup(&["b"], 0);
        setup.driver.send(Command::Drain).unwrap();
        setup.say("ab");
        assert_eq!(setup.chunk().await, (2, "a".into()));
        assert!(matches!(setup.commands.try_recv(), Ok(Command::Drain)));
        setup.say("c");
        setup.finish(FinishReason::Stop);
        setup.end().await;
        assert!(matches!(setup.commands.try_recv(), Ok(Command::Stop(ID))));
    }

    #[tokio::test]
    async fn stop_strings_count_from_min_tokens_on() {
        let mut setup = setup(&["a", "bb"], 3);
        setup.say("aabbb");
        assert_eq!(setup.chunk().await, (4, "aa".into()));
        setup.finish(FinishReason::Stop);
        assert_eq!(setup.end().await, (proto::FinishReason::Stop, 4, Some(StoppedBy::StopString("bb".into()))));
    }

    #[tokio::test]
    async fn a_stop_string_counts_where_it_ends() {
        for (min_tokens, n_tokens, text) in [(2, 3, "a"), (3, 3, "a"), (4, 5, "abc"), (5, 5, "abc"), (6, 7, "abcbc")] {
            let mut setup = setup(&["bc"], min_tokens);
            setup.say("abcbcbc");
            assert_eq!(setup.chunk().await, (n_tokens, text.into()), "min_tokens {min_tokens}");
            setup.finish(FinishReason::Length);
            assert_eq!(setup.end().await.2, Some(StoppedBy::StopString("bc".into())));
        }
        let mut setup = setup(&["bc"], 4);
        setup.say("abcd");
        setup.finish(FinishReason::Length);
        assert_eq!(setup.chunk().await, (4, "abcd".into()));
        assert_eq!(setup.end().await, (proto::FinishReason::Length, 4, None));
    }

    #[tokio::test]
    async fn a_stream_dropped_before_its_end_aborts() {
        let setup = setup(&[], 0);
        drop(setup.generation);
        assert!(matches!(setup.commands.try_recv(), Ok(Command::Abort(ids)) if ids == [ID]));
        assert_eq!(setup.ids.abort(&Caller::local(), "client's"), []);
        assert!(setup.outputs.is_closed());
    }

    #[tokio::test]
    async fn output_that_nobody_reads_ends_the_request() {
        let mut setup = setup(&[], 0);
        let mut sent = 0;
        while setup.outputs.send(Output::Token { token: 7, logprobs: None }) {
            sent += 1;
            assert!(sent < 10_000, "10,000 bytes hold fewer tokens");
        }
        assert!(sent > 10 && setup.outputs.is_closed());
        let status = setup.generation.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
        assert!(setup.generation.next().await.is_none());
        drop(setup.generation);
        assert!(matches!(setup.commands.try_recv(), Ok(Command::Abort(ids)) if ids == [ID]));
    }

    #[tokio::test]
    async fn failures_are_statuses() {
        for (reason, code, says) in [
            (FinishReason::Timeout, tonic::Code::DeadlineExceeded, "time was up"),
            (FinishReason::Error, tonic::Code::Internal, "failed on the only worker"),
            (FinishReason::NotFinite, tonic::Code::Internal, "logits for this request are not finite"),
            (FinishReason::Unsupported, tonic::Code::InvalidArgument, "cannot honour the sampling parameters"),
        ] {
            let mut setup = setup(&[], 0);
            setup.finish(reason);
            let status = setup.generation.next().await.unwrap().unwrap_err();
            assert!(status.code() == code && status.message().contains(says), "{status:?}");
            assert!(setup.generation.next().await.is_none());
        }
        let mut setup = setup(&[], 0);
        let (outputs, _) = outbox(Caller::local().call);
        setup.outputs = outputs;
        assert_eq!(setup.generation.next().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(setup.generation.next().await.is_none());
    }
}
