//! One connection of a worker: Hello, Welcome, then messages in both directions until either side ends the call.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tracing::info;

use super::copies::{Copy, CopyJob};
use super::engine::{Connection, Engine};
use super::with_sources;
use crate::hello::Hello;
use crate::mirror::StepLimits;
use crate::session::Session;
use crate::shared_memory::Region;
use crate::wire;
use crate::wire::from_worker::Message as FromWorker;
use crate::wire::to_worker::Message as ToWorker;
use crate::wire::workers_client::WorkersClient;

/// Time for the server to answer a Hello.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the server to end a call that the worker has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of one message: a block of 1 GiB and some.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (64 << 20);

/// A way to a server: the channel, and the value of the header `authorization`.
#[derive(Clone, Debug)]
pub struct Dialled {
    /// Channel to the server.
    pub channel: Channel,
    /// Bearer token, as the value of the header.
    pub authorization: Option<MetadataValue<Ascii>>,
}

/// End of a connection.
#[derive(Debug)]
pub(super) enum Ended {
    /// The worker was asked to stop.
    Stopped,
    /// The connection broke, or the server ended it: the worker dials again.
    Broken(String),
    /// The server does not want this worker.
    Refused(String),
}

/// Numbers of a connection for the worker's loop.
pub(super) struct Attached {
    /// Name of the session, once there is one.
    pub(super) session: Option<String>,
    /// Reason of the end.
    pub(super) ended: Ended,
}

impl Ended {
    /// Sorts the failures of a call.
    fn of(status: &Status) -> Self {
        let line = match status.code() {
            Code::Unknown | Code::Cancelled if status.message().is_empty() => "the connection broke".into(),
            // The reason of a connection that could not be made, or broke, is behind the status.
            code => match status.source() {
                Some(source) => format!("{code:?}: {}: {}", status.message(), with_sources(source)),
                None => format!("{code:?}: {}", status.message()),
            },
        };
        match status.code() {
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented => Self::Refused(line),
            _ => Self::Broken(line),
        }
    }
}

