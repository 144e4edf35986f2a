//! Reader of text files, plain, gzip or Zstandard, line by line in one buffer.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

/// Longest line accepted, bytes: enough for a recorded prompt of millions of tokens, and a bound on memory for files without lines.
pub const LINE_BYTES_MAX: u64 = 64 << 20;
/// Longest first line that begins an object, bytes: results of benchmarks are one line with all requests and their texts.
pub const DOCUMENT_BYTES_MAX: u64 = 1 << 30;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BUFFER_BYTES: usize = 1 << 17;

/// Fault in reading lines.
#[derive(Debug, thiserror::Error)]
pub enum LineFault {
    /// File not found at the path.
    #[error("no such file; check the path")]
    NotFound,
    /// Pipe, device or socket.
    #[error("is a pipe or a device, and is read more than once; write it to a file first")]
    NoFile,
    /// File cannot be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// Gzip stream ends before its trailer, or a few bytes follow its end.
    #[error("the gzip stream is cut off, or bytes follow its end; fetch or compress the file again")]
    TruncatedGzip,
    /// Gzip stream is damaged.
    #[error("the gzip stream is damaged ({0}); fetch or compress the file again")]
    CorruptGzip(io::Error),
    /// Zstandard stream ends within a frame.
    #[error("the zstd stream is cut off; fetch or compress the file again")]
    TruncatedZstd,
    /// Zstandard stream is damaged.
    #[error("the zstd stream is damaged ({0}); fetch or compress the file again")]
    CorruptZstd(io::Error),
    /// Line longer than any line of a trace or recording.
    #[error("a line is longer than {max_bytes} bytes; this is not a file of lines")]
    TooLong {
        /// Longest line accepted, bytes.
        max_bytes: u64,
    },
}

/// Line number in an error message: `, line 7`, or nothing for line 0.
pub struct LineNumber(pub u64);

impl fmt::Display for LineNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", line {}", self.0) }
    }
}

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    fn of(first_bytes: &[u8]) -> Self {
        if first_bytes.starts_with(&GZIP_MAGIC) {
            Self::Gzip
        } else if first_bytes.starts_with(&ZSTD_MAGIC) {
            Self::Zstd
        } else {
            Self::Plain
        }
    }

    fn fault(self, e: io::Error) -> LineFault {
        match (self, e.kind()) {
            (Self::Gzip, ErrorKind::UnexpectedEof) => LineFault::TruncatedGzip,
            (Self::Gzip, ErrorKind::InvalidInput | ErrorKind::InvalidData) => LineFault::CorruptGzip(e),
            (Self::Zstd, ErrorKind::UnexpectedEof) => LineFault::TruncatedZstd,
            // The decoder has no kind of its own for damage.
            (Self::Zstd, ErrorKind::Other) => LineFault::CorruptZstd(e),
            _ => LineFault::Unreadable(e),
        }
    }
}

/// Lines of a file. The first bytes of the file, not its name, decide the compression.
pub struct Lines {
    source: Box<dyn BufRead + Send>,
    packing: Packing,
    number: u64,
    buffer: Vec<u8>,
    terminated: bool,
}

