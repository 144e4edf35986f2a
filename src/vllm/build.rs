//! Compiles the protobuf sources in Rust alone, so that building needs no `protoc`.

use std::path::{Path, PathBuf};

const PROTO_DIR: &str = "../../proto";
const SERVICE: &str = "vllm/vllm_engine.proto";
/// Messages of the service that those of other engines have, too.
const SHARED: &str = "vllm/common.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in [SERVICE, SHARED] {
        println!("cargo::rerun-if-changed={}", Path::new(PROTO_DIR).join(file).display());
    }
    let mut compiler = protox::Compiler::new([PROTO_DIR])?;
    compiler.include_imports(true).include_source_info(true).open_file(SERVICE)?;
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out_dir.join("vllm_descriptor.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .codec_path("trunkline_server::WireCodec")
        .include_file("protocol.rs")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
