//! Timelines read back: what a viewer would be shown agrees with the report.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::Value;
use trunkline_core::{TierConfig, Write};

use trunkline_sim_perf::cost::{CostModel, StepShape, WeightReads};
use trunkline_sim_replay::{Settings, replay_watched};
use trunkline_sim_report::report::Report;
use trunkline_sim_report::timeline::{TimelineWriter, Window};

use super::{SlowPrefill, mixed, settings, trace};

/// The thread of the steps.
const STEPS_THREAD: usize = 1;

/// Replays 200 requests with the timeline written to a file of this name; gives its events.
fn events(name: &str, settings: &Settings, window: Window) -> (Report, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut writer = TimelineWriter::create(&path, &settings.fleet_shape(), window).unwrap();
    let report = replay_watched(&trace(200), settings, &SlowPrefill, &mut writer).unwrap();
    writer.finish().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    if name.ends_with(".gz") {
        let packed = std::mem::take(&mut bytes);
        GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    }
    let mut timeline: Value = serde_json::from_slice(&bytes).unwrap();
    let events = timeline["traceEvents"].take().as_array().unwrap().clone();
    (report, events)
}

/// Replicas with a tier, of which one fails for a while and one for good.
fn eventful() -> Settings {
    let mut settings = settings(3);
    settings.core.device_blocks = 130;
    settings.core.tiers = vec![TierConfig {
        name: "ho\"st".into(),
        blocks: 400,
        write: Write::Through,
        eviction: "lru".into(),
        shared: false,
    }];
    settings.routing.failures = vec!["1@1.9105..5".parse().unwrap(), "2@2.0055".parse().unwrap()];
    settings
}

/// Costs of a model that reads weights in every step, for a third of the time of the step, and waits for a tenth.
struct Reads;

impl CostModel for Reads {
    fn name(&self) -> &'static str {
        "reads"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        SlowPrefill.step_ns(shape)
    }

    fn weight_reads(&self, _: usize, shape: &StepShape) -> WeightReads {
        let step_ns = self.step_ns(shape);
        let (reading_ns, exposed_ns) = (step_ns / 3, step_ns / 10);
        WeightReads { steps: 1, bytes: 1000, reading_ns, exposed_ns, step_ns, failed_reads: 0 }
    }
}

#[test]
fn reads_of_weights_waits_and_computation_have_threads_that_sum_up_to_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let settings = settings(2);
    let mut writer = TimelineWriter::create(&path, &settings.fleet_shape(), Window::ALL).unwrap();
    let report = replay_watched(&trace(50), &settings, &Reads, &mut writer).unwrap();
    writer.finish().unwrap();
    let timeline: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    let sum = |tid: u64, name: &str| -> u64 {
        let slices = of(events, "X").filter(|slice| slice["tid"] == tid && slice["name"] == name);
        slices.map(|slice| ns(&slice["dur"])).sum()
    };
    let weights = report.batches.weights.expect("weights are read");
    assert!(weights.read_bytes > 100_000, "a thousand bytes a step");
    let (read, wait, compute) = (sum(3, "read"), sum(2, "wait"), sum(2, "compute"));
    assert_eq!((read as f64 / 1e9, wait as f64 / 1e9), (weights.reading_s, weights.exposed_s));
    assert_eq!((wait + compute) / wait, 10, "steps wait for a tenth of their time");
    let names = of(events, "M").filter(|event| event["name"] == "thread_name" && event["args"]["name"] != "steps");
    assert_eq!(names.count(), 4, "two threads of each replica");
}

fn of<'a>(events: &'a [Value], phase: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["ph"] == phase)
}

/// Microseconds in the file as nanoseconds.
fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1000.0).round() as u64
}

