//! Payload of blocks encoded against a side table: codes chosen by the predicted means.
//!
//! ```text
//! payload = coded rows | stored bits | low halves of F32 | escapes of (index:u32, lane:u16)
//! ```

use pulp::{Simd, WithSimd};

use crate::coded::{self, Found, Sink, Source, WriteBuffers};
use crate::contexts::Row;
use crate::lanes;
use crate::prior::Prior;
use crate::rotary::{Angles, Turn};
use crate::shape::{Dtype, Shape};
use crate::side_table::SideTable;
use crate::stored_bits::GROUP;
use crate::streams::STREAMS;
use crate::values::Format;

/// Bytes of an escape.
const ESCAPE_LEN: usize = 6;

/// Element type, shape and position of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub dtype: Dtype,
    pub shape: Shape,
    /// Position of the first token.
    pub position: u32,
}

/// Cosines and sines of a block's tokens, for the first of the layers with equal frequencies.
#[derive(Debug, Default)]
struct BlockAngles {
    cos: Vec<i16>,
    sin: Vec<i16>,
    /// Begin of each layer's angles.
    begins: Vec<usize>,
}

impl BlockAngles {
    fn fill(&mut self, turn: &Turn, place: &Place, table: &SideTable) {
        self.cos.clear();
        self.sin.clear();
        self.begins.clear();
        for layer in 0..usize::from(place.shape.layers) {
            let like = table.like(layer);
            self.begins.push(if like < layer { self.begins[like] } else { self.cos.len() });
            if like < layer {
                continue;
            }
            for token in 0..u32::from(place.shape.tokens) {
                let position = place.position.wrapping_add(token);
                for [cos, sin] in table.frequencies(layer).iter().map(|frequency| turn.angle(*frequency, position)) {
                    self.cos.push(cos);
                    self.sin.push(sin);
                }
            }
        }
    }
}

/// Contexts of the rows of one block.
#[derive(Clone, Copy)]
struct Contexts<'a> {
    format: Format,
    shape: Shape,
    table: &'a SideTable,
    angles: &'a BlockAngles,
}

impl Contexts<'_> {
    #[inline(always)]
    fn fill(&self, row: usize, into: &mut Row, codes: &mut [u16]) {
        let (layer, side, token) = self.shape.place(row);
        let mut angles = Angles::default();
        if side == 0 {
            let half = self.table.frequencies(layer).len();
            let begin = self.angles.begins[layer] + token * half;
            angles = Angles { cos: &self.angles.cos[begin..begin + half], sin: &self.angles.sin[begin..begin + half] };
        }
        let plane = (2 * layer + side, self.table.plane(layer, side));
        into.fill(self.format, plane, self.shape.head_dim.into(), angles, codes);
    }
}

/// Lanes of a block as symbols of codes chosen by contexts.
struct Symbols<'a> {
    contexts: Contexts<'a>,
    row: &'a mut Row,
    lanes: &'a [u16],
}

impl Source for Symbols<'_> {
    #[inline(always)]
    fn fill(&mut self, row: usize, indices: &mut [u16]) {
        self.contexts.fill(row, self.row, indices);
        let (format, n) = (self.contexts.format, indices.len());
        let shift = crate::huffman::LENGTH_MAX as u32 - format.symbol_bits();
        let lanes = &self.lanes[row * n..][..n];
        let Row { flips, origins, .. } = &*self.row;
        let (flips, origins) = (&flips[..n], &origins[..n]);
        for at in 0..n {
            indices[at] = indices[at] >> shift | format.symbol(lanes[at] ^ flips[at], origins[at]);
        }
    }
}

/// Lanes being decoded, but for their stored bits.
struct Lanes<'a> {
    contexts: Contexts<'a>,
    rows: &'a mut [Row; STREAMS],
    lanes: &'a mut [u16],
}

impl Sink for Lanes<'_> {
    #[inline(always)]
    fn prepare(&mut self, stream: usize, row: usize, contexts: &mut [u16]) {
        self.contexts.fill(row, &mut self.rows[stream], contexts);
    }

    #[inline(always)]
    fn take(&mut self, stream: usize, row: usize, entries: &[u16]) {
        let (format, n) = (self.contexts.format, entries.len());
        let Row { flips, origins, .. } = &self.rows[stream];
        let (flips, origins) = (&flips[..n], &origins[..n]);
        let lanes = &mut self.lanes[row * n..][..n];
        for at in 0..n {
            lanes[at] = format.shifted(entries[at], origins[at]) ^ flips[at];
        }
    }
}

