//! Recordings of earlier programs are still read: versions 4 (one engine) and 5 (several).
//!
//! The lines in `tests/fixtures` stay as they are for as long as programs read their versions. For a new version, in a folder of its own,
//! `TRUNKLINE_WRITE_GOLDEN=1 cargo test -p trunkline-cluster --test old_files` writes what is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use trunkline_cluster::record::{Change, End, InputsDigest, Line};
use trunkline_cluster::{ClusterConfig, EngineId, Role};
use trunkline_core::{
    BlockFault, BlockKey, Config, Event, FailedSeq, KnownBlock, Namespace, Request, RequestId, RetentionHint, Reuse,
    Sampling, SeqFault, StepResult, TierConfig, Write,
};

/// Lists the kinds of events, and names the kind of one. Does not compile if a kind is missing.
macro_rules! kinds {
    ($($kind:ident),+) => {
        const KINDS: &[&str] = &[$(stringify!($kind)),+];

        fn kind(event: &Event) -> &'static str {
            match event {
                $(Event::$kind { .. } => stringify!($kind),)+
            }
        }
    };
}
kinds!(
    Submit,
    Abort,
    Stop,
    Withdraw,
    Fail,
    Accuse,
    WorkerJoined,
    WorkerLost,
    WorkerTaken,
    WorkerResumed,
    DraftsLimited,
    StepFinished,
    TransferFinished,
    TransferFailed,
    TransferInterrupted,
    TransferPartial,
    TierFound,
    TierFoundLater,
    TierResized,
    LookupEnded,
    Tick,
    FlushCache,
    Drain,
    Shutdown
);

/// A request with every field that a recording has.
fn request() -> Request {
    let mut request = Request::new(RequestId((1 << 63) - 1), Namespace::default().root(), vec![0, 7, u32::MAX], 9);
    (request.generated, request.worker_failures, request.suspicion, request.is_accepted) = (vec![5], 1, 2, true);
    (request.min_tokens, request.stop_token_ids, request.tenant, request.priority) = (2, vec![2, 299], 3, -1);
    request.deadline_ns = Some(u64::MAX);
    request.sampling = Sampling { temperature: 0.7, seed: u64::MAX, logprobs: Some(2), ..Sampling::default() };
    (request.h2o, request.reuse, request.shares_cache) =
        (Some(trunkline_core::h2o::Mode::On), Some(Reuse::Anywhere), true);
    request.retention =
        vec![RetentionHint { from: 0, to: 2, priority: 80, ttl_ns: 60_000_000_000, demote: false, pin: false }];
    (request.kv_class, request.continues) = (1, true);
    request
}

fn events() -> Vec<Event> {
    let known = |block| {
        let key = BlockKey { root: u128::MAX, parent: 1, hash: 2, fingerprint: u64::MAX, first_token: 4, group: 1 };
        KnownBlock { block, key, tokens: vec![1, 2, 3, 4] }
    };
    let result = StepResult {
        step: 9,
        tokens: vec![1, 2],
        ends: vec![1, 1, 2],
        scores: vec![0.25, 0.75],
        failed: vec![FailedSeq { seq: 1, fault: SeqFault::NotFinite }],
    };
    let faults = vec![(0, BlockFault::Bad), (2, BlockFault::Refused), (3, BlockFault::Interrupted)];
    vec![
        Event::TierFound { tier: 0, blocks: vec![known(0), known(1)] },
        Event::WorkerJoined,
        Event::Submit(Box::new(request())),
        Event::Submit(Box::new(Request::new(RequestId(0), Namespace::default().root(), vec![1], 1))),
        Event::DraftsLimited(3),
        Event::TierFoundLater { tier: 1, blocks: Vec::new() },
        Event::StepFinished(result),
        Event::StepFinished(StepResult::default()),
        Event::TransferFinished(3),
        Event::TransferFailed(u64::MAX),
        Event::TransferInterrupted(4),
        Event::TransferPartial { transfer: 5, faults },
        Event::TierResized { tier: 0, blocks: 17 },
        Event::LookupEnded { lookup: 6, found: 2 },
        Event::Abort(RequestId(1)),
        Event::Stop(RequestId(2)),
        Event::Fail(RequestId(3)),
        Event::Withdraw(RequestId(4)),
        Event::Accuse(RequestId(5)),
        Event::Tick,
        Event::FlushCache,
        Event::WorkerTaken,
        Event::WorkerResumed,
        Event::WorkerLost,
        Event::Drain,
        Event::Shutdown,
    ]
}

