//! Compiles the protobuf sources in Rust alone, so that building needs no `protoc`.

use std::path::{Path, PathBuf};

const PROTO_DIR: &str = "../../proto";
const PROTO_FILE: &str = "trunkline/v1/inference.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={}", Path::new(PROTO_DIR).join(PROTO_FILE).display());
    let mut compiler = protox::Compiler::new([PROTO_DIR])?;
    compiler.include_imports(true).include_source_info(true).open_file(PROTO_FILE)?;

    // Reflection serves the descriptors as they are, comments included.
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out_dir.join("trunkline_descriptor.bin"), compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure().codec_path("crate::codec::WireCodec").compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
