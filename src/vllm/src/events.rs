//! `SubscribeKvEvents`: the events of the caches, in the form of SMG's gateway.
//!
//! A subscriber from 0 gets a snapshot of each engine's cache, then the batches behind it. One that names the last number it has gets the batches
//! behind that one; if they are no longer there, OUT_OF_RANGE, and it begins again at 0. One that reads too slowly is ended with DATA_LOSS, which
//! names the first batch that it lost. Numbers are one above those of ZeroMQ, because 0 stands for none. Each engine is a rank with numbers of its
//! own.

use tokio::sync::mpsc;
use tonic::Status;
use trunkline_events::{Batch, Event, Lost, Publisher, Removed, Stored, Subscription};

use crate::proto::smg::grpc::common::{
    KvBlock, KvBlockExtraKey, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvCacheLocality,
    KvCacheTier, KvEventBatch, KvSnapshotChunk, kv_block_extra_key, kv_cache_event,
};

/// Batches on the way to a client, at most.
const ON_THE_WAY: usize = 16;

/// A stream of batches.
pub(crate) type Batches = tokio_stream::wrappers::ReceiverStream<Result<KvEventBatch, Status>>;

/// Subscribes to all engines.
///
/// # Errors
/// UNAVAILABLE before the server knows its model, OUT_OF_RANGE if the batches behind the number `from` are not there.
pub(crate) fn subscribe(publisher: &Publisher, from: u64) -> Result<Batches, Status> {
    let engines = publisher.streams() as u32;
    if engines == 0 {
        return Err(Status::unavailable("no worker has attached yet; try again later"));
    }
    if from > 0 && engines > 1 {
        let message = "start_sequence_number counts for one engine, and the server has several; begin again at 0";
        return Err(Status::out_of_range(message));
    }
    let (sender, batches) = mpsc::channel(ON_THE_WAY);
    for engine in 0..engines {
        // The number of a batch here is that of the next one there.
        let subscribed = publisher.subscribe(engine, (from > 0).then_some(from));
        let Some(subscription) = subscribed.transpose().map_err(|lost| status(&lost))? else { continue };
        tokio::spawn(forward(subscription, sender.clone()));
    }
    Ok(Batches::new(batches))
}

fn status(lost: &Lost) -> Status {
    match lost {
        Lost::History { first, next } => Status::out_of_range(format!(
            "start_sequence_number has no history: the batches from {} to {next} are there; begin again at 0",
            first + 1
        )),
        Lost::Slow { from } => Status::data_loss(format!(
            "the subscriber reads too slowly: the batches from {} on were dropped; begin again at 0",
            from + 1
        )),
    }
}

/// Sends the batches of an engine to a client until either ends.
async fn forward(mut subscription: Subscription, to: mpsc::Sender<Result<KvEventBatch, Status>>) {
    let first = std::mem::take(&mut subscription.first);
    let n = first.len();
    for (at, batch) in first.into_iter().enumerate() {
        let message = match subscription.is_snapshot {
            true => chunk(&batch, at, n),
            false => message(&batch),
        };
        if to.send(Ok(message)).await.is_err() {
            return;
        }
    }
    loop {
        let next = tokio::select! {
            next = subscription.next() => next,
            () = to.closed() => return,
        };
        let sent = match next {
            Some(Ok(batch)) => Ok(message(&batch)),
            Some(Err(lost)) => Err(status(&lost)),
            None => return,
        };
        if to.send(sent).await.is_err() {
            return;
        }
    }
}

/// Returns chunk number `at` of `n` of a snapshot. The numbers of the chunks count up to that of the last batch, because gateways skip a number that
/// they have seen.
fn chunk(batch: &Batch, at: usize, n: usize) -> KvEventBatch {
    let mut chunk = message(batch);
    chunk.sequence_number = chunk.sequence_number.saturating_sub((n - 1 - at) as u64).max(1);
    let blocks = |event: &Event| match event {
        Event::Stored(stored) => stored.hashes.len() as u64,
        Event::Removed(_) | Event::Cleared => 0,
    };
    let blocks = batch.events.iter().map(blocks).sum();
    chunk.snapshot = Some(KvSnapshotChunk { index: at as u32, count: n as u32, blocks, unknown_before: 0 });
    chunk
}

