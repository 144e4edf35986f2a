//! Parameters for picking the next token, applied by a worker.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::grammar::Grammar;
use crate::ids::Token;

/// Sampling parameters of one request. The core hands the parameters to the worker unread, except for [`Sampling::needs_history`]:
/// only then does a worker receive the whole history of a sequence.
///
/// Logits are changed in the order `logit_bias`, `repetition_penalty`, `frequency_penalty`, `presence_penalty`, then divided by `temperature`: the
/// order of vLLM (the docs of `Sampler` in `vllm/v1/sample/sampler.py`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divisor of the logits, from 0.01 to 100; 0 is greedy.
    pub temperature: f32,
    /// Number of most likely tokens to choose from; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below this share of the most likely token's probability; 0 drops none.
    pub min_p: f32,
    /// Logits of tokens already in the sequence are divided (if positive) or multiplied (if negative) by this; 1 is off.
    pub repetition_penalty: f32,
    /// Taken from the logit of a token once for each time that the token was generated; 0 is off. Tokens of the prompt do not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub frequency_penalty: f32,
    /// Taken from the logits of tokens that were generated at all; 0 is off. Tokens of the prompt do not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub presence_penalty: f32,
    /// Added to the logits of single tokens.
    #[serde(default, skip_serializing_if = "LogitBias::is_empty")]
    pub logit_bias: LogitBias,
    /// Structure of the answer: tokens that would leave it are not picked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grammar: Option<Grammar>,
    /// The n-th token of a request is drawn from (seed, n) alone, so neither batching nor preemption changes the token.
    pub seed: u64,
    /// Number of most likely tokens to report with each token; `None` reports no log probabilities at all.
    pub logprobs: Option<u32>,
}

fn is_zero(value: &f32) -> bool {
    *value == 0.0
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: LogitBias::default(),
            grammar: None,
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Returns `true` if the next token depends on earlier tokens other than through the model.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.counts_generated() || self.grammar.is_some()
    }

    /// Returns `true` if the next token depends on how often tokens were generated.
    pub fn counts_generated(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Returns the first parameter in use that a worker without [penalties](Self) lacks: all but `repetition_penalty`, which each worker that samples has.
    pub fn penalty(&self) -> Option<&'static str> {
        let used = [
            ("frequency_penalty", self.frequency_penalty != 0.0),
            ("presence_penalty", self.presence_penalty != 0.0),
            ("logit_bias", !self.logit_bias.is_empty()),
        ];
        used.into_iter().find(|(_, is_used)| *is_used).map(|(name, _)| name)
    }
}

/// Numbers to add to the logits of tokens, each token once, in the order of the tokens. Copies share the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitBias(Option<Arc<[(Token, f32)]>>);

impl LogitBias {
    /// Returns the tokens with their numbers.
    pub fn entries(&self) -> &[(Token, f32)] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns `true` if there is nothing to add.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }
}

impl FromIterator<(Token, f32)> for LogitBias {
    /// Sorts the entries; of several of one token the last one counts.
    fn from_iter<I: IntoIterator<Item = (Token, f32)>>(entries: I) -> Self {
        let sorted: std::collections::BTreeMap<Token, f32> = entries.into_iter().collect();
        Self((!sorted.is_empty()).then(|| sorted.into_iter().collect()))
    }
}

impl Serialize for LogitBias {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.entries().serialize(to)
    }
}

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<(Token, f32)>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_leaves_no_trace_and_what_is_on_is_read_back() {
        let plain = serde_json::to_string(&Sampling::default()).unwrap();
        assert_eq!(
            plain,
            r#"{"temperature":0.0,"top_k":0,"top_p":1.0,"min_p":0.0,"repetition_penalty":1.0,"seed":0,"logprobs":null}"#
        );
        let all = Sampling {
            frequency_penalty: -2.0,
            presence_penalty: 0.5,
            logit_bias: [(9, 1.5), (2, -100.0), (9, 2.5)].into_iter().collect(),
            ..Sampling::default()
        };
        assert_eq!(all.logit_bias.entries(), [(2, -100.0), (9, 2.5)]);
        for sampling in [Sampling::default(), all] {
            let json = serde_json::to_string(&sampling).unwrap();
            assert_eq!(serde_json::from_str::<Sampling>(&json).unwrap(), sampling);
        }
    }

    #[test]
    fn parameters_in_use_are_found_by_name() {
        let of = |change: fn(&mut Sampling)| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            (sampling.penalty(), sampling.needs_history(), sampling.counts_generated())
        };
        assert_eq!(of(|_| ()), (None, false, false));
        assert_eq!(of(|sampling| sampling.repetition_penalty = 2.0), (None, true, false));
        assert_eq!(of(|sampling| sampling.frequency_penalty = -1.0), (Some("frequency_penalty"), true, true));
        assert_eq!(of(|sampling| sampling.presence_penalty = 1.0), (Some("presence_penalty"), true, true));
        let bias = |sampling: &mut Sampling| sampling.logit_bias = [(1, 0.0)].into_iter().collect();
        assert_eq!(of(bias), (Some("logit_bias"), false, false));
    }
}
