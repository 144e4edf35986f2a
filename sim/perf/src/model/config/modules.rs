//! Modules that a checkpoint lists, by name or pattern: of which part of the model they are, and of which layers.
//!
//! Tools list the modules that they quantise (`quantized_layers`, targets of `config_groups`), or those that they leave out (`ignore`,
//! `exclude_modules`, `modules_to_not_convert`), as names (`model.layers.3.mlp`), globs (`*.self_attn*`), expressions (`re:.*lm_head`) or
//! classes (`Linear`).

use crate::model::{Arithmetic, Bits, Precision};

/// Part of a model with matrices of one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Attention,
    Recurrent,
    /// Dense networks.
    Dense,
    /// Experts that every token passes through.
    Shared,
    /// Experts that a router chooses.
    Experts,
    Embedding,
    /// Output matrix.
    Head,
}

const PARTS: [Part; 7] =
    [Part::Attention, Part::Recurrent, Part::Dense, Part::Shared, Part::Experts, Part::Embedding, Part::Head];
/// Parts of which one or the other is in a layer.
const MIXERS: &[Part] = &[Part::Attention, Part::Recurrent];
/// Parts that a pattern of all modules means: ends are named.
const ALL: &[Part] = &[Part::Attention, Part::Recurrent, Part::Dense, Part::Shared, Part::Experts];
/// Parts that a pattern of all networks means.
const NETWORKS: &[Part] = &[Part::Dense, Part::Shared, Part::Experts];

/// Words in the names of modules that are not of the decoder, or too small to count.
const OTHERS: [&str; 13] = [
    "visual",
    "vision",
    "audio",
    "multi_modal",
    "mm_",
    "mtp",
    "nextn",
    "draft",
    "norm",
    "rotary",
    "router",
    "indexer",
    "conv1d",
];
/// Words in the names of recurrent layers.
const STATES: [&str; 4] = ["linear_attn", "mamba", "ssm", "mixer.in_proj"];
/// Matrices of attention.
const OF_ATTENTION: [&str; 9] =
    ["q_proj", "k_proj", "v_proj", "o_proj", "qkv", "q_a_proj", "q_b_proj", "out_proj", "in_proj"];
/// Words in the names of networks, and of their matrices.
const OF_NETWORKS: [&str; 7] = ["mlp", "ffn", "feed_forward", "gate_proj", "up_proj", "down_proj", "fc1"];

/// Returns the parts that a listed name or pattern means; none if it means no matrix that counts.
pub(super) fn parts_of(name: &str) -> &'static [Part] {
    let name = name.to_ascii_lowercase();
    let has = |word: &&str| name.contains(*word);
    let end = name.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_');
    if OTHERS.iter().any(has) {
        return &[];
    }
    if has(&"embed") {
        return &[Part::Embedding];
    }
    if ["lm_head", "output_layer"].iter().any(has) {
        return &[Part::Head];
    }
    // The gate of experts is a router; that of a shared expert is a vector.
    if end.ends_with(".gate") || end.ends_with("_gate") || end == "gate" {
        return &[];
    }
    if STATES.iter().any(has) {
        return &[Part::Recurrent];
    }
    if is_attention(&name, end) {
        let is_any =
            name.find("attn").is_some_and(|at| !name[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
        return if is_any { MIXERS } else { &[Part::Attention] };
    }
    if has(&"shared_expert") {
        return &[Part::Shared];
    }
    if has(&"expert") || has(&"block_sparse_moe") || has(&"fusedmoe") {
        return &[Part::Experts];
    }
    if OF_NETWORKS.iter().any(has) {
        let inside = name.split_once("mlp").is_some_and(|(_, rest)| rest.chars().any(char::is_alphanumeric));
        return if inside { &[Part::Dense] } else { NETWORKS };
    }
    let is_layer = name.rsplit(['.', '\\']).map(trimmed).find(|word| !word.is_empty());
    let is_layer = is_layer.is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'|'));
    let is_any = !name.trim_start_matches("re:").contains(char::is_alphanumeric);
    if is_any || is_layer || end.ends_with("linear") { ALL } else { &[] }
}

