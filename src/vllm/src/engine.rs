//! The service `vllm.grpc.engine.VllmEngine`.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio_stream::iter;
use tonic::{Extensions, Request, Response, Status};
use trunkline_quote::quoted;
use trunkline_server::Front;

use crate::Settings;
use crate::answers::Answers;
use crate::asked::Asked;
use crate::bundle::{Bundle, Bundles};
use crate::events::{self, Batches};
use crate::loads::Loads;
use crate::parents::{Parents, child};
use crate::proto::smg::grpc::common::{
    FlushCacheRequest, FlushCacheResponse, GetTokenizerChunk, GetTokenizerRequest, ProfileResponse,
    StartProfileRequest, StopProfileRequest, SubscribeKvEventsRequest,
};
use crate::proto::vllm::grpc::engine::generate_request::Input;
use crate::proto::vllm::grpc::engine::vllm_engine_server::VllmEngine;
use crate::proto::vllm::grpc::engine::{
    AbortRequest, AbortResponse, EmbedRequest, EmbedResponse, GenerateRequest, GetLoadsRequest, GetLoadsResponse,
    GetModelInfoRequest, GetModelInfoResponse, GetServerInfoRequest, GetServerInfoResponse, HealthCheckRequest,
    HealthCheckResponse,
};

/// Kind of the server, as gateways tell engines of this protocol apart.
const SERVER_TYPE: &str = "vllm-grpc";

/// The service `vllm.grpc.engine.VllmEngine` over our own.
pub(crate) struct Engine {
    front: Front,
    settings: Settings,
    /// Facts about the model in its `config.json`.
    config: Value,
    bundles: Bundles,
    loads: Loads,
    parents: Parents,
    started: Instant,
    /// Time of the last request, seconds since 1970.
    last_request_s: Mutex<f64>,
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Engine {
    pub(crate) fn new(front: Front, settings: Settings) -> Self {
        Self {
            front,
            config: settings.files.config(),
            bundles: Bundles::new(settings.files.clone()),
            settings,
            loads: Loads::new(),
            parents: Parents::default(),
            started: Instant::now(),
            last_request_s: Mutex::new(0.0),
        }
    }

    /// Returns the tokens of a request's prompt.
    async fn prompt(&self, extensions: &Extensions, input: &mut Input) -> Result<Vec<u32>, Status> {
        match input {
            Input::Tokenized(tokenized) => Ok(std::mem::take(&mut tokenized.input_ids)),
            Input::Text(text) => self.front.tokenize(extensions, std::mem::take(text), true).await,
        }
    }

    /// Returns an id of `config.json`, which may be a list there; the first counts.
    fn config_id(&self, key: &str) -> i32 {
        let value = &self.config[key];
        let id = value.as_array().and_then(|ids| ids.first()).unwrap_or(value).as_i64();
        id.and_then(|id| i32::try_from(id).ok()).unwrap_or_default()
    }
}

/// A stream of messages that are all there.
type Ready<T> = tokio_stream::Iter<Box<dyn Iterator<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl VllmEngine for Engine {
    type GenerateStream = Answers;
    type GetTokenizerStream = Ready<GetTokenizerChunk>;
    type SubscribeKvEventsStream = Batches;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Answers>, Status> {
        self.front.note(request.extensions());
        *self.last_request_s.lock().unwrap_or_else(PoisonError::into_inner) = now_s();
        let timeout = Front::call_timeout(request.metadata());
        let (_, extensions, request) = request.into_parts();
        let mut asked = Asked::of(request)?;
        let ids = self.prompt(&extensions, &mut asked.input).await?;
        let max_tokens = match asked.max_tokens {
            Some(max_tokens) => max_tokens,
            None => self.front.room_for(ids.len())?,
        };
        // Before the first choice begins, so that no abort comes too early.
        let parent = (asked.n > 1 && !asked.id.is_empty()).then(|| self.parents.open(&asked.id, asked.n));
        let mut choices = Vec::new();
        for choice in 0..asked.n {
            let id = if parent.is_some() { child(&asked.id, choice) } else { asked.id.clone() };
            let message = asked.choice(choice, id, ids.clone(), max_tokens);
            choices.push(self.front.generate(&extensions, message, timeout).await?.tokens_only());
        }
        let first_token = ids.first().copied().unwrap_or_default();
        Ok(Response::new(Answers::new(choices, asked.streams, asked.stop_token_ids, first_token, parent)))
    }

    async fn embed(&self, request: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        self.front.note(request.extensions());
        Err(Status::unimplemented("Embed is not supported: the model generates text, and has no embeddings to give"))
    }

    async fn health_check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.front.note(request.extensions());
        let healthy = self.front.is_serving();
        let message = if healthy { "serving" } else { "no worker is there, or the server drains" };
        Ok(Response::new(HealthCheckResponse { healthy, message: message.into() }))
    }

