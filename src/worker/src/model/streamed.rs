//! Models with weights on a disk: written once as packed weights, pinned as far as the memory allows, and streamed for the rest.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trunkline_files::Aligned;
use trunkline_streaming::{Budget, plan};

use super::{LoadedName, Model};
use crate::error::{ModelError, WeightsFault, WorkerError};
use crate::matrix::Matrix;
use crate::memory::check_weights;
use crate::packed::{PackedFile, Packer};
use crate::pair::{Pair, Part};
use crate::stream::{Stream, Streamed};
use crate::stream_settings::{PlacedGroup, StreamInfo, StreamSettings};
use crate::weights::Keep;

/// Extension of files with packed weights.
const EXTENSION: &str = "packed";

impl Model {
    /// Reads a model as [`Model::load`] does, with a part of its weights in memory: one group of matrices at a time is read, packed and written, so the whole model is
    /// never in memory. A file with the packed weights of the same identity is used as it is.
    ///
    /// # Errors
    ///
    /// Those of [`Model::load`]; the packed weights cannot be written or read; or the memory is too small.
    pub fn load_streamed(path: &Path, settings: &StreamSettings) -> Result<Model, ModelError> {
        let LoadedName { name, is_file } = LoadedName::of(path)?;
        let own = if is_file { path.parent().unwrap_or(Path::new("")) } else { path };
        let folder = settings.folder.as_deref().unwrap_or(own);
        let mut packer = Packer::new(&folder.join(format!("{name}.{EXTENSION}")), &settings.identity)?;
        let model = Self::load_keeping(path, name, &mut packer)?;
        model.placed(packer, settings)
    }

    /// Moves the weights of a model in memory to a disk as [`Model::load_streamed`] does; `folder` is the folder of the packed weights if `settings` have none.
    ///
    /// # Errors
    ///
    /// The packed weights cannot be written or read; or the memory is too small.
    pub fn streamed(mut self, folder: &Path, settings: &StreamSettings) -> Result<Model, ModelError> {
        let folder = settings.folder.as_deref().unwrap_or(folder);
        let mut packer = Packer::new(&folder.join(format!("{}.{EXTENSION}", self.name)), &settings.identity)?;
        for (number, layer) in (0..).zip(&mut self.layers) {
            for (part, group) in Part::ALL.into_iter().zip([&mut layer.attention, &mut layer.feed_forward]) {
                let taken = std::mem::replace(group, Pair::new(Vec::new(), Matrix::from_f32(1, &[])));
                *group = packer.keep(number, part, taken)?;
            }
        }
        self.placed(packer, settings)
    }

    /// Pins the groups that fit, and prepares the others to be streamed.
    fn placed(mut self, packer: Packer, settings: &StreamSettings) -> Result<Model, ModelError> {
        let (file, written) = packer.finish()?;
        let bytes = file.group_bytes();
        let budget = Budget {
            bytes: settings.memory_bytes,
            fixed_bytes: self.fixed_bytes(),
            windows: settings.workers.into(),
            ahead: settings.ahead.max(settings.prefill_ahead),
        };
        let placement = plan(&bytes, budget)?;
        check_weights(file.path(), placement.memory_bytes)?;
        for number in (0..bytes.len()).filter(|number| placement.pinned[*number]) {
            let memory = pinned(&file, number, bytes[number] as usize, settings.retry_pause)?;
            self.group_mut(number).bind(&memory);
        }
        let groups: Vec<usize> = (0..bytes.len()).filter(|number| !placement.pinned[*number]).collect();
        let most = (placement.slots as usize).saturating_sub(1).max(1);
        self.stream_info = Some(StreamInfo {
            path: file.path().to_owned(),
            written,
            is_direct: file.is_direct(),
            groups: bytes
                .iter()
                .zip(&placement.pinned)
                .map(|(bytes, is_pinned)| PlacedGroup { bytes: *bytes, is_pinned: *is_pinned })
                .collect(),
            head_bytes: self.head.parts().iter().map(Matrix::memory_bytes).sum(),
            slots: placement.slots,
            memory_bytes: placement.memory_bytes,
        });
        self.streamed = (!groups.is_empty()).then(|| {
            Arc::new(Streamed {
                groups,
                slots: placement.slots as usize,
                slot_bytes: placement.slot_bytes as usize,
                ahead: most.min(settings.ahead.max(1) as usize),
                prefill_ahead: most.min(settings.prefill_ahead.max(1) as usize),
                retry_pause: settings.retry_pause,
                file,
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

/// Reads a group for as long as the model is in memory.
fn pinned(file: &PackedFile, number: usize, bytes: usize, pause: Duration) -> Result<Arc<Aligned>, WeightsFault> {
    let mut memory = Aligned::with_capacity(bytes);
    memory.resize(bytes);
    let (layer, part) = file.group(number);
    let wait = |pause| {
        std::thread::sleep(pause);
        true
    };
    let read = file.read(number, memory.as_mut_slice(), pause, wait);
    read.map_err(|fault| WeightsFault { path: file.path().to_owned(), layer, part: part.name(), fault })?;
    Ok(Arc::new(memory))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use trunkline_files::{BlockFile, open_for_reading};
    use trunkline_port::{SeqStart, Step, StepOutput, StepSeq};

    use super::*;
    use crate::error::GroupFault;
    use crate::matrix::WeightKind;
    use crate::worker::{Worker, WorkerConfig};

    /// Condition of the disk with the packed weights.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Disk {
        Sound,
        /// So many reads fail, and the others succeed.
        Failing(u32),
        /// A read ends the thread.
        Panicking,
    }

    /// The file on such a disk.
    #[derive(Debug)]
    struct File {
        inner: Box<dyn BlockFile>,
        disk: Disk,
        reads: AtomicU32,
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
        let folder = tempfile::tempdir().unwrap();
        let model = |memory_bytes| {
            let settings = StreamSettings {
                memory_bytes,
                folder: None,
                identity: String::new(),
                workers: 1,
                ahead: 2,
                prefill_ahead: 2,
                retry_pause,
            };
            seeded().streamed(folder.path(), &settings)
        };
        let Err(ModelError::Budget(least)) = model(0) else { panic!("a model without memory") };
        let mut model = model(least.least_bytes).unwrap();
        let streamed = Arc::get_mut(model.streamed.as_mut().unwrap()).unwrap();
        let (inner, _) = open_for_reading(streamed.file.path()).unwrap();
        streamed.file.set_file(Box::new(File { inner, disk, reads: AtomicU32::new(0) }));
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
        step(&mut worker(model_on(Disk::Failing(5), Duration::ZERO)), 1).unwrap_err();
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
