//! Commands to a running server.

pub(crate) mod chat;
pub(crate) mod connection;
pub(crate) mod generate;
pub mod load;
pub(crate) mod retain;
