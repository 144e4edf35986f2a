//! Failures in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`, with the HTTP status that fits a status of gRPC.
//!
//! | status of gRPC | HTTP | type |
//! |---|---|---|
//! | INVALID_ARGUMENT, OUT_OF_RANGE | 400 | invalid_request_error |
//! | UNAUTHENTICATED | 401 | authentication_error |
//! | PERMISSION_DENIED | 403 | permission_error |
//! | NOT_FOUND, UNIMPLEMENTED | 404 | not_found_error |
//! | ALREADY_EXISTS | 409 | conflict_error |
//! | RESOURCE_EXHAUSTED | 429, with `retry-after` | rate_limit_error |
//! | UNAVAILABLE, CANCELLED | 503, with `retry-after` | service_unavailable_error |
//! | DEADLINE_EXCEEDED | 504 | timeout_error |
//! | others | 500 | internal_server_error |
//!
//! A body that is too long is 413, one that does not arrive in time 408, a wrong method 405.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use tonic::{Code, Status};

/// Names of fields in messages of the server, with the fields of a body that they come from.
const PARAMS: [(&str, &str); 27] = [
    ("text", "prompt"),
    ("token_ids", "prompt"),
    ("prompt", "prompt"),
    ("request_id", "request_id"),
    ("cache_salt", "cache_salt"),
    ("tenant", "tenant"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "repetition_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("logit_bias", "logit_bias"),
    ("logprobs", "logprobs"),
    ("prompt_logprobs", "prompt_logprobs"),
    ("json_schema", "response_format"),
    ("regex", "structured_outputs"),
    ("grammar", "structured_outputs"),
    ("choice", "structured_outputs"),
    ("ignore_eos", "ignore_eos"),
    ("max_tokens", "max_tokens"),
    ("min_tokens", "min_tokens"),
    ("stop", "stop"),
    ("stop_token_ids", "stop_token_ids"),
    ("priority", "priority"),
    // What the door makes of marks is well formed.
    ("retention", "kv_hints"),
];

/// Reason for which a request got no answer, or its stream none further.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    retry_after_s: Option<u64>,
}

impl Failure {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, retry_after_s: None }
    }

    /// Returns the failure for a wrong field.
    pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Self {
        let failure = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        Self { param: (!param.is_empty()).then(|| param.to_owned()), ..failure }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// Returns the failure for a field that names something which is not there.
    pub(crate) fn not_found_in(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_owned()), ..Self::not_found(message) }
    }

    pub(crate) fn wrong_method(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// Returns the failure of a body that did not arrive.
    pub(crate) fn of_body(status: &Status) -> Self {
        let of_status = Self::of(status);
        match status.code() {
            Code::DeadlineExceeded => Self { status: StatusCode::REQUEST_TIMEOUT, ..of_status },
            // The client's frames or chunks are malformed, or it went away.
            Code::Internal | Code::Unknown => Self::invalid("", "the body did not arrive whole"),
            _ => of_status,
        }
    }

    /// Returns the failure for a status of gRPC.
    pub(crate) fn of(status: &Status) -> Self {
        let (http, kind) = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => (StatusCode::BAD_REQUEST, "invalid_request_error"),
            Code::Unauthenticated => (StatusCode::UNAUTHORIZED, "authentication_error"),
            Code::PermissionDenied => (StatusCode::FORBIDDEN, "permission_error"),
            Code::NotFound | Code::Unimplemented => (StatusCode::NOT_FOUND, "not_found_error"),
            Code::AlreadyExists => (StatusCode::CONFLICT, "conflict_error"),
            Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
            Code::Unavailable | Code::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error"),
            Code::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "timeout_error"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error"),
        };
        let mut failure = Self::new(http, kind, status.message());
        if http == StatusCode::BAD_REQUEST {
            failure.param = param_of(status.message()).map(str::to_owned);
        }
        if matches!(http, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            failure.retry_after_s = Some(1);
        }
        failure
    }

    /// Returns the failure with another name for a field that it names.
    pub(crate) fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
        }
        self
    }

    /// Returns the failure of a request whose structure is that of forced calls, if `forced`.
    pub(crate) fn of_call(self, forced: bool) -> Self {
        match self.message.strip_prefix("json_schema ").or(self.message.strip_prefix("grammar ")) {
            Some(why) if forced => Self::invalid("tools", format!("the schema of the tools {why}")),
            None if forced && self.message.starts_with("structured output ") => {
                let why = "tool_choice may be auto or none: a call is forced by structured output, which is not supported by the workers of this server";
                Self::invalid("tool_choice", why)
            }
            _ => self,
        }
    }

    /// Returns the field at fault, if it is one.
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// Returns `true` if the client may come back later.
    pub(crate) fn is_overload(&self) -> bool {
        self.status == StatusCode::TOO_MANY_REQUESTS
    }

    /// Sets the seconds after which the client may come back.
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Returns the type and the message.
    pub(crate) fn kind_and_message(&self) -> (&'static str, &str) {
        (self.kind, &self.message)
    }

    /// Returns the body in OpenAI's form.
    pub(crate) fn json(&self) -> String {
        #[derive(Serialize)]
        struct Outer<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            message: &'a str,
            r#type: &'a str,
            param: Option<&'a str>,
            code: u16,
        }
        let Self { status, kind, message, param, .. } = self;
        let error = Inner { message, r#type: kind, param: param.as_deref(), code: status.as_u16() };
        serde_json::to_string(&Outer { error }).unwrap_or_default()
    }
}

