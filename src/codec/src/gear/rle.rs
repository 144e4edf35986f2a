//! Run-length encoding: literals `n - 1, n bytes` (1 to 128 bytes) and repeats `0x80 | n - 4, byte` (4 to 131 times).

const LITERALS_MAX: usize = 128;
const RUN_MIN: usize = 4;
const RUN_MAX: usize = 131;

/// A token of the encoding.
enum Token<'a> {
    Literals(&'a [u8]),
    Run(u8, usize),
}

/// Splits bytes into tokens: a repeat wherever at least four bytes are equal, literals between.
struct Tokens<'a>(&'a [u8]);

/// Returns the length of the run that `bytes` begin with, as far as one repeat reaches.
fn run(bytes: &[u8]) -> usize {
    let first = bytes[0];
    bytes.iter().take(RUN_MAX).take_while(|byte| **byte == first).count()
}

/// Returns the offset of the next run of at least four bytes in `bytes`, or their length.
fn next_run(bytes: &[u8]) -> usize {
    bytes.windows(RUN_MIN).position(|four| four.iter().all(|byte| *byte == four[0])).unwrap_or(bytes.len())
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let bytes = self.0;
        if bytes.is_empty() {
            return None;
        }
        let n = run(bytes);
        if n >= RUN_MIN {
            self.0 = &bytes[n..];
            return Some(Token::Run(bytes[0], n));
        }
        // A window that reaches beyond the last literal still ends the literals where it begins.
        let seen = bytes.len().min(LITERALS_MAX + RUN_MIN - 1);
        let n = next_run(&bytes[..seen]).min(LITERALS_MAX);
        let (literals, rest) = bytes.split_at(n);
        self.0 = rest;
        Some(Token::Literals(literals))
    }
}

/// Returns the length of the encoding, or `None` once it is known to be at least `limit`.
pub(super) fn encoded_len(bytes: &[u8], limit: usize) -> Option<usize> {
    let mut len = 0;
    for token in Tokens(bytes) {
        len += match token {
            Token::Literals(literals) => 1 + literals.len(),
            Token::Run(..) => 2,
        };
        if len >= limit {
            return None;
        }
    }
    Some(len)
}

/// Appends the encoding to `out`.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for token in Tokens(bytes) {
        match token {
            Token::Literals(literals) => {
                out.push(literals.len() as u8 - 1);
                out.extend(literals);
            }
            Token::Run(byte, n) => out.extend([0x80 | (n - RUN_MIN) as u8, byte]),
        }
    }
}

/// Returns exactly `len` decoded bytes, or `None` if the encoding is malformed or of another length.
pub(super) fn decode(mut encoded: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some((control, rest)) = encoded.split_first() {
        let n = usize::from(control & 0x7f);
        if *control < 0x80 {
            let (literals, rest) = rest.split_at_checked(n + 1)?;
            bytes.extend(literals);
            encoded = rest;
        } else {
            let (byte, rest) = rest.split_first()?;
            bytes.resize(bytes.len() + n + RUN_MIN, *byte);
            encoded = rest;
        }
        if bytes.len() > len {
            return None;
        }
    }
    (bytes.len() == len && len > 0).then_some(bytes)
}
