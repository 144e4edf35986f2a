//! A server inside the test's process, with the embedded worker and a small model with random weights, and a client of it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};

use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, Streaming};
use trunkline_cluster::{ClusterConfig, EngineId};
use trunkline_core::{Config, Keeps, Token};
use trunkline_grammar::Grammars;
use trunkline_port::{DeviceBlocks, LayerGroup, ModelInfo, Step, StepError, StepOutput, StepRunner};
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{
    FinishReason, GenerateRequest, GenerateResponse, GetServerInfoRequest, GetServerInfoResponse, Output, Sampling,
    Stopping, TokenLogprob, Usage,
};
use trunkline_server::{
    Backend, DecideModel, EngineStore, MakeWorker, Options, Outcome, SamplingOffer, Server, ServerError, ServerHandle,
    listen,
};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, Worker, WorkerConfig};

/// Times a condition is asked for before a test gives up: a call each, so about ten seconds and more.
const ATTEMPTS_MAX: u32 = 3 * 50_000;
/// All servers have the same weights.
pub const SEED: u64 = 7;

/// A server that runs in this process.
pub struct TestServer {
    addr: SocketAddr,
    metrics: SocketAddr,
    handle: ServerHandle,
    running: JoinHandle<Result<Outcome, ServerError>>,
}

/// Token that ends an answer, of the tokenizer of bytes.
pub const END: Token = 257;

/// Returns the model with a group of one layer for each group of the limits, the last layer first.
pub fn divided(core: &Config) -> Model {
    let model = Model::seeded(SEED);
    let (n_layers, n_heads) = (model.info().n_layers, model.info().n_layers * model.info().n_kv_heads);
    let of_heads = core.worker.groups.len() == n_heads as usize;
    let members = (0..if of_heads { n_heads } else { n_layers }).rev();
    let group = |(member, keeps): (u32, &Keeps)| {
        let (heads, layers) = if of_heads { (vec![member], Vec::new()) } else { (Vec::new(), vec![member]) };
        LayerGroup { layers, heads, keeps: *keeps, ..LayerGroup::default() }
    };
    let groups = members.zip(&core.worker.groups).map(group).collect();
    model.with_groups(groups).expect("a group for each layer or each KV head, or none")
}

/// Returns the settings of `n` equal engines that get requests in turn.
pub fn in_turn(core: &Config, n: usize) -> ClusterConfig {
    ClusterConfig { router: "round_robin".into(), ..ClusterConfig::uniform(core, n) }
}

impl TestServer {
    /// A server on a free port.
    pub async fn start(config: Config) -> Self {
        Self::start_with(config, None, |worker| Box::new(worker)).await
    }

    /// A server on a free port that writes a recording if it is told where, and whose worker is wrapped.
    pub async fn start_with(
        config: Config,
        record: Option<PathBuf>,
        wrap: impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + 'static,
    ) -> Self {
        Self::start_cluster(ClusterConfig::uniform(&config, 1), record, wrap_once(wrap)).await
    }

    /// A server of one engine on a free port, with options edited before it starts.
    pub async fn start_options(
        config: Config,
        edit: impl FnOnce(&mut Options),
        wrap: impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + 'static,
    ) -> Self {
        let mut options = Options { cluster: ClusterConfig::uniform(&config, 1), ..Options::default() };
        edit(&mut options);
        Self::launch(options, wrap_once(wrap)).await.expect("the server starts")
    }

