//! Frames and a side table of earlier programs are still read, bit for bit: version 2 of frames, version 1 of side tables.

#[path = "../../../tests/harness/fixtures.rs"]
mod fixtures;

use half::{bf16, f16};
use trunkline_codec::frame::{Block, Codec, Transform, inspect};
use trunkline_codec::{Dtype, Shape, SideTable, quant};

const SHAPE: Shape = Shape { layers: 1, tokens: 8, heads: 1, head_dim: 32 };
/// Sizes of the numbers in each third of the channels.
const SCALES: [f64; 3] = [4.0, 0.25, 1.0];
const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Numbers that only additions and multiplications make, equal everywhere, each channel with one exponent.
fn values() -> Vec<f32> {
    let mut state = 11u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    let value = |at: usize| (1.0 + unit()) * SCALES[at % 32 / 11] as f32 * if unit() < 0.5 { -1.0 } else { 1.0 };
    (0..SHAPE.elements().unwrap()).map(value).collect()
}

fn contents(dtype: Dtype) -> Vec<u8> {
    let mut bytes = Vec::new();
    match dtype {
        Dtype::Q8_0 => quant::to_q8_0(&values(), &mut bytes).unwrap(),
        Dtype::Q4_0 => quant::to_q4_0(&values(), &mut bytes).unwrap(),
        _ => {}
    }
    for value in values() {
        match dtype {
            Dtype::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            Dtype::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            Dtype::F32 => bytes.extend(value.to_le_bytes()),
            // The sign, four or five bits of the exponent, and the upper bits of the mantissa.
            Dtype::E5m2 => bytes.push(f16::from_f32(value).to_le_bytes()[1]),
            Dtype::E4m3 => {
                bytes.push((f16::from_f32(value / 256.0).to_bits() >> 7) as u8 & 0x7f | u8::from(value < 0.0) << 7)
            }
            Dtype::Q8_0 | Dtype::Q4_0 => {}
        }
    }
    bytes
}

fn table() -> SideTable {
    let frequencies = vec![(0..16).map(|pair| (u64::MAX / 7) >> pair).collect()];
    let statistics: Vec<(f64, f64)> = (0..64).map(|at| (0.0, 1.5 * SCALES[at % 32 / 11])).collect();
    SideTable::from_statistics(&SHAPE, frequencies, &statistics)
}

/// Returns a frame: predicted with a table, fast if asked for, else plain or stored.
fn frame(dtype: Dtype, table: Option<&SideTable>, is_fast: bool) -> Vec<u8> {
    let bytes = contents(dtype);
    let block = Block { dtype, shape: SHAPE, position: table.map(|_| 0), bytes: &bytes };
    let (mut codec, mut frame) = (Codec::new(), Vec::new());
    match is_fast {
        true => codec.encode_fast(&block, &mut frame).unwrap(),
        false => codec.encode(&block, table, &mut frame).unwrap(),
    };
    frame
}

#[test]
fn frames_of_version_2_and_tables_of_version_1_are_read_as_they_were_written() {
    let table = table();
    // A block at position 0: the first token is not rotated, the others are taken as if they were.
    let frames = [
        ("bf16-predicted", Dtype::Bf16, Transform::Predicted),
        ("bf16-fixed", Dtype::Bf16, Transform::Fixed),
        ("f16-plain", Dtype::F16, Transform::Plain),
        ("f32-plain", Dtype::F32, Transform::Plain),
        ("e4m3-plain", Dtype::E4m3, Transform::Plain),
        ("e5m2-plain", Dtype::E5m2, Transform::Plain),
        ("q8_0-stored", Dtype::Q8_0, Transform::Stored),
        ("q4_0-stored", Dtype::Q4_0, Transform::Stored),
    ];
    let mut made = vec![("table", table.to_bytes())];
    for (name, dtype, transform) in frames {
        let table = (transform == Transform::Predicted).then_some(&table);
        made.push((name, frame(dtype, table, transform == Transform::Fixed)));
    }
    let kept = fixtures::kept(FOLDER, "v2/frames.txt", &made);
    let old = SideTable::from_bytes(&kept["table"], &SHAPE).expect("the table is read");
    assert_eq!((old.id(), old.to_bytes()), (table.id(), kept["table"].clone()));
    for (name, dtype, transform) in frames {
        let info = inspect(&kept[name]).unwrap();
        assert_eq!((info.dtype, info.transform), (dtype, transform), "{name}");
        let mut block = vec![0; info.block_len];
        Codec::new().decode_into(&kept[name], |id| (id == old.id()).then_some(&old), &mut block).unwrap();
        assert_eq!(block, contents(dtype), "{name}");
    }
}
