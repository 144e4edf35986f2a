//! Payload of blocks encoded against a side table: codes chosen by the predicted means.
//!
//! ```text
//! payload = coded rows | escapes:u32 | stored bits | escapes of (index:u32, element:u16)
//! ```

use crate::coded::{self, Buffers, Streams, Symbols};
use crate::contexts::Row;
use crate::prior::Prior;
use crate::rotary::{Angle, Turn};
use crate::shape::{Dtype, Shape};
use crate::side_table::SideTable;
use crate::stored_bits;
use crate::streams::Decoder;
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

/// Contexts of the rows of one block.
struct Rows<'a> {
    place: Place,
    table: &'a SideTable,
    turn: &'a Turn,
    angles: &'a mut Vec<Angle>,
}

impl Rows<'_> {
    fn fill(&mut self, row: usize, into: &mut Row) {
        let Place { dtype, shape, position } = self.place;
        let (layer, side, token) = shape.place(row);
        self.angles.clear();
        if side == 0 {
            self.table.angles(self.turn, layer, position.wrapping_add(token as u32), self.angles);
        }
        into.fill(Format::of(dtype), self.table.plane(layer, side), shape.head_dim.into(), self.angles);
    }
}

/// Buffers and tables for encoding and decoding.
pub(crate) struct Predicted {
    turn: Turn,
    angles: Vec<Angle>,
    rows: Buffers<Row>,
    symbols: Symbols,
}

impl Predicted {
    pub(crate) fn new() -> Self {
        Self { turn: Turn::new(), angles: Vec::new(), rows: Default::default(), symbols: Symbols::default() }
    }

    /// Appends the payload of a block's elements.
    pub(crate) fn encode(&mut self, place: &Place, table: &SideTable, elements: &[u16], out: &mut Vec<u8>) {
        let (format, prior, channels) = (Format::of(place.dtype), Prior::of(place.dtype), place.shape.channels());
        let mut escapes: Vec<u32> = Vec::new();
        let mut rows = Rows { place: *place, table, turn: &self.turn, angles: &mut self.angles };
        let row = &mut self.rows[0];
        coded::write(
            place.shape.rows(),
            &prior.encoder,
            format.symbols(),
            &mut self.symbols,
            (out, &mut escapes),
            |at, buffer| {
                rows.fill(at, row);
                let own = &elements[at * channels..][..channels];
                buffer.codes.clone_from(&row.codes);
                buffer.symbols.clear();
                buffer
                    .symbols
                    .extend(own.iter().zip(&row.flips).zip(&row.origins).map(|((e, f), o)| format.symbol(e ^ f, *o)));
            },
        );
        out.extend((escapes.len() as u32).to_le_bytes());
        stored_bits::pack(elements, format.stored_bits(), out);
        for at in escapes {
            out.extend(at.to_le_bytes());
            out.extend(elements[at as usize].to_le_bytes());
        }
    }

    /// Sets the elements of a block from a payload. Returns `None` if the payload is malformed.
    pub(crate) fn decode(
        &mut self,
        place: &Place,
        table: &SideTable,
        payload: &[u8],
        elements: &mut [u16],
    ) -> Option<()> {
        let (format, channels) = (Format::of(place.dtype), place.shape.channels());
        let (streams, rest) = Streams::split(payload)?;
        let (n_escapes, rest) = rest.split_first_chunk::<4>()?;
        let bits = format.stored_bits();
        let (stored, escapes) = rest.split_at_checked(stored_bits::packed_len(elements.len(), bits))?;
        if escapes.len() != (u32::from_le_bytes(*n_escapes) as usize).checked_mul(ESCAPE_LEN)? {
            return None;
        }
        stored_bits::unpack(stored, bits, elements);
        let mut rows = Rows { place: *place, table, turn: &self.turn, angles: &mut self.angles };
        streams.read(
            (place.shape.rows(), channels),
            &Decoder::new(&Prior::of(place.dtype).decoder),
            &mut self.rows,
            |at, row| rows.fill(at, row),
            |row| &row.codes,
            |at, row, symbols| {
                let parts = symbols.iter().zip(&row.flips).zip(&row.origins);
                for (element, ((symbol, flip), origin)) in elements[at * channels..][..channels].iter_mut().zip(parts) {
                    *element = (*element | format.coded_part(*symbol, *origin)) ^ flip;
                }
            },
        )?;
        for [a, b, c, d, low, high] in escapes.as_chunks::<ESCAPE_LEN>().0.iter().copied() {
            *elements.get_mut(u32::from_le_bytes([a, b, c, d]) as usize)? = u16::from_le_bytes([low, high]);
        }
        Some(())
    }
}
