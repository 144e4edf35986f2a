//! The gRPC service: from messages to commands for the core's thread, and back.

pub(crate) mod attach;
pub(crate) mod fit;
pub(crate) mod offer;
pub(crate) mod request_ids;
pub(crate) mod retention;
pub(crate) mod sessions;
pub(crate) mod stream;
pub(crate) mod structure;
pub(crate) mod submission;
pub(crate) mod validate;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status};
use trunkline_cluster::{EngineState, Health, Role};
use trunkline_core::{Config, RequestId, Stats};
use trunkline_port::WeightReads;

use crate::access::caller::Caller;
use crate::driver::commands::{Command, EngineSnapshot, Snapshot, StepCounts, WorkerSnapshot};
use crate::engines::seats::SeatState;
use crate::engines::store_info::store_info;
use crate::network::Network;
use crate::network::refusals::Reason;
use crate::proto;
use crate::proto::inference_server::Inference;
use crate::requests::request_events::Label;
use crate::service::stream::Generation;
use crate::service::submission::{Rejection, Submitter};

/// Header of a response with the request's id.
pub(crate) const REQUEST_ID: &str = "trunkline-request-id";
/// Maximum number of ids in one call of Abort.
const ABORT_IDS_MAX: usize = 1 << 16;

/// The gRPC service `trunkline.v1.Inference`.
pub(crate) struct InferenceService {
    shared: Arc<Submitter>,
    network: Arc<Network>,
}

impl InferenceService {
    pub(crate) fn new(shared: Arc<Submitter>, network: Arc<Network>) -> Self {
        Self { shared, network }
    }

    /// Begins a request, which ends `call_timeout` later at the latest.
    pub(crate) async fn begin(
        &self,
        caller: &Caller,
        mut message: proto::GenerateRequest,
        call_timeout: Option<Duration>,
    ) -> Result<Generation, Status> {
        let shared = &self.shared;
        let arrival_ns = shared.driver.clock().now_ns();
        let model = &shared.model;
        message.tenant = caller.tenant(message.tenant)?;
        let label = Label { id: message.request_id.clone(), tenant: message.tenant.clone(), parent: caller.parent };
        let checked = validate::check(message, model.vocab_size, &model.eos_token_ids);
        let checked = checked.and_then(|checked| shared.check_offer(&checked).map(|()| checked));
        let mut checked = checked.inspect_err(|_| {
            self.count(Reason::Invalid);
            shared.note_refused(label, arrival_ns, Reason::Invalid, Code::InvalidArgument);
        })?;
        let (stop, min_tokens) = (std::mem::take(&mut checked.stop), checked.request.min_tokens);
        let skip_special_tokens = checked.skip_special_tokens;
        let timeout = [call_timeout, checked.timeout].into_iter().flatten().min();
        let submitted = shared.submit(caller, checked, arrival_ns, timeout).await;
        let submitted = submitted.inspect_err(|rejection| self.count(rejection.reason()))?;
        let detokenizer = shared.tokenizer.detokenizer_behind(submitted.prompt_end(), skip_special_tokens);
        Ok(Generation::new(submitted, detokenizer, stop.strings, min_tokens).with_stop(stop.is_sent))
    }

    /// Aborts the caller's requests with these ids; returns how many were found.
    pub(crate) fn abort_ids(&self, caller: &Caller, ids: Vec<String>) -> Result<u32, Status> {
        if ids.len() > ABORT_IDS_MAX {
            return Err(Status::invalid_argument(format!(
                "request_ids has {} ids; at most {ABORT_IDS_MAX} are allowed",
                ids.len()
            )));
        }
        let ids: BTreeSet<String> = ids.into_iter().collect();
        let found: Vec<RequestId> = ids.iter().flat_map(|id| self.shared.ids.abort(caller, id)).collect();
        let n_found = found.len() as u32;
        if n_found > 0 {
            self.shared.driver.send(Command::Abort(found)).map_err(Rejection::from)?;
        }
        Ok(n_found)
    }

    /// Forgets the cached blocks that no request holds; returns their number.
    pub(crate) async fn flush(&self, caller: &Caller, what: &str) -> Result<u32, Status> {
        caller.check_admin(what)?;
        let (reply, blocks) = oneshot::channel();
        self.shared.driver.send(Command::FlushCache(reply)).map_err(Rejection::from)?;
        Ok(blocks.await.map_err(|_| Rejection::Stopped)?)
    }

