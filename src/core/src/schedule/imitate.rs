//! What SGLang, vLLM 0 and Sarathi-Serve do otherwise: the scheduler asks here, and a server of our own gets no for an answer.
//!
//! | file | engine | asked by |
//! |---|---|---|
//! | `prompts_first.rs` | SGLang, engines with padded prompts | [`Config::prefill_first`](crate::Config::prefill_first) |
//! | `reserve.rs` | SGLang's new-token ratio | [`OutputReserve`](crate::config::OutputReserve) |
//! | `queue_pass.rs` | SGLang's look-ups of the waiting queue | policy `lpm_sorted`, eviction `leaves` |
//! | `retraction.rs` | SGLang's overlap | [`Preemption::RetractAtOnce`](crate::Preemption::RetractAtOnce) |
//! | `pipeline.rs` | Sarathi-Serve, and Vidur's model of it | [`PipelineBatches::Apart`](crate::config::PipelineBatches::Apart) |

mod pipeline;
mod prompts_first;
pub(super) mod queue_pass;
pub(super) mod reserve;
mod retraction;

pub(super) use self::pipeline::{is_kept_apart, step_share};
pub(super) use self::prompts_first::{padded_budget, takes_together};
pub(super) use self::retraction::puts_off_retraction;
