//! Test driver of one core: seeded runs under pressure, time, steps and copies in flight, records of all answers, and a worker whose KV cells carry their
//! contents.
//!
//! The worker is the **content oracle**. A cell of its cache holds a digest of the token and of everything before it, as read
//! back from the cell before; a token it "samples" is computed from the last cell, or dictated by the test. So a wrong copy, a
//! wrong merge, a write into a shared block, or the early reuse of a block changes the contents, and the right contents are
//! known in advance. Cells are compared before each step, so that a fault shows where it is made and not where a text differs.
//! Copies to and from the host take time, fail and end in any order, and nobody may be in their way.

mod asking;
mod blame;
mod checks;
mod copies;
mod driver;
pub mod fast_forwards;
mod found;
mod groups;
mod keys;
pub mod limits;
mod listening;
mod memory;
mod mirror;
pub mod oracle;
mod outcome;
pub mod pressure;
mod progress;
mod records;
pub mod seeds;
mod timed;
mod valued;

pub use asking::prompt;
pub use copies::Direction;
pub use driver::Driver;
pub use listening::Follower;
pub use records::Known;
