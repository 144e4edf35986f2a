//! The tokenizer of the model as a ZIP archive, sent in pieces.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tonic::Status;

use crate::archive::zip;
use crate::files::{FilesError, ModelFiles};
use crate::proto::smg::grpc::common::GetTokenizerChunk;

/// Maximum number of bytes of a piece: those that gateways expect.
const PIECE_BYTES: usize = 64 << 10;

/// An archive of the tokenizer's files.
#[derive(Debug)]
pub(crate) struct Bundle {
    archive: Vec<u8>,
    sha256: String,
}

/// The archive, packed when it is first asked for, and kept.
#[derive(Debug)]
pub(crate) struct Bundles {
    files: ModelFiles,
    packed: OnceCell<Arc<Bundle>>,
}

impl Bundles {
    pub(crate) fn new(files: ModelFiles) -> Self {
        Self { files, packed: OnceCell::new() }
    }

    /// Returns the archive.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the model has no files, INTERNAL if they cannot be read.
    pub(crate) async fn get(&self) -> Result<Arc<Bundle>, Status> {
        let pack = || async {
            let files = self.files.clone();
            let packed = tokio::task::spawn_blocking(move || Bundle::pack(&files));
            let packed = packed.await.map_err(|_| Status::internal("packing the tokenizer files failed"))?;
            packed.map(Arc::new).map_err(|error| match &error {
                FilesError::Missing | FilesError::TooLarge => Status::failed_precondition(error.to_string()),
                // The path is of no use to a client.
                FilesError::Read { source, .. } => {
                    Status::internal(format!("cannot read the tokenizer files: {source}"))
                }
                FilesError::Compress(source) => Status::internal(format!("{error}: {source}")),
            })
        };
        self.packed.get_or_try_init(pack).await.cloned()
    }
}

impl Bundle {
    fn pack(files: &ModelFiles) -> Result<Self, FilesError> {
        let archive = zip(&files.of_tokenizer()?)?;
        let sha256 = Sha256::digest(&archive).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { archive, sha256 })
    }

    /// Returns the pieces of an archive; the last has the hash of all.
    pub(crate) fn pieces(bundle: Arc<Self>) -> impl Iterator<Item = GetTokenizerChunk> + Send {
        let n = bundle.archive.len().div_ceil(PIECE_BYTES);
        (0..n).map(move |at| {
            let (from, is_last) = (at * PIECE_BYTES, at + 1 == n);
            let to = bundle.archive.len().min(from + PIECE_BYTES);
            let sha256 = if is_last { bundle.sha256.clone() } else { String::new() };
            GetTokenizerChunk { data: bundle.archive[from..to].to_vec(), sha256 }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Bytes that do not compress.
    static NOISE: [u8; 200_000] = {
        let (mut noise, mut state, mut at) = ([0; 200_000], 1_u32, 0);
        while at < noise.len() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise[at] = (state >> 24) as u8;
            at += 1;
        }
        noise
    };

    const FILES: &[(&str, &[u8])] = &[("tokenizer.json", &NOISE), ("model.safetensors", b"weights")];

    #[tokio::test]
    async fn the_pieces_are_an_archive_and_the_last_has_its_hash() {
        let bundles = Bundles::new(ModelFiles::Memory(FILES));
        let pieces: Vec<_> = Bundle::pieces(bundles.get().await.unwrap()).collect();
        assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.data.len() <= PIECE_BYTES), "{}", pieces.len());
        let archive = pieces.iter().flat_map(|piece| piece.data.clone()).collect::<Vec<u8>>();
        let (last, others) = pieces.split_last().unwrap();
        assert!(others.iter().all(|piece| piece.sha256.is_empty()));
        let digest: String = Sha256::digest(&archive).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(last.sha256, digest);
        let contents = &archive[30 + "tokenizer.json".len()..];
        let mut bytes = vec![0; NOISE.len()];
        flate2::read::DeflateDecoder::new(contents).read_exact(&mut bytes).unwrap();
        assert!(bytes == NOISE && !archive.windows(7).any(|part| part == b"weights"));
    }

    #[tokio::test]
    async fn a_model_without_files_says_what_to_do() {
        let status = Bundles::new(ModelFiles::Missing).get().await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(status.message().ends_with("give the gateway a tokenizer of its own"), "{status:?}");
    }
}
