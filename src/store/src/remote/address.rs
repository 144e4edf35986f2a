//! Addresses of remote storage.

use url::Url;

use crate::error::StoreError;

use super::folder::FolderObjects;
use super::objects::Objects;
use super::stored::{StoredObjects, options};

/// Opens the storage at an address, `file:///folder` or `s3://bucket/prefix?key=value&...`. Credentials of S3,
/// and settings that the address leaves open, come from the usual variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
/// `AWS_REGION`, `AWS_ENDPOINT_URL`.
///
/// # Errors
/// If the address has no meaning, or a folder cannot be made. Whether a store answers shows later.
pub fn open(address: &str) -> Result<Box<dyn Objects>, StoreError> {
    let refuse = |reason: String| StoreError::Remote { url: address.to_owned(), reason };
    let url =
        Url::parse(address).map_err(|error| refuse(format!("{error}; use file:///folder or s3://bucket/prefix")))?;
    let options = options(&url, std::env::vars_os()).map_err(refuse)?;
    if url.scheme() != "file" {
        return Ok(Box::new(StoredObjects::open(address, url, options)?));
    }
    let folder = url.to_file_path().map_err(|()| refuse("the folder must be absolute".to_owned()))?;
    Ok(Box::new(FolderObjects::open(folder)?))
}
