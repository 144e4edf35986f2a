//! KV cache of a user's own engine, as its log says it.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use trunkline_sim_replay::Settings;

/// Longest log that is read, bytes.
const BYTES_MAX: u64 = 256 << 20;

/// Figures of a log, the smallest of several workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    /// Blocks of the pool.
    blocks: Option<u64>,
    /// Tokens of the KV cache.
    tokens: Option<u64>,
    /// Memory of the KV cache of a device, GiB.
    gib: Option<f64>,
    /// Tokens of a block, where the engine chose them.
    block_tokens: Option<u64>,
}

/// KV cache of an engine by its log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EngineLog {
    path: PathBuf,
    figures: Figures,
}

/// Beginnings of figures in the lines of vLLM and SGLang.
const BLOCKS: [&str; 3] = ["# GPU blocks:", "# cuda blocks:", "num_gpu_blocks is:"];
const TOKENS: [&str; 3] = ["GPU KV cache size:", "#tokens:", "max_total_num_tokens="];
const GIB: [&str; 1] = ["Available KV cache memory:"];
const BLOCK_TOKENS: [&str; 1] = ["Setting attention block size to"];

impl EngineLog {
    /// Reads the log at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or has no line with the size of a KV cache.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::metadata(path).with_context(|| format!("{}: cannot be read", path.display()))?.len();
        ensure!(bytes <= BYTES_MAX, "{}: has more than {BYTES_MAX} bytes; keep the lines of the start", path.display());
        let text = std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let figures = Figures::of(&String::from_utf8_lossy(&text));
        let is_known = figures.blocks.is_some() || figures.tokens.is_some() || figures.gib.is_some_and(|gib| gib > 0.0);
        ensure!(
            is_known,
            "{}: no line says the size of the KV cache; those of vLLM have 'GPU KV cache size', '# GPU blocks' or 'Available KV cache memory' above \
             0, those of SGLang '#tokens' or 'max_total_num_tokens'",
            path.display()
        );
        Ok(Self { path: path.into(), figures })
    }

    /// Returns the blocks of each layer group on a device of `settings`. The memory counts before tokens where a sequence has states in blocks too, for
    /// then the tokens of the log depend on their number.
    ///
    /// # Errors
    /// If there is no room for a block.
    pub(super) fn device_blocks(&self, settings: &Settings) -> anyhow::Result<u32> {
        let Figures { blocks, tokens, gib, block_tokens } = self.figures;
        let (size, groups) = (u64::from(settings.core.block_size), u64::from(settings.core.n_groups()));
        if let Some(block_tokens) = block_tokens {
            ensure!(
                block_tokens == size || !settings.has_state_pages(),
                "{}: its blocks have {block_tokens} tokens, and here {size}; is it the log of {} with this parallelism and KV type?",
                self.path.display(),
                settings.model.name
            );
        }
        let block_bytes = settings.device_block_bytes(settings.parallel).max(1);
        let by_memory = gib.map(|gib| (gib * f64::from(1 << 30)) as u64 / block_bytes / groups);
        let found = match (blocks, tokens) {
            _ if settings.has_state_pages() && by_memory.is_some() => by_memory,
            // A block of the engine is one of 16 tokens unless it says otherwise.
            (Some(blocks), _) if settings.has_state_pages() => Some(blocks / groups),
            (_, Some(tokens)) => Some(tokens / size),
            (Some(blocks), None) => Some(blocks * block_tokens.unwrap_or(16) / size),
            (None, None) => by_memory,
        };
        let found = found.and_then(|blocks| u32::try_from(blocks).ok()).filter(|blocks| *blocks > 0);
        found.with_context(|| format!("{}: its KV cache holds no block of {size} tokens", self.path.display()))
    }
}

impl Figures {
    fn of(text: &str) -> Self {
        let mut it = Self::default();
        for line in text.lines() {
            let whole = |marks: &[&str]| number_after(line, marks).filter(|n| *n >= 0.0).map(|n| n as u64);
            it.blocks = least(it.blocks, whole(&BLOCKS));
            it.tokens = least(it.tokens, whole(&TOKENS));
            it.block_tokens = least(it.block_tokens, whole(&BLOCK_TOKENS));
            it.gib = match (it.gib, number_after(line, &GIB)) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        it
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// Returns the number behind one of the marks, with commas between its digits.
fn number_after(line: &str, marks: &[&str]) -> Option<f64> {
    let rest = marks.iter().find_map(|mark| line.split_once(mark)).map(|(_, rest)| rest.trim_start())?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || [',', '.', '-'].contains(&c))).unwrap_or(rest.len());
    rest[..end].trim_end_matches([',', '.']).replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use trunkline_sim_perf::{hardware, model};

    use super::*;

    fn settings() -> Settings {
        let mut settings =
            Settings::new(*hardware::by_name("h100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap());
        settings.core.block_size = 16;
        settings
    }

    fn blocks(text: &str) -> anyhow::Result<u32> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("engine.log");
        std::fs::write(&path, text)?;
        EngineLog::read(&path)?.device_blocks(&settings())
    }

    #[test]
    fn lines_of_engines_are_read() {
        for (text, expected) in [
            ("INFO 10-31 [kv_cache_utils.py:864] GPU KV cache size: 420,904 tokens\n", 420_904 / 16),
            ("(EngineCore pid=7) INFO [gpu_worker.py:436] Available KV cache memory: 20.00 GiB\nother", 20 * 512),
            ("INFO 12-20 20:25:46 distributed_gpu_executor.py:57] # GPU blocks: 3852, # CPU blocks: 4096", 3852),
            ("[TP0] KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB", 367_404 / 16),
            ("max_total_num_tokens=1000, chunked_prefill_size=8192", 62),
            // The smallest of several workers.
            ("GPU KV cache size: 1,600 tokens\nGPU KV cache size: 160 tokens\n", 10),
        ] {
            assert_eq!(blocks(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_log_without_a_size_is_refused_in_one_line() {
        for text in ["", "Available KV cache memory: -2.14 GiB", "GPU KV cache size: none"] {
            let message = blocks(text).unwrap_err().to_string();
            assert!(message.contains("engine.log: no line says the size of the KV cache") && !message.contains('\n'));
        }
        assert!(
            blocks("GPU KV cache size: 5 tokens").unwrap_err().to_string().ends_with("holds no block of 16 tokens")
        );
        assert!(
            EngineLog::read(Path::new("no/such.log")).unwrap_err().to_string().contains("no/such.log: cannot be read")
        );
    }
}