fn message(batch: &Batch) -> KvEventBatch {
    let first = batch.seq.wrapping_shl(20);
    let events = (first..).zip(&batch.events).map(|(id, event)| KvCacheEvent { event_id: id, data: Some(data(event)) });
    KvEventBatch {
        sequence_number: batch.seq + 1,
        timestamp: batch.ts,
        events: events.collect(),
        dp_rank: i32::try_from(batch.rank).ok(),
        ..KvEventBatch::default()
    }
}

fn data(event: &Event) -> kv_cache_event::Data {
    match event {
        Event::Stored(stored) => kv_cache_event::Data::Stored(blocks_stored(stored)),
        Event::Removed(Removed { hashes, medium, group }) => kv_cache_event::Data::Removed(KvBlocksRemoved {
            block_hashes: hashes.iter().map(|hash| *hash as i64).collect(),
            cache_level: level(medium),
            tier: Some(tier(medium).into()),
            medium: Some((*medium).to_owned()),
            group_idx: *group,
            locality: Some(KvCacheLocality::Local.into()),
            ownership: None,
        }),
        Event::Cleared => kv_cache_event::Data::Cleared(KvCacheCleared::default()),
    }
}

fn blocks_stored(stored: &Stored) -> KvBlocksStored {
    let Stored { hashes, parent, tokens, block_size, medium, group, scope, session } = stored;
    let size = *block_size as usize;
    let keys = scope.iter().flat_map(|scope| scope.keys());
    let keys = keys.map(|key| KvBlockExtraKey { key: Some(kv_block_extra_key::Key::Text(key.to_owned())) });
    // Those of the scope go into the hash of the first block of a prefix alone.
    let mut keys: Vec<_> = if parent.is_none() && !tokens.is_empty() { keys.collect() } else { Vec::new() };
    let block = |(at, hash): (usize, &u64)| KvBlock {
        block_hash: *hash as i64,
        token_ids: tokens.get(at * size..(at + 1) * size).unwrap_or_default().to_vec(),
        block_size: *block_size as i32,
        lora_id: None,
        cache_level: level(medium),
        extra_keys: std::mem::take(&mut keys),
    };
    KvBlocksStored {
        blocks: hashes.iter().enumerate().map(block).collect(),
        parent_block_hash: parent.map(|hash| hash as i64),
        tier: Some(tier(medium).into()),
        medium: Some((*medium).to_owned()),
        group_idx: group.map(|group| group.number),
        kv_cache_spec_kind: group.map(|group| group.kind.to_owned()),
        kv_cache_spec_sliding_window: group.and_then(|group| group.window),
        locality: Some(KvCacheLocality::Local.into()),
        ownership: None,
        session_id: session.as_deref().map(str::to_owned),
        lora_name: None,
        cache_salt: scope.as_ref().map(|scope| scope.salt.clone()).filter(|salt| !salt.is_empty()),
    }
}

fn tier(medium: &str) -> KvCacheTier {
    match medium {
        "GPU" => KvCacheTier::Device,
        "CPU" => KvCacheTier::Host,
        "DISK" => KvCacheTier::Disk,
        _ => KvCacheTier::External,
    }
}

/// Returns the level of a medium, as SMG counts them behind the device.
fn level(medium: &str) -> Option<i32> {
    match tier(medium) {
        KvCacheTier::Device | KvCacheTier::Unspecified => None,
        KvCacheTier::Host => Some(1),
        KvCacheTier::Disk => Some(2),
        KvCacheTier::External => Some(3),
    }
}
