//! Errors of the reader of configurations.

use std::path::PathBuf;

use trunkline_quote::{cut, of_parser, quoted};
use trunkline_sim_workload::UnknownName;

/// Failure to load a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Name of no known preset.
    #[error("{0}; or give the path of a config.json, or of its folder")]
    UnknownName(#[from] UnknownName),
    /// File of weights, or a folder that has no other.
    #[error("{}: a GGUF file has no config.json; give a preset, or the folder or the config.json of the model that the file was made from", path.display())]
    Gguf {
        /// Path of the file.
        path: PathBuf,
    },
    /// File cannot be read.
    #[error("{}: cannot be read: {fault}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        fault: std::io::Error,
    },
    /// Not a configuration of a decoder.
    #[error("{name}: not the config.json of a decoder that is known here: {}", of_parser(&fault.to_string()))]
    Malformed {
        /// Name of the model.
        name: String,
        /// Error of the parser.
        fault: serde_json::Error,
    },
    /// Number out of range.
    #[error("{name}: {field} is {value}; it must be {expected}")]
    OutOfRange {
        /// Name of the model.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// Value as found in the input.
        value: u64,
        /// Permitted values, in words.
        expected: &'static str,
    },
    /// Value of another type.
    #[error("{name}: {field} is {value}; it must be {expected}", value = cut(value))]
    Mistyped {
        /// Name of the model.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// Value as found in the input, shortened.
        value: String,
        /// Type of the field, in words.
        expected: &'static str,
    },
    /// Encoder, or a model of encoder and decoder.
    #[error(
        "{name}: by {field} this is not a decoder; only decoders, which answer prompts token by token, are planned"
    )]
    NoDecoder {
        /// Name of the model.
        name: String,
        /// Field that says so, with its value.
        field: String,
    },
    /// Quantisation of an unknown form.
    #[error("{name}: {field} is not understood: {}", of_parser(&fault.to_string()))]
    Quantisation {
        /// Name of the model.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// Error of the parser.
        fault: serde_json::Error,
    },
    /// Layers without attention of a sort that is not modelled.
    #[error(
        "{name}: {field} names layers that are not attention, and no recurrent ones known here; there are: Mamba, Mamba 2, and gated delta nets"
    )]
    Recurrent {
        /// Name of the model.
        name: String,
        /// Field that names the layers.
        field: &'static str,
    },
    /// Field that another one needs.
    #[error("{name}: {field} is missing; {why}")]
    Missing {
        /// Name of the model.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// What needs the field.
        why: &'static str,
    },
    /// Field of experts or of a latent cache, and no field with their number.
    #[error("{name}: has {field}, but not {lacks}, or not under a name known here; add {lacks} to the file", field = cut(field))]
    UnknownField {
        /// Name of the model.
        name: String,
        /// Field found in the input.
        field: String,
        /// Field that is missing.
        lacks: &'static str,
    },
    /// Layers of several shapes, or networks side by side.
    #[error("{name}: {field} says that layers differ in a way that is not modelled")]
    Unmodelled {
        /// Name of the model.
        name: String,
        /// Field with the difference.
        field: &'static str,
    },
    /// Number that differs between layers, or between text and images.
    #[error(
        "{name}: {field} is a list of different numbers, such as {first} and {other}; models whose layers differ in it are not modelled"
    )]
    Varies {
        /// Name of the model.
        name: String,
        /// Field with the list.
        field: &'static str,
        /// First value of the list.
        first: String,
        /// First value that differs.
        other: String,
    },
    /// Recurrent layers alone.
    #[error("{name}: by {field} no layer has attention, so there is no KV to plan")]
    NoAttention {
        /// Name of the model.
        name: String,
        /// Field that names the layers.
        field: &'static str,
    },
    /// Weights of a type with unknown size or speed.
    #[error("{name}: weights of type {dtype} are not known here; there are: {known}", dtype = quoted(dtype))]
    UnknownDtype {
        /// Name of the model.
        name: String,
        /// Type as found in the file.
        dtype: String,
        /// Types that are known.
        known: &'static str,
    },
}
