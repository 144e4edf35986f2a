//! Tiers of a server: flags, and the limits and stores made from them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use trunkline_core::{Config, Keeps, TierConfig, Write, names::registry};
use trunkline_server::EngineStore;
use trunkline_store::{BlockLayout, Compression, SharedMemory, StoreError, StoreSettings, TierMedium};

use crate::settings::sizes::{one_or_each, parse_size};

/// Size of a disk tier by default.
const DISK_SIZE_DEFAULT: &str = "20GiB";
const WRITE_DEFAULT: &str = "through";
const EVICTION_DEFAULT: &str = "lru";
/// Blocks that fit in a tier at most, over blocks that fit uncompressed.
const COMPRESSION_MAX: u64 = 2;
/// Blocks of a tier at most.
const BLOCKS_MAX: u64 = 1 << 28;
/// Name of the tier in remote storage, which other servers fill too.
const REMOTE: &str = "remote";
/// Name of the tier in host memory that all workers fill.
const SHARED: &str = "shared";
/// Maximum number of blocks of each layer group known to be in remote storage.
const REMOTE_BLOCKS: u32 = 1 << 20;
/// Maximum number of blocks of all layer groups known to be in remote storage: some 200 bytes of memory each. Requests ask the storage for blocks
/// beyond.
const REMOTE_BLOCKS_MAX: u32 = 1 << 24;
/// Deadline of each answer of remote storage.
const REMOTE_DEADLINE: Duration = Duration::from_secs(5);
/// Longest time for which a start waits until disks are searched for blocks from before; on slower disks they are found while requests are served.
const SEARCH_WAIT: Duration = Duration::from_secs(2);
/// Least bytes that a block takes on a disk.
const PAGE: u64 = 4096;
/// Maximum number of blocks of each layer group on the way from one place to a tier without a request waiting.
const BACKGROUND_BLOCKS: u64 = 4096;
/// Part of the device's blocks that may be on the way to remote storage: one in so many, and some of each layer group in any case.
const REMOTE_PART: u64 = 8;
const REMOTE_BLOCKS_MIN: u64 = 8;
const THREADS_MAX: usize = 4;

/// Ways to compress blocks, by name.
const COMPRESSIONS: [(&str, Compression); 5] = [
    ("auto", Compression::Auto),
    ("off", Compression::Off),
    ("probe", Compression::Probe),
    ("full", Compression::Full),
    ("store", Compression::Store),
];

/// Layers whose blocks are compressed, by name; `None` for all.
const LAYERS: [(&str, Option<Keeps>); 3] =
    [("all", None), ("full", Some(Keeps::All)), ("evicting", Some(Keeps::Scored))];

/// Settings of host memory, disk and remote storage behind the device.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Tiers")]
pub struct TierSettings {
    /// Host memory for swapped-out requests and cached blocks, such as 4GiB; divided among the workers [default: none].
    #[arg(long, value_name = "SIZE")]
    pub host_mem: Option<String>,

    /// Folder on a local disk for cached blocks, which outlive the server; each further worker has a subfolder [default: none].
    #[arg(long, value_name = "PATH")]
    pub disk: Option<PathBuf>,

    /// Size limit of the disk folder, divided among the workers [default: 20GiB].
    #[arg(long, value_name = "SIZE")]
    pub disk_size: Option<String>,

    /// Host memory for cached blocks that all workers of this server share, such as 4GiB: a decode worker takes the prompts of prefill
    /// workers from there; not with --remote [default: none].
    #[arg(long, value_name = "SIZE")]
    pub shared_mem: Option<String>,

    /// Remote storage for cached blocks, shared by all servers with the same address, model and block size: file:///FOLDER or
    /// s3://BUCKET/PREFIX [default: none].
    #[arg(long, value_name = "URL")]
    pub remote: Option<String>,

    /// Compression of blocks in tiers: auto (where it pays), off, probe (measure only), full (encode before the answer and compare, for
    /// tests) or store (always) [default: auto].
    #[arg(long, value_name = "NAME")]
    pub compression: Option<String>,

