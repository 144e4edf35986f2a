//! Request traces and synthetic workloads for the simulator.
//!
//! | module | contents |
//! |---|---|
//! | [`trace`] | traces in public formats: reading, selecting, converting, writing, statistics |
//! | [`synthetic`] | workloads of users and agents from a TOML file, open or closed loop |
//! | [`tenants`] | synthetic tenants for traces without tenants |
//! | [`daily`] | rates of arrivals in each hour of a day |
//! | [`patterns`] | synthetic traces for comparing eviction policies |
//! | [`summary`] | means and percentiles of measured values |
//! | [`lines`] | lines of text files, plain, gzip or Zstandard |
//! | [`python_json`] | JSON as Python writes it |
//!
//! This crate is the lowest of the simulator's crates and depends only on the core.
//!
//! ```
//! use trunkline_sim_workload::Trace;
//!
//! let path = std::env::temp_dir().join(format!("trace-{}.csv", std::process::id()));
//! std::fs::write(&path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,10\n0.5,200,20\n")?;
//! let trace = Trace::load(&path, None, None)?;
//! std::fs::remove_file(&path)?;
//! assert_eq!((trace.requests.len(), trace.requests[1].arrival_ns), (2, 500_000_000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod daily;
pub mod lines;
pub mod patterns;
pub mod python_json;
mod rng_stream;
pub mod summary;
pub mod synthetic;
pub mod tenants;
pub mod trace;

pub use crate::trace::{Format, Trace, TraceError, TraceRequest};
pub use trunkline_core::names::registry::UnknownName;
