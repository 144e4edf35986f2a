//! Puts the parts together and serves.

pub(crate) mod front;
pub(crate) mod shutdown;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Receiver;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tonic::service::Routes;
use tracing::info;
use trunkline_attach::wire::workers_server::WorkersServer;
use trunkline_cluster::{Cluster, ClusterConfig, ClusterError, EngineConfig, EngineId, ListenToCaches};
use trunkline_core::Config;
use trunkline_port::ModelInfo;
use trunkline_store::StoreError;
use trunkline_text::Tokenizer;

use crate::access::Access;
use crate::access::tls::{Tls, TlsError, TlsFiles};
use crate::access::tokens::TokenFileError;
use crate::driver::commands::Command;
use crate::driver::followers::FollowSteps;
use crate::driver::queue::DriverHandle;
use crate::driver::recorder::Recorder;
use crate::driver::start::{Parts, spawn};
use crate::driver::workers::{MakeWorker, WorkerError};
use crate::driver::{self, Outcome};
use crate::edge::accept::Acceptor;
use crate::edge::door::HttpDoor;
use crate::edge::gate::{Gate, Guest};
use crate::engines::seats::AttachOptions;
use crate::engines::stores::EngineStore;
use crate::engines::watchdog::Watchdog;
use crate::metrics::{MetricNames, Metrics, Served};
use crate::network::Network;
use crate::network::limits::{NetworkLimits, open_files_max};
use crate::proto::FILE_DESCRIPTOR_SET;
use crate::proto::inference_server::InferenceServer;
use crate::proto::sessions_server::SessionsServer;
use crate::requests::request_log::RequestLog;
use crate::requests::spans::RequestTracer;
use crate::server::front::Front;
use crate::server::shutdown::ServerHandle;
use crate::service::InferenceService;
use crate::service::attach::{self, Offer, WorkersService};
use crate::service::fit::Fit;
use crate::service::offer::SamplingOffer;
use crate::service::sessions::{SessionOptions, SessionService};
use crate::service::submission::{KvClass, Submitter};

/// Maximum number of bytes of a token id in a message.
const ID_BYTES_MAX: u64 = 5;
/// Maximum number of bytes of a message besides the prompt.
const MESSAGE_BYTES_OTHER: u64 = 1 << 20;
/// Default poll interval for changed files.
const RELOAD: Duration = Duration::from_secs(2);
/// Bounds of the poll interval for unread output.
const UNREAD_INTERVAL_MIN: Duration = Duration::from_millis(1);
const UNREAD_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Time for clients to read the ends of response streams after the core is done.
const LINGER: Duration = Duration::from_secs(5);
/// Time for clients to read the ends of response streams after a hurried shutdown.
const LINGER_HURRIED: Duration = Duration::from_millis(500);

/// Model to serve: the facts, the tokenizer, and the workers for the model's steps.
pub struct Backend {
    /// Name, limits and shape of the model.
    pub model: ModelInfo,
    /// The model as engines with other types of KV have it, in the order of [`EngineConfig::kv_class`] from 1 on.
    pub further_kv: Vec<ModelInfo>,
    /// Converts between text and tokens.
    pub tokenizer: Tokenizer,
    /// Makes the worker of each engine but those for attached workers.
    pub workers: MakeWorker,
    /// Store of each engine's blocks, in order; none for stores in host memory, uncompressed.
    pub stores: Vec<EngineStore>,
    /// Sampling that all workers can do.
    pub offer: SamplingOffer,
}

