//! Checks of computing: chunks, batches, block tables, preemption, sampling.

use trunkline_port::{Keeps, LayerGroup};

use super::peer::{Failure, Peer, ensure};
use super::player::{Part, Seq, finish, receive, run, send};
use super::shape::{N_NEW, Shape};
use crate::hello::Hello;
use crate::wire::{self, to_worker::Message as ToWorker};

/// Texts of the check's prompts, each computed alone.
pub(super) struct Expected {
    pub(super) shape: Shape,
    /// Sequences with their generated tokens: greedy.
    pub(super) alone: Vec<Seq>,
}

impl Expected {
    /// Returns sequence `i` as a new one in a slot.
    pub(super) fn fresh(&self, i: usize, slot: u32) -> Seq {
        self.shape.seq(i, slot)
    }
}

/// Computes each prompt alone, twice, in different blocks.
pub(super) async fn alone(peer: &mut Peer, shape: &Shape) -> Result<Expected, Failure> {
    let mut alone = Vec::new();
    for i in 0..Shape::PROMPTS {
        let mut seq = shape.seq(i, 0);
        finish(peer, &mut seq, &shape.table(0), N_NEW).await?;
        let mut again = shape.seq(i, 0);
        finish(peer, &mut again, &shape.table(1), N_NEW).await?;
        again.same_as(&seq)?;
        alone.push(seq);
    }
    Ok(Expected { shape: shape.clone(), alone })
}

/// Prefills in chunks that end inside blocks and at their ends.
pub(super) async fn chunks(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let table = shape.table(0);
    let mut seq = expected.fresh(0, 1);
    for chunk in [1, shape.block_size.max(2) - 1, 3] {
        let left = seq.n_prompt - seq.computed;
        let n_tokens = chunk.min(left.saturating_sub(1)).min(peer.hello.abilities.max_tokens);
        if n_tokens > 0 {
            let end = (seq.computed + n_tokens).div_ceil(shape.block_size) as usize;
            run(peer, vec![Part::new(&mut seq, n_tokens, false, &table[..end])]).await?;
        }
    }
    finish(peer, &mut seq, &table, N_NEW).await?;
    seq.same_as(&expected.alone[0])
}

/// Runs all prompts together: one prefills in chunks while others decode.
pub(super) async fn batch(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let n = Shape::PROMPTS.min(peer.hello.abilities.max_sequences as usize);
    let budget = peer.hello.abilities.max_tokens;
    let mut seqs: Vec<Seq> = (0..n).map(|i| expected.fresh(i, i as u32)).collect();
    let tables: Vec<Vec<u32>> = (0..n).map(|i| shape.table(i)).collect();
    let mut round = 0_usize;
    while seqs.iter().any(|seq| seq.generated().len() < N_NEW) {
        let mut left = budget;
        let mut parts = Vec::new();
        // The sequences begin one after another, and rotate in the order of the step.
        let mut order: Vec<(usize, &mut Seq)> = seqs.iter_mut().enumerate().filter(|(i, _)| *i <= round).collect();
        order.rotate_left(round % (n.min(round + 1)));
        for (i, seq) in order {
            let wanted = seq.tokens.len() as u32 - seq.computed;
            let n_tokens = wanted.min(left).min(if wanted > 1 { shape.chunk(i) } else { 1 });
            if n_tokens == 0 || seq.generated().len() >= N_NEW {
                continue;
            }
            left -= n_tokens;
            let end = (seq.computed + n_tokens).div_ceil(shape.block_size) as usize;
            parts.push(Part::new(seq, n_tokens, n_tokens == wanted, &tables[i][..end]));
        }
        run(peer, parts).await?;
        round += 1;
    }
    seqs.iter().zip(&expected.alone).try_for_each(|(seq, alone)| seq.same_as(alone))
}

/// Runs a prompt in blocks far apart and in descending order.
pub(super) async fn scattered(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let mut seq = expected.fresh(1, 0);
    finish(peer, &mut seq, &expected.shape.scattered(), N_NEW).await?;
    seq.same_as(&expected.alone[1])
}

/// Begins a prompt in the blocks of another one with an equal prefix.
pub(super) async fn shared_prefix(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let mut first = expected.fresh(0, 0);
    finish(peer, &mut first, &shape.table(0), 1).await?;
    // The last prompt begins with all full blocks of the first.
    let mut second = expected.fresh(Shape::SHARING, 1);
    let shared = shape.shared_blocks();
    second.computed = shared as u32 * shape.block_size;
    let table = [&shape.table(0)[..shared], &shape.table(1)[shared..]].concat();
    finish(peer, &mut second, &table, N_NEW).await?;
    second.same_as(&expected.alone[Shape::SHARING])?;
    // The first one's blocks were only read.
    finish(peer, &mut first, &shape.table(0), N_NEW).await?;
    first.same_as(&expected.alone[0])
}

