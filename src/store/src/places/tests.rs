//! Tests of frames and their side tables.

use std::time::{Duration, Instant};

use trunkline_codec::{Calibrator, Dtype, Shape, quant, rotary_frequencies};

use super::*;
use crate::layout::BlockLayout;
use crate::pool::Pool;
use crate::remote::SharedMemory;

const SHAPE: Shape = Shape { layers: 1, tokens: 16, heads: 1, head_dim: 32 };
const ORIGIN: Origin = Origin { position: 0, group: 0 };

fn layout() -> BlockLayout {
    BlockLayout {
        dtype: "bf16".to_owned(),
        shape: Some(SHAPE),
        block_bytes: 2 * 16 * 32 * 2,
        block_size: 16,
        frequencies: Some(vec![rotary_frequencies(32, 10_000.0)]),
    }
}

fn places(layout: BlockLayout) -> Places {
    let pool = Pool::start("test", 1).unwrap();
    Places::new(&StoreSettings::new(layout, 1 << 20), Vec::new(), Arc::clone(pool.queue()))
}

/// Returns a block of numbers of similar size.
fn block(seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..2 * 16 * 32).flat_map(|_| ((random().to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// Writes a side table to remote storage as another server does. Returns a frame that needs the table.
fn frame_of_other_server(remote: &Remote, seed: u64) -> Vec<u8> {
    let mut calibrator = Calibrator::new(SHAPE, layout().frequencies.unwrap());
    calibrator.add(Dtype::Bf16, 0, &block(seed));
    let (coder, table, mut frame) = (Coder::new(layout()), calibrator.finish().to_bytes(), Vec::new());
    let id = coder.add_table(&table).unwrap();
    remote.put_table(id, Instant::now(), || Some(table)).unwrap();
    assert!(coder.encode(&mut Engine::default(), &block(seed), Some(ORIGIN), &mut frame));
    assert_eq!(coder.table_of(&frame), Some(id));
    frame
}

#[test]
fn side_tables_of_other_servers_are_read_up_to_a_limit() {
    let remote = Remote::new(Box::new(SharedMemory::new(1 << 30)), Duration::from_secs(60), 7);
    let places = places(layout());
    let frames: Vec<_> = (0..=FETCHED_TABLES_MAX as u64).map(|seed| frame_of_other_server(&remote, seed)).collect();
    let fetch = |frame: &Vec<u8>| places.fetch_table(&remote, frame);
    let (last, frames) = frames.split_last().unwrap();
    assert!(frames.iter().all(|frame| fetch(frame) == Ok(())));
    assert_eq!(fetch(last), Err(NoBlock::Unproven(Fault::Stale)));
    assert!(frames.iter().all(|frame| fetch(frame) == Ok(())), "what was read is there");
}

#[test]
fn automatic_compression_judges_quantised_blocks_by_their_statistics() {
    let quantised = |seed: u64| {
        // Some channels have large means.
        let mean = |at: usize| if at % 32 >= 28 { 9.0 } else { 0.0 };
        let value = |(at, two): (usize, &[u8; 2])| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16) + mean(at);
        let (values, mut bytes): (Vec<f32>, _) =
            (block(seed).as_chunks::<2>().0.iter().enumerate().map(value).collect(), Vec::new());
        quant::to_q8_0(&values, &mut bytes).expect("values are finite");
        bytes
    };
    let places = places(BlockLayout { dtype: "q8_0".to_owned(), block_bytes: quantised(0).len(), ..layout() });
    let (mut engine, mut frame) = (Engine::default(), Vec::new());
    let mut encodes = |seed: u64, origin: Option<Origin>| {
        frame.clear();
        places.encode(&mut engine, &quantised(seed), origin, &mut frame)
    };
    for seed in 0..2 * AUTO_BLOCKS {
        assert!(!encodes(seed, Some(ORIGIN)) && places.compresses(), "there are no statistics yet");
    }
    (0..32).for_each(|seed| places.learn(&quantised(seed), Some(ORIGIN)));
    assert!(!encodes(50, None), "statistics need the position");
    assert!((0..2 * AUTO_BLOCKS).all(|seed| encodes(seed, Some(ORIGIN))));
    assert!(places.compresses(), "{}", places.coder.stats().ratio());
}
