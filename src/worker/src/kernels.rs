//! The innermost loops: matrices in the precision of their files, and products with them.

pub mod amx;
pub(crate) mod kernel;
pub mod matrix;
pub(crate) mod noise;
pub(crate) mod prefetch;
pub(crate) mod quantised_cells;
pub(crate) mod rounded;
pub(crate) mod stored;
pub(crate) mod tile;
