//! A worker that attaches over a real socket, under the control of a test: the embedded worker behind the worker's end of the protocol,
//! and a wire that the test can cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use trunkline_attach::wire::workers_client::WorkersClient;
use trunkline_attach::wire::{self, from_worker, to_worker};
use trunkline_attach::{Abilities, Hello, KvRoom, Mirror, Region, Resume, Session, StepLimits, encode_done};
use trunkline_grammar::Grammars;
use trunkline_port::{DeviceBlocks, ModelInfo, Step, StepRunner};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, Worker, WorkerConfig};

use crate::server::{END, SEED};

/// Blocks of a worker, of 16 tokens.
pub const BLOCKS: u32 = 64;

/// A wire between a worker and the server. Cutting the wire closes the sockets at both ends, as the death of a process does.
pub struct Wire {
    /// Address of the near end.
    pub addr: SocketAddr,
    accepting: JoinHandle<()>,
    carried: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Wire {
    /// Lays a wire to a server.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let addr = listener.local_addr().expect("an address");
        let carried = Arc::<Mutex<Vec<JoinHandle<()>>>>::default();
        let connections = carried.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let carry = tokio::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(server).await {
                        // Either end may close the connection.
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                    }
                });
                connections.lock().expect("no carrier panics").push(carry);
            }
        });
        Self { addr, accepting, carried }
    }

    /// Closes all connections of the wire. New ones can be made.
    pub fn cut(&self) {
        self.carried.lock().expect("no carrier panics").drain(..).for_each(|carry| carry.abort());
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// The device of a worker: the embedded worker with the small model, and the life of the KV there.
pub struct Device {
    worker: Worker,
    blocks: Arc<dyn DeviceBlocks>,
    /// Session and life to resume.
    resume: Option<Resume>,
    /// `true` for a device on another machine than the server: shared memory cannot be opened there.
    pub is_elsewhere: bool,
}

impl Default for Device {
    fn default() -> Self {
        Self::drafting(0)
    }
}

impl Device {
    /// Makes a device that drafts up to `max_drafts` tokens of a sequence in a step.
    pub fn drafting(max_drafts: u32) -> Self {
        let config = WorkerConfig { block_size: 16, device_blocks: BLOCKS, max_drafts, threads: 1 };
        let model = Model::seeded(SEED);
        let info = model.info();
        let grammars = Grammars::new(Tokenizer::bytes(), info.vocab_size, vec![END]);
        let worker = Worker::new(Arc::new(model), config).expect("a small model");
        let mut worker = worker.with_grammars(Arc::new(grammars));
        let blocks = StepRunner::blocks(&mut worker);
        Self { worker, blocks, resume: None, is_elsewhere: false }
    }
}

/// Returns the announcement of a worker with the small model.
pub fn hello(name: &str) -> Hello {
    let abilities = Abilities {
        max_sequences: 1 << 10,
        max_tokens: 1 << 16,
        steps_in_flight: 8,
        max_logprobs: 20,
        partial_writes: true,
        seeded_sampling: true,
        penalties: true,
        grammars: true,
        prompt_logprobs: true,
        in_step_hits: true,
        ..Abilities::default()
    };
    Hello {
        name: name.into(),
        program: "test 1.0".into(),
        model: model(),
        kv: KvRoom { block_sizes: vec![16], tokens: 16 * u64::from(BLOCKS), block_io: true },
        abilities,
        ..Hello::default()
    }
}

/// Returns the facts of the small model.
pub fn model() -> ModelInfo {
    ModelInfo { eos_token_ids: vec![END], ..Model::seeded(SEED).info() }
}

/// An attached worker.
pub struct Attached {
    device: Device,
    answers: mpsc::UnboundedSender<wire::FromWorker>,
    jobs: Streaming<wire::ToWorker>,
    /// Settings from the server's welcome.
    pub session: Session,
    mirror: Mirror,
    /// Memory that the server shares, if the worker announced that it can and opened the memory.
    pub region: Option<Region>,
    /// Steps received.
    pub steps: u64,
}

/// Dials a server and sends a Hello; returns the ends of the stream and the first answer.
///
/// # Errors
/// If the server refuses the worker.
pub async fn dial(
    addr: SocketAddr,
    hello: wire::Hello,
) -> Result<(mpsc::UnboundedSender<wire::FromWorker>, Streaming<wire::ToWorker>, wire::Welcome), Status> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("an address");
    let channel = endpoint.connect().await.map_err(|err| Status::unavailable(err.to_string()))?;
    let (answers, receiver) = mpsc::unbounded_channel();
    let hello = wire::FromWorker { message: Some(from_worker::Message::Hello(hello)) };
    answers.send(hello).expect("the receiver is here");
    let call = WorkersClient::new(channel).attach(UnboundedReceiverStream::new(receiver)).await?;
    let mut jobs = call.into_inner();
    match jobs.message().await?.and_then(|job| job.message) {
        Some(to_worker::Message::Welcome(welcome)) => Ok((answers, jobs, welcome)),
        other => panic!("not a welcome: {other:?}"),
    }
}

