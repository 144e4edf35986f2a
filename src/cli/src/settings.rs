//! Flags that several commands share, and where else their values may come from.

pub(crate) mod attach_settings;
pub(crate) mod closed_loop;
pub(crate) mod core_settings;
pub mod engines;
pub mod events_settings;
pub(crate) mod given;
pub mod h2o_settings;
pub mod http_settings;
pub(crate) mod kv_settings;
pub mod log_settings;
pub(crate) mod network_settings;
pub(crate) mod routers;
pub(crate) mod selection;
pub mod serve_settings;
pub(crate) mod session_settings;
pub(crate) mod simulate_settings;
pub(crate) mod sizes;
pub(crate) mod tier_settings;
