//! Puts the parts together and serves.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::server::{Router, TcpIncoming};
use trunkline_core::{Config, ConfigError, Core};
use trunkline_port::{ModelInfo, StepRunner};
use trunkline_text::Tokenizer;

use crate::commands::{Command, DriverHandle};
use crate::driver::{self, Outcome};
use crate::proto::FILE_DESCRIPTOR_SET;
use crate::proto::inference_server::InferenceServer;
use crate::recorder::Recorder;
use crate::service::InferenceService;
use crate::shutdown::ServerHandle;

/// A message from a client has at most this many bytes; a million token ids take up to five.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Calls on one connection at once. The limit that matters is the core's queue, which answers when it is full; HTTP/2 would let
/// the client wait without a word.
const STREAMS_PER_CONNECTION_MAX: u32 = 1 << 16;
/// A client that does not answer a ping in time is gone, and its requests are aborted.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long clients may take to read the ends of their streams when the core is done.
const LINGER: Duration = Duration::from_secs(5);
/// The same if someone is in a hurry.
const LINGER_HURRIED: Duration = Duration::from_millis(500);

/// Model to serve: its facts, its tokenizer, and the worker that runs its steps.
pub struct Backend {
    /// Name, limits and shape of the model.
    pub model: ModelInfo,
    /// Converts between text and tokens.
    pub tokenizer: Tokenizer,
    /// Worker that runs the steps.
    pub runner: Box<dyn StepRunner>,
}

/// How to serve.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The core's limits. `max_context` is lowered to the model's.
    pub config: Config,
    /// Where to record every event of the core; compressed if the name ends in `.gz`. The recording has the prompts, as token
    /// ids.
    pub record: Option<PathBuf>,
}

/// Why a server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is taken, not local, or no address at all.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address as given.
        addr: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file for the recording cannot be written.
    #[error("cannot record to {}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The transport failed.
    #[error("the transport failed")]
    Transport(#[from] tonic::transport::Error),
    /// The descriptors of the protocol could not be read.
    #[error("reflection cannot be served")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The core's thread panicked.
    #[error("the scheduler stopped unexpectedly; this is a defect of Trunkline")]
    CoreLost,
}

/// Takes an address, `host:port`; port 0 is any free one.
///
/// # Errors
/// If it is taken, not local, or no address at all.
pub async fn listen(addr: &str) -> Result<TcpListener, ServerError> {
    TcpListener::bind(addr).await.map_err(|source| ServerError::Listen { addr: addr.into(), source })
}

/// Stops the threads of a server when it is dropped, wherever it is then.
struct StopOnDrop(DriverHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // Waits for no longer than the core's thread takes for the commands before. If it has ended, that is what we want.
        self.0.send_blocking(Command::Shutdown);
    }
}

/// A server that is ready to serve. Dropping it, or the future of [`Server::run`], ends all requests and stops its threads.
pub struct Server {
    addr: SocketAddr,
    incoming: TcpIncoming,
    router: Router,
    handle: ServerHandle,
    stop: StopOnDrop,
    outcome: oneshot::Receiver<Outcome>,
}

impl Server {
    /// Starts the threads of the core and the worker. Clients that connect are answered once [`Server::run`] is called.
    ///
    /// # Errors
    /// If a setting or the recording's file cannot be used.
    pub async fn new(listener: TcpListener, backend: Backend, options: Options) -> Result<Self, ServerError> {
        let Backend { model, tokenizer, runner } = backend;
        let mut config = options.config;
        config.max_context = config.max_context.min(model.max_context);
        let core = Core::new(config.clone())?;
        let addr = listener.local_addr().map_err(|source| ServerError::Listen { addr: "a socket".into(), source })?;
        let recorder = options
            .record
            .map(|path| Recorder::create(&path, &config).map_err(|source| ServerError::Record { path, source }))
            .transpose()?;
        let (driver, outcome) = driver::spawn(core, runner, recorder).map_err(ServerError::Thread)?;
        let stop = StopOnDrop(driver.clone());

        let (reporter, health) = tonic_health::server::health_reporter();
        let handle = ServerHandle::new(driver.clone(), reporter).await;
        let service = InferenceServer::new(InferenceService::new(driver, model, tokenizer, config))
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
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

    /// Where the server listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops the server from anywhere.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Serves until the server is told to stop and has stopped.
    ///
    /// # Errors
    /// If the transport fails or the core's thread panics.
    pub async fn run(self) -> Result<Outcome, ServerError> {
        let Self { incoming, router, handle, stop: _stop, mut outcome, .. } = self;
        let (close, closed) = oneshot::channel::<()>();
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
