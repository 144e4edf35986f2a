//! Models with weights on a disk: written once as packed weights, pinned as far as the memory allows, and streamed for the rest.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use trunkline_files::Aligned;
use trunkline_port::streaming::{Budget, Placement, plan};
use xxhash_rust::xxh3::xxh3_64;

use super::{LoadedName, Model};
use crate::error::{ModelError, WorkerError};
use crate::files::shards::SINGLE_FILE;
use crate::files::weights::Keep;
use crate::files::{gguf, shards};
use crate::kernels::matrix::Matrix;
use crate::layers::pair::{Pair, Part};
use crate::memory::check_weights;
use crate::stream::packed::learned::FormChoice;
use crate::stream::packed::{CurrentFile, Packer, Sizes};
use crate::stream::stream_settings::{PlacedGroup, StreamInfo, StreamSettings};
use crate::stream::{Stream, Streamed};

/// Extension of files with packed weights.
const EXTENSION: &str = "packed";
/// Permissions of the file before the mask of the process.
const MODE: u32 = 0o666;

impl Model {
    /// Reads a model as [`Model::load`] does, with a part of its weights in memory: one group of matrices at a time is read, packed and written, so the whole model is
    /// never in memory. A file with the packed weights of the same identity is used unchanged; the name is made of the model's name and a hash of the identity.
    ///
    /// # Errors
    ///
    /// Those of [`Model::load`]; the packed weights cannot be written or read; or the memory is too small, and nothing is written.
    pub fn load_streamed(path: &Path, settings: &StreamSettings) -> Result<Model, ModelError> {
        let LoadedName { name, is_file } = LoadedName::of(path)?;
        let own = if is_file { path.parent().unwrap_or(Path::new("")) } else { path };
        let folder = settings.folder.as_deref().unwrap_or(own);
        let packed = folder.join(file_name(&name, &settings.identity));
        Self::packed(&packed, permissions(path)?, settings, |keep| Self::load_keeping(path, name.clone(), keep))
    }

    /// Reads a model as [`Model::from_bytes`] does, with a part of its weights in memory, and the packed weights in the folder `folder` unless `settings` have one.
    ///
    /// # Errors
    ///
    /// Those of [`Model::from_bytes`] and of [`Model::load_streamed`].
    pub fn from_bytes_streamed(
        name: &str,
        (config, others): (&[u8], &[(&str, &[u8])]),
        safetensors: &'static [u8],
        folder: &Path,
        settings: &StreamSettings,
    ) -> Result<Model, ModelError> {
        let packed = settings.folder.as_deref().unwrap_or(folder).join(file_name(name, &settings.identity));
        let load = |keep: &mut dyn Keep| Self::from_bytes_keeping(name, (config, others), safetensors, keep);
        Self::packed(&packed, MODE, settings, load)
    }

    /// Reads a model by `load`, with its packed weights in the file `packed` of the permissions `mode` at most.
    fn packed(
        packed: &Path,
        mode: u32,
        settings: &StreamSettings,
        load: impl Fn(&mut dyn Keep) -> Result<Model, ModelError>,
    ) -> Result<Model, ModelError> {
        let choice = FormChoice::of(settings.compression, settings.reads);
        let mut packer = Packer::new(packed, &settings.identity, mode, choice)?;
        if packer.needs_weights() {
            let mut sizes = Sizes::default();
            load(&mut sizes)?.placement(&sizes.bytes, settings)?;
            packer.reserve(largest(&sizes.bytes));
        }
        load(&mut packer)?.placed(packer, settings)
    }

    /// Moves the weights of a model in memory to a disk as [`Model::load_streamed`] does; `folder` is the folder of the packed weights if `settings` have none.
    ///
    /// # Errors
    ///
    /// The packed weights cannot be written or read; or the memory is too small, and nothing is written.
    pub fn streamed(mut self, folder: &Path, settings: &StreamSettings) -> Result<Model, ModelError> {
        let folder = settings.folder.as_deref().unwrap_or(folder);
        let packed = folder.join(file_name(&self.name, &settings.identity));
        let bytes: Vec<u64> = self.groups_mut().map(|(_, _, group)| group.bytes() as u64).collect();
        self.placement(&bytes, settings)?;
        let choice = FormChoice::of(settings.compression, settings.reads);
        let mut packer = Packer::new(&packed, &settings.identity, MODE, choice)?;
        packer.reserve(largest(&bytes));
        self.keep_groups(&mut packer)?;
        self.placed(packer, settings)
    }

