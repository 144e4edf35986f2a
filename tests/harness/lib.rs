//! What the end-to-end tests share: seeded runs of a cluster under pressure, and a server.

pub mod attached;
pub mod cluster_pressure;
pub mod damage;
pub mod faulty_disk;
pub mod gateway;
pub mod http;
pub mod object_server;
pub mod raw;
pub mod scrape;
pub mod scripted;
pub mod server;
pub mod sessions;
pub mod tiered;

pub use trunkline_driver::{limits, oracle, pressure};
