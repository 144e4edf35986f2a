//! Results of a replay.

pub mod fairness;
pub mod figures;
pub mod fleet_shape;
pub mod html;
pub mod numbers;
pub mod observer;
pub mod outcome;
pub mod report;
pub mod series;
mod settled;
pub mod slo;
pub mod timeline;

pub use crate::fleet_shape::FleetShape;
pub use crate::observer::{Observer, Observers};
pub use crate::report::Report;
