//! Spans of a server's requests, sent to a collector of OpenTelemetry by OTLP over gRPC.
//!
//! A span is made when its request has ended, on the thread that writes the log of requests; a thread of the SDK sends them in batches. A span that the
//! SDK has no room for is dropped, and the SDK's log says so: no request waits for the collector. The variables of OpenTelemetry's specification apply:
//! `OTEL_TRACES_SAMPLER` (by default, requests whose client records its trace, and those without a trace), `OTEL_SERVICE_NAME`,
//! `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_MAX_QUEUE_SIZE` and others of the batches.

use std::fmt;

use opentelemetry::trace::{
    Event, Span, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use trunkline_quote::quoted;
use trunkline_server::{RequestSpan, RequestTracer, SpanEvent, SpanValue, TraceParent};

/// Name of the spans, as of vLLM's.
const SPAN: &str = "llm_request";
/// Name of the service unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` gives another.
const SERVICE: &str = "trunkline";

/// An endpoint that spans cannot be sent to.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Not a URL of plain HTTP, the only one that is spoken.
    #[error("cannot send spans to {}: give a URL such as http://127.0.0.1:4317; TLS is not supported", quoted(.0))]
    NotHttp(String),
    /// Refused by the exporter.
    #[error("cannot send spans to {}: {source}", quoted(.endpoint))]
    Refused {
        /// Endpoint as the user gave it.
        endpoint: String,
        /// Reason of the exporter.
        source: ExporterBuildError,
    },
}

/// Sends spans to a collector.
pub struct Exporter {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl Exporter {
    /// Begins to send spans to the collector at `endpoint`, such as `http://127.0.0.1:4317`. The collector need not be there yet. MUST be called within
    /// a runtime of tokio, which carries the connection.
    ///
    /// # Errors
    /// If the endpoint is no URL with the scheme `http`.
    pub fn new(endpoint: &str) -> Result<Self, EndpointError> {
        if !endpoint.starts_with("http://") {
            return Err(EndpointError::NotHttp(endpoint.into()));
        }
        let failed = |source| EndpointError::Refused { endpoint: endpoint.into(), source };
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build().map_err(failed)?;
        // What the environment says comes after, and wins.
        let named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
        let resource = Resource::builder();
        let resource = if named { resource } else { resource.with_service_name(SERVICE) };
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        Ok(Self { tracer: provider.tracer(SERVICE), provider })
    }
}

impl RequestTracer for Exporter {
    fn write(&self, span: RequestSpan) {
        let RequestSpan { parent, begin, end, events, attributes, failure } = span;
        let attribute = |(name, value)| KeyValue::new(name, value_of(value));
        let event = |SpanEvent { at, name, attributes }| {
            Event::new(name, at, attributes.into_iter().map(attribute).collect(), 0)
        };
        let attributes = attributes.into_iter().map(attribute);
        let builder = SpanBuilder::from_name(SPAN)
            .with_kind(SpanKind::Server)
            .with_start_time(begin)
            .with_attributes(attributes)
            .with_events(events.into_iter().map(event).collect());
        let mut span = self.tracer.build_with_context(builder, &context(parent));
        if let Some(why) = failure {
            span.set_status(Status::error(why));
        }
        span.end_with_timestamp(end);
    }

    fn finish(&self) {
        // The SDK logs what it could not send.
        let _ = self.provider.shutdown();
    }
}

fn value_of(value: SpanValue) -> Value {
    match value {
        SpanValue::Text(text) => text.into(),
        SpanValue::Count(n) => i64::try_from(n).unwrap_or(i64::MAX).into(),
        SpanValue::Seconds(seconds) => seconds.into(),
    }
}

fn context(parent: Option<TraceParent>) -> Context {
    let Some(TraceParent { trace_id, span_id, sampled }) = parent else { return Context::new() };
    let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace, span) = (TraceId::from(trace_id), SpanId::from(span_id));
    Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, TraceState::NONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_of_plain_http() {
        let error = |endpoint| Exporter::new(endpoint).unwrap_err().to_string();
        let form = "give a URL such as http://127.0.0.1:4317; TLS is not supported";
        assert_eq!(error("https://x:4317"), format!("cannot send spans to 'https://x:4317': {form}"));
        assert_eq!(error("127.0.0.1:4317"), format!("cannot send spans to '127.0.0.1:4317': {form}"));
        assert!(error("http://no url").starts_with("cannot send spans to 'http://no url': invalid exporter"));
    }
}
