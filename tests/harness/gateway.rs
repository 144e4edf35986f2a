//! One HTTP/2 connection with the calls of many users on it, as a gateway has: frames go out as the test wants, and answers are put together by
//! call.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use fluke_hpack::Decoder;
use prost::Message;
use tonic::Code;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::{GenerateRequest, GenerateResponse};

use crate::raw::{Frame, RawClient};

/// Path of the call that generates.
pub const GENERATE: &str = "/trunkline.v1.Inference/Generate";
/// Bytes that the server may send of each call before the client reads them. Clients that read are given more with the window of the connection
/// alone, so answers MUST be shorter.
const CALL_BYTES: u32 = 16 << 10;
/// Bytes that the server may send of all calls, more than any test needs.
const WINDOW_BYTES: u32 = 1 << 28;
/// Bytes that a client may send before the server has said more.
const ROOM_BYTES: u64 = (1 << 16) - 1;
/// Beginning of a message: a flag, and four bytes of length.
const PREFIX_BYTES: usize = 5;
const DATA: u8 = 0;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Answer to a call so far.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
    /// Reason of a reset.
    pub reset: Option<u32>,
    /// `true` once nothing more is to come.
    pub has_ended: bool,
}

impl Reply {
    /// Returns a header or trailer; empty if the answer has none of the name.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Returns the gRPC status, or `None` for an answer without one.
    pub fn code(&self) -> Option<Code> {
        self.headers.get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()))
    }

    /// Returns the messages of an answer that generates.
    fn messages(&self) -> Vec<GenerateResponse> {
        let (mut rest, mut messages) = (&self.body[..], Vec::new());
        while rest.len() >= PREFIX_BYTES {
            let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
            let Some(message) = rest.get(PREFIX_BYTES..PREFIX_BYTES + length) else { break };
            messages.push(GenerateResponse::decode(message).expect("a message of the protocol"));
            rest = &rest[PREFIX_BYTES + length..];
        }
        messages
    }

    /// Returns the text, and the tokens of the prompt that were cached.
    pub fn text_and_cached(&self) -> (String, u32) {
        let (mut text, mut cached) = (String::new(), 0);
        for message in self.messages() {
            match message.event {
                Some(Event::Chunk(chunk)) => text.push_str(&chunk.text),
                Some(Event::Finish(finish)) => cached = finish.usage.unwrap_or_default().cached_tokens,
                None => {}
            }
        }
        (text, cached)
    }
}

/// A connection, and the answers to the calls on it.
pub struct Gateway {
    /// Sends the frames.
    pub raw: RawClient,
    decoder: Decoder<'static>,
    /// Headers of a call that take several frames, so far.
    block: Vec<u8>,
    replies: BTreeMap<u32, Reply>,
    /// Bytes of messages that the server has room for, as far as [`Gateway::fill`] sends them.
    room: u64,
    /// Reason for which the server asked for another connection, or announced the end of this one.
    pub goodbye: Option<u32>,
}

impl Gateway {
    /// Connects to a server.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn connect(to: SocketAddr) -> Self {
        let from = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut raw = RawClient::connect(from, to, CALL_BYTES).await.expect("the server listens");
        raw.window(0, WINDOW_BYTES).await.expect("the server reads");
        Self {
            raw,
            decoder: Decoder::new(),
            block: Vec::new(),
            replies: BTreeMap::new(),
            room: ROOM_BYTES,
            goodbye: None,
        }
    }

    /// Sends a request and returns its stream once the server has accepted it.
    pub async fn open(&mut self, request: &GenerateRequest) -> u32 {
        self.open_call(GENERATE, request).await
    }

    /// Sends a call and returns its stream once the answer has begun.
    pub async fn open_call(&mut self, path: &str, message: &impl Message) -> u32 {
        let stream = self.raw.call(path, message).await.expect("the server reads");
        self.begun(stream).await;
        stream
    }

    /// Reads until the answer to a call has begun, with status OK.
    pub async fn begun(&mut self, stream: u32) {
        self.read(|replies| replies.get(&stream).is_some_and(|reply| !reply.headers.is_empty() || reply.has_ended))
            .await;
        let reply = &self.replies[&stream];
        assert!(matches!(reply.code(), None | Some(Code::Ok)) && reply.reset.is_none(), "{reply:?}");
    }

    /// Reads until a call has ended, and returns its answer.
    pub async fn ended(&mut self, stream: u32) -> Reply {
        self.read(|replies| replies.get(&stream).is_some_and(|reply| reply.has_ended)).await;
        self.replies[&stream].clone()
    }

    /// Reads until the server has asked for another connection, for no error.
    pub async fn is_asked_for_another(&mut self) {
        while self.goodbye.is_none() {
            self.next().await;
        }
        assert_eq!(self.goodbye, Some(0));
    }

    /// Sends bytes of a call's message again and again, as long as the server has room for messages of this connection.
    pub async fn fill(&mut self, stream: u32, bytes: &[u8]) {
        while self.room >= bytes.len() as u64 {
            self.room -= bytes.len() as u64;
            self.raw.data(stream, bytes, false).await.expect("the server reads");
        }
    }

    /// Reads until the server has room for so many bytes of messages.
    pub async fn has_room(&mut self, bytes: u64) {
        while self.room < bytes {
            self.next().await;
        }
    }

    /// Reads until the answers are as wanted.
    async fn read(&mut self, wanted: impl Fn(&BTreeMap<u32, Reply>) -> bool) {
        while !wanted(&self.replies) {
            self.next().await;
        }
    }

    /// Reads a frame.
    ///
    /// # Panics
    /// If the server closes the connection.
    async fn next(&mut self) {
        let goodbye = self.goodbye;
        let frame = self.raw.frame().await.unwrap_or_else(|| panic!("the connection ended: {goodbye:?}"));
        self.take(&frame);
    }

    fn take(&mut self, frame: &Frame) {
        let code =
            |at: usize| frame.payload.get(at..at + 4).map(|code| u32::from_be_bytes(code.try_into().expect("four")));
        if frame.kind == GO_AWAY {
            self.goodbye = code(4);
            return;
        }
        if frame.stream == 0 {
            if frame.kind == WINDOW_UPDATE {
                self.room += u64::from(code(0).unwrap_or(0));
            }
            return;
        }
        let reply = self.replies.entry(frame.stream).or_default();
        if frame.is_reset() {
            (reply.reset, reply.has_ended) = (code(0), true);
        } else if frame.kind == DATA {
            reply.body.extend(&frame.payload);
        } else if frame.is_headers() || frame.kind == CONTINUATION {
            self.block.extend(&frame.payload);
            if frame.flags & END_HEADERS != 0 {
                let block = std::mem::take(&mut self.block);
                let headers = self.decoder.decode(&block).expect("headers that can be read");
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                reply.headers.extend(headers.into_iter().map(|(name, value)| (text(name), text(value))));
            }
        }
        let ends = (frame.is_headers() || frame.kind == DATA) && frame.flags & END_STREAM != 0;
        reply.has_ended |= ends;
    }
}
