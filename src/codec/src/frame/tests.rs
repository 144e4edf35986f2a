//! Frames come back, damage is seen, and forged frames do no harm.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::rotary::rotary_frequencies;
use crate::side_table::Calibrator;

const SHAPE: Shape = Shape { layers: 2, tokens: 16, heads: 2, head_dim: 32 };

/// Numbers that look random, the same in each run.
struct Draw(u64);

impl Draw {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / 2f64.powi(53)
    }

    /// About a standard normal number.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// A block such as a model makes: each channel has a mean and a deviation of its own, and keys are rotated.
fn kv(dtype: Dtype, position: u32, noise: u64) -> Vec<u8> {
    let (mut model, mut draw) = (Draw(7), Draw(noise));
    let channels = SHAPE.channels();
    let statistics: Vec<(f64, f64)> =
        (0..4 * channels).map(|_| (2.0 * model.normal(), 2f64.powf(model.normal()))).collect();
    let mut bytes = Vec::new();
    for row in 0..SHAPE.rows() {
        let (layer, side, token) = SHAPE.place(row);
        let own = &statistics[(2 * layer + side) * channels..][..channels];
        let mut values: Vec<f64> = own.iter().map(|(mean, deviation)| mean + deviation * draw.normal()).collect();
        if side == 0 {
            for head in values.chunks_exact_mut(32) {
                for pair in 0..16 {
                    let angle = f64::from(position + token as u32) * 10_000f64.powf(-(pair as f64) / 16.0);
                    let (a, b) = (head[pair], head[pair + 16]);
                    head[pair] = a * angle.cos() - b * angle.sin();
                    head[pair + 16] = b * angle.cos() + a * angle.sin();
                }
            }
        }
        for value in values {
            let half = f16::from_f64(value);
            match dtype {
                Dtype::Bf16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
                Dtype::F16 => bytes.extend(half.to_le_bytes()),
                Dtype::F32 => bytes.extend((value as f32).to_le_bytes()),
                // Rounded down; means and deviations are in the range of both.
                Dtype::E5m2 => bytes.push(half.to_le_bytes()[1]),
                Dtype::E4m3 => bytes.push(e4m3(half)),
                Dtype::Q8_0 | Dtype::Q4_0 => unreachable!("made of rows"),
            }
        }
    }
    bytes
}

/// Rounds to E4M3, towards zero.
fn e4m3(half: f16) -> u8 {
    let bits = half.to_bits();
    let exponent = i32::from(bits >> 10 & 31) - 8;
    let magnitude = match exponent {
        ..1 => 0,
        16.. => 0x7e,
        _ => (exponent << 3) as u8 | (bits >> 7 & 7) as u8,
    };
    (bits >> 8) as u8 & 0x80 | magnitude
}

fn calibrated(dtype: Dtype) -> SideTable {
    let mut calibrator = Calibrator::new(SHAPE, vec![rotary_frequencies(32, 1e4); 2]);
    for block in 0..32 {
        let bytes = kv(dtype, 16 * block, 1000 + u64::from(block));
        calibrator.add(dtype, 16 * block, &bytes);
    }
    assert_eq!(calibrator.tokens(), 512);
    calibrator.finish()
}

fn block(dtype: Dtype, position: Option<u32>, bytes: &[u8]) -> Block<'_> {
    Block { dtype, shape: SHAPE, position, bytes }
}

/// The frame of a block, which is read back.
fn framed(block: &Block<'_>, table: Option<&SideTable>) -> (Transform, Vec<u8>) {
    let (mut codec, mut frame, mut back) = (Codec::new(), Vec::new(), vec![1, 2, 3]);
    let transform = codec.encode(block, table, &mut frame).unwrap();
    let info = codec.decode(&frame, |_| table, block.bytes.len(), &mut back).unwrap();
    assert_eq!((&back[3..], &back[..3]), (block.bytes, &[1, 2, 3][..]));
    assert_eq!((info.transform, info.frame_len, info.block_len), (transform, frame.len(), block.bytes.len()));
    assert_eq!(inspect(&frame), Ok(info));
    assert_eq!(table_named_by(&frame), info.table);
    (transform, frame)
}

