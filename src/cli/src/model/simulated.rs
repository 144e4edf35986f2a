//! Workers without a device: the server runs in real time, and a cost model of the simulator says when each step ends.
//!
//! Scheduling, cache, network and streams are those of the server. A step takes the time that `trunkline replay` gives a step of the
//! same batch; a copy of a block takes the time of the link to the host, and moves no KV. Answers are text of the built-in kinds ([`text`]).
//!
//! Not modelled: the time of a real worker's own process and of its tokenizer, steps of several pipeline stages at once, and attention scores.

mod blocks;
pub mod clock;
pub mod text;
mod worker;

use std::sync::Arc;

use trunkline_core::Config;
use trunkline_port::{ModelInfo, Token};
use trunkline_server::{Backend, EngineStore, MakeWorker, SamplingOffer};
use trunkline_sim_perf::link::swap_block_ns;
use trunkline_sim_perf::model::Model;
use trunkline_sim_replay::Settings as Fleet;
use trunkline_store::{BlockLayout, Compression, StoreError, StoreSettings};
use trunkline_text::Tokenizer;

use self::blocks::{BlockTimes, STORED_BYTES};
use self::clock::Clock;
use self::text::{Text, TextKind};
use self::worker::{Device, SimulatedWorker};

/// Longest sequence of a model whose longest context is not known, tokens.
const MAX_CONTEXT: u32 = 1 << 17;

/// Returns the longest sequence, tokens.
pub fn max_context(model: &Model) -> u32 {
    model.max_context.unwrap_or(MAX_CONTEXT)
}

/// Returns facts about the model as clients see them; ids of tokens reach as far as those of model and tokenizer.
pub fn info(model: &Model, tokenizer: &Tokenizer, ends: &[Token]) -> ModelInfo {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let kv_dtype = match model.kv_dtype_bytes {
        1 => "fp8",
        2 => "bf16",
        _ => "f32",
    };
    ModelInfo {
        name: model.name.into(),
        revision: "simulated".into(),
        vocab_size: narrow(model.vocab).max(tokenizer.vocab_size()),
        max_context: max_context(model),
        eos_token_ids: ends.to_vec(),
        n_layers: narrow(model.layers),
        hidden_size: narrow(model.hidden),
        n_heads: narrow(model.heads),
        n_kv_heads: narrow(model.kv_heads),
        head_dim: narrow(model.head_dim),
        kv_dtype: kv_dtype.into(),
        kv_bytes_per_token: model.kv_bytes_per_token(),
        groups: Vec::new(),
    }
}

/// Returns a backend of workers on the devices of `fleet`, without stores, and puts the device's estimated costs into the limits of the core.
///
/// # Errors
/// If the cost model cannot be made, or the tokenizer fails.
pub fn backend(
    fleet: &mut Fleet,
    tokenizer: Tokenizer,
    ends: &[Token],
    text: TextKind,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Backend> {
    let cost = fleet.cost_model()?;
    fleet.estimate_costs(&*cost);
    fleet.core.worker.all_tokens = text == TextKind::Echo;
    let model = info(&fleet.model, &tokenizer, ends);
    let device = Arc::new(Device {
        cost,
        link: BlockTimes {
            block_ns: swap_block_ns(&fleet.hardware, fleet.device_block_bytes(fleet.parallel)),
            latency_ns: (fleet.hardware.host_link_latency_s * 1e9) as u64,
        },
        clock,
        text: Text::new(text, &tokenizer, ends.first().copied())?,
        vocab_size: model.vocab_size,
    });
    let workers: MakeWorker = Arc::new(move |_| Ok(Box::new(SimulatedWorker::new(device.clone()))));
    Ok(Backend {
        model,
        further_kv: Vec::new(),
        tokenizer,
        workers,
        stores: Vec::new(),
        offer: SamplingOffer { grammars: false, prompt_logprobs: false, ..SamplingOffer::default() },
    })
}

/// Returns the layout of a block in a store: few bytes without contents.
pub fn stored_layout(block_size: u32) -> BlockLayout {
    let dtype = "simulated".into();
    BlockLayout { dtype, shape: None, block_bytes: STORED_BYTES, block_size, frequencies: None }
}

/// Opens stores in host memory for the swapped-out requests of each worker.
///
/// # Errors
/// If a thread cannot be started.
pub fn swap_stores(core: &Config, workers: usize) -> Result<Vec<EngineStore>, StoreError> {
    let open = |_| {
        let mut settings = StoreSettings::new(stored_layout(core.block_size), 0);
        settings.host_bytes = u64::from(core.host_capacity()) * settings.layout.memory_bytes();
        settings.compression = Compression::Off;
        EngineStore::open(settings)
    };
    (0..workers).map(open).collect()
}
