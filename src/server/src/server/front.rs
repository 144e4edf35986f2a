//! The services of a server for doors in the same process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tonic::metadata::MetadataMap;
use tonic::{Extensions, Status};
use trunkline_core::{Config, Stats};
use trunkline_port::ModelInfo;
use trunkline_text::Tokenizer;

use crate::access::caller::Caller;
use crate::metrics::Metrics;
use crate::network::shares::Client;
use crate::proto;
use crate::service::InferenceService;
use crate::service::stream::Generation;
use crate::service::validate;

/// Shortest and longest time after which a refused client is asked to come back, seconds.
const RETRY_S: (u64, u64) = (1, 60);
/// Time for which an estimate of [`Front::retry_after_s`] holds, nanoseconds.
const ESTIMATE_NS: u64 = 1_000_000_000;

/// The calls of `trunkline.v1.Inference`, for an [`HttpDoor`](crate::HttpDoor) or a [`Guest`](crate::Guest): the same checks, limits, tenants
/// and statuses.
///
/// The extensions are those of the request that the door answers; without a sender there, a call has all rights.
#[derive(Clone)]
pub struct Front(Arc<Parts>);

struct Parts {
    /// Set once the server knows its model.
    inference: Arc<OnceLock<Arc<InferenceService>>>,
    metrics: Arc<Metrics>,
    /// `true` while the server takes requests.
    serving: Arc<AtomicBool>,
    /// Maximum number of bytes of a message that the limits of a connection let through.
    message_bytes_max: usize,
    estimate: Mutex<Estimate>,
}

/// Load of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Requests waiting for a place in a batch.
    pub waiting: u32,
    /// Requests in a batch.
    pub running: u32,
    /// Share of the device blocks in use by requests, 0 to 1.
    pub kv_usage: f64,
}

/// When a refused client may come back.
#[derive(Clone, Copy, Default)]
struct Estimate {
    at_ns: u64,
    finished: u64,
    retry_s: Option<u64>,
}

impl Front {
    pub(crate) fn new(
        inference: Arc<OnceLock<Arc<InferenceService>>>,
        metrics: Arc<Metrics>,
        serving: Arc<AtomicBool>,
        message_bytes_max: usize,
    ) -> Self {
        Self(Arc::new(Parts { inference, metrics, serving, message_bytes_max, estimate: Mutex::default() }))
    }

    /// Returns the maximum number of bytes of a message of a client: the limits of a connection let no longer one through.
    pub fn message_bytes_max(&self) -> usize {
        self.0.message_bytes_max
    }

    /// Returns the time that a caller of gRPC gives a call, from the headers of the call.
    pub fn call_timeout(metadata: &MetadataMap) -> Option<Duration> {
        validate::call_timeout(metadata)
    }

    fn inference(&self) -> Result<&Arc<InferenceService>, Status> {
        let wait = || Status::unavailable("no worker has attached yet; try again later");
        self.0.inference.get().ok_or_else(wait)
    }

    /// Returns `true` if the server has a model and a worker, and is not draining.
    pub fn is_serving(&self) -> bool {
        self.0.inference.get().is_some() && self.0.serving.load(Ordering::Relaxed)
    }

    /// Returns the served model.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model.
    pub fn model(&self) -> Result<&ModelInfo, Status> {
        Ok(&self.inference()?.shared().model)
    }

    /// Returns the limits of each engine.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model.
    pub fn limits(&self) -> Result<&Config, Status> {
        Ok(&self.inference()?.shared().config)
    }

    /// Returns `true` if the workers can do structured output.
    pub fn has_grammars(&self) -> bool {
        self.inference().is_ok_and(|inference| inference.shared().has_grammars())
    }

    /// Returns the tokens that a prompt and its answer may have together.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model.
    pub fn max_context(&self) -> Result<u32, Status> {
        Ok(self.inference()?.shared().config.max_context)
    }

    /// Returns the tokens that may be generated after a prompt of `tokens`, at least one: with none left, the request is refused.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model.
    pub fn room_for(&self, tokens: usize) -> Result<u32, Status> {
        let most = self.inference()?.shared().sequence_tokens_max(0);
        Ok(most.saturating_sub(u32::try_from(tokens).unwrap_or(u32::MAX)).max(1))
    }

