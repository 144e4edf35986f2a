//! Compiles the protobuf sources in Rust alone, so that building needs no `protoc`.

use std::path::{Path, PathBuf};

const PROTO_DIR: &str = "../../proto";
/// The services of clients.
const PROTO_FILES: [&str; 2] = ["trunkline/v1/inference.proto", "trunkline/v1/sessions.proto"];
/// The messages of workers, compiled by the crate of their protocol.
const WORKER_PROTO_FILE: &str = "trunkline/v1/worker.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in PROTO_FILES.into_iter().chain([WORKER_PROTO_FILE]) {
        println!("cargo::rerun-if-changed={}", Path::new(PROTO_DIR).join(file).display());
    }
    let open = |files: &[&str]| {
        let mut compiler = protox::Compiler::new([PROTO_DIR])?;
        compiler.include_imports(true).include_source_info(true);
        for file in files {
            compiler.open_file(file)?;
        }
        Ok::<_, protox::Error>(compiler)
    };
    // Reflection serves the descriptors as they are, comments included.
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
    let [inference, sessions] = PROTO_FILES;
    let descriptors = open(&[inference, sessions, WORKER_PROTO_FILE])?.encode_file_descriptor_set();
    std::fs::write(out_dir.join("trunkline_descriptor.bin"), descriptors)?;

    let compiler = open(&PROTO_FILES)?;
    tonic_prost_build::configure()
        .codec_path("crate::edge::codec::WireCodec")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
