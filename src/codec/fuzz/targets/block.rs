//! Blocks of any bytes: every frame of a block gives the block back, with any statistics.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trunkline_codec::frame::{Block, Codec, HEADER};
use trunkline_codec::{Dtype, Shape, SideTable, rotary_frequencies};

fuzz_target!(|data: &[u8]| {
    let Some((fields, rest)) = data.split_first_chunk::<8>() else { return };
    let dtype = Dtype::ALL[usize::from(fields[0]) % Dtype::ALL.len()];
    let shape = Shape {
        layers: u16::from(fields[1] % 3) + 1,
        tokens: u16::from(fields[2] % 18) + 1,
        heads: u16::from(fields[3] % 3) + 1,
        head_dim: if dtype.is_quantised() { 32 << (fields[4] % 3) } else { u16::from(fields[4] % 40 + 1) * 2 },
    };
    let n = dtype.block_len(&shape).unwrap_or(0);
    let bytes: Vec<u8> = rest.iter().copied().cycle().take(if rest.is_empty() { 0 } else { n }).collect();
    if bytes.len() != n {
        return;
    }
    let value = |at: usize| f64::from(i8::from_ne_bytes([data[at * 7 % data.len()]]));
    let channels = 2 * usize::from(shape.layers) * shape.channels();
    let statistics: Vec<(f64, f64)> = (0..channels).map(|at| (value(at), value(at + 3).abs() / 4.0)).collect();
    let mut frequencies = vec![rotary_frequencies(shape.head_dim, 10_000.0); usize::from(shape.layers)];
    frequencies[0].clear();
    let table = SideTable::from_statistics(&shape, frequencies, &statistics);
    let position = (fields[5] & 1 == 0).then_some(u32::from_le_bytes([fields[5], fields[6], fields[7], fields[5]]));
    let block = Block { dtype, shape, position, bytes: &bytes };
    let mut codec = Codec::new();
    for way in 0..3 {
        let (mut frame, mut back) = (Vec::new(), vec![0; n]);
        let transform = match way {
            0 => codec.encode(&block, Some(&table), &mut frame),
            1 => codec.encode(&block, None, &mut frame),
            _ => codec.encode_fast(&block, &mut frame),
        };
        let transform = transform.expect("the block has its shape");
        assert!(frame.len() <= HEADER + n);
        let info = codec.decode_into(&frame, |_| Some(&table), &mut back).expect("the frame is whole");
        assert_eq!(info.transform, transform);
        assert!(back == bytes);
    }
});
