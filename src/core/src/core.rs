//! The state machine.
use crate::config::{Config, ConfigError};
use crate::event::{Action, Event};
use crate::step::Step;

/// Counters and gauges of a core, all derived from its decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Requests accepted and not yet admitted to a batch.
    pub waiting: u32,
    /// Requests in the batch.
    pub running: u32,
    /// Blocks that hold nothing.
    pub free_blocks: u32,
    /// Published blocks that no sequence holds: cached, evictable.
    pub idle_blocks: u32,
    /// Published blocks that some sequence holds.
    pub held_blocks: u32,
    /// Blocks of one sequence alone.
    pub private_blocks: u32,
    /// Steps begun.
    pub steps: u64,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests refused.
    pub refused: u64,
    /// Prompt tokens of requests admitted for the first time.
    pub prompt_tokens: u64,
    /// Those of them found in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Blocks published.
    pub published_blocks: u64,
    /// Blocks found to be duplicates when they were to be published.
    pub merged_blocks: u64,
    /// Published blocks evicted.
    pub evicted_blocks: u64,
}

/// The core.
pub struct Core {}

impl Core {
    /// A core with an empty cache and no worker yet.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {})
    }
    /// Takes in what happened at `now_ns` and appends what is to be done to `actions`.
    pub fn handle(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        let _ = (now_ns, event, actions);
    }
    /// Gives the memory of a step back.
    pub fn recycle(&mut self, step: Box<Step>) {
        let _ = step;
    }
    /// The earliest deadline: the driver sends a `Tick` then, unless another event comes first.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        None
    }
    /// The running digest of all decisions.
    pub fn digest(&self) -> u64 {
        0
    }
    /// Gauges and counters.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
    /// The limits.
    pub fn config(&self) -> &Config {
        unreachable!("stub")
    }
}
