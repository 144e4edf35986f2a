//! Sorts of layers in a configuration, and the sizes of recurrent ones.
//!
//! | layers | published by | sizes of a state |
//! |---|---|---|
//! | Mamba (arXiv 2312.00752) | Jamba | `mamba_expand * hidden_size` channels of `mamba_d_state` |
//! | Mamba 2 (arXiv 2405.21060) | Bamba, Granite 4, Falcon-H1, Nemotron-H | heads of `mamba_d_head` by `mamba_d_state` |
//! | gated delta nets (arXiv 2412.06464) | Qwen3-Next, Qwen3.5 | value heads of key width by value width |

use serde::Deserialize;
use serde_json::Value;

use super::ModelError;
use crate::model::Hybrid;

/// Fields that say the sorts of layers, under the first of their names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LayerFields {
    num_hidden_layers: u64,
    model_type: String,
    layer_types: Option<Vec<String>>,
    hybrid_override_pattern: Option<String>,
    attn_layer_period: Option<u64>,
    attn_layer_offset: u64,
    full_attention_interval: Option<u64>,
    attn_layer_indices: Option<Vec<u64>>,
    /// Sorts of layers of MiniMax, and of Kimi Linear: not known here.
    attn_type_list: Option<Value>,
    linear_attn_config: Option<Value>,
    /// Inputs of the convolutions of LFM2: not known here.
    #[serde(alias = "conv_L_cache")]
    conv_l_cache: Option<Value>,
    index_topk: Option<u64>,
    #[serde(flatten)]
    sizes: RecurrentSizes,
}

/// Fields with the sizes of recurrent layers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RecurrentSizes {
    hidden_size: u64,
    #[serde(alias = "mamba_num_heads")]
    mamba_n_heads: Option<u64>,
    #[serde(alias = "mamba_head_dim")]
    mamba_d_head: Option<u64>,
    mamba_d_state: Option<u64>,
    #[serde(alias = "n_groups")]
    mamba_n_groups: Option<u64>,
    #[serde(alias = "conv_kernel", alias = "linear_conv_kernel_dim")]
    mamba_d_conv: Option<u64>,
    #[serde(alias = "expand")]
    mamba_expand: Option<u64>,
    mamba_dt_rank: Option<u64>,
    linear_num_key_heads: Option<u64>,
    linear_key_head_dim: Option<u64>,
    linear_num_value_heads: Option<u64>,
    linear_value_head_dim: Option<u64>,
    #[serde(alias = "mamba_ssm_cache_dtype")]
    mamba_ssm_dtype: Option<String>,
}

/// Sorts of layers with attention, as in `layer_types`.
const ATTENTION: [&str; 4] = ["full_attention", "sliding_attention", "chunked_attention", "attention"];
/// Sort of layers with a sparse index, which is known of a latent cache.
const INDEXED: &str = "indexed_attention";
/// Sorts of layers that are a feed-forward network alone, dense or of experts, in Nemotron-H.
const FEED_FORWARD: [&str; 2] = ["mlp", "moe"];
/// Sorts of layers with a recurrent state.
const RECURRENT: [&str; 3] = ["mamba", "mamba2", "linear_attention"];

/// Numbers of layers by sort.
#[derive(Clone, Copy)]
struct Counts {
    /// Layers with all that a layer of a transformer has. A pattern counts attention and feed-forward networks apart.
    layers: u64,
    attention: u64,
    recurrent: u64,
    feed_forward: u64,
}

/// Bytes of the activations that a convolution keeps.
const ELEMENT_BYTES: u64 = 2;
/// Inputs of a convolution, if the configuration does not say.
const CONVOLUTION: u64 = 4;
/// Greatest size of a dimension of a recurrent layer: products of three fit in 64 bits.
const SIZE_MAX: u64 = 1 << 20;
/// Greatest number of layers.
const LAYERS_MAX: u64 = 1 << 12;

