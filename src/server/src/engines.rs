//! The worker and the stores of an engine: a thread of this process, or a program that attached and has a seat.

pub(crate) mod idle;
pub(crate) mod link;
pub(crate) mod lock_steps;
pub(crate) mod losses;
pub(crate) mod seats;
pub(crate) mod step_figures;
pub(crate) mod store_info;
pub(crate) mod stores;
pub(crate) mod watchdog;
pub(crate) mod worker_thread;
