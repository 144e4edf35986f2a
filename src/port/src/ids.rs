//! Names of tokens and requests.

use serde::{Deserialize, Serialize};

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Number of a request, chosen by the driver. The driver MUST NOT use a number again while the core still knows the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}