/// Lines of one engine, with every kind of event.
fn of_one() -> Vec<Line> {
    let tier = |name: &str, shared| TierConfig {
        name: name.into(),
        blocks: 64,
        write: Write::Through,
        eviction: "lru".into(),
        shared,
    };
    let config = Config { tiers: vec![tier("host", false), tier("remote", true)], ..Config::default() };
    let mut lines = vec![Line::header(&ClusterConfig::uniform(&config, 1))];
    let event = |(at, event): (u64, Event)| Line::Event { at_ns: 1_000 * at, engine: None, event };
    lines.extend((1..).zip(events()).map(event));
    lines.push(Line::End { end: End { at_ns: 99_000, digest: "00f1e2d3c4b5a697".into(), inputs: None } });
    lines
}

/// Lines of two engines of different roles.
fn of_several() -> Vec<Line> {
    let mut config = ClusterConfig::uniform(&Config::default(), 2);
    config.engines.iter_mut().zip([Role::Prefill, Role::Decode]).for_each(|(engine, role)| engine.role = role);
    config.router = "prefix_affinity:stale_ms=500".into();
    let change = |change| Line::Change { at_ns: 7, engine: EngineId(1), change };
    let event = Line::Event { at_ns: 5, engine: Some(EngineId(1)), event: Event::WorkerJoined };
    let mut lines = vec![Line::header(&config), event];
    lines.extend([Change::Drain, Change::Open, Change::Retire].map(change));
    let inputs = Some("5ab0000000000000".into());
    lines.push(Line::End { end: End { at_ns: 8, digest: "0123456789abcdef".into(), inputs } });
    lines
}

/// Returns the kept lines, and writes those of this program first if there are none and that is asked for.
fn kept(file: &str, made: &[Line]) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file);
    if std::env::var_os("TRUNKLINE_WRITE_GOLDEN").is_some() && !path.exists() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, made.iter().map(|line| line.to_json() + "\n").collect::<String>()).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_owned).collect()
}

/// Returns `true` if nothing of the old value is lost or changed in the new one, which may have further fields.
fn holds(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            old.iter().all(|(key, old)| new.get(key).is_some_and(|new| holds(new, old)))
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| holds(new, old))
        }
        (new, old) => new == old,
    }
}

/// Reads kept lines, and asserts that everything in them was understood. Returns the lines.
fn read(kept: &[String]) -> Vec<Line> {
    let read = |text: &String| {
        let line = Line::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let again = line.to_json();
        let [new, old] = [&again, text].map(|text| serde_json::from_str::<Value>(text).unwrap());
        assert!(holds(&new, &old), "of {text}\nthis was understood: {again}");
        line
    };
    kept.iter().map(read).collect()
}

#[test]
fn a_recording_of_version_4_is_read_with_every_kind_of_event() {
    let kept = kept("v4/recording.jsonl", &of_one());
    assert!(kept[0].starts_with(r#"{"trunkline_recording":4,"#));
    let lines = read(&kept);
    let config = lines[0].clone().cluster().expect("a header").engines[0].core.clone();
    assert_eq!((config.tiers.len(), config.tiers[1].shared), (2, true));
    let of = |line: &Line| if let Line::Event { event, .. } = line { Some(kind(event)) } else { None };
    let seen: BTreeSet<&str> = lines.iter().filter_map(of).collect();
    assert_eq!(seen, KINDS.iter().copied().collect(), "kinds of events");
    assert_eq!(lines[1..], of_one()[1..], "events and the end mean what they meant");
    let mut digest = InputsDigest::default();
    kept.iter().for_each(|line| digest.add(line.as_bytes()));
    assert_eq!(digest.to_string(), "efbd5efadf3031de", "the digest of these lines");
}

#[test]
fn a_recording_of_version_5_is_read_with_engines_and_changes() {
    let kept = kept("v5/recording.jsonl", &of_several());
    assert!(kept[0].starts_with(r#"{"trunkline_recording":5,"#));
    let lines = read(&kept);
    let cluster = lines[0].clone().cluster().expect("a header");
    let roles: Vec<Role> = cluster.engines.iter().map(|engine| engine.role).collect();
    assert_eq!((&roles[..], &cluster.router[..]), (&[Role::Prefill, Role::Decode][..], "prefix_affinity:stale_ms=500"));
    assert_eq!(lines[1..], of_several()[1..]);
}
