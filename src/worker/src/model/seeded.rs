//! A small model made from a seed: real arithmetic without a download, for tests, demonstrations and a server without a model
//! folder.
//!
//! The vocabulary is the 256 bytes, a BOS and an end token. The text is noise, mostly printable; the same seed gives the same
//! weights on every machine.

use half::f16;

use crate::config::{LayerParts, ModelConfig};
use crate::files::weights::{LayerWeights, Weights};
use crate::kernels::matrix::{Matrix, WeightKind};
use crate::kernels::noise::Noise;
use crate::layers::pair::Pair;
use crate::model::Model;

/// The BOS token, after the bytes 0 to 255.
pub(crate) const BOS: u32 = 256;
/// End token of the seeded model, after the BOS token.
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
        windows: Vec::new(),
        parts: LayerParts::default(),
        eos_token_ids: Vec::new(),
    }
}

/// Returns a matrix of random weights, about as large as trained ones.
fn random_matrix(kind: WeightKind, outputs: usize, inputs: usize, noise: &mut Noise) -> Matrix {
    let bound = (3.0 / inputs as f32).sqrt();
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let mut bytes = Vec::new();
    for _ in 0..outputs * inputs / kind.block_len() {
        match kind {
            WeightKind::F32 => bytes.extend(noise.uniform(bound).to_le_bytes()),
            WeightKind::Bf16 => bytes.extend(&noise.uniform(bound).to_le_bytes()[2..]),
            WeightKind::F16 => bytes.extend(half(noise.uniform(bound))),
            _ => {
                // Codes of any value; the factors make up for their size.
                let mut block: Vec<u8> =
                    (0..kind.block_bytes()).map(|_| (noise.uniform(128.0) + 128.0) as u8).collect();
                let (at, factor) = match kind {
                    WeightKind::Q8_0 => (0, bound / 128.0),
                    WeightKind::Q6K => (208, bound / (32.0 * 128.0)),
                    WeightKind::Q4K => (0, bound / (8.0 * 64.0)),
                    WeightKind::Q5_0 | WeightKind::Q5_1 => (0, bound / 16.0),
                    WeightKind::Q5K => (0, bound / (16.0 * 64.0)),
                    _ => (0, bound / 8.0),
                };
                block[at..at + 2].copy_from_slice(&half(factor));
                match kind {
                    WeightKind::Q4_1 | WeightKind::Q5_1 => block[2..4].copy_from_slice(&half(-bound)),
                    WeightKind::Q4K | WeightKind::Q5K => block[2..4].copy_from_slice(&half(bound / 64.0)),
                    _ => {}
                }
                bytes.extend(block);
            }
        }
    }
    Matrix::from_bytes(kind, outputs, inputs, &bytes).expect("rows of whole blocks")
}

impl Model {
    /// A small model with weights drawn from `seed`, made in memory: 2 layers of width 64, 4 query heads on 2 KV heads,
    /// the vocabulary of the byte tokenizer (256 bytes, a BOS and an end token), a context of 32,768 tokens, no EOS.
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
                attention: Pair::new(
                    vec![
                        packed(config.q_width(), hidden, ATTENTION_GAIN),
                        packed(config.kv_width(), hidden, ATTENTION_GAIN),
                        packed(config.kv_width(), hidden, ATTENTION_GAIN),
                    ],
                    packed(hidden, config.q_width(), ATTENTION_GAIN),
                ),
                qkv_bias: None,
                head_norms: None,
                o_bias: None,
                mlp_norm: vec![1.0; hidden],
                feed_forward: Pair::new(
                    vec![packed(inner, hidden, 1.0), packed(inner, hidden, 1.0)],
                    packed(hidden, inner, 1.0),
                ),
                gate_up_bias: None,
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

    /// Vocabulary of [`Model::seeded_like_smollm2`].
    pub const SMOLLM2_VOCAB: u32 = 49_152;

    /// A model of the shape of SmolLM2-135M with random matrices of one kind, for benchmarks: width 576, 9 query heads on 3 KV
    /// heads, a tied head; 30 layers in the original.
    ///
    /// # Panics
    ///
    /// If blocks of the kind do not divide rows of 576 weights: Q4_K, Q5_K and Q6_K.
    pub fn seeded_like_smollm2(kind: WeightKind, n_layers: u32, seed: u64) -> Model {
        let config = ModelConfig {
            vocab_size: Self::SMOLLM2_VOCAB,
            hidden_size: 576,
            intermediate_size: 1536,
            n_layers,
            n_heads: 9,
            n_kv_heads: 3,
            head_dim: 64,
            tied_head: true,
            ..tiny_config()
        };
        Self::random_of("seeded-smollm2", config, kind, seed)
    }

    /// A model of width 256 with random matrices of any one kind, for tests: 4 query heads on 2 KV heads, the vocabulary of the byte tokenizer.
    pub fn seeded_of_kind(kind: WeightKind, n_layers: u32, seed: u64) -> Model {
        let config = ModelConfig {
            hidden_size: 256,
            intermediate_size: 512,
            head_dim: 64,
            n_layers,
            tied_head: true,
            ..tiny_config()
        };
        Self::random_of("seeded-kind", config, kind, seed)
    }

    /// A model of the shape `config` with random matrices of one kind and a tied head.
    fn random_of(name: &str, config: ModelConfig, kind: WeightKind, seed: u64) -> Model {
        let (hidden, inner) = (config.hidden_size as usize, config.intermediate_size as usize);
        let mut noise = Noise::new(seed);
        let mut matrix = |outputs, inputs| random_matrix(kind, outputs, inputs, &mut noise);
        let layers = (0..config.n_layers)
            .map(|_| LayerWeights {
                attention_norm: vec![1.0; hidden],
                attention: Pair::new(
                    vec![
                        matrix(config.q_width(), hidden),
                        matrix(config.kv_width(), hidden),
                        matrix(config.kv_width(), hidden),
                    ],
                    matrix(hidden, config.q_width()),
                ),
                qkv_bias: None,
                head_norms: None,
                o_bias: None,
                mlp_norm: vec![1.0; hidden],
                feed_forward: Pair::new(vec![matrix(inner, hidden), matrix(inner, hidden)], matrix(hidden, inner)),
                gate_up_bias: None,
                down_bias: None,
            })
            .collect();
        let embedding = matrix(config.vocab_size as usize, hidden);
        let weights = Weights { embedding, layers, final_norm: vec![1.0; hidden], head: None };
        Model::assemble(name.to_owned(), config, weights)
    }
}
