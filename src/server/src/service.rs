//! The gRPC service: from messages to commands for the core's thread, and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time;
use tonic::{Request, Response, Status};
use trunkline_core::{Config, Namespace, Refusal, RequestId};
use trunkline_port::ModelInfo;
use trunkline_text::Tokenizer;

use crate::commands::{Command, DriverHandle, NotTaken};
use crate::proto;
use crate::proto::inference_server::Inference;
use crate::sessions::Sessions;
use crate::stream::Generation;
use crate::validate::{self, Checked, Invalid, MAX_TOKENS_DEFAULT, Prompt};

/// Prompts above this many bytes are tokenised and hashed on a thread that may block.
const INLINE_BYTES_MAX: usize = 8 << 10;
/// Prompts that are tokenised on such threads or wait for one, at most. What waits there is in no queue of the core's, so
/// `max_queue` does not bound it.
const TOKENISING_MAX: usize = 64;
/// Ids in one call of Abort, at most.
const ABORT_IDS_MAX: usize = 1 << 16;

/// The service.
pub(crate) struct InferenceService {
    shared: Arc<Shared>,
}

struct Shared {
    driver: DriverHandle,
    model: ModelInfo,
    tokenizer: Tokenizer,
    config: Config,
    sessions: Sessions,
    /// One permit for each prompt that is tokenised on a thread that may block, or waits for one.
    tokenising: Arc<Semaphore>,
    next_id: AtomicU64,
    /// Sets the ids that this server makes apart from those of its predecessors.
    instance: u32,
}

