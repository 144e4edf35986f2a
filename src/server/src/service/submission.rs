//! Submits checked requests to the core's thread: the part common to all front ends.
//!
//! [`Submitter::submit`] takes a request through these steps and returns once the core has accepted it:
//!
//! 1. `open`: the request gets a number, and the client's id becomes active.
//! 2. `prepare` (`prompt`): the prompt is tokenised and hashed; a long text part by part on blocking threads.
//! 3. `send`: the request goes to the core's thread, followed by an abort received meanwhile.
//! 4. The core accepts or refuses.
//!
//! A [`Submitted`] dropped in between, because the client went away, aborts the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use trunkline_cluster::{EngineConfig, ListenToCaches};
use trunkline_core::h2o::Mode;
use trunkline_core::{Config, Keeps, Refusal, Request, RequestId, Reuse, Token, Usage};
use trunkline_grammar::Grammars;
use trunkline_port::{LayerGroup, ModelInfo};
use trunkline_quote::quoted;
use trunkline_text::{PROMPT_END, Tokenizer};

mod prompt;
mod tokenising;

#[cfg(test)]
pub(crate) use self::prompt::PART_BYTES;
#[cfg(test)]
pub(crate) use self::tokenising::TEXT_KIB_MAX;
pub(crate) use self::tokenising::Tokenising;
use crate::access::caller::Caller;
use crate::driver::commands::Command;
use crate::driver::queue::{DriverHandle, NotTaken};
use crate::network::refusals::Reason;
use crate::network::shares::{Share, Shares};
use crate::requests::outbox::{OutboxReceiver, outbox};
use crate::requests::request_events::{Ending, Engines, Label, RequestEvent};
use crate::requests::request_log::RequestLog;
use crate::requests::request_times::RequestTimes;
use crate::service::offer::SamplingOffer;
use crate::service::request_ids::{self, ActiveId, RequestIds};
use crate::service::structure::{Compiler, StructureFault};
use crate::service::validate::{self, Checked, Invalid};

/// Reason for not running a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejection {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("{0}")]
    PromptTooLong(String),
    #[error("a request with request_id {} is still active", quoted(.0))]
    StillActive(String),
    #[error("too much text is being tokenised; try again later, or send less text or token_ids")]
    TokenizerBusy,
    #[error("{0}")]
    TokenizerFailed(String),
    #[error("the library of grammars failed on the structure of the answer")]
    GrammarFailed,
    #[error("time was up before the prompt was tokenised")]
    TimeUp,
    #[error("the command queue is full; try again later")]
    QueueFull,
    #[error("this client has {0} requests that wait for their first token, which is the limit; try again later")]
    ShareFull(u32),
    #[error("this client has {0} open requests, which is the limit; try again later")]
    TooManyOpen(u32),
    #[error(transparent)]
    Refused(Refusal),
    #[error("the server has stopped")]
    Stopped,
    #[error("the operating system has no random bits for a request_id: {0}; send one")]
    NoRandomness(getrandom::Error),
}

impl Rejection {
    /// Returns `true` if the same request may be accepted a moment later: there are too many others now.
    pub(crate) fn is_overload(&self) -> bool {
        match self {
            Self::TokenizerBusy | Self::QueueFull | Self::ShareFull(_) | Self::TooManyOpen(_) => true,
            Self::Refused(refusal) => matches!(refusal, Refusal::QueueFull { .. } | Refusal::QueueTokensFull { .. }),
            _ => false,
        }
    }