/// Begins a prompt in the step that fills the last block of its prefix.
pub(super) async fn in_step_hits(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let (budget, shared) = (peer.hello.abilities.max_tokens, shape.shared_blocks());
    let end = shared as u32 * shape.block_size;
    let own = shape.table(0);
    // A worker that reads the blocks too early reads another text.
    finish(peer, &mut expected.fresh(2, 1), &own, 1).await?;
    let (mut first, mut second) = (expected.fresh(0, 0), expected.fresh(Shape::SHARING, 1));
    while first.computed + 1 < end {
        let chunk = (end - 1 - first.computed).min(budget);
        run(peer, vec![Part::new(&mut first, chunk, false, &own[..shared])]).await?;
    }
    let table = [&own[..shared], &shape.table(1)[shared..]].concat();
    second.computed = end;
    let fills = (first.n_prompt - first.computed).min(budget - 1);
    let begins = (second.n_prompt - second.computed).min(budget - fills);
    let (samples, answers) = (first.computed + fills == first.n_prompt, end + begins == second.n_prompt);
    let (filling, reading) = [(&first, fills, &own), (&second, begins, &table)]
        .map(|(seq, n, table)| &table[..(seq.computed + n).div_ceil(shape.block_size) as usize])
        .into();
    let parts = vec![Part::new(&mut first, fills, samples, filling), Part::new(&mut second, begins, answers, reading)];
    run(peer, parts).await?;
    finish(peer, &mut first, &own, N_NEW).await?;
    finish(peer, &mut second, &table, N_NEW).await?;
    first.same_as(&expected.alone[0])?;
    second.same_as(&expected.alone[Shape::SHARING])
}

/// Runs the last token of a cached prompt without writing its KV again.
pub(super) async fn partial_writes(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let table = shape.table(0);
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &table, 1).await?;
    let n = seq.n_prompt;
    let n_blocks = n.div_ceil(shape.block_size) as usize;
    let last = table[n_blocks - 1];
    let with_io = peer.hello.kv.block_io;
    if with_io {
        // Bytes that no run writes: if they stay, nothing was written.
        let mut marked = peer.read(last).await?;
        marked.iter_mut().for_each(|byte| *byte = 0);
        for block in peer.in_groups(last) {
            peer.write(block, marked.clone()).await?;
        }
        let mut reader = expected.fresh(0, 1);
        reader.computed = n - 1;
        let write_from = Some(n);
        let part = Part { write_from, ..Part::new(&mut reader, 1, true, &table[..n_blocks]) };
        match run(peer, vec![part]).await {
            Ok(()) => {
                for block in peer.in_groups(last) {
                    let same = peer.read(block).await? == marked;
                    ensure(same, || "KV below kv_write_from was written".into())?;
                }
            }
            // A worker that knows the contents of its KV may refuse to read such bytes.
            Err(_) => peer.reset().await?,
        }
    }
    let mut first = expected.fresh(0, 0);
    finish(peer, &mut first, &table, 1).await?;
    let mut reader = expected.fresh(0, 1);
    reader.computed = n - 1;
    let part = Part { write_from: Some(n), ..Part::new(&mut reader, 1, true, &table[..n_blocks]) };
    run(peer, vec![part]).await?;
    // Generated tokens need blocks of the reader's own: the last block is computed again there.
    let full = (n / shape.block_size) as usize;
    reader.computed = full as u32 * shape.block_size;
    let own = [&table[..full], &shape.table(1)[full..]].concat();
    finish(peer, &mut reader, &own, N_NEW).await?;
    reader.same_as(&expected.alone[0])
}

/// Replaces blocks in the middle of a table by blocks of equal contents, then overwrites the old ones.
pub(super) async fn table_cut(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let (first, second) = (shape.table(0), shape.table(1));
    let mut seq = expected.fresh(0, 0);
    finish(peer, &mut seq, &first, 2).await?;
    let mut equal = expected.fresh(0, 1);
    finish(peer, &mut equal, &second, 2).await?;
    // Full blocks from the second one on are the other sequence's from now on; the last is computed again in a block of its own.
    let full = (seq.computed / shape.block_size) as usize;
    seq.computed = full as u32 * shape.block_size;
    let third = shape.table(2);
    let table = [&first[..1.min(full)], &second[1.min(full)..full], &third[full..]].concat();
    finish(peer, &mut seq, &table, 3).await?;
    // A worker that still reads the old entries reads another text.
    let junk = [&shape.table(3)[..1], &first[1..]].concat();
    let mut other = expected.fresh(2, 1);
    finish(peer, &mut other, &junk, N_NEW).await?;
    other.same_as(&expected.alone[2])?;
    finish(peer, &mut seq, &table, N_NEW).await?;
    seq.same_as(&expected.alone[0])
}

