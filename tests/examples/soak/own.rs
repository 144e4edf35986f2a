//! A server of our own, in a process of its own: the embedded worker at the pace of a real device.
//!
//! On a device a step takes about as long with few sequences as with many. The small model of the embedded worker takes microseconds, and
//! longer in proportion to the batch; steps are therefore padded to a fixed time that the computation of a full batch fits into. The
//! latency of the clients that behave then shows waiting, not the speed of this machine, and the texts are still computed. Steps of one
//! sequence are not padded, so that the texts of requests alone come quickly.

use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use trunkline_core::Config;
use trunkline_port::{DeviceBlocks, Step, StepError, StepOutput, StepRunner};
use trunkline_server::Options;
use trunkline_tests::server::TestServer;
use trunkline_worker::Worker;

/// A worker whose steps take a fixed time, at least.
struct Paced {
    worker: Worker,
    step: Duration,
}

impl StepRunner for Paced {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let begin = Instant::now();
        let output = StepRunner::run(&mut self.worker, step);
        if step.seqs.len() > 1 {
            sleep(self.step.saturating_sub(begin.elapsed()));
        }
        output
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

/// Open requests of one client, at most: a sixth of the batch, which has room for the streams that behave and some hostile clients.
const REQUESTS_PER_CLIENT: u32 = 40;

/// Bounds each client, as an operator would whose clients are strangers.
fn share(options: &mut Options) {
    options.requests_per_client = Some(REQUESTS_PER_CLIENT);
}

/// Serves until the standard input ends; prints the address.
pub async fn serve(step: Duration) -> ExitCode {
    let config = Config { policy: "vtc".into(), device_blocks: 16384, ..Config::default() };
    let server = TestServer::start_options(config, share, move |worker| Box::new(Paced { worker, step })).await;
    println!("{}", server.addr());
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    ExitCode::SUCCESS
}
