//! The gRPC service of model workers: checks a worker's Hello, asks the driver for a seat, and reads the worker's answers.
//!
//! The response stream of the call sends jobs ([`Outgoing`]); a task of its own reads the answers, so that a worker that sends before it
//! reads blocks nobody. An answer that breaks a rule ends the call with INVALID_ARGUMENT, and the worker's KV is not trusted any more.
//!
//! A server without embedded workers does not know its model before the first worker: the worker's Hello is offered to the starting
//! server ([`Offer`]), and checked like any other once the server has a model.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{info, warn};
use trunkline_attach::Hello;
use trunkline_attach::wire;
use trunkline_attach::wire::workers_server::Workers;
use trunkline_cluster::EngineId;
use trunkline_quote::cut;

use crate::access::caller::Caller;
use crate::driver::commands::{Attaching, Command};
use crate::driver::queue::DriverHandle;
use crate::edge::bodies::Accepted;
use crate::engines::link::{Link, LinkEnd, Outgoing, share};
use crate::engines::seats::{AttachOptions, Occupant, Resume, heartbeat};
use crate::network::Call;
use crate::network::log_limit::LogLimit;
use crate::service::fit::{Fit, scores_bytes_max};
use crate::service::request_ids::random_id;

/// Returns the longest message of a worker, bytes: the scores of a step or a block, and some.
pub(crate) fn message_bytes_max(options: &AttachOptions) -> usize {
    scores_bytes_max(options.scores) as usize + MESSAGE_BYTES_SPARE
}

/// Bytes of a message apart from its block or scores.
const MESSAGE_BYTES_SPARE: usize = 1 << 20;

/// The Hello of a worker, for a server that does not know its model yet.
pub(crate) struct Offer {
    pub(crate) hello: Hello,
    /// Receives the reason if the server does not start with this worker.
    pub(crate) refused: oneshot::Sender<String>,
}

/// The service `trunkline.v1.Workers`.
pub(crate) struct WorkersService {
    driver: DriverHandle,
    options: AttachOptions,
    /// Time for the Hello to arrive.
    hello_timeout: Duration,
    /// Demands on workers, once the server knows its model.
    fit: watch::Receiver<Option<Arc<Fit>>>,
    /// Takes the first worker's Hello while the server does not know its model.
    offers: mpsc::Sender<Offer>,
    next_link: AtomicU64,
    refusals: LogLimit,
}

impl WorkersService {
    pub(crate) fn new(
        driver: DriverHandle,
        options: AttachOptions,
        hello_timeout: Duration,
        fit: watch::Receiver<Option<Arc<Fit>>>,
        offers: mpsc::Sender<Offer>,
    ) -> Self {
        let (next_link, refusals) = (AtomicU64::new(1), LogLimit::default());
        Self { driver, options, hello_timeout, fit, offers, next_link, refusals }
    }

    /// Reads the first message of a worker.
    async fn hello(&self, incoming: &mut Streaming<wire::FromWorker>) -> Result<Hello, Status> {
        let message = timeout(self.hello_timeout, incoming.message()).await.map_err(|_| {
            Status::deadline_exceeded(format!("the Hello did not arrive within {:?}", self.hello_timeout))
        })?;
        let message = message.map_err(|status| match is_mistake(&status) {
            true => Status::invalid_argument(format!("the Hello cannot be read: {}", cut(status.message()))),
            false => status,
        })?;
        match message.and_then(|message| message.message) {
            Some(wire::from_worker::Message::Hello(hello)) => {
                Hello::decode(hello).map_err(|fault| Status::invalid_argument(fault.to_string()))
            }
            _ => Err(Status::invalid_argument("the first message of a worker must be a Hello")),
        }
    }

    /// Returns the demands on workers. A server without a model takes the model of this worker, or refuses the worker.
    async fn fit(&self, hello: &Hello) -> Result<Arc<Fit>, Status> {
        let mut fit = self.fit.clone();
        let stopping = || Status::unavailable("the server is stopping");
        if fit.borrow_and_update().is_none() {
            let (refused, is_refused) = oneshot::channel();
            // An offer is dropped without a message once the server has a model, of this worker or of another.
            let _ = self.offers.send(Offer { hello: hello.clone(), refused }).await;
            if let Ok(why) = is_refused.await {
                return Err(Status::failed_precondition(why));
            }
        }
        let known = fit.borrow_and_update().clone();
        known.ok_or_else(stopping)
    }

