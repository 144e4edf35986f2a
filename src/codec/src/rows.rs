//! Rows of a block with their positions: the means of their elements.

use crate::contexts;
use crate::rotary::{Angles, Turn};
use crate::shape::{Dtype, Shape};
use crate::side_table::SideTable;

/// Element type, shape and position of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub dtype: Dtype,
    pub shape: Shape,
    /// Position of the first token.
    pub position: u32,
}

/// Cosines and sines of a block's tokens, for the first of the layers with equal frequencies.
#[derive(Debug, Default)]
pub(crate) struct BlockAngles {
    cos: Vec<i16>,
    sin: Vec<i16>,
    /// Begin of each layer's angles.
    begins: Vec<usize>,
}

impl BlockAngles {
    /// Computes the angles of a block.
    pub(crate) fn fill(&mut self, turn: &Turn, place: &Place, table: &SideTable) {
        self.cos.clear();
        self.sin.clear();
        self.begins.clear();
        for layer in 0..usize::from(place.shape.layers) {
            let like = table.like(layer);
            self.begins.push(if like < layer { self.begins[like] } else { self.cos.len() });
            if like < layer {
                continue;
            }
            for token in 0..u32::from(place.shape.tokens) {
                let position = place.position.wrapping_add(token);
                for [cos, sin] in table.frequencies(layer).iter().map(|frequency| turn.angle(*frequency, position)) {
                    self.cos.push(cos);
                    self.sin.push(sin);
                }
            }
        }
    }
}

/// Rows of a block that is encoded against a table.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub shape: Shape,
    pub table: &'a SideTable,
    pub angles: &'a BlockAngles,
}

impl Rows<'_> {
    /// Returns `true` if the means of a row depend on the token.
    #[inline(always)]
    pub(crate) fn is_rotated(&self, layer: usize, side: usize) -> bool {
        side == 0 && !self.table.frequencies(layer).is_empty()
    }

    /// Sets the means of a row, in units of 1/64.
    #[inline(always)]
    pub(crate) fn fill_means(&self, row: usize, means: &mut [i16]) {
        let (layer, side, token) = self.shape.place(row);
        let half = if side == 0 { self.table.frequencies(layer).len() } else { 0 };
        let first = self.angles.begins[layer] + token * half;
        let angles = Angles { cos: &self.angles.cos[first..first + half], sin: &self.angles.sin[first..first + half] };
        contexts::fill_means(self.table.plane(layer, side), self.shape.head_dim.into(), angles, means);
    }
}
