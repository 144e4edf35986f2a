//! Frames of an HTTP/2 connection, watched as they pass: what the library counts and does not report.
//!
//! Coming in: blocks of headers longer than one frame. Until the last frame of such a block is there, the connection holds what it has decoded,
//! so the number of connections in the middle of one is bounded ([`Connection::begin_headers`]).
//!
//! Coming in, too: frames of data without data, of which the library takes a hundred in the whole life of a connection and then ends it.
//!
//! Going out: streams that the library resets for a mistake of the client. The library ends the connection after so many, however
//! much time lies between them; a connection with half as many of either is to be replaced in order ([`Connection::note_mistake`]).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::network::Connection;

/// First bytes of a client, before the first frame: RFC 9113, section 3.4.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
const HEAD_BYTES: usize = 9;
/// Bytes of the contents of a frame that a watcher sees: the reason of a reset.
const SEEN_BYTES: usize = 4;
/// Kinds of frames and the flag for the last frame of headers: RFC 9113, section 6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Reasons of resets without a mistake: an answer before the end of the request, a failure of the server, and a call that is not needed.
const NO_MISTAKE: [u32; 3] = [0, 2, 8];

/// Beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    /// Bytes of the contents.
    length: usize,
    /// First bytes of the contents, as far as there are any.
    seen: [u8; SEEN_BYTES],
}

/// Finds the frames in a stream of bytes that comes in pieces.
#[derive(Default)]
struct Frames {
    /// Bytes before the next frame.
    skip: usize,
    begun: [u8; HEAD_BYTES + SEEN_BYTES],
    /// Bytes of `begun` that are there.
    filled: usize,
}

impl Frames {
    /// Takes the next bytes and calls `found` with each frame whose beginning is there.
    fn take(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let wanted = self.wanted();
            let taken = (wanted - self.filled).min(bytes.len());
            self.begun[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == self.wanted() {
                let [.., kind, flags, _, _, _, _, a, b, c, d] = self.begun;
                found(Frame { kind, flags, length: self.length(), seen: [a, b, c, d] });
                self.skip = self.length() + HEAD_BYTES - self.filled;
                (self.begun, self.filled) = Default::default();
            }
        }
    }

    /// Returns the bytes of contents of the frame whose head is there.
    fn length(&self) -> usize {
        let [a, b, c, ..] = self.begun;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// Returns the bytes of a frame to wait for: the head first, then the beginning of the contents.
    fn wanted(&self) -> usize {
        if self.filled < HEAD_BYTES { HEAD_BYTES } else { HEAD_BYTES + self.length().min(SEEN_BYTES) }
    }
}

/// A connection whose frames are watched.
pub(crate) struct Watched<T> {
    io: T,
    connection: Arc<Connection>,
    incoming: Frames,
    outgoing: Frames,
    /// Number of the block of headers under way, if it takes several frames.
    headers: Option<u64>,
}

impl<T> Watched<T> {
    /// Watches a connection from the first byte on.
    pub(crate) fn new(io: T, connection: Arc<Connection>) -> Self {
        let incoming = Frames { skip: PREFACE.len(), ..Frames::default() };
        Self { io, connection, incoming, outgoing: Frames::default(), headers: None }
    }

    fn received(&mut self, bytes: &[u8]) {
        let Self { connection, incoming, headers, .. } = self;
        incoming.take(bytes, |frame| {
            if frame.kind == DATA && frame.length == 0 && frame.flags & END_STREAM == 0 {
                connection.note_empty();
            }
            let ended = match (frame.kind, frame.flags & END_HEADERS) {
                (HEADERS, 0) => headers.replace(connection.begin_headers()),
                (CONTINUATION, END_HEADERS) => headers.take(),
                _ => None,
            };
            ended.into_iter().for_each(|at| connection.end_headers(at));
        });
    }

    fn sent(&mut self, bytes: &[u8]) {
        let Self { connection, outgoing, .. } = self;
        outgoing.take(bytes, |frame| {
            if frame.kind == RST_STREAM && !NO_MISTAKE.contains(&u32::from_be_bytes(frame.seen)) {
                connection.note_mistake();
            }
        });
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.headers.take().into_iter().for_each(|at| self.connection.end_headers(at));
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.received(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.sent(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let taken = left.min(buf.len());
            self.sent(&buf[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, contents: &[u8]) -> Vec<u8> {
        let mut bytes = (contents.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(contents);
        bytes
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let bytes = [frame(4, 0, &[]), frame(3, 1, &[0, 0, 0, 8]), frame(0, 1, &[7; 300]), frame(9, 4, &[1, 2])];
        let bytes = bytes.concat();
        let expected = [(4, 0, [0; 4]), (3, 1, [0, 0, 0, 8]), (0, 1, [7; 4]), (9, 4, [1, 2, 0, 0])];
        for cut in 1..=bytes.len() {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(cut) {
                frames.take(piece, |frame| found.push((frame.kind, frame.flags, frame.seen)));
            }
            assert_eq!(found, expected, "pieces of {cut} bytes");
        }
    }
}
