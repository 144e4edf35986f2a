//! A thread with a stack that fits the work.
//!
//! The library drops, prints and compares nested values by recursion, and a template can nest values as deeply as its steps allow: an overflow would end
//! the process. So each rendering has a thread of its own, whose stack is proportional to the steps. The system gives memory only to pages that are used.

use std::panic::resume_unwind;
use std::thread;

use crate::error::TemplateError;

/// Runs `run` on a stack of this size. A panic is an error.
///
/// # Errors
///
/// The system has no memory for the stack, or `run` panicked.
pub(crate) fn on_a_deep_stack<T: Send>(bytes: usize, run: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".into()).stack_size(bytes);
        let thread = thread.spawn_scoped(scope, || trunkline_foreign::call(run)).map_err(TemplateError::NoMemory)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?)
    })
}
