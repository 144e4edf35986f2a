//! Storage of KV blocks behind the device: host memory, disk and remote storage, and the threads that copy blocks.
//!
//! **Boundary:** this crate knows blocks as bytes with a [`trunkline_port::BlockKey`], and nothing of requests or schedules. The core
//! decides which block goes where. The store copies, compresses, and proves every block before the block is used.
