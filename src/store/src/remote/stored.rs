//! Objects in S3 and compatible stores, and the settings of an address.

use std::collections::HashMap;
use std::ffi::OsString;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::task::JoinSet;
use trunkline_quote::quoted;
use url::Url;

use crate::error::StoreError;

use super::objects::{Objects, Unanswered};
use super::patience::Patience;

/// Settings of S3 that an address may have behind its `?`.
const QUERY_KEYS: [&str; 4] = ["endpoint", "region", "skip_signature", "virtual_hosted_style_request"];

/// Returns the settings of S3 from the variables beginning with `AWS_`, and, with precedence, from the query of an address. Plain HTTP is
/// allowed where the endpoint says so. Variables without UTF-8 are left out.
pub fn options(
    url: &Url,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<HashMap<String, String>, String> {
    let setting = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("AWS_"))?;
        Some((name.to_lowercase(), value.into_string().ok()?))
    };
    let mut options: HashMap<String, String> = variables.filter_map(setting).collect();
    for (key, value) in url.query_pairs() {
        if url.scheme() == "file" || !QUERY_KEYS.contains(&&*key) {
            let keys = QUERY_KEYS.join(", ");
            let key = quoted(&key);
            return Err(format!("unknown setting {key} in the address; addresses of s3:// take: {keys}"));
        }
        let shadowed: &[&str] = if key == "endpoint" { &["aws_endpoint_url", "aws_endpoint_url_s3"] } else { &[] };
        shadowed.iter().for_each(|name| drop(options.remove(*name)));
        options.insert(format!("aws_{key}"), value.into_owned());
    }
    let endpoints = ["aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3"];
    if endpoints.iter().any(|name| options.get(*name).is_some_and(|endpoint| endpoint.starts_with("http://"))) {
        options.entry("aws_allow_http".to_owned()).or_insert_with(|| "true".to_owned());
    }
    Ok(options)
}

/// Tries of a request after the first. After pauses of 0.1 s, 0.2 s and 0.4 s, refused connections count as no answer within a second.
#[cfg(feature = "s3")]
const RETRIES: usize = 3;

/// Returns the store at an address, and the path of the address in it.
fn connect(url: &Url, options: HashMap<String, String>) -> object_store::Result<(Box<dyn ObjectStore>, Path)> {
    #[cfg(feature = "s3")]
    if let Ok((object_store::ObjectStoreScheme::AmazonS3, prefix)) = object_store::ObjectStoreScheme::parse(url) {
        // The HTTP client has no cryptography of its own. A provider that is there already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = object_store::RetryConfig { max_retries: RETRIES, ..object_store::RetryConfig::default() };
        let builder = object_store::aws::AmazonS3Builder::new().with_url(url.as_str()).with_retry(retry);
        let known = options.into_iter().filter_map(|(key, value)| Some((key.parse().ok()?, value)));
        let builder = known.fold(builder, |builder, (key, value)| builder.with_config(key, value));
        return Ok((Box::new(builder.build()?), prefix));
    }
    object_store::parse_url_opts(url, options)
}

/// Objects in an S3-compatible store.
#[derive(Debug)]
pub struct StoredObjects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    patience: Patience,
}

impl StoredObjects {
    /// Opens the store at an address, with the settings of [`options`].
    ///
    /// # Errors
    /// If the address has no meaning. Whether the store answers shows later.
    pub fn open(address: &str, mut url: Url, options: HashMap<String, String>) -> Result<Self, StoreError> {
        url.set_query(None);
        let (store, prefix) = connect(&url, options).map_err(|error| {
            let is_kind = matches!(url.scheme(), "s3" | "s3a");
            let other = format!("unsupported scheme {}://; use file:///folder or s3://bucket/prefix", url.scheme());
            StoreError::Remote { url: address.to_owned(), reason: if is_kind { error.to_string() } else { other } }
        })?;
        Ok(Self { store: store.into(), prefix, patience: Patience::new()? })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn wait<T>(
        &self,
        deadline: Instant,
        answer: impl Future<Output = object_store::Result<T>>,
    ) -> Result<Option<T>, Unanswered> {
        match self.patience.wait(deadline, answer)? {
            Ok(value) => Ok(Some(value)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Unanswered::Failed(error.to_string())),
        }
    }
}

impl Objects for StoredObjects {
    fn put(&self, name: &str, bytes: Vec<u8>, deadline: Instant) -> Result<(), Unanswered> {
        let path = self.path(name);
        match self.wait(deadline, self.store.put(&path, bytes.into()))? {
            Some(_) => Ok(()),
            None => Err(Unanswered::Failed("the bucket is not there".to_owned())),
        }
    }

    fn get(&self, name: &str, limit: usize, deadline: Instant) -> Result<Option<Vec<u8>>, Unanswered> {
        let path = self.path(name);
        let answer = async {
            let object = self.store.get(&path).await?;
            if object.meta.size > limit as u64 {
                return Ok(self.store.get_range(&path, 0..limit as u64).await?.to_vec());
            }
            Ok(object.bytes().await?.to_vec())
        };
        self.wait(deadline, answer)
    }

    fn has(&self, names: &[String], deadline: Instant) -> Result<Vec<bool>, Unanswered> {
        let heads = names.iter().map(|name| (Arc::clone(&self.store), self.path(name)));
        let answers = async {
            let mut questions = JoinSet::new();
            for (at, (store, path)) in heads.enumerate() {
                questions.spawn(async move { (at, store.head(&path).await) });
            }
            let mut found = vec![false; names.len()];
            while let Some(answer) = questions.join_next().await {
                match answer {
                    Ok((at, Ok(_))) => found[at] = true,
                    Ok((_, Err(object_store::Error::NotFound { .. }))) => {}
                    Ok((_, Err(error))) => return Err(error),
                    Err(error) => return Err(object_store::Error::JoinError { source: error }),
                }
            }
            Ok(found)
        };
        Ok(self.wait(deadline, answers)?.unwrap_or_else(|| vec![false; names.len()]))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn variables_are_settings_unless_they_are_not_utf8() {
        let noise = OsString::from_vec(vec![b'A', 0xff]);
        let variables =
            [("AWS_REGION".into(), "eu-1".into()), ("AWS_ENDPOINT".into(), noise.clone()), (noise.clone(), noise)];
        let options = options(&Url::parse("s3://bucket").unwrap(), variables.into_iter()).unwrap();
        assert_eq!(options, HashMap::from([("aws_region".to_owned(), "eu-1".to_owned())]));
    }

    #[test]
    fn settings_in_an_address_are_known_ones_and_plain_http_follows_the_endpoint() {
        let read = |address: &str| options(&Url::parse(address).unwrap(), std::iter::empty());
        let options = read("s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-1").unwrap();
        let get = |name: &str| options.get(name).map(String::as_str);
        assert_eq!(get("aws_endpoint"), Some("http://127.0.0.1:9000"));
        assert_eq!((get("aws_region"), get("aws_allow_http")), (Some("eu-1"), Some("true")));
        let options = read("s3://bucket?endpoint=https://store.example").unwrap();
        assert_eq!(options.get("aws_allow_http"), None);
        for address in ["s3://bucket?secret_access_key=x", "file:///folder?endpoint=http://x"] {
            let error = read(address).unwrap_err();
            assert!(
                error.starts_with("unknown setting '") && error.ends_with("virtual_hosted_style_request"),
                "{error}"
            );
        }
    }
}