    /// Returns the code of the call's status.
    pub(crate) fn code(&self) -> tonic::Code {
        use tonic::Code;
        match self {
            Self::Invalid(_) | Self::PromptTooLong(_) => Code::InvalidArgument,
            Self::StillActive(_) => Code::AlreadyExists,
            Self::TokenizerBusy | Self::QueueFull | Self::ShareFull(_) | Self::TooManyOpen(_) => {
                Code::ResourceExhausted
            }
            Self::TokenizerFailed(_) | Self::GrammarFailed => Code::Internal,
            Self::NoRandomness(_) | Self::Stopped => Code::Unavailable,
            Self::TimeUp => Code::DeadlineExceeded,
            Self::Refused(refusal) => match refusal {
                Refusal::EmptyPrompt
                | Refusal::NoTokensAsked
                | Refusal::ContextTooLong { .. }
                | Refusal::NeverFits { .. }
                | Refusal::ReservedId
                | Refusal::Retention(_) => Code::InvalidArgument,
                Refusal::QueueFull { .. } | Refusal::QueueTokensFull { .. } | Refusal::PrefetchesFull { .. } => {
                    Code::ResourceExhausted
                }
                Refusal::Draining | Refusal::NoEngine => Code::Unavailable,
                Refusal::DuplicateId => Code::AlreadyExists,
            },
        }
    }

    /// Returns the reason under which the rejection is counted.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Invalid(_) => Reason::Invalid,
            Self::PromptTooLong(_) => Reason::ContextTooLong,
            Self::StillActive(_) => Reason::DuplicateId,
            Self::TokenizerBusy => Reason::TokenizerBusy,
            Self::TokenizerFailed(_) | Self::GrammarFailed | Self::NoRandomness(_) => Reason::Internal,
            Self::TimeUp => Reason::Deadline,
            Self::QueueFull => Reason::CommandQueueFull,
            Self::ShareFull(_) => Reason::ClientQueueLimit,
            Self::TooManyOpen(_) => Reason::ClientRequestLimit,
            Self::Stopped => Reason::Draining,
            Self::Refused(refusal) => match refusal {
                Refusal::EmptyPrompt | Refusal::NoTokensAsked | Refusal::ReservedId | Refusal::Retention(_) => {
                    Reason::Invalid
                }
                Refusal::ContextTooLong { .. } => Reason::ContextTooLong,
                Refusal::NeverFits { .. } => Reason::NeverFits,
                Refusal::QueueFull { .. } | Refusal::PrefetchesFull { .. } => Reason::QueueFull,
                Refusal::QueueTokensFull { .. } => Reason::QueuedTokensFull,
                Refusal::Draining => Reason::Draining,
                Refusal::NoEngine => Reason::NoWorker,
                Refusal::DuplicateId => Reason::DuplicateId,
            },
        }
    }
}

impl From<Rejection> for tonic::Status {
    fn from(rejection: Rejection) -> Self {
        Self::new(rejection.code(), rejection.to_string())
    }
}

impl From<StructureFault> for Rejection {
    fn from(fault: StructureFault) -> Self {
        match fault {
            StructureFault::Refused(line) => Self::Invalid(Invalid(line)),
            StructureFault::Failed => Self::GrammarFailed,
        }
    }
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
    active: Option<ActiveId>,
    driver: DriverHandle,
    outputs: OutboxReceiver,
    /// Last tokens of the prompt, behind which the text goes on.
    prompt_end: Vec<Token>,
    prompt_tokens: u32,
}

impl Submitted {
    pub(crate) fn new(id: RequestId, active: ActiveId, driver: DriverHandle, outputs: OutboxReceiver) -> Self {
        Self { id, active: Some(active), driver, outputs, prompt_end: Vec::new(), prompt_tokens: 0 }
    }

    /// Returns the core's number of the request.
    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the last tokens of the prompt, as many as say how the text behind them begins.
    pub(crate) fn prompt_end(&self) -> &[Token] {
        &self.prompt_end
    }

    /// Returns the number of tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Returns the client's id of the request; empty if the request has ended.
    pub(crate) fn client_id(&self) -> &str {
        self.active.as_ref().map_or("", ActiveId::client_id)
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
        self.active = None;
    }

