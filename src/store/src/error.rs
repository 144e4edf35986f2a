//! Reasons for not opening a store.

use std::io;
use std::path::PathBuf;

/// Reason for not opening a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A setting has no meaning.
    #[error("{setting}: {reason}")]
    Setting {
        /// Setting at fault.
        setting: &'static str,
        /// Reason, and the values allowed.
        reason: String,
    },
    /// The system starts no thread.
    #[error("cannot start a thread for copies: {0}")]
    Thread(io::Error),
    /// A folder of a disk tier cannot be used.
    #[error("{}: cannot {task}", path.display())]
    Disk {
        /// Folder or file at fault.
        path: PathBuf,
        /// Task that failed, as `create the folder`.
        task: &'static str,
        /// Reason, from the system.
        source: io::Error,
    },
    /// Another process has the folder of a disk tier.
    #[error("{}: another process uses this folder as a disk tier; stop that process or choose another folder", path.display())]
    Locked {
        /// Folder of the disk tier.
        path: PathBuf,
    },
    /// A remote store cannot be used.
    #[error("{}: {reason}", trunkline_quote::cut(url))]
    Remote {
        /// Address of the remote store.
        url: String,
        /// Reason, from the system.
        reason: String,
    },
}
