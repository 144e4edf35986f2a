//! The prefix cache: a tree of published blocks over the device, and tiers behind it.
//!
//! Start with `kv.rs`, which holds everything else; [`tree`] finds prefixes, `tier.rs` is one tier, `transfer_table.rs` the copies in flight.

pub mod changes;
pub(crate) mod classes;
pub(crate) mod floors;
pub(crate) mod group_blocks;
pub(crate) mod kv;
pub(crate) mod links;
pub(crate) mod lookups;
pub(crate) mod pause;
pub(crate) mod tier;
pub(crate) mod tiers;
pub(crate) mod timing;
pub(crate) mod transfer_table;
pub mod tree;