/// Returns `true` if a prompt's first block may be dropped in layer group `group`: by scores, or behind the window.
fn drops(hello: &Hello, group: &LayerGroup) -> bool {
    match group.keeps {
        Keeps::All => false,
        Keeps::Scored => true,
        Keeps::Window(window) => window <= hello.kv.block_sizes[0],
    }
}

/// Returns `true` if a layer group drops blocks of prompts as long as the check's, and the check can overwrite blocks.
pub(super) fn can_drop(hello: &Hello) -> bool {
    hello.kv.block_io && hello.model.groups.iter().any(|group| drops(hello, group))
}

/// Drops the first block of a sequence in each layer group with drops, and overwrites the block: no later step reads the bytes.
pub(super) async fn dropped_blocks(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let table = shape.table(0);
    let (groups, hello) = (peer.hello.model.groups.clone(), peer.hello.clone());
    for (group, _) in groups.iter().enumerate().filter(|(_, group)| drops(&hello, group)) {
        let group = group as u32;
        let mut texts = Vec::new();
        for overwrites in [false, true] {
            let mut seq = expected.fresh(0, 0);
            finish(peer, &mut seq, &table, 2).await?;
            let end = (seq.computed + 1).div_ceil(shape.block_size) as usize;
            let part = Part { drops: Some((group, 0)), ..Part::new(&mut seq, 1, true, &table[..end]) };
            run(peer, vec![part]).await?;
            if overwrites {
                let block = peer.in_group(table[0], group);
                let mut bytes = peer.read(block).await?;
                bytes.iter_mut().for_each(|byte| *byte = 0);
                peer.write(block, bytes).await?;
            }
            finish(peer, &mut seq, &table, N_NEW).await?;
            texts.push(seq);
        }
        texts[1].same_as(&texts[0]).map_err(|failure| Failure(format!("layer group {group}: {failure}")))?;
    }
    Ok(())
}

/// Begins a sequence in the slot of another one.
pub(super) async fn slot_reuse(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    for (i, tables) in [(0, 0), (2, 1), (1, 0)] {
        let mut seq = expected.fresh(i, 3);
        if i != 1 && peer.hello.abilities.seeded_sampling {
            (seq.sampling.temperature, seq.sampling.seed) = (1.5, 7);
        }
        // Sequences end at any time, without a message.
        let n_new = if i == 1 { N_NEW } else { 2 };
        finish(peer, &mut seq, &shape.table(tables), n_new).await?;
        if i == 1 {
            seq.same_as(&expected.alone[i])?;
        }
    }
    Ok(())
}

/// Sends each decode before the answer to the one before it.
pub(super) async fn two_in_flight(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let table = shape.table(0);
    let mut seq = expected.fresh(0, 0);
    let mut flying = None;
    let mut sent = 0;
    while sent < N_NEW {
        let left = seq.n_prompt.saturating_sub(seq.computed).max(1);
        let n_tokens = left.min(peer.hello.abilities.max_tokens);
        let end = (seq.computed + n_tokens).div_ceil(shape.block_size) as usize;
        let next = send(peer, &mut [Part::new(&mut seq, n_tokens, n_tokens == left, &table[..end])]);
        sent += usize::from(n_tokens == left);
        if let Some(flying) = flying.replace(next) {
            receive(peer, &flying, &mut [&mut seq]).await?;
        }
    }
    if let Some(flying) = flying {
        receive(peer, &flying, &mut [&mut seq]).await?;
    }
    seq.same_as(&expected.alone[0])
}

/// Preempts a sequence after each token, and starts it again with the tokens so far.
pub(super) async fn restart(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let mut seq = expected.fresh(0, 0);
    for n in 1..=N_NEW {
        let places = n % 2;
        finish(peer, &mut seq, &shape.table(places), n).await?;
        let prefix = Seq { tokens: expected.alone[0].tokens[..seq.tokens.len()].to_vec(), ..seq.clone() };
        seq.same_as(&Seq { logprobs: expected.alone[0].logprobs.clone(), ..prefix })?;
        seq = seq.restarted(n as u32 % 2);
    }
    Ok(())
}

/// Runs a step without sequences before each token.
pub(super) async fn idle(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let mut seq = expected.fresh(0, 0);
    for n in 1..=N_NEW {
        let life = peer.life;
        peer.send(Some(ToWorker::Idle(wire::Idle { life })));
        finish(peer, &mut seq, &expected.shape.table(0), n).await?;
    }
    seq.same_as(&expected.alone[0])
}

