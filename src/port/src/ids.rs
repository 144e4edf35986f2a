//! Names of tokens and requests.

use serde::{Deserialize, Serialize};

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Number of a request, chosen by the driver below 2^63. The driver MUST NOT use a number again while the core still knows the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Bit of the numbers of inner requests, which a core makes itself to read a prompt again.
    pub const INNER: u64 = 1 << 63;

    /// Returns `true` for an inner request. To a worker it is one like any other; no client knows of it.
    #[inline(always)]
    pub fn is_inner(self) -> bool {
        self.0 & Self::INNER != 0
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}
