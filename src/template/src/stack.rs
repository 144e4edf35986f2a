//! A thread with a stack that is large enough to compile a template.
//!
//! The library compiles an expression such as `1 + 1 + 1 + ...` by recursion. A tag has a limit of tokens, and the stack fits it.

use std::panic::resume_unwind;
use std::thread;

use crate::error::TemplateError;

/// Bytes of the stack. The system gives memory only to pages that are used.
const STACK_BYTES: usize = 64 << 20;

/// Runs `run`. A panic is an error.
///
/// # Errors
///
/// The system has no memory for the stack, or `run` panicked.
pub(crate) fn on_a_deep_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || trunkline_foreign::call(run)).map_err(TemplateError::NoMemory)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?)
    })
}