    /// Seats a worker that fits, and begins to read its answers.
    async fn seat(
        &self,
        hello: Hello,
        block_size: u32,
        incoming: Streaming<wire::FromWorker>,
        call: Arc<Call>,
    ) -> Result<Outgoing, Status> {
        let session = random_id().map_err(|err| Status::unavailable(format!("no random bits: {err}")))?;
        let number = self.next_link.fetch_add(1, Ordering::Relaxed);
        let shares = self.options.shared_memory && hello.abilities.shared_memory && hello.kv.block_io;
        let Hello { name, program, resume, model, lock_step, abilities, .. } = hello;
        let resume = resume.map(|resume| Resume { session: resume.session, life: resume.life });
        let region = if shares { share(model.block_bytes(block_size)) } else { None };
        let (link, queue, jobs) = Link::new(number, block_size, model.vocab_size, region, self.driver.clock());
        let (open, closed) = oneshot::channel();
        let outgoing = Outgoing::new(link.clone(), jobs, heartbeat(self.options.silence), open);
        let (seated, is_seated) = oneshot::channel();
        let mut worker = Occupant::new(name, program, session, number);
        worker.lock_step = lock_step;
        worker.max_drafts = abilities.max_drafts;
        let attaching = Attaching { worker, resume, queue, seated };
        if !self.driver.send_patiently(Command::Attach(Box::new(attaching))).await {
            return Err(Status::unavailable("the server is stopping"));
        }
        let (begun, has_begun) = oneshot::channel();
        let (driver, silence) = (self.driver.clone(), self.options.silence);
        // A task of its own from here on: a worker that is seated and gone at once must be noticed, although this call is dropped with its
        // connection.
        tokio::spawn(async move {
            let Ok(seat) = is_seated.await else { return };
            let _ = begun.send(seat.as_ref().map(drop).map_err(Status::clone));
            if let Ok(engine) = seat {
                Reader { driver, engine, link, silence, call }.run(incoming, closed).await;
            }
        });
        let lost = |_| Status::unavailable("the server has no thread for the worker; try again later");
        has_begun.await.map_err(lost)??;
        Ok(outgoing)
    }

    async fn attach_checked(
        &self,
        mut incoming: Streaming<wire::FromWorker>,
        accepted: Accepted,
        caller: &Caller,
    ) -> Result<Outgoing, Status> {
        let hello = self.hello(&mut incoming).await?;
        let refused = |why: String| Status::failed_precondition(format!("worker {}: {why}", cut(&hello.name)));
        let fit = self.fit(&hello).await?;
        fit.check(&hello).map_err(refused)?;
        accepted.set();
        caller.call.work(caller.client());
        self.seat(hello, fit.block_size(), incoming, caller.call.clone()).await
    }
}

#[tonic::async_trait]
impl Workers for WorkersService {
    type AttachStream = Outgoing;

    async fn attach(&self, request: Request<Streaming<wire::FromWorker>>) -> Result<Response<Outgoing>, Status> {
        let caller = Caller::of_stream(request.extensions());
        caller.check_worker()?;
        if self.options.engines == 0 {
            return Err(Status::failed_precondition(
                "this server takes no attached workers; start it with --attached-workers",
            ));
        }
        let accepted = request.extensions().get::<Accepted>().cloned().unwrap_or_default();
        let attached = self.attach_checked(request.into_inner(), accepted, &caller).await;
        if let Err(status) = &attached {
            let why = cut(status.message()).to_string();
            self.refusals.log(self.driver.clock(), |workers| warn!(workers, "refusing a worker: {why}"));
        }
        attached.map(Response::new)
    }
}

/// Returns `true` for a message that cannot be read, which is the worker's mistake; `false` for a connection that broke.
fn is_mistake(status: &Status) -> bool {
    // Errors of the connection have a source.
    matches!(status.code(), Code::Internal | Code::OutOfRange | Code::InvalidArgument) && status.source().is_none()
}

/// Returns `true` for the message of a worker that has opened shared memory.
fn opens_memory(message: &wire::FromWorker) -> bool {
    matches!(message.message, Some(wire::from_worker::Message::SharedMemoryOpened(_)))
}

/// Reads the answers of a worker until the connection ends.
struct Reader {
    driver: DriverHandle,
    engine: EngineId,
    link: Arc<Link>,
    silence: Duration,
    /// The call, whose right the worker has.
    call: Arc<Call>,
}

impl Reader {
    async fn run(self, mut incoming: Streaming<wire::FromWorker>, mut closed: oneshot::Receiver<()>) {
        let end = loop {
            let message = tokio::select! {
                biased;
                status = self.call.withdrawn() => {
                    let why = status.message().to_owned();
                    self.link.end(status);
                    break LinkEnd::Withdrawn(why);
                }
                end = self.link.ended() => break end,
                // The stream of jobs is gone, and with it the connection.
                _ = &mut closed => break LinkEnd::Broke("the connection broke".into()),
                message = timeout(self.silence, incoming.message()) => message,
            };
            let opens = matches!(&message, Ok(Ok(Some(message))) if opens_memory(message));
            let event = match message {
                Ok(Ok(Some(message))) => self.link.take(message),
                Ok(Ok(None)) => break LinkEnd::Left,
                Ok(Err(status)) if is_mistake(&status) => {
                    let why = cut(status.message()).to_string();
                    self.link.end_faulty(why.clone());
                    break LinkEnd::Faulty(why);
                }
                Ok(Err(status)) => break LinkEnd::Broke(cut(status.message()).to_string()),
                Err(_) => {
                    let message = format!("the worker was silent for {:?}", self.silence);
                    self.link.end(Status::aborted(message.clone()));
                    break LinkEnd::Silent(message);
                }
            };
            match event {
                Ok(None) if opens => info!(engine = %self.engine, "blocks of the worker travel through shared memory"),
                Ok(None) => {}
                Ok(Some((life, event))) => {
                    let (engine, link) = (self.engine, self.link.number());
                    if !self.driver.send_patiently(Command::Linked { engine, link, life, event }).await {
                        return;
                    }
                }
                Err(nonsense) => {
                    self.link.end_faulty(nonsense.to_string());
                    break LinkEnd::Faulty(nonsense.to_string());
                }
            }
        };
        self.link.close_copies();
        let (engine, link) = (self.engine, self.link.number());
        // A driver that has stopped needs no notice.
        self.driver.send_patiently(Command::Detached { engine, link, end }).await;
    }
}
