//! A worker of your own: `cargo run -p trunkline-attach --example attach -- 127.0.0.1:50051` attaches it to a server.
//!
//! Without an address it is checked, as `trunkline worker check` does. Its model says one more than the last token: put yours there.

use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::watch};
use tonic::transport::Endpoint;
use trunkline_attach::check::{self, Verdict};
use trunkline_attach::worker::{self, Dial, Dialled, MakeRunner};
use trunkline_attach::{Abilities, Hello, KvRoom};
use trunkline_port::{CopyError, DeviceBlocks, ModelInfo, Step, StepError, StepOutput, StepRunner, Token};

const VOCAB: u32 = 1_000;
/// A model without weights or KV: it remembers the last token of each slot.
#[derive(Default)]
struct Counting(HashMap<u32, Token>);

impl StepRunner for Counting {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let mut output = StepOutput::default();
        output.result.step = step.id;
        for seq in &step.seqs {
            let last = self.0.entry(seq.slot).or_default();
            if !seq.input_from_last {
                *last = *step.run_tokens(seq).last().ok_or_else(|| StepError::new("no token to run"))?;
            }
            *last = if seq.sample { (*last + 1) % VOCAB } else { *last };
            output.result.push(if seq.sample { std::slice::from_ref(last) } else { &[] });
        }
        Ok(output)
    }
    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        Arc::new(NoBlocks)
    }
    fn reset(&mut self) {
        self.0.clear();
    }
}

/// Blocks of a worker that does not offer to copy them (`KvRoom::block_io`).
struct NoBlocks;
impl DeviceBlocks for NoBlocks {
    fn block_bytes(&self) -> usize {
        16
    }
    fn read(&self, _: u32, _: &mut [u8]) -> Result<(), CopyError> {
        Err(CopyError::new("this worker copies no blocks"))
    }
    fn write(&self, _: u32, _: &[u8]) -> Result<(), CopyError> {
        Err(CopyError::new("this worker copies no blocks"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut hello = Hello { name: "counting-0".into(), program: "attach.rs".into(), ..Hello::default() };
    let ModelInfo { name, kv_dtype, vocab_size, max_context, n_layers, kv_bytes_per_token, .. } = &mut hello.model;
    (*name, *kv_dtype, *vocab_size, *max_context) = ("counting".into(), "none".into(), VOCAB, 4096);
    (*n_layers, *kv_bytes_per_token) = (1, 1);
    hello.kv = KvRoom { block_sizes: vec![16], tokens: 16_384, block_io: false };
    hello.abilities = Abilities { max_sequences: 64, max_tokens: 2048, steps_in_flight: 2, ..Abilities::default() };
    let make: MakeRunner = Box::new(|_| Ok(Box::new(Counting::default())));
    let dial = |address: String| -> Dial {
        Box::new(move || {
            let endpoint = Endpoint::from_shared(format!("http://{address}"));
            Box::pin(async move { Ok(Dialled { channel: endpoint?.connect().await?, authorization: None }) })
        })
    };
    let (_stop, stopped) = watch::channel(false);
    if let Some(address) = std::env::args().nth(1) {
        return Ok(worker::run(hello, make, dial(address), stopped).await?);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let worker = tokio::spawn(worker::run(hello, make, dial(listener.local_addr()?.to_string()), stopped));
    let rows = check::run(listener, Duration::from_secs(10), |row| println!("{:24} {:?}", row.name, row.verdict)).await;
    worker.abort();
    assert!(!rows.iter().any(|row| matches!(row.verdict, Verdict::Fail(_))), "a check failed");
    Ok(())
}
