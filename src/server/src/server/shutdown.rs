//! Signals and handles of a server: stopping gently, then at once, and reading files again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{error, info, warn};

use crate::driver::commands::Command;
use crate::driver::queue::DriverHandle;

/// The services whose health is reported; the empty name is the server as a whole.
const HEALTH_SERVICES: [&str; 3] = ["", "trunkline.v1.Inference", "trunkline.v1.Sessions"];

/// Stops a running server from anywhere.
#[derive(Clone)]
pub struct ServerHandle {
    driver: DriverHandle,
    health: HealthReporter,
    /// `true` once someone has asked the server to stop.
    stopping: watch::Sender<bool>,
    hurry: watch::Sender<bool>,
    reloads: Arc<Notify>,
    /// The health that was reported last.
    serving: Arc<AtomicBool>,
    /// Services of other protocols, whose health is reported too.
    guests: Arc<Mutex<Vec<&'static str>>>,
    /// Longest time for which a drain waits for requests; `None` for no bound.
    drain_timeout: Option<Duration>,
}

impl ServerHandle {
    /// Makes a handle on a serving server.
    pub(crate) async fn new(driver: DriverHandle, health: HealthReporter, drain_timeout: Option<Duration>) -> Self {
        let (stopping, hurry) = (watch::Sender::new(false), watch::Sender::new(false));
        let (reloads, serving, guests) = Default::default();
        let handle = Self { driver, health, stopping, hurry, reloads, serving, guests, drain_timeout };
        handle.report(ServingStatus::Serving).await;
        handle
    }

    /// Takes no new requests and stops the server when the running requests have ended, or after the drain timeout: then they end with UNAVAILABLE. Health
    /// is `NOT_SERVING` from now on.
    pub async fn drain(&self) {
        self.driver.set_stopping();
        self.stopping.send_replace(true);
        self.report(ServingStatus::NotServing).await;
        self.send(Command::Drain).await;
        if let Some(timeout) = self.drain_timeout {
            let handle = self.clone();
            // Ends with the runtime.
            tokio::spawn(async move {
                tokio::time::sleep(timeout).await;
                handle.hurry.send_replace(true);
                handle.send(Command::CutShort).await;
            });
        }
    }

    /// Ends all requests, with [`trunkline_core::FinishReason::Abort`], and stops the server.
    pub async fn shutdown(&self) {
        self.driver.set_stopping();
        self.stopping.send_replace(true);
        self.report(ServingStatus::NotServing).await;
        self.hurry.send_replace(true);
        self.send(Command::Shutdown).await;
    }

    /// Has the files of tokens and TLS read again, changed or not, and the file of requests opened again under its name.
    pub fn reload(&self) {
        info!("told to read files again");
        self.reloads.notify_one();
    }

    /// Returns the notice of [`Self::reload`].
    pub(crate) fn reloads(&self) -> &Notify {
        &self.reloads
    }

    /// Waits until someone is in a hurry.
    pub(crate) async fn hurried(&self) {
        // The sender lives as long as `self`.
        let _ = self.hurry.subscribe().wait_for(|hurry| *hurry).await;
    }

    /// Waits until someone has asked the server to stop.
    pub(crate) async fn stopping(&self) {
        // The sender lives as long as `self`.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Reports health by the engines: `NOT_SERVING` while none has a worker, and from the start of the stop.
    pub(crate) async fn report_served(&self, is_served: bool) {
        let is_serving = is_served && !*self.stopping.borrow();
        self.report(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
    }

    /// Reports health whenever the first engine gets a worker or the last loses its worker, for ever.
    pub(crate) async fn watch_served(&self, mut served: watch::Receiver<bool>) {
        while served.changed().await.is_ok() {
            let is_served = *served.borrow_and_update();
            self.report_served(is_served).await;
        }
        std::future::pending().await
    }

    /// Ends the watches of the server's health: open watches would keep connections open for ever.
    pub(crate) async fn close_health(&self) {
        let mut health = self.health.clone();
        for service in self.services() {
            health.clear_service_status(service).await;
        }
    }

    /// Returns the mark of a healthy server.
    pub(crate) fn serving(&self) -> Arc<AtomicBool> {
        self.serving.clone()
    }

    async fn report(&self, status: ServingStatus) {
        self.serving.store(status == ServingStatus::Serving, Ordering::Relaxed);
        for service in self.services() {
            self.health.set_service_status(service, status).await;
        }
    }

    /// Reports the health of another service, too.
    pub(crate) async fn report_also(&self, service: &'static str) {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).push(service);
        let is_serving = self.serving.load(Ordering::Relaxed);
        self.report(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
    }

    fn services(&self) -> Vec<&'static str> {
        let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        HEALTH_SERVICES.iter().chain(&*guests).copied().collect()
    }

    /// Sends a command without losing the command to a full queue: waits on a new thread, since the threads of tokio may all be
    /// busy with prompts.
    async fn send(&self, command: Command) {
        let driver = self.driver.clone();
        let (sent, is_sent) = oneshot::channel::<()>();
        let send = move || {
            // If the core's thread has ended there is nothing left to stop.
            driver.send_blocking(command);
            drop(sent);
        };
        match thread::Builder::new().name("stop".into()).spawn(send) {
            // Ends with the thread, which says nothing.
            Ok(_) => drop(is_sent.await),
            Err(err) => error!(%err, "cannot start a thread to stop the server"),
        }
    }
}

/// Makes SIGTERM and SIGINT drain the server, and the next of them stop the server at once; SIGHUP makes the server read its files again.
///
/// # Errors
///
/// If the system does not let the process listen for signals.
pub fn heed_signals(server: ServerHandle) -> std::io::Result<()> {
    let mut stops = StopSignals::listen()?;
    let reloading = server.clone();
    on_hangup(move || reloading.reload())?;
    tokio::spawn(async move {
        stops.next().await;
        info!("draining: finishing running requests; signal again to stop at once");
        server.drain().await;
        stops.next().await;
        warn!("stopping at once");
        server.shutdown().await;
    });
    Ok(())
}

/// Calls `then` at each SIGHUP, which ends the process no more: neither the end of a terminal nor a rotation of logs stops a server or a worker.
///
/// # Errors
///
/// If the system does not let the process listen for signals.
pub fn on_hangup(then: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            then();
        }
    });
    Ok(())
}

/// Signals that ask a process to stop: SIGTERM and SIGINT (Ctrl-C).
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Listens for the signals, which end the process no more.
    ///
    /// # Errors
    ///
    /// If the system does not let the process listen for signals.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of the signals.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::driver::queue::queue;

    #[test]
    fn stopping_needs_neither_tokios_threads_nor_room_in_the_queue() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let (driver, commands) = queue(1);
        runtime.block_on(async {
            let (open, gate) = mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || gate.recv());
            let (health, _) = tonic_health::server::health_reporter();
            let handle = ServerHandle::new(driver.clone(), health, None).await;
            handle.drain().await;
            let stop = tokio::spawn(async move { handle.shutdown().await });
            // Lets it find the queue full.
            tokio::task::yield_now().await;
            assert!(matches!(commands.recv(), Ok(Command::Drain)));
            stop.await.unwrap();
            assert!(matches!(commands.recv(), Ok(Command::Shutdown)));
            drop(open);
            assert!(busy.await.unwrap().is_err());
        });
    }
}
