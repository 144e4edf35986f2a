//! A model with weights on a disk computes, bit for bit, what the model computes from memory.

mod rig;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rig::{Rig, Seq};
use trunkline_port::{Sampling, Step, StepSeq, WeightReads};
use trunkline_text::Tokenizer;
use trunkline_worker::{
    Compression, Form, GroupFault, Model, ModelError, PlacedGroup, StreamSettings, WeightKind, WeightsFault, Worker,
    WorkerConfig, WorkerError,
};

const LAYERS: u32 = 5;

fn settings(memory_bytes: u64) -> StreamSettings {
    StreamSettings {
        memory_bytes,
        folder: None,
        identity: "a".to_owned(),
        workers: 1,
        ahead: 2,
        prefill_ahead: 2,
        reads: 2,
        prefill_reads: 1,
        compression: Compression::Off,
        retry_pause: Duration::ZERO,
    }
}

/// Returns the least memory that works.
fn least(load: impl Fn(&StreamSettings) -> Result<Model, ModelError>) -> u64 {
    match load(&settings(0)) {
        Err(ModelError::Budget(error)) => error.least_bytes,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a model without memory"),
    }
}

/// Tokens and logits of each step: a prompt in chunks alongside another prompt, then decodes in a batch.
type Outcome = Vec<(Vec<u32>, Vec<Vec<u32>>)>;

fn run(model: &Arc<Model>, threads: usize) -> (Outcome, Vec<WeightReads>) {
    let mut rig = Rig::new(model, 16, 64, threads);
    let vocab = model.config().vocab_size;
    let prompt = |text: &str| -> Vec<u32> {
        Tokenizer::bytes().encode(text).unwrap().into_iter().map(|token| token % vocab).collect()
    };
    let hot = Sampling { temperature: 0.9, seed: 7, ..Sampling::default() };
    let mut seqs = [
        Seq::new(0, &prompt("a prompt of some length, run in chunks alongside another"), Sampling::default()),
        Seq::new(1, &prompt("a short one"), hot),
    ];
    let (mut outcome, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let [first, second] = &mut seqs;
        let (output, logits) = rig.step(&mut [first, second], 20);
        reads.push(output.weights);
        let bits = logits.iter().map(|logits| logits.iter().map(|logit| logit.to_bits()).collect()).collect();
        outcome.push((output.result.tokens.clone(), bits));
    }
    (outcome, reads)
}

/// Checks a model at several budgets. Returns the least one.
fn check(in_memory: Model, load: impl Fn(&StreamSettings) -> Result<Model, ModelError>, what: &str) {
    let (expected, none) = run(&Arc::new(in_memory), 1);
    assert!(none.iter().all(|reads| *reads == WeightReads::default()), "{what}");
    let all = load(&settings(u64::MAX)).unwrap();
    let whole = all.stream_info().unwrap().clone();
    assert_eq!((whole.pinned(), whole.slots, whole.step_bytes()), (whole.groups.len(), 0, 0), "{what}");
    assert_eq!(run(&Arc::new(all), 1), (expected.clone(), none), "{what}");
    let least = least(&load);
    for (memory_bytes, threads) in [(least, 1), ((least + whole.memory_bytes) / 2, 2)] {
        let model = load(&settings(memory_bytes)).unwrap();
        let info = model.stream_info().unwrap().clone();
        assert!(info.step_bytes() > 0 && info.memory_bytes <= memory_bytes, "{what}: {info:?}");
        let (outcome, reads) = run(&Arc::new(model), threads);
        assert_eq!(outcome, expected, "{what}, {memory_bytes} bytes");
        for reads in reads {
            assert_eq!((reads.steps, reads.bytes), (1, info.step_bytes()), "{what}");
            assert!(reads.reading_ns > 0 && reads.exposed_ns <= reads.step_ns, "{what}: {reads:?}");
        }
    }
    assert!(load(&settings(least - 1)).is_err(), "{what}");
    check_compressed(&load, (least + whole.memory_bytes) / 2, &expected, what);
}

