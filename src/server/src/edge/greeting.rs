//! First bytes of a connection: a client that speaks another protocol than the port gets one line that says so, in its own protocol.
//!
//! | port | the client speaks | it gets |
//! |---|---|---|
//! | plain or TLS, of a server without a door for plain HTTP | HTTP/1 | an answer of HTTP/1 with status 400 and the line |
//! | TLS | HTTP/1 without TLS | the same |
//! | plain | TLS | the same bytes, which no TLS library takes for TLS; the line is in the log |
//! | TLS | HTTP/2 without TLS | the end of the connection (GOAWAY, INADEQUATE_SECURITY) with the line |

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;
use tracing::warn;

use crate::edge::frames::PREFACE;
use crate::network::Connection;

/// First bytes by which HTTP/2 is known: no method of HTTP/1 has this name.
const HTTP2_BYTES: usize = 4;
/// Longest name of a method of HTTP/1, bytes.
const METHOD_BYTES_MAX: usize = 16;
/// First bytes of TLS: a record of the handshake, and the major version.
const TLS_RECORD: [u8; 2] = [22, 3];
/// Bytes of a refused client that are read before the connection is closed: bytes that nobody reads would take the answer along.
const IGNORED_BYTES_MAX: u64 = 64 << 10;
/// Time for a refused client to read the answer and to close the connection.
const GOODBYE: Duration = Duration::from_secs(2);

/// Protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http2,
    Http1,
    Tls,
    /// None of these; the protocol of the port refuses the bytes.
    Unknown,
}

/// Protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// HTTP without TLS.
    Plain,
    /// TLS, before the handshake.
    Tls,
    /// HTTP after the handshake of TLS.
    Shaken,
}

/// Returns the protocol that begins with these bytes; `None` if more bytes have to tell.
fn protocol(bytes: &[u8]) -> Option<Protocol> {
    let n = bytes.len();
    if n > 0 && bytes[..n.min(HTTP2_BYTES)] == PREFACE[..n.min(HTTP2_BYTES)] {
        return (n >= HTTP2_BYTES).then_some(Protocol::Http2);
    }
    if n > 0 && bytes[0] == TLS_RECORD[0] {
        let second = *bytes.get(1)?;
        return Some(if second == TLS_RECORD[1] { Protocol::Tls } else { Protocol::Unknown });
    }
    match bytes.iter().position(|byte| !byte.is_ascii_uppercase()) {
        Some(end) if end > 0 && end <= METHOD_BYTES_MAX && bytes[end] == b' ' => Some(Protocol::Http1),
        None if n < METHOD_BYTES_MAX => None,
        _ => Some(Protocol::Unknown),
    }
}

/// Returns the line for a client whose protocol is not that of the port; `None` for one whose protocol may be. `http1` tells whether the server
/// answers plain HTTP.
fn refusal(port: Port, protocol: Protocol, http1: bool) -> Option<&'static str> {
    match (port, protocol) {
        (Port::Plain | Port::Shaken, Protocol::Http1) if !http1 => {
            Some("this port speaks gRPC, over HTTP/2; call it with a gRPC client such as trunkline generate or grpcurl")
        }
        (Port::Plain, Protocol::Tls) => {
            Some("this port speaks no TLS; connect without TLS, or start the server with --tls-cert and --tls-key")
        }
        (Port::Tls, Protocol::Http1 | Protocol::Http2) => {
            Some("this port speaks TLS; connect with TLS, for example trunkline generate --tls-ca FILE")
        }
        _ => None,
    }
}

/// Returns the answer to a client of another protocol, in that protocol.
fn answer(protocol: Protocol, line: &str) -> Vec<u8> {
    if protocol == Protocol::Http2 {
        // Settings without a setting; the last stream is 0, and the reason INADEQUATE_SECURITY: RFC 9113, sections 6.5, 6.8 and 7.
        let mut bytes = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
        bytes.extend(&(line.len() as u32 + 8).to_be_bytes()[1..]);
        bytes.extend([7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12]);
        bytes.extend(line.as_bytes());
        return bytes;
    }
    let n = line.len() + 1;
    let head =
        format!("HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: {n}");
    format!("{head}\r\n\r\n{line}\n").into_bytes()
}

/// Reads the first bytes of a client. Returns the connection with the bytes in front, or `None` if the client speaks another protocol
/// and got its answer.
///
/// # Errors
/// If the connection breaks.
pub(crate) async fn greet<S>(
    mut socket: S,
    port: Port,
    connection: &Connection,
    http1: bool,
) -> io::Result<Option<Begun<S>>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut first, mut filled) = ([0; METHOD_BYTES_MAX], 0);
    let protocol = loop {
        let n = socket.read(&mut first[filled..]).await?;
        filled += n;
        match protocol(&first[..filled]) {
            Some(protocol) => break protocol,
            None if n == 0 => return Ok(None),
            None => {}
        }
    };
    let Some(line) = refusal(port, protocol, http1) else {
        return Ok(Some(Begun { socket, protocol, first, filled, read: 0 }));
    };
    let (network, peer) = (connection.network(), connection.peer());
    network.strangers.log(network.clock, |connections| warn!(connections, %peer, "refusing a client: {line}"));
    let goodbye = async {
        socket.write_all(&answer(protocol, line)).await?;
        socket.shutdown().await?;
        tokio::io::copy(&mut (&mut socket).take(IGNORED_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // A client that does not read its answer gets none.
    let _ = timeout(GOODBYE, goodbye).await;
    Ok(None)
}

/// A connection whose first bytes were read already.
pub(crate) struct Begun<S> {
    socket: S,
    /// Protocol of the client.
    pub(crate) protocol: Protocol,
    first: [u8; METHOD_BYTES_MAX],
    filled: usize,
    /// Bytes of `first` that were read again.
    read: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let n = buf.remaining().min(self.filled - self.read);
        if n == 0 {
            return Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        let from = self.read;
        buf.put_slice(&self.first[from..from + n]);
        self.read += n;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_the_protocol() {
        for (bytes, expected) in [
            (&b""[..], None),
            (b"PRI", None),
            (b"PRI *", Some(Protocol::Http2)),
            (b"P", None),
            (b"POST", None),
            (b"POST /", Some(Protocol::Http1)),
            (b"PRINT /", Some(Protocol::Http1)),
            (b"GET / HTTP/1.1", Some(Protocol::Http1)),
            (b"\x16", None),
            (b"\x16\x03\x01", Some(Protocol::Tls)),
            (b"\x16\x02", Some(Protocol::Unknown)),
            (b" GET", Some(Protocol::Unknown)),
            (b"get /", Some(Protocol::Unknown)),
            (b"ABCDEFGHIJKLMNOP", Some(Protocol::Unknown)),
            (b"\0\0\0", Some(Protocol::Unknown)),
        ] {
            assert_eq!(protocol(bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn each_port_takes_its_own_protocol_and_leaves_unknown_bytes_to_it() {
        use Protocol::{Http1, Http2, Tls, Unknown};
        for (port, taken) in [(Port::Plain, Http2), (Port::Tls, Tls), (Port::Shaken, Http2)] {
            for http1 in [false, true] {
                let takes = |protocol| refusal(port, protocol, http1).is_none();
                assert!(takes(taken) && takes(Unknown), "{port:?}");
                assert_eq!(takes(Http1), http1 && port != Port::Tls, "{port:?}");
            }
        }
        assert!(refusal(Port::Plain, Tls, true).is_some() && refusal(Port::Tls, Http2, true).is_some());
    }
}
