//! Blocks that went to the host and came back hold what they held.

mod rig;

use std::sync::Arc;

use rig::{Rig, Seq};
use trunkline_port::{Place, Sampling, Transfer};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, TransferFault, WorkerConfig, WorkerError};

const HOST_BLOCKS: u32 = 40;
const DEVICE_BLOCKS: u32 = 64;

fn rig(model: &Arc<Model>, block_size: u32) -> Rig {
    let config =
        WorkerConfig { block_size, device_blocks: DEVICE_BLOCKS, host_blocks: HOST_BLOCKS, max_drafts: 0, threads: 1 };
    Rig::with(model, config)
}

fn prompt() -> Vec<u32> {
    Tokenizer::bytes().encode("Blocks that went to the host and came back.").unwrap()
}

/// Which way a copy goes between device and host.
#[derive(Clone, Copy)]
enum Direction {
    Out,
    In,
}

/// A copy of pairs (device, host).
fn transfer(id: u64, direction: Direction, pairs: Vec<(u32, u32)>) -> Transfer {
    match direction {
        Direction::Out => Transfer { id, from: Place::Device, to: Place::Host, pairs, ..Transfer::default() },
        Direction::In => {
            let pairs = pairs.into_iter().map(|(device, host)| (host, device)).collect();
            Transfer { id, from: Place::Host, to: Place::Device, pairs, ..Transfer::default() }
        }
    }
}

#[test]
fn a_sequence_that_was_swapped_out_and_in_goes_on_where_it_was() {
    let model = Arc::new(Model::seeded(6));
    for block_size in [3, 16] {
        let mut plain = Seq::new(0, &prompt(), Sampling::default());
        let expected = rig(&model, block_size).generate(&mut plain, 20, usize::MAX);

        let mut rig = rig(&model, block_size);
        let mut seq = Seq::new(0, &prompt(), Sampling::default());
        let mut logits = rig.generate(&mut seq, 8, usize::MAX);
        let hosts: Vec<u32> = (0..seq.table.len() as u32).map(|i| HOST_BLOCKS - 1 - i).collect();
        let pairs = |table: &[u32]| table.iter().copied().zip(hosts.iter().copied()).collect();
        rig.worker.copier().copy(&transfer(1, Direction::Out, pairs(&seq.table))).unwrap();

        // Another sequence uses the device blocks meanwhile.
        let mut other = Seq::new(1, &vec![7; seq.table.len() * block_size as usize], Sampling::default());
        other.table = seq.table.clone();
        rig.generate(&mut other, 1, usize::MAX);

        // It comes back to other blocks and another slot.
        let mut again = Seq::new(9, &seq.tokens, Sampling::default());
        (again.prompt_len, again.computed) = (seq.prompt_len, seq.computed);
        again.table = rig.free.split_off(rig.free.len() - seq.table.len());
        rig.worker.copier().copy(&transfer(2, Direction::In, pairs(&again.table))).unwrap();
        logits.extend(rig.generate(&mut again, 20, usize::MAX));
        assert_eq!(again.output(), plain.output(), "blocks of {block_size}");
        assert!(logits == expected, "other logits in blocks of {block_size}");
    }
}

