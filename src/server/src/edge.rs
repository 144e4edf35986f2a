//! The edge: bytes of a connection become calls of somebody, within limits.
//!
//! [`accept`] takes connections, [`gate`] lets calls in; the others watch what passes between.

pub(crate) mod accept;
pub(crate) mod bodies;
pub(crate) mod codec;
pub(crate) mod door;
pub(crate) mod frames;
pub(crate) mod gate;
pub(crate) mod gather;
pub(crate) mod greeting;
pub(crate) mod headers;
pub(crate) mod panics;
pub(crate) mod questions;
pub(crate) mod single;
pub(crate) mod socket;
