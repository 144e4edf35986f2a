//! The connection of an attached worker, as the server's threads share it.
//!
//! Jobs go to the worker through one queue without a bound, emptied by the response stream of the call ([`Outgoing`]): steps as the core
//! sends them, so that the next step is at the worker before the worker has answered the first, and blocks to read and write from the
//! store's threads ([`LinkBlocks`]). The contents of the queue are bounded by the core as for embedded workers: a fixed number of steps,
//! and transfers between different blocks.
//!
//! Answers come in through [`Link::take`], which checks each against the job. An answer without a job is an error, and ends the
//! connection; an answer of an earlier life is dropped.
//!
//! # Lives
//!
//! [`Link::reset`] begins a life: unanswered steps are forgotten, copies under way fail at once, and no copy of an earlier life is sent
//! any more. The worker reports the new life when it touches no block for an earlier one.
//!
//! # Shared memory
//!
//! A worker on the same machine may open memory of the server ([`slots`]); copies then name a slot, and messages carry no block.

mod blocks;
mod outgoing;
mod slots;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tonic::Status;
use tonic::codegen::Bytes;
use tracing::error;
use trunkline_attach::wire::{self, from_worker};
use trunkline_attach::{DoneFault, Region, SentStep, StepEncoder};
use trunkline_port::{RequestId, Step};
use trunkline_quote::cut;

pub(crate) use self::blocks::LinkBlocks;
pub(crate) use self::outgoing::Outgoing;
use self::slots::Slots;
pub(crate) use self::slots::share;
use crate::engines::worker_thread::{StepJob, StepQueue, WorkerEvent};
use crate::network::clock::Clock;

/// A job for the worker.
pub(crate) enum Job {
    /// The answer to Hello.
    Welcome(Box<wire::Welcome>),
    /// A step of a life.
    Run { life: u64, step: Box<Step> },
    /// A step without sequences.
    Idle { life: u64 },
    /// The start of a life.
    Reset { life: u64 },
    /// A block to read.
    Read { id: u64, life: u64, block: u32, slot: Option<u32> },
    /// A block to write, from `data` or the first `slot_bytes` of a slot.
    Write { id: u64, life: u64, block: u32, data: Bytes, slot: Option<u32>, slot_bytes: u64 },
    /// The end of the stream, for a reason.
    End(Status),
}

/// End of an attached worker's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// The worker left in order.
    Left,
    /// The connection was closed without a word, as by the end of the worker's process; the worker may come back with its KV all the same.
    Broke(String),
    /// The worker was silent for too long; it may come back with its KV.
    Silent(String),
    /// The right of the worker was withdrawn.
    Withdrawn(String),
    /// The worker broke a rule of the protocol, and its KV is not trusted.
    Faulty(String),
}

/// Message of a worker that breaks a rule of the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Nonsense {
    #[error(transparent)]
    Done(#[from] DoneFault),
    #[error("an answer to step {id}; the next to be answered is step {next}")]
    NotNext { id: u64, next: u64 },
    #[error("an answer to step {id} of life {life}, which is not under way")]
    NotUnderWay { id: u64, life: u64 },
    #[error("unexpected start of life {life}")]
    Unexpected { life: u64 },
    #[error("a second Hello on one stream")]
    SecondHello,
    #[error("a message without contents")]
    Empty,
    #[error("SharedMemoryOpened without an offer, with another proof, or for the second time")]
    NotShared,
    #[error("block reading {id} was answered with a slot, and named none")]
    NoSlot { id: u64 },
}

/// Bytes of a block.
enum Contents {
    /// In a message; none for a block that was written.
    Message(Bytes),
    /// So many in the slot of the copy.
    Slot(u64),
}

/// Answer of the worker to a block that was to be read or written: the bytes read, or the reason for none.
type BlockAnswer = Result<Contents, String>;

/// A copy without an answer yet.
struct Waiting {
    answer: SyncSender<BlockAnswer>,
    slot: Option<u32>,
}

/// Blocks being read or written, by number.
#[derive(Default)]
struct Copies {
    /// Life of the worker; copies of an earlier one are refused.
    life: u64,
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// Memory shared with the worker, as long as the connection stands.
    slots: Option<Slots>,
    /// `true` once the connection is broken.
    is_closed: bool,
}

