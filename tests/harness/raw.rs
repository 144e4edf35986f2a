//! A client that speaks HTTP/2 frame by frame, to misbehave as no library does. RFC 9113; headers are HPACK literals (RFC 7541).

use std::io;
use std::net::SocketAddr;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Beginning of every connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// The setting that bounds unread bytes of a stream.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// Reason of a reset: the stream is not needed any more.
const CANCEL: u32 = 8;

/// Maximum number of bytes of the contents of a frame.
pub const FRAME_BYTES: usize = 16 << 10;

/// A frame from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Type of the frame: 0 is data, 1 headers, 3 a reset, 7 the end of the connection.
    pub kind: u8,
    /// Flags of the frame: 1 ends the stream.
    pub flags: u8,
    /// Stream of the frame; 0 for the connection.
    pub stream: u32,
    /// Contents of the frame.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns `true` for the reset of a stream.
    pub fn is_reset(&self) -> bool {
        self.kind == RST_STREAM
    }

    /// Returns `true` for the headers or trailers of a stream.
    pub fn is_headers(&self) -> bool {
        self.kind == HEADERS
    }
}

/// A connection of frames.
pub struct RawClient {
    socket: TcpStream,
    next_stream: u32,
    authority: String,
}

impl RawClient {
    /// Opens a socket from a local address, with a free port, and sends nothing.
    ///
    /// # Errors
    /// If the server cannot be reached from that address.
    pub async fn silent(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(from)?;
        socket.connect(to).await
    }

    /// Connects; the server may send `window` bytes of each stream before the client reads.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn connect(from: SocketAddr, to: SocketAddr, window: u32) -> io::Result<Self> {
        let mut socket = Self::silent(from, to).await?;
        socket.write_all(PREFACE).await?;
        let mut client = Self { socket, next_stream: 1, authority: to.to_string() };
        let mut settings = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        settings.extend(window.to_be_bytes());
        client.send(SETTINGS, 0, 0, &settings).await?;
        Ok(client)
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.socket.write_all(&frame).await
    }

    /// Sends the headers of a call, for example of `/trunkline.v1.Inference/Generate`, and returns its stream.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn headers(&mut self, path: &str) -> io::Result<u32> {
        let block = self.header_block(path);
        self.begin(&block, END_HEADERS).await
    }

    /// Begins the headers of a call and does not end them.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn endless_headers(&mut self, path: &str) -> io::Result<u32> {
        let block = self.header_block(path);
        self.begin(&block, 0).await
    }

    /// Sends the headers of a call with more of them behind the usual ones, in frames of up to `cut` bytes, and returns its stream.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn headers_with(&mut self, path: &str, more: &[u8], cut: usize) -> io::Result<u32> {
        let block = [self.header_block(path), more.to_vec()].concat();
        self.headers_of(&block, cut).await
    }

    /// Sends a block of headers in frames of up to `cut` bytes as the beginning of a call, and returns its stream.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn headers_of(&mut self, block: &[u8], cut: usize) -> io::Result<u32> {
        let stream = self.next_stream;
        self.next_stream += 2;
        self.block(stream, 0, block, cut).await?;
        Ok(stream)
    }

    /// Sends headers after the message of a call, in frames of up to 16 KiB.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn trailers(&mut self, stream: u32, block: &[u8]) -> io::Result<()> {
        self.block(stream, END_STREAM, block, FRAME_BYTES).await
    }

    async fn block(&mut self, stream: u32, flags: u8, block: &[u8], cut: usize) -> io::Result<()> {
        let n = block.chunks(cut).len();
        for (at, part) in block.chunks(cut).enumerate() {
            let kind = if at == 0 { HEADERS } else { CONTINUATION };
            let ends = if at + 1 == n { END_HEADERS } else { 0 };
            self.send(kind, ends | if at == 0 { flags } else { 0 }, stream, part).await?;
        }
        Ok(())
    }

    /// Sends more headers of a call begun with [`RawClient::endless_headers`].
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn continuation(&mut self, stream: u32, bytes: usize) -> io::Result<()> {
        let mut block = Vec::new();
        literal(&mut block, "x-flood", &"x".repeat(bytes.min(100)));
        let n = bytes.div_ceil(block.len());
        self.send(CONTINUATION, 0, stream, &block.repeat(n)).await
    }

    /// Sends bytes of a call's message.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn data(&mut self, stream: u32, bytes: &[u8], ends: bool) -> io::Result<()> {
        self.send(DATA, if ends { END_STREAM } else { 0 }, stream, bytes).await
    }

    /// Sends a whole call of one message, of at most 16 KiB, and returns its stream.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn call(&mut self, path: &str, message: &impl Message) -> io::Result<u32> {
        let stream = self.headers(path).await?;
        self.data(stream, &framed(message), true).await?;
        Ok(stream)
    }

    /// Resets a stream.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn reset(&mut self, stream: u32) -> io::Result<()> {
        self.send(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()).await
    }

    /// Lets the server send more bytes of a stream, or of the connection if `stream` is 0.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub async fn window(&mut self, stream: u32, bytes: u32) -> io::Result<()> {
        self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()).await
    }

    /// Reads the next frame; `None` if the server has closed the connection. Settings and pings are acknowledged.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            let mut head = [0; 9];
            self.socket.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; length as usize];
            self.socket.read_exact(&mut payload).await.ok()?;
            let frame = Frame { kind: head[3], flags: head[4], stream, payload };
            match (frame.kind, frame.flags & ACK) {
                (SETTINGS, 0) => self.send(SETTINGS, ACK, 0, &[]).await.ok()?,
                (PING, 0) => self.send(PING, ACK, 0, &frame.payload).await.ok()?,
                (SETTINGS | PING, _) => {}
                _ => return Some(frame),
            }
        }
    }

    async fn begin(&mut self, block: &[u8], flags: u8) -> io::Result<u32> {
        let stream = self.next_stream;
        self.next_stream += 2;
        self.send(HEADERS, flags, stream, block).await?;
        Ok(stream)
    }

    /// Returns the usual headers of a call.
    pub fn header_block(&self, path: &str) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", &self.authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            literal(&mut block, name, value);
        }
        block
    }
}

/// Returns the bytes of a call's message.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend((message.encoded_len() as u32).to_be_bytes());
    bytes.extend(message.encode_to_vec());
    bytes
}

/// Adds a header as a literal without indexing.
pub fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        length(block, text.len());
        block.extend(text.bytes());
    }
}

/// Adds the length of a text: RFC 7541, section 5.1, with a prefix of seven bits.
fn length(block: &mut Vec<u8>, n: usize) {
    const PREFIX: usize = 127;
    if n < PREFIX {
        return block.push(n as u8);
    }
    block.push(PREFIX as u8);
    let mut rest = n - PREFIX;
    while rest >= 128 {
        block.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
}
