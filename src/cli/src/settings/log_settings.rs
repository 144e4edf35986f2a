//! Settings of what a server writes down and publishes: the log, the file of requests, the recording, the events of its caches.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{anyhow, ensure};
use clap::Args;
use trunkline_core::names::registry;
use trunkline_quote::quoted;
use trunkline_server::{Options, RequestTracer};

use crate::settings::events_settings::EventsSettings;

/// Name of the flag for the form of the log.
const FORMAT: &str = "log-format";

/// Form of the lines of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(registry::choose(FORMAT, &[("text", Self::Text), ("json", Self::Json)], text)?)
    }
}

/// Settings of log, requests and recording; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Logs and recordings")]
pub struct LogSettings {
    /// Record every event of all engines, prompts included, for `trunkline replay --recorded`; gzip if the name ends in .gz; a file of this name
    /// is renamed to FILE.old [default: none].
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Write a row for each request that ended or was refused, with the columns of `replay --requests` and some more, no prompts: JSON lines if the name
    /// ends in .jsonl or .json, else CSV. Rows are added to a file that is there; SIGHUP opens the file again [default: none].
    #[arg(long, value_name = "FILE")]
    pub requests: Option<PathBuf>,

    /// Send a span for each request that ended to the collector of OpenTelemetry at this URL, such as http://127.0.0.1:4317, by OTLP over gRPC; clients'
    /// `traceparent` headers are read, and the variables OTEL_TRACES_SAMPLER and OTEL_SERVICE_NAME apply [default: none].
    #[arg(long, value_name = "URL")]
    pub otlp_traces_endpoint: Option<String>,

    /// Write a timeline of all steps, with the weights that they read, in Chrome's trace event format, as `replay --timeline` does; gzip if the name ends
    /// in .gz; whole when the server has stopped [default: none].
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,

    /// Form of the log on standard error: text, or json for an object a line [default: text].
    #[arg(long, value_name = "FORM")]
    pub log_format: Option<String>,

    /// Cache events.
    #[command(flatten)]
    pub events: EventsSettings,
}

impl LogSettings {
    /// Returns the form of the log.
    ///
    /// # Errors
    /// If the form is unknown.
    pub fn format(&self) -> anyhow::Result<LogFormat> {
        self.log_format.as_deref().map_or(Ok(LogFormat::default()), str::parse)
    }

    /// Returns the tracer of requests, if there is to be one. MUST be called within a runtime of tokio.
    ///
    /// # Errors
    /// If the endpoint is none that spans can be sent to.
    pub fn tracer(&self) -> anyhow::Result<Option<Arc<dyn RequestTracer>>> {
        self.otlp_traces_endpoint.as_deref().map(exporter).transpose()
    }

    /// Fills in the options of a server.
    ///
    /// # Errors
    /// If the form of the log is unknown, or a file has a name that asks for what it cannot be.
    pub fn apply(&self, options: &mut Options) -> anyhow::Result<()> {
        self.format()?;
        if let Some(path) = &self.requests {
            let end = path.extension().and_then(OsStr::to_str).unwrap_or_default();
            ensure!(
                !["gz", "zst", "parquet"].contains(&end),
                "requests is {}; rows are written while the server runs, as CSV or JSON lines: name a .csv or .jsonl file",
                quoted(&path.display().to_string())
            );
            if self.record.as_ref() == Some(path) {
                return Err(anyhow!("record and requests both write {}; give each a file of its own", path.display()));
            }
        }
        (options.record, options.requests) = (self.record.clone(), self.requests.clone());
        Ok(())
    }
}

/// Returns what sends spans to the collector at an endpoint. MUST be called within a runtime of tokio.
#[cfg(feature = "otlp")]
fn exporter(endpoint: &str) -> anyhow::Result<Arc<dyn RequestTracer>> {
    Ok(Arc::new(trunkline_otlp::Exporter::new(endpoint)?))
}

#[cfg(not(feature = "otlp"))]
fn exporter(_: &str) -> anyhow::Result<Arc<dyn RequestTracer>> {
    Err(anyhow!("otlp-traces-endpoint has no effect: this program was built without the feature otlp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_forms_are_checked() {
        let settings = |requests: &str, format: &str| LogSettings {
            record: Some("run.jsonl".into()),
            requests: Some(requests.into()),
            log_format: Some(format.into()),
            ..LogSettings::default()
        };
        let apply = |requests, format| {
            let mut options = Options::default();
            let applied = settings(requests, format).apply(&mut options).map_err(|error| error.to_string());
            applied.map(|()| (options.record.unwrap(), options.requests.unwrap()))
        };
        assert_eq!(apply("r.csv", "json").unwrap(), ("run.jsonl".into(), "r.csv".into()));
        assert_eq!(apply("r.csv", "xml").unwrap_err(), "unknown log-format 'xml'; there are: text, json");
        assert!(apply("r.parquet", "text").unwrap_err().starts_with("requests is 'r.parquet'; rows are written while"));
        assert!(apply("run.jsonl", "text").unwrap_err().starts_with("record and requests both write run.jsonl"));
    }
}