    /// Layers whose blocks are compressed: all, full (those that keep every token) or evicting (those that `--h2o` thins) [default: all].
    #[arg(long, value_name = "LAYERS")]
    pub compression_layers: Option<String>,

    /// Moment at which a tier takes a block: through (at the end of its request), prefill (when its prompt is
    /// computed, and answers at the end), second_use (after a prefix hit) or back (before eviction). One for all tiers, or one for each, separated by commas [default: through].
    #[arg(long, value_name = "WHEN")]
    pub tier_write: Option<String>,

    /// Eviction policy of the tiers. One for all tiers, or one for each, separated by commas [default: lru].
    #[arg(long, value_name = "NAME")]
    pub tier_eviction: Option<String>,
}

/// Tiers of every worker of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerTiers {
    /// Bytes of host memory, disk and remote storage for one worker, where asked for.
    host_bytes: u64,
    disk: Option<(PathBuf, u64)>,
    /// Bytes of memory that all workers share.
    shared_bytes: Option<u64>,
    remote: Option<String>,
    compression: Compression,
    /// Kind of layers whose blocks are compressed; `None` for all.
    compressed: Option<Keeps>,
    tiers: Vec<TierConfig>,
    host_blocks: u32,
}

impl TierSettings {
    /// Checks that tiers in host memory fit into the `memory` of the machine, bytes; `None` checks nothing.
    ///
    /// # Errors
    /// If the tiers are larger, or a size is malformed.
    pub fn check_memory(&self, memory: Option<u64>) -> anyhow::Result<()> {
        let Some(memory) = memory else { return Ok(()) };
        let mut needed = 0.0;
        let mut flags = Vec::new();
        for (flag, size) in [("host-mem", &self.host_mem), ("shared-mem", &self.shared_mem)] {
            if let Some(size) = size {
                needed += parse_size(flag, size)?;
                flags.push(format!("{flag} is {size}"));
            }
        }
        let (flags, gib) = (flags.join(" and "), memory as f64 / f64::from(1 << 30));
        ensure!(
            needed <= memory as f64,
            "{flags}, but this machine has {gib:.1} GiB of memory; leave room for the rest of the server"
        );
        Ok(())
    }

    /// Checks the names of write modes and eviction policies, whether or not there is a tier to have them.
    fn check_names(&self) -> anyhow::Result<()> {
        let words = |text: &Option<String>, default: &'static str| -> Vec<String> {
            text.as_deref().unwrap_or(default).split(',').map(str::to_owned).collect()
        };
        for write in words(&self.tier_write, WRITE_DEFAULT) {
            write.parse::<Write>()?;
        }
        for eviction in words(&self.tier_eviction, EVICTION_DEFAULT) {
            let tier = TierConfig { name: "any".into(), blocks: 1, write: Write::Through, eviction, shared: false };
            Config { tiers: vec![tier], ..Config::default() }.validate()?;
        }
        Ok(())
    }

    /// Returns the tiers of each of `workers` workers, whose blocks have `block_bytes` bytes. `None` if no tier is asked for.
    ///
    /// # Errors
    /// If a size or a name is malformed, or a tier is smaller than one block.
    pub fn tiers(&self, block_bytes: u64, workers: usize) -> anyhow::Result<Option<ServerTiers>> {
        let compression = self.compression.as_deref().map(|name| registry::choose("compression", &COMPRESSIONS, name));
        let compression = compression.transpose()?.unwrap_or_default();
        let compressed = self.compression_layers.as_deref().unwrap_or(LAYERS[0].0);
        let compressed = registry::choose("compression layers", &LAYERS, compressed)?;
        self.check_names()?;
        ensure!(self.disk.is_some() || self.disk_size.is_none(), "disk-size is given without disk; name a folder");
        ensure!(
            self.shared_mem.is_none() || self.remote.is_none(),
            "shared-mem and remote are both given; one tier may be shared"
        );
        let share = |flag: &str, text: &str| Ok::<_, anyhow::Error>(parse_size(flag, text)? as u64 / workers as u64);
        let host_bytes = self.host_mem.as_deref().map(|text| share("host-mem", text)).transpose()?.unwrap_or(0);
        let disk_size = self.disk_size.as_deref().unwrap_or(DISK_SIZE_DEFAULT);
        let disk = self.disk.clone().map(|path| Ok::<_, anyhow::Error>((path, share("disk-size", disk_size)?)));
        let shared = self.shared_mem.as_deref().map(|text| parse_size("shared-mem", text)).transpose()?;
        let mut tiers = ServerTiers {
            host_bytes,
            disk: disk.transpose()?,
            shared_bytes: shared.map(|bytes| bytes as u64),
            remote: self.remote.clone(),
            compression,
            compressed,
            tiers: Vec::new(),
            host_blocks: 0,
        };
        tiers.number(self, block_bytes)?;
        Ok(Some(tiers).filter(|tiers| !tiers.tiers.is_empty()))
    }
}