/// Steps sent and not answered yet, oldest first, and the life of the worker.
struct InFlight {
    encoder: StepEncoder,
    steps: VecDeque<(Box<Step>, SentStep)>,
    /// `true` from a failed step or a reset to the worker's answer to the reset: the worker runs nothing.
    is_stopped: bool,
}

/// Counters of a connection.
#[derive(Default)]
struct Counters {
    steps: AtomicU64,
    busy_us: AtomicU64,
    /// Time of the last message, nanoseconds.
    heard_ns: AtomicU64,
    /// Bytes of blocks that travelled in messages, in both directions.
    message_bytes: AtomicU64,
    /// Bytes of blocks that travelled through shared memory, in both directions.
    shared_bytes: AtomicU64,
}

/// Counters of a connection at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkStats {
    /// Steps answered.
    pub(crate) steps: u64,
    /// Time that the worker spent on these steps, microseconds.
    pub(crate) busy_us: u64,
    /// Time of the worker's last message, nanoseconds.
    pub(crate) heard_ns: u64,
    /// `true` if the worker has opened the memory shared with it.
    pub(crate) shares_memory: bool,
    /// Bytes of blocks that travelled in messages, in both directions.
    pub(crate) message_bytes: u64,
    /// Bytes of blocks that travelled through shared memory, in both directions.
    pub(crate) shared_bytes: u64,
}

/// One connection of a worker.
pub(crate) struct Link {
    /// Number of the connection, which no other connection of this server has.
    number: u64,
    clock: Clock,
    jobs: WeakUnboundedSender<Job>,
    in_flight: Mutex<InFlight>,
    copies: Mutex<Copies>,
    /// Wakes a copy that waits for a slot of shared memory.
    slot_free: Condvar,
    counters: Counters,
    has_ended: AtomicBool,
    /// Wakes the reader of the connection when the server ends the stream: the worker may read nothing any more.
    ended: Notify,
    /// Reason for the end if the worker broke a rule.
    fault: OnceLock<String>,
}

/// The driver's end of a connection: takes jobs, and ends the connection on drop.
pub(crate) struct LinkQueue {
    link: Arc<Link>,
    jobs: UnboundedSender<Job>,
}

impl Link {
    /// Makes connection number `number`, to a worker with blocks of `block_size` tokens and token ids below `vocab_size`, with memory to
    /// share; with both ends of the queue of jobs.
    pub(crate) fn new(
        number: u64,
        block_size: u32,
        vocab_size: u32,
        region: Option<Region>,
        clock: Clock,
    ) -> (Arc<Self>, LinkQueue, UnboundedReceiver<Job>) {
        let (jobs, receiver) = unbounded_channel();
        let encoder = StepEncoder::new(0, block_size, vocab_size);
        let link = Arc::new(Self {
            number,
            clock,
            jobs: jobs.downgrade(),
            in_flight: Mutex::new(InFlight { encoder, steps: VecDeque::new(), is_stopped: false }),
            copies: Mutex::new(Copies { slots: region.map(Slots::new), ..Copies::default() }),
            slot_free: Condvar::new(),
            counters: Counters { heard_ns: clock.now_ns().into(), ..Counters::default() },
            has_ended: AtomicBool::new(false),
            ended: Notify::new(),
            fault: OnceLock::new(),
        });
        (link.clone(), LinkQueue { link, jobs }, receiver)
    }

