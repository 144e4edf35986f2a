//! Storage of KV blocks behind the device: host memory, disk and remote storage, with the threads for copies.
//!
//! **Boundary:** this crate knows blocks as bytes with a [`trunkline_port::BlockKey`], and nothing of requests or schedules. The core
//! decides about places. The store copies, compresses, and proves every block before the block is used.
