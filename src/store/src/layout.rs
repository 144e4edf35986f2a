//! Layout of a block's bytes.

use trunkline_codec::Shape;
use xxhash_rust::xxh3::Xxh3Default;

use crate::arena;

/// Layout of the bytes of all blocks of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockLayout {
    /// Name of the element type, as `bf16`, `f16` or `q8_0`; any name will do, but only known ones are compressed.
    pub dtype: String,
    /// Layers, tokens, heads and elements of a head, if the bytes are laid out so; blocks without a shape are not compressed.
    pub shape: Option<Shape>,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Tokens of a block.
    pub block_size: u32,
    /// Rotary frequencies of each layer, in units of 2^-64 turns for each position; none for layers without rotation. `None`
    /// if unknown: then keys are compressed without the knowledge of positions.
    pub frequencies: Option<Vec<Vec<u64>>>,
}

impl BlockLayout {
    /// Returns the bytes of host memory that an uncompressed block takes.
    pub fn memory_bytes(&self) -> u64 {
        arena::rounded(self.block_bytes).max(1) as u64
    }

    /// Returns the hash of the layout. Records of another layout are not read.
    pub fn id(&self) -> u64 {
        let mut hasher = Xxh3Default::new();
        hasher.update(&(self.dtype.len() as u64).to_le_bytes());
        hasher.update(self.dtype.as_bytes());
        let shape = self.shape.map_or([0; 4], |shape| [shape.layers, shape.tokens, shape.heads, shape.head_dim]);
        shape.iter().for_each(|n| hasher.update(&n.to_le_bytes()));
        hasher.update(&(self.block_bytes as u64).to_le_bytes());
        hasher.update(&self.block_size.to_le_bytes());
        hasher.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_but_the_frequencies_changes_the_id() {
        let shape = Shape { layers: 2, tokens: 16, heads: 1, head_dim: 8 };
        let layout = BlockLayout {
            dtype: "bf16".to_owned(),
            shape: Some(shape),
            block_bytes: 1024,
            block_size: 16,
            frequencies: None,
        };
        let others = [
            BlockLayout { dtype: "f16".to_owned(), ..layout.clone() },
            BlockLayout { shape: None, ..layout.clone() },
            BlockLayout { shape: Some(Shape { layers: 1, tokens: 16, heads: 2, head_dim: 8 }), ..layout.clone() },
            BlockLayout { block_bytes: 2048, ..layout.clone() },
            BlockLayout { block_size: 32, ..layout.clone() },
        ];
        for other in &others {
            assert_ne!(other.id(), layout.id(), "{other:?}");
        }
        assert_eq!(BlockLayout { frequencies: Some(vec![Vec::new(); 2]), ..layout.clone() }.id(), layout.id());
        assert_eq!(layout.id(), 0xdff8_eabb_4747_5c24, "records of other machines would not be read");
    }
}