fn trimmed(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric())
}

/// Returns `true` for a name of all matrices of attention, or of one of the large ones.
fn is_attention(name: &str, end: &str) -> bool {
    let after = ["attn", "attention"].iter().find_map(|word| name.rfind(word).map(|at| &name[at + word.len()..]));
    match after.map(|after| after.trim_matches(|c: char| !c.is_alphanumeric() && c != '_')) {
        Some(part) => part.is_empty() || OF_ATTENTION.iter().any(|matrix| part.starts_with(matrix)),
        None => ["q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"].iter().any(|matrix| end.ends_with(matrix)),
    }
}

/// Returns the numbers of the layers in a name, one or several as in `(0|1|2)`; `None` for all layers.
fn layers_of(name: &str) -> Option<Vec<u64>> {
    let at = ["layers", "blocks", "h."].iter().find_map(|word| name.find(word).map(|at| at + word.len()))?;
    let rest = name[at..].trim_start_matches(['.', '\\', '(', '?', ':', '[', ']']);
    let numbers: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '|').collect();
    let numbers: Vec<u64> = numbers.split('|').filter_map(|number| number.parse().ok()).collect();
    (!numbers.is_empty()).then_some(numbers)
}

/// Bits and arithmetic of a matrix.
pub(super) type Form = (Bits, Arithmetic);

/// Form of matrices that are not quantised.
pub(super) const WHOLE: Form = (Bits::each(16), Arithmetic::Bits16);

/// Networks that every token passes through: by these the bits of a mixture are weighed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Networks {
    /// Layers with a dense network: all of them without experts.
    pub dense_layers: u64,
    /// Elements of dense networks, in any unit.
    pub dense: u64,
    /// Elements of shared experts, in the same unit.
    pub shared: u64,
}

/// Forms of all parts of a model, layer by layer.
pub(super) struct Table {
    forms: [Vec<Form>; PARTS.len()],
}

impl Table {
    /// Creates a table of so many layers, all in one form but for the ends, which stay whole.
    pub(super) fn new(layers: u64, form: Form) -> Self {
        let all = |form| vec![form; layers.max(1) as usize];
        Self { forms: PARTS.map(|part| all(if ALL.contains(&part) { form } else { WHOLE })) }
    }

    /// Gives the modules of a name or pattern a form.
    pub(super) fn set(&mut self, name: &str, form: Form) {
        let layers = layers_of(name);
        for part in parts_of(name) {
            self.set_part(*part, layers.as_deref(), form);
        }
    }

    /// Gives a part a form, in some layers or in all.
    pub(super) fn set_part(&mut self, part: Part, layers: Option<&[u64]>, form: Form) {
        let forms = &mut self.forms[part as usize];
        match layers {
            None => forms.fill(form),
            Some(layers) => layers.iter().for_each(|layer| {
                if let Some(at) = forms.get_mut(*layer as usize) {
                    *at = form;
                }
            }),
        }
    }

