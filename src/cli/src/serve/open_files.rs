//! The limit of open files of a server.

use tracing::warn;
use trunkline_server::FILES_RESERVED;
use trunkline_store::SEGMENTS_MAX;

use crate::settings::engines::Engines;
use crate::settings::serve_settings::Settings;

/// Raises the limit of open files, and warns if it is too low for the connections and the segments of the disk tiers.
pub(super) fn raise_open_files(settings: &Settings, engines: &Engines, connections: u32) {
    let disks = if settings.tiers.disk.is_some() { engines.workers() as u64 } else { 0 };
    let needed = u64::from(connections) + FILES_RESERVED + disks * SEGMENTS_MAX;
    if let Some(files) = trunkline_server::raise_open_files().filter(|files| disks > 0 && *files < needed) {
        warn!(
            "this process can open {files} files, and connections and disk tiers may need {needed}; raise the limit (ulimit -Hn), or \
             lower --max-connections"
        );
    }
}
