//! Submits checked requests to the core's thread: the part common to all front ends.
//!
//! [`Submitter::submit`] takes a request through these steps and returns once the core has accepted it:
//!
//! 1. `open`: the request gets a number, and the client's id becomes active.
//! 2. `prepare`: the prompt is tokenised and hashed; a long prompt on a blocking thread.
//! 3. `send`: the request goes to the core's thread, followed by an abort received meanwhile.
//! 4. The core accepts or refuses.
//!
//! A [`Submitted`] dropped in between, because the client went away, aborts the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time;
use trunkline_core::{Config, Namespace, Refusal, Request, RequestId};
use trunkline_port::ModelInfo;
use trunkline_text::Tokenizer;

use crate::caller::Caller;
use crate::commands::Command;
use crate::outbox::{OutboxReceiver, outbox};
use crate::queue::{DriverHandle, NotTaken};
use crate::sessions::{self, Session, Sessions};
use crate::validate::{Checked, Invalid, MAX_TOKENS_DEFAULT, Prompt};

/// Prompts above this many bytes are tokenised and hashed on a blocking thread.
pub(crate) const INLINE_BYTES_MAX: usize = 8 << 10;
/// Prompts being tokenised on blocking threads or waiting for one, at most. These prompts are in no queue of the core's, so
/// `max_queue` does not bound the number of waiting prompts.
pub(crate) const TOKENISING_MAX: usize = 64;

/// Reason for not running a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejection {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("a request with request_id '{0}' is still active")]
    StillActive(String),
    #[error("{TOKENISING_MAX} long prompts are being tokenised; try again later")]
    TokenizerBusy,
    #[error("the tokenizer panicked")]
    TokenizerPanicked,
    #[error("time was up before the prompt was tokenised")]
    TimeUp,
    #[error("the command queue is full; try again later")]
    QueueFull,
    #[error(transparent)]
    Refused(Refusal),
    #[error("the server has stopped")]
    Stopped,
    #[error("the operating system has no random bits for a request_id: {0}; send one")]
    NoRandomness(getrandom::Error),
}

impl From<NotTaken> for Rejection {
    fn from(reason: NotTaken) -> Self {
        match reason {
            NotTaken::Full => Self::QueueFull,
            NotTaken::Stopped => Self::Stopped,
        }
    }
}

/// A request sent to the core's thread. Dropping the value before the request's end aborts the request.
pub(crate) struct Submitted {
    id: RequestId,
    /// Empty once the request has ended: from then on the client may use the id again.
    session: Option<Session>,
    driver: DriverHandle,
    outputs: OutboxReceiver,
}

impl Submitted {
    pub(crate) fn new(id: RequestId, session: Session, driver: DriverHandle, outputs: OutboxReceiver) -> Self {
        Self { id, session: Some(session), driver, outputs }
    }

    /// Returns the client's id of the request; empty if the request has ended.
    pub(crate) fn client_id(&self) -> &str {
        self.session.as_ref().map_or("", Session::client_id)
    }

    /// Returns the outbox of the request.
    pub(crate) fn outputs(&self) -> &OutboxReceiver {
        &self.outputs
    }

    /// Sends [`Command::Stop`] for the request; returns `true` if the queue took the command.
    pub(crate) fn stop(&self) -> bool {
        self.driver.send(Command::Stop(self.id)).is_ok()
    }

    /// Notes the end of the request, or a failed beginning: there is nothing to abort.
    pub(crate) fn end(&mut self) {
        self.session = None;
    }

    /// Returns `true` if the request has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.session.is_none()
    }

    /// Returns `true` if the request was aborted by the client's id.
    fn aborted(&self) -> bool {
        self.session.as_ref().is_some_and(Session::aborted)
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.outputs.close();
            self.driver.abort_dropped(self.id);
        }
    }
}

/// Takes requests from front ends to the core's thread.
pub(crate) struct Submitter {
    pub(crate) driver: DriverHandle,
    pub(crate) model: ModelInfo,
    pub(crate) tokenizer: Tokenizer,
    /// Limits of every engine.
    pub(crate) config: Config,
    pub(crate) sessions: Sessions,
    /// One permit for each prompt being tokenised on a blocking thread, or waiting for one.
    pub(crate) tokenising: Arc<Semaphore>,
    next_id: AtomicU64,
}

impl Submitter {
    pub(crate) fn new(driver: DriverHandle, model: ModelInfo, tokenizer: Tokenizer, config: Config) -> Self {
        Self {
            driver,
            model,
            tokenizer,
            config,
            sessions: Sessions::default(),
            tokenising: Arc::new(Semaphore::new(TOKENISING_MAX)),
            next_id: AtomicU64::new(1),
        }
    }

