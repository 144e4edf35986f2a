//! What the end-to-end tests share: a core with a fake worker whose KV cells carry their contents, and a seeded run of
//! the two under pressure.
//!
//! The fake worker is the **content oracle**. A cell of its cache holds a digest of the token and of everything before
//! it, as read back from the cell before; a token it "samples" is computed from the last cell. So a wrong copy, a wrong
//! merge, a write into a shared block, or the early reuse of a block changes the text, and the text that a request
//! would have alone is known in advance. Cells are compared before each step, so that a fault shows where it is made
//! and not where a text differs. Copies to and from the host take time, fail and end in any order, and nobody may be in
//! their way.

pub mod cluster_pressure;
pub mod oracle;
pub mod pressure;
pub mod server;
