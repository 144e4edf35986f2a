//! Eight interleaved streams of prefix codes: a decoder works on all of them at once, because the next code of one stream is known only
//! after the one before.

use crate::huffman::LENGTH_MAX;

/// Number of streams.
pub(crate) const STREAMS: usize = 8;
/// Codes read from one load of 64 bits, at most seven of which belong to the code before.
const CODES_EACH: usize = 4;

/// Returns the rows of a stream: an equal share of all, the rest to the first streams.
pub(crate) fn rows_of(stream: usize, rows: usize) -> std::ops::Range<usize> {
    let (each, rest) = (rows / STREAMS, rows % STREAMS);
    let begin = stream * each + stream.min(rest);
    begin..begin + each + usize::from(stream < rest)
}

/// Writer of codes, highest bit first.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bits: u64,
    n: u32,
}

impl Writer {
    /// Appends a code. After four codes at most, [`Self::flush`] MUST be called.
    #[inline]
    pub(crate) fn push(&mut self, code: u32, length: u32) {
        self.bits = self.bits << length | u64::from(code);
        self.n += length;
    }

    /// Moves whole bytes to `out`.
    #[inline]
    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) {
        let (begin, bytes) = (out.len(), self.n / 8);
        // Eight bytes are written and some taken back: a length known when compiling makes this a single store.
        let aligned = self.bits.checked_shl(64 - self.n).unwrap_or(0);
        out.extend_from_slice(&aligned.to_be_bytes());
        out.truncate(begin + bytes as usize);
        self.n -= 8 * bytes;
    }

    /// Ends the stream with zeros up to a whole byte.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) {
        self.push(0, self.n.next_multiple_of(8) - self.n);
        self.flush(out);
        *self = Self::default();
    }
}

/// Reader of one stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Position of the next bit.
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the next 57 bits or more, the first in the highest place. Zeros follow the end.
    #[inline]
    fn peek(&self) -> u64 {
        let byte = self.at / 8;
        let word = match self.bytes.get(byte..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(eight) => u64::from_be_bytes(*eight),
            None => self.peek_end(byte),
        };
        word << (self.at % 8)
    }

    #[cold]
    fn peek_end(&self, byte: usize) -> u64 {
        let mut eight = [0; 8];
        let rest = self.bytes.get(byte..).unwrap_or_default();
        eight[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(eight)
    }

    /// Reads a symbol for each context.
    #[inline]
    pub(crate) fn read(&mut self, decoder: &Decoder<'_>, contexts: &[u8; CODES_EACH], symbols: &mut [u8; CODES_EACH]) {
        let mut word = self.peek();
        let mut used = 0;
        for (context, symbol) in contexts.iter().zip(symbols) {
            let entry = decoder.entry(*context, word);
            word <<= entry & 15;
            used += usize::from(entry & 15);
            *symbol = (entry >> 8) as u8;
        }
        self.at += used;
    }

    /// Reads a symbol for each of up to four contexts.
    pub(crate) fn read_rest(&mut self, decoder: &Decoder<'_>, contexts: &[u8], symbols: &mut [u8]) {
        for (context, symbol) in contexts.iter().zip(symbols) {
            let entry = decoder.entry(*context, self.peek());
            self.at += usize::from(entry & 15);
            *symbol = (entry >> 8) as u8;
        }
    }

    /// Returns `true` if the stream was read to its last byte, and not beyond.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at.div_ceil(8) == self.bytes.len()
    }
}

/// Entries of all contexts, in a table whose length is a power of two.
pub(crate) struct Decoder<'a>(&'a [u16; ENTRIES]);

const ENTRIES: usize = crate::contexts::CONTEXTS << LENGTH_MAX;

impl<'a> Decoder<'a> {
    pub(crate) fn new(entries: &'a [u16]) -> Self {
        Self(entries.try_into().expect("an entry for each context and code"))
    }

    #[inline]
    fn entry(&self, context: u8, word: u64) -> u16 {
        self.0[(usize::from(context) << LENGTH_MAX | (word >> (64 - LENGTH_MAX)) as usize) % ENTRIES]
    }
}

/// Reads a row of symbols from each of some streams at once. All rows have one length.
pub(crate) fn read_rows(
    decoder: &Decoder<'_>,
    readers: &mut [Reader<'_>],
    contexts: [&[u8]; STREAMS],
    symbols: &mut [Vec<u8>; STREAMS],
) {
    let n = contexts[0].len();
    let whole = n / CODES_EACH * CODES_EACH;
    if let Ok(readers) = <&mut [Reader<'_>; STREAMS]>::try_from(&mut *readers) {
        // The readers live in registers, or nearly.
        let mut local = *readers;
        let [a, b, c, d, e, f, g, h] = symbols.each_mut().map(|symbols| &mut symbols[..whole]);
        let outs = [a, b, c, d, e, f, g, h].map(|out| out.as_chunks_mut::<CODES_EACH>().0);
        let ins = contexts.map(|contexts| contexts[..whole].as_chunks::<CODES_EACH>().0);
        for at in 0..whole / CODES_EACH {
            for stream in 0..STREAMS {
                local[stream].read(decoder, &ins[stream][at], &mut outs[stream][at]);
            }
        }
        *readers = local;
        for (stream, reader) in readers.iter_mut().enumerate() {
            reader.read_rest(decoder, &contexts[stream][whole..], &mut symbols[stream][whole..n]);
        }
        return;
    }
    for (stream, reader) in readers.iter_mut().enumerate() {
        reader.read_rest(decoder, contexts[stream], &mut symbols[stream][..n]);
    }
}