impl ServerTiers {
    /// Fills in the blocks of each tier.
    fn number(&mut self, settings: &TierSettings, block_bytes: u64) -> anyhow::Result<()> {
        let (in_memory, on_disk) = (memory_bytes(block_bytes), block_bytes.next_multiple_of(PAGE));
        let fits = |name: &str, bytes: u64, of_block: u64| {
            let blocks = bytes / of_block;
            match blocks {
                0 => bail!("{name} is too small for one block of {block_bytes} bytes in each worker"),
                _ => Ok(blocks.min(BLOCKS_MAX)),
            }
        };
        let room = if self.compression == Compression::Off { 1 } else { COMPRESSION_MAX };
        let mut named = Vec::new();
        if self.host_bytes > 0 || settings.host_mem.is_some() {
            // Swapped-out requests and the tier share the memory; compression makes room for more blocks.
            let blocks = fits("host-mem", self.host_bytes, in_memory)?;
            self.host_blocks = blocks as u32;
            named.push(("host", (blocks * (COMPRESSION_MAX - 1)).max(1) as u32));
        }
        if let Some((_, bytes)) = &self.disk {
            named.push(("disk", (fits("disk-size", *bytes, on_disk)? * room).min(BLOCKS_MAX) as u32));
        }
        if let Some(bytes) = self.shared_bytes {
            named.push((SHARED, (fits("shared-mem", bytes, in_memory)? * room).min(BLOCKS_MAX) as u32));
        }
        if self.remote.is_some() {
            named.push((REMOTE, REMOTE_BLOCKS));
        }
        let writes = one_or_each("tier-write", settings.tier_write.as_deref().unwrap_or(WRITE_DEFAULT), named.len())?;
        let evictions =
            one_or_each("tier-eviction", settings.tier_eviction.as_deref().unwrap_or(EVICTION_DEFAULT), named.len())?;
        for ((name, blocks), (write, eviction)) in named.into_iter().zip(writes.into_iter().zip(evictions)) {
            let write: Write = write.parse()?;
            let shared = [SHARED, REMOTE].contains(&name);
            self.tiers.push(TierConfig { name: name.into(), blocks, write, eviction: eviction.into(), shared });
        }
        Ok(())
    }

    /// Returns the tiers with room for as many blocks, of which a store keeps `stored_bytes` bytes each instead of `block_bytes`, uncompressed.
    ///
    /// # Errors
    /// If a tier is on a disk or in remote storage, where other servers would find blocks without contents.
    pub fn without_contents(mut self, block_bytes: u64, stored_bytes: u64) -> anyhow::Result<Self> {
        ensure!(
            self.disk.is_none() && self.remote.is_none(),
            "disk and remote keep real KV, which a simulated device does not have; use host-mem or shared-mem"
        );
        let scaled = |bytes: u64| bytes / memory_bytes(block_bytes) * stored_bytes;
        let sizes = (self.host_bytes, self.shared_bytes);
        (self.host_bytes, self.shared_bytes) = (scaled(sizes.0), sizes.1.map(scaled));
        let was_compressed = std::mem::replace(&mut self.compression, Compression::Off) != Compression::Off;
        if let Some(shared) = self.tiers.iter_mut().find(|tier| tier.name == SHARED && was_compressed) {
            shared.blocks = (shared.blocks / COMPRESSION_MAX as u32).max(1);
        }
        Ok(self)
    }

