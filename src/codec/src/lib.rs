//! Compression of KV blocks, lossless and quantised.
//!
//! * [`gear`] reads and writes the frames of MNN's KV codec "Gear Predictive", byte for byte.
//! * [`quant`] packs values into blocks of 8 or 4 bits, as ggml does.
//!
//! **Boundary:** this crate depends on no other crate of Trunkline and has no I/O, clock or thread. Every decoder takes bytes from
//! anywhere: malformed ones are refused with a typed error, and memory is taken only as bytes are produced.

#![forbid(unsafe_code)]

pub mod gear;
pub mod quant;
