//! Compiles the protobuf source in Rust alone, so that building needs no `protoc`.

use std::path::Path;

const PROTO_DIR: &str = "../../proto";
const PROTO_FILE: &str = "trunkline/v1/worker.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={}", Path::new(PROTO_DIR).join(PROTO_FILE).display());
    let mut compiler = protox::Compiler::new([PROTO_DIR])?;
    compiler.include_imports(true).include_source_info(true).open_file(PROTO_FILE)?;
    tonic_prost_build::configure().compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
