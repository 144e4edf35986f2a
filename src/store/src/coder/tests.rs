//! Tests of compression with statistics learned from the blocks themselves.

use trunkline_codec::{Shape, quant, rotary_frequencies};

use super::*;

const SHAPE: Shape = Shape { layers: 2, tokens: 16, heads: 2, head_dim: 64 };
const BLOCK: usize = 2 * 2 * 2 * 16 * 2 * 64;

fn layout() -> BlockLayout {
    BlockLayout {
        dtype: "bf16".to_owned(),
        shape: Some(SHAPE),
        block_bytes: BLOCK,
        block_size: 16,
        frequencies: Some(vec![rotary_frequencies(64, 10_000.0); 2]),
    }
}

/// Returns a block of a model with large means of the keys of some channels.
fn block(seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let mean = |at: usize| if at % 64 >= 56 && at % 64 < 60 { 9.0 } else { 0.0 };
    let element = |at| (((random() + random() + mean(at)).to_bits() >> 16) as u16).to_le_bytes();
    (0..BLOCK / 2).flat_map(element).collect()
}

fn at(position: u32) -> Origin {
    Origin { position, group: 0 }
}

#[test]
fn a_table_is_learned_from_512_tokens_and_old_frames_stay_readable() {
    let (coder, mut engine) = (Coder::new(layout()), Engine::default());
    let mut plain = Vec::new();
    assert!(coder.encode(&mut engine, &block(0), Some(at(0)), &mut plain));
    let observe = |coder: &Coder, seed: u64| {
        let mut kept = None;
        coder.observe(&block(seed), at(seed as u32 * 16), |id, table| kept = Some((id, table.to_vec())));
        kept
    };
    let tables: Vec<_> = (0..40).filter_map(|n| Some((n, observe(&coder, n)?))).collect();
    assert_eq!(tables.len(), 1, "statistics are frozen once");
    assert_eq!(tables[0].0, 31, "512 tokens are 32 blocks");
    let mut predicted = Vec::new();
    assert!(coder.encode(&mut engine, &block(50), Some(at(800)), &mut predicted));
    let mut out = Vec::new();
    for (frame, seed) in [(&plain, 0), (&predicted, 50)] {
        assert_eq!(coder.decode(&mut engine, frame, &mut out), Ok(()));
        assert_eq!(out, block(seed));
    }
    // A process without the table cannot read the frame, and says so.
    let other = Coder::new(layout());
    assert_eq!(other.decode(&mut engine, &predicted, &mut out), Err(Fault::Stale));
    let (id, bytes) = &tables[0].1;
    assert_eq!((other.add_table_named(id + 1, bytes), other.has_table(*id)), (Err(Fault::Swapped), false));
    assert_eq!((other.add_table(bytes), other.add_table(&bytes[1..])), (Ok(*id), Err(Fault::Flipped)));
    assert!(other.has_table(*id) && !other.has_table(id + 1));
    assert_eq!((other.decode(&mut engine, &predicted, &mut out), out == block(50)), (Ok(()), true));
    assert_eq!((0..40).find_map(|n| observe(&other, n)), None, "statistics that were kept are not learned again");
}

/// Returns a block of a layer group whose channels have other means: those of the first group, in other places.
fn block_of_second_group(seed: u64) -> Vec<u8> {
    let mut bytes = block(seed);
    bytes.as_chunks_mut::<128>().0.iter_mut().for_each(|head| head.rotate_left(80));
    bytes
}

#[test]
fn each_layer_group_has_statistics_of_its_own() {
    let (coder, mut engine) = (Coder::new(layout()), Engine::default());
    let mut tables = Vec::new();
    for n in 0..40 {
        let second = Origin { group: 1, ..at(n * 16) };
        for (bytes, origin) in [(block(n.into()), at(n * 16)), (block_of_second_group(n.into()), second)] {
            coder.observe(&bytes, origin, |_, table| tables.push((n, origin.group, table.to_vec())));
        }
    }
    assert_eq!(tables.iter().map(|(n, group, _)| (*n, *group)).collect::<Vec<_>>(), [(31, 0), (31, 1)]);
    // A process that reads the tables later encodes as this one.
    let restarted = Coder::new(layout());
    assert!(tables.iter().all(|(_, _, table)| restarted.add_table(table).is_ok()));
    for coder in [&coder, &restarted] {
        let mut len = |bytes: &[u8], group: u8| {
            let (mut frame, mut out) = (Vec::new(), Vec::new());
            assert!(coder.encode(&mut engine, bytes, Some(Origin { position: 800, group }), &mut frame));
            assert_eq!((coder.decode(&mut engine, &frame, &mut out), out == bytes), (Ok(()), true));
            frame.len()
        };
        let (first, second) = (block(50), block_of_second_group(50));
        assert!(len(&first, 0) < len(&first, 1) && len(&second, 1) < len(&second, 0), "each by its own statistics");
        assert!(len(&second, 2) > len(&second, 1), "a group without statistics is encoded without");
    }
}

