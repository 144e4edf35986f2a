//! The weights of a model, collected tensor by tensor from a source: the shards of a Hugging Face folder, or a GGUF file.
//!
//! Tensors go by their names in Hugging Face folders. Matrices keep the precision of the file; vectors (norms and biases) are
//! widened to F32. One tensor is read at a time, so the peak of memory is the model and its largest tensor.

use std::path::PathBuf;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::kernels::matrix::{Matrix, WeightKind};
use crate::layers::pair::{Pair, Part};

/// Weights in the stored order: matrices row by row, one row for each output.
pub(crate) struct Weights {
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) final_norm: Vec<f32>,
    /// `None` if the head is the embedding.
    pub(crate) head: Option<Matrix>,
}

/// Weights of one layer. Parts that the model lacks are `None`.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,
    /// Queries, keys and values; and the output of attention.
    pub(crate) attention: Pair,
    /// Biases of queries, keys and values, one behind the other.
    pub(crate) qkv_bias: Option<Vec<f32>>,
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) o_bias: Option<Vec<f32>>,
    pub(crate) mlp_norm: Vec<f32>,
    /// Gate and up projection; and the down projection.
    pub(crate) feed_forward: Pair,
    /// Biases of gate and up projection, one behind the other.
    pub(crate) gate_up_bias: Option<Vec<f32>>,
    pub(crate) down_bias: Option<Vec<f32>>,
}

/// Weights of the norms of each query head and each key head; all heads of a layer share the norms.
pub(crate) struct HeadNorms {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
}

/// The bytes of one tensor, row by row and little-endian.
pub(crate) struct Tensor {
    pub(crate) kind: WeightKind,
    pub(crate) bytes: Vec<u8>,
    /// File of the tensor, for messages.
    pub(crate) path: PathBuf,
}

/// Files with the tensors of a model.
pub(crate) trait Tensors {
    /// Reads tensor `name`, which MUST NOT have been taken before.
    ///
    /// # Errors
    ///
    /// The tensor is missing, has another shape, has an element type unknown to this worker, or cannot be read.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError>;

    /// Counts tensor `name` as taken without reading the bytes. Returns the tensor's kind and file.
    ///
    /// # Errors
    ///
    /// Those of [`Tensors::take`].
    fn skip(&mut self, name: &str, shape: &[usize]) -> Result<(WeightKind, PathBuf), ModelError>;
}

/// Place of the groups of matrices: receives each group as soon as the group is read.
pub(crate) trait Keep {
    /// Returns `true` if all groups stay in memory.
    fn in_memory(&self) -> bool;

    /// Returns `false` if the weights of the matrices are known already: groups are described without weights then.
    fn needs_weights(&self) -> bool;

    /// Takes the weights of the next matrix of a group as soon as the matrix is read. Returns the matrix, with its weights or without.
    fn matrix(&mut self, matrix: Matrix) -> Matrix;

    /// Takes a group, whose matrices have passed in this order. Returns the group, with its weights or without.
    ///
    /// # Errors
    ///
    /// The group cannot be put into its place.
    fn keep(&mut self, layer: u32, part: Part, group: Pair) -> Result<Pair, ModelError>;
}

/// Keeps all groups in memory.
pub(crate) struct InMemory;

impl Keep for InMemory {
    fn in_memory(&self) -> bool {
        true
    }

    fn needs_weights(&self) -> bool {
        true
    }

    fn matrix(&mut self, matrix: Matrix) -> Matrix {
        matrix
    }

    fn keep(&mut self, _: u32, _: Part, group: Pair) -> Result<Pair, ModelError> {
        Ok(group)
    }
}