    /// Puts the tiers into the limits of a core with known layer groups. Host blocks that were set stay.
    pub fn apply(&self, core: &mut Config) {
        core.tiers = self.tiers.clone();
        if let Some(remote) = core.tiers.iter_mut().find(|tier| tier.name == REMOTE) {
            remote.blocks = remote_blocks(core.worker.groups.len());
        }
        if core.host_blocks == 0 {
            core.host_blocks = self.host_blocks;
        }
    }

    /// Opens the stores of some workers, for a core with these limits.
    ///
    /// # Errors
    /// If a folder or an address cannot be used, or no layer is of the kind to be compressed.
    pub fn open(&self, layout: &BlockLayout, core: &Config, workers: &[usize]) -> anyhow::Result<Vec<EngineStore>> {
        let groups = self.compressed_groups(&core.worker.groups)?;
        let shared = self.shared_bytes.map(SharedMemory::new);
        let until = Instant::now() + SEARCH_WAIT;
        let open = |worker: &usize| self.open_one(layout, core, *worker, groups.clone(), shared.as_ref(), until);
        workers.iter().map(open).collect()
    }

    /// Returns the numbers of the layer groups whose blocks are compressed; `None` for all.
    fn compressed_groups(&self, groups: &[Keeps]) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(compressed) = self.compressed else { return Ok(None) };
        let all = std::iter::once(Keeps::All).chain(groups.iter().skip(1).copied());
        let of_kind: Vec<u8> =
            (0..=u8::MAX).zip(all).filter(|(_, keeps)| *keeps == compressed).map(|(group, _)| group).collect();
        ensure!(
            !of_kind.is_empty(),
            "compression-layers is evicting, but no layer evicts; add --h2o on, or compress all layers"
        );
        Ok(Some(of_kind))
    }

    fn open_one(
        &self,
        layout: &BlockLayout,
        core: &Config,
        worker: usize,
        compressed_groups: Option<Vec<u8>>,
        shared: Option<&SharedMemory>,
        search_until: Instant,
    ) -> anyhow::Result<EngineStore> {
        let mut settings = StoreSettings::new(layout.clone(), self.host_bytes);
        settings.search_until = Some(search_until);
        settings.compression = self.compression;
        settings.compressed_groups = compressed_groups;
        (settings.background_blocks, settings.remote_blocks) = on_the_way(core, shared.is_some());
        settings.threads = std::thread::available_parallelism().map_or(1, usize::from).clamp(2, THREADS_MAX);
        for tier in &self.tiers {
            settings.tiers.push(match (&*tier.name, &self.disk, shared, &self.remote) {
                ("disk", Some((path, bytes)), ..) => TierMedium::Disk { path: folder(path, worker), bytes: *bytes },
                (SHARED, _, Some(memory), _) => TierMedium::Shared(memory.clone()),
                (REMOTE, .., Some(url)) => TierMedium::Remote { url: url.clone(), deadline: REMOTE_DEADLINE },
                _ => TierMedium::Host,
            });
        }
        let opened = EngineStore::open(settings);
        let is_size = matches!(opened, Err(StoreError::Setting { setting: "disk size", .. }));
        let divided = if is_size { " (disk-size is divided among the workers)" } else { "" };
        opened.with_context(|| format!("cannot open the tiers{divided}"))
    }
}

/// Returns the blocks known to be in remote storage, at most: as many tokens with layer groups as without, up to a limit of memory.
fn remote_blocks(groups: usize) -> u32 {
    REMOTE_BLOCKS.saturating_mul(groups.max(1) as u32).min(REMOTE_BLOCKS_MAX)
}

/// Returns the bytes of memory that a block takes.
fn memory_bytes(block_bytes: u64) -> u64 {
    BlockLayout { block_bytes: block_bytes as usize, ..BlockLayout::default() }.memory_bytes()
}

/// Returns the disk folder of a worker.
fn folder(path: &Path, worker: usize) -> PathBuf {
    if worker == 0 { path.to_owned() } else { path.join(format!("worker-{worker}")) }
}

