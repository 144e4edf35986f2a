//! Messages on their way in: bytes of a call that no handler has yet, within the limits of the connection and of the server.
//!
//! Beyond a limit, calls end whose messages are not there yet, until the rest is within. The first to end is the oldest call with at least half of an
//! equal part of the bytes: so messages that are left half-sent make room for others on the same connection, as behind a gateway, and a small message
//! never ends for a large one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tonic::Status;

use super::{Call, Connection, Network, lock};

impl Call {
    /// Adds received bytes of the request's message.
    ///
    /// # Errors
    /// The status with which the call is to end.
    pub(crate) fn add_incoming(&self, bytes: u64) -> Result<(), Status> {
        let (connection, network) = (&self.connection, &self.connection.network);
        self.incoming_bytes.fetch_add(bytes, Ordering::Relaxed);
        connection.incoming_bytes.fetch_add(bytes, Ordering::Relaxed);
        network.incoming_bytes.fetch_add(bytes, Ordering::Relaxed);
        let limits = &network.limits;
        while connection.incoming_bytes() > limits.incoming_bytes_per_connection && connection.end_a_message() {}
        while network.incoming_bytes.load(Ordering::Relaxed) > limits.incoming_bytes
            && network.heaviest().is_some_and(|heaviest| heaviest.end_a_message())
        {}
        match self.end_status.get() {
            Some(status) => Err(status.clone()),
            None => Ok(()),
        }
    }

    /// Takes back the bytes of the message.
    pub(crate) fn remove_incoming(&self) {
        let bytes = self.incoming_bytes.swap(0, Ordering::Relaxed);
        self.connection.incoming_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.connection.network.incoming_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of the message so far.
    pub(crate) fn incoming_bytes(&self) -> u64 {
        self.incoming_bytes.load(Ordering::Relaxed)
    }
}

impl Connection {
    fn incoming_bytes(&self) -> u64 {
        self.incoming_bytes.load(Ordering::Relaxed)
    }

    /// Ends a call whose message is not there yet; returns `false` without one.
    fn end_a_message(&self) -> bool {
        let calls: Vec<Arc<Call>> = lock(&self.network.calls)
            .values()
            .filter(|call| call.connection.number == self.number && call.incoming_bytes() > 0)
            .cloned()
            .collect();
        let bytes: u64 = calls.iter().map(|call| call.incoming_bytes()).sum();
        let half_a_part = bytes / (2 * calls.len().max(1) as u64);
        // Calls are in the order of their beginnings.
        let Some(call) = calls.iter().find(|call| call.incoming_bytes() >= half_a_part.max(1)) else { return false };
        call.end(Status::resource_exhausted("too many bytes of requests are being received; try again later"));
        call.remove_incoming();
        true
    }
}

impl Network {
    /// Returns the connection with the most bytes of messages on their way in.
    fn heaviest(&self) -> Option<Arc<Connection>> {
        lock(&self.connections).values().max_by_key(|connection| connection.incoming_bytes()).cloned()
    }
}
