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

    /// Takes a group. Returns the group, with its weights or without.
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
    let mut source = Source { tensors };
    let embedding = source.matrix("model.embed_tokens.weight", vocab, hidden)?;
    let mut layers = Vec::new();
    for layer in 0..config.n_layers {
        layers.push(collect_layer(config, layer, &mut source, keep)?);
    }
    let final_norm = source.vector("model.norm.weight", hidden)?;
    let head = if config.tied_head { None } else { Some(source.matrix("lm_head.weight", vocab, hidden)?) };
    Ok(Weights { embedding, layers, final_norm, head })
}

fn collect_layer<T: Tensors>(
    config: &ModelConfig,
    layer: u32,
    source: &mut Source<'_, T>,
    keep: &mut dyn Keep,
) -> Result<LayerWeights, ModelError> {
    let (hidden, inner) = (config.hidden_size as usize, config.intermediate_size as usize);
    let (q, kv, head) = (config.q_width(), config.kv_width(), config.head_dim as usize);
    let parts = config.parts;
    let name = |part: &str| format!("model.layers.{layer}.{part}");
    let attention = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
    let mlp = |part: &str| format!("model.layers.{layer}.mlp.{part}");
    let reads = keep.needs_weights();
    let attention_norm = source.vector(&name("input_layernorm.weight"), hidden)?;
    let qkv = [(attention("q_proj.weight"), q), (attention("k_proj.weight"), kv), (attention("v_proj.weight"), kv)];
    let group = source.pair(reads, (&qkv, hidden), (&attention("o_proj.weight"), hidden, q))?;
    let attention_pair = keep.keep(layer, Part::Attention, group)?;
    let mlp_norm = source.vector(&name("post_attention_layernorm.weight"), hidden)?;
    let gate_up = [(mlp("gate_proj.weight"), inner), (mlp("up_proj.weight"), inner)];
    let group = source.pair(reads, (&gate_up, hidden), (&mlp("down_proj.weight"), hidden, inner))?;
    let feed_forward = keep.keep(layer, Part::FeedForward, group)?;
    Ok(LayerWeights {
        attention_norm,
        attention: attention_pair,
        qkv_bias: source.vectors(
            parts.qkv_bias,
            &[(attention("q_proj.bias"), q), (attention("k_proj.bias"), kv), (attention("v_proj.bias"), kv)],
        )?,
        head_norms: if parts.head_norm {
            Some(HeadNorms {
                q: source.vector(&attention("q_norm.weight"), head)?,
                k: source.vector(&attention("k_norm.weight"), head)?,
            })
        } else {
            None
        },
        o_bias: source.vectors(parts.output_bias, &[(attention("o_proj.bias"), hidden)])?,
        mlp_norm,
        feed_forward,
        gate_up_bias: source
            .vectors(parts.mlp_bias, &[(mlp("gate_proj.bias"), inner), (mlp("up_proj.bias"), inner)])?,
        down_bias: source.vectors(parts.mlp_bias, &[(mlp("down_proj.bias"), hidden)])?,
    })
}

/// Turns tensors into matrices and vectors.
struct Source<'a, T> {
    tensors: &'a mut T,
}

impl<T: Tensors> Source<'_, T> {
    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix, ModelError> {
        let tensor = self.tensors.take(name, &[outputs, inputs])?;
        packed(name, outputs, inputs, &tensor)
    }

    /// Reads a group of matrices, or only describes the group.
    fn pair(
        &mut self,
        reads: bool,
        (first, inputs): (&[(String, usize)], usize),
        (second, outputs, inner): (&str, usize, usize),
    ) -> Result<Pair, ModelError> {
        let mut matrix = |name: &str, outputs, inputs| {
            if reads {
                return self.matrix(name, outputs, inputs);
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

    #[test]
    fn vectors_in_half_precision_are_widened_exactly() {
        let values = [1.5f32, -0.25, 3.0, 65504.0];
        let f16s: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        for (kind, bytes, last) in [(WeightKind::F16, f16s, 65504.0), (WeightKind::Bf16, bf16s, 65536.0)] {
            let read = Source { tensors: &mut One(kind, bytes) }.vector("x", 4).unwrap();
            assert_eq!(read, [1.5, -0.25, 3.0, last]);
        }
    }

    #[test]
    fn a_tensor_that_cannot_have_its_kind_is_refused_by_name() {
        let refused = Source { tensors: &mut One(WeightKind::Q8_0, vec![0; 34]) }.matrix("x", 1, 31);
        let Err(error) = refused else { panic!("accepted") };
        assert!(matches!(&error, ModelError::Matrix { name, .. } if name == "x"), "{error}");
    }
}
