//! Gear frames, side tables and quantised blocks from any bytes: no decoder may panic, and a value read is written back unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trunkline_codec::gear::{self, Encoder, Predictors, Word};
use trunkline_codec::quant;
use trunkline_codec::{Shape, SideTable};
use xxhash_rust::xxh3::xxh3_64;

const LEN_MAX: usize = 1 << 16;

/// Returns the shape of the blocks that a table is for.
fn shape(table: &[u8]) -> Shape {
    let word = |at: usize| table.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four")));
    let [channels, head_dim, layers] = [0, 4, 8].map(word);
    Shape { layers: layers as u16, tokens: 1, heads: (channels / head_dim.max(1)) as u16, head_dim: head_dim as u16 }
}

fuzz_target!(|data: &[u8]| {
    for word in [Word::F16, Word::F32] {
        let mut out = Vec::new();
        if gear::decode(word, data, LEN_MAX, &mut out).is_ok() {
            let (mut frame, mut back) = (Vec::new(), Vec::new());
            let predictors = vec![Predictors::ALL; word.bytes()];
            Encoder::new().encode(word, &predictors, &out, &mut frame).expect("whole words");
            gear::decode(word, &frame, LEN_MAX, &mut back).expect("our own frame");
            assert!(back == out);
        } else {
            assert!(out.is_empty());
        }
    }
    let table = [&b"TKVS\x01\0\0\0"[..], &xxh3_64(data).to_le_bytes(), data].concat();
    let shape = shape(data);
    if let Some(read) = SideTable::from_bytes(&table, &shape) {
        assert!(SideTable::from_bytes(&read.to_bytes(), &shape) == Some(read));
    }
    let mut values = Vec::new();
    if quant::from_q8_0(data, &mut values).is_ok() {
        let _ = quant::to_q8_0(&values, &mut Vec::new());
    }
    values.clear();
    if quant::from_q4_0(data, &mut values).is_ok() {
        let _ = quant::to_q4_0(&values, &mut Vec::new());
    }
});
