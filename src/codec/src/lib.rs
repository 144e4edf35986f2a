//! Compression of KV blocks, lossless and quantised.
//!
//! * [`frame`] holds a block losslessly in two thirds of its bytes (BF16): exponents of keys are predicted from their position, with
//!   statistics of the model ([`SideTable`]). Keys of FP8, Q8_0 and Q4_0 become shorter in the same way.
//! * [`gear`] reads and writes the frames of MNN's KV codec "Gear Predictive", byte for byte.
//! * [`quant`] packs values into blocks of 8 or 4 bits, as ggml does.
//!
//! # Frames
//!
//! A store of blocks calls [`frame::Codec::encode`] with a block's bytes, element type, [`Shape`] and position of the first token, and a [`SideTable`] if the model has
//! one; and [`frame::Codec::decode_into`] with the place for the block and a look-up of side tables by id. A [`frame::Codec`] has the
//! buffers, for one thread; each thread that copies has its own. [`frame::inspect`] verifies a frame at rest without decoding. A
//! [`Calibrator`] makes the side table of a model from the first blocks that pass, 512 tokens or more; [`SideTable::to_bytes`] is to be kept with the
//! frames. A frame is refused as a whole or decoded to the exact block.
//!
//! ```
//! use trunkline_codec::frame::{Block, Codec};
//! use trunkline_codec::{Calibrator, Dtype, Shape, rotary_frequencies};
//!
//! let shape = Shape { layers: 2, tokens: 16, heads: 2, head_dim: 64 };
//! let bytes: Vec<u8> = (0..2 * 2 * 16 * 128).flat_map(|i| ((i % 97) as f32 - 48.5).to_le_bytes()).collect();
//! let mut calibrator = Calibrator::new(shape, vec![rotary_frequencies(64, 10_000.0); 2]);
//! calibrator.add(Dtype::F32, 0, &bytes);
//! let table = calibrator.finish();
//!
//! let mut codec = Codec::new();
//! let mut frame = Vec::new();
//! let block = Block { dtype: Dtype::F32, shape, position: Some(0), bytes: &bytes };
//! codec.encode(&block, Some(&table), &mut frame)?;
//! assert!(frame.len() < bytes.len());
//!
//! let mut back = vec![0; bytes.len()];
//! codec.decode_into(&frame, |id| (id == table.id()).then_some(&table), &mut back)?;
//! assert_eq!(back, bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Boundary:** this crate depends on no other crate of Trunkline and has no I/O, clock or thread. Every decoder takes bytes from
//! anywhere: malformed ones are refused with a typed error, and take no more memory than the caller's limit for a block
//! or the shape of a table allows.

#![forbid(unsafe_code)]

mod checksum;
mod coded;
mod contexts;
mod fixed;
pub mod frame;
pub mod gear;
mod huffman;
mod lanes;
mod plain;
mod predicted;
mod prior;
pub mod quant;
mod quantised;
mod rotary;
mod rows;
mod shape;
mod side_table;
mod stored_bits;
mod streams;
mod values;

pub use crate::rotary::rotary_frequencies;
pub use crate::shape::{Dtype, Shape};
pub use crate::side_table::{Calibrator, SideTable};
