//! A client of HTTP/1.1 that writes and reads its bytes itself, to misbehave as no library does.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A connection.
pub struct HttpClient(pub BufReader<TcpStream>);

/// Answer to a request.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// Status of the answer.
    pub status: u16,
    /// Lines of the head after the first, in lower case.
    pub head: String,
    /// The body, of chunks or whole.
    pub body: String,
}

impl HttpAnswer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The data of the events in the body.
    pub fn events(&self) -> Vec<String> {
        events(&self.body)
    }
}

/// Returns the data of server-sent events.
pub fn events(body: &str) -> Vec<String> {
    body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// Returns a request with a body of JSON; `headers` are lines with their ends.
pub fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let n = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {n}\r\n\r\n{body}")
}

impl HttpClient {
    /// Connects.
    pub async fn connect(addr: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(addr).await.expect("the server listens")))
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A server that has refused the request already may have closed the connection.
        let _ = self.0.get_mut().write_all(bytes.as_ref()).await;
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let n = self.0.read_line(&mut line).await.ok()?;
        (n > 0).then(|| line.trim_end().to_owned())
    }

    /// Reads the status and the head of an answer; `None` if the connection ends before.
    pub async fn head(&mut self) -> Option<(u16, String)> {
        let status = self.line().await?.split(' ').nth(1)?.parse().ok()?;
        let mut head = String::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Some((status, head.to_lowercase()));
            }
            head += &line;
            head.push('\n');
        }
    }

    /// Reads a chunk of a body; `None` at the end, or if the connection ends.
    pub async fn chunk(&mut self) -> Option<String> {
        let n = usize::from_str_radix(&self.line().await?, 16).ok()?;
        let mut bytes = vec![0; n + 2];
        self.0.read_exact(&mut bytes).await.ok()?;
        bytes.truncate(n);
        (n > 0).then(|| String::from_utf8(bytes).expect("the body is UTF-8"))
    }

    /// Reads a whole answer; `None` if the connection ends before.
    pub async fn answer(&mut self) -> Option<HttpAnswer> {
        let (status, head) = self.head().await?;
        let mut answer = HttpAnswer { status, head, body: String::new() };
        if let Some(n) = answer.header("content-length").and_then(|n| n.parse().ok()) {
            let mut bytes = vec![0; n];
            self.0.read_exact(&mut bytes).await.ok()?;
            answer.body = String::from_utf8(bytes).expect("the body is UTF-8");
        } else {
            while let Some(chunk) = self.chunk().await {
                answer.body += &chunk;
            }
        }
        Some(answer)
    }

    /// Sends a request and reads the answer.
    pub async fn ask(&mut self, method: &str, path: &str, headers: &str, body: &str) -> HttpAnswer {
        self.send(request(method, path, headers, body)).await;
        self.answer().await.expect("the server answers")
    }
}

/// Posts JSON on a connection of its own.
pub async fn post(addr: SocketAddr, path: &str, body: &str) -> HttpAnswer {
    HttpClient::connect(addr).await.ask("POST", path, "", body).await
}

/// Gets a path on a connection of its own.
pub async fn get(addr: SocketAddr, path: &str) -> HttpAnswer {
    HttpClient::connect(addr).await.ask("GET", path, "", "").await
}