    /// Returns the number of the connection.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> LinkStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { steps, busy_us, heard_ns, message_bytes, shared_bytes } = &self.counters;
        LinkStats {
            steps: read(steps),
            busy_us: read(busy_us),
            heard_ns: read(heard_ns),
            shares_memory: lock(&self.copies).slots.as_ref().is_some_and(Slots::is_open),
            message_bytes: read(message_bytes),
            shared_bytes: read(shared_bytes),
        }
    }

    /// Ends the stream with a status, unless it has ended.
    pub(crate) fn end(&self, status: Status) {
        self.close_copies();
        if let (false, Some(jobs)) = (self.has_ended.swap(true, Ordering::Relaxed), self.jobs.upgrade()) {
            // Nobody listens to a stream that has ended.
            let _ = jobs.send(Job::End(status));
        }
        self.ended.notify_one();
    }

    /// Ends the stream of a worker that broke a rule, for a reason of one line.
    pub(crate) fn end_faulty(&self, why: String) {
        let status = Status::invalid_argument(why.clone());
        // The first fault is the reason.
        let _ = self.fault.set(why);
        self.end(status);
    }

    /// Returns `true` once the worker has broken a rule. A client that has read the status of [`Self::end_faulty`] finds it so.
    pub(crate) fn is_faulty(&self) -> bool {
        self.fault.get().is_some()
    }

    /// Waits until the server ends the stream; returns the reason.
    pub(crate) async fn ended(&self) -> LinkEnd {
        self.ended.notified().await;
        match self.fault.get() {
            Some(why) => LinkEnd::Faulty(why.clone()),
            None => LinkEnd::Broke("the server ended the connection".into()),
        }
    }

    /// Fails the copies under way, and all later ones.
    pub(crate) fn close_copies(&self) {
        let mut copies = lock(&self.copies);
        copies.is_closed = true;
        copies.waiting.clear();
        // The memory goes with the copies that still read it.
        copies.slots = None;
        self.slot_free.notify_all();
    }

    /// Begins a life: forgets the steps and copies of earlier lives. The worker is stopped until it reports the life.
    fn reset(&self, life: u64) {
        let mut in_flight = lock(&self.in_flight);
        in_flight.is_stopped = true;
        in_flight.encoder.begin_life(life);
        in_flight.steps.clear();
        let mut copies = lock(&self.copies);
        copies.life = life;
        let Copies { waiting, slots, .. } = &mut *copies;
        for slot in waiting.drain().filter_map(|(_, waiting)| waiting.slot) {
            // The worker may write the slot until it reports the new life.
            slots.iter_mut().for_each(|slots| slots.interrupt(slot));
        }
        self.slot_free.notify_all();
    }

    /// Notes that a step is on the way to the worker, and returns the step's message; `None` for a step of an earlier life.
    fn send_step(&self, life: u64, step: Box<Step>) -> Option<wire::Step> {
        let mut in_flight = lock(&self.in_flight);
        if life != in_flight.encoder.life() {
            return None;
        }
        let (message, sent) = in_flight.encoder.encode(&step);
        in_flight.steps.push_back((step, sent));
        Some(message)
    }

    /// Takes a message of the worker, and returns the event of a life for the driver, if there is one.
    ///
    /// # Errors
    /// If the message answers nothing, or does not fit the job.
    pub(crate) fn take(&self, message: wire::FromWorker) -> Result<Option<(u64, WorkerEvent)>, Nonsense> {
        use from_worker::Message;
        self.counters.heard_ns.store(self.clock.now_ns(), Ordering::Relaxed);
        match message.message {
            Some(Message::StepDone(done)) => self.step_done(done),
            Some(Message::StepFailed(failed)) => self.step_failed(failed),
            Some(Message::ResetDone(wire::ResetDone { life })) => self.reset_done(life),
            Some(Message::BlockRead(read)) => {
                let in_slot = read.slot_bytes > 0 && read.error.is_empty();
                let contents =
                    if in_slot { Contents::Slot(read.slot_bytes) } else { Contents::Message(read.data.into()) };
                self.copied(read.id, answer(read.error, contents)).map(|()| None)
            }
            Some(Message::BlockWritten(written)) => {
                self.copied(written.id, answer(written.error, Contents::Message(Bytes::new()))).map(|()| None)
            }
            Some(Message::SharedMemoryOpened(opened)) => self.opened(&opened).map(|()| None),
            Some(Message::Heartbeat(_)) => Ok(None),
            Some(Message::Hello(_)) => Err(Nonsense::SecondHello),
            None => Err(Nonsense::Empty),
        }
    }

    fn step_done(&self, done: wire::StepDone) -> Result<Option<(u64, WorkerEvent)>, Nonsense> {
        let Some((life, step, sent)) = self.answered(done.id, done.life)? else { return Ok(None) };
        let busy_us = done.busy_us;
        let output = sent.decode(done)?;
        lock(&self.in_flight).encoder.recycle(sent);
        self.counters.steps.fetch_add(1, Ordering::Relaxed);
        self.counters.busy_us.fetch_add(busy_us, Ordering::Relaxed);
        Ok(Some((life, WorkerEvent::Done { step, output, ended: Instant::now() })))
    }

    fn step_failed(&self, failed: wire::StepFailed) -> Result<Option<(u64, WorkerEvent)>, Nonsense> {
        let Some((life, step, _)) = self.answered(failed.id, failed.life)? else { return Ok(None) };
        lock(&self.in_flight).is_stopped = true;
        error!(step = step.id, "the worker failed: {}", cut(&failed.reason));
        let guilty = failed.request.map(RequestId);
        // A request that the step does not run cannot be the cause.
        let guilty = guilty.filter(|request| step.seqs.iter().any(|seq| seq.request == *request));
        Ok(Some((life, WorkerEvent::Failed { step, guilty })))
    }

    /// Takes the oldest unanswered step, which step `id` of a life must be. Returns `None` for an answer of an earlier life.
    fn answered(&self, id: u64, life: u64) -> Result<Option<(u64, Box<Step>, SentStep)>, Nonsense> {
        let mut in_flight = lock(&self.in_flight);
        let present = in_flight.encoder.life();
        if life < present {
            return Ok(None);
        }
        let expected = in_flight.steps.front().filter(|_| life == present && !in_flight.is_stopped);
        match expected {
            Some((step, _)) if step.id == id => Ok(in_flight.steps.pop_front().map(|(step, sent)| (life, step, sent))),
            Some((step, _)) => Err(Nonsense::NotNext { id, next: step.id }),
            None => Err(Nonsense::NotUnderWay { id, life }),
        }
    }

    fn reset_done(&self, life: u64) -> Result<Option<(u64, WorkerEvent)>, Nonsense> {
        let mut in_flight = lock(&self.in_flight);
        let present = in_flight.encoder.life();
        if life < present {
            return Ok(None);
        }
        if life > present || !in_flight.is_stopped {
            return Err(Nonsense::Unexpected { life });
        }
        in_flight.is_stopped = false;
        if let Some(slots) = &mut lock(&self.copies).slots {
            slots.end_life();
        }
        self.slot_free.notify_all();
        Ok(Some((life, WorkerEvent::Ready)))
    }

    /// Answers the thread that waits for a block. Nothing waits for the copy of an earlier life.
    fn copied(&self, id: u64, answer: BlockAnswer) -> Result<(), Nonsense> {
        let Some(waiting) = lock(&self.copies).waiting.remove(&id) else { return Ok(()) };
        if waiting.slot.is_none() && matches!(answer, Ok(Contents::Slot(_))) {
            return Err(Nonsense::NoSlot { id });
        }
        // The receiver may be gone.
        let _ = waiting.answer.try_send(answer);
        Ok(())
    }

    /// Notes that the worker has opened the memory shared with it.
    fn opened(&self, opened: &wire::SharedMemoryOpened) -> Result<(), Nonsense> {
        let mut copies = lock(&self.copies);
        if copies.is_closed {
            return Ok(());
        }
        if !copies.slots.as_mut().is_some_and(|slots| slots.open(opened)) {
            return Err(Nonsense::NotShared);
        }
        Ok(())
    }
}