/// Decides about the first attached worker of a server without a model: returns the backend, and the engines of the cluster, or the
/// reason for refusing the worker.
pub type DecideModel = Box<dyn FnMut(&trunkline_attach::Hello) -> Result<(Backend, ClusterConfig), WorkerError> + Send>;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Engines and router. The engines are of one model; `max_context` of each is lowered to the model's.
    pub cluster: ClusterConfig,
    /// File to record every input of the cluster to; compressed if the name ends in `.gz`. A file of this name becomes
    /// `FILE.old`. The recording has the prompts, as token ids.
    pub record: Option<PathBuf>,
    /// File with a row for each request that ended or was refused: JSON lines if the name ends in `.jsonl` or `.json`, else CSV. Rows are added to a
    /// file that is there. The rows have ids, tenants, sizes and times, no prompts and no answers.
    pub requests: Option<PathBuf>,
    /// Receiver of a span for each request that ended or was refused.
    pub tracer: Option<Arc<dyn RequestTracer>>,
    /// Receiver of each step that ended.
    pub steps: Option<Arc<dyn FollowSteps>>,
    /// Maximum number of requests of one client on the way to their first token; `None` for half of the engines' `max_queue`. A client is the holder
    /// of a token, or without tokens everyone at one address.
    pub queue_per_client: Option<u32>,
    /// Maximum number of open requests of one client, waiting or running; `None` for no bound.
    pub requests_per_client: Option<u32>,
    /// Limits of sessions.
    pub sessions: SessionOptions,
    /// Let tenants share cached blocks, except for requests that ask otherwise. Off, each tenant has a cache of its own.
    pub share_cache: bool,
    /// Time after which a step may be taken for lost, at least; a step also gets many times what such steps take. Zero waits for
    /// ever.
    pub step_timeout: Duration,
    /// Attached workers: the last engines of the cluster.
    pub attach: AttachOptions,
    /// Limits of connections and of the calls on them.
    pub network: NetworkLimits,
    /// Names of the metrics.
    pub metric_names: MetricNames,
    /// Without tokens: every client may flush the cache and read all counters. `None`: if the listener's address is loopback.
    pub admin: Option<bool>,
    /// File of bearer tokens, one a line: `TOKEN ROLE [NAME]`, with the role `generate`, `admin` or `worker`. `None`: everyone may call.
    pub token_file: Option<PathBuf>,
    /// Certificate and key of the server. `None`: no TLS.
    pub tls: Option<TlsFiles>,
    /// Poll interval for changes of the files of tokens and TLS.
    pub reload: Duration,
    /// Longest time for which a drain waits for requests, which then end with UNAVAILABLE. `None`: for ever.
    pub drain_timeout: Option<Duration>,
    /// Follows the caches of the engines from outside.
    pub cache_listener: Option<ListenToCaches>,
}

impl Default for Options {
    /// One engine with default limits, no recording, a cache for each tenant, and a step timeout of 60 s.
    fn default() -> Self {
        let cluster = ClusterConfig::uniform(&Config::default(), 1);
        Self {
            cluster,
            record: None,
            requests: None,
            tracer: None,
            steps: None,
            queue_per_client: None,
            requests_per_client: None,
            sessions: SessionOptions::default(),
            share_cache: false,
            step_timeout: Duration::from_secs(60),
            attach: AttachOptions::default(),
            network: NetworkLimits::default(),
            metric_names: MetricNames::default(),
            admin: None,
            token_file: None,
            tls: None,
            reload: RELOAD,
            drain_timeout: None,
            cache_listener: None,
        }
    }
}

/// Returns the longest message from a client, bytes: a prompt that fills the context, as text or as token ids, and the other fields;
/// no more than one connection may send at once.
fn message_bytes_max(max_context: u32, tokenizer: &Tokenizer, limits: &NetworkLimits) -> usize {
    let bytes_each = ID_BYTES_MAX.max(tokenizer.longest_piece().into());
    let bytes = u64::from(max_context) * bytes_each + MESSAGE_BYTES_OTHER;
    usize::try_from(bytes.min(limits.incoming_bytes_per_connection)).unwrap_or(usize::MAX)
}

/// Returns the longest message with an export of a session, bytes: a prompt, or a transcript whose ids take more bytes in a message than
/// in memory.
fn export_bytes_max(message_bytes_max: usize, sessions: &SessionOptions, limits: &NetworkLimits) -> usize {
    let bytes = (2 * sessions.bytes).saturating_add(MESSAGE_BYTES_OTHER).min(limits.incoming_bytes_per_connection);
    usize::try_from(bytes).unwrap_or(usize::MAX).max(message_bytes_max)
}