/// Checks a model with compressed weights and several reads in flight. Floats are shorter on the disk, and never another bit in memory.
fn check_compressed(
    load: impl Fn(&StreamSettings) -> Result<Model, ModelError>,
    memory_bytes: u64,
    expected: &Outcome,
    what: &str,
) {
    let compression = Compression::On;
    for compressed in [
        StreamSettings { compression, ..settings(u64::MAX) },
        StreamSettings { compression, reads: 3, ahead: 4, prefill_reads: 2, ..settings(memory_bytes) },
    ] {
        let model = load(&compressed).unwrap();
        let info = model.stream_info().unwrap().clone();
        let bytes = |of: fn(&PlacedGroup) -> u64| info.groups.iter().map(of).sum::<u64>();
        let (raw, stored) = (bytes(|group| group.bytes), bytes(|group| group.stored_bytes));
        let are_floats = ["f32", "f16"].iter().any(|kind| what.to_lowercase().contains(kind));
        assert_eq!((info.form != Form::Plain, info.learned.is_some()), (are_floats, are_floats), "{what}");
        assert_eq!(stored < raw, are_floats && raw > 1 << 20, "{what}: {stored} of {raw}");
        let (outcome, reads) = run(&Arc::new(model), 2);
        assert_eq!(&outcome, expected, "{what}, compressed");
        assert!(reads.iter().all(|reads| reads.bytes == info.step_bytes()), "{what}: {reads:?}");
    }
}

#[test]
fn weights_of_every_kind_give_the_same_bits_at_every_budget() {
    for kind in WeightKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let model = || Model::seeded_of_kind(kind, LAYERS, 3);
        check(model(), |settings| model().streamed(folder.path(), settings), kind.name());
    }
}

fn conformance(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance").join(name)
}

#[test]
fn models_of_every_family_give_the_same_bits_from_folders_and_files() {
    for name in [
        "gqa-untied-bf16-sharded",
        "llama-biases-f32",
        "qwen2-tied-linear-rope-f32",
        "qwen3-yarn-rope-f16",
        "gguf/llama-k-quants.gguf",
        "gguf/qwen2-mixed.gguf",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let load = |settings: &StreamSettings| {
            let folder = Some(folder.path().to_owned());
            Model::load_streamed(&conformance(name), &StreamSettings { folder, ..settings.clone() })
        };
        if name == "gguf/llama-k-quants.gguf" {
            // One layer: two groups, which are pinned or do not fit.
            let (expected, _) = run(&Arc::new(Model::load(&conformance(name)).unwrap()), 1);
            assert_eq!(run(&Arc::new(load(&settings(u64::MAX)).unwrap()), 1).0, expected);
            continue;
        }
        check(Model::load(&conformance(name)).unwrap(), load, name);
    }
}

/// Returns the path of the packed weights in a folder.
fn packed_in(folder: &Path, settings: &StreamSettings) -> PathBuf {
    let hash = xxhash_rust::xxh3::xxh3_64(settings.identity.as_bytes()) as u32;
    folder.join(format!("seeded-kind-{hash:08x}.packed"))
}

/// A model in a folder, and the least memory.
struct Made {
    folder: tempfile::TempDir,
    least: u64,
}

impl Made {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let least =
            least(|settings| Model::seeded_of_kind(WeightKind::F32, LAYERS, 3).streamed(folder.path(), settings));
        Self { folder, least }
    }

    fn load(&self, settings: &StreamSettings) -> Result<Model, ModelError> {
        Model::seeded_of_kind(WeightKind::F32, LAYERS, 3).streamed(self.folder.path(), settings)
    }

    fn path(&self) -> PathBuf {
        packed_in(self.folder.path(), &settings(0))
    }

    /// Writes the file.
    fn pack(&self) -> Vec<u8> {
        self.load(&settings(self.least)).unwrap();
        fs::read(self.path()).unwrap()
    }

    fn whole() -> Model {
        Model::seeded_of_kind(WeightKind::F32, LAYERS, 3)
    }

    /// Changes one byte in every page of the groups.
    fn flip(&self) {
        let file = File::options().read(true).write(true).open(self.path()).unwrap();
        let mut byte = [0];
        for page in 1..self.groups_end() {
            file.read_exact_at(&mut byte, page * 4096 + 17).unwrap();
            file.write_all_at(&[byte[0] ^ 1], page * 4096 + 17).unwrap();
        }
    }

    /// Returns the number of pages before the manifest.
    fn groups_end(&self) -> u64 {
        let mut place = [0; 8];
        File::open(self.path()).unwrap().read_exact_at(&mut place, 8).unwrap();
        u64::from_le_bytes(place) / 4096
    }
}