    /// Returns `true` if streamed weights could not be read. A worker made now may fail the same way: repair the file first.
    pub fn needs_repair(&self) -> bool {
        self.streamed.as_ref().is_some_and(|streamed| streamed.file.has_failed())
    }

    /// Opens the packed weights again after a fault, or writes them again from the model at `path`, and reads all of them once. Workers of the model go on with the
    /// new file. Returns the reason, if the file was written. Does nothing unless [`Self::needs_repair`].
    ///
    /// The memory is at most that of the window of the worker that failed: a group, and one of its matrices twice. What always stays in memory is not read again.
    ///
    /// # Errors
    ///
    /// Those of [`Model::load`]; the packed weights cannot be written or read.
    pub fn repair_from(&self, path: &Path, settings: &StreamSettings) -> Result<Option<String>, ModelError> {
        self.repair(settings, permissions(path)?, |packer| match path.is_dir() {
            true => shards::load_groups(path, &self.config, packer),
            false => gguf::load_groups(path, packer),
        })
    }

    /// Does the same as [`Self::repair_from`] with a safetensors file in memory.
    ///
    /// # Errors
    ///
    /// Those of [`Model::from_bytes`]; the packed weights cannot be written or read.
    pub fn repair_from_bytes(
        &self,
        safetensors: &'static [u8],
        settings: &StreamSettings,
    ) -> Result<Option<String>, ModelError> {
        let path = Path::new(&self.name).join(SINGLE_FILE);
        self.repair(settings, MODE, |packer| shards::parse_groups(safetensors, &path, &self.config, packer))
    }

    /// Does the same as [`Self::repair_from`] with the weights of a model in memory.
    ///
    /// # Errors
    ///
    /// The packed weights cannot be written or read.
    pub fn repair_with(&self, mut whole: Model, settings: &StreamSettings) -> Result<Option<String>, ModelError> {
        self.repair(settings, MODE, |packer| whole.keep_groups(packer))
    }

    fn repair(
        &self,
        settings: &StreamSettings,
        mode: u32,
        pack: impl FnOnce(&mut Packer) -> Result<(), ModelError>,
    ) -> Result<Option<String>, ModelError> {
        let (Some(streamed), Some(info)) = (&self.streamed, &self.stream_info) else { return Ok(None) };
        streamed.file.repair(|| {
            let choice = FormChoice::Known(info.form, info.learned);
            let mut packer = Packer::new(&info.path, &settings.identity, mode, choice)?;
            let bytes: Vec<u64> = info.groups.iter().map(|group| group.bytes).collect();
            packer.reserve(largest(&bytes));
            pack(&mut packer)?;
            let (file, written) = packer.finish()?;
            if file.group_bytes() != bytes {
                return Err(ModelError::packed(&info.path, "it has the groups of another model"));
            }
            let mut memory = Aligned::with_capacity(streamed.slot_bytes);
            memory.resize(streamed.slot_bytes);
            for number in &streamed.groups {
                file.read_in_time(*number, memory.as_mut_slice(), settings.retry_pause)?;
            }
            Ok((file, written))
        })
    }

    /// Returns all groups with their layers and parts, in the order of a step.
    fn groups_mut(&mut self) -> impl Iterator<Item = (u32, Part, &mut Pair)> {
        (0..).zip(&mut self.layers).flat_map(|(number, layer)| {
            let groups = [&mut layer.attention, &mut layer.feed_forward];
            Part::ALL.into_iter().zip(groups).map(move |(part, group)| (number, part, group))
        })
    }