impl InferenceService {
    pub(crate) fn new(driver: DriverHandle, model: ModelInfo, tokenizer: Tokenizer, config: Config) -> Self {
        let shared = Shared {
            driver,
            model,
            tokenizer,
            config,
            sessions: Sessions::default(),
            tokenising: Arc::new(Semaphore::new(TOKENISING_MAX)),
            next_id: AtomicU64::new(1),
            instance: validate::any_seed() as u32,
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Shared {
    /// Tokenises and hashes the prompt.
    fn prepare(&self, id: RequestId, checked: &mut Checked) -> Result<trunkline_core::Request, Invalid> {
        let prompt = match std::mem::replace(&mut checked.prompt, Prompt::Tokens(Vec::new())) {
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
        let max_tokens = checked.max_tokens.unwrap_or_else(|| {
            // The last token needs no KV.
            let device = u64::from(self.config.device_blocks) * u64::from(self.config.block_size) + 1;
            let room = u64::from(context).min(device).saturating_sub(n_prompt.into());
            // If there is no room at all the core says so.
            MAX_TOKENS_DEFAULT.min(u32::try_from(room).unwrap_or(u32::MAX)).max(1)
        });
        let namespace =
            Namespace { model: &self.model.name, kv_dtype: &self.model.kv_dtype, salt: &checked.cache_salt };
        let mut request = trunkline_core::Request::new(id, namespace.root(), prompt, max_tokens);
        request.min_tokens = checked.min_tokens;
        request.stop_token_ids = std::mem::take(&mut checked.stop_token_ids);
        request.tenant = checked.tenant;
        request.priority = checked.priority;
        request.sampling = checked.sampling;
        request.hash_prompt(self.config.block_size);
        Ok(request)
    }

    /// Prepares a long prompt on a thread that may block. Dropping the future takes back what no thread has begun.
    async fn prepare_blocking(
        self: &Arc<Self>,
        id: RequestId,
        mut checked: Checked,
    ) -> Result<(trunkline_core::Request, Checked), Status> {
        let Ok(permit) = self.tokenising.clone().try_acquire_owned() else {
            let message = format!("{TOKENISING_MAX} long prompts are being tokenised; try again later");
            return Err(Status::resource_exhausted(message));
        };
        let shared = self.clone();
        let mut tokenising = JoinSet::new();
        tokenising.spawn_blocking(move || {
            let prepared = shared.prepare(id, &mut checked).map(|request| (request, checked));
            drop(permit);
            prepared
        });
        match tokenising.join_next().await {
            Some(Ok(prepared)) => Ok(prepared?),
            _ => Err(Status::internal("the tokenizer panicked")),
        }
    }
}

fn not_taken(reason: NotTaken) -> Status {
    match reason {
        NotTaken::Full => Status::resource_exhausted("the command queue is full; try again later"),
        NotTaken::Stopped => stopped(),
    }
}

fn stopped() -> Status {
    Status::unavailable("the server has stopped")
}

fn refused(refusal: Refusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        Refusal::EmptyPrompt | Refusal::NoTokensAsked | Refusal::ContextTooLong { .. } | Refusal::NeverFits { .. } => {
            Status::invalid_argument(message)
        }
        Refusal::QueueFull { .. } | Refusal::QueueTokensFull { .. } => Status::resource_exhausted(message),
        Refusal::Draining | Refusal::NoEngine => Status::unavailable(message),
        Refusal::DuplicateId => Status::already_exists(message),
    }
}

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = Generation;

    async fn generate(&self, request: Request<proto::GenerateRequest>) -> Result<Response<Generation>, Status> {
        let shared = &self.shared;
        let arrival_ns = shared.driver.clock().now_ns();
        let header = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
        let call_timeout = header.and_then(validate::grpc_timeout);
        let model = &shared.model;
        let mut checked = validate::check(request.into_inner(), model.vocab_size, &model.eos_token_ids)?;

        // A deadline beyond the clock's range is none.
        let timeout = [call_timeout, checked.timeout].into_iter().flatten().min();
        let deadline_ns = timeout
            .and_then(|timeout| u64::try_from(timeout.as_nanos()).ok())
            .and_then(|timeout_ns| arrival_ns.checked_add(timeout_ns));

        let id = RequestId(shared.next_id.fetch_add(1, Ordering::Relaxed));
        if checked.request_id.is_empty() {
            checked.request_id = format!("{:08x}-{id}", shared.instance);
        }
        let Some(session) = shared.sessions.open(&checked.request_id, id) else {
            let message = format!("a request with request_id '{}' is still active", checked.request_id);
            return Err(Status::already_exists(message));
        };

        let bytes = match &checked.prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(tokens) => size_of_val(tokens.as_slice()),
        };
        let (mut request, checked) = if bytes <= INLINE_BYTES_MAX {
            (shared.prepare(id, &mut checked)?, checked)
        } else {
            let left_ns = deadline_ns.map(|at_ns| at_ns.saturating_sub(shared.driver.clock().now_ns()));
            let left = left_ns.map_or(Duration::MAX, Duration::from_nanos);
            time::timeout(left, shared.prepare_blocking(id, checked))
                .await
                .map_err(|_| Status::deadline_exceeded("time was up before the prompt was tokenised"))??
        };
        request.deadline_ns = deadline_ns;

        // The channel holds all that the request can ever be told, max_tokens and the end, so that the core's thread never
        // waits for a client. It takes memory only as it fills.
        let (sender, outputs) = mpsc::channel(request.max_tokens as usize + 2);
        let detokenizer = shared.tokenizer.detokenizer(checked.skip_special_tokens);
        let driver = shared.driver.clone();
        let generation = Generation::new(id, session, driver, outputs, detokenizer, checked.stop, checked.min_tokens);
        let (accepted, is_accepted) = oneshot::channel();
        let submit = Command::Submit { request: Box::new(request), outputs: sender, accepted };
        if let Err(reason) = shared.driver.send(submit) {
            generation.refused();
            return Err(not_taken(reason));
        }
        // An abort while the prompt was tokenised came to the core before the request did.
        if generation.aborted()
            && let Err(reason) = shared.driver.send(Command::Abort(vec![id]))
        {
            // Dropping the generation aborts the request, room in the queue or not.
            return Err(not_taken(reason));
        }
        // If the client goes away while we wait here, the generation is dropped and aborts the request.
        match is_accepted.await {
            Ok(Ok(())) => Ok(Response::new(generation)),
            Ok(Err(refusal)) => {
                generation.refused();
                Err(refused(refusal))
            }
            Err(_) => Err(stopped()),
        }
    }

    async fn abort(&self, request: Request<proto::AbortRequest>) -> Result<Response<proto::AbortResponse>, Status> {
        let ids = request.into_inner().request_ids;
        if ids.len() > ABORT_IDS_MAX {
            return Err(Status::invalid_argument(format!(
                "request_ids has {} ids; at most {ABORT_IDS_MAX} are allowed",
                ids.len()
            )));
        }
        let found: Vec<RequestId> = ids.iter().filter_map(|id| self.shared.sessions.abort(id)).collect();
        let n_found = found.len() as u32;
        if n_found > 0 {
            self.shared.driver.send(Command::Abort(found)).map_err(not_taken)?;
        }
        Ok(Response::new(proto::AbortResponse { found: n_found }))
    }

    async fn get_model_info(
        &self,
        _request: Request<proto::GetModelInfoRequest>,
    ) -> Result<Response<proto::GetModelInfoResponse>, Status> {
        let model = &self.shared.model;
        Ok(Response::new(proto::GetModelInfoResponse {
            name: model.name.clone(),
            vocab_size: model.vocab_size,
            max_context: self.shared.config.max_context,
            eos_token_ids: model.eos_token_ids.clone(),
            n_layers: model.n_layers,
            hidden_size: model.hidden_size,
            n_heads: model.n_heads,
            n_kv_heads: model.n_kv_heads,
            head_dim: model.head_dim,
            kv_bytes_per_token: model.kv_bytes_per_token,
        }))
    }

    async fn get_server_info(
        &self,
        _request: Request<proto::GetServerInfoRequest>,
    ) -> Result<Response<proto::GetServerInfoResponse>, Status> {
        let (reply, snapshot) = oneshot::channel();
        self.shared.driver.send(Command::Snapshot(reply)).map_err(not_taken)?;
        let snapshot = snapshot.await.map_err(|_| stopped())?;
        let stats = snapshot.stats;
        let config = &self.shared.config;
        Ok(Response::new(proto::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.shared.driver.clock().now_ns() as f64 * 1e-9,
            draining: snapshot.draining,
            digest: format!("{:016x}", snapshot.digest),
            limits: Some(proto::Limits {
                block_size: config.block_size,
                device_blocks: config.device_blocks,
                max_batch_tokens: config.max_batch_tokens,
                max_batch_size: config.max_batch_size,
                max_queue: config.max_queue,
                max_context: config.max_context,
                policy: config.policy.clone(),
                eviction: config.eviction.clone(),
            }),
            load: Some(proto::Load { waiting: stats.waiting, running: stats.running }),
            blocks: Some(proto::Blocks {
                free: stats.free_blocks,
                idle: stats.idle_blocks,
                held: stats.held_blocks,
                private: stats.private_blocks,
            }),
            counters: Some(proto::Counters {
                steps: stats.steps,
                accepted: stats.accepted,
                refused: stats.refused,
                finished: stats.finished,
                prompt_tokens: stats.prompt_tokens,
                cached_tokens: stats.cached_tokens,
                generated_tokens: stats.generated_tokens,
                preemptions: stats.preemptions,
                published_blocks: stats.published_blocks,
                merged_blocks: stats.merged_blocks,
                evicted_blocks: stats.evicted_blocks,
                drafted_tokens: snapshot.drafts.drafted,
                accepted_drafts: snapshot.drafts.accepted,
            }),
        }))
    }

