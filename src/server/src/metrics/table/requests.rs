//! Metrics of requests and their tokens.

use super::{ENGINE, Metric, counter, gauge, histogram};
use crate::metrics::samples::Samples;
use crate::metrics::scrape::Scrape;
use crate::requests::histogram::Histogram;
use crate::requests::request_times::RequestFigures;

pub(super) const METRICS: &[Metric] = &[
    gauge("trunkline_num_requests_running", ENGINE, "Requests in the running batch.", |s, out| {
        s.each(out, |engine| engine.status.stats.running);
    }),
    gauge("trunkline_num_requests_waiting", ENGINE, "Accepted requests without a place in the batch.", |s, out| {
        s.each(out, |engine| engine.status.stats.waiting);
    }),
    gauge("trunkline_num_requests_loading", ENGINE, "Admitted requests that wait for blocks from a tier.", |s, out| {
        s.each(out, |engine| engine.status.stats.loading);
    }),
    gauge("trunkline_num_requests_swapped", ENGINE, "Preempted requests with KV in host memory.", |s, out| {
        s.each(out, |engine| engine.status.stats.swapped);
    }),
    counter(
        "trunkline_requests_accepted_total",
        ENGINE,
        "Requests accepted, and moved here from other engines.",
        |s, out| {
            s.each(out, |engine| engine.status.stats.requests.accepted);
        },
    ),
    counter("trunkline_requests_withdrawn_total", ENGINE, "Requests moved to other engines.", |s, out| {
        s.each(out, |engine| engine.status.stats.requests.withdrawn);
    }),
    counter(
        "trunkline_requests_restarted_total",
        ENGINE,
        "Running requests computed again because the worker lost their KV.",
        |s, out| s.each(out, |engine| engine.status.stats.requests.restarted),
    ),
    counter(
        "trunkline_request_success_total",
        &["finished_reason"],
        "Accepted requests ended, by reason.",
        |s, out| {
            for (reason, n) in s.model.iter().flat_map(|model| model.requests.ended()) {
                out.add(&[("finished_reason", reason)], n);
            }
        },
    ),
    counter("trunkline_requests_refused_total", &["reason"], "Requests refused, by reason.", |s, out| {
        for (reason, n) in s.network.counters.refusals.each() {
            out.add(&[("reason", reason)], n);
        }
    }),
    counter(
        "trunkline_num_preemptions_total",
        ENGINE,
        "Running requests that gave up their blocks to others.",
        |s, out| {
            s.each(out, |engine| engine.status.stats.preemptions);
        },
    ),
    counter(
        "trunkline_prompt_tokens_total",
        ENGINE,
        "Prompt tokens of requests at their first admission.",
        |s, out| {
            s.each(out, |engine| engine.status.stats.tokens.prompt_tokens);
        },
    ),
    counter("trunkline_generation_tokens_total", ENGINE, "Tokens generated.", |s, out| {
        s.each(out, |engine| engine.status.stats.tokens.generated_tokens);
    }),
    counter(
        "trunkline_prefix_cache_queries_total",
        ENGINE,
        "Prompt tokens looked up in the prefix cache: those of trunkline_prompt_tokens_total.",
        |s, out| s.each(out, |engine| engine.status.stats.tokens.prompt_tokens),
    ),
    counter(
        "trunkline_prefix_cache_hits_total",
        ENGINE,
        "Prompt tokens found in the prefix cache, on the device or in a tier.",
        |s, out| s.each(out, |engine| engine.status.stats.tokens.cached_tokens),
    ),
    counter(
        "trunkline_copied_prompt_tokens_total",
        ENGINE,
        "Prompt tokens copied from other places in the cache (--reuse-anywhere).",
        |s, out| s.each(out, |engine| engine.status.stats.tokens.copied_tokens),
    ),
    histogram("trunkline_time_to_first_token_seconds", &[], "From the arrival to the first token.", |s, out| {
        of_requests(s, out, |requests| &requests.first_token);
    }),
    histogram("trunkline_inter_token_latency_seconds", &[], "Between two steps with tokens of a request.", |s, out| {
        of_requests(s, out, |requests| &requests.inter_token);
    }),
    histogram(
        "trunkline_request_time_per_output_token_seconds",
        &[],
        "Mean time of the tokens of a request behind the first.",
        |s, out| of_requests(s, out, |requests| &requests.output_token),
    ),
    histogram("trunkline_e2e_request_latency_seconds", &[], "From the arrival to the end.", |s, out| {
        of_requests(s, out, |requests| &requests.e2e);
    }),
    histogram("trunkline_request_queue_time_seconds", &[], "From the arrival to the first step.", |s, out| {
        of_requests(s, out, |requests| &requests.queue);
    }),
    histogram("trunkline_request_prefill_time_seconds", &[], "From the first step to the first token.", |s, out| {
        of_requests(s, out, |requests| &requests.prefill);
    }),
    histogram("trunkline_request_decode_time_seconds", &[], "From the first token to the last.", |s, out| {
        of_requests(s, out, |requests| &requests.decode);
    }),
    histogram("trunkline_request_prompt_tokens", &[], "Prompt tokens of a request.", |s, out| {
        of_requests(s, out, |requests| &requests.prompt_tokens);
    }),
    histogram("trunkline_request_generation_tokens", &[], "Tokens generated by a request.", |s, out| {
        of_requests(s, out, |requests| &requests.generated_tokens);
    }),
    histogram("trunkline_request_params_max_tokens", &[], "Most tokens that a request asks for.", |s, out| {
        of_requests(s, out, |requests| &requests.max_tokens);
    }),
];

fn of_requests(scrape: &Scrape, out: &mut Samples<'_>, histogram: fn(&RequestFigures) -> &Histogram) {
    if let Some(model) = &scrape.model {
        out.histogram(&[], histogram(&model.requests));
    }
}
