//! A small model made from a seed: real arithmetic without a download, for tests, demonstrations and a server without a model
//! folder.
//!
//! The vocabulary is the 256 bytes, a begin and an end token. The text is noise, mostly printable; the same seed gives the same
//! weights on every machine.

use crate::config::{LayerParts, ModelConfig};
use crate::matrix::Matrix;
use crate::model::Model;
use crate::noise::Noise;
use crate::weights::{LayerWeights, Weights};

/// The begin token, after the bytes 0 to 255.
pub(crate) const BOS: u32 = 256;
/// End token of the seeded model, after the begin token.
pub(crate) const EOS: u32 = 257;
/// Number of token ids: 256 bytes, begin and end.
pub(crate) const VOCAB: u32 = 258;

/// Name of the model, for [`Model::name`].
const NAME: &str = "seeded-tiny";

/// Attention is made sharp and strong: soft attention to many positions averages itself away, and greedy text would be a function
/// of the last token, a short circle.
const ATTENTION_GAIN: f32 = 3.0;

/// Scale of the head's rows for unprintable bytes: below 1, to make printable bytes likelier.
const UNPRINTABLE_SCALE: f32 = 0.25;

/// Shape of the seeded model.
pub(crate) fn tiny_config() -> ModelConfig {
    ModelConfig {
        vocab_size: VOCAB,
        hidden_size: 64,
        intermediate_size: 128,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        max_context: 32_768,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
        tied_head: false,
        parts: LayerParts::default(),
        eos_token_ids: Vec::new(),
    }
}

impl Model {
    /// A small model with weights drawn from `seed`, made in memory: 2 layers of width 64, 4 query heads on 2 KV heads,
    /// the vocabulary of the byte tokenizer (256 bytes, a begin and an end token), a context of 32,768 tokens, no EOS.
    pub fn seeded(seed: u64) -> Model {
        let config = tiny_config();
        let mut noise = Noise::new(seed);
        // With gain 1 a matrix keeps the size of its input.
        let mut matrix = |outputs: usize, inputs: usize, gain: f32| -> Vec<f32> {
            let bound = gain * (3.0 / inputs as f32).sqrt();
            (0..outputs * inputs).map(|_| noise.uniform(bound)).collect()
        };
        let (vocab, hidden) = (config.vocab_size as usize, config.hidden_size as usize);
        let inner = config.intermediate_size as usize;
        let mut packed = |outputs, inputs, gain| Matrix::from_f32(inputs, &matrix(outputs, inputs, gain));
        let layers = (0..config.n_layers)
            .map(|_| LayerWeights {
                attention_norm: vec![1.0; hidden],
                q: packed(config.q_width(), hidden, ATTENTION_GAIN),
                k: packed(config.kv_width(), hidden, ATTENTION_GAIN),
                v: packed(config.kv_width(), hidden, ATTENTION_GAIN),
                qkv_bias: None,
                head_norms: None,
                o: packed(hidden, config.q_width(), ATTENTION_GAIN),
                o_bias: None,
                mlp_norm: vec![1.0; hidden],
                gate: packed(inner, hidden, 1.0),
                up: packed(inner, hidden, 1.0),
                gate_up_bias: None,
                down: packed(hidden, inner, 1.0),
                down_bias: None,
            })
            .collect();
        let embedding = matrix(vocab, hidden, 1.0);
        let mut head = matrix(vocab, hidden, 1.0);
        for (token, row) in head.chunks_exact_mut(hidden).enumerate() {
            let scale = match token as u32 {
                BOS | EOS => 0.0,
                0x20..=0x7e | 0x0a => 1.0,
                _ => UNPRINTABLE_SCALE,
            };
            row.iter_mut().for_each(|weight| *weight *= scale);
        }
        let (embedding, head) = (Matrix::from_f32(hidden, &embedding), Matrix::from_f32(hidden, &head));
        let weights = Weights { embedding, layers, final_norm: vec![1.0; hidden], head: Some(head) };
        Model::assemble(NAME.to_owned(), config, weights)
    }
}