    async fn flush_cache(
        &self,
        _request: Request<proto::FlushCacheRequest>,
    ) -> Result<Response<proto::FlushCacheResponse>, Status> {
        let (reply, blocks) = oneshot::channel();
        self.shared.driver.send(Command::FlushCache(reply)).map_err(not_taken)?;
        let dropped_blocks = blocks.await.map_err(|_| stopped())?;
        Ok(Response::new(proto::FlushCacheResponse { dropped_blocks }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use crossbeam_channel::Receiver;
    use tokio::task::JoinHandle;
    use tonic::Code;

    use super::*;
    use crate::commands::queue;

    /// A service whose core nobody runs.
    struct Gated {
        service: Arc<InferenceService>,
        commands: Receiver<Command>,
    }

    /// Runs a test in which no long prompt is tokenised before the gate is dropped: tokio's one blocking thread is behind it.
    fn gated<F: Future<Output = ()>>(test: impl FnOnce(Gated, Sender<()>) -> F) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(1).build().unwrap();
        let (driver, commands) = queue(8);
        let model = ModelInfo { vocab_size: 258, ..ModelInfo::default() };
        let tokenizer = Tokenizer::bytes();
        let config = Config { max_context: 1 << 20, ..Config::default() };
        let service = Arc::new(InferenceService::new(driver, model, tokenizer, config));
        let (gate, opened) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || opened.recv());
        runtime.block_on(test(Gated { service, commands }, gate));
    }

    impl Gated {
        /// Sends a request with a prompt too long to be tokenised at once, and lets it get as far as it can.
        async fn generate(
            &self,
            request_id: &str,
            timeout_ms: u32,
        ) -> JoinHandle<Result<Response<Generation>, Status>> {
            let prompt = Some(proto::generate_request::Prompt::Text("x".repeat(INLINE_BYTES_MAX + 1)));
            let request_id = request_id.into();
            let request = proto::GenerateRequest { request_id, prompt, timeout_ms, ..Default::default() };
            let service = self.service.clone();
            let running = tokio::spawn(async move { service.generate(Request::new(request)).await });
            tokio::task::yield_now().await;
            running
        }

        async fn abort(&self, request_id: &str) -> u32 {
            let request = proto::AbortRequest { request_ids: vec![request_id.into()] };
            self.service.abort(Request::new(request)).await.unwrap().into_inner().found
        }

        /// The next command, once it is there.
        async fn command(&self) -> Command {
            loop {
                match self.commands.try_recv() {
                    Ok(command) => return command,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        }
    }

    #[test]
    fn an_abort_while_the_prompt_is_tokenised_comes_behind_the_submission() {
        gated(|test, gate| async move {
            let running = test.generate("a", 0).await;
            assert_eq!((test.abort("a").await, test.abort("b").await), (1, 0));
            assert!(matches!(test.command().await, Command::Abort(_)), "of no use to a core without the request");
            drop(gate);
            let Command::Submit { request, outputs: _outputs, accepted } = test.command().await else {
                panic!("not submitted")
            };
            assert!(matches!(test.command().await, Command::Abort(ids) if ids == [request.id]));
            accepted.send(Ok(())).unwrap();
            assert!(running.await.unwrap().is_ok());
        });
    }

    #[test]
    fn the_core_is_told_the_tenant() {
        gated(|test, _gate| async move {
            let prompt = Some(proto::generate_request::Prompt::Text("x".into()));
            let tenant = "acme".to_owned();
            let request = proto::GenerateRequest { prompt, tenant, ..Default::default() };
            let service = test.service.clone();
            let _running = tokio::spawn(async move { service.generate(Request::new(request)).await.map(drop) });
            let Command::Submit { request, .. } = test.command().await else { panic!("not submitted") };
            assert_eq!(request.tenant, validate::tenant_number("acme", ""));
        });
    }

    #[test]
    fn a_deadline_does_not_wait_for_the_tokenizer() {
        gated(|test, gate| async move {
            let status = test.generate("a", 1).await.await.unwrap().err().unwrap();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            assert_eq!(test.abort("a").await, 0, "the id is free again");
            drop(gate);
        });
    }

    #[test]
    fn no_more_than_so_many_prompts_wait_for_the_tokenizer() {
        gated(|test, gate| async move {
            let mut waiting = Vec::new();
            for i in 0..TOKENISING_MAX {
                waiting.push(test.generate(&i.to_string(), 0).await);
            }
            let status = test.generate("one more", 0).await.await.unwrap().err().unwrap();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(test.commands.is_empty());
            // Those whose clients go away make room as soon as a thread looks at them.
            waiting.iter().for_each(JoinHandle::abort);
            drop(gate);
            while test.service.shared.tokenising.available_permits() < TOKENISING_MAX {
                tokio::task::yield_now().await;
            }
            let _running = test.generate("one more", 0).await;
            assert!(matches!(test.command().await, Command::Submit { .. }));
        });
    }

    #[test]
    fn each_refusal_has_its_status() {
        let (prompt_tokens, max_tokens) = (1, 1);
        let cases = [
            (Refusal::EmptyPrompt, Code::InvalidArgument),
            (Refusal::NoTokensAsked, Code::InvalidArgument),
            (Refusal::ContextTooLong { prompt_tokens, max_tokens, context: 1 }, Code::InvalidArgument),
            (Refusal::NeverFits { prompt_tokens, max_tokens, needed: 2, capacity: 1 }, Code::InvalidArgument),
            (Refusal::QueueFull { limit: 1 }, Code::ResourceExhausted),
            (Refusal::Draining, Code::Unavailable),
            (Refusal::NoEngine, Code::Unavailable),
            (Refusal::DuplicateId, Code::AlreadyExists),
        ];
        for (refusal, code) in cases {
            assert_eq!(refused(refusal).code(), code, "{refusal}");
        }
        assert_eq!(not_taken(NotTaken::Full).code(), Code::ResourceExhausted);
        assert_eq!(not_taken(NotTaken::Stopped).code(), Code::Unavailable);
    }
}
