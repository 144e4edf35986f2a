//! The least that an HTTP server of axum does for the streams of a load: it sends events of the door's size, which one thread hands to all streams,
//! a token each, as steps of a worker would.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Response, header};
use axum::routing::post;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::Load;

/// An event of the door, for one token.
const EVENT: &str = r#"data: {"id":"cmpl-7b0e9f54c6a1","object":"text_completion","created":1764435000,"model":"null","choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null}]}"#;

/// A stream under way.
struct Stream {
    to: mpsc::UnboundedSender<Bytes>,
    /// Tokens sent, and tokens in all.
    sent: u32,
    tokens: u32,
}

impl Stream {
    /// Sends a token, written again as a server's would be; returns whether there are more.
    fn send(&mut self) -> bool {
        self.sent += 1;
        let mut event = format!("{EVENT}\n\n");
        let more = self.sent < self.tokens;
        if !more {
            let _ = write!(event, "data: {{\"usage\":{{\"completion_tokens\":{}}}}}\n\ndata: [DONE]\n\n", self.tokens);
        }
        self.to.send(event.into()).is_ok() && more
    }
}

/// Streams that have begun, and not been handed to the thread that feeds them.
type Begun = Arc<Mutex<Vec<Stream>>>;

/// Starts the server; returns its address.
///
/// # Errors
/// If there is no port or no thread.
pub(super) async fn start(load: &Load) -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    let (begun, load) = (Begun::default(), *load);
    let streams = Arc::clone(&begun);
    thread::Builder::new()
        .name("core".into())
        .spawn(move || feed(&streams, load.step))
        .context("cannot start threads")?;
    let answer = move |State(begun): State<Begun>, _: Bytes| async move { answer(&begun, load.tokens) };
    let routes = Router::new().route("/v1/completions", post(answer)).with_state(begun);
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(address)
}

fn answer(begun: &Begun, tokens: u32) -> Response<Body> {
    let (to, events) = mpsc::unbounded_channel();
    begun.lock().unwrap_or_else(PoisonError::into_inner).push(Stream { to, sent: 0, tokens });
    let body = Body::from_stream(UnboundedReceiverStream::new(events).map(Ok::<_, std::convert::Infallible>));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    response
}

/// Feeds all streams, a token in each step, until the server is gone.
fn feed(begun: &Begun, step: Duration) {
    let mut streams: Vec<Stream> = Vec::new();
    while Arc::strong_count(begun) > 1 {
        thread::sleep(step.max(Duration::from_micros(1)));
        streams.append(&mut begun.lock().unwrap_or_else(PoisonError::into_inner));
        streams.retain_mut(Stream::send);
    }
}
