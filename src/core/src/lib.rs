//! trunkline-core (front page to come).
pub mod config;
mod core;
pub mod event;
pub mod hash;
pub mod ids;
pub mod policy;
pub mod record;
pub mod request;
pub mod step;

pub use crate::config::{Config, ConfigError};
pub use crate::core::{Core, Stats};
pub use crate::event::{Action, Event};
pub use crate::hash::{BlockHash, Namespace};
pub use crate::ids::{BlockHandle, RequestId, Token};
pub use crate::request::{FinishReason, Refusal, Request, Sampling, Usage};
pub use crate::step::{Step, StepResult, StepSeq};
