//! Tests of packing and unpacking against the formats' definitions, written out a second time for one block.

use ::half::f16;

use super::*;
use crate::kernels::noise::Noise;

/// Random rows of a kind; factors are finite and of either sign.
fn random_bytes(kind: WeightKind, outputs: usize, inputs: usize, seed: u64) -> Vec<u8> {
    let mut noise = Noise::new(seed);
    let mut bytes: Vec<u8> =
        (0..kind.bytes(outputs, inputs).unwrap()).map(|_| (noise.uniform(128.0) + 128.0) as u8).collect();
    let factors: &[usize] = match kind {
        WeightKind::F32 => {
            return (0..outputs * inputs).flat_map(|_| noise.uniform(1.0).to_le_bytes()).collect();
        }
        WeightKind::Bf16 => {
            return (0..outputs * inputs).flat_map(|_| noise.uniform(1.0).to_le_bytes()[2..].to_vec()).collect();
        }
        WeightKind::F16 => &[0],
        WeightKind::Q8_0 | WeightKind::Q4_0 | WeightKind::Q5_0 => &[0],
        WeightKind::Q4_1 | WeightKind::Q5_1 | WeightKind::Q4K | WeightKind::Q5K => &[0, 2],
        WeightKind::Q6K => &[208],
    };
    for block in bytes.chunks_exact_mut(kind.block_bytes()) {
        for at in factors {
            block[*at..*at + 2].copy_from_slice(&f16::from_f32(noise.uniform(0.1)).to_le_bytes());
        }
    }
    bytes
}

/// The weights of one block, by the definition of the kind.
fn block_weights(kind: WeightKind, block: &[u8]) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match kind {
        WeightKind::F32 => vec![f32::from_le_bytes(block.try_into().unwrap())],
        WeightKind::Bf16 => vec![::half::bf16::from_le_bytes(block.try_into().unwrap()).to_f32()],
        WeightKind::F16 => vec![half(0)],
        WeightKind::Q8_0 => block[2..].iter().map(|q| f32::from(*q as i8) * half(0)).collect(),
        WeightKind::Q4_0 => nibbles(&block[2..]).map(|q| (q - 8.0) * half(0)).collect(),
        WeightKind::Q4_1 => nibbles(&block[4..]).map(|q| q * half(0) + half(2)).collect(),
        WeightKind::Q5_0 => fives(&block[2..6], &block[6..]).map(|q| (q - 16.0) * half(0)).collect(),
        WeightKind::Q5_1 => fives(&block[4..8], &block[8..]).map(|q| q * half(0) + half(2)).collect(),
        WeightKind::Q4K | WeightKind::Q5K => {
            let mut weights = Vec::new();
            let (upper, low) =
                if kind == WeightKind::Q5K { (&block[16..48], &block[48..]) } else { (&[0; 32][..], &block[16..]) };
            for group in 0..8 {
                let bits = &block[4..16];
                let (scale, minimum) = if group < 4 {
                    (bits[group] & 63, bits[group + 4] & 63)
                } else {
                    let scale = (bits[group + 4] & 0xf) | ((bits[group - 4] >> 6) << 4);
                    (scale, (bits[group + 4] >> 4) | ((bits[group] >> 6) << 4))
                };
                let (d, m) = (half(0) * f32::from(scale), half(2) * f32::from(minimum));
                for (q, upper) in low[group / 2 * 32..][..32].iter().zip(upper) {
                    let q = if group % 2 == 0 { q & 0xf } else { q >> 4 };
                    let q = if upper & (1 << group) == 0 { q } else { q + 16 };
                    weights.push(d * f32::from(q) - m);
                }
            }
            weights
        }
        WeightKind::Q6K => {
            let mut weights = vec![0.0; 256];
            for n in 0..2 {
                let (ql, qh, scales) = (&block[n * 64..], &block[128 + n * 32..], &block[192 + n * 8..]);
                for l in 0..32 {
                    let codes = [
                        (ql[l] & 0xf) | ((qh[l] & 3) << 4),
                        (ql[l + 32] & 0xf) | (((qh[l] >> 2) & 3) << 4),
                        (ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4),
                        (ql[l + 32] >> 4) | (((qh[l] >> 6) & 3) << 4),
                    ];
                    for (i, code) in codes.into_iter().enumerate() {
                        let scale = half(208) * f32::from(scales[l / 16 + 2 * i] as i8);
                        weights[n * 128 + 32 * i + l] = scale * (f32::from(code) - 32.0);
                    }
                }
            }
            weights
        }
    }
}