#[test]
fn position_and_statistics_make_frames_shorter() {
    let least = [[1.05, 1.02], [1.03, 1.01], [1.02, 1.01], [1.05, 1.02], [1.05, 1.02]];
    for (dtype, least) in Dtype::FLOATS.into_iter().zip(least) {
        let (table, bytes) = (calibrated(dtype), kv(dtype, 5000, 1));
        let plain = framed(&block(dtype, Some(5000), &bytes), None);
        let predicted = framed(&block(dtype, Some(5000), &bytes), Some(&table));
        // As if the block were elsewhere: keys are predicted wrongly, values are not.
        let misplaced = framed(&block(dtype, Some(77), &bytes), Some(&table));
        assert_eq!((plain.0, predicted.0), (Transform::Plain, Transform::Predicted));
        assert_ne!(misplaced.0, Transform::Stored);
        let gain = |other: &[u8]| other.len() as f64 / predicted.1.len() as f64;
        assert!(
            gain(&plain.1) > least[0] && gain(&misplaced.1) > least[1],
            "{dtype:?}: {} {}",
            gain(&plain.1),
            gain(&misplaced.1)
        );
        assert_eq!(framed(&block(dtype, None, &bytes), Some(&table)), plain, "nothing is predicted without a position");
    }
}

#[test]
fn random_bytes_are_stored() {
    let mut draw = Draw(3);
    for dtype in Dtype::FLOATS {
        let len = dtype.unit().1 * SHAPE.elements().unwrap();
        let bytes: Vec<u8> = (0..len).map(|_| (draw.unit() * 256.0) as u8).collect();
        for table in [None, Some(&calibrated(dtype))] {
            let (transform, frame) = framed(&block(dtype, Some(0), &bytes), table);
            assert_eq!((transform, frame.len()), (Transform::Stored, HEADER + bytes.len()));
        }
    }
}

#[test]
fn special_values_come_back() {
    for dtype in Dtype::FLOATS {
        let (table, bytes) = (calibrated(dtype), kv(dtype, 0, 1));
        for special in [0u16, 0x8000, 0x7f80, 0xff80, 0x7fff, 0x7c00, 0xfc01, 1, 0x8001, 0xffff] {
            let mut some = bytes.clone();
            some[100..102].copy_from_slice(&special.to_le_bytes());
            framed(&block(dtype, Some(0), &some), Some(&table));
            framed(&block(dtype, Some(0), &some), None);
            let all = special.to_le_bytes().repeat(bytes.len() / 2);
            framed(&block(dtype, Some(u32::MAX), &all), Some(&table));
            framed(&block(dtype, None, &all), None);
        }
    }
}

#[test]
fn damage_is_seen_whatever_byte_it_hits() {
    let (table, bytes) = (calibrated(Dtype::Bf16), kv(Dtype::Bf16, 32, 1));
    for table in [None, Some(&table)] {
        let (_, frame) = framed(&block(Dtype::Bf16, Some(32), &bytes), table);
        let (mut codec, mut out) = (Codec::new(), Vec::new());
        for at in (0..HEADER).chain((HEADER..frame.len()).step_by(97)) {
            let mut damaged = frame.clone();
            damaged[at] ^= 1 << (at % 8);
            let error = codec.decode(&damaged, |_| table, usize::MAX, &mut out).expect_err("damage");
            let expected = match at {
                0..4 => FrameError::NotAFrame,
                4 => FrameError::OtherVersion { version: 2 ^ 1 << 4 },
                20..24 => FrameError::WrongLength { len: frame.len(), expected: error_len(&error) },
                _ => FrameError::Damaged,
            };
            assert_eq!(error, expected, "byte {at}");
        }
        for len in [0, 10, HEADER, frame.len() - 1] {
            assert!(codec.decode(&frame[..len], |_| table, usize::MAX, &mut out).is_err());
        }
        assert!(out.is_empty());
    }
}

fn error_len(error: &FrameError) -> usize {
    match error {
        FrameError::WrongLength { expected, .. } => *expected,
        _ => 0,
    }
}