/// Returns the blocks on the way to a tier without a request waiting, and to remote storage or shared memory, at most.
fn on_the_way(core: &Config, is_shared: bool) -> (u64, u64) {
    let n_groups = u64::from(core.n_groups());
    // Remote storage may take long; memory does not hold the blocks of the device for long.
    let part = (u64::from(core.device_blocks) / REMOTE_PART).clamp(REMOTE_BLOCKS_MIN, BACKGROUND_BLOCKS);
    let far = if is_shared { BACKGROUND_BLOCKS } else { part };
    (BACKGROUND_BLOCKS * n_groups, far * n_groups)
}

#[cfg(test)]
mod tests {
    use trunkline_core::WorkerFacts;

    use super::*;

    fn settings(host_mem: Option<&str>, disk_size: Option<&str>) -> TierSettings {
        let disk = disk_size.map(|_| PathBuf::from("/cache"));
        TierSettings {
            host_mem: host_mem.map(Into::into),
            disk_size: disk_size.map(Into::into),
            disk,
            ..Default::default()
        }
    }

    #[test]
    fn each_layer_group_may_have_blocks_on_the_way() {
        let groups = |n: usize| WorkerFacts { groups: vec![Keeps::All; n], ..WorkerFacts::default() };
        let of = |n: usize, is_shared| {
            on_the_way(&Config { device_blocks: 800, worker: groups(n), ..Config::default() }, is_shared)
        };
        assert_eq!([of(0, false), of(0, true)], [(4096, 100), (4096, 4096)]);
        assert_eq!([of(90, false), of(90, true)], [(90 * 4096, 9000), (90 * 4096, 90 * 4096)]);
    }

    #[test]
    fn remote_storage_keeps_as_many_tokens_of_each_layer_group_as_memory_allows() {
        let tiers = TierSettings { remote: Some("file:///r".into()), ..settings(Some("16MiB"), None) };
        let tiers = tiers.tiers(4096, 1).unwrap().unwrap();
        let blocks = |groups: usize| {
            let worker = WorkerFacts { groups: vec![Keeps::All; groups], ..WorkerFacts::default() };
            let mut core = Config { worker, ..Config::default() };
            tiers.apply(&mut core);
            core.tiers.iter().map(|tier| tier.blocks).collect::<Vec<_>>()
        };
        assert_eq!([blocks(0), blocks(1)], [[4096, 1 << 20]; 2]);
        assert_eq!([blocks(2), blocks(16)], [[4096, 2 << 20], [4096, 16 << 20]]);
        assert_eq!([blocks(90), blocks(256)], [[4096, 16 << 20]; 2], "the limit of memory");
    }

    #[test]
    fn tiers_larger_than_the_memory_of_the_machine_are_refused() {
        let settings = TierSettings { shared_mem: Some("6GB".into()), ..settings(Some("10GiB"), None) };
        let check = |memory| settings.check_memory(memory).map_err(|fault| fault.to_string());
        assert_eq!([check(None), check(Some(17 << 30))], [Ok(()), Ok(())]);
        let fault = "host-mem is 10GiB and shared-mem is 6GB, but this machine has 15.0 GiB of memory; leave room for the rest of the server";
        assert_eq!(check(Some(15 << 30)), Err(fault.into()));
    }

    #[test]
    fn no_tier_is_asked_for_by_default() {
        assert_eq!(TierSettings::default().tiers(4096, 1).unwrap(), None);
    }

    #[test]
    fn sizes_are_divided_among_workers_and_leave_room_for_compressed_blocks() {
        let tiers = settings(Some("16MiB"), Some("32MiB")).tiers(100_000, 2).unwrap().unwrap();
        let mut core = Config::default();
        tiers.apply(&mut core);
        // Blocks take 25 pages: 81 in 8 MiB.
        let blocks: Vec<(&str, u32)> = core.tiers.iter().map(|tier| (tier.name.as_str(), tier.blocks)).collect();
        assert_eq!(blocks, [("host", 81), ("disk", 2 * 163)]);
        assert_eq!((core.host_blocks, core.host_capacity()), (81, 162));
        assert_eq!(folder(Path::new("/cache"), 1), Path::new("/cache/worker-1"));
    }