    async fn flush_cache(&self, request: Request<FlushCacheRequest>) -> Result<Response<FlushCacheResponse>, Status> {
        let dropped = self.front.flush_cache(request.extensions(), "FlushCache").await?;
        let message = format!("dropped {dropped} blocks that no request held");
        Ok(Response::new(FlushCacheResponse { success: true, message }))
    }

    async fn start_profile(&self, request: Request<StartProfileRequest>) -> Result<Response<ProfileResponse>, Status> {
        self.front.note(request.extensions());
        Err(Status::unimplemented("StartProfile is not supported; --metrics and --record show what the server does"))
    }

    async fn stop_profile(&self, request: Request<StopProfileRequest>) -> Result<Response<ProfileResponse>, Status> {
        self.front.note(request.extensions());
        Err(Status::unimplemented("StopProfile is not supported: there is no profile to stop"))
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Result<Response<AbortResponse>, Status> {
        let (_, extensions, AbortRequest { request_ids }) = request.into_parts();
        self.front.abort(&extensions, self.parents.with_children(request_ids))?;
        Ok(Response::new(AbortResponse {}))
    }

    async fn get_model_info(
        &self,
        request: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        self.front.note(request.extensions());
        let model = self.front.model()?;
        let max_context = self.front.max_context()?;
        let text = |key: &str| self.config[key].as_str().unwrap_or_default().to_owned();
        let names = self.config["architectures"].as_array().into_iter().flatten();
        let path = self.settings.path.clone().unwrap_or_else(|| model.name.clone());
        Ok(Response::new(GetModelInfoResponse {
            tokenizer_path: path.clone(),
            model_path: path,
            is_generation: true,
            max_context_length: max_context,
            vocab_size: model.vocab_size,
            served_model_name: self.settings.served_name.clone().unwrap_or_else(|| model.name.clone()),
            model_type: text("model_type"),
            architectures: names.filter_map(Value::as_str).map(str::to_owned).collect(),
            eos_token_ids: model.eos_token_ids.iter().map(|id| i32::try_from(*id).unwrap_or(i32::MAX)).collect(),
            pad_token_id: self.config_id("pad_token_id"),
            bos_token_id: self.config_id("bos_token_id"),
            max_req_input_len: i32::try_from(max_context).unwrap_or(i32::MAX),
            ..GetModelInfoResponse::default()
        }))
    }

    async fn get_server_info(
        &self,
        request: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        self.front.note(request.extensions());
        let (model, limits) = (self.front.model()?, self.front.limits()?);
        let (stats, engines) = self.front.stats().await?;
        Ok(Response::new(GetServerInfoResponse {
            active_requests: stats.waiting + stats.running,
            is_paused: !self.front.is_serving(),
            last_receive_timestamp: *self.last_request_s.lock().unwrap_or_else(PoisonError::into_inner),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            server_type: SERVER_TYPE.into(),
            data_parallel_size: 1,
            kv_cache_dtype: model.kv_dtype.clone(),
            block_size: i32::try_from(limits.block_size).unwrap_or(i32::MAX),
            max_num_seqs: i32::try_from(u64::from(limits.max_batch_size) * u64::from(engines)).unwrap_or(i32::MAX),
            ..GetServerInfoResponse::default()
        }))
    }

    async fn get_loads(&self, request: Request<GetLoadsRequest>) -> Result<Response<GetLoadsResponse>, Status> {
        self.front.note(request.extensions());
        if let Some(rank) = request.get_ref().dp_rank.filter(|rank| *rank != 0) {
            return Err(Status::invalid_argument(format!("dp_rank is {rank}; the server has rank 0 alone")));
        }
        if let Some(section) = request.get_ref().include.iter().find(|section| *section != "core" && *section != "all")
        {
            let message = format!("include has {}; the server reports the section core alone", quoted(section));
            return Err(Status::invalid_argument(message));
        }
        self.loads.answer(&self.front).await.map(Response::new)
    }

    async fn get_tokenizer(
        &self,
        request: Request<GetTokenizerRequest>,
    ) -> Result<Response<Self::GetTokenizerStream>, Status> {
        self.front.note(request.extensions());
        let pieces = Bundle::pieces(self.bundles.get().await?).map(Ok);
        Ok(Response::new(iter(Box::new(pieces) as Box<dyn Iterator<Item = _> + Send>)))
    }

    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<Self::SubscribeKvEventsStream>, Status> {
        let none = "the server follows no caches; start it with --kv-events true";
        let Some(publisher) = &self.settings.events else {
            self.front.note(request.extensions());
            return Err(Status::unimplemented(none));
        };
        // Events have the tokens of everyone's prompts.
        self.front.check_admin(request.extensions(), "SubscribeKvEvents")?;
        events::subscribe(publisher, request.get_ref().start_sequence_number).map(Response::new)
    }
}
