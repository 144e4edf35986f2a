//! The server's end of a connection for checks: waits for a worker to dial, and exchanges messages with the worker.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use trunkline_port::StepOutput;

use crate::done::SentStep;
use crate::hello::{Hello, Resume};
use crate::session::Session;
use crate::shared_memory::Region;
use crate::wire;
use crate::wire::from_worker::Message as FromWorker;
use crate::wire::to_worker::Message as ToWorker;
use crate::wire::workers_server::{Workers, WorkersServer};

/// Maximum number of bytes of a message.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (64 << 20);
/// Slots of shared memory.
const SLOTS: u32 = 4;
/// Longest time between two messages of a side.
const HEARTBEAT: Duration = Duration::from_millis(1000);
/// Time without a message after which a connection counts as broken.
const SILENCE: Duration = Duration::from_secs(60);

/// Reason for failing a check, one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Failure(pub(super) String);

/// Makes a failure of a condition.
pub(super) fn ensure(good: bool, line: impl FnOnce() -> String) -> Result<(), Failure> {
    if good { Ok(()) } else { Err(Failure(line())) }
}

/// Call of a worker, before its Hello was read.
struct Call {
    /// `true` if the worker dialled by the loopback address: on this machine.
    is_local: bool,
    messages: Streaming<wire::FromWorker>,
    answers: UnboundedSender<Result<wire::ToWorker, Status>>,
}

/// Passes calls on to the check.
struct Service {
    calls: UnboundedSender<Call>,
}

