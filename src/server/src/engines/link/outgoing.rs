//! The response stream of an attached worker's call.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;
use tonic::Status;
use trunkline_attach::wire::{self, to_worker};

use super::{Job, Link};

/// Messages to a worker: the jobs of the queue, and heartbeats in between.
pub(crate) struct Outgoing {
    link: Arc<Link>,
    jobs: UnboundedReceiver<Job>,
    heartbeat: Duration,
    next_heartbeat: Pin<Box<Sleep>>,
    has_ended: bool,
    /// Notifies the reader of the call by being dropped.
    _open: oneshot::Sender<()>,
}

impl Outgoing {
    /// Makes the stream of a connection's jobs, with a heartbeat whenever there was none for a time. `open` is dropped with the stream.
    pub(crate) fn new(
        link: Arc<Link>,
        jobs: UnboundedReceiver<Job>,
        heartbeat: Duration,
        open: oneshot::Sender<()>,
    ) -> Self {
        Self { link, jobs, heartbeat, next_heartbeat: Box::pin(sleep(heartbeat)), has_ended: false, _open: open }
    }

    /// Returns the message of a job, if there is one, or the end.
    fn message(&mut self, job: Option<Job>) -> Option<Result<to_worker::Message, Status>> {
        use to_worker::Message;
        let end = |this: &mut Self, status| {
            this.has_ended = true;
            Some(Err(status))
        };
        Some(Ok(match job {
            Some(Job::Welcome(welcome)) => Message::Welcome(*welcome),
            Some(Job::Run { life, step }) => Message::Step(self.link.send_step(life, step)?),
            Some(Job::Idle { life }) => Message::Idle(wire::Idle { life }),
            Some(Job::Reset { life }) => Message::Reset(wire::Reset { life }),
            Some(Job::Read { id, life, block, slot }) => Message::ReadBlock(wire::ReadBlock { id, life, block, slot }),
            Some(Job::Write { id, life, block, data, slot, slot_bytes }) => {
                let slot_bytes = if slot.is_some() { slot_bytes } else { 0 };
                Message::WriteBlock(wire::WriteBlock { id, life, block, data: data.into(), slot, slot_bytes })
            }
            Some(Job::End(status)) => return end(self, status),
            None => return end(self, Status::unavailable("the server is stopping")),
        }))
    }
}

impl Stream for Outgoing {
    type Item = Result<wire::ToWorker, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(None);
        }
        let message = loop {
            match this.jobs.poll_recv(cx) {
                // A step of an earlier life has no message.
                Poll::Ready(job) => match this.message(job) {
                    Some(message) => break message,
                    None => continue,
                },
                Poll::Pending => {}
            }
            std::task::ready!(this.next_heartbeat.as_mut().poll(cx));
            break Ok(to_worker::Message::Heartbeat(wire::Heartbeat {}));
        };
        this.next_heartbeat.as_mut().reset(Instant::now() + this.heartbeat);
        Poll::Ready(Some(message.map(|message| wire::ToWorker { message: Some(message) })))
    }
}