/// Begins a call of a worker with a Hello that cannot be read, and returns how the call ends.
pub async fn attach_malformed(addr: SocketAddr) -> Status {
    let channel = Endpoint::from_shared(format!("http://{addr}")).expect("an address").connect().await;
    let mut call = Grpc::new(channel.expect("the server listens"));
    call.ready().await.expect("the server listens");
    // A text is field 1 as the Hello is, and this one begins with the field number 0, which does not exist.
    let messages = Request::new(tokio_stream::iter(["\u{1}".to_owned()]));
    let path = PathAndQuery::from_static("/trunkline.v1.Workers/Attach");
    let codec = ProstCodec::<String, wire::ToWorker>::default();
    match call.streaming(messages, path, codec).await {
        Err(status) => status,
        Ok(answer) => answer.into_inner().message().await.expect_err("no worker attaches so"),
    }
}

impl Attached {
    /// Attaches a worker. Returns the device again if the server refuses.
    ///
    /// # Errors
    /// If the server refuses the worker.
    pub async fn attach(addr: SocketAddr, mut hello: Hello, mut device: Device) -> Result<Self, (Status, Device)> {
        hello.resume = device.resume.clone();
        let (answers, jobs, welcome) = match dial(addr, hello.encode()).await {
            Ok(dialled) => dialled,
            Err(status) => return Err((status, device)),
        };
        let session = hello.accept(welcome).expect("a sound welcome");
        // Without the session, a worker begins with empty blocks and no sequence; with it, without a sequence.
        if !session.resumed {
            device.worker.reset();
        }
        device.resume = Some(Resume { session: session.name.clone(), life: session.life });
        let mirror = Mirror::new(StepLimits::new(&hello, &session));
        let offer = session.shared_memory.as_ref().filter(|_| !device.is_elsewhere);
        let region = offer.map(|offer| Region::open(offer).expect("memory of this machine"));
        let worker = Self { device, answers, jobs, session, mirror, region, steps: 0 };
        worker.region.iter().for_each(|region| worker.send(from_worker::Message::SharedMemoryOpened(region.opened())));
        Ok(worker)
    }

    /// Attaches a worker of a name, without anything to resume.
    pub async fn fresh(addr: SocketAddr, name: &str) -> Self {
        let attached = Self::attach(addr, hello(name), Device::default()).await;
        attached.unwrap_or_else(|(status, _)| panic!("refused: {status:?}"))
    }

    /// Waits for the next job.
    ///
    /// # Errors
    /// If the connection breaks or the server ends the stream with an error.
    pub async fn job(&mut self) -> Result<Option<to_worker::Message>, Status> {
        let job = self.jobs.message().await?.and_then(|job| job.message);
        self.steps += u64::from(matches!(job, Some(to_worker::Message::Step(_))));
        Ok(job)
    }

    /// Sends any message.
    pub fn send(&self, message: from_worker::Message) {
        // The server may have ended the stream.
        let _ = self.answers.send(wire::FromWorker { message: Some(message) });
    }

    /// Returns the present life.
    pub fn life(&self) -> u64 {
        self.device.resume.as_ref().map_or(0, |resume| resume.life)
    }