#[tonic::async_trait]
impl Workers for Service {
    type AttachStream = UnboundedReceiverStream<Result<wire::ToWorker, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<wire::FromWorker>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (answers, stream) = unbounded_channel();
        let is_local = request.remote_addr().is_some_and(|addr| addr.ip().is_loopback());
        let _ = self.calls.send(Call { is_local, messages: request.into_inner(), answers });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

/// Listener that workers dial.
pub(super) struct Door {
    calls: UnboundedReceiver<Call>,
    /// Time to wait for each message of a worker.
    pub(super) patience: Duration,
    server: JoinHandle<()>,
}

impl Door {
    /// Serves calls on a listener.
    pub(super) fn open(listener: TcpListener, patience: Duration) -> Self {
        let (calls, queue) = unbounded_channel();
        let service = WorkersServer::new(Service { calls })
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = tokio::spawn(async move {
            let _ = Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        Self { calls: queue, patience, server }
    }

    /// Waits for a worker to dial and for its Hello.
    async fn hello(&mut self) -> Result<(Call, Hello), Failure> {
        let mut call = timeout(self.patience, self.calls.recv())
            .await
            .map_err(|_| Failure(format!("no worker dialled within {} s", self.patience.as_secs_f32())))?
            .ok_or_else(|| Failure("the listener has ended".into()))?;
        let first = timeout(self.patience, call.messages.message()).await;
        let first = first.map_err(|_| Failure("the worker dialled, and sent no Hello".into()))?;
        let message = first.map_err(|status| Failure(format!("the call failed: {status}")))?;
        let Some(FromWorker::Hello(hello)) = message.and_then(|message| message.message) else {
            return Err(Failure("the first message of the worker is not a Hello".into()));
        };
        match Hello::decode(hello) {
            Ok(hello) => Ok((call, hello)),
            Err(fault) => {
                let _ = call.answers.send(Err(Status::invalid_argument(fault.to_string())));
                Err(Failure(fault.to_string()))
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Attached worker.
pub(super) struct Peer {
    door: Door,
    pub(super) hello: Hello,
    pub(super) session: Session,
    messages: Streaming<wire::FromWorker>,
    answers: UnboundedSender<Result<wire::ToWorker, Status>>,
    heart: JoinHandle<()>,
    /// Memory offered on this connection, and `true` once the worker has opened the memory.
    shared: Option<(Region, bool)>,
    /// `true` if the worker dialled by the loopback address.
    pub(super) is_local: bool,
    /// Present life of the worker's KV.
    pub(super) life: u64,
    last_id: u64,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.heart.abort();
    }
}

impl Peer {
    /// Waits for a worker, and welcomes it to a new session.
    pub(super) async fn accept(mut door: Door) -> Result<Self, Failure> {
        let (call, hello) = door.hello().await?;
        let mut session = session_of(&hello, 1, false);
        let shared = share(&hello, &mut session);
        let heart = welcome(&call, &session);
        let Call { is_local, messages, answers } = call;
        Ok(Self { door, hello, session, messages, answers, heart, shared, is_local, life: 1, last_id: 0 })
    }

    /// Breaks the connection, waits for the worker to come back, and returns the session that the worker asked to resume. `resume` continues
    /// the session if the worker asked for the right one.
    pub(super) async fn reconnect(&mut self, resume: bool) -> Result<Option<Resume>, Failure> {
        self.heart.abort();
        let _ = self.answers.send(Err(Status::unavailable("the check breaks the connection")));
        let (call, hello) = self.door.hello().await?;
        let asked = hello.resume.clone();
        let present = Resume { session: self.session.name.clone(), life: self.life };
        let resumed = resume && asked.as_ref() == Some(&present);
        if !resumed {
            self.life += 1;
        }
        self.session = session_of(&hello, self.life, resumed);
        if !resumed {
            self.session.name = format!("check-{}", self.life);
        }
        self.shared = share(&hello, &mut self.session);
        self.heart = welcome(&call, &self.session);
        self.hello = hello;
        self.is_local = call.is_local;
        (self.messages, self.answers) = (call.messages, call.answers);
        Ok(asked)
    }

    /// Returns the number of blocks for each layer group.
    pub(super) fn group_blocks(&self) -> u32 {
        self.session.blocks / self.hello.model.n_groups()
    }

    /// Returns the block of a layer group that accompanies `block` of the first group. Blocks are numbered over all groups together.
    pub(super) fn in_group(&self, block: u32, group: u32) -> u32 {
        block + group * self.group_blocks()
    }

    /// Returns a block of the first group and its blocks in the other groups.
    pub(super) fn in_groups(&self, block: u32) -> impl Iterator<Item = u32> + use<> {
        let group_blocks = self.group_blocks();
        (0..self.hello.model.n_groups()).map(move |group| block + group * group_blocks)
    }

    /// Returns the shared memory, if the worker has opened the memory.
    pub(super) fn shared_region(&self) -> Option<&Region> {
        self.shared.as_ref().filter(|(_, is_open)| *is_open).map(|(region, _)| region)
    }

    /// Returns a new number for a step or a copy.
    pub(super) fn id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Sends a message.
    pub(super) fn send(&self, message: Option<ToWorker>) {
        // If the worker is gone, waiting for its answer fails.
        let _ = self.answers.send(Ok(wire::ToWorker { message }));
    }

    /// Waits for the next message, heartbeats included. Notes that shared memory was opened.
    pub(super) async fn any(&mut self) -> Result<FromWorker, Failure> {
        loop {
            let opened = match self.message().await? {
                FromWorker::SharedMemoryOpened(opened) => opened,
                message => return Ok(message),
            };
            match &mut self.shared {
                Some((region, is_open @ false)) if region.is_proved_by(&opened) => *is_open = true,
                Some((_, false)) => return Err(Failure("SharedMemoryOpened has another proof than the memory".into())),
                Some((_, true)) => return Err(Failure("the worker sent a second SharedMemoryOpened".into())),
                None => return Err(Failure("the worker opened shared memory that was not offered".into())),
            }
        }
    }

    async fn message(&mut self) -> Result<FromWorker, Failure> {
        let patience = self.door.patience;
        let message = timeout(patience, self.messages.message()).await;
        let message = message.map_err(|_| Failure(format!("no message within {} s", patience.as_secs_f32())))?;
        match message {
            Ok(Some(message)) => message.message.ok_or_else(|| Failure("the worker sent an empty message".into())),
            Ok(None) => Err(Failure("the worker ended the call".into())),
            Err(status) => Err(Failure(format!("the connection broke: {}", status.message()))),
        }
    }

    /// Waits for the next message other than a heartbeat.
    pub(super) async fn next(&mut self) -> Result<FromWorker, Failure> {
        // Heartbeats come forever, so they do not count as an answer.
        let patience = self.door.patience;
        let wait = async {
            loop {
                match self.any().await? {
                    FromWorker::Heartbeat(_) => {}
                    message => return Ok(message),
                }
            }
        };
        let late = || Failure(format!("no answer within {} s", patience.as_secs_f32()));
        timeout(patience, wait).await.unwrap_or_else(|_| Err(late()))
    }

    /// Waits for the answer to a step.
    pub(super) async fn done(&mut self, sent: &SentStep) -> Result<StepOutput, Failure> {
        match self.next().await? {
            FromWorker::StepDone(done) => sent.decode(done).map_err(|fault| Failure(fault.to_string())),
            FromWorker::StepFailed(failed) => Err(Failure(format!("step {} failed: {}", failed.id, failed.reason))),
            other => Err(unexpected(&other, "a StepDone")),
        }
    }

    /// Waits for the failure of a step.
    pub(super) async fn failed(&mut self, id: u64) -> Result<(), Failure> {
        match self.next().await? {
            FromWorker::StepFailed(failed) => {
                let named = (failed.id, failed.life) == (id, self.life);
                ensure(named, || {
                    format!(
                        "StepFailed names step {} of life {} instead of {id} of {}",
                        failed.id, failed.life, self.life
                    )
                })?;
                ensure(!failed.reason.is_empty(), || "StepFailed has no reason".into())
            }
            other => Err(unexpected(&other, "a StepFailed")),
        }
    }

    /// Begins a life.
    pub(super) async fn reset(&mut self) -> Result<(), Failure> {
        self.life += 1;
        self.send(Some(ToWorker::Reset(wire::Reset { life: self.life })));
        loop {
            match self.next().await? {
                FromWorker::ResetDone(done) if done.life == self.life => return Ok(()),
                // Answers of the earlier life may be under way.
                FromWorker::StepDone(done) if done.life < self.life => {}
                FromWorker::StepFailed(failed) if failed.life < self.life => {}
                other => return Err(unexpected(&other, "a ResetDone of the new life")),
            }
        }
    }

    /// Reads a block; the inner error is the worker's.
    pub(super) async fn try_read(&mut self, block: u32) -> Result<Result<Vec<u8>, String>, Failure> {
        let id = self.id();
        self.send(Some(ToWorker::ReadBlock(wire::ReadBlock { id, life: self.life, block, slot: None })));
        match self.next().await? {
            FromWorker::BlockRead(read) if read.id == id && read.error.is_empty() => Ok(Ok(read.data)),
            FromWorker::BlockRead(read) if read.id == id => Ok(Err(read.error)),
            other => Err(unexpected(&other, "a BlockRead with the number of the ReadBlock")),
        }
    }

    /// Reads a block.
    pub(super) async fn read(&mut self, block: u32) -> Result<Vec<u8>, Failure> {
        let data =
            self.try_read(block).await?.map_err(|error| Failure(format!("block {block} was not read: {error}")))?;
        let expected = self.hello.model.block_bytes(self.session.block_size);
        ensure(data.len() as u64 == expected, || {
            format!("block {block} has {} bytes; by kv_bytes_per_token there are {expected}", data.len())
        })?;
        Ok(data)
    }

    /// Writes a block; the inner error is the worker's.
    pub(super) async fn try_write(&mut self, block: u32, data: Vec<u8>) -> Result<Result<(), String>, Failure> {
        let id = self.id();
        let write = wire::WriteBlock { id, life: self.life, block, data, ..Default::default() };
        self.written(write).await
    }

    /// Sends a writing, and waits for the answer; the inner error is the worker's.
    pub(super) async fn written(&mut self, write: wire::WriteBlock) -> Result<Result<(), String>, Failure> {
        let id = write.id;
        self.send(Some(ToWorker::WriteBlock(write)));
        match self.next().await? {
            FromWorker::BlockWritten(written) if written.id == id && written.error.is_empty() => Ok(Ok(())),
            FromWorker::BlockWritten(written) if written.id == id => Ok(Err(written.error)),
            other => Err(unexpected(&other, "a BlockWritten with the number of the WriteBlock")),
        }
    }

    /// Writes a block.
    pub(super) async fn write(&mut self, block: u32, data: Vec<u8>) -> Result<(), Failure> {
        let written = self.try_write(block, data).await?;
        written.map_err(|error| Failure(format!("block {block} was not written: {error}")))
    }
}

/// Settings of a session with a worker: as much as the check can use of the worker's announcement.
fn session_of(hello: &Hello, life: u64, resumed: bool) -> Session {
    let block_size = hello.kv.block_sizes[0];
    let blocks = (hello.kv.tokens / u64::from(block_size)).min(4096) as u32;
    Session {
        name: "check-1".into(),
        life,
        resumed,
        engine: 0,
        block_size,
        blocks,
        steps_in_flight: hello.abilities.steps_in_flight.min(2),
        max_drafts: 0,
        heartbeat: HEARTBEAT,
        silence: SILENCE,
        resume: Duration::from_secs(60),
        shared_memory: None,
    }
}

/// Shares memory with a worker that can, if the system has any.
fn share(hello: &Hello, session: &mut Session) -> Option<(Region, bool)> {
    if !hello.abilities.shared_memory || !hello.kv.block_io {
        return None;
    }
    // Nobody else opens this memory: the secret need not be one.
    let secret = std::array::from_fn(|at| (session.life as u8).wrapping_mul(31).wrapping_add(at as u8));
    let region = Region::create(SLOTS, hello.model.block_bytes(session.block_size), secret).ok()?;
    session.shared_memory = Some(region.offer());
    Some((region, false))
}

/// Sends the Welcome, and heartbeats from then on.
fn welcome(call: &Call, session: &Session) -> JoinHandle<()> {
    let message = |message| Ok(wire::ToWorker { message: Some(message) });
    let _ = call.answers.send(message(ToWorker::Welcome(session.encode())));
    let answers = call.answers.clone();
    tokio::spawn(async move {
        let mut beat = interval(HEARTBEAT / 2);
        loop {
            beat.tick().await;
            if answers.send(message(ToWorker::Heartbeat(wire::Heartbeat {}))).is_err() {
                return;
            }
        }
    })
}

pub(super) fn unexpected(message: &FromWorker, expected: &str) -> Failure {
    let name = match message {
        FromWorker::Hello(_) => "a second Hello".into(),
        FromWorker::StepDone(done) => format!("StepDone of step {} of life {}", done.id, done.life),
        FromWorker::StepFailed(failed) => format!("StepFailed of step {} ({})", failed.id, failed.reason),
        FromWorker::ResetDone(done) => format!("ResetDone of life {}", done.life),
        FromWorker::BlockRead(read) => format!("BlockRead {}", read.id),
        FromWorker::BlockWritten(written) => format!("BlockWritten {}", written.id),
        FromWorker::Heartbeat(_) => "Heartbeat".into(),
        FromWorker::SharedMemoryOpened(_) => "SharedMemoryOpened".into(),
    };
    Failure(format!("the worker sent {name} instead of {expected}"))
}
