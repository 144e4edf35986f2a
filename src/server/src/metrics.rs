//! Metrics of a server for Prometheus: one table of definitions, filled at each scrape.
//!
//! A scrape asks the core's thread for the snapshot that also answers `GetServerInfo` ([`crate::driver::commands::Snapshot`]), so a figure has one
//! definition. Histograms belong to the core's thread and come with the snapshot: nothing is locked for a token.
//!
//! Scrapes run one after another, and the core's thread is asked at most once in [`INTERVAL`], however many clients scrape; a scrape never
//! gets a snapshot from before its own beginning.

mod http;
mod process;
mod samples;
mod scrape;
mod table;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{sleep_until, timeout};

use self::http::{Format, Limits, Source};
use self::samples::Samples;
use self::scrape::Scrape;
use crate::driver::commands::Command;
use crate::driver::queue::DriverHandle;
use crate::network::Network;
use crate::service::sessions::{SessionCounts, SessionTable};
use crate::service::submission::Submitter;

/// Shortest time between two snapshots.
const INTERVAL: Duration = Duration::from_millis(50);
/// Time for the core's thread to answer, scrapes before included.
const ANSWER: Duration = Duration::from_secs(5);

/// Parts of the server that are there once the model is known.
pub(crate) struct Served {
    pub(crate) submitter: Arc<Submitter>,
    pub(crate) sessions: (Arc<SessionTable>, Arc<SessionCounts>),
}

/// Names under which metrics are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricNames {
    /// Our own.
    Trunkline,
    /// Those of vLLM, for the figures that vLLM has.
    Vllm,
    /// Both.
    #[default]
    Both,
}

impl MetricNames {
    fn includes(self, is_of_vllm: bool) -> bool {
        match self {
            Self::Trunkline => !is_of_vllm,
            Self::Vllm => is_of_vllm,
            Self::Both => true,
        }
    }
}

/// Sources of a server's metrics.
pub(crate) struct Metrics {
    driver: DriverHandle,
    network: Arc<Network>,
    served: OnceLock<Served>,
    names: MetricNames,
    /// Start of the server, seconds since 1970.
    started_s: f64,
    latest: Mutex<Latest>,
}

/// The last snapshot that was asked for.
#[derive(Default)]
struct Latest {
    /// Time of asking, nanoseconds.
    begun_ns: Option<u64>,
    /// The answer; `None` before there is one, also if the caller gave up.
    scrape: Option<Arc<Scrape>>,
}

impl Metrics {
    /// Makes the metrics of a server whose clock has just started.
    pub(crate) fn new(driver: DriverHandle, network: Arc<Network>, names: MetricNames) -> Arc<Self> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_s = since_1970.as_secs_f64() - driver.clock().now_ns() as f64 * 1e-9;
        Arc::new(Self { driver, network, served: OnceLock::new(), names, started_s, latest: Mutex::default() })
    }

    /// Adds the parts that need the model. Called once.
    pub(crate) fn serve_model(&self, served: Served) {
        let _ = self.served.set(served);
    }

    /// Returns the text of a scrape in a format that `accept` names, and its media type; `None` if the core's thread does not answer in time.
    pub(crate) async fn scraped(&self, accept: Option<&str>) -> Option<(&'static str, String)> {
        let format = Format::named(accept.into_iter());
        Some((format.content_type(), self.text(format).await?))
    }

    /// Answers scrapes on `listener`, for ever.
    pub(crate) async fn listen(self: Arc<Self>, listener: TcpListener) {
        http::serve(listener, self, Limits::default()).await;
    }

    /// Returns a snapshot begun after this call; `None` if the core's thread has ended.
    async fn scrape(&self) -> Option<Arc<Scrape>> {
        let clock = self.driver.clock();
        let asked_ns = clock.now_ns();
        let mut latest = self.latest.lock().await;
        if latest.begun_ns >= Some(asked_ns) && latest.scrape.is_some() {
            return latest.scrape.clone();
        }
        let next = latest.begun_ns.and_then(|begun_ns| clock.instant(begun_ns)?.checked_add(INTERVAL));
        if let Some(next) = next {
            sleep_until(next.into()).await;
        }
        let begun_ns = clock.now_ns();
        *latest = Latest { begun_ns: Some(begun_ns), scrape: None };
        let mut scrape = Scrape::begin(&self.network, begun_ns, self.started_s, self.names);
        // Without a model no thread answers yet.
        if let Some(served) = self.served.get() {
            let (reply, snapshot) = oneshot::channel();
            if !self.driver.send_patiently(Command::Snapshot(reply)).await {
                return None;
            }
            scrape.fill(snapshot.await.ok()?, served);
        }
        let scrape = Arc::new(scrape);
        latest.scrape = Some(scrape.clone());
        Some(scrape)
    }
}

impl Source for Metrics {
    async fn text(&self, format: Format) -> Option<String> {
        let scrape = timeout(ANSWER, self.scrape()).await.ok()??;
        encode(scrape, format)
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in table::all().filter(|metric| self.names.includes(metric.is_of_vllm())) {
            let mut samples = Samples::begin(&mut encoder, (metric.kind, metric.name, metric.help), metric.labels)?;
            metric.read.add(self, &mut samples);
            samples.result?;
        }
        Ok(())
    }
}

/// Returns the text of a scrape.
fn encode(scrape: Arc<Scrape>, format: Format) -> Option<String> {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(scrape));
    let encoded = match format {
        Format::Prometheus => prometheus_text::encode(&mut text, &registry),
        Format::OpenMetrics => text::encode(&mut text, &registry),
    };
    encoded.is_ok().then_some(text)
}

#[cfg(test)]
mod tests;
