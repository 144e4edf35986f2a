//! Model files: what a folder or a GGUF file says of a model, and its tensors.

pub(crate) mod gguf;
pub(crate) mod hugging_face;
pub(crate) mod shards;
pub(crate) mod weights;
