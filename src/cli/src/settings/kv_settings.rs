//! Settings of the computation of embedded workers: type and memory of the KV, and the kernel.

use clap::Args;

/// Settings of the computation of embedded workers.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct KvSettings {
    /// Element type of the KV cache: f32, f16, bf16, q8_0 or q4_0. Types of fewer bits hold more tokens in the same memory, and round keys and
    /// values: f16 to 11 significant bits, bf16 to 8, q8_0 and q4_0 to 8 and 4 bits with a scale for each 32 numbers [default: f32].
    #[arg(long, value_name = "TYPE")]
    pub kv_dtype: Option<String>,

    /// Take the memory of all KV blocks from the system at the start: true or false. If false, each block's when it is used first, and memory that is not
    /// there is missed then [default: false].
    #[arg(long, value_name = "BOOL")]
    pub kv_resident: Option<bool>,

    /// Products with BF16 weights: portable, amx-bf16 or auto. The portable kernel widens weights to F32, with equal texts on every machine; amx-bf16 rounds
    /// activations to BF16 and multiplies by the tiles of AMX, with another revision of the model; auto is the fastest of this machine
    /// [default: auto, with the built-in model portable].
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
}
