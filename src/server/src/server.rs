//! Puts the parts together and serves.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_stream::StreamExt;
use tonic::transport::server::{Router, TcpIncoming};
use trunkline_cluster::{Cluster, ClusterConfig, ClusterError, EngineConfig, EngineId};
use trunkline_core::Config;
use trunkline_port::ModelInfo;
use trunkline_text::Tokenizer;

use crate::commands::Command;
use crate::driver::{self, Outcome};
use crate::gather::Gathered;
use crate::proto::FILE_DESCRIPTOR_SET;
use crate::proto::inference_server::InferenceServer;
use crate::queue::DriverHandle;
use crate::recorder::Recorder;
use crate::service::InferenceService;
use crate::shutdown::ServerHandle;
use crate::submission::Submitter;
use crate::watchdog::Watchdog;
use crate::workers::{MakeWorker, WorkerError};

/// Bytes of a token id in a message, at most.
const ID_BYTES_MAX: u64 = 5;
/// Bytes of a message besides the prompt, at most.
const MESSAGE_BYTES_OTHER: u64 = 1 << 20;
/// Calls on one connection at once, at most. The effective limit is the core's queue, with an answer when the queue is full; HTTP/2
/// would let the client wait without a word.
const STREAMS_PER_CONNECTION_MAX: u32 = 1 << 16;
/// A client without an answer to a ping in this time is gone, and the client's requests are aborted.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for clients to read the ends of response streams after the core is done.
const LINGER: Duration = Duration::from_secs(5);
/// Time for clients to read the ends of response streams after a hurried shutdown.
const LINGER_HURRIED: Duration = Duration::from_millis(500);

/// Model to serve: the facts, the tokenizer, and the workers for the model's steps.
pub struct Backend {
    /// Name, limits and shape of the model.
    pub model: ModelInfo,
    /// Converts between text and tokens.
    pub tokenizer: Tokenizer,
    /// Makes the worker of each engine.
    pub workers: MakeWorker,
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Engines and router. The engines are of one model; `max_context` of each is lowered to the model's.
    pub cluster: ClusterConfig,
    /// File to record every input of the cluster to; compressed if the name ends in `.gz`. The recording has the prompts, as token
    /// ids.
    pub record: Option<PathBuf>,
    /// Let tenants share cached blocks, except for requests that ask otherwise. Off, each tenant has a cache of its own.
    pub share_cache: bool,
    /// Time after which a step may be taken for lost, at least; a step also gets many times what such steps take. Zero waits for
    /// ever.
    pub step_timeout: Duration,
}

impl Default for Options {
    /// One engine with default limits, no recording, a cache for each tenant, and a step timeout of 60 s.
    fn default() -> Self {
        Self {
            cluster: ClusterConfig::uniform(&Config::default(), 1),
            record: None,
            share_cache: false,
            step_timeout: Duration::from_secs(60),
        }
    }
}

/// Returns the longest message from a client, bytes: a prompt that fills the context, as text or as token ids, and the other fields.
fn message_bytes_max(max_context: u32, tokenizer: &Tokenizer) -> usize {
    let bytes_each = ID_BYTES_MAX.max(tokenizer.longest_piece().into());
    usize::try_from(u64::from(max_context) * bytes_each + MESSAGE_BYTES_OTHER).unwrap_or(usize::MAX)
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
    /// The file for the recording cannot be written.
    #[error("cannot record to {}", path.display())]
    Record {
        /// Path of the file for the recording.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The HTTP/2 transport failed.
    #[error("the transport failed")]
    Transport(#[from] tonic::transport::Error),
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

/// Stops the threads of a server on drop, wherever the drop happens.
struct StopOnDrop(DriverHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // Waits for no longer than the core's thread takes for the commands before. If it has ended, that is what we want.
        self.0.send_blocking(Command::Shutdown);
    }
}

/// A server ready to serve. Dropping the server, or the future of [`Server::run`], ends all requests and stops the threads.
pub struct Server {
    addr: SocketAddr,
    incoming: TcpIncoming,
    router: Router,
    handle: ServerHandle,
    stop: StopOnDrop,
    outcome: oneshot::Receiver<Outcome>,
}

impl Server {
    /// Starts the threads of the core and the workers. Connecting clients are answered once [`Server::run`] is called.
    ///
    /// # Errors
    /// If a setting or the recording's file cannot be used, or a worker cannot be made.
    pub async fn new(listener: TcpListener, backend: Backend, options: Options) -> Result<Self, ServerError> {
        let Backend { model, tokenizer, workers } = backend;
        let Options { cluster: mut config, record, share_cache, step_timeout } = options;
        for engine in &mut config.engines {
            engine.core.max_context = engine.core.max_context.min(model.max_context);
        }
        let cluster = Cluster::new(&config)?;
        let make = |at| workers(EngineId(at)).map_err(|source| ServerError::Worker { engine: EngineId(at), source });
        let runners = (0..config.engines.len() as u32).map(make).collect::<Result<Vec<_>, _>>()?;
        let addr = listener.local_addr().map_err(|source| ServerError::Listen { addr: "a socket".into(), source })?;
        let recorder = record
            .map(|path| Recorder::create(&path, &config).map_err(|source| ServerError::Record { path, source }))
            .transpose()?;
        let watchdog = |engine: &EngineConfig| Watchdog::new(step_timeout, engine.core.recompute_token_ns);
        let watchdogs = config.engines.iter().map(watchdog).collect();
        let (driver, outcome) =
            driver::spawn(cluster, runners, watchdogs, workers, recorder).map_err(ServerError::Thread)?;
        let stop = StopOnDrop(driver.clone());

        let (reporter, health) = tonic_health::server::health_reporter();
        let limits = config.engines.swap_remove(0).core;
        let handle = ServerHandle::new(driver.clone(), reporter).await;
        let message_bytes_max = message_bytes_max(limits.max_context, &tokenizer);
        let submitter = Submitter::new(driver, model, tokenizer, limits).share_cache(share_cache);
        let service =
            InferenceServer::new(InferenceService::new(submitter)).max_decoding_message_size(message_bytes_max);
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let router = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_service(service)
            .add_service(health)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Ok(Self { addr, incoming, router, handle, stop, outcome })
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
    /// If the transport fails or the core's thread panics.
    pub async fn run(self) -> Result<Outcome, ServerError> {
        let Self { incoming, router, handle, stop: _stop, mut outcome, .. } = self;
        let (close, closed) = oneshot::channel::<()>();
        let incoming = incoming.map(|io| io.map(Gathered::new));
        let serve = router.serve_with_incoming_shutdown(incoming, async {
            // An error means that this function has ended, and the future with it.
            let _ = closed.await;
        });
        tokio::pin!(serve);
        let outcome = tokio::select! {
            outcome = &mut outcome => outcome.map_err(|_| ServerError::CoreLost),
            // Without the signal to close it ends only by an error.
            served = &mut serve => {
                served?;
                (&mut outcome).await.map_err(|_| ServerError::CoreLost)
            }
        };
        handle.close_health().await;
        let _ = close.send(());
        let hurried = async {
            handle.hurried().await;
            tokio::time::sleep(LINGER_HURRIED).await;
        };
        // Whoever has not read the end of a stream by then is cut off.
        tokio::select! {
            _ = &mut serve => {}
            () = tokio::time::sleep(LINGER) => {}
            () = hurried => {}
        }
        outcome
    }
}