    /// Returns the tokenizer of the model.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Status> {
        Ok(&self.inference()?.shared().tokenizer)
    }

    /// Notes that the whole request of the sender is there, for calls that say nothing else to the server.
    pub fn note(&self, extensions: &Extensions) {
        Caller::of(extensions);
    }

    /// Returns the client to whom the sender's requests count, noting that the whole request is there.
    pub fn client(&self, extensions: &Extensions) -> Client {
        Caller::of(extensions).client()
    }

    /// Checks that the sender is an administrator; `what` names the call.
    ///
    /// # Errors
    /// PERMISSION_DENIED if it is not.
    pub fn check_admin(&self, extensions: &Extensions, what: &str) -> Result<(), Status> {
        Caller::of(extensions).check_admin(what)
    }

    /// Begins a request, which ends after `timeout` at the latest; returns once an engine has accepted it.
    ///
    /// # Errors
    /// The statuses of `Inference.Generate`.
    pub async fn generate(
        &self,
        extensions: &Extensions,
        message: proto::GenerateRequest,
        timeout: Option<Duration>,
    ) -> Result<Generation, Status> {
        self.inference()?.begin(&Caller::of(extensions), message, timeout).await
    }

    /// Returns the tokens of a text, within the limits on tokenising for the sender.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a text that is longer than the context or cannot be tokenised, RESOURCE_EXHAUSTED while too much text is being
    /// tokenised.
    pub async fn tokenize(
        &self,
        extensions: &Extensions,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, Status> {
        let caller = Caller::of(extensions);
        let shared = self.inference()?.shared();
        Ok(shared.tokens_in_time(&caller.client(), text, add_special_tokens, None).await?)
    }

    /// Aborts the sender's requests with these ids; returns how many were found.
    ///
    /// # Errors
    /// The statuses of `Inference.Abort`.
    pub fn abort(&self, extensions: &Extensions, request_ids: Vec<String>) -> Result<u32, Status> {
        self.inference()?.abort_ids(&Caller::of(extensions), request_ids)
    }

    /// Forgets the cached blocks that no request holds; returns their number. `what` names the call.
    ///
    /// # Errors
    /// The statuses of `Inference.FlushCache`.
    pub async fn flush_cache(&self, extensions: &Extensions, what: &str) -> Result<u32, Status> {
        self.inference()?.flush(&Caller::of(extensions), what).await
    }

    /// Returns the load of all engines together.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model, and after its end.
    pub async fn load(&self) -> Result<Load, Status> {
        let (stats, _) = self.stats().await?;
        Ok(Load { waiting: stats.waiting, running: stats.running, kv_usage: stats.kv_usage() })
    }

    /// Returns the gauges and counters of all engines together, and the number of engines.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model, and after its end.
    pub async fn stats(&self) -> Result<(Stats, u32), Status> {
        let snapshot = self.inference()?.snapshot().await?;
        Ok((snapshot.totals().0, snapshot.engines.len() as u32))
    }

    /// Returns the text of a scrape of all metrics with its media type; `None` if the server does not answer in time.
    pub async fn metrics(&self, extensions: &Extensions, accept: Option<&str>) -> Option<(&'static str, String)> {
        Caller::of(extensions);
        self.0.metrics.scraped(accept).await
    }

    /// Returns the seconds after which the waiting requests have begun, at the rate at which requests ended since the estimate before;
    /// between 1 and 60.
    pub async fn retry_after_s(&self) -> u64 {
        let Ok(inference) = self.inference() else { return RETRY_S.0 };
        let clock = inference.shared().driver.clock();
        let before = *self.0.estimate.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = clock.now_ns();
        if let Some(retry_s) = before.retry_s.filter(|_| now_ns.saturating_sub(before.at_ns) < ESTIMATE_NS) {
            return retry_s;
        }
        let Ok(snapshot) = inference.snapshot().await else { return RETRY_S.0 };
        let (stats, _) = snapshot.totals();
        let ended = stats.requests.finished.saturating_sub(before.finished);
        let passed_ns = now_ns.saturating_sub(before.at_ns);
        let retry_s = retry_s(stats.waiting, ended, passed_ns);
        let estimate = Estimate { at_ns: now_ns, finished: stats.requests.finished, retry_s: Some(retry_s) };
        *self.0.estimate.lock().unwrap_or_else(PoisonError::into_inner) = estimate;
        retry_s
    }
}

/// Returns the seconds until `waiting` requests have begun, when `ended` requests end in `passed_ns`.
fn retry_s(waiting: u32, ended: u64, passed_ns: u64) -> u64 {
    if ended == 0 {
        return if waiting == 0 { RETRY_S.0 } else { RETRY_S.1 };
    }
    let ns = u128::from(waiting) * u128::from(passed_ns) / u128::from(ended);
    u64::try_from(ns.div_ceil(1_000_000_000)).unwrap_or(u64::MAX).clamp(RETRY_S.0, RETRY_S.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_client_comes_back_when_the_queue_has_gone_down() {
        let second = 1_000_000_000;
        assert_eq!(retry_s(100, 50, 10 * second), 20, "five requests end in a second");
        assert_eq!(retry_s(0, 50, second), 1);
        assert_eq!(retry_s(1, 0, second), 60, "nothing ends");
        assert_eq!(retry_s(1000, 1, second), 60);
    }
}
