//! Bodies: JSON of requests, bounded, and answers of JSON and of events.

use std::error::Error;

use axum::body::{Body, to_bytes};
use axum::http::Response;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;
use trunkline_quote::of_parser;
use trunkline_server::Front;

use crate::failure::Failure;

/// Maximum number of bytes of a token id in a list of JSON: ten digits and the characters between two.
const ID_BYTES_MAX: u64 = 12;
/// Bytes of a byte of text in JSON, at most, but for control characters: `\u00e9` has six for two, and `\\` has two for one.
const TEXT_BYTES_MAX: u64 = 3;
/// Maximum number of bytes of a body besides the prompt.
const OTHER_BYTES_MAX: u64 = 1 << 20;

/// Returns the longest body, bytes: a prompt that fills the context, as text or as token ids, and the other fields.
fn bytes_max(front: &Front) -> Result<usize, Status> {
    let each = ID_BYTES_MAX.max(TEXT_BYTES_MAX * u64::from(front.tokenizer()?.longest_piece()));
    let bytes = u64::from(front.max_context()?).saturating_mul(each).saturating_add(OTHER_BYTES_MAX);
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Reads a body.
///
/// # Errors
/// If it is too long, does not arrive in time, or is not what `T` says; the failure names the field.
pub(crate) async fn read<T: DeserializeOwned>(front: &Front, body: Body) -> Result<T, Failure> {
    parse(&bytes(front, body).await?)
}

/// Reads the bytes of a body.
///
/// # Errors
/// If it is too long, or does not arrive in time.
pub(crate) async fn bytes(front: &Front, body: Body) -> Result<Bytes, Failure> {
    let most = bytes_max(front).map_err(|status| Failure::of(&status))?;
    to_bytes(body, most).await.map_err(|err| unread(&err, most))
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|err| {
        let (param, message) =
            (err.path().to_string().trim_end_matches(".?").to_owned(), of_parser(&err.inner().to_string()));
        match param.as_str() {
            "." | "" => Failure::invalid("", format!("the body is not the JSON of this request: {message}")),
            param => Failure::invalid(param, format!("{param}: {message}")),
        }
    })?;
    json.end().map_err(|err| Failure::invalid("", format!("the body has something after its JSON: {err}")))?;
    Ok(parsed)
}

/// Returns an answer of JSON.
pub(crate) fn json(bytes: Bytes) -> Response<Body> {
    with_type(Body::from(bytes), "application/json")
}

/// Returns an answer with a value.
pub(crate) fn json_of(value: &impl Serialize) -> Response<Body> {
    json(serde_json::to_vec(value).unwrap_or_default().into())
}

/// Returns an answer of server-sent events.
pub(crate) fn stream<B>(events: B) -> Response<Body>
where
    B: http_body::Body<Data = Bytes, Error = Status> + Send + 'static,
{
    let mut response = with_type(Body::new(events), "text/event-stream; charset=utf-8");
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy such as nginx is not to gather events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn with_type(body: Body, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns the failure of a body that could not be read.
fn unread(err: &axum::Error, most: usize) -> Failure {
    let mut source: Option<&(dyn Error + 'static)> = Some(err);
    while let Some(err) = source {
        if let Some(status) = err.downcast_ref::<Status>() {
            return Failure::of_body(status);
        }
        source = err.source();
    }
    if err.to_string().contains("length limit") {
        return Failure::too_large(format!(
            "the body is longer than {most} bytes, which a prompt that fills the context takes"
        ));
    }
    Failure::invalid("", "the body did not arrive whole")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Asked {
        #[serde(rename = "n")]
        _n: Option<u32>,
    }

    #[test]
    fn a_wrong_body_gets_one_line_with_the_field() {
        let json = |body: &[u8]| parse::<Asked>(body).unwrap_err().json();
        for (body, part) in [
            (&br#"{"n": -1}"#[..], r#""message":"n: invalid value: integer `-1`, expected u32 at line 1 column 8""#),
            (br#"{"n": 1"#, "EOF while parsing an object"),
            (br#"{"n": 1} x"#, "something after its JSON"),
            (b"\xff", "expected value"),
            (b"{\"n\": \"\xff\"}", "n: "),
        ] {
            let json = json(body);
            assert!(json.contains(part), "{json}");
        }
        let deep = format!("{{\"x\": {}", "[".repeat(1_000_000));
        assert!(json(deep.as_bytes()).contains("EOF"), "unknown fields take no stack");
        assert!(parse::<Asked>(br#"{"n": null, "unknown": [{}]}"#).is_ok());
    }
}
