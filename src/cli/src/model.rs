//! The model of an embedded worker: where it comes from, where its weights lie, and what takes its place.

pub(crate) mod kernel;
pub(crate) mod marks;
pub mod model_source;
pub mod null_worker;
pub(crate) mod repair;
pub(crate) mod revision;
pub(crate) mod simulated;
pub mod weights_settings;
