//! Checks of copies, resets, failures and reconnection.

use super::cases::Expected;
use super::peer::{Failure, Peer, ensure};
use super::player::{Part, finish, run, send};
use super::shape::N_NEW;
use crate::wire;
use crate::wire::from_worker::Message as FromWorker;
use crate::wire::to_worker::Message as ToWorker;

/// Waits for heartbeats while nothing happens.
pub(super) async fn heartbeats(peer: &mut Peer, _: &Expected) -> Result<(), Failure> {
    for _ in 0..2 {
        match peer.any().await? {
            FromWorker::Heartbeat(_) => {}
            _ => return Err(Failure("the worker sent a message without being asked".into())),
        }
    }
    Ok(())
}

/// Copies the blocks of a sequence out, overwrites them, and copies them into other blocks.
pub(super) async fn swap(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &shape.table(0), 2).await?;
    let held: Vec<u32> = seq.table.iter().flat_map(|block| peer.in_groups(*block)).collect();
    let mut contents = Vec::new();
    for block in &held {
        contents.push(peer.read(*block).await?);
    }
    let mut other = expected.fresh(1, 1);
    finish(peer, &mut other, &shape.table(0), N_NEW).await?;
    other.same_as(&expected.alone[1])?;
    let table = shape.scattered();
    let places: Vec<u32> = table.iter().flat_map(|block| peer.in_groups(*block)).collect();
    for (block, bytes) in places.into_iter().zip(&contents) {
        peer.write(block, bytes.clone()).await?;
        let back = peer.read(block).await?;
        ensure(back == *bytes, || format!("block {block} does not hold the bytes that were written"))?;
    }
    // The sequence continues where it was, in another slot.
    let computed = seq.computed;
    let mut back = seq.restarted(2);
    back.computed = computed;
    finish(peer, &mut back, &table, N_NEW).await?;
    back.same_as(&expected.alone[0])
}

/// Resets while steps are under way; steps of the ended life have no effect.
pub(super) async fn reset(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let mut lost = expected.fresh(2, 0);
    let table = shape.table(0);
    let n = lost.n_prompt.min(peer.hello.abilities.max_tokens);
    let end = n.div_ceil(shape.block_size) as usize;
    send(peer, &mut [Part::new(&mut lost, n, false, &table[..end])]);
    peer.reset().await?;
    // A step of the earlier life arrives late.
    peer.life -= 1;
    send(peer, &mut [Part::new(&mut expected.fresh(2, 0), 1, false, &table[..1])]);
    peer.life += 1;
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &table, N_NEW).await?;
    seq.same_as(&expected.alone[0])
}

/// Sends a step for a sequence that never started; the worker fails the step, drops the next ones, and recovers by a reset.
pub(super) async fn step_failure(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let table = shape.table(0);
    let mut unknown = expected.fresh(0, 5);
    unknown.fresh = false;
    let flying = send(peer, &mut [Part::new(&mut unknown, 1, false, &table[..1])]);
    if peer.session.steps_in_flight > 1 {
        send(peer, &mut [Part::new(&mut expected.fresh(0, 0), 1, false, &table[..1])]);
    }
    peer.failed(flying.sent.id).await?;
    peer.reset().await?;
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &table, N_NEW).await?;
    seq.same_as(&expected.alone[0])
}

/// Sends steps and copies that break the rules; the worker refuses each and stays.
pub(super) async fn nonsense(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let blocks = peer.session.blocks;
    type Break = fn(&mut wire::Step);
    let breaks: [(&str, Break); 7] = [
        ("a block beyond the last", |step| step.blocks.iter_mut().for_each(|block| *block = 1 << 30)),
        ("a column of the wrong length", |step| step.computed = vec![0; 7]),
        ("a start without tokens", |step| step.starts[0].tokens.clear()),
        ("a token beyond the vocabulary", |step| step.starts[0].tokens[0] = u32::MAX),
        ("more tokens to run than known", |step| step.n_tokens[0] = 1 << 30),
        ("too few new blocks", |step| step.blocks.clear()),
        ("a slot beyond all measure", |step| step.slots[0] = u32::MAX),
    ];
    for (name, break_rule) in breaks {
        let id = peer.id();
        let seq = expected.fresh(0, 0);
        let start = wire::Start {
            index: 0,
            request: 1,
            tokens: seq.tokens,
            n_prompt: seq.n_prompt,
            sampling: Some(seq.sampling),
        };
        let mut step = wire::Step {
            id,
            life: peer.life,
            starts: vec![start],
            slots: vec![0],
            computed: vec![0],
            n_tokens: vec![1],
            sample: vec![0],
            n_blocks: vec![1],
            blocks: peer.in_groups(0).collect(),
            ..wire::Step::default()
        };
        break_rule(&mut step);
        peer.send(Some(ToWorker::Step(step)));
        peer.failed(id).await.map_err(|failure| Failure(format!("{name}: {failure}")))?;
        peer.reset().await.map_err(|failure| Failure(format!("{name}: {failure}")))?;
    }
    peer.send(None);
    if peer.hello.kv.block_io {
        let read = peer.try_read(blocks).await?;
        ensure(read.is_err(), || "a block beyond the last was read".into())?;
        let written = peer.try_write(0, vec![0; 3]).await?;
        ensure(written.is_err(), || "a block was written with 3 bytes".into())?;
    }
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &expected.shape.table(0), N_NEW).await?;
    seq.same_as(&expected.alone[0])
}

/// Breaks the connection in the middle of a text; the worker comes back with its KV.
pub(super) async fn resume(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let table = shape.table(0);
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &table, 2).await?;
    let asked = peer.reconnect(true).await?;
    let Some(asked) = asked else { return Err(Failure("the worker came back without Hello.resume".into())) };
    ensure(peer.session.resumed, || {
        format!("the worker asked to resume session {} at life {}, which is another one", asked.session, asked.life)
    })?;
    // Only the last token is run: all before it has KV in the old blocks.
    let computed = seq.computed;
    let mut back = seq.restarted(1);
    back.computed = computed;
    let end = (computed + 1).div_ceil(shape.block_size) as usize;
    run(peer, vec![Part::new(&mut back, 1, true, &table[..end])]).await?;
    finish(peer, &mut back, &table, N_NEW).await?;
    back.same_as(&expected.alone[0])
}

/// Breaks the connection, and lets the worker begin a new session.
pub(super) async fn new_session(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let mut lost = expected.fresh(1, 0);
    finish(peer, &mut lost, &shape.table(0), 1).await?;
    peer.reconnect(false).await?;
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &shape.table(0), N_NEW).await?;
    seq.same_as(&expected.alone[0])
}
