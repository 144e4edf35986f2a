//! Blocks that went to the host and came back hold what they held.

mod rig;

use std::sync::Arc;

use rig::{Rig, Seq};
use trunkline_port::{DeviceBlocks, Sampling};
use trunkline_text::Tokenizer;
use trunkline_worker::{Blocks, Model};

const DEVICE_BLOCKS: u32 = 64;

fn rig(model: &Arc<Model>, block_size: u32) -> Rig {
    Rig::new(model, block_size, DEVICE_BLOCKS, 1)
}

fn prompt() -> Vec<u32> {
    Tokenizer::bytes().encode("Blocks that went to the host and came back.").unwrap()
}

/// Returns the bytes of some blocks.
fn read(blocks: &Blocks, numbers: &[u32]) -> Vec<Vec<u8>> {
    let read = |block: &u32| {
        let mut bytes = vec![0; blocks.block_bytes()];
        blocks.read(*block, &mut bytes).unwrap();
        bytes
    };
    numbers.iter().map(read).collect()
}

/// Writes bytes into some blocks.
fn write(blocks: &Blocks, numbers: &[u32], bytes: &[Vec<u8>]) {
    numbers.iter().zip(bytes).for_each(|(block, bytes)| blocks.write(*block, bytes).unwrap());
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
        let host = read(&rig.worker.blocks(), &seq.table);

        // Another sequence uses the device blocks meanwhile.
        let mut other = Seq::new(1, &vec![7; seq.table.len() * block_size as usize], Sampling::default());
        other.table = seq.table.clone();
        rig.generate(&mut other, 1, usize::MAX);

        // It comes back to other blocks and another slot.
        let mut again = Seq::new(9, &seq.tokens, Sampling::default());
        (again.prompt_len, again.computed) = (seq.prompt_len, seq.computed);
        again.table = rig.free.split_off(rig.free.len() - seq.table.len());
        write(&rig.worker.blocks(), &again.table, &host);
        logits.extend(rig.generate(&mut again, 20, usize::MAX));
        assert_eq!(again.output(), plain.output(), "blocks of {block_size}");
        assert!(logits == expected, "other logits in blocks of {block_size}");
    }
}

#[test]
fn a_block_that_is_not_there_is_refused() {
    let rig = Rig::new(&Arc::new(Model::seeded(6)), 16, 4, 1);
    let blocks = rig.worker.blocks();
    let mut bytes = vec![0; blocks.block_bytes()];
    assert!(blocks.read(4, &mut bytes).is_err() && blocks.write(4, &bytes).is_err());
    blocks.write(3, &bytes).unwrap();
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
    // One thread copies blocks that the steps read out and into others, again and again, until the steps are done.
    let (blocks, to) = (rig.worker.blocks(), landing.clone());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let copying = std::thread::spawn(move || {
        let mut rounds = 0;
        while rounds == 0 || stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            write(&blocks, &to, &read(&blocks, &shared));
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