    /// Returns `true` if the request has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.active.is_none()
    }

    /// Returns `true` if the request was aborted by the client's id.
    fn aborted(&self) -> bool {
        self.active.as_ref().is_some_and(ActiveId::aborted)
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
    /// Sampling that the workers of all engines can do.
    pub(crate) offer: SamplingOffer,
    pub(crate) ids: RequestIds,
    /// Requests of each client on the way to their first token.
    on_the_way: Shares,
    /// Open requests of each client.
    open: Shares,
    /// Room for texts being tokenised.
    pub(crate) tokenising: Tokenising,
    /// Compiles the structures of answers.
    pub(super) compiler: Compiler,
    /// Types of KV by class of the engines, and what the types and the shape of KV make of cached blocks.
    kv: Vec<KvClass>,
    /// `true` if tenants share cached blocks unless a request asks otherwise.
    share_cache: bool,
    /// `true` once a tenant shared cached blocks with others.
    tenants_share: AtomicBool,
    next_id: AtomicU64,
    request_log: Option<RequestLog>,
    /// Follows the caches, and learns the names of namespaces.
    listener: Option<ListenToCaches>,
}

impl Submitter {
    pub(crate) fn new(driver: DriverHandle, model: ModelInfo, tokenizer: Tokenizer, config: Config) -> Self {
        Self {
            driver,
            compiler: Compiler::new(&model, &tokenizer),
            tokenizer,
            on_the_way: Shares::new(u32::MAX),
            open: Shares::new(u32::MAX),
            offer: SamplingOffer::default(),
            ids: RequestIds::default(),
            tokenising: Tokenising::default(),
            kv: vec![KvClass::of(&model, sequence_tokens(&config))],
            config,
            model,
            share_cache: false,
            tenants_share: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            request_log: None,
            listener: None,
        }
    }

    /// Has the followers of the caches learn the names of namespaces.
    pub(crate) fn naming(self, listener: Option<ListenToCaches>) -> Self {
        Self { listener, ..self }
    }

    /// Lets tenants share cached blocks unless a request asks otherwise.
    pub(crate) fn share_cache(mut self, share_cache: bool) -> Self {
        self.share_cache = share_cache;
        self
    }

    /// Adds the events of refused requests to a log.
    pub(crate) fn logging(mut self, log: RequestLog) -> Self {
        self.request_log = Some(log);
        self
    }

    /// Adds a refused request to the log of requests.
    pub(crate) fn note_refused(&self, label: Label, arrival_ns: u64, reason: Reason, code: tonic::Code) {
        let Some(log) = &self.request_log else { return };
        log.note(|| RequestEvent {
            label,
            number: None,
            ending: Ending::Refused(reason, code),
            engines: Engines::default(),
            times: RequestTimes::new(arrival_ns, 0),
            end_ns: self.driver.clock().now_ns(),
            usage: Usage::default(),
        });
    }

    /// Sets the classes of KV.
    pub(crate) fn with_kv(mut self, kv: Vec<KvClass>) -> Self {
        self.kv = kv;
        self
    }

    /// Returns the type of the KV of a class of engines.
    pub(crate) fn kv_dtype(&self, class: u8) -> &str {
        self.kv.get(usize::from(class)).map_or("", |kv| &kv.dtype)
    }

    /// Bounds sampling by the abilities of the workers.
    pub(crate) fn offering(mut self, offer: SamplingOffer) -> Self {
        self.offer = offer;
        self
    }

    /// Returns `true` if the workers can do structured output.
    pub(crate) fn has_grammars(&self) -> bool {
        self.offer.grammars && Grammars::ARE_SUPPORTED
    }

    /// Compares a request with what the server offers: no accepted field is without effect.
    ///
    /// # Errors
    /// If the workers cannot do what a field asks for, or the server was not started for it.
    pub(crate) fn check_offer(&self, checked: &Checked) -> Result<(), Invalid> {
        self.offer.check(&checked.request.sampling, checked.request.h2o)?;
        self.offer.check_prompt(checked.request.prompt_logprobs)?;
        let Config { worker, h2o, .. } = &self.config;
        if checked.request.reuse == Some(Reuse::Anywhere) && worker.reuse.anywhere == 0 {
            return Err(Invalid("reuse is 'anywhere'; this server was started without --reuse-anywhere".into()));
        }
        // A server with a mode of its own said at the start if its model drops nothing.
        let drops = h2o.mode != Mode::Off || worker.groups.contains(&Keeps::Scored);
        if let Some(mode) = checked.request.h2o.filter(|mode| *mode != Mode::Off && !drops) {
            return Err(Invalid(format!("h2o is {}; this server was started without --h2o", quoted(mode.name()))));
        }
        Ok(())
    }