/// Reads all weights described by `config`; groups of matrices go to `keep`.
///
/// # Errors
///
/// The errors of [`Tensors::take`], for the first such tensor, and those of `keep`.
pub(crate) fn collect(
    config: &ModelConfig,
    tensors: &mut impl Tensors,
    keep: &mut dyn Keep,
) -> Result<Weights, ModelError> {
    let (vocab, hidden) = (config.vocab_size as usize, config.hidden_size as usize);
    let mut source = Source { tensors, config };
    let embedding = source.matrix("model.embed_tokens.weight", vocab, hidden)?;
    let mut layers = Vec::new();
    for layer in 0..config.n_layers {
        layers.push(source.layer(layer, keep)?);
    }
    let final_norm = source.vector("model.norm.weight", hidden)?;
    let head = if config.tied_head { None } else { Some(source.matrix("lm_head.weight", vocab, hidden)?) };
    Ok(Weights { embedding, layers, final_norm, head })
}

/// Reads the groups of matrices described by `config` and nothing else: what always stays in memory is there already. The groups go to `keep`.
///
/// # Errors
///
/// As [`collect`].
pub(crate) fn collect_groups(
    config: &ModelConfig,
    tensors: &mut impl Tensors,
    keep: &mut dyn Keep,
) -> Result<(), ModelError> {
    let mut source = Source { tensors, config };
    for layer in 0..config.n_layers {
        source.attention(layer, keep)?;
        source.feed_forward(layer, keep)?;
    }
    Ok(())
}

/// Returns the name of a part of a layer.
fn part_of(layer: u32, part: &str) -> String {
    format!("model.layers.{layer}.{part}")
}

/// Turns tensors into matrices and vectors.
struct Source<'a, T> {
    tensors: &'a mut T,
    config: &'a ModelConfig,
}

impl<T: Tensors> Source<'_, T> {
    /// Reads a layer, whose groups go to `keep`.
    fn layer(&mut self, layer: u32, keep: &mut dyn Keep) -> Result<LayerWeights, ModelError> {
        let config = self.config;
        let (hidden, inner) = (config.hidden_size as usize, config.intermediate_size as usize);
        let (q, kv, head) = (config.q_width(), config.kv_width(), config.head_dim as usize);
        let (parts, name) = (config.parts, |part: &str| part_of(layer, part));
        let qkv_biases = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)];
        let qkv_biases = qkv_biases.map(|(part, len)| (name(&format!("self_attn.{part}.bias")), len));
        let inner_biases = ["mlp.gate_proj.bias", "mlp.up_proj.bias"].map(|part| (name(part), inner));
        Ok(LayerWeights {
            attention_norm: self.vector(&name("input_layernorm.weight"), hidden)?,
            attention: self.attention(layer, keep)?,
            qkv_bias: self.vectors(parts.qkv_bias, &qkv_biases)?,
            head_norms: if parts.head_norm {
                Some(HeadNorms {
                    q: self.vector(&name("self_attn.q_norm.weight"), head)?,
                    k: self.vector(&name("self_attn.k_norm.weight"), head)?,
                })
            } else {
                None
            },
            o_bias: self.vectors(parts.output_bias, &[(name("self_attn.o_proj.bias"), hidden)])?,
            mlp_norm: self.vector(&name("post_attention_layernorm.weight"), hidden)?,
            feed_forward: self.feed_forward(layer, keep)?,
            gate_up_bias: self.vectors(parts.mlp_bias, &inner_biases)?,
            down_bias: self.vectors(parts.mlp_bias, &[(name("mlp.down_proj.bias"), hidden)])?,
        })
    }

    /// Reads the matrices of a layer's attention.
    fn attention(&mut self, layer: u32, keep: &mut dyn Keep) -> Result<Pair, ModelError> {
        let (hidden, q, kv) = (self.config.hidden_size as usize, self.config.q_width(), self.config.kv_width());
        let name = |part: &str| part_of(layer, &format!("self_attn.{part}.weight"));
        let qkv = [(name("q_proj"), q), (name("k_proj"), kv), (name("v_proj"), kv)];
        let group = self.pair(keep, (&qkv, hidden), (&name("o_proj"), hidden, q))?;
        keep.keep(layer, Part::Attention, group)
    }

    /// Reads the matrices of a layer's feed-forward network.
    fn feed_forward(&mut self, layer: u32, keep: &mut dyn Keep) -> Result<Pair, ModelError> {
        let (hidden, inner) = (self.config.hidden_size as usize, self.config.intermediate_size as usize);
        let name = |part: &str| part_of(layer, &format!("mlp.{part}.weight"));
        let gate_up = [(name("gate_proj"), inner), (name("up_proj"), inner)];
        let group = self.pair(keep, (&gate_up, hidden), (&name("down_proj"), hidden, inner))?;
        keep.keep(layer, Part::FeedForward, group)
    }

    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix, ModelError> {
        let tensor = self.tensors.take(name, &[outputs, inputs])?;
        packed(name, outputs, inputs, &tensor)
    }

    /// Reads a group of matrices one by one, or only describes the group.
    fn pair(
        &mut self,
        keep: &mut dyn Keep,
        (first, inputs): (&[(String, usize)], usize),
        (second, outputs, inner): (&str, usize, usize),
    ) -> Result<Pair, ModelError> {
        let mut matrix = |name: &str, outputs, inputs| {
            if keep.needs_weights() {
                return Ok(keep.matrix(self.matrix(name, outputs, inputs)?));
            }
            let (kind, path) = self.tensors.skip(name, &[outputs, inputs])?;
            let absent = Matrix::absent(kind, outputs, inputs);
            absent.map_err(|source| ModelError::Matrix { name: name.to_owned(), path, source })
        };
        let first = first.iter().map(|(name, outputs)| matrix(name, *outputs, inputs));
        Ok(Pair::new(first.collect::<Result<_, _>>()?, matrix(second, outputs, inner)?))
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let tensor = self.tensors.take(name, &[len])?;
        let mut vector = vec![0.0; len];
        packed(name, 1, len, &tensor)?.row(0, &mut vector);
        Ok(vector)
    }

    /// Reads vectors, one behind the other, if the model has them.
    fn vectors(&mut self, present: bool, parts: &[(String, usize)]) -> Result<Option<Vec<f32>>, ModelError> {
        if !present {
            return Ok(None);
        }
        let mut joined = Vec::new();
        for (name, len) in parts {
            joined.extend(self.vector(name, *len)?);
        }
        Ok(Some(joined))
    }
}

