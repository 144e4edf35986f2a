//! Payload of blocks encoded against a side table: codes chosen by the predicted means.
//!
//! ```text
//! payload = stored bits | low halves of F32 | coded | escapes of (index:u32, lane:u16)
//! ```

use std::ops::Range;

use crate::coded::{self, Sink, Source, WriteBuffers};
use crate::contexts;
use crate::lanes;
use crate::prior::Prior;
use crate::rotary::Turn;
use crate::rows::{BlockAngles, Place, Rows};
use crate::shape::Dtype;
use crate::side_table::SideTable;
use crate::values::Format;

/// Bytes of an escape.
const ESCAPE_LEN: usize = 6;

/// Contexts of the rows of one block.
#[derive(Clone, Copy)]
struct Contexts<'a> {
    format: Format,
    rows: Rows<'a>,
    /// Exponents that symbols count from, for each plane and channel.
    origins: &'a [u16],
}

impl Contexts<'_> {
    /// Sets the numbers of the codes and the flips of the elements of some rows. `means` is a buffer.
    #[inline(always)]
    fn fill(&self, rows: Range<usize>, means: &mut [i16], codes: &mut [u16], flips: &mut [u16]) {
        let n = self.rows.shape.channels();
        let begin = rows.start;
        for row in rows {
            let (layer, side, token) = self.rows.shape.place(row);
            let at = (row - begin) * n;
            if token > 0 && at > 0 && !self.rows.is_rotated(layer, side) {
                // As the row before, of the same plane.
                codes.copy_within(at - n..at, at);
                flips.copy_within(at - n..at, at);
                continue;
            }
            self.rows.fill_means(row, means);
            let (codes, flips) = (&mut codes[at..at + n], &mut flips[at..at + n]);
            contexts::fill(self.rows.table.plane(layer, side), means, (codes, flips));
        }
    }

    /// Returns the exponents that the symbols of a row count from.
    #[inline(always)]
    fn origins(&self, row: usize) -> &[u16] {
        let n = self.rows.shape.channels();
        &self.origins[row / usize::from(self.rows.shape.tokens) * n..][..n]
    }
}

/// Buffers of a batch of rows.
#[derive(Debug, Default)]
struct Batch {
    means: Vec<i16>,
    flips: Vec<u16>,
    lanes: Vec<u16>,
}

/// Bytes of a block as symbols of codes chosen by contexts, and as stored bits.
struct Symbols<'a> {
    contexts: Contexts<'a>,
    batch: &'a mut Batch,
    dtype: Dtype,
    bytes: &'a [u8],
    stored: &'a mut [u8],
}

impl Source for Symbols<'_> {
    #[inline(always)]
    fn fill(&mut self, rows: Range<usize>, indices: &mut [u16]) {
        let (format, n) = (self.contexts.format, self.contexts.rows.shape.channels());
        let Batch { means, flips, lanes } = &mut *self.batch;
        let (flips, lanes) = (&mut flips[..indices.len()], &mut lanes[..indices.len()]);
        let first = rows.start * n;
        let bytes = &self.bytes[first * self.dtype.width()..];
        let stored = &mut self.stored[format.stored.packed_len(first)..];
        // Compilers make each type a loop of its own.
        match self.dtype {
            Dtype::Bf16 => split(Dtype::Bf16, bytes, lanes, stored),
            Dtype::F16 => split(Dtype::F16, bytes, lanes, stored),
            other => split(other, bytes, lanes, stored),
        }
        self.contexts.fill(rows.clone(), means, indices, flips);
        let shift = crate::huffman::LENGTH_MAX as u32 - format.symbol_bits();
        let each = indices.chunks_exact_mut(n).zip(lanes.chunks_exact(n)).zip(flips.chunks_exact(n));
        for (row, ((indices, lanes), flips)) in rows.zip(each) {
            let origins = self.contexts.origins(row);
            for at in 0..n {
                indices[at] = indices[at] >> shift | format.symbol(lanes[at] ^ flips[at], origins[at]);
            }
        }
    }
}

/// Sets lanes, and their stored bits, from bytes.
#[inline(always)]
fn split(dtype: Dtype, bytes: &[u8], lanes: &mut [u16], stored: &mut [u8]) {
    let stored_bits = Format::of(dtype).stored;
    lanes::split(dtype, bytes, lanes);
    stored_bits.pack(lanes, &mut stored[..stored_bits.packed_len(lanes.len())]);
}

/// Bytes of a block being decoded.
struct Elements<'a> {
    contexts: Contexts<'a>,
    batch: &'a mut Batch,
    dtype: Dtype,
    stored: &'a [u8],
    low: &'a [u8],
    out: &'a mut [u8],
}

impl Sink for Elements<'_> {
    #[inline(always)]
    fn prepare(&mut self, rows: Range<usize>, contexts: &mut [u16]) {
        let Batch { means, flips, .. } = &mut *self.batch;
        self.contexts.fill(rows, means, contexts, flips);
    }

    #[inline(always)]
    fn take(&mut self, rows: Range<usize>, entries: &mut [u16]) {
        let (format, n) = (self.contexts.format, self.contexts.rows.shape.channels());
        let first = rows.start * n;
        let each = entries.chunks_exact_mut(n).zip(self.batch.flips.chunks_exact(n));
        for (row, (entries, flips)) in rows.zip(each) {
            let origins = self.contexts.origins(row);
            for at in 0..n {
                entries[at] = format.shifted(entries[at], origins[at]) ^ flips[at];
            }
        }
        // Compilers make each type a loop of its own.
        match self.dtype {
            Dtype::Bf16 => self.join(Dtype::Bf16, first, entries),
            Dtype::F16 => self.join(Dtype::F16, first, entries),
            other => self.join(other, first, entries),
        }
    }
}

