//! Sampling and attention scores that a server offers: no more than each of its workers can do.

use trunkline_attach::Abilities;
use trunkline_cluster::ClusterConfig;
use trunkline_core::h2o::Mode;
use trunkline_port::Sampling;
use trunkline_quote::quoted;

use crate::service::validate::{Invalid, LOGPROBS_MAX};

/// Sampling and scores that the server offers to its clients. Every worker of a server can do as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingOffer {
    /// Most likely tokens reported with each token, at most; 0 for no log probabilities at all.
    pub max_logprobs: u32,
    /// Sampling parameters other than temperature 0, and a repetition penalty.
    pub seeded_sampling: bool,
    /// Penalties for generated tokens, and biases of logits.
    pub penalties: bool,
    /// Answers with the structure that a request asks for.
    pub grammars: bool,
    /// Attention scores of blocks, which requests with `h2o` need.
    pub scores: bool,
    /// Log probabilities of prompts.
    pub prompt_logprobs: bool,
}

impl Default for SamplingOffer {
    /// All that the protocol of the clients has.
    fn default() -> Self {
        Self {
            max_logprobs: LOGPROBS_MAX,
            seeded_sampling: true,
            penalties: true,
            grammars: true,
            scores: true,
            prompt_logprobs: true,
        }
    }
}

impl SamplingOffer {
    /// Returns an offer within the abilities of a worker.
    pub fn within(abilities: &Abilities) -> Self {
        let Abilities { max_logprobs, seeded_sampling, penalties, grammars, scores, prompt_logprobs, .. } = *abilities;
        let max_logprobs = max_logprobs.min(LOGPROBS_MAX);
        Self { max_logprobs, seeded_sampling, penalties, grammars, scores, prompt_logprobs }
    }

    /// Returns the offer of a server whose last `attached` engines take workers that it does not know yet: these have scores only if the limits of
    /// the engines ask for them, and perhaps no grammars and no log probabilities of prompts.
    pub(crate) fn with_attached(self, cluster: &ClusterConfig, attached: usize) -> Self {
        let embedded = cluster.engines.len().saturating_sub(attached);
        let scored = cluster.engines[embedded..].iter().all(|engine| engine.core.h2o.mode != Mode::Off);
        let (grammars, prompt_logprobs) = (self.grammars && attached == 0, self.prompt_logprobs && attached == 0);
        Self { scores: self.scores && scored, grammars, prompt_logprobs, ..self }
    }

    /// Compares the parameters of a request with the offer. A worker without scores fails a step that asks for them, with all of its requests.
    pub(crate) fn check(&self, sampling: &Sampling, h2o: Option<Mode>) -> Result<(), Invalid> {
        if let Some(field) = sampling.penalty().filter(|_| !self.penalties) {
            return Err(Invalid(format!("{field} is not supported by the workers of this server; leave it out")));
        }
        if sampling.grammar.is_some() && !self.grammars {
            return Err(Invalid(
                "structured output is not supported by the workers of this server; leave it out".into(),
            ));
        }
        let is_greedy = sampling.temperature == 0.0 && sampling.repetition_penalty == 1.0;
        if !self.seeded_sampling && !is_greedy {
            let message =
                "the workers of this server pick the most likely token; send temperature 0 and no repetition_penalty";
            return Err(Invalid(message.into()));
        }
        if let Some(mode) = h2o.filter(|mode| *mode != Mode::Off && !self.scores) {
            let mode = mode.name();
            return Err(Invalid(format!(
                "h2o is {mode}; the workers of this server report no attention scores",
                mode = quoted(mode)
            )));
        }
        self.check_number("logprobs", sampling.logprobs)
    }

    /// Compares the log probabilities of a prompt that a request asks for with the offer.
    pub(crate) fn check_prompt(&self, n_top: Option<u32>) -> Result<(), Invalid> {
        if n_top.is_some() && !self.prompt_logprobs {
            let message = "prompt_logprobs is not supported by the workers of this server: they report none of prompts; leave it out";
            return Err(Invalid(message.into()));
        }
        self.check_number("prompt_logprobs", n_top)
    }

