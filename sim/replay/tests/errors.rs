//! The texts of errors of replays, plans and recordings.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use error_texts::texts;
use trunkline_cluster::record::RecordError;
use trunkline_cluster::{ClusterError, EngineId};
use trunkline_core::names::registry::{RegistryError, UnknownName};
use trunkline_core::{ConfigError, RequestId};
use trunkline_sim_perf::cost::ParallelError;
use trunkline_sim_replay::ReplayError;
use trunkline_sim_replay::autoscale::AutoscaleError;
use trunkline_sim_replay::calibrate::{BenchmarkError, TooFewSamples};
use trunkline_sim_replay::ci::BudgetError;
use trunkline_sim_replay::diff::DiffError;
use trunkline_sim_replay::engine_memory::BadRelease;
use trunkline_sim_replay::engines::EngineError;
use trunkline_sim_replay::faults::FaultError;
use trunkline_sim_replay::fleet::RecordReplayError;
use trunkline_sim_replay::group::BadFleet;
use trunkline_sim_replay::plan::PlanError;
use trunkline_sim_replay::random_failures::RandomFailuresError;
use trunkline_sim_replay::recorded::{RecordingError, RecordingFault};
use trunkline_sim_replay::rerun::{ChangeError, RerunError, SavedError, SavedFault};
use trunkline_sim_replay::settings::{HostBytes, HostMemoryError, LockStepError, SettingsError};
use trunkline_sim_replay::tune::TuneError;
use trunkline_sim_workload::lines::LineFault;
use trunkline_sim_workload::trace::{ClosedLoopError, TraceError, TraceFault};

const HARDWARE: &str = "h100-80g";

fn json() -> serde_json::Error {
    serde_json::from_str::<u32>("\"four\"").expect_err("no number")
}

fn unknown() -> RegistryError {
    UnknownName { kind: "router", name: "nearest".into(), known: vec!["round_robin", "least_loaded"] }.into()
}

fn config() -> ConfigError {
    ConfigError::OutOfRange { name: "block_size", value: "0".into(), min: "1".into(), max: "1024".into() }
}

fn means() -> RandomFailuresError {
    RandomFailuresError { name: "mtbf", value: 0.0, unit: "hours" }
}

fn host_memory() -> HostMemoryError {
    let bytes = HostBytes { weights: 140_000_000_000, kv: 20_000_000_000 };
    HostMemoryError { hardware: HARDWARE, memory: 64_000_000_000, bytes }
}

fn settings(out: &mut String) {
    texts!(
        out,
        SettingsError {
            PipelineStages: SettingsError::PipelineStages { stages: 4, pipeline: 2 },
            Config: SettingsError::Config(config()),
            HostMemory: SettingsError::HostMemory(host_memory()),
            Parallel: SettingsError::Parallel(ParallelError::DataPipeline { data: 2, pipeline: 2 }),
            NoReplicas: SettingsError::NoReplicas,
            Speed: SettingsError::Speed(0.0),
            ClosedLoop: SettingsError::ClosedLoop(ClosedLoopError::Users(0)),
            LayerGroups: SettingsError::LayerGroups { groups: 2, members: 30, layers: 32, heads: 256 },
            FarLinks: SettingsError::FarLinks { links: 1, tiers: 2 },
            TierLink: SettingsError::TierLink { name: "read_gb_s", value: 0.0 },
            DraftAcceptance: SettingsError::DraftAcceptance(1.5),
            Router: SettingsError::Router(unknown()),
            Cluster: SettingsError::Cluster(ClusterError::EngineCount(0)),
            Roles: SettingsError::Roles { roles: 3, replicas: 4 },
            RolesAtOnce: SettingsError::RolesAtOnce,
            NoRole: SettingsError::NoRole("prefill"),
            RandomFailures: SettingsError::RandomFailures(means()),
            Autoscale: SettingsError::Autoscale(AutoscaleError::Kinds),
            LockStep: SettingsError::LockStep(LockStepError::Changes),
            Prices: SettingsError::Prices { prices: 1, kinds: 2 },
            Faults: SettingsError::Faults(FaultError::NoneLeft),
        }
    );
    texts!(out, HostMemoryError = host_memory());
    texts!(
        out,
        EngineError {
            Name: EngineError::Name(unknown()),
            Release: EngineError::Release(BadRelease("0.7".into())),
            NoReleases: EngineError::NoReleases("sglang".into()),
        }
    );
    texts!(out, BadRelease = BadRelease("0.7".into()));
    texts!(out, RandomFailuresError = means());
    texts!(out, BadFleet = BadFleet("h100*".into()));
}