fn fives<'a>(upper: &'a [u8], low: &'a [u8]) -> impl Iterator<Item = f32> + 'a {
    let upper = u32::from_le_bytes(upper.try_into().unwrap());
    nibbles(low).enumerate().map(move |(i, q)| if upper >> i & 1 == 1 { q + 16.0 } else { q })
}

fn nibbles(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.iter().map(|byte| f32::from(byte & 15)).chain(bytes.iter().map(|byte| f32::from(byte >> 4)))
}

#[test]
fn rows_of_every_kind_have_the_weights_of_the_definition() {
    for kind in WeightKind::ALL {
        let block = kind.block_len();
        // A part of a panel, whole panels, and rows that end within what is unpacked at a time.
        for (outputs, blocks) in [(1, 1), (16, 3), (37, 2), (20, 41)] {
            let inputs = blocks * block;
            let bytes = random_bytes(kind, outputs, inputs, 5);
            let matrix = Matrix::from_bytes(kind, outputs, inputs, &bytes).unwrap();
            assert_eq!((matrix.outputs(), matrix.inputs()), (outputs, inputs));
            let expected: Vec<f32> =
                bytes.chunks_exact(kind.block_bytes()).flat_map(|block| block_weights(kind, block)).collect();
            for (output, expected) in expected.chunks_exact(inputs).enumerate() {
                let mut row = vec![f32::NAN; inputs];
                matrix.row(output, &mut row);
                assert_eq!(row, expected, "row {output} of {outputs}, {}", kind.name());
            }
        }
    }
}

#[test]
fn parts_of_panels_are_the_same_weights_and_padding_is_zero() {
    for kind in WeightKind::ALL {
        let (outputs, inputs) = (21, 512);
        let matrix = Matrix::from_bytes(kind, outputs, inputs, &random_bytes(kind, outputs, inputs, 6)).unwrap();
        assert_eq!(matrix.n_panels(), 2);
        let mut row = vec![0.0; inputs];
        for range in [0..512, 0..32, 96..160, 480..512, 256..512] {
            let mut buffer = vec![f32::NAN; 512 * LANES];
            for output in 0..2 * LANES {
                row.fill(0.0);
                if output < outputs {
                    matrix.row(output, &mut row);
                }
                let part = matrix.panel_part(output / LANES, range.clone(), &mut buffer);
                let lane: Vec<f32> = part.iter().skip(output % LANES).step_by(LANES).copied().collect();
                assert_eq!(lane, row[range.clone()], "output {output}, inputs {range:?}, {}", kind.name());
            }
        }
    }
}