#[test]
fn a_second_start_uses_the_file_and_other_weights_or_damage_write_it_again() {
    let made = Made::new();
    let written = |settings: &StreamSettings| made.load(settings).unwrap().stream_info().unwrap().written.clone();
    let mine = settings(made.least);
    assert_eq!(fs::read_dir(made.folder.path()).unwrap().count(), 0, "a start with too little memory writes nothing");
    let bytes = made.pack();
    assert_eq!(written(&mine), None);
    assert_eq!(fs::read(made.path()).unwrap(), bytes);
    let other = StreamSettings { identity: "b".to_owned(), ..mine.clone() };
    assert_eq!((written(&other).unwrap().as_str(), written(&mine)), ("there is none yet", None), "each has a file");
    fs::rename(packed_in(made.folder.path(), &other), made.path()).unwrap();
    assert_eq!(written(&mine).unwrap(), "the one there is of other weights");
    fs::write(made.path(), "something else").unwrap();
    assert_eq!(written(&mine).unwrap(), "the one there is no file of packed weights, or of another version");
    File::options().write(true).open(made.path()).unwrap().set_len(5 << 20).unwrap();
    assert_eq!(written(&mine).unwrap(), "the one there is damaged");
    assert_eq!(fs::read(made.path()).unwrap(), bytes);
    fs::remove_file(made.path()).unwrap();
    let name = PathBuf::from(made.path().file_name().unwrap());
    fs::write(made.folder.path().join(format!(".{}-00c0ffee00c0ffee", name.display())), "of a killed process").unwrap();
    assert_eq!(written(&mine).unwrap(), "there is none yet");
    let names: Vec<_> = fs::read_dir(made.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [name.into_os_string()], "nothing is left behind");
}

#[test]
fn other_groups_under_the_same_identity_are_refused() {
    let made = Made::new();
    made.pack();
    let model = Model::seeded_of_kind(WeightKind::F32, LAYERS - 1, 3);
    let error = model.streamed(made.folder.path(), &settings(made.least)).err().unwrap().to_string();
    assert!(error.contains("it has the groups of another model; remove the file"), "{error}");
    let error = Model::seeded_of_kind(WeightKind::Bf16, LAYERS, 3);
    let error = error.streamed(made.folder.path(), &settings(made.least)).err().unwrap().to_string();
    assert!(error.contains("it has the groups of another model"), "{error}");
}

#[test]
fn a_folder_that_cannot_be_written_and_a_small_budget_get_one_line() {
    let model = || Model::seeded_of_kind(WeightKind::F32, 2, 3);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let error = model().streamed(&folder.path().join("file"), &settings(u64::MAX)).err().unwrap().to_string();
    assert!(error.starts_with("cannot write the packed weights to ") && !error.contains('\n'), "{error}");
    let error = model().streamed(folder.path(), &settings(3 << 20)).err().unwrap().to_string();
    assert_eq!(
        error,
        "weights may take 3 MiB of memory, but embedding and output matrix, which stay in memory, take 1 MiB, and the window 3 MiB; give \
         memory_mib=4 or more"
    );
}

/// Runs the first token of a sequence.
fn first_step(worker: &mut Worker) -> Result<Vec<u32>, WorkerError> {
    let seq = StepSeq { start: true, n_tokens: 3, n_blocks: 1, sample: true, ..StepSeq::default() };
    let starts = vec![Sampling::default().into()];
    let step = Step { id: 4, seqs: vec![seq], tokens: vec![1, 2, 3], blocks: vec![0], starts, ..Step::default() };
    worker.run(&step).map(|output| output.result.of(0).to_vec())
}

fn worker(model: Model) -> Worker {
    worker_of(&Arc::new(model))
}

fn worker_of(model: &Arc<Model>) -> Worker {
    let config = WorkerConfig { block_size: 16, device_blocks: 4, max_drafts: 0, threads: 1 };
    Worker::new(Arc::clone(model), config).unwrap()
}

