//! Spans of requests, for a tracer: one for each request that ended or was refused, with ids, sizes and times, no prompt and no token.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::requests::request_events::{RequestEvent, code_name};
use crate::requests::trace_parent::TraceParent;

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanValue {
    /// A word or an id.
    Text(String),
    /// A number of things.
    Count(u64),
    /// A time in seconds.
    Seconds(f64),
}

/// A request as a span.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSpan {
    /// The span of the client, if the client sent one.
    pub parent: Option<TraceParent>,
    /// Arrival of the request.
    pub begin: SystemTime,
    /// End of the request.
    pub end: SystemTime,
    /// What happened in between, in order: `queued`, `admitted`, `first_token` and, with several engines, `engine` with the number of the engine that
    /// the request waits or runs on from then on.
    pub events: Vec<(SystemTime, &'static str, Option<u32>)>,
    /// Names are vLLM's and OpenTelemetry's for generative AI; `trunkline.*` are of this server.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// Reason for the end, if the call failed.
    pub failure: Option<&'static str>,
}

/// Receiver of spans. Calls come from a thread that does nothing else but write requests down.
pub trait RequestTracer: Send + Sync + fmt::Debug {
    /// Takes a request that ended. MUST NOT wait for the network.
    fn write(&self, span: RequestSpan);

    /// Sends what is left; the last call.
    fn finish(&self);
}

/// Returns the span of a request that ended at `end`.
pub(crate) fn span(event: &RequestEvent, end: SystemTime) -> RequestSpan {
    let RequestEvent { label, times, usage, engines, end_ns, .. } = event;
    let at = |ns: u64| end - Duration::from_nanos(end_ns.saturating_sub(ns));
    let seconds = |from: u64, to: u64| SpanValue::Seconds(to.saturating_sub(from) as f64 / 1e9);
    let count = |n: u32| SpanValue::Count(n.into());
    let mut events: Vec<_> = engines.since().map(|(engine, ns)| (ns, "engine", Some(engine))).collect();
    if engines.moves() == 0 {
        events.clear();
    }
    let known = [("queued", times.queued_ns), ("admitted", times.started_ns), ("first_token", times.first_token_ns)];
    events.extend(known.into_iter().filter_map(|(name, ns)| Some((ns?, name, None))));
    events.sort_by_key(|(ns, ..)| *ns);
    let mut attributes = vec![
        ("gen_ai.request.id", SpanValue::Text(label.id.clone())),
        ("gen_ai.usage.prompt_tokens", count(usage.prompt_tokens)),
        ("gen_ai.usage.completion_tokens", count(usage.completion_tokens)),
        ("gen_ai.usage.cache_read.input_tokens", count(usage.cached_tokens)),
        ("gen_ai.latency.e2e", seconds(times.arrival_ns, *end_ns)),
        ("gen_ai.response.finish_reason", SpanValue::Text(event.reason().into())),
        ("rpc.response.status_code", SpanValue::Text(code_name(event.status()).into())),
        ("trunkline.preemptions", count(usage.preemptions)),
        ("trunkline.copied_tokens", count(usage.copied_tokens)),
        ("trunkline.engines", SpanValue::Text(engines.text())),
        ("trunkline.arrival_ns", SpanValue::Count(times.arrival_ns)),
    ];
    if !label.tenant.is_empty() {
        attributes.push(("trunkline.tenant", SpanValue::Text(label.tenant.clone())));
    }
    attributes.extend(event.number.map(|number| ("trunkline.request", SpanValue::Count(number.0))));
    let started = times.started_ns.map(|ns| ("gen_ai.latency.time_in_queue", seconds(times.arrival_ns, ns)));
    let first = times.first_token_ns.map(|ns| ("gen_ai.latency.time_to_first_token", seconds(times.arrival_ns, ns)));
    attributes.extend(started.into_iter().chain(first));
    if times.first_token_ns.is_some() {
        let [_, prefill_ns, decode_ns] = times.parts_ns();
        attributes.push(("gen_ai.latency.time_in_model_prefill", seconds(0, prefill_ns)));
        attributes.push(("gen_ai.latency.time_in_model_decode", seconds(0, decode_ns)));
    }
    RequestSpan {
        parent: label.parent,
        begin: at(times.arrival_ns),
        end,
        events: events.into_iter().map(|(ns, name, engine)| (at(ns), name, engine)).collect(),
        attributes,
        failure: (event.status() != tonic::Code::Ok).then(|| event.reason()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::request_events::sample::event;

    #[test]
    fn a_span_has_the_times_of_the_request_on_the_clock_of_the_wall() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let span = span(&event(), end);
        let before_end = |at: SystemTime| end.duration_since(at).unwrap().as_millis();
        assert_eq!((before_end(span.begin), span.end, span.failure), (60, end, None));
        let events: Vec<_> = span.events.iter().map(|(at, name, engine)| (before_end(*at), *name, *engine)).collect();
        let moves = [(58, "engine", Some(2)), (45, "engine", Some(0))];
        assert_eq!(
            events,
            [(59, "queued", None), moves[0], (50, "admitted", None), moves[1], (40, "first_token", None)]
        );
        let of = |name| span.attributes.iter().find(|(of, _)| *of == name).map(|(_, value)| value.clone());
        assert_eq!(of("gen_ai.latency.time_in_queue"), Some(SpanValue::Seconds(0.01)));
        assert_eq!(of("gen_ai.usage.cache_read.input_tokens"), Some(SpanValue::Count(32)));
        assert_eq!(of("trunkline.request"), Some(SpanValue::Count(7)), "as in a recording");
        assert_eq!(of("trunkline.engines"), Some(SpanValue::Text("2>0".into())));
    }
}
