//! Rights of calls and connections, which end with them.

use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::Status;

use super::{Call, Connection, Network, lock};
use crate::network::right::Right;

impl Network {
    /// Ends all calls whose right is withdrawn, and asks the clients of connections whose right is withdrawn to go.
    pub(crate) fn end_withdrawn(&self) {
        let calls: Vec<_> = lock(&self.calls).values().cloned().collect();
        calls.iter().for_each(|call| call.end_if_withdrawn());
        let connections = lock(&self.connections);
        connections.values().filter(|connection| connection.right.is_withdrawn()).for_each(|gone| gone.retire());
    }

    /// Returns the open connections.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.connections).values().cloned().collect()
    }
}

impl Connection {
    /// Returns the right of the client's certificate; one that is never withdrawn for clients without.
    pub(crate) fn right(&self) -> &Right {
        &self.right
    }

    /// Notes the certificates of the client, its own first.
    pub(crate) fn certify(&self, certificates: Vec<CertificateDer<'static>>) {
        // A connection has one handshake.
        let _ = self.certificates.set(certificates);
    }

    /// Returns the certificates of the client.
    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        self.certificates.get().map_or(&[], Vec::as_slice)
    }
}

impl Call {
    /// Binds the call to the right of its token.
    pub(crate) fn bind(&self, right: Right) {
        // A call has one token.
        let _ = self.right.set(right);
        self.end_if_withdrawn();
    }

    fn end_if_withdrawn(&self) {
        if let Some(status) = self.withdrawal() {
            self.end(status);
        }
    }

    /// Returns the status of a call whose right is withdrawn.
    pub(crate) fn withdrawal(&self) -> Option<Status> {
        let why = match self.right.get() {
            _ if self.connection.right.is_withdrawn() => "the certificate of this client is not valid any more",
            Some(right) if right.is_withdrawn() => "the token of this call is not valid any more",
            _ => return None,
        };
        Some(Status::unauthenticated(why))
    }

    /// Waits until a right of the call is withdrawn, and returns the status.
    pub(crate) async fn withdrawn(&self) -> Status {
        let of_token = async {
            match self.right.get() {
                Some(right) => right.withdrawn().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = of_token => {}
            () = self.connection.right.withdrawn() => {}
        }
        self.withdrawal().unwrap_or_else(|| Status::unauthenticated("the right of this call is withdrawn"))
    }
}