impl LinkQueue {
    /// Returns the connection.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Begins with `life`, and welcomes the worker: jobs from now on come behind the welcome.
    pub(crate) fn welcome(&self, life: u64, mut welcome: wire::Welcome) {
        self.link.reset(life);
        welcome.shared_memory = lock(&self.link.copies).slots.as_ref().map(Slots::offer);
        lock(&self.link.in_flight).is_stopped = false;
        self.send(Job::Welcome(Box::new(welcome)));
    }

    /// Returns the queue of the worker's steps. Jobs for a connection that has ended are dropped: the driver knows of the end, or will.
    pub(crate) fn into_steps(self) -> Box<StepQueue> {
        Box::new(move |job| {
            match job {
                StepJob::Run { life, step } => self.send(Job::Run { life, step }),
                StepJob::Idle { life } => self.send(Job::Idle { life }),
                StepJob::Reset { life } => {
                    self.link.reset(life);
                    self.send(Job::Reset { life });
                }
            }
            true
        })
    }

    fn send(&self, job: Job) {
        // The receiver is gone if the connection is; the reader of the connection reports that.
        let _ = self.jobs.send(job);
    }
}

/// Returns the answer to a block that was read or written.
fn answer(error: String, contents: Contents) -> BlockAnswer {
    if error.is_empty() { Ok(contents) } else { Err(cut(&error).to_string()) }
}

/// Locks state whose changes are whole even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
