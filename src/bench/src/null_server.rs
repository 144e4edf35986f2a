//! A server with the null worker on the loopback, for benchmarks of what is around a model.

use std::time::Duration;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_http::Settings;
use trunkline_server::{Front, Options, Outcome, Server, ServerError, ServerHandle, listen};
use trunkline_text::Tokenizer;

use trunkline::model::null_worker::{NullWorker, null_backend};

/// Name of the threads of the network.
pub const NETWORK: &str = "bench-network";

/// A server under way, with threads of its own.
pub struct NullServer {
    /// Address, as in `127.0.0.1:50051`.
    pub address: String,
    /// The services, for calls without a network.
    pub front: Front,
    network: Runtime,
    handle: ServerHandle,
    serving: JoinHandle<Result<Outcome, ServerError>>,
}

impl NullServer {
    /// Starts a server of one core whose steps take `step`. The context is the null worker's; `edit` sets what else is to be set.
    ///
    /// # Errors
    /// If the limits are impossible, or there is no port or no thread.
    pub fn start(
        core: Config,
        tokenizer: Tokenizer,
        step: Duration,
        http: Settings,
        edit: impl FnOnce(&mut Options),
    ) -> anyhow::Result<Self> {
        let network = runtime(NETWORK)?;
        let info = NullWorker::info(tokenizer.vocab_size());
        let core = Config { max_context: info.max_context, ..core };
        core.validate()?;
        let backend = null_backend(info, tokenizer, step);
        let options = Options { cluster: ClusterConfig::uniform(&core, 1), ..Options::default() };
        let mut options = Options { queue_per_client: Some(core.max_queue), ..options };
        edit(&mut options);
        let server = network.block_on(async { Server::new(listen("127.0.0.1:0").await?, backend, options).await })?;
        let mut services = None;
        let server = server.with_http(|front| trunkline_http::door(services.insert(front).clone(), http));
        let front = services.context("the server has no services")?;
        let (address, handle) = (server.local_addr().to_string(), server.handle());
        let serving = network.spawn(server.run());
        Ok(Self { address, front, network, handle, serving })
    }

    /// Waits for the requests that run, and stops the server.
    ///
    /// # Errors
    /// If the server failed.
    pub fn stop(self) -> anyhow::Result<()> {
        let Self { network, handle, serving, .. } = self;
        network.block_on(async {
            handle.drain().await;
            serving.await
        })??;
        Ok(())
    }
}

/// Starts threads of this name for tasks.
///
/// # Errors
/// If there are no threads.
pub fn runtime(name: &str) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().thread_name(name).build().context("cannot start threads")
}