/// Reason for a failed start or an early end of a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting is out of range.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The worker of an engine could not be made.
    #[error("cannot start the worker of {engine}")]
    Worker {
        /// The engine of the worker.
        engine: EngineId,
        /// Error of the worker.
        source: WorkerError,
    },
    /// The address is taken, not local, or no address at all.
    #[error("cannot listen on {addr}")]
    Listen {
        /// Address in the caller's form.
        addr: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The store of an engine's blocks cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backend has neither no store nor one for each engine.
    #[error("the backend has {stores} stores for {engines} engines; give none, or one for each")]
    Stores {
        /// Stores of the backend.
        stores: usize,
        /// Engines of the server.
        engines: usize,
    },
    /// An engine is of a class of KV that the backend does not have.
    #[error("an engine is of KV class {class}, and the backend has {classes}, numbered from 0")]
    KvClass {
        /// Class of the engine.
        class: u8,
        /// Classes of the backend.
        classes: usize,
    },
    /// The file for the recording cannot be written.
    #[error("cannot record to {}", path.display())]
    Record {
        /// Path of the file for the recording.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file of requests cannot be written.
    #[error("cannot write the requests to {}", path.display())]
    Requests {
        /// Path of the file of requests.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file of tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// The files of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What follows the caches cannot begin.
    #[error("cannot publish cache events")]
    CacheListener(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The descriptors of the protocol could not be read.
    #[error("reflection cannot be served")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The core's thread panicked.
    #[error("the scheduler stopped unexpectedly; this is a defect of Trunkline")]
    CoreLost,
}

/// Listens on an address, `host:port`; port 0 picks any free port.
///
/// # Errors
/// If the address is taken, not local, or malformed.
pub async fn listen(addr: &str) -> Result<TcpListener, ServerError> {
    TcpListener::bind(addr).await.map_err(|source| ServerError::Listen { addr: addr.into(), source })
}

/// Ends calls with unread output, or that wait, beyond the limits, for ever.
async fn watch_unread(network: &Network) {
    let interval = (network.limits.unread / 8).clamp(UNREAD_INTERVAL_MIN, UNREAD_INTERVAL_MAX);
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = network.over.notified() => {}
        }
        network.end_unread();
        network.end_waiting(interval);
    }
}

/// Files that are read again when they change, and opened again on demand.
struct Files {
    access: Arc<Access>,
    network: Arc<Network>,
    tls: Option<Arc<Tls>>,
    request_log: RequestLog,
    reload: Duration,
}

impl Files {
    /// Polls for changes, for ever. On `demand` all files are read again, changed or not.
    async fn watch(&self, demand: &Notify) {
        loop {
            let is_demanded = tokio::select! {
                () = tokio::time::sleep(self.reload) => false,
                () = demand.notified() => true,
            };
            let has_tokens = self.access.reload(is_demanded);
            if let Some(tls) = &self.tls {
                tls.reload(is_demanded, || self.network.connections());
            }
            self.network.end_withdrawn();
            let found = is_demanded && (self.request_log.reopen() || has_tokens || self.tls.is_some());
            if is_demanded && !found {
                info!("there are no files to read again or to open again");
            }
        }
    }
}

/// Stops the threads of a server on drop, wherever the drop happens.
struct StopOnDrop(DriverHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // Waits for no longer than the core's thread takes for the commands before. If it has ended, that is what we want.
        self.0.send_blocking(Command::Shutdown);
    }
}

/// Everything that a server needs to start its threads once the model is known.
struct Start {
    commands: Receiver<Command>,
    driver: DriverHandle,
    options: Options,
    network: Arc<Network>,
    /// Notified when the first engine gets a worker, and when the last loses its worker.
    served: watch::Sender<bool>,
    /// Demands on attached workers.
    fit: watch::Sender<Option<Arc<Fit>>>,
    /// Services of the clients, once they are there.
    routes: Arc<OnceLock<Routes>>,
    inference: Arc<OnceLock<Arc<InferenceService>>>,
    metrics: Arc<Metrics>,
    request_log: RequestLog,
}