fn packed(name: &str, outputs: usize, inputs: usize, tensor: &Tensor) -> Result<Matrix, ModelError> {
    Matrix::from_bytes(tensor.kind, outputs, inputs, &tensor.bytes).map_err(|source| ModelError::Matrix {
        name: name.to_owned(),
        path: tensor.path.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::model::seeded::tiny_config;

    /// A source with one tensor, whatever its name.
    struct One(WeightKind, Vec<u8>);

    impl Tensors for One {
        fn take(&mut self, _: &str, _: &[usize]) -> Result<Tensor, ModelError> {
            Ok(Tensor { kind: self.0, bytes: self.1.clone(), path: PathBuf::from("file") })
        }

        fn skip(&mut self, _: &str, _: &[usize]) -> Result<(WeightKind, PathBuf), ModelError> {
            Ok((self.0, PathBuf::from("file")))
        }
    }

    fn source_of<R>(tensors: &mut One, read: impl FnOnce(&mut Source<'_, One>) -> R) -> R {
        read(&mut Source { tensors, config: &tiny_config() })
    }

    #[test]
    fn vectors_in_half_precision_are_widened_exactly() {
        let values = [1.5f32, -0.25, 3.0, 65504.0];
        let f16s: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        for (kind, bytes, last) in [(WeightKind::F16, f16s, 65504.0), (WeightKind::Bf16, bf16s, 65536.0)] {
            let read = source_of(&mut One(kind, bytes), |source| source.vector("x", 4)).unwrap();
            assert_eq!(read, [1.5, -0.25, 3.0, last]);
        }
    }

    #[test]
    fn a_tensor_that_cannot_have_its_kind_is_refused_by_name() {
        let refused = source_of(&mut One(WeightKind::Q8_0, vec![0; 34]), |source| source.matrix("x", 1, 31));
        let Err(error) = refused else { panic!("accepted") };
        assert!(matches!(&error, ModelError::Matrix { name, .. } if name == "x"), "{error}");
    }
}