#[test]
fn a_damaged_or_short_file_is_removed_and_written_again_and_steps_go_on() {
    let made = Made::new();
    let bytes = made.pack();
    let expected = first_step(&mut worker(Made::whole())).unwrap();
    for (fault, damage) in [
        (GroupFault::Checksum, Box::new(|| made.flip()) as Box<dyn Fn()>),
        (
            GroupFault::Short,
            Box::new(|| File::options().write(true).open(made.path()).unwrap().set_len(3 * 4096).unwrap()),
        ),
    ] {
        let model = Arc::new(made.load(&settings(made.least)).unwrap());
        let mut worker = worker_of(&model);
        assert_eq!(first_step(&mut worker).unwrap(), expected);
        damage();
        // What was read ahead is sound, so the first step may succeed, but no step after.
        worker.reset();
        let first = first_step(&mut worker);
        assert!(first.is_err() || first.unwrap() == expected);
        worker.reset();
        let error = first_step(&mut worker).unwrap_err();
        let WorkerError::Weights { step: 4, fault: WeightsFault { fault: found, path, .. } } = &error else {
            panic!("{error}")
        };
        assert_eq!((found, path), (&fault, &made.path()));
        let line = error.to_string();
        assert!(
            line.starts_with("step 4: the ")
                && line.ends_with("; the file was removed, and is written again from the model"),
            "{line}"
        );
        assert!(!made.path().exists() && model.needs_repair());
        let written = model.repair_with(Made::whole(), &settings(made.least)).unwrap();
        assert_eq!((written.as_deref(), model.needs_repair()), (Some("there is none yet"), false));
        assert_eq!(fs::read(made.path()).unwrap(), bytes);
        assert_eq!(first_step(&mut worker_of(&model)).unwrap(), expected);
        worker.reset();
        assert_eq!(first_step(&mut worker).unwrap(), expected, "a worker that is still there uses the new file");
    }
}

#[test]
fn a_server_leaves_the_file_alone_that_another_has_written_in_the_place_of_a_damaged_one() {
    let made = Made::new();
    let bytes = made.pack();
    let expected = first_step(&mut worker(Made::whole())).unwrap();
    let models = [0, 1].map(|_| Arc::new(made.load(&settings(made.least)).unwrap()));
    let mut workers = models.each_ref().map(worker_of);
    made.flip();
    for ((model, worker), reason) in models.iter().zip(&mut workers).zip([Some("there is none yet"), None]) {
        drop((first_step(worker), worker.reset()));
        first_step(worker).unwrap_err();
        let written = model.repair_with(Made::whole(), &settings(made.least)).unwrap();
        assert_eq!(written.as_deref(), reason);
        assert_eq!(fs::read(made.path()).unwrap(), bytes);
        worker.reset();
        assert_eq!(first_step(worker).unwrap(), expected);
    }
}

#[test]
fn damage_of_a_pinned_group_removes_the_file_when_the_model_is_loaded() {
    let made = Made::new();
    made.pack();
    made.flip();
    let error = made.load(&settings(u64::MAX)).err().unwrap();
    let line = format!(
        "the attention weights of layer 0 cannot be read from {}: the checksum is wrong; the file was removed, and is written again from \
         the model",
        made.path().display()
    );
    assert_eq!((error.to_string(), error.has_removed_file()), (line, true));
    assert_eq!(
        made.load(&settings(u64::MAX)).unwrap().stream_info().unwrap().written.as_deref(),
        Some("there is none yet")
    );
}

#[test]
fn a_folder_with_the_name_of_the_file_is_refused_in_one_line() {
    let made = Made::new();
    fs::create_dir(made.path()).unwrap();
    let error = made.load(&settings(made.least)).err().unwrap().to_string();
    let line = "is not a regular file; the packed weights go there: move it away, or name another folder with dir";
    assert_eq!(error, format!("{} {line}", made.path().display()));
}

