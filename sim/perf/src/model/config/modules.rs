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
    let is_layer = is_layer.is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit() || b"|-".contains(&byte)));
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

/// Greatest number of layers that a pattern may mean.
const LAYERS_MAX: u64 = 1 << 12;

/// Returns the numbers of the layers in a name: one, several as in `(0|1|2)` or `[0-3]`, or all that begin alike as in the glob `1*`; `None` for all
/// layers, and for any other expression.
fn layers_of(name: &str) -> Option<Vec<u64>> {
    let at = ["layers", "blocks", "h."].iter().find_map(|word| name.find(word).map(|at| at + word.len()))?;
    let rest = name[at..].strip_prefix("[.]").unwrap_or(&name[at..]);
    let rest = rest.trim_start_matches(['.', '\\', '(', '?', ':']);
    if let Some((class, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return class_of(class).filter(|_| !goes_on(after) && !after.starts_with(['*', '|']));
    }
    let numbers: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '|').collect();
    let after = &rest[numbers.len()..];
    let listed: Vec<&str> = numbers.split('|').filter(|number| !number.is_empty()).collect();
    if listed.is_empty() || goes_on(after) {
        return None;
    }
    if after.starts_with('*') {
        let begins = |layer: &u64| listed.iter().any(|begin| layer.to_string().starts_with(begin));
        return Some((0..LAYERS_MAX).filter(begins).collect());
    }
    Some(listed.iter().filter_map(|number| number.parse().ok()).collect())
}

/// Returns `true` if what is after a number is more of an expression of numbers.
fn goes_on(after: &str) -> bool {
    let is_dot = after.starts_with("[.]");
    !is_dot && after.starts_with(['[', '(', '+', '?', '{']) || after.starts_with("\\d")
}

/// Returns the digits of a class, such as `0-3` or `024`; `None` for any other class.
fn class_of(class: &str) -> Option<Vec<u64>> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    match class.as_bytes() {
        [first, b'-', last] => Some((digit(*first)?..=digit(*last)?).collect()),
        digits => digits.iter().map(|byte| digit(*byte)).collect(),
    }
}

/// Bits and arithmetic of a matrix.
pub(super) type Form = (Bits, Arithmetic);

/// Form of matrices that are not quantised.
pub(super) const WHOLE: Form = (Bits::each(16), Arithmetic::Bits16);

