//! Files of a disk tier that fail on purpose, at every operation or by a seeded schedule.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg32;
use trunkline_store::{BlockFile, Files, system_files};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// Bytes of a page: direct reads and writes end at its multiples.
const PAGE: usize = 4096;

/// Fault of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// The system refuses with EIO.
    Refused,
    /// The file ends in the middle of the record.
    Short,
    /// A bit of the record is another one.
    Flipped,
    /// The record is another one of the same file.
    Swapped,
}

/// Fault of a write, or of the creation of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// The system refuses with EIO.
    Refused,
    /// The system refuses with ENOSPC.
    Full,
    /// One page is written, and no error says so.
    Short,
    /// No file is created: ENOSPC.
    NoFile,
}

const READ_FAULTS: [ReadFault; 4] = [ReadFault::Refused, ReadFault::Short, ReadFault::Flipped, ReadFault::Swapped];
const WRITE_FAULTS: [WriteFault; 4] = [WriteFault::Refused, WriteFault::Full, WriteFault::Short, WriteFault::NoFile];

/// Faults to come, shared by all files.
#[derive(Debug)]
pub enum Schedule {
    /// Every operation has the fault of its kind, if there is one.
    Always {
        /// Fault of every read.
        read: Option<ReadFault>,
        /// Fault of every write.
        write: Option<WriteFault>,
    },
    /// One operation in so many fails, and draws the fault.
    Mixed {
        /// Operations for each fault, on average.
        one_in: u32,
        /// Source of all draws.
        random: Pcg32,
    },
}

impl Schedule {
    /// Schedule without faults.
    pub const HEALTHY: Self = Self::Always { read: None, write: None };

    /// Returns a schedule in which one operation in `one_in` fails.
    pub fn mixed(one_in: u32, seed: u64) -> Self {
        Self::Mixed { one_in, random: Pcg32::seed_from_u64(seed) }
    }

    fn read(&mut self) -> Option<ReadFault> {
        match self {
            Self::Always { read, .. } => *read,
            Self::Mixed { one_in, random } => {
                (random.random_range(0..*one_in) == 0).then(|| READ_FAULTS[random.random_range(0..READ_FAULTS.len())])
            }
        }
    }

    fn write(&mut self) -> Option<WriteFault> {
        match self {
            Self::Always { write, .. } => *write,
            Self::Mixed { one_in, random } => {
                (random.random_range(0..*one_in) == 0).then(|| WRITE_FAULTS[random.random_range(0..WRITE_FAULTS.len())])
            }
        }
    }
}

/// A disk whose faults a test chooses.
#[derive(Clone, Debug)]
pub struct FaultyDisk {
    schedule: Arc<Mutex<Schedule>>,
    /// `true` while no file opens, and the notice of the end of that.
    held: Arc<(Mutex<bool>, Condvar)>,
}

impl Default for FaultyDisk {
    fn default() -> Self {
        Self { schedule: Arc::new(Mutex::new(Schedule::HEALTHY)), held: Arc::default() }
    }
}

impl FaultyDisk {
    /// Replaces the faults to come.
    pub fn set(&self, schedule: Schedule) {
        *self.schedule.lock().expect("no holder panics") = schedule;
    }

    /// Has files that are there opened only when the disk is let go, or again at once.
    pub fn hold(&self, is_held: bool) {
        *self.held.0.lock().expect("no holder panics") = is_held;
        self.held.1.notify_all();
    }

    /// Returns `true` while no file opens.
    pub fn is_held(&self) -> bool {
        *self.held.0.lock().expect("no holder panics")
    }

    fn pass(&self) {
        let held = self.held.0.lock().expect("no holder panics");
        drop(self.held.1.wait_while(held, |is_held| *is_held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the files of a folder, for [`trunkline_store::Store::open_on`].
    pub fn files(&self, folder: &Path) -> Arc<dyn Files> {
        Arc::new(FaultyFiles { files: system_files(folder), disk: self.clone() })
    }

    fn read(&self) -> Option<ReadFault> {
        self.schedule.lock().expect("no holder panics").read()
    }

    fn write(&self) -> Option<WriteFault> {
        self.schedule.lock().expect("no holder panics").write()
    }
}

#[derive(Debug)]
struct FaultyFiles {
    files: Arc<dyn Files>,
    disk: FaultyDisk,
}

impl FaultyFiles {
    fn wrap(&self, file: Box<dyn BlockFile>) -> Box<dyn BlockFile> {
        Box::new(FaultyFile { file, disk: self.disk.clone(), last_offset: Mutex::new(0) })
    }
}

impl Files for FaultyFiles {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn BlockFile>> {
        match self.disk.write() {
            Some(WriteFault::NoFile) => Err(io::Error::from_raw_os_error(ENOSPC)),
            _ => Ok(self.wrap(self.files.create(path, bytes)?)),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn BlockFile>> {
        self.disk.pass();
        Ok(self.wrap(self.files.open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.remove(path)
    }

    fn is_direct(&self) -> bool {
        self.files.is_direct()
    }
}

#[derive(Debug)]
struct FaultyFile {
    file: Box<dyn BlockFile>,
    disk: FaultyDisk,
    /// Offset of the last whole read, where another record begins.
    last_offset: Mutex<u64>,
}

impl BlockFile for FaultyFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        match self.disk.write() {
            Some(WriteFault::Refused) => Err(io::Error::from_raw_os_error(EIO)),
            Some(WriteFault::Full) => Err(io::Error::from_raw_os_error(ENOSPC)),
            Some(WriteFault::Short) => self.file.write_at(&[IoSlice::new(&parts[0][..PAGE])], offset),
            Some(WriteFault::NoFile) | None => self.file.write_at(parts, offset),
        }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let fault = self.disk.read();
        let last = std::mem::replace(&mut *self.last_offset.lock().expect("no holder panics"), offset);
        match fault {
            Some(ReadFault::Refused) => return Err(io::Error::from_raw_os_error(EIO)),
            Some(ReadFault::Swapped) if last != offset => return self.file.read_at(bytes, last),
            _ => {}
        }
        let n = self.file.read_at(bytes, offset)?;
        match fault {
            Some(ReadFault::Flipped) => bytes[n / 2] ^= 1,
            // Half a page more than whole pages: the end of a file.
            Some(ReadFault::Short) => return Ok(n / 2 / PAGE * PAGE + PAGE / 2),
            _ => {}
        }
        Ok(n)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.truncate(bytes)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn is_linked(&self) -> bool {
        self.file.is_linked()
    }
}
