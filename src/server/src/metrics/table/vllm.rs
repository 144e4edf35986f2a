//! Figures under vLLM's names, summed over engines, for what reads those: endpoint pickers, autoscalers, benchmarks and boards.

use trunkline_core::Stats;

use super::{Metric, counter, gauge, histogram, info};
use crate::metrics::samples::{Labels, Samples, Value};
use crate::metrics::scrape::{OfModel, Scrape};
use crate::requests::histogram::Histogram;
use crate::requests::request_times::RequestFigures;

/// Beginning of the names.
pub(super) const PREFIX: &str = "vllm:";
/// The label of all.
const MODEL: &[&str] = &["model_name"];

pub(super) const METRICS: &[Metric] = &[
    gauge("vllm:num_requests_running", MODEL, "Requests in the batches.", |s, out| sum(s, out, |of| of.running.into())),
    gauge("vllm:num_requests_waiting", MODEL, "Requests waiting.", |s, out| sum(s, out, |of| of.waiting.into())),
    gauge("vllm:kv_cache_usage_perc", MODEL, "Share of device blocks in use by requests, 0 to 1.", |s, out| {
        each(s, |model, labels| {
            let engines = model.engines.len().max(1) as f64;
            out.add(
                labels,
                model.engines.iter().map(|engine| engine.at.status.stats.kv_usage()).sum::<f64>() / engines,
            );
        });
    }),
    info(
        "vllm:cache_config_info",
        &["model_name", "block_size", "num_gpu_blocks"],
        "Blocks of the devices.",
        |s, out| {
            each(s, |model, _| {
                let config = &model.submitter.config;
                let blocks = u64::from(config.device_blocks) * model.engines.len() as u64;
                let (block_size, blocks) = (config.block_size.to_string(), blocks.to_string());
                let name = model.submitter.model.name.as_str();
                out.info(&[("model_name", name), ("block_size", &block_size), ("num_gpu_blocks", &blocks)]);
            });
        },
    ),
    counter("vllm:prompt_tokens_total", MODEL, "Prompt tokens.", |s, out| sum(s, out, |of| of.tokens.prompt_tokens)),
    counter("vllm:generation_tokens_total", MODEL, "Tokens generated.", |s, out| {
        sum(s, out, |of| of.tokens.generated_tokens);
    }),
    counter("vllm:prefix_cache_queries_total", MODEL, "Prompt tokens looked up in the prefix cache.", |s, out| {
        sum(s, out, |of| of.tokens.prompt_tokens);
    }),
    counter("vllm:prefix_cache_hits_total", MODEL, "Prompt tokens found in the prefix cache.", |s, out| {
        sum(s, out, |of| of.tokens.cached_tokens);
    }),
    counter("vllm:num_preemptions_total", MODEL, "Preemptions.", |s, out| sum(s, out, |of| of.preemptions)),
    counter(
        "vllm:request_success_total",
        &["model_name", "finished_reason"],
        "Requests ended, by reason.",
        |s, out| {
            each(s, |model, _| {
                for (reason, n) in model.requests.ended() {
                    out.add(&[("model_name", &model.submitter.model.name), ("finished_reason", reason)], n);
                }
            });
        },
    ),
    counter("vllm:spec_decode_num_draft_tokens_total", MODEL, "Drafted tokens.", |s, out| {
        each(s, |model, labels| out.add(labels, model.engines.iter().map(|e| e.at.counts.drafted).sum::<u64>()));
    }),
    counter("vllm:spec_decode_num_accepted_tokens_total", MODEL, "Drafted tokens that were sampled.", |s, out| {
        each(s, |model, labels| out.add(labels, model.engines.iter().map(|e| e.at.counts.accepted).sum::<u64>()));
    }),
    histogram("vllm:time_to_first_token_seconds", MODEL, "From the arrival to the first token.", |s, out| {
        of_requests(s, out, |requests| &requests.first_token);
    }),
    histogram("vllm:inter_token_latency_seconds", MODEL, "Between two steps with tokens of a request.", |s, out| {
        of_requests(s, out, |requests| &requests.inter_token);
    }),
    histogram(
        "vllm:request_time_per_output_token_seconds",
        MODEL,
        "Mean time of the tokens of a request after the first.",
        |s, out| of_requests(s, out, |requests| &requests.output_token),
    ),
    histogram("vllm:e2e_request_latency_seconds", MODEL, "From the arrival to the end.", |s, out| {
        of_requests(s, out, |requests| &requests.e2e);
    }),
    histogram("vllm:request_queue_time_seconds", MODEL, "From the arrival to the first step.", |s, out| {
        of_requests(s, out, |requests| &requests.queue);
    }),
    histogram("vllm:request_prefill_time_seconds", MODEL, "From the first step to the first token.", |s, out| {
        of_requests(s, out, |requests| &requests.prefill);
    }),
    histogram("vllm:request_decode_time_seconds", MODEL, "From the first token to the last.", |s, out| {
        of_requests(s, out, |requests| &requests.decode);
    }),
];

/// Calls `add` with the model and its label, once the server knows it.
fn each(scrape: &Scrape, mut add: impl FnMut(&OfModel, Labels<'_>)) {
    if let Some(model) = &scrape.model {
        add(model, &[("model_name", &model.submitter.model.name)]);
    }
}

fn sum(scrape: &Scrape, out: &mut Samples<'_>, figure: fn(&Stats) -> u64) {
    each(scrape, |model, labels| {
        let sum: u64 = model.engines.iter().map(|engine| figure(&engine.at.status.stats)).sum();
        out.add(labels, Value::from(sum));
    });
}

fn of_requests(scrape: &Scrape, out: &mut Samples<'_>, histogram: fn(&RequestFigures) -> &Histogram) {
    each(scrape, |model, labels| out.histogram(labels, histogram(&model.requests)));
}