impl LayerFields {
    /// Returns the number of layers, each with attention, a recurrent state, or both, and the layers by their sorts; `None` if all have attention and a
    /// feed-forward network.
    ///
    /// # Errors
    ///
    /// [`ModelError::Recurrent`] with the field that names layers of sorts or sizes not known here.
    pub(super) fn hybrid(&self, name: &str) -> Result<Option<(u64, Hybrid)>, ModelError> {
        let unknown = |field| ModelError::Recurrent { name: name.into(), field };
        let (field, counts) = self.counts();
        let Some(counts) = counts.map_err(unknown)? else { return Ok(None) };
        if [counts.layers, counts.attention, counts.recurrent].into_iter().any(|n| n > LAYERS_MAX) {
            return Err(unknown(field));
        }
        let [elements, state, convolution] = self.sizes.of_layer().ok_or_else(|| unknown(field))?;
        if counts.attention == 0 {
            return Err(ModelError::NoAttention { name: name.into(), field });
        }
        let hybrid = Hybrid {
            attention_layers: counts.attention,
            recurrent_layers: counts.recurrent,
            feed_forward_layers: counts.feed_forward,
            elements,
            state_elements: state,
            state_dtype_bytes: self.sizes.state_dtype_bytes(),
            convolution_bytes: convolution * ELEMENT_BYTES,
        };
        Ok(Some((counts.layers, hybrid)))
    }

    /// Returns the number of layers with experts or a dense network instead of them, in a pattern; `None` without a pattern.
    pub(super) fn dense_in_pattern(&self) -> Option<u64> {
        let pattern = self.hybrid_override_pattern.as_ref();
        pattern.map(|pattern| pattern.matches('-').count() as u64).or_else(|| {
            let sorts = self.layer_types.as_ref().filter(|sorts| lists_feed_forward(sorts))?;
            Some(sorts.iter().filter(|sort| *sort == FEED_FORWARD[0]).count() as u64)
        })
    }

    /// Returns the field that says the sorts of layers, and the numbers of layers by it; `None` if none is recurrent, an error if a sort
    /// is not known.
    fn counts(&self) -> (&'static str, Result<Option<Counts>, &'static str>) {
        let n = self.num_hidden_layers;
        let with =
            |recurrent: u64| Counts { layers: n, attention: n.saturating_sub(recurrent), recurrent, feed_forward: n };
        let some = |counts: Counts| Ok((counts.recurrent > 0).then_some(counts));
        if let Some(pattern) = &self.hybrid_override_pattern {
            let count = |sorts: &str| pattern.chars().filter(|sort| sorts.contains(*sort)).count() as u64;
            let (attention, recurrent, feed_forward) = (count("*"), count("M"), count("-E"));
            let counts =
                Counts { layers: (attention + recurrent).max(feed_forward), attention, recurrent, feed_forward };
            let all = counts.attention + counts.recurrent + counts.feed_forward;
            let known = all == pattern.chars().count() as u64;
            return ("hybrid_override_pattern", if known { some(counts) } else { Err("hybrid_override_pattern") });
        }
        if let Some(sorts) = &self.layer_types {
            let counts = self.counts_of(sorts).ok_or("layer_types");
            return ("layer_types", counts.map(|counts| Some(counts).filter(|counts| counts.recurrent > 0)));
        }
        if let Some(period) = self.attn_layer_period.filter(|period| *period > 1) {
            let attention = (0..n).filter(|layer| layer % period == self.attn_layer_offset).count() as u64;
            return ("attn_layer_period", some(with(n - attention)));
        }
        if let Some(interval) = self.full_attention_interval.filter(|interval| *interval > 1) {
            return ("full_attention_interval", some(with(n - n / interval)));
        }
        if let Some(layers) = &self.attn_layer_indices {
            return ("attn_layer_indices", some(with(n.saturating_sub(layers.len() as u64))));
        }
        // All layers of MiniMax M2 have attention.
        let is_attention = |sort: &Value| sort.as_u64() == Some(1);
        let others = |sorts: &Value| !sorts.as_array().is_some_and(|sorts| sorts.iter().all(is_attention));
        if self.attn_type_list.as_ref().is_some_and(others) {
            return ("attn_type_list", Err("attn_type_list"));
        }
        for (field, value) in [("linear_attn_config", &self.linear_attn_config), ("conv_L_cache", &self.conv_l_cache)] {
            if value.is_some() {
                return (field, Err(field));
            }
        }
        if self.model_type == "falcon_h1" {
            // Each layer has both side by side.
            return ("model_type", Ok(Some(Counts { layers: n, attention: n, recurrent: n, feed_forward: n })));
        }
        let pure = || Counts { layers: n, attention: 0, recurrent: n, feed_forward: 0 };
        let counts = match self.sizes.mamba_d_state {
            None => Ok(None),
            Some(_) if self.model_type.contains("mamba") => Ok(Some(pure())),
            Some(_) => Err("mamba_d_state"),
        };
        ("mamba_d_state", counts)
    }

