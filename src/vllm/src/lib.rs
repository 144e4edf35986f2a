//! vLLM's gRPC service, `vllm.grpc.engine.VllmEngine`, on the port of a Trunkline server: gateways that drive `vllm serve --grpc` drive this one.
//!
//! A thin layer over the server's [`Front`]: limits, tenants, deadlines, tokens and TLS are those of `trunkline.v1.Inference`. Gateways turn text
//! into tokens and back themselves, so a request makes no text unless it has stop strings. Every field is honoured, or refused with its name
//! (`asked`).
//!
//! | call | file |
//! |---|---|
//! | `Generate`, `Abort` | `asked`, `answers`, `parents` |
//! | `GetTokenizer` | `bundle`, `archive` |
//! | `GetModelInfo` | `files` |
//! | `GetLoads`, `GetServerInfo` | `loads` |
//! | `SubscribeKvEvents` | `events` |

mod answers;
mod archive;
mod asked;
mod bundle;
mod engine;
#[cfg(test)]
mod errors_tests;
mod events;
mod files;
mod loads;
mod parents;

use tonic::service::Routes;
use trunkline_events::Publisher;
use trunkline_server::{Front, Guest};

use crate::engine::Engine;
pub use crate::files::ModelFiles;
use crate::proto::vllm::grpc::engine::vllm_engine_server::{SERVICE_NAME, VllmEngineServer};

/// The protocol, packages `vllm.grpc.engine` and `smg.grpc.common`, generated from `proto/vllm/`.
#[expect(
    clippy::allow_attributes,
    clippy::large_enum_variant,
    missing_docs,
    unused_qualifications,
    reason = "generated code has its own style"
)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/protocol.rs"));

    /// The encoded descriptors of the protocol.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vllm_descriptor.bin"));
}

/// Settings of the service.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Name of the model in answers; its own if there is none.
    pub served_name: Option<String>,
    /// Path of the model, for gateways that find the tokenizer by it; the name of the model if there is none.
    pub path: Option<String>,
    /// Files of the model, for `GetTokenizer` and for what `config.json` says.
    pub files: ModelFiles,
    /// Publisher of the events of the caches, if somebody follows them.
    pub events: Option<Publisher>,
}

/// Returns the service for a server: `Server::with_guest(|front| service(front, settings))`.
pub fn service(front: Front, settings: Settings) -> Guest {
    let message_bytes_max = front.message_bytes_max();
    let engine = VllmEngineServer::new(Engine::new(front, settings)).max_decoding_message_size(message_bytes_max);
    Guest { name: SERVICE_NAME, routes: Routes::new(engine), descriptors: proto::FILE_DESCRIPTOR_SET }
}