#[test]
fn a_frame_is_refused_without_its_table_or_beyond_the_limit() {
    let (table, bytes) = (calibrated(Dtype::F16), kv(Dtype::F16, 0, 1));
    let (_, frame) = framed(&block(Dtype::F16, Some(0), &bytes), Some(&table));
    let (mut codec, mut out, id) = (Codec::new(), Vec::new(), table.id());
    assert_eq!(codec.decode(&frame, |_| None, 1 << 20, &mut out), Err(FrameError::NoTable { id }));
    let other = calibrated(Dtype::Bf16);
    assert_eq!(codec.decode(&frame, |_| Some(&other), 1 << 20, &mut out), Err(FrameError::NoTable { id }));
    let limit = bytes.len() - 1;
    assert_eq!(
        codec.decode(&frame, |_| Some(&table), limit, &mut out),
        Err(FrameError::TooLong { len: bytes.len(), limit })
    );
    assert_eq!(
        codec.decode_into(&frame, |_| Some(&table), &mut vec![0; limit]),
        Err(FrameError::OtherLength { len: bytes.len(), expected: limit })
    );
    let mut place = vec![0; bytes.len()];
    assert!(codec.decode_into(&frame, |_| Some(&table), &mut place).is_ok() && place == bytes);
    let short = Block { bytes: &bytes[1..], ..block(Dtype::F16, Some(0), &bytes) };
    assert_eq!(
        codec.encode(&short, None, &mut out),
        Err(BlockError::WrongLength { len: bytes.len() - 1, expected: bytes.len() })
    );
    let empty = Block { shape: Shape { tokens: 0, ..SHAPE }, bytes: &[], ..short };
    assert_eq!(codec.encode(&empty, None, &mut out), Err(BlockError::WrongShape));
}

#[test]
fn fast_frames_come_back_and_only_of_types_with_long_exponents() {
    for dtype in Dtype::FLOATS {
        let bytes = kv(dtype, 32, 1);
        let (mut codec, mut frame, mut back) = (Codec::new(), Vec::new(), Vec::new());
        let transform = codec.encode_fast(&block(dtype, None, &bytes), &mut frame).unwrap();
        let info = codec.decode(&frame, |_| None, bytes.len(), &mut back).unwrap();
        assert_eq!((back == bytes, info.transform), (true, transform));
        let ratio = bytes.len() as f64 / frame.len() as f64;
        let (expected, least) = match dtype {
            // The header is half a percent of this small block.
            Dtype::Bf16 => (Transform::Fixed, 1.28),
            Dtype::F32 => (Transform::Fixed, 1.12),
            _ => (Transform::Stored, 0.98),
        };
        assert!(transform == expected && ratio > least, "{dtype:?}: {ratio}");
    }
}

#[test]
fn a_table_is_read_as_it_was_written() {
    let table = calibrated(Dtype::Bf16);
    let labelled = table.clone().labelled(3);
    assert_eq!(SideTable::from_bytes(&labelled.to_bytes(), &SHAPE).map(|table| table.label()), Some(3));
    assert_ne!((labelled.id(), table.label()), (table.id(), 3), "tables of two layer groups are two tables");
    let bytes = table.to_bytes();
    assert_eq!(SideTable::from_bytes(&bytes, &SHAPE), Some(table));
    assert!((0..bytes.len()).all(|len| SideTable::from_bytes(&bytes[..len], &SHAPE).is_none()));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert_eq!(SideTable::from_bytes(&damaged, &SHAPE), None, "byte {at}");
    }
    let mut other = bytes.clone();
    *other.last_mut().unwrap() = 2;
    let id = checksum(&other[16..]).to_le_bytes();
    other[8..16].copy_from_slice(&id);
    assert_eq!(SideTable::from_bytes(&other, &SHAPE), None, "a table has one form, and so one id");
}

#[test]
fn a_table_for_blocks_of_another_shape_is_refused() {
    let Shape { layers, heads, head_dim, .. } = SHAPE;
    let bytes = calibrated(Dtype::Bf16).to_bytes();
    let others = [
        Shape { layers: layers + 1, ..SHAPE },
        Shape { heads: heads + 1, ..SHAPE },
        Shape { heads: 2 * heads, head_dim: head_dim / 2, ..SHAPE },
    ];
    assert!(others.iter().all(|shape| SideTable::from_bytes(&bytes, shape).is_none()));
    // More layers than any model has are not looked at.
    let mut contents = [1u32, 1, u32::MAX].map(u32::to_le_bytes).concat();
    contents.extend([0; 4096]);
    let endless = [&b"TKVS\x01\0\0\0"[..], &checksum(&contents).to_le_bytes(), &contents].concat();
    let shape = Shape { layers: u16::MAX, tokens: 1, heads: 1, head_dim: 1 };
    assert_eq!(SideTable::from_bytes(&endless, &shape), None);
}

