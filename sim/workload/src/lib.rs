//! Request traces and synthetic workloads.

pub mod draw;
pub mod lines;
pub mod summary;
pub mod synthetic;
pub mod tenants;
pub mod trace;
mod unknown_name;

pub use crate::trace::{Format, Trace, TraceError, TraceRequest};
pub use crate::unknown_name::UnknownName;