    /// Returns the numbers of layers by a list of their sorts; `None` if a sort is not known.
    fn counts_of(&self, sorts: &[String]) -> Option<Counts> {
        let count = |of: &[&str]| sorts.iter().filter(|sort| of.contains(&sort.as_str())).count() as u64;
        let indexed = if self.index_topk.is_some() { count(&[INDEXED]) } else { 0 };
        let (attention, recurrent, alone) = (count(&ATTENTION) + indexed, count(&RECURRENT), count(&FEED_FORWARD));
        if attention + recurrent + alone != sorts.len() as u64 {
            return None;
        }
        if alone == 0 {
            let n = self.num_hidden_layers;
            return Some(Counts { layers: n, attention: n.saturating_sub(recurrent), recurrent, feed_forward: n });
        }
        // Networks apart from attention are known with recurrent layers only.
        let layers = (attention + recurrent).max(alone);
        (recurrent > 0).then_some(Counts { layers, attention, recurrent, feed_forward: alone })
    }
}

/// Returns `true` if a list of sorts names feed-forward networks apart from attention.
fn lists_feed_forward(sorts: &[String]) -> bool {
    sorts.iter().any(|sort| FEED_FORWARD.contains(&sort.as_str()))
}

impl RecurrentSizes {
    /// Returns the bytes of an element of a state; `None` if that is left to the engine, as by `auto`.
    fn state_dtype_bytes(&self) -> Option<u64> {
        match self.mamba_ssm_dtype.as_deref()? {
            "float32" => Some(4),
            "bfloat16" | "float16" => Some(2),
            _ => None,
        }
    }

    /// Returns the elements of the matrices of a layer, of a state, and of the last inputs of the convolution; `None` for sizes of no sort
    /// known here.
    fn of_layer(&self) -> Option<[u64; 3]> {
        self.gated_delta_net().or_else(|| self.mamba2()).or_else(|| self.mamba())
    }

    /// Returns the elements of the matrices of a gated delta net, of its state, and of its convolution's last inputs.
    fn gated_delta_net(&self) -> Option<[u64; 3]> {
        let (heads, width) = (self.linear_num_value_heads?, self.linear_value_head_dim?);
        let (key_heads, key_width) = (self.linear_num_key_heads?, self.linear_key_head_dim?);
        fit([heads, width, key_heads, key_width, self.convolution()], self.hidden_size)?;
        let (keys, values) = (key_heads * key_width, heads * width);
        let inputs = self.hidden_size * (2 * keys + 2 * values + 2 * heads);
        let elements = inputs + values * self.hidden_size;
        Some([elements, heads * key_width * width, (2 * keys + values) * (self.convolution() - 1)])
    }

    /// Returns the same of a Mamba 2 layer.
    fn mamba2(&self) -> Option<[u64; 3]> {
        let (heads, width, state) = (self.mamba_n_heads?, self.mamba_d_head?, self.mamba_d_state?);
        let groups = self.mamba_n_groups.unwrap_or(1);
        fit([heads, width, state, groups, self.convolution()], self.hidden_size)?;
        let inner = heads * width;
        let inputs = self.hidden_size * (2 * inner + 2 * groups * state + heads);
        let elements = inputs + inner * self.hidden_size;
        Some([elements, inner * state, (inner + 2 * groups * state) * (self.convolution() - 1)])
    }

    /// Returns the same of a Mamba layer.
    fn mamba(&self) -> Option<[u64; 3]> {
        let (expand, state) = (self.mamba_expand?, self.mamba_d_state?);
        let rank = self.mamba_dt_rank.unwrap_or(self.hidden_size.div_ceil(16));
        fit([expand, state, rank, self.convolution()], self.hidden_size)?;
        let inner = expand * self.hidden_size;
        let elements = inner * (3 * self.hidden_size + 2 * rank + 2 * state);
        Some([elements, inner * state, inner * (self.convolution() - 1)])
    }

    /// Returns the inputs of a convolution.
    fn convolution(&self) -> u64 {
        self.mamba_d_conv.unwrap_or(CONVOLUTION)
    }
}

/// Returns `None` if a size is 0 or out of proportion.
fn fit<const N: usize>(sizes: [u64; N], hidden: u64) -> Option<()> {
    let within = sizes.iter().all(|size| (1..=SIZE_MAX).contains(size));
    let product = sizes.iter().map(|size| *size as f64).product::<f64>() * hidden as f64;
    (within && product < (1u64 << 48) as f64).then_some(())
}
