//! A process killed in the middle of its writes to a disk tier, again and again.
//!
//! The program starts itself as a writer, kills the writer with SIGKILL after some of its answers, and starts the next one on the same folder. Each
//! writer first reads all blocks found and compares them with what they must hold. `TRUNKLINE_KILLS` sets the number of kills, 10 by default.

#[path = "../../../tests/harness/made_device.rs"]
mod made_device;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, mpsc};

use trunkline_port::{BlockKey, KnownBlock, Place, Token, Transfer};
use trunkline_store::{BlockLayout, Compression, Shape, Store, StoreSettings, TierMedium, check_disk};

use made_device::Device;

const SHAPE: Shape = Shape { layers: 2, tokens: 16, heads: 2, head_dim: 64 };
const BLOCK: usize = 2 * 2 * 2 * 16 * 2 * 64;
const DISK_BYTES: u64 = 4 << 20;
/// Slots of the tier, rewritten in turn: three quarters of the disk.
const SLOTS: u32 = 150;
const DISK: Place = Place::Tier(0);
const FOLDER: &str = "TRUNKLINE_STORE_KILL_FOLDER";

/// Returns the bytes of block number `seed`.
fn contents(seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..BLOCK / 2).flat_map(|_| (((random() + random()).to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn key(seed: u32) -> BlockKey {
    BlockKey {
        root: 1,
        parent: 2,
        hash: u128::from(seed) << 66 | 3,
        fingerprint: seed.into(),
        first_token: 16 * seed,
        group: 0,
    }
}

fn tokens(seed: u32) -> Vec<Token> {
    (0..16).map(|at| seed ^ at << 20).collect()
}

fn settings(folder: &Path) -> StoreSettings {
    let layout = BlockLayout {
        dtype: "bf16".to_owned(),
        shape: Some(SHAPE),
        block_bytes: BLOCK,
        block_size: 16,
        frequencies: Some(vec![trunkline_store::rotary_frequencies(64, 10_000.0); 2]),
    };
    let mut settings = StoreSettings::new(layout, 1 << 20);
    settings.tiers = vec![TierMedium::Disk { path: folder.to_owned(), bytes: DISK_BYTES }];
    settings.compression = Compression::Store;
    settings
}

fn transfer(from: Place, to: Place, blocks: &[(u32, u32, u32)]) -> Transfer {
    Transfer {
        id: 1,
        from,
        to,
        pairs: blocks.iter().map(|(from, to, _)| (*from, *to)).collect(),
        keys: blocks.iter().map(|(.., seed)| key(*seed)).collect(),
        tokens: blocks.iter().flat_map(|(.., seed)| tokens(*seed)).collect(),
        is_urgent: true,
    }
}

/// Reads every block found, and compares. Returns the highest number.
fn verify(store: &Store, known: &[KnownBlock]) -> u32 {
    let device = Arc::new(Device::new(contents, BLOCK));
    let blocks: Vec<_> = known.iter().map(|block| (block.block, block.block, block.key.fingerprint as u32)).collect();
    for (block, (.., seed)) in known.iter().zip(&blocks) {
        assert_eq!((block.key, &block.tokens), (key(*seed), &tokens(*seed)));
    }
    let (send, report) = mpsc::channel();
    store.begin(
        Arc::<Device>::clone(&device),
        transfer(DISK, Place::Device, &blocks),
        Box::new(move |answer| send.send(answer).unwrap()),
    );
    assert_eq!(report.recv().unwrap().faults, [], "a block that was found cannot be read");
    let read = device.written.lock().unwrap();
    assert!(blocks.iter().all(|(slot, _, seed)| read[slot] == contents(*seed)), "a block has other contents");
    blocks.iter().map(|(.., seed)| *seed).max().unwrap_or(0)
}

/// Writes blocks until killed. Prints a line for the blocks found, and one for each block that arrived.
fn write_for_ever(folder: &Path) {
    let (store, known) = Store::open(settings(folder)).unwrap();
    let newest = verify(&store, &known[0]);
    let dropped = store.stats().tiers[0].disk.as_ref().unwrap().dropped_at_start.total();
    println!("found {newest} {} {dropped}", known[0].len());
    // Slots of blocks found hold them until they are written again, as a core would have it.
    let (device, (send, answers)) = (Arc::new(Device::new(contents, BLOCK)), mpsc::channel());
    for (under_way, seed) in (newest + 1..).enumerate() {
        let send = send.clone();
        let done = Box::new(move |report: trunkline_port::TransferReport| {
            send.send((seed, report.faults.is_empty())).unwrap();
        });
        let pairs = [(seed, seed % SLOTS, seed)];
        store.begin(Arc::<Device>::clone(&device), transfer(Place::Device, DISK, &pairs), done);
        if under_way >= 16 {
            let (seed, has_arrived) = answers.recv().unwrap();
            if has_arrived {
                // A parent that is gone ends the writer, too.
                println!("arrived {seed}");
            }
        }
    }
}

/// Returns the numbers of the next line that begins with `word`.
fn numbers(lines: &mut impl Iterator<Item = std::io::Result<String>>, word: &str) -> Vec<u32> {
    let line = lines.next().expect("the writer ended").expect("a line of text");
    let mut parts = line.split(' ');
    assert_eq!(parts.next(), Some(word), "{line}");
    parts.map(|number| number.parse().unwrap()).collect()
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os(FOLDER) {
        write_for_ever(Path::new(&folder));
        return ExitCode::SUCCESS;
    }
    let kills: u32 = std::env::var("TRUNKLINE_KILLS").map_or(10, |n| n.parse().expect("TRUNKLINE_KILLS is a number"));
    let folder = tempfile::tempdir().unwrap();
    let (mut newest, mut dropped, mut found, mut random) = (0, 0, 0, 1u64);
    for kill in 0..kills {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program).env(FOLDER, folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut child = Killed(child);
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let start = numbers(&mut lines, "found");
        assert!(start[0] >= newest, "kill {kill}: block {newest} had arrived; the newest found is {}", start[0]);
        (found, dropped) = (start[1], dropped + start[2]);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // In any order: the highest number that arrived is not the last.
        for _ in 0..(random >> 33) % 300 {
            newest = newest.max(numbers(&mut lines, "arrived")[0]);
        }
        drop(child);
        let checked = check_disk(folder.path(), true).unwrap();
        // Records whose writes were under way: as many as a tier has writing threads.
        assert!(checked.faults().total() <= 4, "kill {kill}: {:?}", checked.faults());
    }
    let (store, known) = Store::open(settings(folder.path())).unwrap();
    assert!(verify(&store, &known[0]) >= newest);
    println!(
        "{kills} kills: block {newest} arrived, {found} blocks found at the last start, {dropped} records dropped at starts"
    );
    assert!(found > SLOTS / 2 || kills < 10, "{found} blocks found");
    ExitCode::SUCCESS
}