#[test]
fn the_file_has_no_permission_that_the_model_lacks() {
    let (model, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for entry in fs::read_dir(conformance("llama-biases-f32")).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), model.path().join(entry.file_name())).unwrap();
    }
    let mut weights = fs::read_dir(model.path()).unwrap().map(|entry| entry.unwrap().path());
    let weights = weights.find(|path| path.extension().is_some_and(|is| is == "safetensors")).unwrap();
    let mode_of = |mode| {
        fs::set_permissions(&weights, fs::Permissions::from_mode(mode)).unwrap();
        let settings = StreamSettings { folder: Some(folder.path().to_owned()), ..settings(u64::MAX) };
        let info = Model::load_streamed(model.path(), &settings).unwrap().stream_info().unwrap().clone();
        (info.written.is_some(), fs::metadata(info.path).unwrap().permissions().mode() & 0o777)
    };
    assert_eq!(mode_of(0o600), (true, 0o600));
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(matches!(mode_of(0o644), (true, 0o644 | 0o640 | 0o600)), "the mask of the process counts, too");
    assert_eq!(mode_of(0o400), (false, 0o600), "a file that is there loses permissions");
}

#[test]
fn workers_share_pinned_groups_and_stream_through_windows_of_their_own() {
    let made = Made::new();
    let two = StreamSettings { workers: 2, ..settings(2 * made.least) };
    let model = Arc::new(made.load(&two).unwrap());
    assert!(model.stream_info().unwrap().step_bytes() > 0);
    let (expected, _) = run(&Arc::new(Model::seeded_of_kind(WeightKind::F32, LAYERS, 3)), 1);
    std::thread::scope(|scope| {
        let runs = [0, 1].map(|_| scope.spawn(|| run(&model, 1).0));
        for outcome in runs {
            assert_eq!(outcome.join().unwrap(), expected);
        }
    });
}

#[test]
fn a_sequence_with_the_blocks_of_another_computes_the_same_from_a_disk() {
    let made = Made::new();
    let text = |model: Model| {
        let mut rig = Rig::new(&Arc::new(model), 16, 64, 1);
        let mut first = Seq::new(0, &[7; 40], Sampling::default());
        rig.generate(&mut first, 5, 16);
        let mut second = Seq::new(1, &[7; 40], Sampling::default()).share(&first, 16, 32);
        rig.generate(&mut second, 5, 16);
        assert_eq!(first.output(), second.output());
        second.output().to_vec()
    };
    let streamed = made.load(&settings(made.least)).unwrap();
    assert_eq!(text(streamed), text(Model::seeded_of_kind(WeightKind::F32, LAYERS, 3)));
}

#[test]
fn prompts_and_decodes_may_read_ahead_by_different_numbers_of_groups() {
    let made = Made::new();
    let (expected, _) = run(&Arc::new(Model::seeded_of_kind(WeightKind::F32, LAYERS, 3)), 1);
    for (ahead, prefill_ahead) in [(1, 4), (4, 1), (9, 9), (0, 0)] {
        let settings = StreamSettings { ahead, prefill_ahead, ..settings(made.least + (4 << 20)) };
        let model = made.load(&settings).unwrap();
        assert!(model.stream_info().unwrap().step_bytes() > 0);
        assert_eq!(run(&Arc::new(model), 2).0, expected);
    }
}

#[test]
fn a_file_keeps_its_form_until_a_setting_asks_for_another_and_is_mended_in_it() {
    let made = Made::new();
    let of = |compression| StreamSettings { compression, ..settings(made.least) };
    let written = |compression| made.load(&of(compression)).unwrap().stream_info().unwrap().written.clone();
    assert_eq!(written(Compression::Off).unwrap(), "there is none yet");
    assert_eq!((written(Compression::Auto), written(Compression::Off)), (None, None));
    assert_eq!(written(Compression::On).unwrap(), "the one there has the plain form");
    assert_eq!((written(Compression::Auto), written(Compression::On)), (None, None));
    let model = Arc::new(made.load(&of(Compression::Auto)).unwrap());
    let mut worker = worker_of(&model);
    let expected = first_step(&mut worker).unwrap();
    made.flip();
    drop((first_step(&mut worker), worker.reset()));
    first_step(&mut worker).unwrap_err();
    // The setting counts for a start: a repaired file has the form that the workers know.
    model.repair_with(Made::whole(), &of(Compression::Off)).unwrap();
    let repaired = made.load(&of(Compression::On)).unwrap().stream_info().unwrap().clone();
    let before = model.stream_info().unwrap();
    assert_eq!((repaired.form, repaired.written, &repaired.groups), (before.form, None, &before.groups));
    assert_eq!(repaired.learned, before.learned);
    worker.reset();
    assert_eq!(first_step(&mut worker).unwrap(), expected);
}
