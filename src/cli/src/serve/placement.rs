//! Check of the placement of weights against the workers of a server.

use anyhow::ensure;

use crate::model::null_worker::WorkerKind;
use crate::model::weights_settings::Placement;
use crate::settings::engines::Engines;
use crate::settings::serve_settings::Settings;

/// Refuses a placement of weights that is malformed, or without a worker of this server to have the weights.
///
/// # Errors
/// If the placement is refused.
pub fn check_weights(settings: &Settings, engines: &Engines, kind: WorkerKind, simulates: bool) -> anyhow::Result<()> {
    if simulates || Placement::of(settings.weights.as_deref())? == Placement::Resident {
        return Ok(());
    }
    ensure!(kind == WorkerKind::Embedded, "weights is given, but worker is null, which has no weights");
    ensure!(
        engines.embedded() > 0,
        "weights is given, but the server has no embedded workers; give --weights to the attached ones"
    );
    Ok(())
}

#[cfg(test)]
mod weights_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::embedded;
    use crate::serve::tests::given;

    #[test]
    fn the_built_in_model_streams_from_a_folder_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let load = |spec: &str| {
            let settings = given(&[&format!("--weights={spec}"), "--device-blocks=64", "--threads=1"]);
            let engines = Engines::of(&settings, 1).unwrap();
            embedded(&settings, &engines).map(|(_, backend)| backend)
        };
        let dir = folder.path().display();
        let error = |spec: &str| format!("{:#}", load(spec).err().unwrap());
        assert_eq!(
            error("stream:memory_mib=8"),
            "a model without a folder of its own needs weights 'stream' with dir=PATH"
        );
        let small = error(&format!("stream:memory_mib=1,dir={dir}"));
        let names = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names().count(), 0, "nothing is written");
        assert!(small.starts_with("weights may take 1 MiB of memory, but embedding and output matrix"), "{small}");
        let least: u64 = small.rsplit_once("memory_mib=").unwrap().1.trim_end_matches(" or more").parse().unwrap();
        let backend = load(&format!("stream:memory_mib={least},dir={dir}")).unwrap();
        assert!((backend.workers)(trunkline_cluster::EngineId(0)).is_ok());
        let names: Vec<String> = names().map(|name| name.into_string().unwrap()).collect();
        assert!(
            matches!(&names[..], [name] if name.starts_with("small-world-") && name.ends_with(".packed")),
            "{names:?}"
        );
    }

    #[test]
    fn weights_stream_to_embedded_workers_alone() {
        let check = |flags: &[&str], kind| {
            let settings = given(flags);
            let engines = Engines::of(&settings, 2).unwrap();
            check_weights(&settings, &engines, kind, false).map_err(|error| error.to_string())
        };
        let stream = "--weights=stream:memory_mib=64";
        assert_eq!(check(&[stream], WorkerKind::Embedded), Ok(()));
        assert_eq!(check(&["--weights=resident", "--workers=0"], WorkerKind::Embedded), Ok(()));
        let null = WorkerKind::Null { step: std::time::Duration::ZERO };
        assert_eq!(check(&[stream], null), Err("weights is given, but worker is null, which has no weights".into()));
        let attached = check(&[stream, "--workers=0"], WorkerKind::Embedded).unwrap_err();
        assert!(attached.ends_with("give --weights to the attached ones"), "{attached}");
        let bad = check(&["--weights=stream_first"], WorkerKind::Embedded).unwrap_err();
        assert!(bad.starts_with("unknown place of weights 'stream_first'"), "{bad}");
    }
}