/// Stored bits of lanes being packed.
struct Pack<'a>(Format, &'a [u16], &'a mut [u8]);

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        self.0.stored.pack(self.1, self.2);
    }
}

/// Bytes being joined from lanes, stored bits and low halves.
struct Join<'a> {
    dtype: Dtype,
    lanes: &'a [u16],
    stored: &'a [u8],
    low: &'a [u8],
    out: &'a mut [u8],
}

impl WithSimd for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        let Self { dtype, lanes, stored, low, out } = self;
        let (format, low_bytes) = (Format::of(dtype), lanes::low_bytes(dtype));
        for (at, (lanes, out)) in lanes.chunks(GROUP).zip(out.chunks_mut(GROUP * dtype.bytes())).enumerate() {
            let mut group = format.stored.unpack_group(stored, at);
            group.iter_mut().zip(lanes).for_each(|(lane, coded)| *lane |= coded);
            lanes::join(dtype, &group[..lanes.len()], &low[at * GROUP * low_bytes..], out);
        }
    }
}

/// Buffers and tables for encoding and decoding.
pub(crate) struct Predicted {
    turn: Turn,
    angles: BlockAngles,
    rows: [Row; STREAMS],
    buffers: WriteBuffers,
    found: Found,
}

impl Predicted {
    pub(crate) fn new() -> Self {
        Self {
            turn: Turn::new(),
            angles: BlockAngles::default(),
            rows: Default::default(),
            buffers: WriteBuffers::default(),
            found: Found::default(),
        }
    }

    /// Appends the payload of a block with these bytes and lanes.
    pub(crate) fn encode(&mut self, place: &Place, table: &SideTable, block: (&[u8], &[u16]), out: &mut Vec<u8>) {
        let (format, (bytes, lanes)) = (Format::of(place.dtype), block);
        self.angles.fill(&self.turn, place, table);
        let row = &mut self.rows[0];
        row.reset();
        let contexts = Contexts { format, shape: place.shape, table, angles: &self.angles };
        let size = (place.shape.rows(), place.shape.channels());
        let entries = &Prior::of(place.dtype).encoder;
        coded::write(size, entries, Symbols { contexts, row, lanes }, &mut self.buffers, out);
        let begin = out.len();
        out.resize(begin + format.stored.packed_len(lanes.len()), 0);
        pulp::Arch::new().dispatch(Pack(format, lanes, &mut out[begin..]));
        lanes::push_low(place.dtype, bytes, out);
        for at in &self.buffers.escapes {
            out.extend(at.to_le_bytes());
            out.extend(lanes[*at as usize].to_le_bytes());
        }
    }

    /// Sets the bytes of a block from a payload, with lanes for use meanwhile. Returns `None` if the payload is malformed.
    pub(crate) fn decode(
        &mut self,
        place: &Place,
        table: &SideTable,
        payload: &[u8],
        (lanes, out): (&mut [u16], &mut [u8]),
    ) -> Option<()> {
        let (dtype, format, n) = (place.dtype, Format::of(place.dtype), lanes.len());
        let (reader, n_escapes) = coded::open(payload, 0)?;
        let (stored, rest) = payload[reader.end()..].split_at_checked(format.stored.packed_len(n))?;
        let (low, escapes) = rest.split_at_checked(n * lanes::low_bytes(dtype))?;
        if escapes.len() != n_escapes.checked_mul(ESCAPE_LEN)? {
            return None;
        }
        self.angles.fill(&self.turn, place, table);
        self.rows.iter_mut().for_each(Row::reset);
        let contexts = Contexts { format, shape: place.shape, table, angles: &self.angles };
        let size = (place.shape.rows(), place.shape.channels());
        let sink = Lanes { contexts, rows: &mut self.rows, lanes };
        coded::read(size, &Prior::of(dtype).decoder, reader, &mut self.found, sink).then_some(())?;
        for [a, b, c, d, low, high] in escapes.as_chunks::<ESCAPE_LEN>().0.iter().copied() {
            *lanes.get_mut(u32::from_le_bytes([a, b, c, d]) as usize)? = u16::from_le_bytes([low, high]);
        }
        pulp::Arch::new().dispatch(Join { dtype, lanes, stored, low, out });
        Some(())
    }
}