fn fleets(out: &mut String) {
    texts!(
        out,
        LockStepError {
            Replicas: LockStepError::Replicas { replicas: 3, data: 2 },
            Changes: LockStepError::Changes,
            Roles: LockStepError::Roles { last: 3, data: 2 },
        }
    );
    texts!(
        out,
        AutoscaleError {
            Policy: AutoscaleError::Policy(unknown()),
            Limits: AutoscaleError::Limits { min: 4, max: 2 },
            Initial: AutoscaleError::Initial { initial: 8, min: 1, max: 4 },
            Fleet: AutoscaleError::Fleet { replicas: 2, max: 4 },
            Kinds: AutoscaleError::Kinds,
            Roles: AutoscaleError::Roles,
            AtOnce: AutoscaleError::AtOnce,
        }
    );
    texts!(
        out,
        FaultError {
            BadFailure: FaultError::BadFailure("2@".into()),
            BadSlow: FaultError::BadSlow("2:0".into()),
            NoReplica: FaultError::NoReplica { replica: 4, what: "fail", replicas: 4 },
            Overlap: FaultError::Overlap(2),
            SlowTwice: FaultError::SlowTwice(2),
            NoneLeft: FaultError::NoneLeft,
            AtOnce: FaultError::AtOnce,
        }
    );
}

fn plans(out: &mut String) {
    texts!(
        out,
        PlanError {
            Replay: PlanError::Replay(ReplayError::NoCapacity),
            TooLarge: PlanError::TooLarge { hardware: HARDWARE, refused: 12, requests: 100 },
            Faults: PlanError::Faults,
            Autoscale: PlanError::Autoscale,
            DayRate: PlanError::DayRate,
            StartDelay: PlanError::StartDelay(-1.0),
            NoReplicas: PlanError::NoReplicas,
            Roles: PlanError::Roles,
            SplitOfOne: PlanError::SplitOfOne,
            SplitRate: PlanError::SplitRate,
            Mixed: PlanError::Mixed,
            LockStep: PlanError::LockStep,
            Price: PlanError::Price { hardware: HARDWARE, price: 0.0 },
        }
    );
    texts!(
        out,
        ReplayError {
            Settings: ReplayError::Settings(SettingsError::NoReplicas),
            Trace: ReplayError::Trace(TraceError { path: "trace.jsonl".into(), line: 0, fault: TraceFault::Empty }),
            LoadFraction: ReplayError::LoadFraction(0.0),
            NoRate: ReplayError::NoRate,
            OwnUsers: ReplayError::OwnUsers,
            NoCapacity: ReplayError::NoCapacity,
            Stalled: ReplayError::Stalled { at_s: 1.5, unfinished: 3 },
            EndOfTime: ReplayError::EndOfTime,
            Stopped: ReplayError::Stopped,
        }
    );
}