    /// Does a job, and returns the answer.
    pub fn answer(&mut self, job: to_worker::Message) -> Option<from_worker::Message> {
        use to_worker::Message;
        match job {
            Message::Step(message) if message.life != self.life() => None,
            Message::Step(message) => Some(from_worker::Message::StepDone(self.run(&message))),
            Message::Reset(wire::Reset { life }) => {
                self.mirror.clear();
                self.device.worker.reset();
                if let Some(resume) = &mut self.device.resume {
                    resume.life = life;
                }
                Some(from_worker::Message::ResetDone(wire::ResetDone { life }))
            }
            Message::ReadBlock(wire::ReadBlock { id, block, slot, .. }) => {
                let mut data = vec![0; self.device.blocks.block_bytes()];
                self.device.blocks.read(block, &mut data).expect("a block of the device");
                let read = match slot {
                    None => wire::BlockRead { id, data, ..Default::default() },
                    Some(slot) => {
                        let region = self.region.as_ref().expect("a slot of memory that was opened");
                        region.write(slot, &data).expect("a slot of the memory");
                        wire::BlockRead { id, slot_bytes: data.len() as u64, ..Default::default() }
                    }
                };
                Some(from_worker::Message::BlockRead(read))
            }
            Message::WriteBlock(wire::WriteBlock { id, block, mut data, slot, slot_bytes, .. }) => {
                if let Some(slot) = slot {
                    data.resize(slot_bytes as usize, 0);
                    let region = self.region.as_ref().expect("a slot of memory that was opened");
                    region.read(slot, &mut data).expect("a slot of the memory");
                }
                self.device.blocks.write(block, &data).expect("a block of the device");
                Some(from_worker::Message::BlockWritten(wire::BlockWritten { id, error: String::new() }))
            }
            Message::Idle(_) => None,
            Message::Heartbeat(_) => Some(from_worker::Message::Heartbeat(wire::Heartbeat {})),
            Message::Welcome(_) => panic!("a second welcome"),
        }
    }

    fn run(&mut self, message: &wire::Step) -> wire::StepDone {
        let mut step = Step::default();
        self.mirror.decode(message, &mut step).expect("a sound step");
        let output = StepRunner::run(&mut self.device.worker, &step).expect("a step of the model");
        self.mirror.note(&step, &output.result);
        encode_done(&step, output, message.life, 7)
    }

    /// Does jobs until `until` is true for one, which is returned undone, or the stream ends, for the reason returned.
    pub async fn serve_until(
        &mut self,
        mut until: impl FnMut(&to_worker::Message, u64) -> bool,
    ) -> Result<to_worker::Message, Option<Status>> {
        loop {
            let job = self.job().await.map_err(Some)?.ok_or(None)?;
            if until(&job, self.steps) {
                return Ok(job);
            }
            if let Some(answer) = self.answer(job) {
                self.send(answer);
            }
        }
    }

    /// Does jobs until the stream ends, and returns the reason with the device.
    pub async fn serve(mut self) -> (Option<Status>, Device) {
        let end = self.serve_until(|_, _| false).await.expect_err("the stream ends");
        (end, self.device)
    }

    /// Leaves in order, and returns the device for another session.
    pub async fn leave(self) -> Device {
        let Self { device, answers, mut jobs, .. } = self;
        drop(answers);
        // To the end of the stream, which the server ends in turn.
        while let Ok(Some(_)) = jobs.message().await {}
        device
    }

    /// Gives up the stream without a word, and returns the device, if the worker is to come back.
    pub fn abandon(self) -> Device {
        self.device
    }
}

/// Way in which a kept worker ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The wire is cut; the worker comes back with its device.
    Cut,
    /// The process dies, and another takes its place, with empty blocks.
    Killed,
    /// The worker leaves in order, and another takes its place.
    Left,
}

/// Keeps a worker of a name attached until the server stops: the worker dials again whenever its connection has ended. `next_death` returns
/// the number of steps, unanswered at that moment, after which the worker ends the connection, and the way; `None` for never.
pub fn keep(
    server: SocketAddr,
    name: impl Into<String>,
    next_death: impl FnMut() -> Option<(u64, Death)> + Send + 'static,
) -> JoinHandle<()> {
    keep_as(server, hello(&name.into()), next_death)
}

/// Keeps a worker with an announcement attached, as [`keep`] does.
pub fn keep_as(
    server: SocketAddr,
    hello: Hello,
    mut next_death: impl FnMut() -> Option<(u64, Death)> + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let wire = Wire::to(server).await;
        let mut device = Device::default();
        loop {
            let mut worker = match Attached::attach(wire.addr, hello.clone(), device).await {
                Ok(worker) => worker,
                // The server has stopped, or stops.
                Err((status, _)) if status.code() == tonic::Code::Unavailable => return,
                Err((_, again)) => {
                    device = again;
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            let death = next_death();
            let end = worker.serve_until(|_, steps| death.is_some_and(|(after, _)| steps >= after)).await;
            if let Err(Some(status)) = &end
                && status.message() == "the server is stopping"
            {
                return;
            }
            match death {
                Some((_, Death::Killed | Death::Cut)) => wire.cut(),
                Some((_, Death::Left)) | None => {}
            }
            device = match death {
                Some((_, Death::Cut)) | None => worker.abandon(),
                Some((_, Death::Killed)) => Device::default(),
                Some((_, Death::Left)) => worker.leave().await,
            };
        }
    })
}