#[test]
fn slices_of_a_thread_do_not_overlap_and_steps_sum_up_to_the_busy_time() {
    let (report, events) = events("a.json.gz", &eventful(), Window::ALL);
    let mut threads: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    let mut busy_ns = 0;
    let mut cut = 0;
    for slice in of(&events, "X") {
        let thread = (slice["pid"].as_u64().unwrap(), slice["tid"].as_u64().unwrap());
        let (begin_ns, duration_ns) = (ns(&slice["ts"]), ns(&slice["dur"]));
        threads.entry(thread).or_default().push((begin_ns, begin_ns + duration_ns));
        if thread.1 == STEPS_THREAD as u64 {
            busy_ns += duration_ns;
            cut += u64::from(slice["args"]["cut by failure"] == true);
        }
    }
    for (thread, slices) in &mut threads {
        slices.sort_unstable();
        assert!(slices.is_sorted_by(|a, b| a.1 <= b.0), "slices of {thread:?} overlap");
    }
    assert_eq!(threads.len(), 3, "the steps of each replica");
    assert_eq!(cut, 2, "both failures come in the middle of a step");
    assert_eq!(of(&events, "X").filter(|slice| slice["tid"] == STEPS_THREAD).count() as u64, report.batches.steps);
    let busy_s = report.fleet.utilisation * report.duration_s * 3.0;
    assert!((busy_ns as f64 / 1e9 - busy_s).abs() < 1e-9, "{busy_ns} {busy_s}");
}

#[test]
fn every_request_begins_and_ends_and_its_phases_are_inside() {
    let (report, events) = events("a.json", &eventful(), Window::ALL);
    let mut open: HashMap<&str, Vec<(&str, u64)>> = HashMap::new();
    let mut whole = 0;
    for event in events.iter().filter(|event| event["cat"] == "request") {
        let (id, name, at_ns) = (event["id"].as_str().unwrap(), event["name"].as_str().unwrap(), ns(&event["ts"]));
        let stack = open.entry(id).or_default();
        if event["ph"] == "b" {
            assert_eq!(name == "request", stack.is_empty());
            stack.push((name, at_ns));
            continue;
        }
        let (begun, begin_ns) = stack.pop().expect("begun before it ends");
        assert!(begun == name && begin_ns <= at_ns);
        whole += u64::from(name == "request");
    }
    assert!(open.values().all(Vec::is_empty));
    assert_eq!((whole, open.len() as u64), (200, report.completed));
    let e2e: Vec<u64> = of(&events, "b")
        .filter(|event| event["name"] == "request")
        .map(|event| {
            of(&events, "e")
                .find(|end| end["name"] == "request" && end["id"] == event["id"])
                .map(|end| ns(&end["ts"]) - ns(&event["ts"]))
                .unwrap()
        })
        .collect();
    assert!((*e2e.iter().max().unwrap() as f64 / 1e9 - report.latencies.e2e_s.max).abs() < 1e-9);
}

#[test]
fn copies_are_inside_their_time_on_the_way_and_overlap_as_they_share_the_link() {
    let mut settings = eventful();
    // A prompt's blocks take longer than it is to the next prompt now and then, and are under way when replicas fail.
    settings.hardware.host_link_bytes_s = 0.2e9;
    let (report, events) = events("a.json", &settings, Window::ALL);
    let mut copies: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["cat"] == "copy") {
        copies.entry(event["id"].as_str().unwrap()).or_default().push(event);
    }
    // By replica and lane: when bytes moved.
    let mut moved: BTreeMap<(u64, &str), Vec<(u64, u64)>> = BTreeMap::new();
    let mut cut = 0;
    for slices in copies.values() {
        let [outer, .., last] = slices[..] else { panic!("a copy begins and ends: {slices:?}") };
        assert_eq!((&outer["ph"], &last["ph"], &outer["name"]), (&"b".into(), &"e".into(), &last["name"]));
        assert!(slices.iter().all(|slice| slice["pid"] == outer["pid"]));
        assert!(slices.is_sorted_by_key(|slice| ns(&slice["ts"])));
        cut += u64::from(outer["args"]["cut by failure"] == true);
        if let [_, begin, end, _] = slices[..] {
            assert_eq!((&begin["ph"], &end["ph"], &begin["name"]), (&"b".into(), &"e".into(), &end["name"]));
            assert!(begin["name"].as_str().unwrap().starts_with(&format!("{} block", outer["args"]["blocks"])));
            let lane = (outer["pid"].as_u64().unwrap(), outer["name"].as_str().unwrap());
            moved.entry(lane).or_default().push((ns(&begin["ts"]), ns(&end["ts"])));
        }
    }
    let mut together = 0;
    let mut busy_ns: BTreeMap<&str, u64> = BTreeMap::new();
    for ((_, lane), spans) in &mut moved {
        spans.sort_unstable();
        let mut until_ns = 0;
        for (begin_ns, end_ns) in spans {
            together += u32::from(*begin_ns < until_ns);
            *busy_ns.entry(*lane).or_default() += *end_ns - until_ns.clamp(*begin_ns, *end_ns);
            until_ns = until_ns.max(*end_ns);
        }
    }
    let [link_out, link_in] = [report.tiers[0].link_out, report.tiers[0].link_in];
    assert_eq!(copies.len() as u64, link_out.transfers + link_in.transfers);
    assert!(together > 0 && cut > 0, "{together} overlap, {cut} are cut");
    let busy_s = |lane: &str| busy_ns[lane] as f64 / 1e9;
    assert!((busy_s("to ho\"st") - link_out.busy_s).abs() < 1e-9, "{busy_ns:?} {}", link_out.busy_s);
    assert!((busy_s("from ho\"st") - link_in.busy_s).abs() < 1e-9, "{busy_ns:?} {}", link_in.busy_s);
}