    /// Returns the state of the cluster between two decisions.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Status> {
        let (reply, snapshot) = oneshot::channel();
        self.shared.driver.send(Command::Snapshot(reply)).map_err(Rejection::from)?;
        Ok(snapshot.await.map_err(|_| Rejection::Stopped)?)
    }

    /// Returns what all services share.
    pub(crate) fn shared(&self) -> &Arc<Submitter> {
        &self.shared
    }

    /// Counts a refused request.
    fn count(&self, reason: Reason) {
        self.network.counters.refusals.count(reason);
    }
}

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = Generation;

    async fn generate(&self, request: Request<proto::GenerateRequest>) -> Result<Response<Generation>, Status> {
        let caller = Caller::of(request.extensions());
        let call_timeout = validate::call_timeout(request.metadata());
        let generation = self.begin(&caller, request.into_inner(), call_timeout).await?;
        let request_id = generation.client_id().parse().ok();
        let mut response = Response::new(generation);
        if let Some(request_id) = request_id {
            response.metadata_mut().insert(REQUEST_ID, request_id);
        }
        Ok(response)
    }

    async fn abort(&self, request: Request<proto::AbortRequest>) -> Result<Response<proto::AbortResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let found = self.abort_ids(&caller, request.into_inner().request_ids)?;
        Ok(Response::new(proto::AbortResponse { found }))
    }

    async fn get_model_info(
        &self,
        request: Request<proto::GetModelInfoRequest>,
    ) -> Result<Response<proto::GetModelInfoResponse>, Status> {
        Caller::of(request.extensions());
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
        request: Request<proto::GetServerInfoRequest>,
    ) -> Result<Response<proto::GetServerInfoResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let snapshot = self.snapshot().await?;
        let public = proto::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            draining: snapshot.draining,
            limits: Some(limits(&self.shared.config)),
            ..Default::default()
        };
        if !caller.admin {
            return Ok(Response::new(public));
        }
        let (stats, steps) = snapshot.totals();
        let now_ns = self.shared.driver.clock().now_ns();
        Ok(Response::new(proto::GetServerInfoResponse {
            uptime_s: now_ns as f64 * 1e-9,
            digest: format!("{:016x}", snapshot.digest),
            network: Some(network(&self.network)),
            load: Some(load(&stats)),
            blocks: Some(blocks(&stats)),
            counters: Some(counters(&stats, steps)),
            engines: (0..)
                .zip(&snapshot.engines)
                .map(|(number, engine)| {
                    let kv_dtype = self.shared.kv_dtype(engine.status.kv_class).to_owned();
                    proto::EngineInfo { kv_dtype, ..engine_info(number, engine, now_ns) }
                })
                .collect(),
            ..public
        }))
    }

    async fn flush_cache(
        &self,
        request: Request<proto::FlushCacheRequest>,
    ) -> Result<Response<proto::FlushCacheResponse>, Status> {
        let dropped_blocks = self.flush(&Caller::of(request.extensions()), "FlushCache").await?;
        Ok(Response::new(proto::FlushCacheResponse { dropped_blocks }))
    }
}

fn limits(config: &Config) -> proto::Limits {
    proto::Limits {
        block_size: config.block_size,
        device_blocks: config.device_blocks,
        max_batch_tokens: config.max_batch_tokens,
        max_batch_size: config.max_batch_size,
        max_queue: config.max_queue,
        max_context: config.max_context,
        policy: config.policy.clone(),
        eviction: config.eviction.clone(),
    }
}

fn network(network: &Network) -> proto::Network {
    let (connections, calls) = network.open();
    let counters = &network.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    proto::Network {
        connections,
        calls,
        unread_bytes: network.unread_bytes(),
        accepted: read(&counters.accepted),
        refused: read(&counters.refused),
        closed: read(&counters.closed),
        unread_ended: read(&counters.unread_ended),
        unauthorised: read(&counters.unauthorised),
        rejected_requests: counters.refusals.overload(),
    }
}

fn load(stats: &Stats) -> proto::Load {
    proto::Load { waiting: stats.waiting, running: stats.running }
}

