//! Eight interleaved streams of prefix codes: a decoder works on all of them at once, because the next code of one stream is known only
//! after the one before.
//!
//! Streams take turns in runs of five elements: element `i` of a block belongs to stream `i / 5 mod 8`, so that the decoder's eight streams work on
//! neighbours. Codes stand in the bits of a stream from the lowest bit of the first byte up, each with its first bit lowest.

use crate::huffman::LENGTH_MAX;

/// Number of streams.
pub(crate) const STREAMS: usize = 8;
/// Elements in a run. Their codes are read from one load of 64 bits, of which seven at most belong to the code before and one marks the end.
const RUN: usize = 5;
/// Elements of one run of each stream. Batches are whole turns, except at the end of a block.
pub(crate) const TURN: usize = STREAMS * RUN;
/// Bytes of a word. As many follow the last stream, so that decoders may load whole words.
pub(crate) const WORD: usize = 8;
/// Mark above the bits of a word: the zeros above the mark are as many as bits used.
const MARK: u64 = 1 << 63;
/// Bits of an encoder's entry that hold the length, which is a shift.
const LENGTH_BITS: u32 = 6;
/// Bit of an encoder's entry of a symbol without a code; the code is that of the escape. Sums of five entries have sums of lengths and of this bit apart.
const ESCAPED: u64 = 1 << LENGTH_BITS;
/// Bits of a sum of five entries of which one is set if an entry is that of an escape.
const SOME_ESCAPED: u64 = 7 << LENGTH_BITS;

/// Entries of a decoder, for any index of 16 bits.
pub(crate) type Entries = [u16; 1 << 16];
/// Entries of an encoder, for any index of 16 bits.
pub(crate) type Codes = [u64; 1 << 16];

/// Returns entries of zeros.
pub(crate) fn no_entries<T: Clone + Default>() -> Box<[T; 1 << 16]> {
    match vec![T::default(); 1 << 16].into_boxed_slice().try_into() {
        Ok(entries) => entries,
        Err(_) => unreachable!("all indices of 16 bits"),
    }
}

/// Returns the encoder's entry of a symbol with this code and length: the code in the highest bits, the length in the lowest. `is_escaped` if the
/// code is that of the escape.
pub(crate) fn encoder_entry(code: u16, length: u8, is_escaped: bool) -> u64 {
    let code = u64::from(code).wrapping_shl(64 - u32::from(length));
    if length == 0 { 0 } else { code | u64::from(is_escaped) << LENGTH_BITS | u64::from(length) }
}

/// Returns the bytes that the writer of a stream needs for the codes of a block of `n` elements.
fn room(n: usize) -> usize {
    n.div_ceil(TURN) * RUN * LENGTH_MAX / 8 + 16
}

/// End of a stream being written.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// Position of the next byte. In 32 bits, so that a sum with the length of a word never wraps.
    at: u32,
    /// Number of the bits of the next byte, seven at most.
    n: u32,
    /// These bits, as the highest ones; bits written before are below.
    bits: u64,
}

/// Writer of all streams of a block, with a buffer that is used again.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    buffer: Vec<u8>,
    /// Bytes for each stream.
    room: usize,
    ends: [End; STREAMS],
}

impl Writer {
    /// Begins a block of `n` elements.
    pub(crate) fn begin(&mut self, n: usize) {
        let room = room(n);
        self.room = room;
        if self.buffer.len() < room * STREAMS {
            self.buffer.resize(room * STREAMS, 0);
        }
        self.ends = Default::default();
    }

    /// Appends the codes of the entries at `indices`. `first` is the number of the first element; the numbers of escaped elements are added
    /// to `escapes`.
    #[inline(always)]
    pub(crate) fn write(&mut self, codes: &Codes, indices: &[u16], first: usize, escapes: &mut Vec<u32>) {
        let (turns, rest) = indices.as_chunks::<TURN>();
        let each = self.ends.iter_mut().zip(self.buffer.chunks_exact_mut(self.room));
        for (stream, (own, out)) in each.enumerate() {
            let mut end = *own;
            for (at, turn) in turns.iter().enumerate() {
                let run: &[u16; RUN] = turn.as_chunks().0.get(stream).expect("a run of each stream");
                if end.push(out, run.map(|index| codes[usize::from(index)])) {
                    note_escapes(codes, run, first + TURN * at + RUN * stream, escapes);
                }
            }
            if let Some(run) = rest.chunks(RUN).nth(stream) {
                let found = |at: usize| run.get(at).map_or(0, |index| codes[usize::from(*index)]);
                if end.push(out, std::array::from_fn(found)) {
                    note_escapes(codes, run, first + TURN * turns.len() + RUN * stream, escapes);
                }
            }
            *own = end;
        }
    }

    /// Ends all streams with zeros up to whole bytes.
    pub(crate) fn end(&mut self) {
        for (end, out) in self.ends.iter_mut().zip(self.buffer.chunks_exact_mut(self.room)).filter(|(end, _)| end.n > 0)
        {
            out[end.at as usize] = (end.bits >> (64 - end.n)) as u8;
            *end = End { at: end.at + 1, ..End::default() };
        }
    }

    /// Returns the bytes of each stream, once ended.
    pub(crate) fn streams(&self) -> [&[u8]; STREAMS] {
        std::array::from_fn(|stream| &self.buffer[stream * self.room..][..self.ends[stream].at as usize])
    }
}