impl Elements<'_> {
    /// Adds the stored bits to lanes, from element `first` on, and sets the bytes.
    #[inline(always)]
    fn join(&mut self, dtype: Dtype, first: usize, lanes: &mut [u16]) {
        let (width, low_bytes, stored_bits) = (dtype.width(), lanes::low_bytes(dtype), Format::of(dtype).stored);
        let (stored, low) = (&self.stored[stored_bits.packed_len(first)..], &self.low[first * low_bytes..]);
        let out = &mut self.out[first * width..][..lanes.len() * width];
        stored_bits.unpack(stored, lanes);
        lanes::join(dtype, lanes, low, out);
    }
}

/// Buffers and tables for encoding and decoding.
pub(crate) struct Predicted {
    turn: Turn,
    angles: BlockAngles,
    origins: Vec<u16>,
    batch: Batch,
    buffers: WriteBuffers,
    found: Vec<u16>,
}

impl Predicted {
    pub(crate) fn new() -> Self {
        Self {
            turn: Turn::new(),
            angles: BlockAngles::default(),
            origins: Vec::new(),
            batch: Batch::default(),
            buffers: WriteBuffers::default(),
            found: Vec::new(),
        }
    }

    /// Prepares for a block.
    fn begin(&mut self, place: &Place, table: &SideTable) {
        let format = Format::of(place.dtype);
        self.angles.fill(&self.turn, place, table);
        let n = place.shape.channels();
        self.origins.resize(2 * usize::from(place.shape.layers) * n, 0);
        for (at, origins) in self.origins.chunks_exact_mut(n).enumerate() {
            let exponents = &table.plane(at / 2, at % 2).exponents;
            origins.iter_mut().zip(exponents).for_each(|(origin, exponent)| *origin = format.origin(*exponent));
        }
        self.batch.means.resize(n, 0);
        self.batch.flips.resize(coded::batch_len(place.shape.rows(), n), 0);
        self.batch.lanes.resize(coded::batch_len(place.shape.rows(), n), 0);
    }

    /// Appends the payload of a block.
    pub(crate) fn encode(&mut self, place: &Place, table: &SideTable, bytes: &[u8], out: &mut Vec<u8>) {
        let (dtype, format) = (place.dtype, Format::of(place.dtype));
        self.begin(place, table);
        let size = (place.shape.rows(), place.shape.channels());
        let begin = out.len();
        out.resize(begin + format.stored.packed_len(size.0 * size.1), 0);
        let contexts =
            Contexts { format, rows: Rows { shape: place.shape, table, angles: &self.angles }, origins: &self.origins };
        let stored = &mut out[begin..];
        let symbols = Symbols { contexts, batch: &mut self.batch, dtype, bytes, stored };
        coded::write(size, &Prior::of(dtype).encoder, symbols, &mut self.buffers);
        lanes::push_low(dtype, bytes, out);
        self.buffers.append(out);
        for at in self.buffers.escapes() {
            let mut lane = [0];
            lanes::split(dtype, &bytes[*at as usize * dtype.width()..], &mut lane);
            out.extend(at.to_le_bytes());
            out.extend(lane[0].to_le_bytes());
        }
    }

    /// Sets the bytes of a block from a payload. Returns `None` if the payload is malformed.
    pub(crate) fn decode(&mut self, place: &Place, table: &SideTable, payload: &[u8], out: &mut [u8]) -> Option<()> {
        let (dtype, format) = (place.dtype, Format::of(place.dtype));
        let size = (place.shape.rows(), place.shape.channels());
        let (n, low_bytes) = (size.0 * size.1, lanes::low_bytes(dtype));
        let (stored, rest) = payload.split_at_checked(format.stored.packed_len(n))?;
        let (low, rest) = rest.split_at_checked(n * low_bytes)?;
        let (reader, n_escapes) = coded::open(rest)?;
        let escapes = &rest[reader.end()..];
        if escapes.len() != n_escapes.checked_mul(ESCAPE_LEN)? {
            return None;
        }
        self.begin(place, table);
        let contexts =
            Contexts { format, rows: Rows { shape: place.shape, table, angles: &self.angles }, origins: &self.origins };
        let sink = Elements { contexts, batch: &mut self.batch, dtype, stored, low, out: &mut *out };
        coded::read(size, &Prior::of(dtype).decoder, reader, &mut self.found, sink).then_some(())?;
        for [a, b, c, d, first, second] in escapes.as_chunks::<ESCAPE_LEN>().0.iter().copied() {
            let at = u32::from_le_bytes([a, b, c, d]) as usize;
            let place = out.get_mut(at * dtype.width()..(at + 1) * dtype.width())?;
            lanes::join(dtype, &[u16::from_le_bytes([first, second])], &low[at * low_bytes..], place);
        }
        Some(())
    }
}
