//! Keys and values of a real model: frames with statistics of the first tokens of a text, for the tokens after them, and of other texts.

use trunkline_codec::frame::{Block, Codec, Transform};
use trunkline_codec::{Calibrator, Dtype, Shape, SideTable, quant, rotary_frequencies};

/// Tokens in the file.
const TOKENS: usize = 224;
/// Elements of a token in one layer, of keys or values.
const CHANNELS: usize = 192;
/// Tokens of a block.
const BLOCK: usize = 16;
const SHAPE: Shape = Shape { layers: 2, tokens: BLOCK as u16, heads: 3, head_dim: 64 };

/// Reads `[keys, values][layer 1, 20][token][head][dim]` after a header of 128 bytes, as blocks in the order of [`Shape`].
fn blocks(file: &str) -> Vec<Vec<u8>> {
    let folder = std::env::var_os("TRUNKLINE_DATA").expect("the test is ignored without data");
    let bytes = std::fs::read(std::path::Path::new(&folder).join("kv").join(file)).expect("the file is there");
    let rows = |side: usize, layer: usize, token: usize| {
        let at = 128 + 2 * CHANNELS * ((side * 2 + layer) * TOKENS + token);
        &bytes[at..at + 2 * CHANNELS * BLOCK]
    };
    let block = |block: usize| (0..4).flat_map(|plane| rows(plane % 2, plane / 2, block * BLOCK)).copied().collect();
    (0..TOKENS / BLOCK).map(block).collect()
}

fn position(block: usize) -> u32 {
    (block * BLOCK) as u32
}

/// Bytes of blocks by bytes of their frames.
fn ratio(dtype: Dtype, blocks: &[Vec<u8>], from: usize, table: Option<&SideTable>) -> f64 {
    let mut codec = Codec::new();
    let (mut before, mut after) = (0, 0);
    for (at, bytes) in blocks.iter().enumerate().skip(from) {
        let (mut frame, mut back) = (Vec::new(), Vec::new());
        let block = Block { dtype, shape: SHAPE, position: Some(position(at)), bytes };
        let transform = codec.encode(&block, table, &mut frame).expect("the block has its shape");
        assert_eq!(transform, if table.is_some() { Transform::Predicted } else { Transform::Plain });
        codec.decode(&frame, |_| table, bytes.len(), &mut back).expect("the frame is whole");
        assert_eq!(&back, bytes);
        (before, after) = (before + bytes.len(), after + frame.len());
    }
    before as f64 / after as f64
}

#[test]
#[cfg_attr(not(trunkline_kv), ignore = "TRUNKLINE_DATA names no folder with kv/")]
fn statistics_of_few_tokens_beat_any_code_for_exponents_alone() {
    for (dtype, file, least) in
        [(Dtype::Bf16, "smollm2_mpl2_bf16_l1_l20_kv.npy", 1.52), (Dtype::F16, "smollm2_mpl2_f16_l1_l20_kv.npy", 1.18)]
    {
        let blocks = blocks(file);
        let known = 7;
        let mut calibrator = Calibrator::new(SHAPE, vec![rotary_frequencies(64, 1e5); 2]);
        for (at, bytes) in blocks[..known].iter().enumerate() {
            calibrator.add(dtype, position(at), bytes);
        }
        let (predicted, plain) =
            (ratio(dtype, &blocks, known, Some(&calibrator.finish())), ratio(dtype, &blocks, known, None));
        eprintln!("{dtype:?}: {predicted:.4} with statistics of {} tokens, {plain:.4} without", calibrator.tokens());
        assert!(predicted > least && predicted > 1.02 * plain);
    }
}

/// Returns a table of the means and deviations of other texts, stored as `[keys, values][layer 1, 20][mean, deviation][channel]`.
fn statistics_of_other_texts() -> SideTable {
    let folder = std::env::var_os("TRUNKLINE_DATA").expect("the test is ignored without data");
    let path = std::path::Path::new(&folder).join("kv/smollm2_calib_mean_sigma.npy");
    let bytes = std::fs::read(path).expect("the file is there");
    let values: Vec<f64> =
        bytes[128..].as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four).into()).collect();
    let plane = |side: usize, layer: usize| {
        let own = &values[(side * 2 + layer) * 2 * CHANNELS..][..2 * CHANNELS];
        own[..CHANNELS].iter().copied().zip(own[CHANNELS..].iter().copied()).collect::<Vec<_>>()
    };
    let statistics: Vec<(f64, f64)> = (0..4).flat_map(|at| plane(at % 2, at / 2)).collect();
    SideTable::from_statistics(&SHAPE, vec![rotary_frequencies(64, 1e5); 2], &statistics)
}