#[test]
fn quantised_blocks_are_encoded_once_there_are_statistics() {
    for (name, quantise) in [("q8_0", quant::to_q8_0 as fn(&[f32], &mut Vec<u8>) -> _), ("q4_0", quant::to_q4_0)] {
        let quantised = |seed: u64| {
            let lanes = block(seed);
            let value = |two: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16);
            let (values, mut bytes): (Vec<f32>, Vec<u8>) =
                (lanes.as_chunks::<2>().0.iter().map(value).collect(), Vec::new());
            quantise(&values, &mut bytes).expect("values are finite");
            bytes
        };
        let block_bytes = quantised(0).len();
        let coder = Coder::new(BlockLayout { dtype: name.to_owned(), block_bytes, ..layout() });
        let mut engine = Engine::default();
        assert!(coder.can_encode());
        (0..32).for_each(|n| coder.observe(&quantised(n), at(n as u32 * 16), |_, _| ()));
        let (mut frame, mut out) = (Vec::new(), Vec::new());
        assert!(coder.encode(&mut engine, &quantised(50), Some(at(800)), &mut frame));
        assert_eq!((coder.decode(&mut engine, &frame, &mut out), out == quantised(50)), (Ok(()), true));
        assert!(coder.stats().ratio() > 1.05, "{name}: {}", coder.stats().ratio());
    }
}

#[test]
fn frames_of_other_layouts_and_changed_frames_are_refused() {
    let (coder, mut engine) = (Coder::new(layout()), Engine::default());
    let (mut frame, mut out) = (Vec::new(), Vec::new());
    assert!(coder.encode(&mut engine, &block(1), None, &mut frame));
    let half = Shape { heads: 1, ..SHAPE };
    let other = BlockLayout { shape: Some(half), block_bytes: BLOCK / 2, frequencies: None, ..layout() };
    assert_eq!(Coder::new(other).decode(&mut engine, &frame, &mut out), Err(Fault::Stale));
    for at in (0..frame.len()).step_by(97) {
        frame[at] ^= 16;
        assert!(coder.decode(&mut engine, &frame, &mut out).is_err(), "byte {at}");
        frame[at] ^= 16;
    }
    assert_eq!(coder.stats().decoded_blocks, 0);
}

#[test]
fn nothing_is_learned_of_rotated_heads_of_an_odd_length() {
    let shape = Shape { head_dim: 63, ..SHAPE };
    let frequencies = Some(vec![rotary_frequencies(63, 10_000.0); 2]);
    let layout = BlockLayout { shape: Some(shape), block_bytes: BLOCK / 64 * 63, frequencies, ..layout() };
    let coder = Coder::new(layout.clone());
    let bytes = |seed: u64| block(seed)[..layout.block_bytes].to_vec();
    (0..40).for_each(|n| coder.observe(&bytes(n), at(n as u32 * 16), |id, _| panic!("table {id}")));
    let (mut frame, mut out) = (Vec::new(), Vec::new());
    assert!(coder.encode(&mut Engine::default(), &bytes(50), Some(at(800)), &mut frame));
    assert_eq!((coder.decode(&mut Engine::default(), &frame, &mut out), out == bytes(50)), (Ok(()), true));
}

#[test]
fn layouts_that_the_codec_does_not_know_are_not_encoded() {
    let unknown = [
        BlockLayout { dtype: "int3".to_owned(), ..layout() },
        BlockLayout { shape: None, ..layout() },
        BlockLayout { block_bytes: BLOCK + 2, ..layout() },
    ];
    for layout in unknown {
        let (coder, bytes, mut out) = (Coder::new(layout.clone()), vec![0; layout.block_bytes], Vec::new());
        assert!(!coder.can_encode() && !coder.encode(&mut Engine::default(), &bytes, None, &mut out), "{layout:?}");
        coder.observe(&bytes, at(0), |id, _| panic!("table {id}"));
        assert_eq!(out.len(), 0);
    }
}