    /// Bounds the requests of one client: those on the way to their first token, and all that are open.
    pub(crate) fn per_client(mut self, on_the_way: u32, open: u32) -> Self {
        (self.on_the_way, self.open) = (Shares::new(on_the_way), Shares::new(open));
        self
    }

    /// Submits a caller's request with arrival at `arrival_ns` and end at `timeout` later, at the latest; returns the submitted request once
    /// the core has accepted.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        caller: &Caller,
        checked: Checked,
        arrival_ns: u64,
        timeout: Option<Duration>,
    ) -> Result<Submitted, Rejection> {
        let parent = caller.parent;
        let label = Label { id: checked.request_id.clone(), tenant: checked.tenant_name.clone(), parent };
        let submitted = self.submit_unlogged(caller, checked, arrival_ns, timeout).await;
        submitted.inspect_err(|rejection| {
            self.note_refused(label, arrival_ns, rejection.reason(), rejection.code());
        })
    }

    async fn submit_unlogged(
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
        let client = caller.client();
        if checked.request.tenant == 0 {
            checked.request.tenant = validate::client_number(&client);
        }
        let open = self.open.enter(client.clone()).ok_or_else(|| Rejection::TooManyOpen(self.open.most()))?;
        let on_the_way =
            self.on_the_way.enter(client.clone()).ok_or_else(|| Rejection::ShareFull(self.on_the_way.most()))?;
        let shares = (on_the_way, open);
        let (id, active) = self.open(caller, std::mem::take(&mut checked.request_id), deadline_ns).await?;
        let parent = caller.parent;
        let label = Label { id: active.client_id().into(), tenant: checked.tenant_name.clone(), parent };
        let mut request = self.prepare_in_time(id, &client, checked, deadline_ns).await?;
        request.deadline_ns = deadline_ns;
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let prompt_end = request.prompt[request.prompt.len().saturating_sub(PROMPT_END)..].to_vec();
        let (mut submitted, is_accepted) = self.send(caller, request, (arrival_ns, label), (active, shares))?;
        (submitted.prompt_end, submitted.prompt_tokens) = (prompt_end, prompt_tokens);
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
    async fn open(
        &self,
        caller: &Caller,
        client_id: String,
        deadline_ns: Option<u64>,
    ) -> Result<(RequestId, ActiveId), Rejection> {
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (owner, client_id) = match client_id.is_empty() {
            true => (caller.owner_of_made_id(), request_ids::random_id().map_err(Rejection::NoRandomness)?),
            false => (caller.owner.clone(), client_id),
        };
        let left = deadline_ns.map(|at_ns| at_ns.saturating_sub(self.driver.clock().now_ns()));
        let patience = caller.call.connection().network().limits.cancelled;
        let patience = patience.min(left.map_or(Duration::MAX, Duration::from_nanos));
        match self.ids.open_soon(owner, &client_id, id, patience).await {
            Some(active) => Ok((id, active)),
            None => Err(Rejection::StillActive(client_id)),
        }
    }

    /// Sends a request to the core's thread, followed by an abort if the client sent one while the prompt was tokenised.
    fn send(
        &self,
        caller: &Caller,
        request: Request,
        (arrival_ns, label): (u64, Label),
        (active, (on_the_way, open)): (ActiveId, (Share, Share)),
    ) -> Result<(Submitted, oneshot::Receiver<Result<(), Refusal>>), Rejection> {
        let id = request.id;
        let (sender, outputs) = outbox(caller.call.clone());
        sender.keep(on_the_way, open);
        let mut submitted = Submitted::new(id, active, self.driver.clone(), outputs);
        let (accepted, is_accepted) = oneshot::channel();
        let submit = Command::Submit { request: Box::new(request), arrival_ns, label, outputs: sender, accepted };
        if let Err(reason) = self.driver.send(submit) {
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

/// KV of one class of engines.
#[derive(Debug)]
pub(crate) struct KvClass {
    /// Type of the elements.
    dtype: String,
    /// Type and shape: blocks of another layout are cached apart.
    layout: String,
    /// Tokens of the longest prompt with its answer that every engine of the class can run.
    sequence_tokens: u32,
}

impl KvClass {
    fn of(model: &ModelInfo, sequence_tokens: u32) -> Self {
        Self { dtype: model.kv_dtype.clone(), layout: kv_layout(model), sequence_tokens }
    }

    /// Returns the classes of engines, by number; `models` holds the model as the engines of each class have it.
    pub(crate) fn all<'a>(models: impl Iterator<Item = &'a ModelInfo>, engines: &[EngineConfig]) -> Vec<Self> {
        let class = |(class, model)| {
            let engines = engines.iter().filter(|engine| usize::from(engine.kv_class) == class);
            Self::of(model, engines.map(|engine| sequence_tokens(&engine.core)).min().unwrap_or(0))
        };
        models.enumerate().map(class).collect()
    }
}

/// Returns the tokens of the longest prompt with its answer on an engine: those of the context, or of the device if that holds fewer.
fn sequence_tokens(config: &Config) -> u32 {
    // The last token needs no KV.
    let device = u64::from(config.device_blocks) * u64::from(config.block_size) + 1;
    u32::try_from(device).unwrap_or(u32::MAX).min(config.max_context)
}

/// Returns what makes the bytes of cached blocks differ for one model: the type and shape of KV, and the layer groups.
fn kv_layout(model: &ModelInfo) -> String {
    let ModelInfo { kv_dtype, n_layers, n_kv_heads, head_dim, groups, .. } = model;
    let group = |group: &LayerGroup| {
        let (unit, members) = if group.heads.is_empty() { ("", &group.layers) } else { ("heads ", &group.heads) };
        format!(" {:?} {unit}{members:?}", group.keeps)
    };
    let groups: String = groups.iter().map(group).collect();
    format!("{kv_dtype} {n_layers}x{n_kv_heads}x{head_dim}{groups}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_sequence_fits_on_each_engine_of_its_kv_class() {
        let engine = |kv_class, device_blocks| EngineConfig {
            core: Config { device_blocks, block_size: 16, max_context: 4096, ..Config::default() },
            role: Default::default(),
            kv_class,
        };
        let engines = [engine(0, 64), engine(1, 128), engine(1, 8), engine(2, 1 << 20)];
        let models = [ModelInfo::default(), ModelInfo::default(), ModelInfo::default()];
        let tokens: Vec<_> = KvClass::all(models.iter(), &engines).iter().map(|kv| kv.sequence_tokens).collect();
        assert_eq!(tokens, [1025, 129, 4096]);
    }

    #[test]
    fn blocks_are_cached_apart_for_other_types_shapes_and_groups_of_layers() {
        let plain =
            ModelInfo { kv_dtype: "bf16".into(), n_layers: 2, n_kv_heads: 3, head_dim: 64, ..ModelInfo::default() };
        // Disks hold blocks under this: a change makes them unreadable.
        assert_eq!(kv_layout(&plain), "bf16 2x3x64");
        let group = |keeps, layers: &[u32]| LayerGroup { layers: layers.to_vec(), keeps, ..LayerGroup::default() };
        let of = |groups: Vec<LayerGroup>| kv_layout(&ModelInfo { groups, ..plain.clone() });
        let first = of(vec![group(Keeps::All, &[0]), group(Keeps::Window(8), &[1])]);
        assert_eq!(first, "bf16 2x3x64 All [0] Window(8) [1]");
        let others = [
            of(vec![group(Keeps::All, &[1]), group(Keeps::Window(8), &[0])]),
            of(vec![group(Keeps::All, &[0]), group(Keeps::Window(9), &[1])]),
            of(vec![group(Keeps::All, &[0]), group(Keeps::Scored, &[1])]),
            kv_layout(&plain),
        ];
        assert!(!others.contains(&first), "{first}");
    }
}