impl Lines {
    /// Opens the file at `path` and recognises its compression.
    ///
    /// # Errors
    ///
    /// [`LineFault`] if the file is missing or cannot be read.
    pub fn open(path: &Path) -> Result<Self, LineFault> {
        // To open a pipe would wait for a writer.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Err(LineFault::NoFile);
        }
        let file = File::open(path).map_err(|e| {
            if e.kind() == ErrorKind::NotFound { LineFault::NotFound } else { LineFault::Unreadable(e) }
        })?;
        let mut plain = BufReader::with_capacity(BUFFER_BYTES, file);
        let packing = Packing::of(plain.fill_buf().map_err(LineFault::Unreadable)?);
        let source: Box<dyn BufRead + Send> = match packing {
            Packing::Plain => Box::new(plain),
            Packing::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(plain))),
            Packing::Zstd => {
                let decoder = zstd::Decoder::with_buffer(plain).map_err(LineFault::Unreadable)?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder))
            }
        };
        Ok(Self { source, packing, number: 0, buffer: Vec::new(), terminated: true })
    }

    /// Returns the next line without its line end, or `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// [`LineFault`] if the file cannot be read, is damaged, or has a line longer than [`LINE_BYTES_MAX`], a first line
    /// with an object than [`DOCUMENT_BYTES_MAX`].
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineFault> {
        self.buffer.clear();
        // Counted before it is read, so that a fault names the line it is in.
        self.number += 1;
        let max_bytes = self.bytes_max()?;
        let mut limited = (&mut self.source).take(max_bytes + 1);
        let read = limited.read_until(b'\n', &mut self.buffer).map_err(|e| self.packing.fault(e))?;
        if read == 0 {
            self.number -= 1;
            return Ok(None);
        }
        if read as u64 > max_bytes {
            return Err(LineFault::TooLong { max_bytes });
        }
        self.terminated = self.buffer.ends_with(b"\n");
        let mut line = &self.buffer[..];
        if self.terminated {
            line = &line[..line.len() - 1];
        }
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Returns the longest line accepted next, bytes.
    fn bytes_max(&mut self) -> Result<u64, LineFault> {
        if self.number > 1 {
            return Ok(LINE_BYTES_MAX);
        }
        let head = self.source.fill_buf().map_err(|e| self.packing.fault(e))?;
        let is_object = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).starts_with(b"{");
        Ok(if is_object { DOCUMENT_BYTES_MAX } else { LINE_BYTES_MAX })
    }

    /// Returns the number of the last line read, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns `true` if the last line read ended with a newline. Only the last line of a file may lack one.
    pub fn terminated(&self) -> bool {
        self.terminated
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<String>, LineFault> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let mut lines = Lines::open(file.path())?;
        let mut out = Vec::new();
        while let Some(line) = lines.next_line()? {
            out.push(String::from_utf8(line.to_vec()).unwrap());
        }
        assert_eq!(lines.number(), out.len() as u64);
        Ok(out)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_and_gzip_and_zstd_give_the_same_lines_whatever_the_line_ends() {
        let text = b"one\r\ntwo\n\nfour";
        let expected = ["one", "two", "", "four"];
        assert_eq!(all(text).unwrap(), expected);
        assert_eq!(all(&gzip(text)).unwrap(), expected);
        // Members one after another are one stream, as `cat a.gz b.gz` makes them.
        assert_eq!(all(&[gzip(b"one\r\ntwo\n"), gzip(b"\nfour")].concat()).unwrap(), expected);
        assert_eq!(all(&zstd(text)).unwrap(), expected);
        assert_eq!(all(&[zstd(b"one\r\ntwo\n"), zstd(b"\nfour")].concat()).unwrap(), expected);
        assert!(all(b"").unwrap().is_empty());
    }

    #[test]
    fn damage_to_gzip_is_told_from_an_end() {
        let text: Vec<u8> =
            (0..5000u32).flat_map(|i| format!("{}\n", i.wrapping_mul(2654435761)).into_bytes()).collect();
        let whole = gzip(&text);
        for cut in [3, whole.len() / 2, whole.len() - 1] {
            assert!(matches!(all(&whole[..cut]), Err(LineFault::TruncatedGzip)), "cut at {cut}");
        }
        let mut damaged = whole.clone();
        let at = whole.len() - 6;
        damaged[at] ^= 0xff;
        assert!(matches!(all(&damaged), Err(LineFault::CorruptGzip(_))));
        assert!(matches!(Lines::open(Path::new("no/such/file")), Err(LineFault::NotFound)));
    }

    #[test]
    fn damage_to_zstd_is_told_from_an_end() {
        let text: Vec<u8> =
            (0..5000u32).flat_map(|i| format!("{}\n", i.wrapping_mul(2654435761)).into_bytes()).collect();
        let whole = zstd(&text);
        for cut in [6, whole.len() / 2, whole.len() - 1] {
            assert!(matches!(all(&whole[..cut]), Err(LineFault::TruncatedZstd)), "cut at {cut}");
        }
        let mut damaged = whole.clone();
        let at = whole.len() / 2;
        damaged[at] ^= 0xff;
        assert!(matches!(all(&damaged), Err(LineFault::CorruptZstd(_))));
    }
}
