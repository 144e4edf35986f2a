//! Elements of one block, by type and layout.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::KvDtype;
use crate::kernels::matrix::half::{widen_bf16, widen_f16};
use crate::kernels::prefetch::Ahead;
use crate::kernels::quantised_cells::{QuantisedCells, QuantisedCellsMut};

/// Sizes within a block.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) n_layers: usize,
    pub(super) block_size: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Layout {
    /// Returns the number of floats in the keys, or in the values, of one head of one layer.
    pub(super) fn half(self) -> usize {
        self.block_size * self.head_dim
    }

    /// Returns the offset of the keys of one head.
    pub(super) fn keys_at(self, layer: usize, head: usize) -> usize {
        (layer * self.n_kv_heads + head) * 2 * self.half()
    }

    /// Returns the number of floats in a block.
    pub(super) fn floats(self) -> usize {
        self.n_layers * self.n_kv_heads * 2 * self.half()
    }

    /// Passes the rows of a block to `each`, where a row is the keys or the values of one token in one head of one layer: place of the row in
    /// `[layer][keys, values][token][head][dim]`, place of the first cell, and the distance from one cell to the next.
    pub(super) fn for_each_row(self, mut each: impl FnMut(usize, usize, usize)) {
        let Self { n_layers, block_size, n_kv_heads, head_dim } = self;
        let mut row = 0;
        for layer in 0..n_layers {
            for is_values in [false, true] {
                for token in 0..block_size {
                    for head in 0..n_kv_heads {
                        let keys_at = self.keys_at(layer, head);
                        match is_values {
                            false => each(row, keys_at + token, block_size),
                            true => each(row, keys_at + self.half() + token * head_dim, 1),
                        }
                        row += head_dim;
                    }
                }
            }
        }
    }
}

/// The elements of one block, for reading.
#[derive(Clone, Copy)]
pub(super) struct Cells<'a> {
    dtype: KvDtype,
    bytes: &'a [u8],
}

impl<'a> Cells<'a> {
    pub(super) fn new(dtype: KvDtype, bytes: &'a [u8]) -> Self {
        Self { dtype, bytes }
    }

    fn quantised(self) -> QuantisedCells<'a> {
        QuantisedCells::new(self.dtype.bits(), self.bytes)
    }

    /// Returns a range of cells as F32: widened into `buffer`, or in place if the cells are F32. Elements of a row are `step` cells apart.
    #[inline(always)]
    pub(super) fn read<'b>(self, range: Range<usize>, step: usize, buffer: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        if self.dtype == KvDtype::F32 {
            return &cast_slice(self.bytes)[range];
        }
        buffer.resize(range.len(), 0.0);
        match self.dtype {
            KvDtype::F32 => {}
            KvDtype::F16 => widen_f16(&cast_slice(self.bytes)[range], buffer),
            KvDtype::Bf16 => widen_bf16(&cast_slice(self.bytes)[range], buffer),
            KvDtype::Q8_0 | KvDtype::Q4_0 => self.quantised().read(range.start, step, buffer),
        }
        buffer
    }

    /// Asks the processor for a range of cells that is read soon; scales of quantised cells are left out.
    #[inline(always)]
    pub(super) fn request(self, range: Range<usize>) {
        let bytes = match self.dtype {
            KvDtype::F32 => &self.bytes[4 * range.start..4 * range.end],
            KvDtype::F16 | KvDtype::Bf16 => &self.bytes[2 * range.start..2 * range.end],
            KvDtype::Q8_0 | KvDtype::Q4_0 => self.quantised().codes_of(range),
        };
        Ahead::new(bytes, 1).step();
    }

    /// Writes the elements to `bytes`, row by row.
    pub(super) fn export(self, layout: Layout, bytes: &mut [u8]) {
        fn put<T: Copy, const N: usize>(
            cells: &[T],
            layout: Layout,
            bytes: &mut [u8],
            to_bytes: impl Fn(T) -> [u8; N],
        ) {
            layout.for_each_row(|row, at, step| {
                let row = bytes[row * N..][..layout.head_dim * N].as_chunks_mut().0;
                for (bytes, cell) in row.iter_mut().zip(cells[at..].iter().step_by(step)) {
                    *bytes = to_bytes(*cell);
                }
            });
        }
        match self.dtype {
            KvDtype::F32 => put(cast_slice(self.bytes), layout, bytes, f32::to_le_bytes),
            KvDtype::F16 | KvDtype::Bf16 => put(cast_slice(self.bytes), layout, bytes, u16::to_le_bytes),
            KvDtype::Q8_0 | KvDtype::Q4_0 => {
                let width = bytes.len() / (layout.floats() / layout.head_dim);
                let cells = self.quantised();
                layout.for_each_row(|row, at, step| {
                    cells.export(at, step, &mut bytes[row / layout.head_dim * width..][..width]);
                });
            }
        }
    }
}