    /// Returns the bits of each part, a mean over its layers, and the arithmetic of most networks.
    pub(super) fn precision(&self, networks: Networks) -> Precision {
        let n_dense = (networks.dense_layers as usize).min(self.forms[0].len());
        let bits = |part: Part| {
            let forms = &self.forms[part as usize];
            // Dense networks come first.
            let forms = match part {
                Part::Dense => &forms[..n_dense],
                Part::Shared | Part::Experts => &forms[n_dense..],
                _ => forms,
            };
            Bits::mean(forms.iter().map(|(bits, _)| (*bits, 1)))
        };
        let narrow = [Part::Experts, Part::Dense].into_iter().flat_map(|part| &self.forms[part as usize]);
        let arithmetic = narrow.map(|(_, arithmetic)| *arithmetic).find(|it| *it != Arithmetic::Bits16);
        Precision {
            attention: bits(Part::Attention),
            recurrent: bits(Part::Recurrent),
            feed_forward: Bits::mean(
                [(bits(Part::Dense), networks.dense), (bits(Part::Shared), networks.shared)].into_iter(),
            ),
            experts: bits(Part::Experts),
            ends: Bits::mean([(bits(Part::Embedding), 1), (bits(Part::Head), 1)].into_iter()),
            arithmetic: arithmetic.unwrap_or(Arithmetic::Bits16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_patterns_mean_parts() {
        for (name, parts) in [
            ("model.layers.0.self_attn.q_proj", &[Part::Attention][..]),
            ("*.self_attn*", &[Part::Attention]),
            ("re:.*self_attn.*", &[Part::Attention]),
            ("re:.*q_proj$", &[Part::Attention]),
            ("model.layers.3.self_attn.q_norm", &[]),
            ("model.layers.3.self_attn.indexer.wk", &[]),
            ("model.layers.3.linear_attn.in_proj_qkvz", &[Part::Recurrent]),
            ("backbone.layers.4.mixer.in_proj", &[Part::Recurrent]),
            ("model.layers.1.mlp", NETWORKS),
            ("re:.*mlp.*", NETWORKS),
            ("model.layers.1.mlp.gate_proj", &[Part::Dense]),
            ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", &[Part::Dense]),
            ("model.layers.1.mlp.gate", &[]),
            ("re:.*mlp.gate$", &[]),
            ("re:.*mlp.shared_expert_gate$", &[]),
            ("model.layers.1.mlp.shared_experts.up_proj", &[Part::Shared]),
            ("model.layers.1.mlp.experts.7.up_proj", &[Part::Experts]),
            ("re:.*block_sparse_moe.*", &[Part::Experts]),
            ("Linear", ALL),
            ("re:.*", ALL),
            ("model.layers.61*", ALL),
            ("lm_head", &[Part::Head]),
            ("re:.*lm_head", &[Part::Head]),
            ("model.embed_tokens", &[Part::Embedding]),
            (".*attn.*", MIXERS),
            ("model.layers.0.linear_attn.conv1d", &[]),
            ("model.visual*", &[]),
            ("re:.*vision_tower.*self_attn.*", &[]),
            ("mtp.layers.0.mlp", &[]),
        ] {
            assert_eq!(parts_of(name), parts, "{name}");
        }
    }

    #[test]
    fn names_have_layers() {
        for (name, layers) in [
            ("model.layers.12.mlp", Some(vec![12])),
            ("model.language_model.layers.3.mlp.experts.77.up_proj", Some(vec![3])),
            ("re:.*layers\\.(0|1|2)\\.mlp.*", Some(vec![0, 1, 2])),
            ("model.layers.*.self_attn", None),
            ("*mlp*", None),
            ("re:.*layers\\.\\d+\\.mlp", None),
        ] {
            assert_eq!(layers_of(name), layers, "{name}");
        }
    }

    #[test]
    fn bits_are_means_over_layers() {
        let eight = (Bits::each(8), Arithmetic::Float8);
        let mut table = Table::new(4, eight);
        table.set("model.layers.0.self_attn", WHOLE);
        table.set("model.layers.9.self_attn", WHOLE);
        let networks = Networks { dense_layers: 1, dense: 3, shared: 1 };
        let precision = table.precision(networks);
        assert_eq!((precision.attention, precision.ends), (Bits::each(10), Bits::each(16)));
        assert_eq!((precision.experts, precision.arithmetic), (Bits::each(8), Arithmetic::Float8));
        table.set("lm_head", eight);
        assert_eq!(table.precision(networks).ends, Bits::each(12), "the embedding stays");
        table.set("model.layers.0.mlp", WHOLE);
        let precision = table.precision(networks);
        assert_eq!((precision.feed_forward, precision.experts), (Bits::each(14), Bits::each(8)), "a dense layer");
    }
}
