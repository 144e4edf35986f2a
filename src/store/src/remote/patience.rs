//! Waiting for storage no longer than to a deadline.

use std::future::Future;
use std::time::Instant;

use tokio::runtime::Runtime;

use crate::error::StoreError;

use super::objects::Unanswered;

/// Threads that wait for storage. A call of the system that hangs is left to itself when the threads are dropped.
#[derive(Debug)]
pub struct Patience(Option<Runtime>);

impl Patience {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system starts none.
    pub fn new() -> Result<Self, StoreError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("store-remote-io").enable_all().build();
        runtime.map(|runtime| Self(Some(runtime))).map_err(StoreError::Thread)
    }

    /// Waits for an answer until the deadline.
    ///
    /// # Errors
    /// If the deadline passes first, or a library panics at the answer.
    pub fn wait<T>(&self, deadline: Instant, answer: impl Future<Output = T>) -> Result<T, Unanswered> {
        let Some(runtime) = &self.0 else { return Err(Unanswered::Deadline) };
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = trunkline_foreign::call(|| runtime.block_on(async { tokio::time::timeout(left, answer).await }));
        let answer = answer.map_err(|panicked| Unanswered::Failed(format!("its answer cannot be read: {panicked}")))?;
        answer.map_err(|_| Unanswered::Deadline)
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
