//! What the end-to-end tests share: seeded runs of a cluster under pressure, and a server.

pub mod cluster_pressure;
pub mod raw;
pub mod server;

pub use trunkline_driver::{oracle, pressure};