    /// A server of one engine on a free port, with options edited before it starts.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn try_start(config: Config, edit: impl FnOnce(&mut Options)) -> Result<Self, ServerError> {
        let mut options = Options { cluster: ClusterConfig::uniform(&config, 1), ..Options::default() };
        edit(&mut options);
        Self::launch(options, |_, worker| Box::new(worker)).await
    }

    /// Returns the address of the server.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address of the metrics.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.metrics
    }

    /// A server of several engines on a free port; `wrap` gets the worker of each engine, and those made again later.
    pub async fn start_cluster(
        cluster: ClusterConfig,
        record: Option<PathBuf>,
        wrap: impl Fn(EngineId, Worker) -> Box<dyn StepRunner> + Send + Sync + 'static,
    ) -> Self {
        let options = Options { cluster, record, ..Options::default() };
        Self::launch(options, wrap).await.expect("the server starts")
    }

    /// A server on a free port with any options.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn launch(
        options: Options,
        wrap: impl Fn(EngineId, Worker) -> Box<dyn StepRunner> + Send + Sync + 'static,
    ) -> Result<Self, ServerError> {
        Self::launch_stored(options, |_| Vec::new(), wrap).await
    }

    /// A server on a free port with any options, and with stores of its own, made from the facts of the model.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn launch_stored(
        options: Options,
        stores: impl FnOnce(&ModelInfo) -> Vec<EngineStore>,
        wrap: impl Fn(EngineId, Worker) -> Box<dyn StepRunner> + Send + Sync + 'static,
    ) -> Result<Self, ServerError> {
        Self::of_backend(Self::backend(&options, stores, wrap), options).await
    }

    /// A server of one engine that answers plain HTTP too, with options edited before it starts.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn start_http(
        config: Config,
        settings: trunkline_http::Settings,
        edit: impl FnOnce(&mut Options),
        wrap: impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let server = Self::prepared(config, edit, wrap).await?;
        Ok(Self::run(server.with_http(|front| trunkline_http::door(front, settings))).await)
    }

    /// A server of one engine with vLLM's gRPC service too, with options edited before it starts.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn start_vllm(
        config: Config,
        settings: trunkline_vllm::Settings,
        edit: impl FnOnce(&mut Options),
        wrap: impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let server = Self::prepared(config, edit, wrap).await?;
        Ok(Self::run(server.with_guest(|front| trunkline_vllm::service(front, settings)).await?).await)
    }

    /// A server without a model and without workers, with vLLM's gRPC service too.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn vllm_without_model(options: Options, decide: DecideModel) -> Result<Self, ServerError> {
        let listener = listen("127.0.0.1:0").await.expect("a port is free");
        let server = Server::of_first_worker(listener, decide, options).await?;
        let service = |front| trunkline_vllm::service(front, trunkline_vllm::Settings::default());
        Ok(Self::run(server.with_guest(service).await?).await)
    }

    async fn prepared(
        config: Config,
        edit: impl FnOnce(&mut Options),
        wrap: impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + 'static,
    ) -> Result<Server, ServerError> {
        let mut options = Options { cluster: ClusterConfig::uniform(&config, 1), ..Options::default() };
        edit(&mut options);
        let backend = Self::backend(&options, |_| Vec::new(), wrap_once(wrap));
        let listener = listen("127.0.0.1:0").await.expect("a port is free");
        Server::new(listener, backend, options).await
    }

    /// Returns the small model behind workers that are wrapped.
    fn backend(
        options: &Options,
        stores: impl FnOnce(&ModelInfo) -> Vec<EngineStore>,
        wrap: impl Fn(EngineId, Worker) -> Box<dyn StepRunner> + Send + Sync + 'static,
    ) -> Backend {
        let model = Arc::new(divided(&options.cluster.engines[0].core));
        let info = ModelInfo { eos_token_ids: vec![END], ..model.info() };
        let stores = stores(&info);
        let limits: Vec<Config> = options.cluster.engines.iter().map(|engine| engine.core.clone()).collect();
        let grammars = Arc::new(Grammars::new(Tokenizer::bytes(), info.vocab_size, info.eos_token_ids.clone()));
        let workers: MakeWorker = Arc::new(move |engine| {
            let config = &limits[engine.index()];
            let worker = WorkerConfig {
                block_size: config.block_size,
                device_blocks: config.pool_blocks(),
                max_drafts: config.max_drafts,
                threads: 1,
            };
            Ok(wrap(engine, Worker::new(model.clone(), worker)?.with_grammars(grammars.clone())))
        });
        Backend {
            model: info,
            further_kv: Vec::new(),
            tokenizer: Tokenizer::bytes(),
            workers,
            stores,
            offer: SamplingOffer::default(),
        }
    }

    /// A server on a free port with any backend.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn of_backend(backend: Backend, options: Options) -> Result<Self, ServerError> {
        let listener = listen("127.0.0.1:0").await.expect("a port is free");
        Ok(Self::run(Server::new(listener, backend, options).await?).await)
    }

    /// A server on a free port without embedded workers, which learns its model from the first worker to attach.
    pub async fn of_first_worker(options: Options, decide: DecideModel) -> Self {
        let listener = listen("127.0.0.1:0").await.expect("a port is free");
        Self::run(Server::of_first_worker(listener, decide, options).await.expect("the server starts")).await
    }

    /// Runs a server, with metrics on a free port.
    async fn run(server: Server) -> Self {
        let scrapes = listen("127.0.0.1:0").await.expect("a port is free");
        let (addr, handle) = (server.local_addr(), server.handle());
        let metrics = scrapes.local_addr().expect("a listener has an address");
        Self { addr, metrics, handle, running: tokio::spawn(server.with_metrics(scrapes).run()) }
    }

    /// Stops the server from outside.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// A connection of its own.
    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.addr)).expect("an address");
        endpoint.connect().await.expect("the server listens")
    }

    /// A client with a connection of its own.
    pub async fn client(&self) -> Client {
        Client(InferenceClient::new(self.channel().await))
    }

    /// A client with a connection of its own, from another loopback address: 127.0.0.`last`, as if on another machine.
    pub async fn client_from(&self, last: u8) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.addr)).expect("an address");
        let endpoint = endpoint.local_address(Some([127, 0, 0, last].into()));
        Client(InferenceClient::new(endpoint.connect().await.expect("the server listens")))
    }

    /// Waits until the server has stopped.
    pub async fn stopped(self) -> Outcome {
        self.running.await.expect("the server does not panic").expect("the server stops in order")
    }

    /// Lets running requests end and stops the server.
    pub async fn drain(self) -> Outcome {
        self.handle.drain().await;
        self.stopped().await
    }
}

