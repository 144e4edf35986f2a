//! Publishes the cache events of a core whose worker answers every step at once, for a look at the wire from outside:
//!
//! `cargo run -p trunkline-events --example publish -- 5557 20`, and `src/events/check/subscriber.py` alongside it. The arguments are the first of three ports
//! and seconds. Of each second, it says how many blocks were stored.

use std::error::Error;
use std::time::{Duration, Instant};

use trunkline_cluster::{Cluster, ClusterConfig, EngineId, Input, Output};
use trunkline_core::{Action, CacheEvent, Config, Event, Namespace, Request, RequestId, StepResult};
use trunkline_events::{Publisher, Settings};

/// Requests in a second: of 800 blocks each 10 are evicted again.
const REQUESTS: u64 = 10;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let port: u16 = args.next().unwrap_or_default().parse().unwrap_or(5557);
    let seconds: u64 = args.next().unwrap_or_default().parse().unwrap_or(20);
    let at = |n: u16| Some(format!("tcp://127.0.0.1:{}", port + n));
    let settings = Settings {
        endpoint: at(0),
        replay_endpoint: at(1),
        snapshot_endpoint: at(2),
        topic: "kv@here@made".into(),
        ..Settings::default()
    };
    let config = Config { device_blocks: 800, max_context: 1024, ..Config::default() };
    let publisher = Publisher::new(settings);
    trunkline_cluster::CacheListener::begin(&publisher, &[&config])?;
    println!("{:?}", publisher.sources());
    let mut cluster = Cluster::new(&ClusterConfig::uniform(&config, 1))?;
    cluster.listen_to_caches();
    let mut inputs = vec![Input::Engine(EngineId(0), Event::WorkerJoined)];
    let begun = Instant::now();
    for n in 0..seconds * REQUESTS {
        let prompt = (0..512).map(|at| ((n % 7) * 1000 + at + (at / 256) * n) as u32).collect();
        let mut request = Request::new(RequestId(n), Namespace::default().root(), prompt, 2);
        request.hash_prompt(config.block_size);
        inputs.push(Input::Client(Event::Submit(Box::new(request))));
        let mut stored = 0;
        while let Some(input) = inputs.pop() {
            stored += apply(&mut cluster, &publisher, input, begun, &mut inputs);
        }
        if n % REQUESTS == 0 {
            println!("{n} requests, {stored} blocks stored by the last");
        }
        std::thread::sleep(Duration::from_millis(1000 / REQUESTS));
    }
    Ok(())
}

/// Delivers an input, publishes the changes, and answers the steps. Returns the number of blocks stored.
fn apply(cluster: &mut Cluster, publisher: &Publisher, input: Input, begun: Instant, inputs: &mut Vec<Input>) -> usize {
    let mut outputs = Vec::new();
    cluster.handle(begun.elapsed().as_nanos() as u64, input, &mut outputs);
    for output in outputs {
        if let Output::Engine(engine, Action::RunStep(step)) = output {
            let mut result = StepResult { step: step.id, ..StepResult::default() };
            step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
            inputs.push(Input::Engine(engine, Event::StepFinished(result)));
        }
    }
    let events = cluster.take_cache_events(EngineId(0));
    let stored = |event: &CacheEvent| if let CacheEvent::Stored(stored) = event { stored.hashes.len() } else { 0 };
    let n = events.iter().map(stored).sum();
    if !events.is_empty() {
        trunkline_cluster::CacheListener::changed(publisher, EngineId(0), events);
    }
    n
}
