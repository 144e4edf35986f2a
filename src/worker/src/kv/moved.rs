//! Copies of tokens from block to block, with keys turned to their new positions.

use trunkline_port::CellCopy;

use super::{Cells, CellsMut, KvDtype, KvMemory};
use crate::kv::rope::rotate;

impl KvMemory {
    /// Returns the number of tokens in a block.
    pub(crate) fn block_size(&self) -> usize {
        self.layout.block_size
    }

    /// Returns the element type.
    pub(crate) fn dtype(&self) -> KvDtype {
        self.dtype
    }

    /// Copies the KV of neighbouring tokens to another block, and turns their keys by the angles with these cosines and sines,
    /// `head_dim / 2` for each token.
    ///
    /// # Panics
    /// If there is no such block or cell, or both blocks are one.
    pub(crate) fn copy_cells(&self, copy: &CellCopy, cos: &[f32], sin: &[f32]) {
        assert_ne!(copy.from, copy.to, "a copy within a block");
        let layout = self.layout;
        let (from, mut to) = (self.blocks.read(copy.from), self.blocks.write(copy.to));
        let (from, mut to) = (Cells::new(self.dtype, &from), CellsMut::new(self.dtype, &mut to));
        let (half, dim, size) = (layout.half(), layout.head_dim, layout.block_size);
        let (mut key, mut buffer) = (vec![0.0; dim], Vec::new());
        for (layer, head) in
            (0..layout.n_layers).flat_map(|layer| (0..layout.n_kv_heads).map(move |head| (layer, head)))
        {
            let at = layout.keys_at(layer, head);
            let keys = from.read(at..at + half, size, &mut buffer);
            for i in 0..copy.n_tokens as usize {
                let cells = keys[copy.from_cell as usize + i..].iter().step_by(size);
                key.iter_mut().zip(cells).for_each(|(key, cell)| *key = *cell);
                if copy.shift != 0 {
                    let turn = i * dim / 2..(i + 1) * dim / 2;
                    rotate(&mut key, &cos[turn.clone()], &sin[turn]);
                }
                to.store(at + copy.to_cell as usize + i, size, &key);
            }
            let first = at + half + copy.from_cell as usize * dim;
            let values = from.read(first..first + copy.n_tokens as usize * dim, 1, &mut buffer);
            to.store(at + half + copy.to_cell as usize * dim, 1, values);
        }
    }
}
