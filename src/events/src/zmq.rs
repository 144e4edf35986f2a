//! ZeroMQ sockets, with the frames of vLLM's publisher.
//!
//! | socket | frames |
//! |---|---|
//! | PUB | topic, number of the batch as 8 bytes big-endian, batch |
//! | replay, asked with a number | empty, topic, number, batch for each; at the end empty, empty, -1, empty |
//! | snapshot, asked with `snapshot` | empty, number of the last batch (-1 before the first, -2 if there is no snapshot), publisher, batches |

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tracing::{debug, info};
use zeromq::{
    PubSocket, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage, ZmqResult,
};

use crate::endpoint::Endpoint;
use crate::error::PublisherError;
use crate::event::Batch;
use crate::msgpack::{Form, PublisherId, encode};
use crate::shared::{Shared, Source, lock, now_s};
use crate::stream::Stream;

/// Number of the frame at the end of a replay.
const END: [u8; 8] = (-1_i64).to_be_bytes();
/// Number instead of a snapshot that is too large.
const UNAVAILABLE: [u8; 8] = (-2_i64).to_be_bytes();
/// Bytes of a snapshot, at most: what llm-d reads.
const SNAPSHOT_BYTES_MAX: usize = 256 << 20;
/// Replays and snapshots under way at a time, of one socket.
const ANSWERS_MAX: usize = 4;
/// Time after which a reader of an answer that does not read is given up.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Time for a connection to a subscriber that listens.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// The sockets of all engines.
pub(crate) struct Sockets(Vec<Option<Publishing>>);

struct Publishing {
    socket: PubSocket,
    topic: Bytes,
    wire: Wire,
}

/// Form of batches on the wire.
#[derive(Clone, Copy)]
struct Wire {
    form: Form,
    /// Identity that batches carry, if there are snapshots.
    publisher: Option<PublisherId>,
}

impl Wire {
    fn encode(&self, batch: &Batch) -> Bytes {
        encode(batch, self.form, self.publisher.as_ref()).into()
    }
}

impl Sockets {
    /// Opens the sockets of all engines. Returns them with their addresses.
    pub async fn open(shared: &Arc<Shared>) -> Result<(Self, Vec<Source>), PublisherError> {
        let (mut sockets, mut sources) = (Vec::new(), Vec::new());
        let settings = &shared.settings;
        for (rank, stream) in (0..).zip(shared.streams()) {
            let wire =
                Wire { form: settings.form, publisher: settings.snapshot_endpoint.as_ref().map(|_| lock(stream).id()) };
            let topic = Bytes::copy_from_slice(settings.topic.as_bytes());
            let mut source = Source { rank, ..Source::default() };
            let answers = |is_replay| {
                let (shared, stream, topic) = (shared.clone(), stream.clone(), topic.clone());
                Answers { shared, stream, topic, wire, is_replay }
            };
            if let Some(endpoint) = &settings.replay_endpoint {
                let (socket, at) = router(endpoint, rank).await?;
                source.replay_endpoint = Some(at);
                tokio::spawn(answer(socket, answers(true)));
            }
            if let Some(endpoint) = &settings.snapshot_endpoint {
                let (socket, at) = router(endpoint, rank).await?;
                source.snapshot_endpoint = Some(at);
                tokio::spawn(answer(socket, answers(false)));
            }
            let Some(endpoint) = &settings.endpoint else {
                sockets.push(None);
                continue;
            };
            let mut socket = PubSocket::new();
            let at = Endpoint::parse(endpoint, rank)?;
            source.endpoint = match at.is_ours() {
                true => socket.bind(&at.text()).await.map(|at| at.to_string()),
                false => connected(socket.connect(&at.text())).await.map(|()| at.text()),
            }
            .map_err(|err| PublisherError::Socket { endpoint: at.text(), message: err.to_string() })?;
            info!(rank, endpoint = source.endpoint, "publishing cache events");
            sockets.push(Some(Publishing { socket, topic, wire }));
            sources.push(source);
        }
        Ok((Self(sockets), sources))
    }

    /// Publishes a batch of an engine. A subscriber who does not read loses batches, which the numbers tell it.
    pub async fn send(&mut self, rank: usize, batch: &Batch) {
        let Some(Some(Publishing { socket, topic, wire })) = self.0.get_mut(rank) else { return };
        let frames = [topic.clone(), Bytes::copy_from_slice(&batch.seq.to_be_bytes()), wire.encode(batch)];
        if let Err(err) = socket.send(message(frames)).await {
            debug!("a batch of cache events was not sent: {err}");
        }
    }
}

