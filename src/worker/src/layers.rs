//! The parts of a transformer's layer, each shared out over threads.

pub(crate) mod attention;
pub(crate) mod linear;
pub(crate) mod pair;
pub(crate) mod scores;
pub(crate) mod threads;