/// Networks that a token passes through: by these the bits of a mixture are weighed, and its arithmetic is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Networks<'a> {
    /// For each layer, whether its network is dense: `true` for all of them without experts.
    pub is_dense: &'a [bool],
    /// Elements of dense networks, in any unit.
    pub dense: u64,
    /// Elements of shared experts, in the same unit.
    pub shared: u64,
    /// Elements of the experts that the router chooses for a token, in the same unit.
    pub experts: u64,
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

    /// Returns the forms of a part in the layers that have it.
    fn forms_of(&self, part: Part, networks: Networks<'_>) -> Vec<Form> {
        let is_in = |layer: usize| {
            let is_dense = networks.is_dense.get(layer).copied().unwrap_or(false);
            match part {
                Part::Dense => is_dense,
                Part::Shared | Part::Experts => !is_dense,
                _ => true,
            }
        };
        let forms = self.forms[part as usize].iter().enumerate();
        forms.filter(|(layer, _)| is_in(*layer)).map(|(_, form)| *form).collect()
    }

    /// Returns the arithmetic of most elements of networks that a token passes through.
    fn arithmetic(&self, networks: Networks<'_>) -> Arithmetic {
        let parts = [(Part::Dense, networks.dense), (Part::Shared, networks.shared), (Part::Experts, networks.experts)]
            .map(|(part, elements)| (self.forms_of(part, networks), elements as f64));
        let elements = |arithmetic: Arithmetic| {
            let of = |(forms, elements): &(Vec<Form>, f64)| {
                let n = forms.iter().filter(|form| form.1 == arithmetic).count();
                elements * n as f64 / forms.len().max(1) as f64
            };
            parts.iter().map(of).sum::<f64>()
        };
        let more = |most, it| if elements(it) > elements(most) { it } else { most };
        [Arithmetic::Float4, Arithmetic::Float8, Arithmetic::Int8].into_iter().fold(Arithmetic::Bits16, more)
    }

    /// Returns the bits of each part, a mean over its layers, and the arithmetic of most networks.
    pub(super) fn precision(&self, networks: Networks<'_>) -> Precision {
        let bits = |part: Part| Bits::mean(self.forms_of(part, networks).iter().map(|(bits, _)| (*bits, 1)));
        Precision {
            attention: bits(Part::Attention),
            recurrent: bits(Part::Recurrent),
            feed_forward: Bits::mean(
                [(bits(Part::Dense), networks.dense), (bits(Part::Shared), networks.shared)].into_iter(),
            ),
            experts: bits(Part::Experts),
            ends: Bits::mean([(bits(Part::Embedding), 1), (bits(Part::Head), 1)].into_iter()),
            arithmetic: self.arithmetic(networks),
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
            ("model.layers.[0-3].mlp", Some(vec![0, 1, 2, 3])),
            ("re:.*layers[.][02][.]mlp", Some(vec![0, 2])),
            ("re:.*layers\\.[0-9]+\\.mlp", None),
            ("re:.*layers\\.[1-2][0-9]\\.mlp", None),
            ("re:.*layers\\.(1[0-9]|20)\\.mlp", None),
            ("model.layers.1.*", Some(vec![1])),
        ] {
            assert_eq!(layers_of(name), layers, "{name}");
        }
        let glob = layers_of("model.layers.1*").unwrap();
        assert_eq!(glob[..12], [1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 100]);
    }

    #[test]
    fn bits_are_means_over_layers() {
        let eight = (Bits::each(8), Arithmetic::Float8);
        let mut table = Table::new(4, eight);
        table.set("model.layers.0.self_attn", WHOLE);
        table.set("model.layers.9.self_attn", WHOLE);
        let networks = Networks { is_dense: &[true, false, false, false], dense: 3, shared: 1, experts: 8 };
        let precision = table.precision(networks);
        assert_eq!((precision.attention, precision.ends), (Bits::each(10), Bits::each(16)));
        assert_eq!((precision.experts, precision.arithmetic), (Bits::each(8), Arithmetic::Float8));
        table.set("lm_head", eight);
        assert_eq!(table.precision(networks).ends, Bits::each(12), "the embedding stays");
        table.set("model.layers.0.mlp", WHOLE);
        let precision = table.precision(networks);
        assert_eq!((precision.feed_forward, precision.experts), (Bits::each(14), Bits::each(8)), "a dense layer");
    }

    #[test]
    fn the_dense_layers_are_those_of_the_set() {
        let mut table = Table::new(4, (Bits::each(8), Arithmetic::Float8));
        table.set("model.layers.0.mlp", WHOLE);
        table.set("model.layers.2.mlp", WHOLE);
        let networks = Networks { is_dense: &[true, false, true, false], dense: 1, shared: 0, experts: 1 };
        let Precision { feed_forward, experts, .. } = table.precision(networks);
        assert_eq!((feed_forward, experts), (Bits::each(16), Bits::each(8)));
    }

    #[test]
    fn the_arithmetic_is_that_of_most_elements_of_networks() {
        let eight = (Bits::each(8), Arithmetic::Float8);
        // A dense model in FP8 whose networks are all left out: the experts that it does not have are not counted.
        let mut table = Table::new(2, eight);
        table.set("re:.*mlp\\.(gate|up|down)_proj", WHOLE);
        let dense = Networks { is_dense: &[true; 2], dense: 1, shared: 0, experts: 0 };
        assert_eq!(table.precision(dense).arithmetic, Arithmetic::Bits16);
        table.set("model.layers.1.mlp", eight);
        assert_eq!(table.precision(dense).arithmetic, Arithmetic::Bits16, "half and half");
        // Experts of four bits with one dense layer in FP8.
        let mut table = Table::new(4, (Bits::grouped(4, 8, 16), Arithmetic::Bits16));
        table.set("model.layers.0.mlp.up_proj", eight);
        let mixed = Networks { is_dense: &[true, false, false, false], dense: 3, shared: 1, experts: 8 };
        assert_eq!(table.precision(mixed).arithmetic, Arithmetic::Bits16);
        assert_eq!(table.precision(Networks { dense: 10, ..mixed }).arithmetic, Arithmetic::Float8);
    }
}
