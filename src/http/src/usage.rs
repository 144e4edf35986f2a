//! Tokens that a request consumed, in OpenAI's form, and its times, in vLLM's.

use serde::Serialize;
use trunkline_server::proto::{Finish, Timings, Usage as WireUsage};

/// Tokens that a request consumed, all choices together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct CompletionDetails {
    /// Tokens of reasoning, with its marks.
    reasoning_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct PromptDetails {
    /// Prompt tokens found in the prefix cache.
    cached_tokens: u32,
    /// Prompt tokens that the request marks for the cache, and that were not there.
    #[serde(skip_serializing_if = "is_zero")]
    cache_write_tokens: u32,
    /// Prompt tokens whose KV was copied from elsewhere in the cache.
    #[serde(skip_serializing_if = "is_zero")]
    copied_tokens: u32,
    /// Prompt tokens found in the cache that came from tiers.
    #[serde(skip_serializing_if = "is_zero")]
    loaded_tokens: u32,
    /// Tokens that pins of the request hold.
    #[serde(skip_serializing_if = "is_zero")]
    pinned_tokens: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Usage {
    pub(crate) fn add_prompt(&mut self, tokens: u32) {
        self.prompt_tokens += tokens;
        self.total_tokens += tokens;
    }

    pub(crate) fn add_tokens(&mut self, tokens: usize) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }

    /// Sets the tokens of reasoning among those generated.
    pub(crate) fn set_reasoning(&mut self, reasoning_tokens: usize) {
        self.completion_tokens_details = Some(CompletionDetails { reasoning_tokens });
    }

    /// Adds what the first choice of a prompt found in the cache, of which the tokens up to `marked` are to be kept.
    pub(crate) fn add_cached(&mut self, usage: &WireUsage, marked: u32) {
        let marked = marked.min(usage.prompt_tokens);
        let found = usage.cached_tokens + usage.copied_tokens;
        self.prompt_tokens_details.cache_write_tokens += marked.saturating_sub(found);
        self.prompt_tokens_details.cached_tokens += usage.cached_tokens;
        self.prompt_tokens_details.copied_tokens += usage.copied_tokens;
        self.prompt_tokens_details.loaded_tokens += usage.loaded_tokens;
        self.prompt_tokens_details.pinned_tokens += usage.pinned_tokens;
    }
}

/// Times of a request on the server, as vLLM's `PerRequestMetrics`, and preemptions. Of several choices, the slowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Metrics {
    time_to_first_token_ms: f64,
    queue_time_ms: f64,
    prefill_time_ms: f64,
    generation_time_ms: f64,
    mean_itl_ms: f64,
    tokens_per_second: f64,
    preemptions: u32,
}

impl Metrics {
    /// Adds the times of a choice that ended.
    pub(crate) fn add(&mut self, finish: &Finish) {
        let Timings { queue_ms, prefill_ms, decode_ms } = finish.timings.unwrap_or_default();
        let WireUsage { completion_tokens, preemptions, .. } = finish.usage.unwrap_or_default();
        self.preemptions += preemptions;
        if queue_ms + prefill_ms + decode_ms < self.time_to_first_token_ms + self.generation_time_ms {
            return;
        }
        let further = completion_tokens.saturating_sub(1);
        *self = Self {
            time_to_first_token_ms: queue_ms + prefill_ms,
            queue_time_ms: queue_ms,
            prefill_time_ms: prefill_ms,
            generation_time_ms: decode_ms,
            mean_itl_ms: if further > 0 { decode_ms / f64::from(further) } else { 0.0 },
            tokens_per_second: if decode_ms > 0.0 { f64::from(further) * 1e3 / decode_ms } else { 0.0 },
            preemptions: self.preemptions,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_add_up_and_the_slowest_has_the_times() {
        let mut usage = Usage::default();
        usage.add_prompt(10);
        usage.add_tokens(3);
        usage.add_tokens(4);
        usage.add_cached(&WireUsage { prompt_tokens: 10, cached_tokens: 7, ..WireUsage::default() }, 8);
        let json = serde_json::to_string(&usage).unwrap();
        assert_eq!(
            json,
            r#"{"prompt_tokens":10,"completion_tokens":7,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":7,"cache_write_tokens":1}}"#
        );
        let finish = |decode_ms, preemptions| Finish {
            usage: Some(WireUsage { completion_tokens: 5, preemptions, ..WireUsage::default() }),
            timings: Some(Timings { queue_ms: 1.0, prefill_ms: 2.0, decode_ms }),
            ..Finish::default()
        };
        let mut metrics = Metrics::default();
        metrics.add(&finish(8.0, 1));
        metrics.add(&finish(4.0, 1));
        let expected = Metrics {
            time_to_first_token_ms: 3.0,
            queue_time_ms: 1.0,
            prefill_time_ms: 2.0,
            generation_time_ms: 8.0,
            mean_itl_ms: 2.0,
            tokens_per_second: 500.0,
            preemptions: 2,
        };
        assert_eq!(metrics, expected);
    }
}