fn blocks(stats: &Stats) -> proto::Blocks {
    proto::Blocks {
        free: stats.free_blocks,
        idle: stats.idle_blocks,
        held: stats.held_blocks,
        private: stats.private_blocks,
        retained: stats.retention.retained_blocks,
    }
}

fn counters(stats: &Stats, steps: StepCounts) -> proto::Counters {
    proto::Counters {
        steps: stats.steps,
        accepted: stats.requests.accepted,
        refused: stats.requests.refused,
        finished: stats.requests.finished,
        prompt_tokens: stats.tokens.prompt_tokens,
        cached_tokens: stats.tokens.cached_tokens,
        copied_tokens: stats.tokens.copied_tokens,
        generated_tokens: stats.tokens.generated_tokens,
        preemptions: stats.preemptions,
        published_blocks: stats.published_blocks,
        merged_blocks: stats.merged_blocks,
        evicted_blocks: stats.evicted_blocks,
        drafted_tokens: steps.drafted,
        accepted_drafts: steps.accepted,
        prefix_blocks: stats.prefix_blocks,
        prefix_runs: stats.prefix_runs,
        h2o_plans: stats.h2o.h2o_plans,
        h2o_dropped_tokens: stats.h2o.h2o_dropped_tokens,
        h2o_dropped_blocks: stats.h2o.h2o_dropped_blocks,
        h2o_reread_tokens: stats.h2o.h2o_reread_tokens,
        ignored_retained_blocks: stats.retention.ignored_retained_blocks,
        evicted_retained_blocks: stats.retention.evicted_retained_blocks,
        restarted: stats.requests.restarted,
        withdrawn: stats.requests.withdrawn,
        swap_outs: stats.swaps.swap_outs,
        swapped_in_blocks: stats.swaps.swapped_in_blocks,
        swap_in_found_blocks: stats.swaps.found_blocks,
        swap_in_joined_blocks: stats.swaps.joined_blocks,
        swap_in_merged_blocks: stats.swaps.merged_blocks,
        weights: (steps.weights.steps > 0).then(|| weights(steps.weights)),
    }
}

fn weights(reads: WeightReads) -> proto::WeightReads {
    proto::WeightReads {
        steps: reads.steps,
        bytes: reads.bytes,
        reading_ns: reads.reading_ns,
        exposed_ns: reads.exposed_ns,
        hidden_ns: reads.hidden_ns(),
        step_ns: reads.step_ns,
        failed_reads: reads.failed_reads,
    }
}

fn engine_info(number: u32, engine: &EngineSnapshot, now_ns: u64) -> proto::EngineInfo {
    let status = &engine.status;
    let role = match status.role {
        Role::Both => proto::EngineRole::Both,
        Role::Prefill => proto::EngineRole::Prefill,
        Role::Decode => proto::EngineRole::Decode,
    };
    let state = match status.state {
        EngineState::Absent => proto::EngineState::Absent,
        EngineState::Up => proto::EngineState::Up,
        EngineState::Draining => proto::EngineState::Draining,
        EngineState::Closed => proto::EngineState::Closed,
        EngineState::Gone => proto::EngineState::Gone,
    };
    let health = match status.health {
        Health::Open => proto::EngineHealth::Open,
        Health::Suspected => proto::EngineHealth::Suspected,
        Health::Probing => proto::EngineHealth::Probing,
    };
    let tiers: Vec<_> = engine.tiers.iter().cloned().zip(status.stats.tiers).collect();
    proto::EngineInfo {
        number,
        role: role.into(),
        state: state.into(),
        health: health.into(),
        requests: status.load.requests,
        tokens: status.load.tokens,
        load: Some(load(&status.stats)),
        blocks: Some(blocks(&status.stats)),
        counters: Some(counters(&status.stats, engine.counts)),
        abandoned_workers: engine.abandoned,
        store: Some(store_info(&engine.store, &tiers)),
        worker: engine.worker.as_ref().map(|worker| attached_worker(worker, now_ns)),
        ..proto::EngineInfo::default()
    }
}