#[test]
fn blocks_by_hand() {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let weights = |kind: WeightKind, block: &[u8]| {
        let mut row = vec![0.0; kind.block_len()];
        Matrix::from_bytes(kind, 1, kind.block_len(), block).unwrap().row(0, &mut row);
        row
    };
    let q8_0 = [&half(0.5)[..], &[2, 0xff], &[0; 29], &[0x80]].concat();
    let row = weights(WeightKind::Q8_0, &q8_0);
    assert_eq!((row[0], row[1], row[2], row[31]), (1.0, -0.5, 0.0, -64.0));
    // The first byte has the codes of weights 0 and 16, the last those of 15 and 31.
    let q4_0 = [&half(2.0)[..], &[0xf0], &[0x88; 14], &[0x9a]].concat();
    let row = weights(WeightKind::Q4_0, &q4_0);
    assert_eq!((row[0], row[16], row[1], row[15], row[31]), (-16.0, 14.0, 0.0, 4.0, 2.0));
    let q4_1 = [&half(2.0)[..], &half(-3.0), &[0xf0], &[0; 14], &[0x21]].concat();
    let row = weights(WeightKind::Q4_1, &q4_1);
    assert_eq!((row[0], row[16], row[1], row[15], row[31]), (-3.0, 27.0, -3.0, -1.0, 1.0));
    // Weight 0 has the code 1, weight 16 the code 15 + 16, weight 31 the code 2 + 16.
    let fives = [&[0, 0, 1, 0x80][..], &[0xf1], &[0; 14], &[0x20]].concat();
    let row = weights(WeightKind::Q5_0, &[&half(2.0)[..], &fives].concat());
    assert_eq!((row[0], row[16], row[1], row[31]), (-30.0, 30.0, -32.0, 4.0));
    let row = weights(WeightKind::Q5_1, &[&half(2.0)[..], &half(-3.0), &fives].concat());
    assert_eq!((row[0], row[16], row[1], row[31]), (-1.0, 59.0, -3.0, 33.0));
    // Group 0: scale 3, minimum 5. Group 5: scale 1 + 2 * 16, minimum 4 + 1 * 16.
    let scales = [3, 2 << 6, 0, 0, 5, 1 << 6, 0, 0, 0, 1 | 4 << 4, 0, 0];
    let q4_k = [&half(0.5)[..], &half(0.25), &scales, &[7; 32], &[0; 32], &[0x20; 32], &[0; 32]].concat();
    let row = weights(WeightKind::Q4K, &q4_k);
    assert_eq!((row[0], row[160], row[128], row[255]), (7.0 * 1.5 - 1.25, 2.0 * 16.5 - 5.0, 0.0, 0.0));
    // The same with an upper bit for weight 0, and for the last of group 5.
    let (mut upper, factors) = ([0; 32], [half(0.5), half(0.25)].concat());
    (upper[0], upper[31]) = (1, 1 << 5);
    let q5_k = [&factors[..], &scales, &upper, &[7; 32], &[0; 32], &[0x20; 32], &[0; 32]].concat();
    let row = weights(WeightKind::Q5K, &q5_k);
    assert_eq!((row[0], row[1], row[160]), (23.0 * 1.5 - 1.25, 7.0 * 1.5 - 1.25, 2.0 * 16.5 - 5.0));
    assert_eq!((row[191], row[255]), (18.0 * 16.5 - 5.0, 0.0));
    // Weight 0 has the code 1 + 2 * 16 - 32, weight 96 the code 15 + 3 * 16 - 32, weight 255 the code 0 - 32.
    let mut q6_k = vec![0; 210];
    (q6_k[0], q6_k[32], q6_k[128], q6_k[192], q6_k[198], q6_k[207]) = (1, 0xf0, 2 | 3 << 6, 4, 0xff, 2);
    q6_k[208..].copy_from_slice(&half(0.5));
    let row = weights(WeightKind::Q6K, &q6_k);
    assert_eq!((row[0], row[96], row[255]), (2.0, -15.5, -32.0));
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_place() {
    for kind in WeightKind::ALL {
        let (outputs, inputs) = (9, 1024);
        let sound = random_bytes(kind, outputs, inputs, 8);
        // The upper byte of a float, or of each F16 in a block.
        let ends: &[usize] = match kind {
            WeightKind::F32 => &[3],
            WeightKind::Bf16 | WeightKind::F16 | WeightKind::Q8_0 | WeightKind::Q4_0 | WeightKind::Q5_0 => &[1],
            WeightKind::Q4_1 | WeightKind::Q5_1 | WeightKind::Q4K | WeightKind::Q5K => &[1, 3],
            WeightKind::Q6K => &[209],
        };
        for (row, column) in [(0, 0), (0, 256), (5, 768), (8, 1024 - kind.block_len())] {
            let block = (row * inputs + column) / kind.block_len() * kind.block_bytes();
            for (end, upper) in ends.iter().flat_map(|end| [(end, 0x7f), (end, 0xff)]) {
                let mut bytes = sound.clone();
                bytes[block + end] = upper;
                bytes[block + end - 1] |= 0x80;
                let refused = Matrix::from_bytes(kind, outputs, inputs, &bytes).err();
                assert_eq!(refused, Some(MatrixError::NotFinite { row, column }), "{}", kind.name());
            }
        }
    }
}

#[test]
fn bytes_that_do_not_fit_are_refused() {
    for kind in WeightKind::ALL {
        let inputs = 2 * kind.block_len();
        let bytes = random_bytes(kind, 3, inputs, 7);
        assert_eq!(kind.bytes(3, inputs), Ok(bytes.len()));
        for found in [0, 1, bytes.len() - 1, bytes.len() / 3 * 2] {
            let refused = Matrix::from_bytes(kind, 3, inputs, &bytes[..found]).err().unwrap();
            let (name, expected) = (kind.name(), bytes.len());
            assert_eq!(refused, MatrixError::Length { kind: name, outputs: 3, inputs, expected, found });
        }
        if kind.block_len() > 1 {
            let (inputs, block) = (inputs + 16, kind.block_len());
            let refused = Matrix::from_bytes(kind, 3, inputs, &bytes).err().unwrap();
            assert_eq!(refused, MatrixError::Width { kind: kind.name(), inputs, block });
        }
        let (outputs, inputs) = (usize::MAX / 256, 256 * 1024);
        assert_eq!(kind.bytes(outputs, inputs), Err(MatrixError::Size { outputs, inputs }));
        assert_eq!(Matrix::from_bytes(kind, 0, inputs, &[]).unwrap().n_panels(), 0);
    }
    let message = Matrix::from_bytes(WeightKind::Q4K, 2, 512, &[0; 5]).err().unwrap().to_string();
    assert_eq!(message, "2 rows of 512 weights in Q4_K are 576 bytes, not 5");
}
