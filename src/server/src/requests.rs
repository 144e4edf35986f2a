//! Requests at work: their output, their times, and what is written of them when they end.

pub(crate) mod histogram;
pub(crate) mod outbox;
pub(crate) mod request_events;
pub(crate) mod request_log;
pub(crate) mod request_times;
pub(crate) mod spans;
pub(crate) mod trace_parent;