/// Threads of a server: running, or waiting for the first worker to know the model.
enum State {
    Running(oneshot::Receiver<Outcome>),
    Waiting { start: Box<Start>, decide: DecideModel, offers: mpsc::Receiver<Offer> },
}

/// A server ready to serve. Dropping the server, or the future of [`Server::run`], ends all requests and stops the threads.
pub struct Server {
    addr: SocketAddr,
    listener: TcpListener,
    acceptor: Acceptor,
    files: Files,
    handle: ServerHandle,
    served: watch::Receiver<bool>,
    stop: Option<StopOnDrop>,
    state: State,
    metrics: Arc<Metrics>,
    /// Listener for scrapes, if metrics are served.
    scrapes: Option<TcpListener>,
    front: Front,
    /// Encoded descriptors of other protocols.
    guests: Vec<&'static [u8]>,
}

/// Returns the service of reflection for the server's protocol and others.
fn reflection(others: &[&'static [u8]]) -> Result<Routes, ServerError> {
    let all = [FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET];
    let builder = || {
        let all = all.iter().chain(others);
        all.fold(tonic_reflection::server::Builder::configure(), |builder, set| {
            builder.register_encoded_file_descriptor_set(set)
        })
    };
    Ok(Routes::new(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

impl Server {
    /// Starts the threads of the core and the workers. Connecting clients are answered once [`Server::run`] is called.
    ///
    /// # Errors
    /// If a setting or the recording's file cannot be used, or a worker cannot be made.
    pub async fn new(listener: TcpListener, backend: Backend, options: Options) -> Result<Self, ServerError> {
        Cluster::new(&options.cluster)?;
        let offer = backend.offer.with_attached(&options.cluster, options.attach.engines);
        let backend = Backend { offer, ..backend };
        let (mut server, start, _) = Self::open(listener, options).await?;
        server.stop = Some(StopOnDrop(start.driver.clone()));
        server.state = State::Running(start.begin(backend, None)?);
        Ok(server)
    }

    /// Returns a server for attached workers alone, which learns its model from the first worker: `decide` returns the backend and the
    /// engines for a worker, or refuses the worker. Until then, clients get UNAVAILABLE.
    ///
    /// # Errors
    /// If a setting cannot be used.
    pub async fn of_first_worker(
        listener: TcpListener,
        decide: DecideModel,
        options: Options,
    ) -> Result<Self, ServerError> {
        let (mut server, start, offers) = Self::open(listener, options).await?;
        server.handle.report_served(false).await;
        server.state = State::Waiting { start: Box::new(start), decide, offers };
        Ok(server)
    }

    /// Opens the network edge.
    async fn open(
        listener: TcpListener,
        options: Options,
    ) -> Result<(Self, Start, mpsc::Receiver<Offer>), ServerError> {
        let addr = listener.local_addr().map_err(|source| ServerError::Listen { addr: "a socket".into(), source })?;
        trunkline_foreign::count();
        let admin = options.admin.unwrap_or_else(|| addr.ip().is_loopback());
        let access = Arc::new(Access::new(admin, options.token_file.clone())?);
        let tls = options.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        let (driver, commands) = driver::commands();
        let (reporter, health) = tonic_health::server::health_reporter();
        let handle = ServerHandle::new(driver.clone(), reporter, options.drain_timeout).await;
        let network = Network::new(options.network.clone().within(open_files_max()), driver.clock());
        let (fit, known_fit) = watch::channel(None);
        let (offer, offers) = mpsc::channel(1);
        let workers =
            WorkersService::new(driver.clone(), options.attach.clone(), options.network.request, known_fit, offer);
        let workers = WorkersServer::new(workers).max_decoding_message_size(attach::message_bytes_max(&options.attach));
        let early = Routes::new(workers).add_service(health);
        let routes = Arc::new(OnceLock::new());
        let gate = Gate::new(early, reflection(&[])?, routes.clone(), access.clone());
        let acceptor = Acceptor { network: network.clone(), gate, tls: tls.clone() };
        let request_log = RequestLog::open(options.requests.as_deref(), options.tracer.clone())
            .map_err(|source| ServerError::Requests { path: options.requests.clone().unwrap_or_default(), source })?;
        let files =
            Files { access, network: network.clone(), tls, request_log: request_log.clone(), reload: options.reload };
        let (served, is_served) = watch::channel(true);
        let metrics = Metrics::new(driver.clone(), network.clone(), options.metric_names);
        let of_start = metrics.clone();
        let inference = Arc::<OnceLock<_>>::default();
        let message_bytes = usize::try_from(network.limits.incoming_bytes_per_connection).unwrap_or(usize::MAX);
        let front = Front::new(inference.clone(), metrics.clone(), handle.serving(), message_bytes);
        let start = Start {
            commands,
            driver,
            options,
            network,
            served,
            fit,
            routes,
            inference,
            metrics: of_start,
            request_log,
        };
        let (_, never) = oneshot::channel();
        let state = State::Running(never);
        let (served, stop, scrapes, guests) = (is_served, None, None, Vec::new());
        let server =
            Self { addr, listener, acceptor, files, handle, served, stop, state, metrics, scrapes, front, guests };
        Ok((server, start, offers))
    }

    /// Answers plain HTTP, on the port of gRPC, through the door that `make` returns. Without one, a client of HTTP/1 gets a line that says so.
    #[must_use]
    pub fn with_http(mut self, make: impl FnOnce(Front) -> Arc<dyn HttpDoor>) -> Self {
        self.acceptor.gate.open_door(make(self.front.clone()));
        self
    }

    /// Serves another protocol in addition to the server's own, on the same port: the service that `make` returns.
    ///
    /// # Errors
    /// If its descriptors cannot be read.
    pub async fn with_guest(mut self, make: impl FnOnce(Front) -> Guest) -> Result<Self, ServerError> {
        let guest = make(self.front.clone());
        self.guests.push(guest.descriptors);
        self.handle.report_also(guest.name).await;
        self.acceptor.gate.invite(guest, reflection(&self.guests)?);
        Ok(self)
    }

    /// Serves metrics for Prometheus on a listener: `GET /metrics` over plain HTTP/1.1, without identification. The metrics have no text of clients,
    /// but say how busy the server is: let only the monitoring system reach the address. Scrapes are answered from [`Server::run`] until its
    /// end, while the server drains, too.
    #[must_use]
    pub fn with_metrics(self, listener: TcpListener) -> Self {
        Self { scrapes: Some(listener), ..self }
    }

    /// Returns the address and port in use by the server.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a handle to stop the server from any thread.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Serves until the server has been stopped through a [`ServerHandle`].
    ///
    /// # Errors
    /// If the transport fails or the core's thread panics, or the threads of a server that waited for a worker cannot be started.
    pub async fn run(self) -> Result<Outcome, ServerError> {
        let Self { listener, acceptor, files, handle, served, stop: _stop, state, metrics, scrapes, .. } = self;
        let (close, closed) = oneshot::channel::<()>();
        let network = acceptor.network.clone();
        let serve = acceptor.serve(listener, async {
            // An error means that this function has ended, and the future with it.
            let _ = closed.await;
        });
        tokio::pin!(serve);
        let scrapes = async {
            match scrapes {
                Some(listener) => metrics.listen(listener).await,
                None => std::future::pending().await,
            }
        };
        let watch = async {
            tokio::join!(watch_unread(&network), files.watch(handle.reloads()), handle.watch_served(served), scrapes)
        };
        tokio::pin!(watch);
        let outcome = tokio::select! {
            outcome = state.outcome(&handle) => outcome,
            () = &mut serve => unreachable!("nobody has asked the connections to end"),
            _ = &mut watch => unreachable!("output and files are watched for ever"),
        };
        handle.close_health().await;
        let _ = close.send(());
        let hurried = async {
            handle.hurried().await;
            tokio::time::sleep(LINGER_HURRIED).await;
        };
        // Streams still unread at the deadline are reset.
        tokio::select! {
            () = &mut serve => {}
            _ = &mut watch => {}
            () = tokio::time::sleep(LINGER) => {}
            () = hurried => {}
        }
        outcome
    }
}

impl State {
    /// Waits for the end of the core's thread, and before that, if need be, for the first worker.
    async fn outcome(self, handle: &ServerHandle) -> Result<Outcome, ServerError> {
        let (start, mut decide, mut offers) = match self {
            Self::Running(outcome) => return outcome.await.map_err(|_| ServerError::CoreLost),
            Self::Waiting { start, decide, offers } => (start, decide, offers),
        };
        let (driver, scores) = (start.driver.clone(), start.options.attach.scores);
        let mut start = Some(start);
        loop {
            let offer = tokio::select! {
                offer = offers.recv() => offer.ok_or(ServerError::CoreLost)?,
                () = handle.stopping() => return Ok(Outcome::default()),
            };
            let hello = offer.hello.clone();
            // Stores may read folders.
            let decided = tokio::task::spawn_blocking(move || {
                let decided = decide(&hello);
                (decide, decided)
            });
            let decided = decided.await.map_err(|_| ServerError::CoreLost)?;
            decide = decided.0;
            let fits = decided.1.and_then(|(backend, cluster)| {
                let cores = cluster.engines.iter().map(|engine| &engine.core);
                Fit::new(&backend.model, cores, backend.offer, scores).check(&offer.hello)?;
                Ok((backend, cluster))
            });
            match fits {
                Ok((backend, cluster)) => {
                    let _stop = StopOnDrop(driver);
                    let start = start.take().ok_or(ServerError::CoreLost)?;
                    let outcome = start.begin(backend, Some(cluster))?;
                    // A worker that was offered meanwhile is checked like any other.
                    drop((offer, offers));
                    return outcome.await.map_err(|_| ServerError::CoreLost);
                }
                // A worker that is gone needs no reason.
                Err(why) => drop(offer.refused.send(why.to_string())),
            }
        }
    }
}

impl Start {
    /// Starts the threads for a model, with the engines of `cluster` or else of the options.
    fn begin(
        self,
        backend: Backend,
        cluster: Option<ClusterConfig>,
    ) -> Result<oneshot::Receiver<Outcome>, ServerError> {
        let Backend { model, further_kv, tokenizer, workers, stores, offer } = backend;
        let Options { cluster: config, record, share_cache, step_timeout, attach, .. } = self.options;
        let Options { queue_per_client, requests_per_client, sessions, steps, .. } = self.options;
        let listener = self.options.cache_listener;
        let mut config = cluster.unwrap_or(config);
        let embedded = config.engines.len().saturating_sub(attach.engines);
        adapt(&mut config.engines, &model, embedded);
        let classes = 1 + further_kv.len();
        if let Some(engine) = config.engines.iter().find(|engine| usize::from(engine.kv_class) >= classes) {
            return Err(ServerError::KvClass { class: engine.kv_class, classes });
        }
        let cluster = Cluster::new(&config)?;
        let make = |at| workers(EngineId(at)).map_err(|source| ServerError::Worker { engine: EngineId(at), source });
        let runners = (0..embedded as u32).map(make).collect::<Result<Vec<_>, _>>()?;
        let stores = open_stores(stores, &config, (&model, &further_kv))?;
        let recorder = record
            .map(|path| Recorder::create(&path, &config).map_err(|source| ServerError::Record { path, source }))
            .transpose()?;
        let watchdog = |engine: &EngineConfig| Watchdog::new(step_timeout, engine.core.recompute_token_ns);
        let watchdogs = config.engines.iter().map(watchdog).collect();
        let cores = config.engines[embedded..].iter().map(|engine| &engine.core);
        let fit = Fit::new(&model, cores, offer, attach.scores);
        let (request_log, served) = (self.request_log.clone(), self.served);
        let make = workers;
        let parts = Parts { cluster, runners, stores, watchdogs, make, attach, recorder, request_log, steps, served };
        begin_listening(listener.as_ref(), &config)?;
        let outcome = spawn(&self.driver, self.commands, parts, listener.clone()).map_err(ServerError::Thread)?;

        let max_queue = config.engines.iter().fold(0, |sum: u32, engine| sum.saturating_add(engine.core.max_queue));
        let queue_per_client = queue_per_client.unwrap_or(max_queue / 2).max(1);
        let kv = KvClass::all(std::iter::once(&model).chain(&further_kv), &config.engines);
        let limits = config.engines.swap_remove(0).core;
        let message_bytes_max = message_bytes_max(limits.max_context, &tokenizer, &self.network.limits);
        let submitter = Submitter::new(self.driver, model, tokenizer, limits)
            .with_kv(kv)
            .share_cache(share_cache)
            .logging(self.request_log)
            .offering(offer)
            .naming(listener)
            .per_client(queue_per_client, requests_per_client.unwrap_or(u32::MAX));
        let submitter = Arc::new(submitter);
        let export_bytes_max = export_bytes_max(message_bytes_max, &sessions, &self.network.limits);
        let sessions = SessionService::new(submitter.clone(), self.network.clone(), sessions);
        self.metrics.serve_model(Served { submitter: submitter.clone(), sessions: sessions.figures() });
        let sessions = SessionsServer::new(sessions).max_decoding_message_size(export_bytes_max);
        let inference = Arc::new(InferenceService::new(submitter, self.network));
        let service = InferenceServer::from_arc(inference.clone()).max_decoding_message_size(message_bytes_max);
        // Each is set once.
        let _ = (self.inference.set(inference), self.routes.set(Routes::new(service).add_service(sessions).prepare()));
        self.fit.send_replace(Some(Arc::new(fit)));
        Ok(outcome)
    }
}

/// Begins to follow the caches of a cluster, if somebody does.
fn begin_listening(listener: Option<&ListenToCaches>, config: &ClusterConfig) -> Result<(), ServerError> {
    let Some(ListenToCaches(listener)) = listener else { return Ok(()) };
    let engines: Vec<&Config> = config.engines.iter().map(|engine| &engine.core).collect();
    listener.begin(&engines).map_err(ServerError::CacheListener)
}

/// Returns the store of each engine: those given, or stores in host memory.
fn open_stores(
    mut stores: Vec<EngineStore>,
    config: &ClusterConfig,
    (model, further_kv): (&ModelInfo, &[ModelInfo]),
) -> Result<Vec<EngineStore>, ServerError> {
    if stores.is_empty() {
        let of_class = |class: u8| further_kv.get(usize::from(class).wrapping_sub(1)).unwrap_or(model);
        let open = |engine: &EngineConfig| EngineStore::in_host_memory(of_class(engine.kv_class), &engine.core);
        stores = config.engines.iter().map(open).collect::<Result<_, _>>()?;
    }
    match stores.len() == config.engines.len() {
        true => Ok(stores),
        false => Err(ServerError::Stores { stores: stores.len(), engines: config.engines.len() }),
    }
}

/// Lowers the contexts of engines to the model's, and sends whole prompts to the attached workers, those behind the first `embedded`: the
/// protocol sends the tokens of a sequence once.
fn adapt(engines: &mut [EngineConfig], model: &ModelInfo, embedded: usize) {
    for (at, engine) in engines.iter_mut().enumerate() {
        engine.core.max_context = engine.core.max_context.min(model.max_context);
        engine.core.worker.all_tokens |= at >= embedded;
    }
}
