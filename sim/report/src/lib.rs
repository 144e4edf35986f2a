//! Results of replays: metrics, SLOs, series over time, timelines and pages.
//!
//! | module | contents |
//! |---|---|
//! | [`report`] | the report of a replay, as JSON |
//! | [`figures`] | catalogue of all figures: name, unit, direction, meaning, value |
//! | [`counted`] | the figures that are counters of the core |
//! | [`figure`] | what a figure is |
//! | [`service`] | replicas in service over time, replica-hours and cost |
//! | [`slo`] | service-level objectives on latency, and goodput |
//! | [`sample`] | the requests behind a statistic, and its interval |
//! | [`fairness`] | service of competing tenants |
//! | [`observer`] | the interface between a replay and its observers |
//! | [`outcome`] | outcomes of single requests, as CSV or Parquet |
//! | [`series`] | a replay over time, in buckets |
//! | [`timeline`] | every step, copy and request in Chrome's trace event format |
//! | [`html`] | one page with charts of one or several replays |
//! | [`numbers`] | formatting of numbers |
//!
//! ```
//! use trunkline_sim_report::slo::{Slo, Slos};
//!
//! let slo: Slo = "ttft_p99=2s".parse()?;
//! assert_eq!((slo.to_string().as_str(), slo.limit_s), ("ttft_p99", 2.0));
//! assert!(Slos::new(&[slo], None).is_ok());
//! # Ok::<(), trunkline_sim_report::slo::SloError>(())
//! ```

mod completed_steps;
pub mod counted;
pub mod fairness;
pub mod figure;
pub mod figures;
pub mod fleet_shape;
pub mod html;
pub mod numbers;
pub mod observer;
pub mod outcome;
mod range;
pub mod report;
pub mod sample;
pub mod series;
pub mod service;
pub mod slo;
pub mod timeline;

pub use crate::fleet_shape::FleetShape;
pub use crate::observer::{Observer, Observers};
pub use crate::report::Report;