/// Returns the field of a body that a message of the server begins with.
fn param_of(message: &str) -> Option<&'static str> {
    let name = message.split([' ', '[', ':']).next()?;
    PARAMS.iter().find(|(known, _)| *known == name).map(|(_, param)| *param)
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_field_is_named_as_the_client_knows_it() {
        let param = |message: &str| Failure::of(&Status::invalid_argument(message)).param;
        assert_eq!(param("temperature is 5000; it must be 0").as_deref(), Some("temperature"));
        assert_eq!(param("token_ids[3] is 9; the model has").as_deref(), Some("prompt"));
        assert_eq!(param("text: token[0] is 9").as_deref(), Some("prompt"));
        assert_eq!(param("something else"), None);
        let of = |message: &str, forced| Failure::of(&Status::invalid_argument(message)).of_call(forced);
        let schema = "json_schema is refused: it has 70000 bytes";
        let told = of(schema, true);
        assert_eq!(
            (told.param.as_deref(), told.message.as_str()),
            (Some("tools"), "the schema of the tools is refused: it has 70000 bytes")
        );
        assert_eq!(of(schema, false).renamed("response_format", "text.format").param.as_deref(), Some("text.format"));
        assert_eq!(of("structured output is not supported", true).param.as_deref(), Some("tool_choice"));
        assert_eq!(of("structured output is not supported", false).param, None);
    }

    #[test]
    fn statuses_become_those_of_http() {
        let of = |code: Code| {
            let failure = Failure::of(&Status::new(code, "why"));
            (failure.status.as_u16(), failure.retry_after_s)
        };
        let codes = [
            (Code::InvalidArgument, (400, None)),
            (Code::Unauthenticated, (401, None)),
            (Code::PermissionDenied, (403, None)),
            (Code::Unimplemented, (404, None)),
            (Code::AlreadyExists, (409, None)),
            (Code::ResourceExhausted, (429, Some(1))),
            (Code::Internal, (500, None)),
            (Code::Unavailable, (503, Some(1))),
            (Code::DeadlineExceeded, (504, None)),
        ];
        for (code, expected) in codes {
            assert_eq!(of(code), expected, "{code:?}");
        }
        assert_eq!(Failure::of_body(&Status::deadline_exceeded("late")).status.as_u16(), 408);
        let json = Failure::invalid("n", "n is 0").json();
        assert_eq!(json, r#"{"error":{"message":"n is 0","type":"invalid_request_error","param":"n","code":400}}"#);
    }
}
