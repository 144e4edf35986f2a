//! A file of packed weights being written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use trunkline_codec::Dtype;
use trunkline_files::{Aligned, BlockFile, PAGE, write_all};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::ModelError;
use crate::layers::pair::{Pair, Part};
use crate::stream::packed::MAGIC;
use crate::stream::packed::form::{Form, Packing, dtype_of};
use crate::stream::packed::learned::{FormChoice, Learned};
use crate::stream::packed::manifest::{Entry, Manifest};
use crate::stream::packed::unfinished::Unfinished;

/// A file being written; removed unless finished.
pub(super) struct Writing {
    path: PathBuf,
    unfinished: Unfinished,
    file: Box<dyn BlockFile>,
    end: u64,
    groups: Vec<Entry>,
    /// The form, once it is known.
    form: Option<Form>,
    choice: FormChoice,
    learned: Option<Learned>,
    packing: Packing,
    /// The compressed group.
    frames: Aligned,
}

impl Writing {
    /// Creates a file next to `path`, the final place, with the permissions `mode` at most.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn create(path: &Path, mode: u32, choice: FormChoice) -> Result<Self, ModelError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let failed = |source| ModelError::Write { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let (unfinished, file) = Unfinished::create(path, mode).map_err(failed)?;
        let (path, groups, end) = (path.to_owned(), Vec::new(), PAGE as u64);
        let (packing, frames) = (Packing::default(), Aligned::default());
        Ok(Self { path, unfinished, file, end, groups, form: None, choice, learned: None, packing, frames })
    }

    fn failed(&self, source: io::Error) -> ModelError {
        ModelError::Write { path: self.path.clone(), source }
    }

    /// Writes a group of these bytes.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn append(&mut self, layer: u32, part: Part, group: &Pair, bytes: &[u8]) -> Result<(), ModelError> {
        let shapes = group.shapes();
        let dtype = dtype_of(shapes.iter().map(|(kind, ..)| *kind));
        let form = match dtype {
            Some(dtype) => self.form(dtype, bytes)?,
            None => Form::Plain,
        };
        let frames = match dtype.filter(|_| form != Form::Plain) {
            Some(dtype) => self.compress(form, dtype, bytes),
            None => Vec::new(),
        };
        let stored = if frames.is_empty() { bytes } else { self.frames.as_slice() };
        write_all(self.file.as_ref(), &[stored], self.end).map_err(|source| self.failed(source))?;
        let (checksum, place) = (xxh3_64(stored), self.end);
        let (bytes, stored, matrices) = (bytes.len() as u64, stored.len() as u64, Entry::matrices(&shapes));
        self.groups.push(Entry { layer, part, place, bytes, stored, frames, checksum, matrices });
        self.end += stored;
        Ok(())
    }

    /// Returns the form of the file; the first group of floats is measured for it, if it is to be.
    fn form(&mut self, dtype: Dtype, bytes: &[u8]) -> Result<Form, ModelError> {
        let form = match (self.form, self.choice) {
            (Some(form), _) => form,
            (None, FormChoice::Known(form, learned)) => {
                self.learned = learned;
                form
            }
            (None, FormChoice::Measure { compresses, reads }) => {
                // What the group itself is written over.
                write_all(self.file.as_ref(), &[bytes], self.end).map_err(|source| self.failed(source))?;
                self.learned = Learned::measure(self.unfinished.path(), self.end, dtype, bytes, reads);
                let unknown = if compresses { Form::Fast } else { Form::Plain };
                self.learned.as_ref().map_or(unknown, |learned| learned.quickest(compresses))
            }
        };
        self.form = Some(form);
        Ok(form)
    }

    /// Compresses a group into the memory for frames: whole pages, which end with the last frame. Returns the bytes of each frame.
    fn compress(&mut self, form: Form, dtype: Dtype, bytes: &[u8]) -> Vec<u32> {
        if self.frames.as_slice().is_empty() {
            self.frames = Aligned::with_capacity(bytes.len() + PAGE);
        }
        self.frames.resize(0);
        self.frames.resize(PAGE);
        self.frames.as_mut_slice().fill(0);
        let lens = self.frames.append(|out| self.packing.encode(form, dtype, bytes, out));
        let all = self.frames.as_slice().len();
        let surplus = if all.is_multiple_of(PAGE) { PAGE } else { all % PAGE };
        self.frames.as_mut_slice().copy_within(surplus.., 0);
        self.frames.resize(all - surplus);
        lens
    }

    /// Ends the file with its manifest, and gives it its name.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn finish(mut self, identity: String) -> Result<(), ModelError> {
        let form = self.form.unwrap_or_default();
        let manifest = Manifest::new(identity, form, self.learned, std::mem::take(&mut self.groups));
        let mut text = Aligned::from(serde_json::to_vec_pretty(&manifest).expect("plain values"));
        let (bytes, checksum) = (text.as_slice().len() as u64, xxh3_64(text.as_slice()));
        text.pad();
        let mut page = Aligned::with_capacity(PAGE);
        page.resize(PAGE);
        page.as_mut_slice()[..8].copy_from_slice(MAGIC);
        for (place, number) in page.as_mut_slice()[8..].chunks_exact_mut(8).zip([self.end, bytes, checksum]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let written = write_all(self.file.as_ref(), &[text.as_slice()], self.end)
            .and_then(|()| write_all(self.file.as_ref(), &[page.as_slice()], 0))
            .and_then(|()| self.file.sync())
            .and_then(|()| self.unfinished.finish(&self.path));
        written.map_err(|source| ModelError::Write { path: self.path, source })
    }
}
