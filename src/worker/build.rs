//! Tells the tests whether `TRUNKLINE_SMOLLM2` names a model to test with; without it that test is reported as ignored.

fn main() {
    println!("cargo::rerun-if-env-changed=TRUNKLINE_SMOLLM2");
    println!("cargo::rustc-check-cfg=cfg(has_smollm2)");
    if std::env::var_os("TRUNKLINE_SMOLLM2").is_some() {
        println!("cargo::rustc-cfg=has_smollm2");
    }
}
