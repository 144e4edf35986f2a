//! A client of `/v1/completions` that does no more than it must: it counts the events of a stream, and reads the last.

use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Load, Seen, prompt};
use crate::http_client;

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// Bytes of an answer's end that are kept, in which the usage is.
const END_BYTES: usize = 2 << 10;

/// Reads stream number `at` to its end.
///
/// # Errors
/// If the server cannot be reached, or its answer is not a stream that ends with the usage.
pub(super) async fn read(address: &str, load: &Load, at: u32) -> anyhow::Result<Seen> {
    let begin = Instant::now();
    let mut connection = TcpStream::connect(address).await.context("cannot connect")?;
    connection.set_nodelay(true)?;
    connection.write_all(request(address, load, at).as_bytes()).await?;
    let (mut seen, mut counter, mut end) = (Seen::default(), Events::default(), Vec::new());
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let n = connection.read(&mut bytes).await?;
        if n == 0 {
            break;
        }
        let events = counter.count(&bytes[..n]);
        if seen.messages == 0 && events > 0 {
            seen.ttft_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        seen.messages += events;
        end.extend_from_slice(&bytes[..n]);
        end.drain(..end.len().saturating_sub(END_BYTES));
    }
    let end = String::from_utf8_lossy(&end);
    seen.tokens =
        http_client::usage(&end, "completion_tokens").with_context(|| format!("an answer without its usage: {end}"))?;
    // The usage and the mark of the end are events too.
    ensure!(seen.messages > 2, "an answer without tokens");
    seen.messages -= 2;
    Ok(seen)
}

/// Returns the metrics of a server.
///
/// # Errors
/// If the server cannot be reached.
pub(super) async fn metrics(address: &str) -> anyhow::Result<String> {
    let mut connection = TcpStream::connect(address).await.context("cannot connect")?;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn request(address: &str, load: &Load, at: u32) -> String {
    let body = json!({
        "prompt": prompt(load, at),
        "max_tokens": load.tokens,
        "ignore_eos": true,
        "logprobs": load.logprobs,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    http_client::request(address, "/v1/completions", &body)
}

/// Counts events by the empty lines behind them.
#[derive(Default)]
struct Events {
    /// The bytes so far end with a line's end.
    at_line_end: bool,
}

impl Events {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut n = 0;
        for byte in bytes {
            let is_line_end = *byte == b'\n';
            n += u64::from(is_line_end && self.at_line_end);
            self.at_line_end = is_line_end && !self.at_line_end;
        }
        n
    }
}