    /// Hands all groups over to a packer.
    fn keep_groups(&mut self, packer: &mut Packer) -> Result<(), ModelError> {
        for (number, part, group) in self.groups_mut() {
            let mut taken = std::mem::replace(group, Pair::new(Vec::new(), Matrix::from_f32(1, &[])));
            match packer.needs_weights() {
                true => taken.matrices_mut().for_each(|matrix| packer.take(matrix)),
                false => taken.release(),
            }
            *group = packer.keep(number, part, taken)?;
        }
        Ok(())
    }

    /// Places groups of these sizes.
    fn placement(&self, bytes: &[u64], settings: &StreamSettings) -> Result<Placement, ModelError> {
        let budget = Budget {
            bytes: settings.memory_bytes,
            fixed_bytes: self.fixed_bytes(),
            windows: settings.workers.into(),
            ahead: settings.ahead.max(settings.prefill_ahead),
        };
        Ok(plan(bytes, budget)?)
    }

    /// Pins the groups that fit, and prepares the others to be streamed.
    fn placed(mut self, packer: Packer, settings: &StreamSettings) -> Result<Model, ModelError> {
        let (file, written) = packer.finish()?;
        let bytes = file.group_bytes();
        let placement = self.placement(&bytes, settings)?;
        check_weights(file.path(), placement.memory_bytes)?;
        for number in (0..bytes.len()).filter(|number| placement.pinned[*number]) {
            let mut memory = Aligned::with_capacity(bytes[number] as usize);
            memory.resize(bytes[number] as usize);
            file.read_in_time(number, memory.as_mut_slice(), settings.retry_pause)?;
            self.group_mut(number).bind(&Arc::new(memory));
        }
        let groups: Vec<usize> = (0..bytes.len()).filter(|number| !placement.pinned[*number]).collect();
        let most = (placement.slots as usize).saturating_sub(1).max(1);
        let (form, learned) = file.form();
        let placed = (0..bytes.len()).map(|number| PlacedGroup {
            bytes: bytes[number],
            stored_bytes: file.stored_bytes(number),
            is_pinned: placement.pinned[number],
        });
        self.stream_info = Some(StreamInfo {
            path: file.path().to_owned(),
            written,
            is_direct: file.is_direct(),
            form,
            learned,
            groups: placed.collect(),
            head_bytes: self.head.parts().iter().map(Matrix::memory_bytes).sum(),
            slots: placement.slots,
            memory_bytes: placement.memory_bytes,
        });
        self.streamed = (!groups.is_empty()).then(|| {
            Arc::new(Streamed {
                stored_bytes: groups.iter().map(|number| file.stored_bytes(*number)).collect(),
                groups,
                slots: placement.slots as usize,
                slot_bytes: placement.slot_bytes as usize,
                ahead: most.min(settings.ahead.max(1) as usize),
                prefill_ahead: most.min(settings.prefill_ahead.max(1) as usize),
                reads: most.min(settings.reads.max(1) as usize),
                prefill_reads: most.min(settings.prefill_reads.max(1) as usize),
                retry_pause: settings.retry_pause,
                file: CurrentFile::new(file),
            })
        });
        Ok(self)
    }

    /// Returns the bytes of the weights that are always in memory.
    fn fixed_bytes(&self) -> u64 {
        let vectors = self.layers.iter().map(|layer| {
            let norms = layer.head_norms.as_ref().map_or(0, |norms| norms.q.len() + norms.k.len());
            let biases = [&layer.qkv_bias, &layer.o_bias, &layer.gate_up_bias, &layer.down_bias];
            let biases: usize = biases.into_iter().flatten().map(Vec::len).sum();
            layer.attention_norm.len() + layer.mlp_norm.len() + norms + biases
        });
        let vectors = vectors.sum::<usize>() + self.final_norm.len();
        let matrices = self.embedding.iter().chain(self.head.parts());
        matrices.map(Matrix::memory_bytes).sum::<u64>() + (vectors * size_of::<f32>()) as u64
    }

    fn group_mut(&mut self, number: usize) -> &mut Pair {
        let layer = &mut self.layers[number / Part::ALL.len()];
        if number.is_multiple_of(Part::ALL.len()) { &mut layer.attention } else { &mut layer.feed_forward }
    }

