//! KV blocks on the device and the host: their states, identities, and links.
//!
//! Plain data without decisions. Every index into these tables is a block's slot.

pub mod block;
pub(crate) mod block_index;
pub(crate) mod content_key;
pub(crate) mod entries;
pub(crate) mod extents;
pub mod hash;
pub mod host;
pub(crate) mod namespaces;
pub mod nodes;
pub(crate) mod prefetch;
pub mod prefix;
pub(crate) mod run_bits;
pub(crate) mod slots;
pub(crate) mod transitions;