impl End {
    /// Appends five codes, those of length 0 at the end. Returns `true` if one is that of an escape.
    #[inline(always)]
    fn push(&mut self, out: &mut [u8], found: [u64; RUN]) -> bool {
        let [first, rest @ ..] = found;
        // The codes in the highest bits, the last one on top. Shifts are modulo 64: by the lengths in the lowest bits. The lengths stay below all codes.
        let (mut five, mut sum) = (first, first);
        for entry in rest {
            five = five.wrapping_shr(entry as u32) | entry;
            sum = sum.wrapping_add(entry);
        }
        self.bits = self.bits.wrapping_shr(sum as u32) | five;
        self.n += sum as u32 % (1 << LENGTH_BITS);
        let at = self.at as usize;
        out[at..at + WORD].copy_from_slice(&self.bits.wrapping_shr(self.n.wrapping_neg()).to_le_bytes());
        self.at += self.n / 8;
        self.n %= 8;
        sum & SOME_ESCAPED != 0
    }
}

/// Adds the numbers of the escaped elements among some, from number `first` on.
#[cold]
fn note_escapes(codes: &Codes, indices: &[u16], first: usize, escapes: &mut Vec<u32>) {
    let escaped = indices.iter().enumerate().filter(|(_, index)| codes[usize::from(**index)] & ESCAPED != 0);
    escapes.extend(escaped.map(|(at, _)| (first + at) as u32));
}

/// Stream being read.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Byte that the word was loaded from. In 32 bits, so that a sum with the length of a word never wraps.
    at: u32,
    /// Position of the end, bytes. Next to each position on purpose: compilers would else add to all positions in one vector, for which the loads
    /// of the next codes would wait.
    end: u32,
}

/// Reader of the streams in a payload.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    streams: [Stream; STREAMS],
    /// Bits loaded and not yet used, from the lowest up, with [`MARK`] above.
    words: [u64; STREAMS],
}

impl<'a> Reader<'a> {
    /// Creates a reader of streams that follow each other from byte `begin` on, and are followed by [`WORD`] bytes. Returns `None` if the bytes end before.
    pub(crate) fn new(bytes: &'a [u8], begin: usize, lengths: &[u32; STREAMS]) -> Option<Self> {
        let (mut streams, mut next) = ([Stream::default(); STREAMS], u32::try_from(begin).ok()?);
        for (stream, length) in streams.iter_mut().zip(lengths) {
            stream.at = next;
            next = next.checked_add(*length).filter(|next| *next as usize <= bytes.len())?;
            stream.end = next;
        }
        let reader = Self { bytes, streams, words: [MARK; STREAMS] };
        (reader.end() <= bytes.len()).then_some(reader)
    }

    /// Returns the position in bytes of the end of the last stream and the word after it.
    pub(crate) fn end(&self) -> usize {
        self.streams[STREAMS - 1].end as usize + WORD
    }

    /// Returns `true` if each stream was read to the last byte, and not beyond.
    pub(crate) fn is_at_end(&self) -> bool {
        let used = |word: &u64| word.leading_zeros().div_ceil(8);
        self.streams.iter().zip(&self.words).all(|(stream, word)| stream.at + used(word) == stream.end)
    }

    /// Replaces the contexts of some elements by the entries found.
    ///
    /// A processor works ahead on the next streams while the codes of one wait for each other. If compilers knew the number of streams, they would instead keep
    /// the words of all in a vector, and take each apart for each code.
    #[inline(always)]
    pub(crate) fn read(&mut self, entries: &Entries, elements: &mut [u16]) {
        let Some(last) = self.bytes.len().checked_sub(WORD) else { return };
        let (turns, rest) = elements.as_chunks_mut::<TURN>();
        let (bytes, n) = (self.bytes, std::hint::black_box(STREAMS).min(STREAMS));
        let (streams, words) = (&mut self.streams[..n], &mut self.words[..n]);
        for turn in turns {
            for ((run, stream), word) in turn.as_chunks_mut::<RUN>().0.iter_mut().zip(&mut *streams).zip(&mut *words) {
                *word = read_run(entries, run, stream.load(bytes, last, *word));
            }
        }
        for ((run, stream), word) in rest.chunks_mut(RUN).zip(streams).zip(words) {
            *word = read_run(entries, run, stream.load(bytes, last, *word));
        }
    }
}

impl Stream {
    /// Returns the next bits, 56 or more below the mark, given those loaded before. Beyond `last`, where the last whole word begins, are no streams but those
    /// of a malformed payload: any bits will do.
    #[inline(always)]
    fn load(&mut self, bytes: &[u8], last: usize, word: u64) -> u64 {
        let used = word.leading_zeros();
        self.at = self.at.wrapping_add(used / 8);
        let at = (self.at as usize).min(last);
        let loaded = u64::from_le_bytes(bytes[at..at + WORD].try_into().expect("a word"));
        (loaded | MARK) >> (used % 8)
    }
}

/// Replaces the contexts of a run by the entries found in a word. Returns the word without their codes.
#[inline(always)]
fn read_run(entries: &Entries, run: &mut [u16], mut word: u64) -> u64 {
    run.iter_mut().for_each(|element| take(entries, element, &mut word));
    word
}

/// Replaces a context by the entry of the code at the lowest bits of a word, and drops the code. Contexts leave the lowest [`LENGTH_MAX`] bits free.
#[inline(always)]
fn take(entries: &Entries, element: &mut u16, word: &mut u64) {
    let entry = entries[usize::from(*element | *word as u16 & ((1 << LENGTH_MAX) - 1))];
    *word = word.wrapping_shr(entry.into());
    *element = entry;
}
