//! Comparison of an attached worker with the server: the model, the blocks, and the abilities that the server's limits need.

use trunkline_attach::Hello;
use trunkline_core::Config;
use trunkline_core::h2o::Mode;
use trunkline_port::{Keeps, ModelInfo};
use trunkline_quote::cut;

use crate::service::offer::SamplingOffer;

/// Longest block that travels between server and worker, bytes: a message holds one.
pub(crate) const BLOCK_BYTES_MAX: u64 = 63 << 20;

/// Returns the longest scores of one step, bytes, for a server that is expected to ask for scores or not: a message holds the result of a step.
pub(crate) fn scores_bytes_max(scores: bool) -> u64 {
    if scores { 1 << 30 } else { BLOCK_BYTES_MAX }
}

impl SamplingOffer {
    /// Returns the offer of a server of attached workers with the limits `core`: without scores if the mode of the server needs none, and those of the
    /// largest step do not fit a result.
    #[must_use]
    pub fn fitting(self, core: &Config) -> Self {
        let fits = core.h2o.mode != Mode::Off || check_scores(core, scores_bytes_max(false)).is_ok();
        Self { scores: self.scores && fits, ..self }
    }
}

/// Demands of a server on its attached workers.
pub(crate) struct Fit {
    pub(crate) model: ModelInfo,
    /// Limits of the engines for attached workers: each worker fits all of them.
    pub(crate) cores: Vec<Config>,
    pub(crate) offer: SamplingOffer,
    /// Size of a block, bytes.
    pub(crate) block_bytes: u64,
    /// Longest scores of one step, bytes.
    scores_bytes_max: u64,
}

impl Fit {
    /// Makes the demands of a server with a model, limits of the engines for attached workers, and an offer to clients.
    pub(crate) fn new<'a>(
        model: &ModelInfo,
        cores: impl Iterator<Item = &'a Config>,
        offer: SamplingOffer,
        scores: bool,
    ) -> Self {
        let within = |core: &Config| Config { max_context: core.max_context.min(model.max_context), ..core.clone() };
        let cores: Vec<Config> = cores.map(within).collect();
        let block_bytes = cores.first().map_or(0, |core| model.block_bytes(core.block_size));
        Self { model: model.clone(), cores, offer, block_bytes, scores_bytes_max: scores_bytes_max(scores) }
    }

    /// Returns the size of a block, tokens.
    pub(crate) fn block_size(&self) -> u32 {
        self.cores.first().map_or(1, |core| core.block_size)
    }

    /// Compares a worker with the server.
    ///
    /// # Errors
    /// If the worker has another model, too few blocks, or lacks an ability; one line says which.
    pub(crate) fn check(&self, hello: &Hello) -> Result<(), String> {
        self.check_model(&hello.model)?;
        self.cores.iter().try_for_each(|core| check_blocks(core, hello).and_then(|()| check_limits(core, hello)))?;
        let offer = self.offer;
        let can = &hello.abilities;
        if offer.seeded_sampling && !can.seeded_sampling {
            return Err("the server's requests sample, which needs seeded_sampling".into());
        }
        if offer.penalties && !can.penalties {
            return Err("the server's requests may have penalties and biases of logits, which needs penalties; update the worker".into());
        }
        if offer.grammars && !can.grammars {
            return Err("the server's requests may ask for a structure of the answer, which needs grammars".into());
        }
        if offer.prompt_logprobs && !can.prompt_logprobs {
            return Err("the server's requests may ask for log probabilities of their prompts, which needs prompt_logprobs; update the worker".into());
        }
        if can.max_logprobs < offer.max_logprobs {
            let (has, needed) = (can.max_logprobs, offer.max_logprobs);
            return Err(format!("max_logprobs is {has}; the server offers {needed} to its clients"));
        }
        if offer.scores && !can.scores {
            return Err("the server's requests may ask for attention scores (h2o), which needs scores".into());
        }
        if offer.scores {
            self.cores.iter().try_for_each(|core| check_scores(core, self.scores_bytes_max))?;
        }
        if self.needs_copies() {
            if !hello.kv.block_io {
                return Err("the server swaps requests out or has tiers, which needs block_io".into());
            }
            if self.block_bytes > BLOCK_BYTES_MAX {
                let bytes = self.block_bytes;
                return Err(format!(
                    "a block has {bytes} bytes; up to {BLOCK_BYTES_MAX} bytes can be swapped or kept in tiers"
                ));
            }
        }
        Ok(())
    }

    fn needs_copies(&self) -> bool {
        self.cores.iter().any(|core| core.host_blocks > 0 || !core.tiers.is_empty())
    }

    fn check_model(&self, theirs: &ModelInfo) -> Result<(), String> {
        let ours = &self.model;
        let different = |what: &str, theirs: &dyn std::fmt::Debug, ours: &dyn std::fmt::Debug| {
            Err(format!(
                "model.{what} is {}, and {ours:?} at the server; all workers of a server have one model",
                cut(&format!("{theirs:?}"))
            ))
        };
        macro_rules! equal {
            ($($field:ident),*) => { $(if theirs.$field != ours.$field {
                return different(stringify!($field), &theirs.$field, &ours.$field);
            })* };
        }
        equal!(name, revision, vocab_size, n_layers, hidden_size, n_heads, n_kv_heads, head_dim, kv_dtype);
        // Requests bring the tokens that end them, and the files of the server may name more than the worker's.
        if !theirs.eos_token_ids.iter().all(|token| ours.eos_token_ids.contains(token)) {
            return different("eos_token_ids", &theirs.eos_token_ids, &ours.eos_token_ids);
        }
        if theirs.groups != ours.groups {
            let (n, needed) = (theirs.groups.len(), ours.groups.len());
            return Err(format!(
                "the model has {n} layer groups, and {needed} other ones at the server; start the worker with the same options of h2o, --scored-layers of trunkline-worker among them"
            ));
        }
        equal!(kv_bytes_per_token);
        Ok(())
    }
}