fn attached_worker(worker: &WorkerSnapshot, now_ns: u64) -> proto::AttachedWorker {
    let (lock_step_group, lock_step_rank) = worker.lock_step.clone().unwrap_or_default();
    proto::AttachedWorker {
        name: worker.name.clone(),
        program: worker.program.clone(),
        connected: worker.state == SeatState::Taken,
        life: worker.life,
        steps: worker.stats.steps,
        busy_s: worker.stats.busy_us as f64 * 1e-6,
        silent_s: now_ns.saturating_sub(worker.stats.heard_ns) as f64 * 1e-9,
        lock_step_group,
        lock_step_rank,
        waits_for_group: worker.waits_for_group,
        shared_memory: worker.stats.shares_memory,
        shared_block_bytes: worker.stats.shared_bytes,
        message_block_bytes: worker.stats.message_bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use crossbeam_channel::Receiver;
    use tokio::task::JoinHandle;
    use trunkline_core::request::retention::RetentionError;
    use trunkline_core::{Config, Refusal};
    use trunkline_port::ModelInfo;
    use trunkline_text::Tokenizer;

    use super::*;
    use crate::access::caller::Owner;
    use crate::driver::queue::{NotTaken, queue};
    use crate::network::limits::NetworkLimits;
    use crate::service::submission::{PART_BYTES, TEXT_KIB_MAX, Tokenising};

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
        let service = {
            let network = Network::new(NetworkLimits::default(), driver.clock());
            let tokenising = Tokenising::new(2);
            let mut submitter = Submitter::new(driver, model, tokenizer, config);
            submitter.tokenising = tokenising;
            Arc::new(InferenceService::new(Arc::new(submitter), network))
        };
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
            let prompt = Some(proto::generate_request::Prompt::Text("x".repeat(PART_BYTES + 1)));
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
            let Command::Submit { request, outputs: _outputs, accepted, .. } = test.command().await else {
                panic!("not submitted")
            };
            assert!(matches!(test.command().await, Command::Abort(ids) if ids == [request.id]));
            accepted.send(Ok(())).unwrap();
            assert!(running.await.unwrap().is_ok());
        });
    }

    #[test]
    fn the_core_gets_the_tenant() {
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
    fn texts_wait_for_the_tokenizer_while_there_is_room_for_twice_as_much() {
        gated(|test, gate| async move {
            // A prompt takes 9 KiB of room.
            let room = test.service.shared.tokenising.room.clone();
            let taken = room.clone().try_acquire_many_owned(TEXT_KIB_MAX as u32 - 36).unwrap();
            let mut waiting = Vec::new();
            for i in 0..3 {
                waiting.push(test.generate(&i.to_string(), 0).await);
            }
            assert_eq!(room.available_permits(), 9);
            let status = test.generate("one more", 0).await.await.unwrap().err().unwrap();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(test.commands.is_empty());
            // The text of a client that went away is not tokenised; its room is free as soon as a thread looks at it.
            waiting.iter().for_each(JoinHandle::abort);
            drop(gate);
            while room.available_permits() < 36 {
                tokio::task::yield_now().await;
            }
            let _running = test.generate("one more", 0).await;
            assert!(matches!(test.command().await, Command::Submit { .. }));
            drop(taken);
        });
    }

    #[test]
    fn texts_of_many_do_not_wait_for_all_texts_of_one() {
        gated(|test, gate| async move {
            let mut running = Vec::new();
            for name in ["mallory", "mallory", "mallory", "mallory", "alice", "bob"] {
                let prompt = Some(proto::generate_request::Prompt::Text("x".repeat(20 * PART_BYTES)));
                let mut request = Request::new(proto::GenerateRequest { prompt, ..Default::default() });
                request.extensions_mut().insert(Caller { owner: Owner::Token(name.into()), ..Caller::local() });
                let service = test.service.clone();
                running.push(tokio::spawn(async move { service.generate(request).await }));
                tokio::task::yield_now().await;
            }
            drop(gate);
            let mut order = Vec::new();
            while order.len() < 6 {
                let Command::Submit { request, accepted, .. } = test.command().await else { continue };
                order.push(request.tenant);
                let _ = accepted.send(Ok(()));
            }
            // The texts are equally long: each of the three has one of the first three turns.
            order.truncate(3);
            order.sort_unstable();
            let mut each = ["alice", "bob", "mallory"].map(|name| validate::tenant_number(name, ""));
            each.sort_unstable();
            assert_eq!(order, each);
        });
    }

    #[test]
    fn a_text_that_no_context_holds_is_refused_without_being_tokenised() {
        gated(|test, _gate| async move {
            let prompt = Some(proto::generate_request::Prompt::Text("x".repeat((1 << 20) + 1)));
            let request = proto::GenerateRequest { prompt, ..Default::default() };
            let status = test.service.generate(Request::new(request)).await.err().unwrap();
            assert_eq!(status.code(), Code::InvalidArgument);
            let message = "text has 1048577 bytes; a context of 1048576 tokens holds at most 1048576";
            assert_eq!(status.message(), message, "no thread was needed");
        });
    }

    #[test]
    fn a_text_longer_than_the_context_ends_with_the_part_that_shows_it_and_others_take_turns() {
        gated(|test, gate| async move {
            let limit = test.service.shared.config.max_context;
            let text = |n: usize| Some(proto::generate_request::Prompt::Text("x".repeat(n)));
            let long = proto::GenerateRequest { prompt: text(limit as usize), ..Default::default() };
            let service = test.service.clone();
            let long = tokio::spawn(async move { service.generate(Request::new(long)).await });
            tokio::task::yield_now().await;
            let _short = test.generate("short", 0).await;
            drop(gate);
            // The short text is behind the long one. Both are taken up, whichever ends first.
            assert!(matches!(test.command().await, Command::Submit { .. }));
            let status = long.await.unwrap().err().unwrap();
            assert!(status.message().starts_with("prompt has 1048576 tokens; the context"), "{status}");
        });
    }

    #[test]
    fn a_token_that_the_model_does_not_have_is_refused_wherever_it_comes_from() {
        let (driver, commands) = queue(8);
        let model = ModelInfo { vocab_size: 100, ..ModelInfo::default() };
        let network = Network::new(NetworkLimits::default(), driver.clock());
        let submitter = Submitter::new(driver, model, Tokenizer::bytes(), Config::default());
        let service = InferenceService::new(Arc::new(submitter), network);
        let prompt = Some(proto::generate_request::Prompt::Text("a{".into()));
        let request = proto::GenerateRequest { prompt, ..Default::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let status = runtime.block_on(service.generate(Request::new(request))).err().unwrap();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("text: token[1] is 123; the model has token ids below 100;"), "{status}");
        assert!(commands.is_empty());
    }

    #[test]
    fn tenants_salts_and_keys_have_caches_of_their_own_unless_a_request_shares() {
        gated(|test, _gate| async move {
            let (mut roots, mut shares, mut streams) = (Vec::new(), Vec::new(), Vec::new());
            let request = |tenant: &str, salt: &str, keys: &[&str], share_cache| proto::GenerateRequest {
                prompt: Some(proto::generate_request::Prompt::Text("x".into())),
                tenant: tenant.into(),
                cache_salt: salt.into(),
                extra_keys: keys.iter().map(|key| (*key).into()).collect(),
                share_cache,
                ..Default::default()
            };
            for request in [
                request("", "", &[], None),
                request("a", "", &[], Some(true)),
                request("b", "", &[], Some(true)),
                request("a", "", &[], None),
                request("b", "", &[], Some(false)),
                request("", "a", &[], None),
                request("", "", &["a"], None),
            ] {
                let service = test.service.clone();
                let running = tokio::spawn(async move { service.generate(Request::new(request)).await.map(drop) });
                // Nobody accepts the requests, so each is followed by its abort.
                let submitted = loop {
                    if let Command::Submit { request, .. } = test.command().await {
                        break request;
                    }
                };
                roots.push(submitted.root);
                shares.push(submitted.shares_cache);
                streams.push(running);
            }
            assert_eq!((roots[0], roots[0]), (roots[1], roots[2]), "tenants that share, and no tenant");
            let distinct: BTreeSet<_> = roots.iter().collect();
            assert_eq!(distinct.len(), 5);
            // Requests without a tenant share with sharing tenants, once there are some.
            assert_eq!(shares, [false, true, true, false, false, true, true]);
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
            (Refusal::ReservedId, Code::InvalidArgument),
            (Refusal::Retention(RetentionError::TooMany { n: 17 }), Code::InvalidArgument),
        ];
        for (refusal, code) in cases {
            assert_eq!(Status::from(Rejection::Refused(refusal)).code(), code, "{refusal}");
        }
        assert_eq!(Status::from(Rejection::from(NotTaken::Full)).code(), Code::ResourceExhausted);
        assert_eq!(Status::from(Rejection::from(NotTaken::Stopped)).code(), Code::Unavailable);
    }
}