/// Makes a maker of the only worker from what wraps that worker.
fn wrap_once(
    wrap: impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + 'static,
) -> impl Fn(EngineId, Worker) -> Box<dyn StepRunner> + Send + Sync + 'static {
    let once = Mutex::new(Some(wrap));
    move |_, worker| {
        let wrap = once.lock().expect("no wrap panics").take().expect("the only worker is made once");
        wrap(worker)
    }
}

/// A client of a [`TestServer`].
#[derive(Clone)]
pub struct Client(pub InferenceClient<Channel>);

impl Client {
    /// Sends a request and returns its stream once the server has accepted it.
    pub async fn open(&mut self, request: GenerateRequest) -> Result<Streaming<GenerateResponse>, Status> {
        self.0.generate(request).await.map(Response::into_inner)
    }

    /// Sends a request and reads its answer to the end.
    pub async fn ask(&mut self, request: GenerateRequest) -> Result<Answer, Status> {
        collect(self.open(request).await?).await
    }

    /// The state of the server.
    pub async fn info(&mut self) -> GetServerInfoResponse {
        self.0.get_server_info(GetServerInfoRequest {}).await.expect("the server answers").into_inner()
    }

    /// Asks for the state of the server until it is as wanted.
    pub async fn until(&mut self, wanted: impl Fn(&GetServerInfoResponse) -> bool) -> GetServerInfoResponse {
        for _ in 0..ATTEMPTS_MAX {
            let info = self.info().await;
            if wanted(&info) {
                return info;
            }
        }
        panic!("the server did not get there: {:?}", self.info().await);
    }

