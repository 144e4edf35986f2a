//! Compression of KV blocks, lossless and quantised.
//!
//! * [`frame`] holds a block losslessly in two thirds of its bytes (BF16): exponents of keys are predicted from their position, with
//!   statistics of the model ([`SideTable`]).
//! * [`gear`] reads and writes the frames of MNN's KV codec "Gear Predictive", byte for byte.
//! * [`quant`] packs values into blocks of 8 or 4 bits, as ggml does.
//!
//! **Boundary:** this crate depends on no other crate of Trunkline and has no I/O, clock or thread. Every decoder takes bytes from
//! anywhere: malformed ones are refused with a typed error, and memory is taken only as bytes are produced.

#![forbid(unsafe_code)]

mod coded;
mod contexts;
pub mod frame;
pub mod gear;
mod huffman;
mod plain;
mod predicted;
mod prior;
pub mod quant;
mod rotary;
mod shape;
mod side_table;
mod stored_bits;
mod streams;
mod values;

pub use crate::rotary::rotary_frequencies;
pub use crate::shape::{Dtype, Shape};
pub use crate::side_table::{Calibrator, SideTable};
pub use crate::values::Format;