/// Waits for a connection for as long as a start may take.
async fn connected(connecting: impl Future<Output = ZmqResult<()>>) -> ZmqResult<()> {
    let late = |_| Err(ZmqError::Other("nobody answers there"));
    tokio::time::timeout(CONNECT_TIME, connecting).await.unwrap_or_else(late)
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let frames: Vec<Bytes> = frames.into_iter().collect();
    ZmqMessage::try_from(frames).expect("there is a frame")
}

async fn router(endpoint: &str, rank: u32) -> Result<(RouterSocket, String), PublisherError> {
    let at = Endpoint::parse(endpoint, rank)?.text();
    let mut socket = RouterSocket::new();
    let bound = socket.bind(&at).await;
    let bound = bound.map_err(|err| PublisherError::Socket { endpoint: at, message: err.to_string() })?;
    Ok((socket, bound.to_string()))
}

/// What a ROUTER socket answers with.
struct Answers {
    shared: Arc<Shared>,
    stream: Arc<Mutex<Stream>>,
    topic: Bytes,
    wire: Wire,
    is_replay: bool,
}

/// Answers the requests of a ROUTER socket, for ever. Others than the socket's are ignored.
async fn answer(socket: RouterSocket, answers: Answers) {
    let (sender, mut requests) = socket.split();
    let (answers, places) = (Arc::new(answers), Arc::new(Semaphore::new(ANSWERS_MAX)));
    while let Ok(request) = requests.recv().await {
        let Some((to, asked)) = envelope(request) else { continue };
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (sender, answers) = (sender.clone(), answers.clone());
        tokio::spawn(async move {
            let is_sent = tokio::time::timeout(ANSWER_TIME, answers.send(sender, &to, &asked)).await;
            if is_sent.is_err() {
                debug!("a subscriber did not read its replay or snapshot");
            }
            drop(place);
        });
    }
}

/// Takes a request apart: the frames that lead back to the sender, and the last frame.
fn envelope(request: ZmqMessage) -> Option<(Vec<Bytes>, Bytes)> {
    let mut frames = request.into_vec();
    let asked = frames.pop()?;
    let is_envelope = matches!(&frames[..], [_]) || matches!(&frames[..], [_, empty] if empty.is_empty());
    is_envelope.then(|| (vec![frames[0].clone(), Bytes::new()], asked))
}

impl Answers {
    async fn send(&self, mut sender: RouterSendHalf, to: &[Bytes], asked: &[u8]) {
        if !self.is_replay {
            if asked == b"snapshot" {
                let frames = self.snapshot();
                let _ = sender.send(message(to.iter().cloned().chain(frames))).await;
            }
            return;
        }
        let Ok(from) = asked.try_into().map(u64::from_be_bytes) else { return };
        let batches = lock(&self.stream).replay(from);
        for batch in batches {
            let seq = Bytes::copy_from_slice(&batch.seq.to_be_bytes());
            let frames = [self.topic.clone(), seq, self.wire.encode(&batch)];
            if sender.send(message(to.iter().cloned().chain(frames))).await.is_err() {
                return;
            }
        }
        let end = [Bytes::new(), Bytes::from_static(&END), Bytes::new()];
        let _ = sender.send(message(to.iter().cloned().chain(end))).await;
    }

    /// Returns the frames of a snapshot.
    fn snapshot(&self) -> Vec<Bytes> {
        let (id, next, chunks) = {
            let stream = lock(&self.stream);
            (stream.id(), stream.next(), stream.snapshot(now_s(), &*self.shared))
        };
        let publisher = Bytes::copy_from_slice(&id);
        let cut = i64::try_from(next).map_or(i64::MAX, |next| next - 1).to_be_bytes();
        let mut frames = vec![Bytes::copy_from_slice(&cut), publisher.clone()];
        let wire = Wire { publisher: None, ..self.wire };
        let mut bytes = 0;
        for chunk in chunks {
            frames.push(wire.encode(&chunk));
            bytes += frames.last().map_or(0, Bytes::len);
            if bytes > SNAPSHOT_BYTES_MAX {
                return vec![Bytes::from_static(&UNAVAILABLE), publisher];
            }
        }
        frames
    }
}
