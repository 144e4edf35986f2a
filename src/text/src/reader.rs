//! Opening of GGUF files. Each fault of a file is one line.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::path::Path;

use gguf_rs_lib::prelude::{GGUFError, GGUFFileReader};
use gguf_rs_lib::reader::file_reader::GGUFReaderConfig;

use crate::error::FactsError;
use crate::mistakes::Mistake;

/// Words of the library for an allocation that failed.
const NO_MEMORY: &str = "Unable to allocate";

/// Metadata and tensors of a file.
pub type GgufReader = GGUFFileReader<BufReader<File>>;

/// Opens the GGUF file at `path`.
///
/// # Errors
///
/// The file cannot be read, or is cut short, malformed, or no GGUF file. A lack of memory is an error of reading.
pub fn open_gguf(path: &Path) -> Result<GgufReader, FactsError> {
    let unreadable = |source| FactsError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let error = match trunkline_foreign::call(|| GGUFFileReader::new(BufReader::new(file))) {
        Ok(Ok(reader)) => return Ok(reader),
        Ok(Err(error)) => error,
        Err(panicked) => {
            let problem = format!("its reader failed, without a reason of its own: {panicked}");
            return Err(FactsError::Gguf { path: path.to_owned(), problem });
        }
    };
    if error.to_string().contains(NO_MEMORY) {
        return Err(unreadable(io::Error::from(ErrorKind::OutOfMemory)));
    }
    if let Some(mistake) = Mistake::of_model(path) {
        return Err(mistake.into());
    }
    let problem = match error {
        GGUFError::InvalidMagic { .. } => "the file does not begin with GGUF".to_owned(),
        GGUFError::UnexpectedEof => cut_short(path),
        GGUFError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => cut_short(path),
        GGUFError::UnsupportedVersion(version) => format!("the file has version {version}"),
        other => other.to_string().replace(['\n', '\r'], " "),
    };
    Err(FactsError::Gguf { path: path.to_owned(), problem })
}

/// Describes a file that ends too early, with the sizes it has and should have.
fn cut_short(path: &Path) -> String {
    let Ok(file) = File::open(path) else { return "the file is cut short".to_owned() };
    let found = file.metadata().map_or(0, |metadata| metadata.len());
    // Without the check that the tensors lie within the file, the list of tensors is read as far as the file has it.
    let config = GGUFReaderConfig { validate_integrity: false, ..GGUFReaderConfig::default() };
    let reader = trunkline_foreign::call(|| GGUFFileReader::with_config(BufReader::new(file), config));
    let expected = reader.ok().and_then(Result::ok).and_then(|reader| {
        let ends = reader
            .tensor_infos()
            .iter()
            .map(|tensor| tensor.data_offset().checked_add(tensor.checked_expected_data_size().ok()?));
        ends.max().flatten()?.checked_add(reader.tensor_data_offset())
    });
    match expected {
        Some(expected) => format!("the file is cut short: it has {found} of {expected} bytes"),
        None => format!("the file is cut short: its {found} bytes end before the list of its tensors does"),
    }
}