fn check_blocks(core: &Config, hello: &Hello) -> Result<(), String> {
    let size = core.block_size;
    if !hello.kv.block_sizes.contains(&size) {
        return Err(format!(
            "the server has blocks of {size} tokens, and kv.block_sizes is {:?}",
            hello.kv.block_sizes
        ));
    }
    let (has, needed) = (hello.kv.tokens / u64::from(size), u64::from(core.pool_blocks()));
    if has < needed {
        return Err(format!("kv.tokens has room for {has} blocks of {size} tokens; the server needs {needed}"));
    }
    Ok(())
}

/// Compares the scores of the largest step with the longest message. Requests that share a prefix have scores of the prefix each, so the blocks
/// of the device are no bound.
fn check_scores(core: &Config, bytes_max: u64) -> Result<(), String> {
    let lists = if core.h2o.by_group { core.n_groups() } else { 1 };
    let entries = u64::from(core.max_context.div_ceil(core.block_size)) * u64::from(core.max_batch_size);
    let bytes = entries.saturating_mul(u64::from(lists) * size_of::<f32>() as u64);
    if bytes <= bytes_max {
        return Ok(());
    }
    let (sequences, context) = (core.max_batch_size, core.max_context);
    let lists = if core.h2o.by_group { format!(" in {lists} layer groups") } else { String::new() };
    Err(format!(
        "a step of {sequences} sequences of {context} tokens{lists} has {bytes} bytes of attention scores, and a result has up to {bytes_max}; lower --max-batch-size of the server or the context of its workers{}",
        if core.h2o.by_group { ", or start it with --h2o-choice shared" } else { "" }
    ))
}