fn calibrations(out: &mut String) {
    texts!(out, TooFewSamples = TooFewSamples { found: 3 });
    let path = || "bench.json".into();
    texts!(
        out,
        BenchmarkError {
            Unreadable: BenchmarkError::Unreadable { path: path(), fault: LineFault::NotFound },
            Malformed: BenchmarkError::Malformed { path: path(), fault: json() },
            Lengths: BenchmarkError::Lengths { path: path(), field: "ttfts", found: 3, expected: 4 },
            ManyTokens: BenchmarkError::ManyTokens { path: path(), tokens: 400, chunks: 100 },
            Budget: BenchmarkError::Budget { path: path(), misfits: 3, prompts: 100, step_tokens: 2048 },
            NoStarts: BenchmarkError::NoStarts { path: path() },
        }
    );
}

fn recordings(out: &mut String) {
    let fault = RecordingFault::NoHeader;
    texts!(out, RecordingError = RecordingError { path: "run.jsonl".into(), line: 1, fault });
    texts!(
        out,
        RecordingFault {
            Line: RecordingFault::Line(LineFault::NotFound),
            NoHeader: RecordingFault::NoHeader,
            Version: RecordingFault::Version { found: 99 },
            Config: RecordingFault::Config(Box::new(config())),
            Cluster: RecordingFault::Cluster(Box::new(ClusterError::EngineCount(0))),
            Engine: RecordingFault::Engine { engine: EngineId(4), engines: 4 },
            NoRequests: RecordingFault::NoRequests,
            Record: RecordingFault::Record(RecordError::Malformed(json())),
            Misplaced: RecordingFault::Misplaced,
            TimeGoesBack: RecordingFault::TimeGoesBack { before_ns: 9, at_ns: 7 },
        }
    );
}

fn changes(out: &mut String) {
    texts!(
        out,
        ChangeError {
            Form: ChangeError::Form("policy".into()),
            Request: ChangeError::Request("all".into()),
            Hints: ChangeError::Hints("true".into()),
            Name: ChangeError::Name("colour".into()),
            BlockSize: ChangeError::BlockSize,
            Relative: ChangeError::Relative { name: "policy", text: "+1".into() },
        }
    );
    texts!(
        out,
        RerunError {
            Config: RerunError::Config(config()),
            Cluster: RerunError::Cluster(Box::new(ClusterError::EngineCount(0))),
            NoRequest: RerunError::NoRequest(RequestId(17)),
            NoHints: RerunError::NoHints,
            TooFewSteps: RerunError::TooFewSteps { found: 3 },
            Scores: RerunError::Scores,
            Damaged: RerunError::Damaged,
        }
    );
    texts!(
        out,
        DiffError {
            Recording: DiffError::Recording(RecordingError {
                path: "run.jsonl".into(),
                line: 1,
                fault: RecordingFault::NoHeader,
            }),
            Decisions: DiffError::Decisions("run.jsonl".into()),
        }
    );
    texts!(out, SavedError = SavedError { path: "saved.gz".into(), fault: SavedFault::Damaged });
    texts!(
        out,
        SavedFault {
            File: SavedFault::File(std::io::Error::other("the disk is full")),
            Form: SavedFault::Form(json()),
            Version: SavedFault::Version { found: 99 },
            Damaged: SavedFault::Damaged,
        }
    );
    texts!(out, BudgetError { Form: BudgetError::Form("e2e".into()), Figure: BudgetError::Figure("e2e_p98".into()) });
    texts!(
        out,
        TuneError {
            Rerun: TuneError::Rerun(RerunError::Scores),
            TooFew: TuneError::TooFew { found: 12 },
            TooFewInHalf: TuneError::TooFewInHalf { half: "second", found: 12 },
            Settings: TuneError::Settings,
        }
    );
    texts!(
        out,
        RecordReplayError {
            Replay: RecordReplayError::Replay(ReplayError::NoCapacity),
            Write: RecordReplayError::Write(std::io::Error::other("the disk is full")),
        }
    );
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut out = String::new();
    settings(&mut out);
    fleets(&mut out);
    plans(&mut out);
    calibrations(&mut out);
    recordings(&mut out);
    changes(&mut out);
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), &out);
}
