//! Subscribers of a publisher: one that reads, some that do not, and one that comes late.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use trunkline_events::{Batch, Event, Lost, Publisher, Subscription};
use zeromq::{Socket, SocketRecv, SubSocket};

/// Batches that a subscriber read, and those that it heard it lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    pub batches: u64,
    pub lost: u64,
}

/// Batches of the subscribers that read nothing before the end.
#[derive(Clone, Copy, Debug)]
pub struct Unread {
    pub over_zeromq: Received,
    pub over_grpc: Received,
}

/// Subscribes over ZeroMQ.
///
/// # Errors
/// If there is no connection.
pub async fn connect(publisher: &Publisher) -> anyhow::Result<SubSocket> {
    let source = publisher.sources().first().context("the publisher has no address")?;
    let mut socket = SubSocket::new();
    socket.connect(&source.endpoint).await?;
    socket.subscribe("").await?;
    Ok(socket)
}

/// Subscribes in this process, as gRPC does, to a snapshot and what comes behind it.
///
/// # Errors
/// If the publisher has not begun.
pub fn subscribe(publisher: &Publisher) -> anyhow::Result<Subscription> {
    publisher.subscribe(0, None).and_then(Result::ok).context("the publisher has no stream")
}

/// Returns the number of the next batch.
fn next(publisher: &Publisher) -> u64 {
    match publisher.subscribe(0, Some(u64::MAX)) {
        Some(Err(Lost::History { next, .. })) => next,
        _ => u64::MAX,
    }
}

/// Reads all batches over ZeroMQ until there are no more, once the load has ended. Numbers that are not there are lost batches.
///
/// # Errors
/// If the connection fails, or a message is not a batch.
pub async fn read(mut socket: SubSocket, publisher: Publisher, ended: Arc<AtomicBool>) -> anyhow::Result<Received> {
    let (mut received, mut expected) = (Received::default(), None);
    loop {
        let message = socket.recv().await?;
        let number = message.get(1).and_then(|frame| <[u8; 8]>::try_from(&frame[..]).ok());
        let number = u64::from_be_bytes(number.context("a message without a number")?);
        received.batches += 1;
        received.lost += number.saturating_sub(expected.unwrap_or(number));
        expected = Some(number + 1);
        // A heartbeat comes each second, so the loop ends.
        if ended.load(Ordering::Acquire) && number + 1 >= next(&publisher) {
            return Ok(received);
        }
    }
}

/// Subscribers that read nothing yet.
pub struct Slow {
    socket: SubSocket,
    subscription: Subscription,
}

impl Slow {
    /// Subscribes over ZeroMQ and as gRPC does.
    ///
    /// # Errors
    /// As [`connect`] and [`subscribe`].
    pub async fn begin(publisher: &Publisher) -> anyhow::Result<Self> {
        Ok(Self { socket: connect(publisher).await?, subscription: subscribe(publisher)? })
    }

    /// Reads all that is there for the subscribers once the load has ended.
    ///
    /// # Errors
    /// As [`read`].
    pub async fn end(mut self, publisher: &Publisher, ended: Arc<AtomicBool>) -> anyhow::Result<Unread> {
        let over_zeromq = read(self.socket, publisher.clone(), ended).await?;
        let mut over_grpc = Received::default();
        let next = next(publisher);
        loop {
            match self.subscription.next().await {
                Some(Ok(batch)) => {
                    over_grpc.batches += 1;
                    if batch.seq + 1 >= next {
                        break;
                    }
                }
                Some(Err(Lost::Slow { from })) => {
                    over_grpc.lost = next.saturating_sub(from);
                    break;
                }
                Some(Err(lost)) => bail!("a subscription under way lost {lost:?}"),
                None => break,
            }
        }
        Ok(Unread { over_zeromq, over_grpc })
    }
}

/// Applies a snapshot and the batches behind it until the load has ended and a heartbeat comes. Returns the hashes of all blocks.
///
/// # Errors
/// If batches are lost.
pub async fn follow(mut subscription: Subscription, ended: Arc<AtomicBool>) -> anyhow::Result<HashSet<u64>> {
    let mut blocks = HashSet::new();
    std::mem::take(&mut subscription.first).iter().for_each(|batch| apply(&mut blocks, batch));
    while let Some(batch) = subscription.next().await {
        let Ok(batch) = batch else { bail!("the late subscriber lost batches: {batch:?}") };
        apply(&mut blocks, &batch);
        if batch.events.is_empty() && ended.load(Ordering::Acquire) {
            break;
        }
    }
    Ok(blocks)
}

/// Applies the events of a batch of an engine without tiers.
fn apply(blocks: &mut HashSet<u64>, batch: &Batch) {
    for event in &batch.events {
        match event {
            Event::Stored(stored) => blocks.extend(&stored.hashes),
            Event::Removed(removed) => removed.hashes.iter().for_each(|hash| _ = blocks.remove(hash)),
            Event::Cleared => blocks.clear(),
        }
    }
}
