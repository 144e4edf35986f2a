//! Frames with valid checksums around any header and payload: no decoder may panic, or take more memory than the block has.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use trunkline_codec::frame::{Codec, inspect};
use trunkline_codec::{Shape, SideTable, rotary_frequencies};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const BLOCK_MAX: usize = 1 << 16;

fn table() -> &'static SideTable {
    static TABLE: OnceLock<SideTable> = OnceLock::new();
    TABLE.get_or_init(|| {
        let shape = Shape { layers: 2, tokens: 4, heads: 4, head_dim: 8 };
        let statistics: Vec<(f64, f64)> =
            (0..128).map(|at| (f64::from(at) / 16.0 - 2.0, 0.5 + f64::from(at % 7))).collect();
        SideTable::from_statistics(&shape, vec![rotary_frequencies(8, 10_000.0), Vec::new()], &statistics)
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((fields, payload)) = data.split_first_chunk::<16>() else { return };
    // Small numbers, so that most shapes are possible: type, transform, layers, tokens, heads, elements of a head, position.
    let small = |at: usize, modulus: u8| u16::from(fields[at] % modulus);
    let shape =
        if fields[0] & 0x80 == 0 { [2, 4, 4, 8] } else { [small(2, 4), small(3, 20), small(4, 4), small(5, 70)] };
    let transform = fields[1] % 5;
    let mut header = b"TKVF\x02".to_vec();
    header.extend([fields[0] % 8, transform, 0]);
    header.extend(shape.iter().flat_map(|field| field.to_le_bytes()));
    header.extend(&fields[6..10]);
    header.extend((payload.len() as u32).to_le_bytes());
    header.extend(if transform == 2 { table().id() } else { 0 }.to_le_bytes());
    header.extend(&fields[8..16]);
    let checksum = xxh3_64_with_seed(payload, xxh3_64(&header));
    let frame = [&header[..], &checksum.to_le_bytes(), payload].concat();
    thread_local!(static CODEC: std::cell::RefCell<Codec> = Codec::new().into());
    CODEC.with_borrow_mut(|codec| {
        let mut out = Vec::new();
        let decoded = codec.decode(&frame, |_| Some(table()), BLOCK_MAX, &mut out);
        assert!(out.len() <= BLOCK_MAX && out.is_empty() == decoded.is_err());
        if let Ok(info) = decoded {
            assert_eq!(inspect(&frame), Ok(info));
        }
        // The bytes themselves, as a frame.
        assert!(codec.decode(data, |_| Some(table()), BLOCK_MAX, &mut out).is_err() || data.starts_with(b"TKVF"));
    });
});
