//! Requests over HTTP/1.1, and the usage at the end of their answers.

use serde_json::Value;

/// Returns a request with a body of JSON, after whose answer the server closes the connection.
pub fn request(address: &str, path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns a number of the usage in the last event of a stream, as `completion_tokens`; `None` if the event has none.
pub fn usage(end: &str, number: &str) -> Option<u64> {
    let event = end.lines().filter_map(|line| line.strip_prefix("data: {")).next_back()?;
    let event: Value = serde_json::from_str(&format!("{{{event}")).ok()?;
    event["usage"][number].as_u64()
}
