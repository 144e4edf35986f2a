//! Names: of tokens, requests and blocks, and of what a user chooses by name, with parameters.

pub mod ids;
pub mod registry;
pub mod spec;
