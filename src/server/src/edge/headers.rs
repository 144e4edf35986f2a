//! Headers of a call: a limit on their size, and no more of them kept than somebody reads.
//!
//! Two limits bound the headers of a call. Beyond [`HEADER_BYTES_MAX`] the call ends with RESOURCE_EXHAUSTED, and no other call notices.
//! The HTTP/2 library bounds the memory of a block of headers: beyond [`HEADER_BYTES_KEPT`] it answers the call with HTTP status 431, and
//! beyond four times as many, or after 22 frames of one block (344 KiB in frames of 16 KiB), it ends the connection: a client may send one
//! byte for 4 KiB of headers, and decoding has to stop somewhere. Gateways cut off headers long before: most at 8 to 64 KiB.

use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};

/// Headers of a call, at most, bytes: each counts with its name, its value and [`OVERHEAD_BYTES`].
pub(crate) const HEADER_BYTES_MAX: usize = 16 << 10;
/// Headers of a call that are decoded and kept until the call is refused, bytes: sixteen times the limit, so that a mistake costs one call.
pub(crate) const HEADER_BYTES_KEPT: u32 = 16 * HEADER_BYTES_MAX as u32;
/// Bytes counted for each header besides name and value: RFC 9113, section 6.5.2.
const OVERHEAD_BYTES: usize = 32;
/// Headers read behind the gate.
const READ: [&str; 11] = [
    "content-type",
    "te",
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "accept",
    "x-request-id",
    "endpoint-load-metrics-format",
    "origin",
    "access-control-request-method",
    "access-control-request-headers",
];

/// Checks the size of a call's headers.
///
/// # Errors
/// RESOURCE_EXHAUSTED beyond the limit.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), Status> {
    let bytes = size(request);
    if bytes <= HEADER_BYTES_MAX {
        return Ok(());
    }
    let (most, overhead) = (HEADER_BYTES_MAX, OVERHEAD_BYTES);
    Err(Status::resource_exhausted(format!(
        "the headers of the call have {bytes} bytes; at most {most} are allowed, with {overhead} for each header in addition to name and value"
    )))
}

/// Returns the size of a call's headers, bytes.
fn size<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let text = |name: &str, value: Option<&str>| value.map_or(0, |value| name.len() + value.len() + OVERHEAD_BYTES);
    let of_line = text(":method", Some(request.method().as_str()))
        + text(":scheme", uri.scheme_str())
        + text(":authority", uri.authority().map(|authority| authority.as_str()))
        + text(":path", uri.path_and_query().map(PathAndQuery::as_str));
    let each = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + OVERHEAD_BYTES);
    of_line + each.sum::<usize>()
}

/// Drops the headers that nobody reads, and copies the others: a call may last for hours, and a header keeps the whole frame in memory that
/// brought it. The query of the path goes, too, unless somebody reads it.
pub(crate) fn trim<B>(request: &mut Request<B>, reads_query: bool) {
    let mut kept = HeaderMap::with_capacity(READ.len());
    for name in READ.map(HeaderName::from_static) {
        if let Some(Ok(value)) = request.headers().get(&name).map(|value| HeaderValue::from_bytes(value.as_bytes())) {
            kept.insert(name, value);
        }
    }
    *request.headers_mut() = kept;
    let uri = request.uri();
    let whole = uri.path_and_query().map(PathAndQuery::as_str).filter(|_| reads_query);
    if let Ok(path) = Uri::try_from(whole.unwrap_or(uri.path())) {
        *request.uri_mut() = path;
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    /// Size of a call to `/a/B` without a header.
    const EMPTY: usize = (7 + 4 + 32) + (7 + 4 + 32) + (10 + 1 + 32) + (5 + 4 + 32);

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::post("http://h/a/B");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn each_header_counts_with_its_overhead_up_to_the_limit() {
        assert_eq!(size(&request(&[])), EMPTY);
        assert_eq!(size(&request(&[("x-a", ""), ("x-a", "12")])), EMPTY + 35 + 37);
        let room = HEADER_BYTES_MAX - EMPTY - "x-a".len() - OVERHEAD_BYTES;
        assert!(check(&request(&[("x-a", &"v".repeat(room))])).is_ok());
        let status = check(&request(&[("x-a", &"v".repeat(room + 1))])).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let line = "the headers of the call have 16385 bytes; at most 16384 are allowed, with 32 for each header in addition to name and value";
        assert_eq!(status.message(), line);
        assert!(check(&request(&vec![("x-a", ""); 5_000])).is_err(), "many small ones");
        let path = format!("http://h/a/{}", "b".repeat(20_000));
        assert!(check(&Request::post(path).body(()).unwrap()).is_err(), "a long path");
    }

    #[test]
    fn headers_that_nobody_reads_are_dropped() {
        let token = ("authorization", "Bearer 0123456789");
        let mut call = request(&[("grpc-timeout", "1S"), ("x-a", "1"), token, ("te", "trailers")]);
        *call.uri_mut() = "http://h/a/B?query".parse().unwrap();
        trim(&mut call, true);
        assert_eq!(call.uri(), "/a/B?query");
        trim(&mut call, false);
        assert_eq!(call.uri(), "/a/B");
        let kept: Vec<_> = call.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(kept, [("te", &b"trailers"[..]), ("grpc-timeout", b"1S")]);
    }
}
