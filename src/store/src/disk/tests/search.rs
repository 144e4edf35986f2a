//! Tests of a start that does not wait for the search of a slow disk.

use std::sync::Condvar;

use super::*;

/// Files that open only once the gate is open, for as many files as it lets through.
#[derive(Debug)]
struct GatedFiles {
    files: SystemFiles,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    /// Files that may still be opened.
    left: Mutex<u64>,
    changed: Condvar,
    /// `true` if the opening of the last of these panics.
    panics: bool,
}

impl Gate {
    fn let_through(&self, n: u64) {
        *self.left.lock().unwrap() += n;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut left = self.changed.wait_while(self.left.lock().unwrap(), |left| *left == 0).unwrap();
        *left -= 1;
        let is_last = *left == 0;
        drop(left);
        assert!(!(is_last && self.panics), "on purpose");
    }
}

impl Files for GatedFiles {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn BlockFile>> {
        self.files.create(path, bytes)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn BlockFile>> {
        self.gate.pass();
        self.files.open(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.remove(path)
    }

    fn is_direct(&self) -> bool {
        self.files.is_direct()
    }
}

/// Blocks of all segments of the folder, on a disk opened so that not one segment is searched at first.
fn slow(folder: &TempDir) -> (Disk, Arc<Gate>) {
    let gate = Arc::<Gate>::default();
    let (disk, known) = gated(folder, &gate, Some(Instant::now()));
    assert_eq!(known, [], "the start waited for the disk");
    (disk, gate)
}

fn gated(folder: &TempDir, gate: &Arc<Gate>, search_until: Option<Instant>) -> (Disk, Vec<KnownBlock>) {
    let gate = Arc::clone(gate);
    let files = move |path: &Path| -> Arc<dyn Files> {
        Arc::new(GatedFiles { files: SystemFiles::new(path), gate: Arc::clone(&gate) })
    };
    let settings = DiskSettings { search_until, ..settings(folder, 4 << 20) };
    Disk::open(&settings, &files).unwrap()
}

/// A folder with blocks in several segments.
fn filled(n: u32) -> (TempDir, u64) {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 4 << 20)).unwrap();
    (0..n).for_each(|seed| assert_eq!(write(&disk, seed, seed), Ok(RECORD)));
    drop(disk);
    let segments = segments(&folder).len() as u64;
    assert!(segments >= 3, "{segments} segments");
    (folder, segments)
}

fn offers(disk: &Disk) -> mpsc::Receiver<Vec<KnownBlock>> {
    let (send, offered) = mpsc::channel();
    disk.offer_to(Box::new(move |blocks| drop(send.send(blocks))));
    offered
}

#[test]
fn a_start_does_not_wait_for_a_slow_disk_and_blocks_are_found_as_their_segments_are_searched() {
    let (folder, n_segments) = filled(40);
    let (disk, gate) = slow(&folder);
    assert_eq!((disk.stats().segments, disk.usage().0), (n_segments, 0));
    // The tier is used meanwhile, and its new segment joins the old ones.
    assert_eq!(write(&disk, 0, 100), Ok(RECORD));
    let offered = offers(&disk);
    let mut found = Vec::new();
    // The newest segment is read first, and its blocks come last.
    gate.let_through(2);
    let first = offered.recv().unwrap();
    assert_eq!(first[0].key, key(0), "the oldest block comes first");
    gate.let_through(n_segments);
    let mut batch = first;
    loop {
        let slot_of = |known: &KnownBlock| (known.block, (known.key != key(7)).then_some(1000 + known.block));
        let slots: Vec<_> = batch.iter().map(slot_of).collect();
        disk.decide(&slots);
        found.extend(batch.iter().zip(&slots).map(|(known, (_, slot))| (known.key.fingerprint as u32, *slot)));
        if found.len() == 40 {
            break;
        }
        batch = offered.recv().unwrap();
    }
    assert!(found.iter().map(|(seed, _)| *seed).eq(0..40), "oldest first: {found:?}");
    for (seed, slot) in found {
        let slot = slot.unwrap_or(u32::MAX);
        assert_eq!(read(&disk, slot, seed), if seed == 7 { Err(Fault::Missing) } else { Ok(()) });
    }
    assert_eq!((read(&disk, 0, 100), disk.usage().0), (Ok(()), 40));
    drop(disk);
    let (_disk, known) = open(&settings(&folder, 4 << 20)).unwrap();
    let mut seeds = seeds(&known);
    assert_eq!(seeds.pop(), Some(100), "numbered after the blocks from before");
    assert!(seeds.into_iter().eq(0..40));
}

#[test]
fn segments_that_were_not_searched_take_space_and_stay() {
    let (folder, n_segments) = filled(150);
    let (disk, gate) = slow(&folder);
    let before = segments(&folder);
    let refused = (200..400).map(|seed| write(&disk, seed, seed)).filter(Result::is_err).count();
    assert!(refused > 0, "the old segments fill the tier");
    assert!(bytes_in(folder.path()) <= 4 << 20);
    assert!(before.iter().all(|path| path.exists()));
    gate.let_through(n_segments);
    let offered = offers(&disk);
    let first = offered.recv().unwrap();
    assert_eq!(first[0].key, key(0));
}

#[test]
fn a_disk_is_closed_in_the_middle_of_a_search() {
    let (folder, n_segments) = filled(40);
    let (disk, gate) = slow(&folder);
    let offered = offers(&disk);
    gate.let_through(2);
    // Not answered: the search waits for the answer, and the rest is at the gate.
    assert_eq!(offered.recv().unwrap()[0].key, key(0));
    gate.let_through(n_segments);
    drop(disk);
    let (_disk, known) = open(&settings(&folder, 4 << 20)).unwrap();
    assert!(seeds(&known).into_iter().eq(0..40), "nothing was lost");
}

#[test]
fn a_search_that_panics_is_waited_for_no_longer_and_costs_only_what_it_has_not_found() {
    let (folder, n_segments) = filled(40);
    let panics = trunkline_foreign::panics();
    // The newest segment and the oldest are read. Where all blocks are waited for, as by the `cache` command:
    let gate = Arc::new(Gate { left: Mutex::new(3), changed: Condvar::new(), panics: true });
    let (disk, known) = gated(&folder, &gate, None);
    assert_eq!(seeds(&known).first(), Some(&0));
    assert!(known.len() < 40 && trunkline_foreign::panics() > panics);
    assert_eq!((read(&disk, 0, 0), disk.stats().segments), (Ok(()), n_segments), "the tier is used");
    assert_eq!(write(&disk, 99, 100), Ok(RECORD));
    drop(disk);
    let (_disk, known) = open(&settings(&folder, 4 << 20)).unwrap();
    assert_eq!(known.len(), 41, "nothing was lost");
}