fn check_limits(core: &Config, hello: &Hello) -> Result<(), String> {
    let can = &hello.abilities;
    let least = [
        ("model.max_context", hello.model.max_context, core.max_context),
        ("max_sequences", can.max_sequences, core.max_batch_size),
        ("max_tokens", can.max_tokens, core.max_batch_tokens),
        ("steps_in_flight", can.steps_in_flight, core.max_steps_in_flight),
    ];
    if let Some((name, has, needed)) = least.into_iter().find(|(_, has, needed)| has < needed) {
        return Err(format!("{name} is {has}; the server needs {needed}"));
    }
    let (stages, theirs) = (core.pipeline_stages, can.pipeline_stages);
    if stages > theirs {
        return Err(format!("pipeline_stages is {theirs}; the server divides decodes among {stages} stages"));
    }
    if !core.worker.whole_block_hits && !can.partial_writes {
        return Err("the server's prefix hits end within blocks, which needs partial_writes".into());
    }
    if core.worker.in_step_hits && !can.in_step_hits {
        return Err("the server lets prompts read what the same step computes, which needs in_step_hits".into());
    }
    if core.worker.reuse.anywhere > 0 {
        return Err("the server copies tokens between blocks (--reuse-anywhere), which attached workers cannot".into());
    }
    if core.h2o.mode != Mode::Off && !can.scores {
        return Err("the server evicts by attention (H2O), which needs scores".into());
    }
    if core.h2o.by_group && !can.scores_by_group {
        return Err("each KV head drops the blocks that it reads least itself (h2o-choice own), which needs scores_by_group; start the server with --h2o-choice shared".into());
    }
    if core.h2o.mode == Mode::On && !core.worker.groups.contains(&Keeps::Scored) {
        return Err(
            "the server evicts by attention (H2O), and no layer group of the worker drops tokens; start the worker with --h2o on, or trunkline-worker with --scored-layers"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use trunkline_core::{H2oConfig, WorkerFacts};
    use trunkline_port::LayerGroup;

    use super::*;
    use crate::engines::seats::AttachOptions;
    use crate::service::attach::message_bytes_max;

    fn core(sequences: u32, context: u32, by_group: bool) -> Config {
        Config {
            max_batch_size: sequences,
            max_context: context,
            block_size: 16,
            worker: WorkerFacts { groups: vec![Keeps::Scored; 256], ..WorkerFacts::default() },
            h2o: H2oConfig { by_group, ..H2oConfig::default() },
            ..Config::default()
        }
    }

    #[test]
    fn a_worker_with_other_layer_groups_is_refused_for_them_and_not_for_what_follows_from_them() {
        let model = |groups: &[&[u32]], kv_bytes_per_token| {
            let group = |layers: &&[u32]| LayerGroup { layers: layers.to_vec(), ..LayerGroup::default() };
            ModelInfo { groups: groups.iter().map(group).collect(), kv_bytes_per_token, ..ModelInfo::default() }
        };
        let ours = model(&[&[0, 2], &[1, 3]], 64);
        let fit = Fit::new(&ours, std::iter::empty(), SamplingOffer::default(), false);
        let check = |theirs: ModelInfo| fit.check_model(&theirs);
        assert_eq!(check(ours.clone()), Ok(()));
        let refused = |n: usize| {
            Err(format!(
                "the model has {n} layer groups, and 2 other ones at the server; start the worker with the same options of h2o, --scored-layers of trunkline-worker among them"
            ))
        };
        assert_eq!(check(model(&[], 128)), refused(0));
        assert_eq!(check(model(&[&[0, 1], &[2, 3]], 64)), refused(2));
        assert_eq!(check(model(&[&[0, 1, 2], &[3]], 96)), refused(2));
        let other_kv = check(model(&[&[0, 2], &[1, 3]], 32));
        let expected = "model.kv_bytes_per_token is 32, and 64 at the server; all workers of a server have one model";
        assert_eq!(other_kv, Err(expected.into()));
    }

    #[test]
    fn scores_of_the_largest_step_fit_a_message_or_the_worker_is_refused() {
        // Each sequence of 32,768 tokens has 2,048 entries of 4 bytes in 256 groups: 2 MiB.
        let check_scores = |core: &Config| check_scores(core, scores_bytes_max(true));
        assert_eq!(check_scores(&core(512, 32_768, true)), Ok(()));
        let fault = "a step of 513 sequences of 32768 tokens in 256 layer groups has 1075838976 bytes of attention scores, and a result has up to 1073741824; lower --max-batch-size of the server or the context of its workers, or start it with --h2o-choice shared";
        assert_eq!(check_scores(&core(513, 32_768, true)), Err(fault.into()));
        assert_eq!(check_scores(&core(513, 32_768, false)), Ok(()));
        let little = super::check_scores(&core(32, 32_768, true), scores_bytes_max(false)).unwrap_err();
        assert!(little.contains("67108864 bytes of attention scores, and a result has up to 66060288;"), "{little}");
        let [without, with] =
            [false, true].map(|scores| message_bytes_max(&AttachOptions { scores, ..AttachOptions::default() }));
        assert_eq!((without, with), (64 << 20, (1 << 30) + (1 << 20)), "no more than is expected of a peer");
        let offers = |core: Config| SamplingOffer::default().fitting(&core).scores;
        let asking = |core: Config| Config { h2o: H2oConfig { mode: Mode::On, ..core.h2o }, ..core };
        assert!(offers(core(31, 32_768, true)) && !offers(core(32, 32_768, true)), "nobody is refused for scores");
        assert!(offers(asking(core(513, 32_768, true))), "the worker is");
        let fault = check_scores(&core(16_384, 1 << 20, false)).unwrap_err();
        assert!(fault.ends_with("lower --max-batch-size of the server or the context of its workers"), "{fault}");
    }
}
