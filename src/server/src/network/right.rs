//! Rights that can be withdrawn: what is done on behalf of a caller ends with the caller's right.
//!
//! A right belongs to a token, or to a connection with a client's certificate. Reading the files again withdraws the rights of tokens
//! that are gone or have another role or name now, and of certificates that no authority in use vouches for. Each call, each summary of a session and
//! each attached worker holds the rights that it began with.

use tokio_util::sync::CancellationToken;

/// A right. Clones are one right.
#[derive(Clone, Debug, Default)]
pub(crate) struct Right(CancellationToken);

impl Right {
    /// Withdraws the right for good.
    pub(crate) fn withdraw(&self) {
        self.0.cancel();
    }

    /// Returns `true` once the right is withdrawn.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the right is withdrawn.
    pub(crate) async fn withdrawn(&self) {
        self.0.cancelled().await;
    }
}