    /// Submits a caller's request with arrival at `arrival_ns` and end at `timeout` later, at the latest; returns the submitted request once
    /// the core has accepted.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        caller: &Caller,
        mut checked: Checked,
        arrival_ns: u64,
        timeout: Option<Duration>,
    ) -> Result<Submitted, Rejection> {
        // A deadline beyond the clock's range is none.
        let deadline_ns = timeout
            .and_then(|timeout| u64::try_from(timeout.as_nanos()).ok())
            .and_then(|timeout_ns| arrival_ns.checked_add(timeout_ns));
        let (id, session) = self.open(caller, std::mem::take(&mut checked.request_id))?;
        let mut request = self.prepare_in_time(id, checked, deadline_ns).await?;
        request.deadline_ns = deadline_ns;
        let (mut submitted, is_accepted) = self.send(caller, request, session)?;
        // If the client goes away while we wait here, `submitted` is dropped and aborts the request.
        match is_accepted.await {
            Ok(Ok(())) => Ok(submitted),
            Ok(Err(refusal)) => {
                submitted.end();
                Err(Rejection::Refused(refusal))
            }
            Err(_) => Err(Rejection::Stopped),
        }
    }

    /// Numbers a request and makes the client's id active. A client without an id gets one.
    fn open(&self, caller: &Caller, client_id: String) -> Result<(RequestId, Session), Rejection> {
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (owner, client_id) = match client_id.is_empty() {
            true => (caller.owner_of_made_id(), sessions::random_id().map_err(Rejection::NoRandomness)?),
            false => (caller.owner.clone(), client_id),
        };
        match self.sessions.open(owner, &client_id, id) {
            Some(session) => Ok((id, session)),
            None => Err(Rejection::StillActive(client_id)),
        }
    }

    /// Tokenises and hashes the prompt, before the deadline.
    async fn prepare_in_time(
        self: &Arc<Self>,
        id: RequestId,
        checked: Checked,
        deadline_ns: Option<u64>,
    ) -> Result<Request, Rejection> {
        let bytes = match &checked.prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(tokens) => size_of_val(tokens.as_slice()),
        };
        if bytes <= INLINE_BYTES_MAX {
            return Ok(self.prepare(id, checked)?);
        }
        let left_ns = deadline_ns.map(|at_ns| at_ns.saturating_sub(self.driver.clock().now_ns()));
        let left = left_ns.map_or(Duration::MAX, Duration::from_nanos);
        time::timeout(left, self.prepare_blocking(id, checked)).await.map_err(|_| Rejection::TimeUp)?
    }

    /// Prepares a long prompt on a blocking thread. Dropping the future takes back a prompt not begun by a thread.
    async fn prepare_blocking(self: &Arc<Self>, id: RequestId, checked: Checked) -> Result<Request, Rejection> {
        let Ok(permit) = self.tokenising.clone().try_acquire_owned() else { return Err(Rejection::TokenizerBusy) };
        let this = self.clone();
        let mut tokenising = JoinSet::new();
        tokenising.spawn_blocking(move || {
            let prepared = this.prepare(id, checked);
            drop(permit);
            prepared
        });
        match tokenising.join_next().await {
            Some(Ok(prepared)) => Ok(prepared?),
            _ => Err(Rejection::TokenizerPanicked),
        }
    }

    /// Tokenises and hashes the prompt.
    fn prepare(&self, id: RequestId, checked: Checked) -> Result<Request, Invalid> {
        let prompt = match checked.prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => self
                .tokenizer
                .encode_with(&text, checked.add_special_tokens)
                .map_err(|err| Invalid(format!("text cannot be tokenised: {err}")))?,
        };
        if prompt.is_empty() {
            return Err(Invalid("text has no tokens; the prompt needs at least one".into()));
        }
        let context = self.config.max_context;
        let n_prompt = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if n_prompt >= context {
            return Err(Invalid(format!(
                "prompt has {n_prompt} tokens; the context of {context} tokens must hold it and at least one more"
            )));
        }
        let max_tokens = checked.max_tokens.unwrap_or_else(|| self.max_tokens_for(n_prompt));
        let (model, kv_dtype) = (&self.model.name, &self.model.kv_dtype);
        let namespace = Namespace { model, kv_dtype, salt: &checked.cache_salt };
        let mut request = Request::new(id, namespace.root(), prompt, max_tokens);
        request.min_tokens = checked.min_tokens;
        request.stop_token_ids = checked.stop_token_ids;
        request.tenant = checked.tenant;
        request.priority = checked.priority;
        request.sampling = checked.sampling;
        request.hash_prompt(self.config.block_size);
        Ok(request)
    }

    /// Returns the bound on generated tokens for a request without one: the default, or as many as fit.
    fn max_tokens_for(&self, n_prompt: u32) -> u32 {
        // The last token needs no KV.
        let device = u64::from(self.config.device_blocks) * u64::from(self.config.block_size) + 1;
        let fits = u64::from(self.config.max_context).min(device).saturating_sub(n_prompt.into());
        // If not even one token fits, the core refuses the request.
        MAX_TOKENS_DEFAULT.min(u32::try_from(fits).unwrap_or(u32::MAX)).max(1)
    }

    /// Sends a request to the core's thread, followed by an abort if the client sent one while the prompt was tokenised.
    fn send(
        &self,
        caller: &Caller,
        request: Request,
        session: Session,
    ) -> Result<(Submitted, oneshot::Receiver<Result<(), Refusal>>), Rejection> {
        let id = request.id;
        let (sender, outputs) = outbox(caller.call.clone());
        let mut submitted = Submitted::new(id, session, self.driver.clone(), outputs);
        let (accepted, is_accepted) = oneshot::channel();
        if let Err(reason) = self.driver.send(Command::Submit { request: Box::new(request), outputs: sender, accepted })
        {
            submitted.end();
            return Err(reason.into());
        }
        // An abort while the prompt was tokenised came to the core before the request did.
        if submitted.aborted() {
            // On an error `submitted` is dropped, which aborts the request whether the queue is full or not.
            self.driver.send(Command::Abort(vec![id]))?;
        }
        Ok((submitted, is_accepted))
    }
}
