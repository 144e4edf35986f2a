//! The matrices of a group of weights: two linear layers of one part of a transformer's layer, in memory, absent, or in shared memory.
//!
//! In a file a group is the arrays of its matrices one behind the other, as kernels read them, each from a multiple of [`RUN_ALIGN`] bytes, and zeros up to a
//! whole page.

use std::sync::Arc;

use trunkline_files::{Aligned, PAGE};

use crate::kernels::matrix::{Matrix, MatrixError, WeightKind};
use crate::kernels::stored::{RUN_ALIGN, Run};
use crate::layers::linear::Linear;

/// Part of a layer: a group of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Projections to queries, keys and values, and from attention.
    Attention,
    /// Gate, up and down projections.
    FeedForward,
}

impl Part {
    /// Both parts, in the order of a step.
    pub const ALL: [Self; 2] = [Self::Attention, Self::FeedForward];

    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::FeedForward => "feed-forward",
        }
    }
}

/// Kind, outputs and inputs of a matrix.
pub(crate) type Shape = (WeightKind, usize, usize);

/// Two linear layers used one after the other.
pub(crate) struct Pair {
    pub(crate) first: Linear,
    pub(crate) second: Linear,
}

impl Pair {
    /// Joins the matrices of the first linear layer, which have the same inputs, and the matrix of the second.
    pub(crate) fn new(first: Vec<Matrix>, second: Matrix) -> Self {
        Self { first: Linear::new(first), second: Linear::new(vec![second]) }
    }

    /// Describes a group of the same matrices without weights.
    ///
    /// # Errors
    ///
    /// None for a group that exists.
    pub(crate) fn absent(&self) -> Result<Self, MatrixError> {
        let absent = |linear: &Linear| {
            let parts = linear.parts().iter().map(|part| Matrix::absent(part.kind(), part.outputs(), part.inputs()));
            parts.collect::<Result<Vec<_>, _>>().map(Linear::new)
        };
        Ok(Self { first: absent(&self.first)?, second: absent(&self.second)? })
    }

    /// Returns the shapes of all matrices.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let parts = self.first.parts().iter().chain(self.second.parts());
        parts.map(|part| (part.kind(), part.outputs(), part.inputs())).collect()
    }

    /// Calls `visit` with each array of the matrices and the array's place in the group. Returns the bytes of the group, whole pages.
    fn runs(&mut self, mut visit: impl FnMut(&mut dyn Run, usize)) -> usize {
        let mut at = 0usize;
        for part in self.matrices_mut() {
            part.runs(&mut |run| {
                at = at.next_multiple_of(RUN_ALIGN);
                visit(run, at);
                at += run.n_bytes();
            });
        }
        at.next_multiple_of(PAGE)
    }

    /// Returns the bytes of the group in a file: whole pages.
    pub(crate) fn bytes(&mut self) -> usize {
        self.runs(|_, _| {})
    }

    /// Returns all matrices, in the order of a file.
    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut Matrix> {
        self.first.parts_mut().iter_mut().chain(self.second.parts_mut())
    }

    /// Takes the weights from `memory`, in which the group lies as in a file.
    ///
    /// # Panics
    ///
    /// If `memory` is shorter than the group.
    pub(crate) fn bind(&mut self, memory: &Arc<Aligned>) {
        self.runs(|run, at| run.bind(memory, at));
    }

    /// Gives up the weights.
    pub(crate) fn release(&mut self) {
        self.runs(|run, _| run.release());
    }
}

/// A group on its way to a file: takes the weights of one matrix after the other, so that no more than one is in memory twice.
#[derive(Default)]
pub(crate) struct PackedGroup(Aligned);

impl PackedGroup {
    /// Creates an empty group with room for `bytes`.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Aligned::with_capacity(bytes))
    }

    /// Takes the weights of the next matrix of the group.
    pub(crate) fn take(&mut self, matrix: &mut Matrix) {
        matrix.runs(&mut |run| {
            let at = self.0.as_slice().len().next_multiple_of(RUN_ALIGN);
            self.0.resize(at + run.n_bytes());
            self.0.as_mut_slice()[at..].copy_from_slice(run.bytes());
            run.release();
        });
    }

    /// Returns the group as in memory, whole pages, once all matrices have been taken.
    pub(crate) fn bytes(&mut self) -> &[u8] {
        self.0.pad();
        self.0.as_slice()
    }

    /// Prepares for the next group.
    pub(crate) fn clear(&mut self) {
        self.0.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of weights below 64, which are small numbers in every format.
    fn matrix(kind: WeightKind, outputs: usize, inputs: usize) -> Matrix {
        let bytes: Vec<u8> = (0..kind.bytes(outputs, inputs).unwrap()).map(|at| (at * 7 % 61) as u8).collect();
        Matrix::from_bytes(kind, outputs, inputs, &bytes).unwrap()
    }

    fn rows(linear: &Linear) -> Vec<u32> {
        let mut out = vec![0.0; linear.parts()[0].inputs()];
        let mut all = Vec::new();
        for output in 0..linear.outputs() {
            linear.row(output, &mut out);
            all.extend(out.iter().map(|weight| weight.to_bits()));
        }
        all
    }

    #[test]
    fn a_group_of_every_kind_comes_back_from_its_bytes() {
        for kind in WeightKind::ALL {
            let mut pair = Pair::new(vec![matrix(kind, 20, 256), matrix(kind, 5, 256)], matrix(kind, 33, 512));
            let expected = (rows(&pair.first), rows(&pair.second));
            let mut packed = PackedGroup::with_capacity(PAGE);
            for _ in 0..2 {
                packed.clear();
                let (first, second) = (vec![matrix(kind, 20, 256), matrix(kind, 5, 256)], matrix(kind, 33, 512));
                Pair::new(first, second).matrices_mut().for_each(|matrix| packed.take(matrix));
            }
            assert_eq!((packed.bytes().len(), packed.bytes().len() % PAGE), (pair.bytes(), 0), "{kind:?}");
            let memory = Arc::new(packed.0);
            let mut other = pair.absent().unwrap();
            assert_eq!((other.bytes(), other.shapes()), (pair.bytes(), pair.shapes()), "{kind:?}");
            pair.release();
            for group in [&mut other, &mut pair] {
                group.bind(&memory);
                assert_eq!((rows(&group.first), rows(&group.second)), expected, "{kind:?}");
                group.release();
            }
            assert_eq!(Arc::strong_count(&memory), 1);
        }
    }
}
