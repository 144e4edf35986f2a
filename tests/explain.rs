//! Explanations of seeded recordings of a cluster under pressure: the parts of each request add up to its time.
//!
//! `TRUNKLINE_SEEDS=10000 cargo test -p trunkline-tests --test explain` explains more of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use trunkline_cluster::record::{End, Line};
use trunkline_cluster::{Cluster, ClusterConfig, Input, Output};
use trunkline_core::{Action, Event, Refusal, RequestId};
use trunkline_driver::seeds::Sample;
use trunkline_sim_replay::explain::{Explained, Of, Part, explain};
use trunkline_sim_replay::rerun::{Script, Timing, Until};
use trunkline_tests::cluster_pressure::recorded;

const SEEDS_DEFAULT: usize = 100;

/// Arrival, first token and end of a request, nanoseconds.
type Times = (u64, Option<u64>, u64);

fn write(path: &Path, cluster: &ClusterConfig, inputs: &[(u64, Input)], digest: u64) {
    let mut text = Line::header(cluster).to_json() + "\n";
    for (at_ns, input) in inputs {
        writeln!(text, "{}", Line::of(*at_ns, input, cluster.engines.len()).to_json()).unwrap();
    }
    let end =
        End { at_ns: inputs.last().map_or(0, |(at_ns, _)| *at_ns), digest: format!("{digest:016x}"), inputs: None };
    fs::write(path, text + &Line::End { end }.to_json() + "\n").unwrap();
}

/// Returns the times of the requests as clients see them.
fn measure(config: &ClusterConfig, inputs: &[(u64, Input)]) -> BTreeMap<RequestId, Times> {
    let mut cluster = Cluster::new(config).unwrap();
    let block_size = config.engines[0].core.block_size;
    let mut times: BTreeMap<RequestId, Times> = BTreeMap::new();
    let mut outputs = Vec::new();
    for (at_ns, input) in inputs {
        let mut input = input.clone();
        if let Input::Client(Event::Submit(request)) | Input::Engine(_, Event::Submit(request)) = &mut input {
            request.hashes.clear();
            request.hash_prompt(block_size);
            times.insert(request.id, (*at_ns, None, 0));
        }
        cluster.handle(*at_ns, input, &mut outputs);
        for output in outputs.drain(..) {
            let (Output::Engine(_, action) | Output::Cluster(action)) = output else { continue };
            match action {
                Action::Token { request, .. } => {
                    times.get_mut(&request).unwrap().1.get_or_insert(*at_ns);
                }
                Action::Finish { request, .. } => times.get_mut(&request).unwrap().2 = *at_ns,
                Action::Refuse { request, refusal } => {
                    assert_ne!(refusal, Refusal::DuplicateId);
                    times.remove(&request);
                }
                _ => {}
            }
        }
    }
    times
}

fn check(seed: u64, explained: &Explained, (submitted_ns, first_ns, end_ns): Times) {
    let about = format!("seed {seed}, request {}: {explained:?}", explained.id);
    assert_eq!(explained.parts.total(), end_ns - submitted_ns, "{about}");
    assert_eq!(explained.e2e_ns(), end_ns - submitted_ns, "{about}");
    assert_eq!(explained.ttft_ns(), first_ns.map(|ns| ns - submitted_ns), "{about}");
    assert_eq!(explained.before_first_token.total(), explained.ttft_ns().unwrap_or(0), "{about}");
    let waited: u64 = explained.waits.iter().map(|wait| wait.ns).sum();
    let worked: u64 = explained.parts.iter().filter(|(part, _)| part.is_work()).map(|(_, ns)| ns).sum();
    assert_eq!((waited + worked, explained.waits_left_out), (explained.e2e_ns(), 0), "{about}");
    assert!(explained.waits.windows(2).all(|pair| pair[0].from_ns + pair[0].ns <= pair[1].from_ns), "{about}");
    let blamed: u64 = explained.blamed.iter().map(|blamed| blamed.total_ns()).sum();
    assert!(blamed <= explained.e2e_ns() && explained.blamed.iter().all(|it| it.request != explained.id), "{about}");
}

#[test]
fn the_parts_of_every_request_add_up_to_its_time() {
    let sample = Sample::from_env(11, SEEDS_DEFAULT);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    let mut seen: BTreeMap<Part, u64> = BTreeMap::new();
    let (mut requests, mut whys, mut misses) = (0, BTreeMap::new(), 0);
    for seed in &sample.seeds {
        let (cluster, inputs, digest) = recorded(*seed, sample.requests);
        write(&path, &cluster, &inputs, digest);
        let found = explain(&path, &Of::All, &mut |_| {}).unwrap();
        assert_eq!(found.replayed.matches, Some(true), "seed {seed}");
        let times = measure(&cluster, &inputs);
        let ended: Vec<_> = found.requests.iter().filter(|it| !it.end.starts_with("refused")).collect();
        assert_eq!(ended.len(), times.len(), "seed {seed}");
        for explained in ended {
            check(*seed, explained, times[&explained.id]);
            explained.parts.iter().for_each(|(part, _)| *seen.entry(part).or_default() += 1);
            let whole = explained.waits.iter().filter_map(|wait| wait.why);
            whole.for_each(|why| {
                *whys.entry(why.to_string().split(':').next_back().unwrap().trim().to_owned()).or_insert(0) += 1
            });
            misses += u64::from(explained.miss.is_some());
            requests += 1;
        }
        // A run without a change is the recorded one, whatever workers answered.
        let script = Script::load(&path, &mut |_| {}).unwrap();
        let again = script.rerun(&[], Timing::Recorded, Until::End).unwrap();
        assert_eq!((again.digest, again.first_difference), (digest, None), "seed {seed}");
        let slowest = explain(&path, &Of::Slowest(3), &mut |_| {}).unwrap().requests;
        let longest = times.values().map(|(submitted_ns, _, end_ns)| end_ns - submitted_ns).max();
        assert_eq!(slowest.first().map(Explained::e2e_ns), longest, "seed {seed}");
    }
    eprintln!("{requests} requests, {misses} with a miss; parts {seen:?}; waits {whys:?}");
    if sample.is_whole(SEEDS_DEFAULT) {
        // The runs must have been under pressure, or they prove nothing.
        // A core begins a step as soon as it can, so nothing is idle unless its driver is slow.
        assert!(Part::ALL.iter().all(|part| seen.contains_key(part) || *part == Part::Idle), "{seen:?}");
        assert!(whys.len() >= 5 && misses > requests / 4, "{whys:?}, {misses}");
    }
}
