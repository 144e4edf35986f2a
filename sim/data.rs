//! Build script of the crates with tests on public data, which are not part of this repository: tells the tests which data are there.
//!
//! The environment variable `TRUNKLINE_DATA` names a folder with `traces/`, `profiles/`, `golden/` and `kv/`. A test that needs one of them is ignored if it is
//! missing: `#[cfg_attr(not(trunkline_traces), ignore = "...")]`.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=TRUNKLINE_DATA");
    let root = std::env::var_os("TRUNKLINE_DATA").map(PathBuf::from);
    for kind in ["traces", "profiles", "golden", "kv"] {
        println!("cargo::rustc-check-cfg=cfg(trunkline_{kind})");
        if root.as_ref().is_some_and(|root| root.join(kind).is_dir()) {
            println!("cargo::rustc-cfg=trunkline_{kind}");
        }
    }
}
