//! Files read and written past the page cache (`O_DIRECT`) where the filesystem allows, and the aligned memory that this takes; files and folders for
//! one user alone ([`private`]).
//!
//! Users are the disk tier of the store, the weights of the embedded worker, and all that writes prompts to a file.
//!
//! ```
//! use trunkline_files::{Aligned, PAGE};
//!
//! let mut bytes = Aligned::with_capacity(PAGE);
//! bytes.append(|bytes| bytes.extend_from_slice(b"a record"));
//! bytes.pad();
//! assert_eq!((bytes.as_slice().len(), &bytes.as_slice()[..8]), (PAGE, &b"a record"[..]));
//! ```
//!
//! **Boundary:** this crate depends on no other crate of Trunkline and gives bytes no meaning.

#![forbid(unsafe_code)]

mod aligned;
mod files;
pub mod private;

pub use crate::aligned::{Aligned, PAGE};
pub use crate::files::{BlockFile, Files, SystemFiles, open_for_reading, read_full, write_all};
