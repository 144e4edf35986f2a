//! Check of copies through shared memory.

use super::cases::Expected;
use super::peer::{Failure, Peer, ensure, unexpected};
use super::player::finish;
use super::shape::N_NEW;
use crate::shared_memory::{Region, RegionFault};
use crate::wire;
use crate::wire::from_worker::Message as FromWorker;
use crate::wire::to_worker::Message as ToWorker;

/// Contents of slots that no copy fills.
const UNTOUCHED: u8 = 0xa5;

impl From<RegionFault> for Failure {
    fn from(fault: RegionFault) -> Self {
        Self(fault.to_string())
    }
}

/// Returns `true` if the worker opened the memory, or should have.
pub(super) fn can_share(peer: &Peer) -> bool {
    let hello = &peer.hello;
    hello.abilities.shared_memory && hello.kv.block_io && (peer.is_local || peer.shared_region().is_some())
}

/// Copies the blocks of a sequence out and into other blocks through slots, and names slots that are not there.
pub(super) async fn copies(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    ensure(peer.shared_region().is_some(), || {
        "the worker announced shared_memory, and did not open the memory that was offered".into()
    })?;
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &shape.table(0), 2).await?;
    let held: Vec<u32> = seq.table.iter().flat_map(|block| peer.in_groups(*block)).collect();
    let table = shape.scattered();
    let places: Vec<u32> = table.iter().flat_map(|block| peer.in_groups(*block)).collect();
    let mut contents = Vec::new();
    for (at, block) in (0..).zip(&held) {
        let slot = at % region(peer)?.slots();
        let bytes = read(peer, *block, slot).await?;
        ensure(bytes == peer.read(*block).await?, || format!("slot {slot} has other bytes than block {block}"))?;
        contents.push(bytes);
    }
    let mut other = expected.fresh(1, 1);
    finish(peer, &mut other, &shape.table(0), N_NEW).await?;
    for ((at, block), bytes) in (0..).zip(places).zip(&contents) {
        let slot = at % region(peer)?.slots();
        region(peer)?.write(slot, bytes)?;
        let written = write(peer, block, slot, bytes.len() as u64).await?;
        written.map_err(|error| Failure(format!("block {block} was not written from slot {slot}: {error}")))?;
        ensure(peer.read(block).await? == *bytes, || format!("block {block} does not hold the bytes of slot {slot}"))?;
    }
    let mut back = seq.restarted(2);
    back.computed = seq.computed;
    finish(peer, &mut back, &table, N_NEW).await?;
    back.same_as(&expected.alone[0])?;
    nonsense(peer, contents[0].len() as u64).await
}

/// Names slots that are not there, and a wrong length; the worker refuses each and stays.
async fn nonsense(peer: &mut Peer, n_bytes: u64) -> Result<(), Failure> {
    let slots = region(peer)?.slots();
    let answer = ask(peer, 0, slots).await?;
    ensure(answer.slot_bytes == 0, || format!("the worker read a block into slot {slots}, and there are {slots}"))?;
    let written = write(peer, 0, u32::MAX, n_bytes).await?;
    ensure(written.is_err(), || "a block was written from a slot beyond the last".into())?;
    for n_bytes in [n_bytes - 1, u64::MAX] {
        let written = write(peer, 0, 0, n_bytes).await?;
        ensure(written.is_err(), || format!("a block was written with {n_bytes} bytes of a slot"))?;
    }
    Ok(())
}

fn region(peer: &Peer) -> Result<&Region, Failure> {
    peer.shared_region().ok_or_else(|| Failure("the worker left the shared memory".into()))
}

/// Reads a block into a slot.
async fn read(peer: &mut Peer, block: u32, slot: u32) -> Result<Vec<u8>, Failure> {
    let n_bytes = peer.hello.model.block_bytes(peer.session.block_size);
    let mut bytes = vec![UNTOUCHED; n_bytes as usize];
    for slot in 0..region(peer)?.slots() {
        region(peer)?.write(slot, &bytes)?;
    }
    let answer = ask(peer, block, slot).await?;
    ensure(answer.error.is_empty(), || format!("block {block} was not read: {}", answer.error))?;
    ensure(answer.data.is_empty(), || format!("block {block} was to be read into slot {slot}, and came in a message"))?;
    ensure(answer.slot_bytes == n_bytes, || {
        format!("slot_bytes is {} for block {block}; by kv_bytes_per_token there are {n_bytes}", answer.slot_bytes)
    })?;
    for other in (0..region(peer)?.slots()).filter(|other| *other != slot) {
        region(peer)?.read(other, &mut bytes)?;
        let untouched = bytes.iter().all(|byte| *byte == UNTOUCHED);
        ensure(untouched, || format!("slot {other} has changed with a reading into slot {slot}"))?;
    }
    region(peer)?.read(slot, &mut bytes)?;
    Ok(bytes)
}

async fn ask(peer: &mut Peer, block: u32, slot: u32) -> Result<wire::BlockRead, Failure> {
    let id = peer.id();
    peer.send(Some(ToWorker::ReadBlock(wire::ReadBlock { id, life: peer.life, block, slot: Some(slot) })));
    match peer.next().await? {
        FromWorker::BlockRead(read) if read.id == id => Ok(read),
        other => Err(unexpected(&other, "a BlockRead with the number of the ReadBlock")),
    }
}

/// Writes a block from a slot; the inner error is the worker's.
async fn write(peer: &mut Peer, block: u32, slot: u32, slot_bytes: u64) -> Result<Result<(), String>, Failure> {
    let (id, life, slot) = (peer.id(), peer.life, Some(slot));
    peer.written(wire::WriteBlock { id, life, block, slot, slot_bytes, ..Default::default() }).await
}