#[test]
fn heads_of_an_odd_length_are_not_rotated() {
    let shape = Shape { layers: 1, tokens: 1, heads: 1, head_dim: 3 };
    let table = |frequencies: &[u64]| {
        let mut contents = [3u32, 3, 1, frequencies.len() as u32].map(u32::to_le_bytes).concat();
        contents.extend(frequencies.iter().flat_map(|frequency| frequency.to_le_bytes()));
        contents.extend([0; 2 * 3 * 4]);
        let bytes = [&b"TKVS\x01\0\0\0"[..], &checksum(&contents).to_le_bytes(), &contents].concat();
        SideTable::from_bytes(&bytes, &shape)
    };
    assert!(table(&[]).is_some_and(|table| !table.rotates()));
    assert_eq!(table(&[1 << 60]), None, "the third element of a head has no partner");
}

/// A block of quantised elements such as a model makes.
fn quantised(dtype: Dtype, position: u32, noise: u64) -> Vec<u8> {
    let values: Vec<f32> =
        kv(Dtype::F32, position, noise).as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    let mut bytes = Vec::new();
    match dtype {
        Dtype::Q8_0 => crate::quant::to_q8_0(&values, &mut bytes).unwrap(),
        _ => crate::quant::to_q4_0(&values, &mut bytes).unwrap(),
    }
    bytes
}

#[test]
fn quantised_blocks_come_back_shorter_with_statistics_and_stored_without() {
    for (dtype, least) in [(Dtype::Q8_0, 1.1), (Dtype::Q4_0, 1.18)] {
        let mut calibrator = Calibrator::new(SHAPE, vec![rotary_frequencies(32, 1e4); 2]);
        (0..32).for_each(|at| calibrator.add(dtype, 16 * at, &quantised(dtype, 16 * at, 1000 + u64::from(at))));
        let (table, bytes) = (calibrator.finish(), quantised(dtype, 5000, 1));
        let (transform, frame) = framed(&block(dtype, Some(5000), &bytes), Some(&table));
        let ratio = bytes.len() as f64 / frame.len() as f64;
        assert!(transform == Transform::Predicted && ratio > least, "{dtype:?}: {ratio}");
        let misplaced = framed(&block(dtype, Some(77), &bytes), Some(&table)).1;
        assert!(misplaced.len() > frame.len());
        for (position, table) in [(None, Some(&table)), (Some(5000), None)] {
            let (transform, frame) = framed(&block(dtype, position, &bytes), table);
            assert_eq!((transform, frame.len()), (Transform::Stored, HEADER + bytes.len()));
        }
        // Any scale may come with any integers: 0, infinities and NaN, too.
        let mut any = bytes.clone();
        for (at, scale) in [0, 0x8000, 0x7c00, 0xfe00, 1, 0x83ff, 0x7bff].into_iter().enumerate() {
            any[dtype.unit().1 * at..][..2].copy_from_slice(&u16::to_le_bytes(scale));
        }
        framed(&block(dtype, Some(5000), &any), Some(&table));
        let mut draw = Draw(5);
        any.iter_mut().for_each(|byte| *byte = (draw.unit() * 256.0) as u8);
        framed(&block(dtype, Some(5000), &any), Some(&table));
        let odd = Shape { heads: 1, head_dim: 40, ..SHAPE };
        let refused = Codec::new().encode(&Block { shape: odd, ..block(dtype, None, &bytes) }, None, &mut Vec::new());
        assert_eq!(refused, Err(BlockError::WrongShape), "a row of 40 is not a whole number of scales");
    }
}

/// Sums of the frames of one block of each type: predicted, plain or stored, and fast. Another sum is another format: change [`VERSION`], and the specification.
const PINNED: [[u64; 3]; 7] = [
    [0x898a_adf5_5da7_73bf, 0xd454_d133_113c_c103, 0x59a7_fb4a_a0e1_706c],
    [0x08ed_af5a_d85a_8c85, 0x7c5e_f522_02f7_a0c3, 0x8e17_f301_6cc4_0eb0],
    [0xa964_fdc5_06a0_dc78, 0x7255_cf86_b71d_d22a, 0xbf7d_ac63_3e61_4d10],
    [0x053a_7b24_bc4f_7218, 0x87be_430f_e3b9_37bb, 0x4a78_a08e_9cc2_5340],
    [0x9d74_67bb_3479_7f5c, 0x93de_7827_32ea_697f, 0x6331_9608_4b5f_315e],
    [0xab1f_d46e_f1db_4ffe, 0x2fb2_26c7_da4e_7fc6, 0x2fb2_26c7_da4e_7fc6],
    [0xd13d_6839_6b17_9c25, 0x237b_fe7a_7bfc_789a, 0x237b_fe7a_7bfc_789a],
];