/// Draws the same tokens alone, in a batch and after a restart, and other tokens with another seed.
pub(super) async fn seeded_sampling(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let drawn = |seed: u64, slot: u32| {
        let mut seq = expected.fresh(0, slot);
        (seq.sampling.temperature, seq.sampling.seed) = (1.5, seed);
        seq
    };
    let mut first = drawn(7, 0);
    finish(peer, &mut first, &shape.table(0), N_NEW).await?;
    let mut again = drawn(7, 1);
    finish(peer, &mut again, &shape.table(1), N_NEW / 2).await?;
    again = again.restarted(0);
    finish(peer, &mut again, &shape.table(1), N_NEW).await?;
    again.same_as(&first)?;
    if peer.hello.abilities.max_sequences > 1 {
        let (mut own, mut other) = (drawn(7, 0), expected.fresh(1, 1));
        let (a, b) = (shape.table(0), shape.table(1));
        finish(peer, &mut own, &a, 1).await?;
        finish(peer, &mut other, &b, 1).await?;
        while own.generated().len() < N_NEW {
            let end = |seq: &Seq| (seq.computed + 1).div_ceil(shape.block_size) as usize;
            let (ends_own, ends_other) = (end(&own), end(&other));
            let own = Part::new(&mut own, 1, true, &a[..ends_own]);
            let other = Part::new(&mut other, 1, true, &b[..ends_other]);
            run(peer, vec![own, other]).await?;
        }
        own.same_as(&first)?;
    }
    let mut differ = false;
    for seed in [8, 9, 1 << 63] {
        let mut other = drawn(seed, 0);
        finish(peer, &mut other, &shape.table(0), N_NEW).await?;
        differ |= other.generated() != first.generated();
    }
    ensure(differ, || "four seeds gave equal texts at temperature 1.5".into())
}

/// Forces tokens by biases, and counts the same generated tokens after a restart.
pub(super) async fn penalties(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let table = expected.shape.table(0);
    let last = peer.hello.model.vocab_size - 1;
    let mut forced = expected.fresh(0, 0);
    forced.sampling.logit_bias = [(last, 100.0)].into();
    finish(peer, &mut forced, &table, N_NEW).await?;
    let other = forced.generated().iter().find(|token| **token != last);
    ensure(other.is_none(), || format!("token {} was generated, and {last} has a bias of 100", other.unwrap_or(&0)))?;
    let counted = |slot| {
        let mut seq = expected.fresh(0, slot);
        seq.sampling.logit_bias = (0..4).map(|n| (last.saturating_sub(n), 100.0)).collect();
        (seq.sampling.frequency_penalty, seq.sampling.presence_penalty) = (1.5, 2.0);
        seq
    };
    let mut whole = counted(0);
    finish(peer, &mut whole, &table, N_NEW).await?;
    let mut again = counted(1);
    for n in 1..=N_NEW {
        finish(peer, &mut again, &table, n).await?;
        again = again.restarted(n as u32 % 2);
    }
    again.same_as(&whole)
}

/// Asks for log probabilities for some sequences of a batch.
pub(super) async fn logprobs(peer: &mut Peer, expected: &Expected) -> Result<(), Failure> {
    let shape = &expected.shape;
    let n_top = peer.hello.abilities.max_logprobs.min(5);
    let table = shape.table(0);
    let mut seq = expected.fresh(0, 0);
    seq.sampling.logprobs = Some(n_top);
    finish(peer, &mut seq, &table, 1).await?;
    let end = (seq.computed + 1).div_ceil(shape.block_size) as usize;
    let flying = send(peer, &mut [Part::new(&mut seq, 1, true, &table[..end])]);
    let output = peer.done(&flying.sent).await?;
    let entry = &output.logprobs[0];
    ensure(entry.logprob <= 1e-3, || format!("a log probability is {}, above 0", entry.logprob))?;
    let sorted = entry.top.windows(2).all(|pair| pair[0].1 >= pair[1].1);
    ensure(sorted, || "the most likely tokens are not sorted by log probability".into())?;
    let (first, logprob) = entry.top[0];
    ensure(first == entry.token || (logprob - entry.logprob).abs() < 1e-3, || {
        format!("the greedy token is {}, and the most likely one {first}", entry.token)
    })?;
    ensure((logprob - entry.logprob).abs() < 1e-3, || {
        format!("the log probability of the greedy token is {}, and {logprob} in the list", entry.logprob)
    })?;
    // A sequence that does not ask gets none.
    let mut silent = expected.fresh(1, 0);
    silent.sampling.logprobs = None;
    finish(peer, &mut silent, &table, 2).await
}
