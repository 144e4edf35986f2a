//! Payload of blocks of an unknown model: the byte with the exponent by one code for keys and one for values, made for the block; the other byte
//! unchanged.
//!
//! ```text
//! payload = exponent of each plane:u8 | lengths of two codes | coded rows | other bytes
//! lengths = groups of (symbols without a code before:u8, symbols:u8, a length for each in four bits), ended by a group without symbols
//! ```
//!
//! BF16 is rotated left by a bit, which brings all of the exponent into the upper byte. Planes, the keys or the values of a layer, differ
//! in scale more than in form: exponents count from the most frequent one.

use crate::coded::{self, Buffers, Streams, Symbols};
use crate::contexts::CONTEXTS;
use crate::huffman::{self, LENGTH_MAX};
use crate::shape::{Dtype, Shape};
use crate::stored_bits;
use crate::streams::Decoder;

/// Values of the coded byte.
const BYTES: usize = 256;

/// Returns the coded byte of an element, and the element with the other byte in the lower half.
#[inline]
fn halves(dtype: Dtype, element: u16) -> (u8, u16) {
    let element = if dtype == Dtype::Bf16 { element.rotate_left(1) } else { element };
    ((element >> 8) as u8, element)
}

/// Returns the byte relative to an exponent. FP16 has the sign above and two bits of the mantissa below the exponent.
#[inline]
fn relative(dtype: Dtype, byte: u8, exponent: u8) -> u8 {
    match dtype {
        Dtype::Bf16 => byte.wrapping_sub(exponent),
        Dtype::F16 => byte & 0x80 | byte.wrapping_sub(exponent << 2) & 0x7f,
    }
}

/// Returns the byte that is `relative` to an exponent.
#[inline]
fn absolute(dtype: Dtype, relative: u8, exponent: u8) -> u8 {
    match dtype {
        Dtype::Bf16 => relative.wrapping_add(exponent),
        Dtype::F16 => relative & 0x80 | relative.wrapping_add(exponent << 2) & 0x7f,
    }
}

/// Returns the most frequent exponent of a plane.
fn exponent_of(dtype: Dtype, plane: &[u16]) -> u8 {
    let mut counts = [0u32; BYTES];
    for element in plane {
        let byte = halves(dtype, *element).0;
        counts[usize::from(if dtype == Dtype::Bf16 { byte } else { byte >> 2 & 31 })] += 1;
    }
    (0..=u8::MAX).rev().max_by_key(|exponent| counts[usize::from(*exponent)]).unwrap_or(0)
}

/// Appends the payload of a block's elements.
pub(crate) fn encode(dtype: Dtype, shape: &Shape, elements: &[u16], out: &mut Vec<u8>) {
    let channels = shape.channels();
    let plane_len = channels * usize::from(shape.tokens);
    let exponents: Vec<u8> = elements.chunks_exact(plane_len).map(|plane| exponent_of(dtype, plane)).collect();
    let mut counts = [[0u64; BYTES]; 2];
    for (at, plane) in elements.chunks_exact(plane_len).enumerate() {
        for element in plane {
            counts[at % 2][usize::from(relative(dtype, halves(dtype, *element).0, exponents[at]))] += 1;
        }
    }
    out.extend(&exponents);
    let mut encoder = Vec::with_capacity(2 * BYTES);
    for counts in &mut counts {
        // A code of a single symbol would have no second branch.
        if counts.iter().filter(|count| **count > 0).count() == 1 {
            let other = usize::from(counts[0] > 0);
            counts[other] = 1;
        }
        let lengths = huffman::lengths(counts);
        write_lengths(&lengths, out);
        encoder.extend(
            huffman::codes(&lengths)
                .iter()
                .zip(&lengths)
                .map(|(code, length)| u32::from(*code) << 8 | u32::from(*length)),
        );
    }
    let mut escapes = Vec::new();
    coded::write(shape.rows(), &encoder, BYTES, &mut Symbols::default(), (out, &mut escapes), |row, buffer| {
        let plane = row / usize::from(shape.tokens);
        buffer.codes.clear();
        buffer.codes.resize(channels, (plane % 2) as u8);
        let own = &elements[row * channels..][..channels];
        buffer.symbols.clear();
        buffer.symbols.extend(own.iter().map(|element| relative(dtype, halves(dtype, *element).0, exponents[plane])));
    });
    debug_assert!(escapes.is_empty(), "every byte of the block has a code");
    let rest: Vec<u16> = elements.iter().map(|element| halves(dtype, *element).1).collect();
    stored_bits::pack(&rest, 8, out);
}

/// Sets the elements of a block from a payload. Returns `None` if the payload is malformed.
pub(crate) fn decode(dtype: Dtype, shape: &Shape, payload: &[u8], elements: &mut [u16]) -> Option<()> {
    let (channels, tokens) = (shape.channels(), usize::from(shape.tokens));
    let (exponents, mut rest) = payload.split_at_checked(2 * usize::from(shape.layers))?;
    let mut entries = vec![0; CONTEXTS << LENGTH_MAX];
    for entries in entries.chunks_exact_mut(1 << LENGTH_MAX).take(2) {
        let lengths = read_lengths(&mut rest)?;
        huffman::fill_decoder(&lengths, entries).then_some(())?;
    }
    let (streams, stored) = Streams::split(rest)?;
    (stored.len() == stored_bits::packed_len(elements.len(), 8)).then_some(())?;
    stored_bits::unpack(stored, 8, elements);
    let mut buffers: Buffers<Vec<u8>> = Default::default();
    let fill = |row: usize, codes: &mut Vec<u8>| {
        codes.clear();
        codes.resize(channels, (row / tokens % 2) as u8);
    };
    streams.read(
        (shape.rows(), channels),
        &Decoder::new(&entries),
        &mut buffers,
        fill,
        |codes| codes,
        |row, _, symbols| {
            let exponent = exponents[row / tokens];
            for (element, symbol) in elements[row * channels..][..channels].iter_mut().zip(symbols) {
                let whole = u16::from(absolute(dtype, *symbol, exponent)) << 8 | *element;
                *element = if dtype == Dtype::Bf16 { whole.rotate_right(1) } else { whole };
            }
        },
    )
}

fn write_lengths(lengths: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(skip) = lengths[at..].iter().position(|length| *length > 0) {
        let rest = &lengths[at + skip..];
        // A gap of one symbol costs less than a new group.
        let n = (0..rest.len().min(255))
            .rev()
            .find(|n| rest[*n] > 0 && rest[..*n].windows(3).all(|three| three != [0, 0, 0]))
            .unwrap_or(0)
            + 1;
        out.extend([skip as u8, n as u8]);
        out.extend(rest[..n].chunks(2).map(|two| two[0] | two.get(1).copied().unwrap_or(0) << 4));
        at += skip + n;
    }
    out.extend([0, 0]);
}

fn read_lengths(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let mut lengths = vec![0; BYTES];
    let mut at = 0;
    loop {
        let ([skip, n], rest) = bytes.split_first_chunk::<2>()?;
        let n = usize::from(*n);
        let (halves, rest) = rest.split_at_checked(n.div_ceil(2))?;
        *bytes = rest;
        if n == 0 {
            return Some(lengths);
        }
        at += usize::from(*skip);
        for (i, length) in lengths.get_mut(at..at + n)?.iter_mut().enumerate() {
            *length = halves[i / 2] >> (i % 2 * 4) & 15;
            (usize::from(*length) <= LENGTH_MAX).then_some(())?;
        }
        at += n;
    }
}
