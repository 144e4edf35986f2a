//! Spans of requests, for a tracer: one for each request that ended or was refused, with ids, sizes and times, no prompt and no token.

use std::fmt;
use std::time::{Duration, SystemTime};

use trunkline_core::Preempted;

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

/// An event within a span.
///
/// | name | attributes |
/// |---|---|
/// | `queued`, `admitted`, `first_token` | |
/// | `engine`, with several engines | `trunkline.engine`: the number of the one that the request waits or runs on from then on |
/// | `preempted` | `trunkline.cause`: `block`, `prompt` or `seat`; `trunkline.swapped`: `yes` or `no`; `trunkline.by`: the number of the request that needed the block or took the seat |
#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    /// Time.
    pub at: SystemTime,
    /// Name.
    pub name: &'static str,
    /// More about it.
    pub attributes: Vec<(&'static str, SpanValue)>,
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
    /// What happened in between, in order.
    pub events: Vec<SpanEvent>,
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
    let of_engine = |(engine, ns)| (ns, "engine", vec![("trunkline.engine", count(engine))]);
    let mut events: Vec<_> = engines.since().filter(|_| engines.moves() > 0).map(of_engine).collect();
    let known = [("queued", times.queued_ns), ("admitted", times.started_ns), ("first_token", times.first_token_ns)];
    events.extend(known.into_iter().filter_map(|(name, ns)| Some((ns?, name, Vec::new()))));
    events.extend(engines.preempted().iter().map(|(ns, preempted)| (*ns, "preempted", why(preempted))));
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
        events: events.into_iter().map(|(ns, name, attributes)| SpanEvent { at: at(ns), name, attributes }).collect(),
        attributes,
        failure: (event.status() != tonic::Code::Ok).then(|| event.reason()),
    }
}

/// Returns why a request was preempted, and by whom.
fn why(Preempted { cause, by, swapped, .. }: &Preempted) -> Vec<(&'static str, SpanValue)> {
    let swapped = if *swapped { "yes" } else { "no" };
    let mut attributes = vec![
        ("trunkline.cause", SpanValue::Text(cause.name().into())),
        ("trunkline.swapped", SpanValue::Text(swapped.into())),
    ];
    attributes.extend(by.map(|by| ("trunkline.by", SpanValue::Count(by.0))));
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_core::{PreemptionCause, RequestId};

    use crate::requests::request_events::sample::{MS, event};

    #[test]
    fn a_span_has_the_times_of_the_request_on_the_clock_of_the_wall() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mut event = event();
        let by = Some(RequestId(3));
        let preempted = Preempted { request: RequestId(7), cause: PreemptionCause::Block, by, swapped: true };
        event.engines.preempt(preempted, 1530 * MS);
        let span = span(&event, end);
        let before_end = |at: SystemTime| end.duration_since(at).unwrap().as_millis();
        assert_eq!((before_end(span.begin), span.end, span.failure), (60, end, None));
        let events: Vec<_> = span.events.iter().map(|event| (before_end(event.at), event.name)).collect();
        let ran = [(59, "queued"), (58, "engine"), (50, "admitted"), (45, "engine"), (40, "first_token")];
        assert_eq!(events, [&ran[..], &[(30, "preempted")]].concat());
        assert_eq!(span.events[1].attributes, [("trunkline.engine", SpanValue::Count(2))]);
        let text = |text: &str| SpanValue::Text(text.into());
        let why = [("trunkline.cause", text("block")), ("trunkline.swapped", text("yes"))];
        assert_eq!(span.events[5].attributes, [&why[..], &[("trunkline.by", SpanValue::Count(3))]].concat());
        let of = |name| span.attributes.iter().find(|(of, _)| *of == name).map(|(_, value)| value.clone());
        assert_eq!(of("gen_ai.latency.time_in_queue"), Some(SpanValue::Seconds(0.01)));
        assert_eq!(of("gen_ai.usage.cache_read.input_tokens"), Some(SpanValue::Count(32)));
        assert_eq!(of("trunkline.request"), Some(SpanValue::Count(7)), "as in a recording");
        assert_eq!(of("trunkline.engines"), Some(SpanValue::Text("2>0".into())));
    }
}
