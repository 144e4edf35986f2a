//! Spans of requests, for a tracer: one for each request that ended or was refused, with ids, sizes and times, no prompt and no token.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::requests::request_events::{RequestEvent, code_name};

/// Place of a call in the trace of its client: the header `traceparent` of W3C's Trace Context, level 1, of which the version 00 is read and the parts
/// of later ones that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace, not zero.
    pub trace_id: u128,
    /// Id of the client's span, not zero.
    pub span_id: u64,
    /// `true` if the client records the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads the header. `None` for what is not one: the request then begins a trace of its own, as the standard says.
    pub fn parse(header: &str) -> Option<Self> {
        let hex = |part: Option<&str>, digits: usize| {
            let part = part?;
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let is_good = part.len() == digits && part.bytes().all(is_hex);
            is_good.then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let mut parts = header.trim().split('-');
        let version = hex(parts.next(), 2)?;
        let (trace_id, span_id, flags) = (hex(parts.next(), 32)?, hex(parts.next(), 16)?, hex(parts.next(), 2)?);
        let is_known = version == 0 && parts.next().is_none() || (1..0xff).contains(&version);
        (is_known && trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id: span_id as u64,
            sampled: flags & 1 == 1,
        })
    }
}

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
    fn a_trace_parent_is_read_as_the_standard_says() {
        let whole = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = TraceParent::parse(whole).unwrap();
        assert_eq!((read.span_id, read.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(read.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(TraceParent::parse(&whole.replace("-01", "-02")).map(|parent| parent.sampled), Some(false));
        assert_eq!(TraceParent::parse(&(whole.replacen("00", "cc", 1) + "-what-comes")), Some(read), "a later version");
        let wrong = [
            whole.to_uppercase(),
            whole.replacen("00", "ff", 1),
            whole.to_owned() + "-more",
            whole.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            whole.replace("00f067aa0ba902b7", &"0".repeat(16)),
            whole.replace("-01", "-1"),
            whole.replace("00f0", "+0f0"),
            String::new(),
        ];
        for wrong in wrong {
            assert_eq!(TraceParent::parse(&wrong), None, "{wrong}");
        }
    }

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