#[test]
fn frames_are_pinned() {
    // Numbers that only additions and multiplications make, equal everywhere.
    let statistics: Vec<(f64, f64)> =
        (0..256).map(|at| (f64::from(at % 23) / 16.0 - 0.5, 2f64.powi(at % 5 - 2) * 1.25)).collect();
    let table = SideTable::from_statistics(&SHAPE, vec![rotary_frequencies(32, 1e4), Vec::new()], &statistics);
    let mut draw = Draw(11);
    let channel = |at: usize| &statistics[at / (16 * 64) * 64 + at % 64];
    let value = |at: usize| (channel(at).0 + channel(at).1 * draw.normal()) as f32;
    let values: Vec<f32> = (0..SHAPE.elements().unwrap()).map(value).collect();
    let sums = Dtype::ALL.map(|dtype| {
        let mut bytes = Vec::new();
        for value in &values {
            let half = f16::from_f32(*value);
            match dtype {
                Dtype::Bf16 => bytes.extend(bf16::from_f32(*value).to_le_bytes()),
                Dtype::F16 => bytes.extend(half.to_le_bytes()),
                Dtype::F32 => bytes.extend(value.to_le_bytes()),
                Dtype::E4m3 => bytes.push(e4m3(half)),
                Dtype::E5m2 => bytes.push(half.to_le_bytes()[1]),
                Dtype::Q8_0 | Dtype::Q4_0 => {}
            }
        }
        match dtype {
            Dtype::Q8_0 => crate::quant::to_q8_0(&values, &mut bytes).unwrap(),
            Dtype::Q4_0 => crate::quant::to_q4_0(&values, &mut bytes).unwrap(),
            _ => {}
        }
        let predicted = framed(&block(dtype, Some(1000), &bytes), Some(&table));
        assert_eq!(predicted.0, Transform::Predicted, "{dtype:?}");
        let plain = framed(&block(dtype, None, &bytes), None).1;
        let mut fast = Vec::new();
        Codec::new().encode_fast(&block(dtype, None, &bytes), &mut fast).unwrap();
        [predicted.1, plain, fast].map(|frame| checksum(&frame))
    });
    assert_eq!(sums, PINNED, "{sums:#x?}");
}

/// A frame with right checksums around any header and payload.
fn forged(mut header: [u8; 40], payload: &[u8]) -> Vec<u8> {
    header[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    [&header[..], &stored_checksum(&header, payload).to_le_bytes(), payload].concat()
}

proptest! {
    #[test]
    fn forged_frames_do_no_harm(transform in 0u8..4, dtype in 0u8..7, layers in 0u16..3, cut in 0usize..5000, flips in prop::collection::vec((0usize..5000, any::<u8>()), 0..8)) {
        let kind = Dtype::ALL[usize::from(dtype)];
        let (table, bytes) = match kind.is_quantised() {
            true => (calibrated(Dtype::F32), quantised(kind, 0, 1)),
            false => (calibrated(kind), kv(kind, 0, 1)),
        };
        let (_, mut frame) = framed(&block(kind, Some(0), &bytes), (transform == 2).then_some(&table));
        if transform == 3 {
            frame.clear();
            Codec::new().encode_fast(&block(kind, Some(0), &bytes), &mut frame).unwrap();
        }
        let mut header: [u8; 40] = *frame.first_chunk().unwrap();
        (header[5], header[6]) = (dtype, transform);
        header[8..10].copy_from_slice(&layers.to_le_bytes());
        let mut payload = frame[HEADER..].to_vec();
        for (at, flip) in flips {
            let at = at % payload.len();
            payload[at] ^= flip;
        }
        payload.truncate(payload.len() - cut % 40);
        let mut out = Vec::new();
        let read = Codec::new().decode(&forged(header, &payload), |_| Some(&table), 1 << 20, &mut out);
        prop_assert!(read.is_ok() || out.is_empty());
        prop_assert!(read.is_err() || out == bytes);
    }
}
