//! Sampling parameters, to and from messages.

use trunkline_port::{Grammar, GrammarKind, Sampling};

use crate::wire;

/// Converts sampling parameters to a message.
pub fn encode_sampling(sampling: &Sampling) -> wire::WorkerSampling {
    wire::WorkerSampling {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        seed: sampling.seed,
        logprobs: sampling.logprobs,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        logit_bias: sampling.logit_bias.entries().iter().copied().collect(),
        grammar: sampling.grammar.as_ref().map(encode_grammar),
    }
}

fn encode_grammar(grammar: &Grammar) -> wire::WorkerGrammar {
    use wire::worker_grammar::Text;
    let text = grammar.text().to_owned();
    let text = match grammar.kind {
        GrammarKind::JsonSchema => Text::JsonSchema(text),
        GrammarKind::Regex => Text::Regex(text),
        GrammarKind::Lark => Text::Lark(text),
    };
    wire::WorkerGrammar { text: Some(text) }
}

/// Returns the grammar of a message; one of a language that is not known is none, and the ability to honour it was not announced.
fn decode_grammar(message: &wire::WorkerGrammar) -> Option<Grammar> {
    use wire::worker_grammar::Text;
    let (kind, text) = match message.text.as_ref()? {
        Text::JsonSchema(text) => (GrammarKind::JsonSchema, text),
        Text::Regex(text) => (GrammarKind::Regex, text),
        Text::Lark(text) => (GrammarKind::Lark, text),
    };
    Some(Grammar::new(kind, text.as_str()))
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}; it must be {range}")]
pub struct SamplingFault {
    /// Name of the parameter.
    pub field: &'static str,
    /// Value in the message.
    pub value: f32,
    /// Valid values, in words.
    pub range: &'static str,
}

/// Converts a message to sampling parameters.
///
/// # Errors
/// If a parameter is outside its range.
pub fn decode_sampling(message: &wire::WorkerSampling) -> Result<Sampling, SamplingFault> {
    let at_least_0 = |value: f32| value.is_finite() && value >= 0.0;
    let (top_p, penalty) = (message.top_p, message.repetition_penalty);
    let (frequency, presence) = (message.frequency_penalty, message.presence_penalty);
    let checks = [
        ("temperature", message.temperature, at_least_0(message.temperature), "a number of at least 0"),
        ("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1"),
        ("min_p", message.min_p, (0.0..=1.0).contains(&message.min_p), "from 0 to 1"),
        ("repetition_penalty", penalty, at_least_0(penalty) && penalty > 0.0, "a number above 0"),
        ("frequency_penalty", frequency, frequency.abs() <= 2.0, "from -2 to 2"),
        ("presence_penalty", presence, presence.abs() <= 2.0, "from -2 to 2"),
    ];
    let biases = message.logit_bias.values().map(|bias| ("logit_bias", *bias, bias.abs() <= 100.0, "from -100 to 100"));
    if let Some((field, value, _, range)) = checks.into_iter().chain(biases).find(|(_, _, good, _)| !good) {
        return Err(SamplingFault { field, value, range });
    }
    Ok(Sampling {
        temperature: message.temperature,
        top_k: message.top_k,
        top_p,
        min_p: message.min_p,
        repetition_penalty: penalty,
        frequency_penalty: frequency,
        presence_penalty: presence,
        logit_bias: message.logit_bias.iter().map(|(token, bias)| (*token, *bias)).collect(),
        grammar: message.grammar.as_ref().and_then(decode_grammar),
        seed: message.seed,
        logprobs: message.logprobs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_survives_the_wire() {
        let all = Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            repetition_penalty: 1.1,
            frequency_penalty: -2.0,
            presence_penalty: 0.5,
            logit_bias: [(7, 100.0), (0, -0.5)].into_iter().collect(),
            grammar: Some(Grammar::new(GrammarKind::Regex, "a+")),
            seed: u64::MAX,
            logprobs: Some(0),
        };
        let with = |kind| Sampling { grammar: Some(Grammar::new(kind, "x")), ..Sampling::default() };
        for sampling in [Sampling::default(), all, with(GrammarKind::JsonSchema), with(GrammarKind::Lark)] {
            assert_eq!(decode_sampling(&encode_sampling(&sampling)), Ok(sampling));
        }
    }

    #[test]
    fn parameters_outside_their_range_are_refused_by_name() {
        let good = encode_sampling(&Sampling::default());
        for bad in [f32::NAN, f32::INFINITY, -1.0] {
            for (field, message) in [
                ("temperature", wire::WorkerSampling { temperature: bad, ..good.clone() }),
                ("top_p", wire::WorkerSampling { top_p: bad, ..good.clone() }),
                ("min_p", wire::WorkerSampling { min_p: bad, ..good.clone() }),
                ("repetition_penalty", wire::WorkerSampling { repetition_penalty: bad, ..good.clone() }),
                ("frequency_penalty", wire::WorkerSampling { frequency_penalty: 3.0 * bad, ..good.clone() }),
                ("presence_penalty", wire::WorkerSampling { presence_penalty: 3.0 * bad, ..good.clone() }),
                ("logit_bias", wire::WorkerSampling { logit_bias: [(3, 101.0 * bad)].into(), ..good.clone() }),
            ] {
                assert_eq!(decode_sampling(&message).unwrap_err().field, field);
            }
        }
        // A message without parameters has top_p and the penalty at 0, outside their ranges.
        assert!(decode_sampling(&wire::WorkerSampling::default()).is_err());
    }
}