    /// Returns the placement of the weights; `None` if the model was loaded whole.
    pub fn stream_info(&self) -> Option<&StreamInfo> {
        self.stream_info.as_ref()
    }

    /// Begins to stream the weights that are not in memory, for one worker; `None` if all are.
    ///
    /// # Errors
    ///
    /// The thread that reads cannot be started.
    pub(crate) fn stream(&self) -> Result<Option<Stream>, WorkerError> {
        let Some(streamed) = &self.streamed else { return Ok(None) };
        let views = streamed.groups.iter().map(|number| {
            let layer = &self.layers[number / Part::ALL.len()];
            let group = if number.is_multiple_of(Part::ALL.len()) { &layer.attention } else { &layer.feed_forward };
            group.absent().expect("shapes of a group that was loaded")
        });
        let n_groups = self.layers.len() * Part::ALL.len();
        Stream::new(Arc::clone(streamed), views.collect(), n_groups).map(Some)
    }
}

/// Returns the bytes of the largest group.
fn largest(bytes: &[u64]) -> u64 {
    bytes.iter().copied().max().unwrap_or(0)
}

/// Returns the name of the file with the packed weights of a model: weights of another identity have another file.
fn file_name(name: &str, identity: &str) -> String {
    format!("{name}-{:08x}.{EXTENSION}", xxh3_64(identity.as_bytes()) as u32)
}

