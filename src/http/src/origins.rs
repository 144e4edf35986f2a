//! Pages of other origins: which may read answers (CORS).

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{Method, Request, Response};
use tonic::codegen::Service;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use trunkline_quote::quoted;

use crate::run::REQUEST_ID;

/// Time for which a browser may keep the answer to a preflight request.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Origins whose pages may read answers, such as `https://app.example`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedOrigins {
    /// None: browsers keep answers from all pages of others.
    #[default]
    None,
    /// All: any page that a user opens may ask this server, as far as it has a token.
    All,
    /// Those listed.
    Listed(Vec<HeaderValue>),
}

/// Error of a text that is no list of origins.
#[derive(Debug, thiserror::Error)]
#[error("{} is no origin; give * for all, or origins separated by commas, such as https://app.example,http://localhost:3000", quoted(.0))]
pub struct OriginsError(String);

impl FromStr for AllowedOrigins {
    type Err = OriginsError;

    /// Reads `*`, origins separated by commas, or the list in JSON that vLLM takes.
    fn from_str(text: &str) -> Result<Self, OriginsError> {
        let names: Vec<String> = match text.trim_start().starts_with('[') {
            true => serde_json::from_str(text).map_err(|_| OriginsError(text.to_owned()))?,
            false => text.split(',').map(str::to_owned).collect(),
        };
        let names: Vec<&str> = names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
        match names[..] {
            [] => Ok(Self::None),
            ["*"] => Ok(Self::All),
            _ => Ok(Self::Listed(names.into_iter().map(origin).collect::<Result<_, _>>()?)),
        }
    }
}

/// Returns an origin as browsers send it: a scheme, a host, and a port if it is not the scheme's own.
fn origin(name: &str) -> Result<HeaderValue, OriginsError> {
    let wrong = || OriginsError(name.to_owned());
    let name = name.to_ascii_lowercase();
    let (scheme, host) = name.split_once("://").ok_or_else(wrong)?;
    let is_word = |text: &str, more: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    if !is_word(scheme, "+-.") || !is_word(host, "-._:[]") {
        return Err(wrong());
    }
    HeaderValue::from_str(&name).map_err(|_| wrong())
}

impl AllowedOrigins {
    /// Returns the layer that answers preflight requests and marks answers; `None` if no origin is allowed.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        let origins = match self {
            Self::None => return None,
            Self::All => AllowOrigin::any(),
            Self::Listed(origins) => AllowOrigin::list(origins.iter().cloned()),
        };
        let layer = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // `*` would not cover the header with the token.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([HeaderName::from_static(REQUEST_ID), RETRY_AFTER, CONTENT_TYPE])
            .max_age(MAX_AGE);
        Some(layer)
    }
}

/// A service with one answer, which a layer marks.
pub(crate) struct Answered(pub(crate) Option<Response<Body>>);

impl Service<Request<()>> for Answered {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(self.0.take().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_come_as_a_star_as_a_list_or_in_the_form_of_vllm() {
        let listed = |text: &str| match text.parse() {
            Ok(AllowedOrigins::Listed(origins)) => origins.iter().map(|o| o.to_str().unwrap().to_owned()).collect(),
            other => vec![format!("{other:?}")],
        };
        assert_eq!("*".parse::<AllowedOrigins>().unwrap(), AllowedOrigins::All);
        assert_eq!(r#"["*"]"#.parse::<AllowedOrigins>().unwrap(), AllowedOrigins::All);
        assert_eq!("".parse::<AllowedOrigins>().unwrap(), AllowedOrigins::None);
        assert_eq!(listed("https://App.example, http://[::1]:3000"), ["https://app.example", "http://[::1]:3000"]);
        assert_eq!(listed(r#"["http://localhost:3000"]"#), ["http://localhost:3000"]);
        for wrong in ["app.example", "https://app.example/", "https://a/b", "https://", "*,https://a", "null", "[1]"] {
            let error = wrong.parse::<AllowedOrigins>().unwrap_err().to_string();
            assert!(error.contains("is no origin; give * for all"), "{wrong}: {error}");
        }
    }
}
