//! The texts of all errors of a store.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use std::io;

use error_texts::texts;
use trunkline_store::{Fault, StoreError};

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "permission denied");
    texts!(
        out,
        StoreError {
            Setting: StoreError::Setting { setting: "disk", reason: "it has 0 bytes; give at least 1 MiB".into() },
            Thread: StoreError::Thread(refused()),
            Disk: StoreError::Disk { path: "/kv".into(), task: "create the folder", source: refused() },
            Locked: StoreError::Locked { path: "/kv".into() },
            Remote: StoreError::Remote { url: "s3://bucket/kv".into(), reason: "access denied".into() },
        }
    );
    texts!(
        out,
        Fault {
            Torn: Fault::Torn,
            Short: Fault::Short,
            Stale: Fault::Stale,
            Swapped: Fault::Swapped,
            Flipped: Fault::Flipped,
            Missing: Fault::Missing,
            Unreadable: Fault::Unreadable,
        }
    );
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), out);
}