/// Returns the permissions common to all files with a model's weights; the owner may read and write in any case.
fn permissions(path: &Path) -> Result<u32, ModelError> {
    let files = if path.is_dir() { shards::weight_files(path)?.0 } else { vec![path.to_owned()] };
    files.into_iter().try_fold(MODE, |mode, path| {
        let metadata = path.metadata().map_err(|source| ModelError::Read { path, source })?;
        Ok(mode & (metadata.mode() | 0o600))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Condvar, Mutex, mpsc};
    use std::time::Duration;

    use trunkline_files::{BlockFile, open_for_reading};
    use trunkline_port::{SeqStart, Step, StepOutput, StepSeq};

    use super::*;
    use crate::error::{GroupFault, WeightsFault};
    use crate::kernels::matrix::WeightKind;
    use crate::stream::packed::learned::Compression;
    use crate::worker::{Worker, WorkerConfig};

    /// Condition of the disk with the packed weights.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Disk {
        Sound,
        /// So many reads fail, and the others succeed.
        Failing(u32),
        /// A read ends the thread.
        Panicking,
        /// The first two reads wait for each other, and fail after a minute alone.
        Meeting,
    }

    /// Reads that wait for each other.
    #[derive(Debug, Default)]
    struct Meeting {
        begun: Mutex<u32>,
        changed: Condvar,
    }

    impl Meeting {
        fn wait(&self) -> io::Result<()> {
            let mut begun = self.begun.lock().unwrap();
            *begun += 1;
            self.changed.notify_all();
            let waited = self.changed.wait_timeout_while(begun, Duration::from_mins(1), |begun| *begun < 2).unwrap();
            if waited.1.timed_out() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
        }
    }

    /// The file on such a disk.
    #[derive(Debug)]
    struct File {
        inner: Box<dyn BlockFile>,
        disk: Disk,
        reads: AtomicU32,
        meeting: Meeting,
    }

    impl BlockFile for File {
        fn write_at(&self, _: &[io::IoSlice<'_>], _: u64) -> io::Result<usize> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            match self.disk {
                Disk::Panicking => panic!("a read that ends the thread, for a test"),
                Disk::Failing(faults) if self.reads.fetch_add(1, Ordering::Relaxed) < faults => {
                    Err(io::Error::from_raw_os_error(5))
                }
                Disk::Meeting => self.meeting.wait().and_then(|()| self.inner.read_at(bytes, offset)),
                Disk::Failing(_) | Disk::Sound => self.inner.read_at(bytes, offset),
            }
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn truncate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn size(&self) -> io::Result<u64> {
            self.inner.size()
        }
    }

    fn seeded() -> Model {
        Model::seeded_of_kind(WeightKind::Q8_0, 4, 3)
    }

    /// Returns a model with as little memory as works, and its streamed weights on `disk`.
    pub(crate) fn model_on(disk: Disk, retry_pause: Duration) -> Model {
        model_with(disk, retry_pause, 0)
    }

    /// Returns the same with memory for so many slots more in the window.
    pub(crate) fn model_with(disk: Disk, retry_pause: Duration, slots: u64) -> Model {
        let folder = tempfile::tempdir().unwrap();
        let model = |memory_bytes| {
            let settings = StreamSettings {
                memory_bytes,
                folder: None,
                identity: String::new(),
                workers: 1,
                ahead: 2,
                prefill_ahead: 2,
                reads: 2,
                prefill_reads: 1,
                compression: Compression::Off,
                retry_pause,
            };
            seeded().streamed(folder.path(), &settings)
        };
        let Err(ModelError::Budget(least)) = model(0) else { panic!("a model without memory") };
        let mut model = model(least.least_bytes + slots * least.window_bytes / 2).unwrap();
        let streamed = Arc::get_mut(model.streamed.as_mut().unwrap()).unwrap();
        let (inner, _) = open_for_reading(streamed.file.file().path()).unwrap();
        streamed.file.set_file(Box::new(File {
            inner: Box::new(inner),
            disk,
            reads: AtomicU32::new(0),
            meeting: Meeting::default(),
        }));
        model
    }

    fn worker(model: Model) -> Worker {
        let config = WorkerConfig { block_size: 16, device_blocks: 4, max_drafts: 0, threads: 1 };
        Worker::new(Arc::new(model), config).unwrap()
    }

    /// Runs two tokens of a new sequence.
    fn step(worker: &mut Worker, id: u64) -> Result<StepOutput, WorkerError> {
        let seq = StepSeq { start: true, n_tokens: 2, n_blocks: 1, sample: true, ..StepSeq::default() };
        let starts = vec![SeqStart::default()];
        worker.run(&Step { id, seqs: vec![seq], tokens: vec![1, 2], blocks: vec![0], starts, ..Step::default() })
    }

    /// Runs three steps on a thread of their own, with a reset after each, and hands over their errors.
    fn errors_of(disk: Disk) -> Vec<WorkerError> {
        let (errors, failed) = mpsc::channel();
        let steps = std::thread::spawn(move || {
            let mut worker = worker(model_on(disk, Duration::ZERO));
            for id in 1..4 {
                errors.send(step(&mut worker, id).unwrap_err()).unwrap();
                worker.reset();
            }
        });
        let error = |_| failed.recv_timeout(Duration::from_mins(1)).expect("no step hangs");
        let errors = (0..3).map(error).collect();
        steps.join().unwrap();
        errors
    }

    #[test]
    fn a_fault_that_passes_costs_no_step_and_is_counted() {
        let expected = step(&mut worker(seeded()), 1).unwrap().result;
        for faults in [0, 1, 4] {
            let output = step(&mut worker(model_on(Disk::Failing(faults), Duration::ZERO)), 1).unwrap();
            assert_eq!((output.result, output.weights.failed_reads), (expected.clone(), faults.into()));
        }
        // The reader may fail before the step begins, which then lets it try again, five times more.
        step(&mut worker(model_on(Disk::Failing(10), Duration::ZERO)), 1).unwrap_err();
    }

    #[test]
    fn a_disk_that_fails_fails_every_step_in_one_line_and_no_step_hangs() {
        for error in errors_of(Disk::Failing(u32::MAX)) {
            let WorkerError::Weights { fault: WeightsFault { layer: 0, fault: GroupFault::Read(_), .. }, .. } = &error
            else {
                panic!("{error}")
            };
            let line = error.to_string();
            assert!(line.contains("(os error 5); check the disk") && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_reader_that_ends_in_a_read_fails_every_step_and_no_step_hangs() {
        for error in errors_of(Disk::Panicking) {
            let line = error.to_string();
            assert!(line.contains("the thread that reads ended; ") && !line.contains('\n'), "{line}");
        }
    }
}