/// The elements of one block, for writing.
pub(super) struct CellsMut<'a> {
    dtype: KvDtype,
    bytes: &'a mut [u8],
}

impl<'a> CellsMut<'a> {
    pub(super) fn new(dtype: KvDtype, bytes: &'a mut [u8]) -> Self {
        Self { dtype, bytes }
    }

    fn quantised(&mut self) -> QuantisedCellsMut<'_> {
        QuantisedCellsMut::new(self.dtype.bits(), self.bytes)
    }

    /// Stores `values` in the cells `at`, `at + step`, `at + 2 step` and so on.
    pub(super) fn store(&mut self, at: usize, step: usize, values: &[f32]) {
        fn put<T>(cells: &mut [T], at: usize, step: usize, values: &[f32], round: impl Fn(f32) -> T) {
            for (cell, value) in cells[at..].iter_mut().step_by(step).zip(values) {
                *cell = round(*value);
            }
        }
        let largest = f16::MAX.to_f32();
        match self.dtype {
            KvDtype::F32 => put(cast_slice_mut(self.bytes), at, step, values, |value| value),
            KvDtype::F16 => put(cast_slice_mut(self.bytes), at, step, values, |value| {
                f16::from_f32(value.clamp(-largest, largest)).to_bits()
            }),
            KvDtype::Bf16 => {
                put(cast_slice_mut(self.bytes), at, step, values, |value| bf16::from_f32(value).to_bits());
            }
            KvDtype::Q8_0 | KvDtype::Q4_0 => self.quantised().store(at, step, values),
        }
    }

    /// Zeroes the cells from `at` on.
    pub(super) fn clear_from(&mut self, at: usize) {
        match self.dtype {
            KvDtype::F32 => self.bytes[4 * at..].fill(0),
            KvDtype::F16 | KvDtype::Bf16 => self.bytes[2 * at..].fill(0),
            KvDtype::Q8_0 | KvDtype::Q4_0 => self.quantised().clear_from(at),
        }
    }

    /// Takes the elements from `bytes`, as [`Cells::export`] writes them.
    pub(super) fn import(&mut self, layout: Layout, bytes: &[u8]) {
        fn take<T: Copy, const N: usize>(
            cells: &mut [T],
            layout: Layout,
            bytes: &[u8],
            of_bytes: impl Fn([u8; N]) -> T,
        ) {
            layout.for_each_row(|row, at, step| {
                let row = bytes[row * N..][..layout.head_dim * N].as_chunks().0;
                for (bytes, cell) in row.iter().zip(cells[at..].iter_mut().step_by(step)) {
                    *cell = of_bytes(*bytes);
                }
            });
        }
        match self.dtype {
            KvDtype::F32 => take(cast_slice_mut(self.bytes), layout, bytes, f32::from_le_bytes),
            KvDtype::F16 | KvDtype::Bf16 => take(cast_slice_mut(self.bytes), layout, bytes, u16::from_le_bytes),
            KvDtype::Q8_0 | KvDtype::Q4_0 => {
                let width = bytes.len() / (layout.floats() / layout.head_dim);
                let mut cells = self.quantised();
                layout.for_each_row(|row, at, step| {
                    cells.import(at, step, &bytes[row / layout.head_dim * width..][..width]);
                });
            }
        }
    }
}
