//! The texts of all errors of a cluster.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use error_texts::texts;
use trunkline_cluster::record::{Line, RecordError};
use trunkline_cluster::{Cluster, ClusterConfig, ClusterError, EngineId};
use trunkline_core::{Config, ConfigError};

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    texts!(
        out,
        ClusterError {
            EngineCount: ClusterError::EngineCount(0),
            BlockSizes: ClusterError::BlockSizes { engine: EngineId(1), size: 32, first: 16 },
            Roles: ClusterError::Roles { missing: "takes new requests", role: "prefill" },
            Core: ClusterError::Core { engine: EngineId(1), error: ConfigError::EmptyWindow },
            Router: {
                let config =
                    ClusterConfig { router: "nearest".into(), ..ClusterConfig::uniform(&Config::default(), 2) };
                Cluster::new(&config).err().expect("no router has the name")
            },
        }
    );
    texts!(out, RecordError { Malformed: Line::parse("{}").unwrap_err() });
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), out);
}