/// Attaches a worker until either side ends the call. `number` is the number of the connection.
pub(super) async fn attach(
    dialled: Dialled,
    hello: &Hello,
    number: u64,
    engine: &Engine,
    stop: &mut watch::Receiver<bool>,
) -> Attached {
    let (answers, requests) = unbounded_channel();
    let mut client = WorkersClient::new(dialled.channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut request = Request::new(UnboundedReceiverStream::new(requests));
    if let Some(value) = dialled.authorization {
        request.metadata_mut().insert("authorization", value);
    }
    let _ = answers.send(wire::FromWorker { message: Some(FromWorker::Hello(hello.encode())) });
    let ended = |ended| Attached { session: None, ended };
    let welcome = async {
        let mut messages = client.attach(request).await?.into_inner();
        let first = messages.message().await?;
        Ok::<_, Status>((messages, first))
    };
    let (messages, first) = tokio::select! {
        welcome = timeout(WELCOME_TIMEOUT, welcome) => match welcome {
            Ok(Ok(welcome)) => welcome,
            Ok(Err(status)) => return ended(Ended::of(&status)),
            Err(_) => return ended(Ended::Broken("the server did not answer the hello".into())),
        },
        _ = stop.wait_for(|stop| *stop) => return ended(Ended::Stopped),
    };
    let Some(ToWorker::Welcome(welcome)) = first.and_then(|message| message.message) else {
        return ended(Ended::Refused("the first message of the server is not a Welcome".into()));
    };
    let session = match hello.accept(welcome) {
        Ok(session) => session,
        Err(fault) => return ended(Ended::Refused(fault.to_string())),
    };
    let name = session.name.clone();
    let region = open(&session, &answers);
    let mut link = Link { number, session, region, answers, messages, heard: Instant::now() };
    let ended = link.serve(hello, engine, stop).await;
    Attached { session: Some(name), ended }
}

/// Opens the memory that the server shares, and tells the server. `None` if blocks travel in messages.
fn open(session: &Session, answers: &UnboundedSender<wire::FromWorker>) -> Option<Arc<Region>> {
    match Region::open(session.shared_memory.as_ref()?) {
        Ok(region) => {
            let message = Some(FromWorker::SharedMemoryOpened(region.opened()));
            let _ = answers.send(wire::FromWorker { message });
            Some(Arc::new(region))
        }
        Err(fault) => {
            info!("blocks travel in messages: {fault}");
            None
        }
    }
}

/// The two directions of a call.
struct Link {
    number: u64,
    session: Session,
    /// Memory shared with the server.
    region: Option<Arc<Region>>,
    answers: UnboundedSender<wire::FromWorker>,
    messages: Streaming<wire::ToWorker>,
    /// Time of the last message.
    heard: Instant,
}

impl Link {
    async fn serve(&mut self, hello: &Hello, engine: &Engine, stop: &mut watch::Receiver<bool>) -> Ended {
        let connection = Connection {
            number: self.number,
            session: self.session.clone(),
            limits: StepLimits::new(hello, &self.session),
            answers: self.answers.clone(),
        };
        let mut beat = interval(self.session.heartbeat / 2);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begin = engine.begin(connection);
        tokio::pin!(begin);
        loop {
            tokio::select! {
                begun = &mut begin => match begun {
                    Ok(()) => break,
                    Err(reason) => return Ended::Refused(reason),
                },
                _ = beat.tick() => self.beat(),
            }
        }
        let session = &self.session;
        info!(
            session = session.name,
            engine = session.engine,
            resumed = session.resumed,
            life = session.life,
            block_size = session.block_size,
            blocks = session.blocks,
            shared_memory = self.region.is_some(),
            "attached"
        );
        self.heard = Instant::now();
        loop {
            tokio::select! {
                message = self.messages.message() => match message {
                    Ok(Some(message)) => {
                        self.heard = Instant::now();
                        self.take(message, engine);
                    }
                    Ok(None) => return Ended::Broken("the server ended the call".into()),
                    Err(status) => return Ended::of(&status),
                },
                _ = beat.tick() => {
                    self.beat();
                    if self.heard.elapsed() > self.session.silence {
                        return Ended::Broken(format!("no message for {} ms", self.session.silence.as_millis()));
                    }
                }
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        self.end(engine).await
    }

    fn beat(&self) {
        let message = Some(FromWorker::Heartbeat(wire::Heartbeat {}));
        let _ = self.answers.send(wire::FromWorker { message });
    }

    /// Passes a message on to the threads of the worker.
    fn take(&self, message: wire::ToWorker, engine: &Engine) {
        let copy = |life, id, block, copy| {
            let (region, answers) = (self.region.clone(), self.answers.clone());
            engine.copy(CopyJob { connection: self.number, life, id, block, copy, region, answers });
        };
        match message.message {
            Some(ToWorker::Step(step)) => engine.step(self.number, step),
            Some(ToWorker::Idle(idle)) => engine.idle(self.number, idle.life),
            Some(ToWorker::Reset(reset)) => engine.reset(self.number, reset.life),
            Some(ToWorker::ReadBlock(read)) => copy(read.life, read.id, read.block, Copy::Read { slot: read.slot }),
            Some(ToWorker::WriteBlock(write)) => copy(write.life, write.id, write.block, Copy::of(write)),
            Some(ToWorker::Heartbeat(_)) => {}
            Some(ToWorker::Welcome(_)) => tracing::error!("the server sent a second Welcome; the message is ignored"),
            None => tracing::error!("the server sent a message unknown to this worker; the message is ignored"),
        }
    }

    /// Ends the call: answers the steps that have arrived, then closes this side and waits for the server's.
    async fn end(&mut self, engine: &Engine) -> Ended {
        engine.drain().await;
        engine.quiesce().await;
        let (closed, _) = unbounded_channel();
        self.answers = closed;
        engine.hang_up().await;
        let rest = async { while let Ok(Some(_)) = self.messages.message().await {} };
        let _ = timeout(END_TIMEOUT, rest).await;
        Ended::Stopped
    }
}