/// Returns a block of FP16 as another type: F32 with noise in the lower half, or FP8, rounded towards zero.
fn converted(dtype: Dtype, block: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, half) in block.as_chunks::<2>().0.iter().map(|two| half::f16::from_le_bytes(*two)).enumerate() {
        let exponent = i32::from(half.to_bits() >> 10 & 31) - 8;
        match dtype {
            Dtype::F32 => {
                bytes.extend((half.to_f32().to_bits() | (at as u32).wrapping_mul(40_503) & 0x1fff).to_le_bytes())
            }
            Dtype::E5m2 => bytes.push((half.to_bits() >> 8) as u8),
            Dtype::E4m3 if exponent < 1 => bytes.push((half.to_bits() >> 8) as u8 & 0x80),
            Dtype::E4m3 => bytes.push(
                (half.to_bits() >> 8) as u8 & 0x80 | (exponent.min(15) << 3) as u8 | (half.to_bits() >> 7 & 7) as u8,
            ),
            _ => bytes.extend(half.to_le_bytes()),
        }
    }
    bytes
}

/// Returns a block of FP16 quantised.
fn quantised(dtype: Dtype, block: &[u8]) -> Vec<u8> {
    let halves = block.as_chunks::<2>().0.iter().map(|two| half::f16::from_le_bytes(*two).to_f32());
    let (values, mut bytes): (Vec<f32>, Vec<u8>) = (halves.collect(), Vec::new());
    match dtype {
        Dtype::Q8_0 => quant::to_q8_0(&values, &mut bytes).expect("values are finite"),
        _ => quant::to_q4_0(&values, &mut bytes).expect("values are finite"),
    }
    bytes
}

#[test]
#[cfg_attr(not(trunkline_kv), ignore = "TRUNKLINE_DATA names no folder with kv/")]
fn quantised_keys_become_shorter_by_statistics_of_other_texts() {
    let (table, blocks) = (statistics_of_other_texts(), blocks("smollm2_mpl2_f16_l1_l20_kv.npy"));
    // Values on both sides, without rotation: what remains of a block's frame is the keys.
    let values = |block: &Vec<u8>| {
        let plane = block.len() / 4;
        let at = |plane_at: usize| &block[plane_at * plane..(plane_at + 1) * plane];
        [at(1), at(1), at(3), at(3)].concat()
    };
    for (dtype, least, least_keys) in [(Dtype::Q8_0, 1.1, 1.17), (Dtype::Q4_0, 1.22, 1.3)] {
        let whole: Vec<Vec<u8>> = blocks.iter().map(|block| quantised(dtype, block)).collect();
        let twice: Vec<Vec<u8>> = blocks.iter().map(|block| quantised(dtype, &values(block))).collect();
        let mut calibrator = Calibrator::new(SHAPE, vec![Vec::new(); 2]);
        twice.iter().enumerate().for_each(|(at, bytes)| calibrator.add(dtype, position(at), bytes));
        let (both, of_values) =
            (ratio(dtype, &whole, 0, Some(&table)), ratio(dtype, &twice, 0, Some(&calibrator.finish())));
        let keys = 1.0 / (2.0 / both - 1.0 / of_values);
        eprintln!("{dtype:?}: {both:.4}, keys {keys:.4}, values {of_values:.4}");
        assert!(both > least && keys > least_keys, "{dtype:?}");
    }
}

#[test]
#[cfg_attr(not(trunkline_kv), ignore = "TRUNKLINE_DATA names no folder with kv/")]
fn statistics_of_other_texts_suit_every_type() {
    let table = statistics_of_other_texts();
    let [bf16, f16] = ["bf16", "f16"].map(|dtype| blocks(&format!("smollm2_mpl2_{dtype}_l1_l20_kv.npy")));
    for (dtype, least, least_plain) in [
        (Dtype::Bf16, 1.54, 1.463),
        (Dtype::F16, 1.195, 1.146),
        (Dtype::F32, 1.2, 1.17),
        (Dtype::E4m3, 1.25, 1.1),
        (Dtype::E5m2, 1.45, 1.3),
    ] {
        let blocks: Vec<Vec<u8>> = match dtype {
            Dtype::Bf16 => bf16.clone(),
            _ => f16.iter().map(|block| converted(dtype, block)).collect(),
        };
        let (predicted, plain) = (ratio(dtype, &blocks, 0, Some(&table)), ratio(dtype, &blocks, 0, None));
        eprintln!("{dtype:?}: {predicted:.4} with statistics of other texts, {plain:.4} without");
        assert!(predicted >= least && plain >= least_plain, "{dtype:?}");
    }
}
