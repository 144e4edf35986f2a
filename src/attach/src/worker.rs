//! The worker's end: dials a server, attaches, and runs the server's steps on any [`trunkline_port::StepRunner`].
//!
//! A connection that breaks is dialled again, with growing pauses; the KV stays, and is offered to the server ([`crate::Resume`]). The
//! worker ends when it is asked to stop, or when the server refuses it for a reason that trying again does not change.

mod connection;
mod copies;
mod engine;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

pub use self::connection::Dialled;
use self::connection::{Attached, Ended, attach};
use self::engine::Engine;
pub use self::engine::MakeRunner;
use crate::hello::{Hello, Resume};

/// Pause before a second attempt.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Length of a connection after which pauses begin again.
const STEADY: Duration = Duration::from_secs(10);

/// Dials a server: called for each connection.
pub type Dial = Box<dyn FnMut() -> DialFuture + Send>;
/// Outcome of dialling.
pub type DialFuture = Pin<Box<dyn Future<Output = Result<Dialled, Box<dyn Error + Send + Sync>>> + Send>>;

/// Reason for the end of a worker that was not asked to stop.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The server refused the worker, or sent a message that breaks the protocol.
    #[error("cannot attach: {0}")]
    Refused(String),
    /// The threads of the worker could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Returns the text of an error and of the errors behind it, in one line.
fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let line = source.to_string();
        if !text.ends_with(&line) {
            text = format!("{text}: {line}");
        }
        next = source.source();
    }
    text
}

/// Runs a worker until `stop` becomes `true`. `hello.resume` is filled in by this function.
///
/// # Errors
/// If the server refuses the worker for a reason that trying again does not change, or no thread can be started.
pub async fn run(
    mut hello: Hello,
    make: MakeRunner,
    mut dial: Dial,
    mut stop: watch::Receiver<bool>,
) -> Result<(), WorkerError> {
    let engine = Engine::spawn(make)?;
    let (mut number, mut pause) = (0, Duration::ZERO);
    loop {
        number += 1;
        let begin = Instant::now();
        let dialled = tokio::select! {
            dialled = dial() => dialled,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        let attached = match dialled {
            Ok(dialled) => attach(dialled, &hello, number, &engine, &mut stop).await,
            Err(error) => Attached { session: None, ended: Ended::Broken(with_sources(&*error)) },
        };
        let life = engine.quiesce().await;
        match attached.ended {
            Ended::Stopped => return Ok(()),
            Ended::Refused(reason) => return Err(WorkerError::Refused(reason)),
            Ended::Broken(reason) if number == 1 || attached.session.is_some() => warn!("not attached: {reason}"),
            Ended::Broken(reason) => info!("not attached: {reason}"),
        }
        let session = attached.session.or(hello.resume.take().map(|resume| resume.session));
        hello.resume = session.zip(life).map(|(session, life)| Resume { session, life });
        if begin.elapsed() > STEADY {
            pause = Duration::ZERO;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
        pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_with_its_sources_each_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("transport error")]
        struct Outer(#[source] std::io::Error);
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "refused");
        assert_eq!(with_sources(&Outer(refused)), "transport error: refused");
    }
}