    #[test]
    fn small_blocks_take_whole_pages_on_a_disk_and_not_in_memory() {
        let tiers = TierSettings { shared_mem: Some("16MiB".into()), ..settings(Some("16MiB"), Some("16MiB")) };
        let tiers = tiers.tiers(2000, 1).unwrap().unwrap();
        let blocks: Vec<u32> = tiers.tiers.iter().map(|tier| tier.blocks).collect();
        let in_memory = (16 << 20) / 2048;
        assert_eq!((tiers.host_blocks, blocks), (in_memory, vec![in_memory, 2 * 4096, 2 * in_memory]));
    }

    #[test]
    fn tiers_without_contents_hold_as_many_blocks_in_less_memory() {
        let tiers = settings(Some("16MiB"), None).tiers(100_000, 2).unwrap().unwrap();
        let small = tiers.clone().without_contents(100_000, 4096).unwrap();
        assert_eq!((small.host_bytes, small.host_blocks), (81 * 4096, tiers.host_blocks));
        let disk = settings(None, Some("32MiB")).tiers(100_000, 2).unwrap().unwrap();
        let message = disk.without_contents(100_000, 4096).unwrap_err().to_string();
        assert!(message.starts_with("disk and remote keep real KV"), "{message}");
    }

    #[test]
    fn layers_to_compress_are_groups_of_their_kind() {
        let groups = |layers: Option<&str>, keeps: &[Keeps]| {
            let settings = TierSettings { compression_layers: layers.map(Into::into), ..settings(Some("1GiB"), None) };
            settings.tiers(4096, 1)?.expect("a tier").compressed_groups(keeps)
        };
        let keeps = [Keeps::All, Keeps::Scored, Keeps::Window(64), Keeps::Scored];
        assert_eq!((groups(None, &keeps).unwrap(), groups(Some("all"), &keeps).unwrap()), (None, None));
        assert_eq!(groups(Some("full"), &keeps).unwrap(), Some(vec![0]));
        assert_eq!(groups(Some("evicting"), &keeps).unwrap(), Some(vec![1, 3]));
        assert_eq!(groups(Some("full"), &[]).unwrap(), Some(vec![0]), "a model without groups keeps every token");
        let message = groups(Some("evicting"), &[]).unwrap_err().to_string();
        assert_eq!(
            message,
            "compression-layers is evicting, but no layer evicts; add --h2o on, or compress all layers"
        );
        let message = groups(Some("front"), &[]).unwrap_err().to_string();
        assert_eq!(message, "unknown compression layers 'front'; there are: all, full, evicting");
    }

    #[test]
    fn wrong_settings_are_named_in_one_line() {
        let error = |settings: TierSettings| format!("{:#}", settings.tiers(1 << 20, 1).unwrap_err());
        assert_eq!(
            error(settings(Some("4"), None)),
            "host-mem is '4'; write a number above 0 with MB, GB, TB, MiB, GiB or TiB, such as 64GB or 2TiB"
        );
        assert_eq!(
            error(settings(Some("0.5MiB"), None)),
            "host-mem is too small for one block of 1048576 bytes in each worker"
        );
        let no_disk = TierSettings { disk_size: Some("1GiB".into()), ..Default::default() };
        assert_eq!(error(no_disk), "disk-size is given without disk; name a folder");
        let both =
            TierSettings { shared_mem: Some("1GiB".into()), remote: Some("file:///r".into()), ..Default::default() };
        assert_eq!(error(both), "shared-mem and remote are both given; one tier may be shared");
        let compression = TierSettings { compression: Some("zip".into()), ..settings(Some("1GiB"), None) };
        assert_eq!(error(compression), "unknown compression 'zip'; there are: auto, off, probe, full, store");
        let write = TierSettings { tier_write: Some("later".into()), ..settings(Some("1GiB"), None) };
        assert_eq!(error(write), "unknown write mode 'later'; there are: through, prefill, second_use, back");
    }
}