#[test]
fn processes_threads_and_failures_are_named() {
    let (_, events) = events("a.json", &eventful(), Window::ALL);
    let names = |name: &str| -> Vec<&str> {
        of(&events, "M").filter(|it| it["name"] == name).map(|it| it["args"]["name"].as_str().unwrap()).collect()
    };
    assert_eq!(names("process_name"), ["replica 0", "replica 1", "replica 2"]);
    assert_eq!(names("thread_name"), ["steps"; 3]);
    let instants: Vec<_> = of(&events, "i").map(|it| (it["name"].as_str().unwrap(), ns(&it["ts"]))).collect();
    assert_eq!(instants, [("failed", 1_910_500_000), ("failed", 2_005_500_000), ("back", 5_000_000_000)]);
    let blocks = of(&events, "C").filter(|it| it["name"] == "KV blocks" && it["args"]["free"] != 0);
    for counter in blocks {
        let sum: u64 = counter["args"].as_object().unwrap().values().map(|it| it.as_u64().unwrap()).sum();
        assert_eq!(sum, 130);
    }
}

#[test]
fn replicas_of_every_kind_have_a_process() {
    let (report, events) = events("a.json", &mixed(), Window::ALL);
    let steps = |pid: u64| of(&events, "X").filter(|it| it["pid"] == pid).count();
    let processes = of(&events, "M").filter(|it| it["name"] == "process_name").count();
    assert_eq!(processes, 3);
    let all: Vec<_> = of(&events, "M").filter(|it| it["name"] == "process_name").map(|it| it["pid"].as_u64()).collect();
    assert_eq!(all.iter().map(|pid| steps(pid.unwrap()) as u64).sum::<u64>(), report.batches.steps);
}

#[test]
fn a_window_shows_what_overlaps_with_it() {
    let window = Window { from_ns: 4_000_000_000, to_ns: 6_000_000_000 };
    let (_, all) = events("a.json", &eventful(), Window::ALL);
    let (_, some) = events("a.json", &eventful(), window);
    let inside = |slice: &&Value| {
        let begin_ns = ns(&slice["ts"]);
        begin_ns < window.to_ns && begin_ns + ns(&slice["dur"]) >= window.from_ns
    };
    let expected: Vec<_> = of(&all, "X").filter(inside).collect();
    assert!(!expected.is_empty() && expected.len() < of(&all, "X").count());
    assert_eq!(of(&some, "X").collect::<Vec<_>>(), expected);
    assert_eq!(of(&some, "b").count(), of(&some, "e").count());
}

#[test]
fn a_file_that_cannot_be_is_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none").join("a.json");
    let message = TimelineWriter::create(&path, &settings(1).fleet_shape(), Window::ALL).err().unwrap().to_string();
    assert!(message.starts_with(&format!("cannot write the timeline to {}: ", path.display())), "{message}");
    assert!(!message.contains('\n'));
}

#[test]
fn starts_and_stops_are_instants() {
    let mut settings = settings(3);
    let policy = "load:max=3,target=2,interval_s=1,start_delay_s=1,stabilisation_s=0".into();
    settings.routing.autoscale = Some(trunkline_sim_replay::autoscale::Autoscale { policy, initial: 1 });
    let (report, events) = events("b.json", &settings, Window::ALL);
    let service = report.fleet.service.unwrap();
    let count = |name: &str| of(&events, "i").filter(|event| event["name"] == name).count() as u64;
    assert_eq!(count("ordered") + count("reopened"), service.starts);
    assert!(count("draining") <= service.stops && count("started") > 0 && count("stopped") > 0, "{service:?}");
}