#[test]
fn a_transfer_with_wrong_blocks_is_refused_and_copies_nothing() {
    let model = Arc::new(Model::seeded(6));
    let mut rig = rig(&model, 16);
    let mut first = Seq::new(0, &prompt(), Sampling::default());
    first.table = (0..3).collect();
    rig.generate(&mut first, 1, usize::MAX);
    // The host is still empty, so any of it in the tables would change what follows.
    let faults = [
        (vec![(0, 5), (DEVICE_BLOCKS, 6)], TransferFault::DeviceBlock { block: DEVICE_BLOCKS, limit: DEVICE_BLOCKS }),
        (vec![(0, 5), (1, HOST_BLOCKS)], TransferFault::HostBlock { block: HOST_BLOCKS, limit: HOST_BLOCKS }),
        (vec![(0, 5), (0, 6)], TransferFault::DestinationTwice { block: 0 }),
    ];
    for (pairs, fault) in faults {
        let result = rig.worker.copier().copy(&transfer(3, Direction::In, pairs));
        assert_eq!(result, Err(WorkerError::Transfer { transfer: 3, index: 1, fault }));
    }
    // The same source to two places is no contradiction; two sources to one place are.
    assert_eq!(rig.worker.copier().copy(&transfer(4, Direction::Out, vec![(0, 5), (0, 6)])), Ok(()));
    let result = rig.worker.copier().copy(&transfer(5, Direction::Out, vec![(0, 5), (1, 5)]));
    let fault = TransferFault::DestinationTwice { block: 5 };
    assert_eq!(result, Err(WorkerError::Transfer { transfer: 5, index: 1, fault }));
    let mut second = Seq::new(1, &prompt(), Sampling::default()).share(&first, 16, 32);
    rig.generate(&mut second, 6, usize::MAX);
    let mut plain = Seq::new(0, &prompt(), Sampling::default());
    Rig::new(&model, 16, DEVICE_BLOCKS, 1).generate(&mut plain, 6, usize::MAX);
    assert_eq!(second.output(), plain.output());
}

#[test]
fn without_host_blocks_there_is_nowhere_to_copy_to() {
    let rig = Rig::new(&Arc::new(Model::seeded(6)), 16, 4, 1);
    let result = rig.worker.copier().copy(&transfer(1, Direction::Out, vec![(0, 0)]));
    let fault = TransferFault::HostBlock { block: 0, limit: 0 };
    assert_eq!(result, Err(WorkerError::Transfer { transfer: 1, index: 0, fault }));
    assert_eq!(rig.worker.copier().copy(&transfer(2, Direction::In, Vec::new())), Ok(()));
}

#[test]
fn copies_in_both_directions_while_steps_run_change_no_text() {
    let model = Arc::new(Model::seeded(6));
    let block_size = 4;
    let expected = |prompt: &[u32], n| {
        let mut plain = Seq::new(0, prompt, Sampling::default());
        Rig::new(&model, block_size, DEVICE_BLOCKS, 1).generate(&mut plain, n, usize::MAX);
        plain.output().to_vec()
    };
    let mut rig = rig(&model, block_size);
    let mut first = Seq::new(0, &prompt(), Sampling::default());
    rig.generate(&mut first, 1, usize::MAX);
    let full = first.computed / 4 * 4;
    let shared = first.table[..full / 4].to_vec();
    let landing = rig.free.split_off(rig.free.len() - shared.len());
    let hosts = 0..shared.len() as u32;
    let (out, back) = (shared.iter().copied().zip(hosts.clone()), landing.iter().copied().zip(hosts));
    let (out, back) = (transfer(1, Direction::Out, out.collect()), transfer(2, Direction::In, back.collect()));

    // One thread copies blocks that the steps read out and into others, again and again, until the steps are done.
    let copier = rig.worker.copier();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let copying = std::thread::spawn(move || {
        let mut rounds = 0;
        while rounds == 0 || stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            copier.copy(&out).unwrap();
            copier.copy(&back).unwrap();
            rounds += 1;
        }
        rounds
    });
    let mut second = Seq::new(1, &prompt(), Sampling::default()).share(&first, block_size, full);
    rig.generate(&mut second, 40, usize::MAX);
    drop(stop);
    println!("{} rounds of copies during the steps", copying.join().unwrap());
    assert_eq!(second.output(), expected(&prompt(), 40));

    // The copies of the copies hold the prefix.
    let mut third = Seq::new(2, &prompt(), Sampling::default());
    (third.table, third.computed, third.write_from) = (landing, full, full as u32);
    rig.generate(&mut third, 20, usize::MAX);
    assert_eq!(third.output(), expected(&prompt(), 20));
}