    fn check_number(&self, field: &str, n_top: Option<u32>) -> Result<(), Invalid> {
        match n_top {
            Some(_) if self.max_logprobs == 0 => {
                Err(Invalid(format!("the workers of this server report no log probabilities; leave {field} out")))
            }
            Some(n) if n > self.max_logprobs => {
                let most = self.max_logprobs;
                Err(Invalid(format!("{field} is {n}; the workers of this server report at most {most}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_port::{Grammar, GrammarKind};

    use super::*;

    #[test]
    fn requests_beyond_the_workers_abilities_get_one_line() {
        let message =
            |offer: SamplingOffer, sampling: Sampling| offer.check(&sampling, None).err().map(|invalid| invalid.0);
        let with = |logprobs| Sampling { logprobs, ..Sampling::default() };
        let none = SamplingOffer::within(&Abilities::default());
        assert_eq!(message(none, with(None)), None);
        assert!(message(none, with(Some(0))).unwrap().starts_with("the workers of this server report no log prob"));
        for sampling in [
            Sampling { temperature: 0.7, ..Sampling::default() },
            Sampling { repetition_penalty: 1.1, ..Sampling::default() },
        ] {
            assert!(message(none, sampling.clone()).unwrap().contains("send temperature 0"));
            assert_eq!(message(SamplingOffer::default(), sampling), None);
        }
        let all = Abilities {
            max_logprobs: 1000,
            seeded_sampling: true,
            penalties: true,
            grammars: true,
            scores: true,
            prompt_logprobs: true,
            ..Abilities::default()
        };
        for (sampling, field) in [
            (Sampling { frequency_penalty: 0.1, ..Sampling::default() }, "frequency_penalty"),
            (Sampling { presence_penalty: -0.1, ..Sampling::default() }, "presence_penalty"),
            (Sampling { logit_bias: [(1, 1.0)].into_iter().collect(), ..Sampling::default() }, "logit_bias"),
        ] {
            let line = format!("{field} is not supported by the workers of this server; leave it out");
            let without = SamplingOffer { penalties: false, ..SamplingOffer::default() };
            assert_eq!(message(without, sampling.clone()), Some(line));
            assert_eq!(message(SamplingOffer { seeded_sampling: false, ..SamplingOffer::default() }, sampling), None);
        }
        let grammar = Some(Grammar::new(GrammarKind::Regex, "a"));
        let structured = Sampling { grammar, ..Sampling::default() };
        let without = SamplingOffer { grammars: false, ..SamplingOffer::default() };
        let line = "structured output is not supported by the workers of this server; leave it out";
        assert_eq!(message(without, structured.clone()), Some(line.into()));
        assert_eq!(message(SamplingOffer::default(), structured), None);
        let few = SamplingOffer::within(&Abilities { max_logprobs: 3, ..all });
        assert_eq!(message(few, with(Some(3))), None);
        let line = message(few, with(Some(4))).unwrap();
        assert_eq!(line, "logprobs is 4; the workers of this server report at most 3");
        assert_eq!(SamplingOffer::within(&all), SamplingOffer::default());
        let prompt = |offer: SamplingOffer, n_top| offer.check_prompt(n_top).err().map(|invalid| invalid.0);
        let line = prompt(SamplingOffer { prompt_logprobs: false, ..few }, Some(0)).unwrap();
        assert!(line.starts_with("prompt_logprobs is not supported by the workers of this server"), "{line}");
        assert_eq!([prompt(few, Some(3)), prompt(none, None)], [None, None]);
        let line = "prompt_logprobs is 4; the workers of this server report at most 3";
        assert_eq!(prompt(few, Some(4)), Some(line.into()));
        let asks = |offer: SamplingOffer, h2o| offer.check(&Sampling::default(), h2o).err().map(|invalid| invalid.0);
        for mode in [Mode::Probe, Mode::On] {
            let line = format!("h2o is '{}'; the workers of this server report no attention scores", mode.name());
            assert_eq!((asks(none, Some(mode)), asks(few, Some(mode))), (Some(line), None));
        }
        assert_eq!((asks(none, Some(Mode::Off)), asks(none, None)), (None, None));
    }
}
