//! Calls and streams whose code panics: they end with a status, where a task that unwinds would reset them without a word.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tonic::Status;
use tracing::error;
use trunkline_foreign::Panicked;

/// Returns the status of a call whose code panicked, and notes the panic in the log.
pub(crate) fn failed(what: &str, panicked: &Panicked) -> Status {
    error!(call = what, %panicked, "a call failed by a fault of the server; other calls go on");
    Status::internal(format!("a fault of the server ended this call: {panicked}"))
}

/// A future whose panic is an error.
pub(crate) struct Whole<F>(Pin<Box<F>>);

impl<F: Future> Whole<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Box::pin(future))
    }
}

impl<F: Future> Future for Whole<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match trunkline_foreign::call(|| self.0.as_mut().poll(cx)) {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}
