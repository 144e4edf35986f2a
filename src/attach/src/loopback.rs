//! A server's end and a worker in one process, joined by a socket: for benchmarks and tests of the wire alone.
//!
//! The threads are those of a server and a worker: the caller's thread stands for the one that owns the cluster, and each side has network
//! threads of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use trunkline_port::{Step, StepOutput};

use crate::done::{DoneFault, SentStep};
use crate::encoder::StepEncoder;
use crate::hello::Hello;
use crate::session::Session;
use crate::wire;
use crate::wire::from_worker::Message as FromWorker;
use crate::wire::to_worker::Message as ToWorker;
use crate::wire::workers_server::{Workers, WorkersServer};
use crate::worker::{self, Dialled, MakeRunner};

/// Reason for the end of a loopback.
#[derive(Debug, thiserror::Error)]
pub enum LoopbackError {
    /// Threads or sockets could not be had.
    #[error("cannot start the loopback: {0}")]
    Io(#[from] io::Error),
    /// The worker's answer does not fit the step.
    #[error(transparent)]
    Done(#[from] DoneFault),
    /// A step failed.
    #[error("step {id} failed: {reason}")]
    Failed {
        /// Number of the step.
        id: u64,
        /// Reason of the worker.
        reason: String,
    },
    /// The worker's end is gone.
    #[error("the worker is gone")]
    Gone,
}

/// A worker behind a socket, and the server's end of the connection.
pub struct Loopback {
    to_worker: UnboundedSender<Result<wire::ToWorker, Status>>,
    from_worker: Receiver<FromWorker>,
    encoder: StepEncoder,
    sent: VecDeque<SentStep>,
    stop: watch::Sender<bool>,
    /// Time that the worker spent on steps, microseconds.
    busy_us: u64,
    /// Network threads of both sides, kept alive.
    runtimes: [Option<Runtime>; 2],
}

/// Answers the first call, and passes messages on.
struct Service {
    hello: Sender<UnboundedSender<Result<wire::ToWorker, Status>>>,
    messages: Sender<FromWorker>,
    welcome: wire::Welcome,
}

#[tonic::async_trait]
impl Workers for Service {
    type AttachStream = UnboundedReceiverStream<Result<wire::ToWorker, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<wire::FromWorker>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (answers, stream) = unbounded_channel();
        let welcome = ToWorker::Welcome(self.welcome.clone());
        let _ = answers.send(Ok(wire::ToWorker { message: Some(welcome) }));
        let _ = self.hello.send(answers);
        let (mut incoming, messages) = (request.into_inner(), self.messages.clone());
        tokio::spawn(async move {
            while let Ok(Some(message)) = incoming.message().await {
                if message.message.is_none_or(|message| messages.send(message).is_err()) {
                    return;
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

impl Loopback {
    /// Starts a worker and attaches it, with the first block size and all blocks of its announcement.
    ///
    /// # Errors
    /// If threads or sockets cannot be had, or the worker does not attach.
    pub fn start(hello: Hello, make: MakeRunner) -> Result<Self, LoopbackError> {
        let threads = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (server, client) = (threads()?, threads()?);
        let block_size = hello.kv.block_sizes.first().copied().unwrap_or(1);
        let session = Session {
            name: "loopback".into(),
            life: 1,
            block_size,
            blocks: (hello.kv.tokens / u64::from(block_size)) as u32,
            steps_in_flight: hello.abilities.steps_in_flight,
            heartbeat: Duration::from_secs(5),
            silence: Duration::from_secs(60),
            ..Session::default()
        };
        let listener = server.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let (said_hello, hellos) = channel();
        let (messages, from_worker) = channel();
        let service = WorkersServer::new(Service { hello: said_hello, messages, welcome: session.encode() });
        server.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let _ = Server::builder().tcp_nodelay(true).add_service(service).serve_with_incoming(incoming).await;
        });
        let (stop, stopped) = watch::channel(false);
        let encoder = StepEncoder::new(session.life, block_size, hello.model.vocab_size);
        let dial = Box::new(move || {
            let endpoint = Endpoint::from_shared(format!("http://{address}"));
            Box::pin(async move { Ok(Dialled { channel: endpoint?.connect().await?, authorization: None }) }) as _
        });
        client.spawn(worker::run(hello, make, dial, stopped));
        let to_worker = hellos.recv_timeout(Duration::from_secs(60)).map_err(|_| LoopbackError::Gone)?;
        let runtimes = [Some(server), Some(client)];
        Ok(Self { to_worker, from_worker, encoder, sent: VecDeque::new(), stop, busy_us: 0, runtimes })
    }

    /// Sends a step. Never waits.
    pub fn send(&mut self, step: &Step) {
        let (message, sent) = self.encoder.encode(step);
        self.sent.push_back(sent);
        let _ = self.to_worker.send(Ok(wire::ToWorker { message: Some(ToWorker::Step(message)) }));
    }

    /// Waits for the answer to the oldest step in flight.
    ///
    /// # Errors
    /// If the step failed, the answer does not fit the step, or the worker is gone.
    pub fn receive(&mut self) -> Result<StepOutput, LoopbackError> {
        let sent = self.sent.pop_front().ok_or(LoopbackError::Gone)?;
        loop {
            match self.from_worker.recv().map_err(|_| LoopbackError::Gone)? {
                FromWorker::StepDone(done) => {
                    self.busy_us += done.busy_us;
                    let output = sent.decode(done)?;
                    self.encoder.recycle(sent);
                    return Ok(output);
                }
                FromWorker::StepFailed(failed) => {
                    return Err(LoopbackError::Failed { id: failed.id, reason: failed.reason });
                }
                _ => {}
            }
        }
    }

    /// Returns the time that the worker has spent on steps, as it reports.
    pub fn busy(&self) -> Duration {
        Duration::from_micros(self.busy_us)
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for runtime in &mut self.runtimes {
            runtime.take().into_iter().for_each(Runtime::shutdown_background);
        }
    }
}