    /// Waits until no request is left, and checks that every block has come back.
    pub async fn settled(&mut self) -> GetServerInfoResponse {
        // The blocks of a request that ended early come back when the step that runs it ends, and those of a load that nobody waits for any more
        // when the copy ends.
        let is_settled = |info: &GetServerInfoResponse| {
            let (load, blocks) = (info.load.unwrap(), info.blocks.unwrap());
            let all_blocks = info.limits.as_ref().unwrap().device_blocks * info.engines.len() as u32;
            // Each layer group has so many.
            let n = blocks.free + blocks.idle;
            load.waiting + load.running + blocks.held + blocks.private == 0 && n > 0 && n.is_multiple_of(all_blocks)
        };
        self.until(is_settled).await
    }
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The request's id.
    pub request_id: String,
    /// Token ids of all chunks.
    pub token_ids: Vec<u32>,
    /// Text of all chunks.
    pub text: String,
    /// Log probabilities of all chunks.
    pub logprobs: Vec<TokenLogprob>,
    /// Log probabilities of the prompt.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it consumed.
    pub usage: Usage,
    /// What stopped it.
    pub stopped_by: Option<StoppedBy>,
}

/// Reads a stream to its end and checks its form: chunks, one finish, nothing after it.
pub async fn collect(mut stream: Streaming<GenerateResponse>) -> Result<Answer, Status> {
    let mut answer = Answer {
        request_id: String::new(),
        token_ids: Vec::new(),
        text: String::new(),
        logprobs: Vec::new(),
        prompt_logprobs: Vec::new(),
        reason: FinishReason::Unspecified,
        usage: Usage::default(),
        stopped_by: None,
    };
    let mut finished = false;
    while let Some(response) = stream.message().await? {
        assert!(!finished, "nothing comes after the finish");
        assert!(answer.request_id.is_empty() || answer.request_id == response.request_id);
        answer.request_id = response.request_id;
        match response.event.expect("an event") {
            Event::Chunk(chunk) => {
                assert!(chunk.prompt_logprobs.is_empty() || answer.token_ids.is_empty(), "the prompt comes first");
                answer.prompt_logprobs.extend(chunk.prompt_logprobs);
                answer.token_ids.extend(chunk.token_ids);
                answer.text.push_str(&chunk.text);
                answer.logprobs.extend(chunk.logprobs);
            }
            Event::Finish(finish) => {
                answer.reason = finish.reason();
                answer.usage = finish.usage.expect("usage");
                answer.stopped_by = finish.stopped_by;
                finished = true;
            }
        }
    }
    assert!(finished, "a stream that ends well has a finish");
    assert_eq!(answer.usage.completion_tokens as usize, answer.token_ids.len());
    Ok(answer)
}

/// A greedy request that generates exactly `max_tokens` tokens.
pub fn greedy(text: &str, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::Text(text.into())),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        stopping: Some(Stopping { max_tokens: Some(max_tokens), ignore_eos: true, ..Stopping::default() }),
        output: Some(Output::default()),
        ..GenerateRequest::default()
    }
}

/// A worker that runs a step whenever the gate lets one through.
pub struct Gated {
    worker: Worker,
    gate: mpsc::Receiver<()>,
}

/// What wraps a worker so that it is [`Gated`], and its gate: a message lets one step through, and without the sender the
/// gate is open.
pub fn gated() -> (impl FnOnce(Worker) -> Box<dyn StepRunner> + Send + use<>, mpsc::Sender<()>) {
    let (sender, gate) = mpsc::channel();
    (move |worker| -> Box<dyn StepRunner> { Box::new(Gated { worker, gate }) }, sender)
}

impl StepRunner for Gated {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        // An error means that the gate is open for good.
        let _ = self.gate.recv();
        StepRunner::run(&mut self.worker, step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

/// A worker that fails at some steps and panics at others.
pub struct Faulty {
    /// The worker.
    pub worker: Worker,
    /// Steps at which it fails.
    pub fails_at: Vec<u64>,
    /// Steps at which it panics.
    pub panics_at: Vec<u64>,
    /// Whether it panics when it is reset.
    pub panics_at_reset: bool,
}

impl StepRunner for Faulty {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        if self.panics_at.contains(&step.id) {
            panic_quietly();
        }
        if self.fails_at.contains(&step.id) {
            return Err(StepError::new("a failure that the test wants"));
        }
        StepRunner::run(&mut self.worker, step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        if self.panics_at_reset {
            panic_quietly();
        }
        self.worker.reset();
    }
}

/// Panics without the message: to print where takes a second or more where backtraces are asked for, in which the server takes the worker for slow.
pub fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("a panic that the test wants"))
}
