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
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use trunkline_port::{Step, StepOutput};

use crate::done::{DoneFault, SentStep};
use crate::encoder::StepEncoder;
use crate::hello::Hello;
use crate::session::Session;
use crate::shared_memory::{Region, RegionFault};
use crate::wire;
use crate::wire::from_worker::Message as FromWorker;
use crate::wire::to_worker::Message as ToWorker;
use crate::wire::workers_server::{Workers, WorkersServer};
use crate::worker::{self, Dialled, MakeRunner};

/// Copies under way at once, at most, and slots of shared memory.
const COPIES: u32 = 4;
/// Maximum number of bytes of one message.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Memory offered to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// Memory of this machine.
    Here,
    /// Memory of another machine, which the worker cannot open.
    Elsewhere,
}

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
    /// A block was not copied.
    #[error("block {block} was not copied: {reason}")]
    Copy {
        /// Number of the block.
        block: u32,
        /// Reason of the worker.
        reason: String,
    },
    /// Memory could not be shared.
    #[error(transparent)]
    Shared(#[from] RegionFault),
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
    block_bytes: usize,
    /// Memory offered to the worker.
    region: Option<Region>,
    /// `true` once the worker has opened the memory.
    is_shared: bool,
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
        Self::start_sharing(hello, make, None)
    }

    /// Starts a worker as [`Loopback::start`] does, and offers memory for copies of blocks.
    ///
    /// # Errors
    /// If threads, sockets or memory cannot be had, or the worker does not attach.
    pub fn start_sharing(
        hello: Hello,
        make: MakeRunner,
        shared_memory: Option<Offered>,
    ) -> Result<Self, LoopbackError> {
        let threads = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (server, client) = (threads()?, threads()?);
        let block_size = hello.kv.block_sizes.first().copied().unwrap_or(1);
        let block_bytes = hello.model.block_bytes(block_size);
        let region = shared_memory.map(|_| Region::create(COPIES, block_bytes, [7; 32])).transpose()?;
        let mut offer = region.as_ref().map(Region::offer);
        if shared_memory == Some(Offered::Elsewhere) {
            offer.iter_mut().for_each(|offer| offer.pid = u32::MAX);
        }
        let session = Session {
            shared_memory: offer,
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
        let service = WorkersServer::new(Service { hello: said_hello, messages, welcome: session.encode() })
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        server.spawn(async move {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let _ = Server::builder().add_service(service).serve_with_incoming(incoming).await;
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
        let (block_bytes, sent) = (block_bytes as usize, VecDeque::new());
        let (is_shared, busy_us) = (false, 0);
        Ok(Self { to_worker, from_worker, encoder, sent, stop, busy_us, block_bytes, region, is_shared, runtimes })
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

    /// Returns `true` if copies go through shared memory: the worker has opened the memory, before it answered the first copy.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn slot(&self, block: u32) -> Option<(&Region, u32)> {
        self.region.as_ref().filter(|_| self.is_shared).map(|region| (region, block % COPIES))
    }

    /// Copies blocks 0, 1 .. out of the worker, a few at a time, as many as `bytes` holds.
    ///
    /// # Errors
    /// If a block is not copied, or the worker is gone.
    pub fn read_blocks(&mut self, bytes: &mut [u8]) -> Result<(), LoopbackError> {
        let n = (bytes.len() / self.block_bytes) as u32;
        let mut slots = VecDeque::new();
        for next in 0..n + COPIES {
            if let Some(block) = next.checked_sub(COPIES) {
                let part = bytes.chunks_exact_mut(self.block_bytes).nth(block as usize).unwrap_or_default();
                let slot = slots.pop_front().flatten();
                let FromWorker::BlockRead(read) = self.copied()? else { return Err(LoopbackError::Gone) };
                match (&self.region, slot) {
                    (Some(region), Some(slot)) if read.slot_bytes == part.len() as u64 => region.read(slot, part)?,
                    _ if read.data.len() == part.len() => part.copy_from_slice(&read.data),
                    _ => return Err(LoopbackError::Copy { block, reason: read.error }),
                }
            }
            if next < n {
                let slot = self.slot(next).map(|(_, slot)| slot);
                slots.push_back(slot);
                let (id, life) = (u64::from(next), self.encoder.life());
                let read = wire::ReadBlock { id, life, block: next, slot };
                let _ = self.to_worker.send(Ok(wire::ToWorker { message: Some(ToWorker::ReadBlock(read)) }));
            }
        }
        Ok(())
    }

    /// Copies the bytes of blocks 0, 1 .. to the worker, a few at a time.
    ///
    /// # Errors
    /// If a block is not copied, or the worker is gone.
    pub fn write_blocks(&mut self, bytes: &[u8]) -> Result<(), LoopbackError> {
        let parts: Vec<&[u8]> = bytes.chunks_exact(self.block_bytes).collect();
        for (next, part) in (0..).zip(parts.iter().copied().map(Some).chain([None; COPIES as usize])) {
            // The slot of the next block is that of the oldest copy.
            if let Some(block) = u32::checked_sub(next, COPIES) {
                let FromWorker::BlockWritten(written) = self.copied()? else { return Err(LoopbackError::Gone) };
                if !written.error.is_empty() {
                    return Err(LoopbackError::Copy { block, reason: written.error });
                }
            }
            if let Some(part) = part {
                let (id, life) = (u64::from(next), self.encoder.life());
                let mut write = wire::WriteBlock { id, life, block: next, ..Default::default() };
                match self.slot(next) {
                    Some((region, slot)) => {
                        region.write(slot, part)?;
                        (write.slot, write.slot_bytes) = (Some(slot), part.len() as u64);
                    }
                    None => write.data = part.to_vec(),
                }
                let _ = self.to_worker.send(Ok(wire::ToWorker { message: Some(ToWorker::WriteBlock(write)) }));
            }
        }
        Ok(())
    }

    /// Waits for the answer to the oldest copy.
    fn copied(&mut self) -> Result<FromWorker, LoopbackError> {
        loop {
            match self.from_worker.recv().map_err(|_| LoopbackError::Gone)? {
                FromWorker::SharedMemoryOpened(opened) => {
                    self.is_shared = self.region.as_ref().is_some_and(|region| region.is_proved_by(&opened));
                }
                answer @ (FromWorker::BlockRead(_) | FromWorker::BlockWritten(_)) => return Ok(answer),
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
