//! `serve --simulate`, end to end through gRPC, under a clock that passes at once.

use tonic::transport::{Channel, Endpoint};
use trunkline_server::Outcome;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, Sampling, Stopping, TokenIds};
use trunkline_sim_replay::recorded::replay_recorded;

use super::tests::given;
use super::*;
use crate::simulated::clock::ManualTime;

/// Answer to a request: text, number of tokens, cached tokens of the prompt.
type Answer = (String, u32, u32);

/// Serves with `flags`, asks for all prompts one after another, `max_tokens` each, and stops. Returns the answers, the end of the run, and the
/// simulated time.
fn run(flags: &[&str], prompts: &[&[u32]], max_tokens: u32) -> (Vec<Answer>, Outcome, u64) {
    let settings = given(flags);
    let engines = Engines::of(&settings, 1).unwrap();
    let clock = Arc::new(ManualTime::default());
    let simulation = settings.simulate.simulation(settings.model.as_deref()).unwrap().unwrap();
    refuse_beside_simulation(&settings, &engines).unwrap();
    let made = simulated(&settings, engines.workers(), simulation, clock.clone()).unwrap();
    let options = Options { record: settings.record.clone(), ..Options::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (answers, outcome) = runtime.block_on(async {
        let listener = listen("127.0.0.1:0").await.unwrap();
        let server = with_embedded(listener, &settings, &engines, made, options).await.unwrap();
        let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
        let serving = tokio::spawn(server.run());
        let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        let mut answers = Vec::new();
        for prompt in prompts {
            answers.push(ask(InferenceClient::new(channel.clone()), prompt, max_tokens).await);
        }
        handle.drain().await;
        (answers, serving.await.unwrap().unwrap())
    });
    (answers, outcome, clock.now_ns())
}

async fn ask(mut client: InferenceClient<Channel>, prompt: &[u32], max_tokens: u32) -> Answer {
    let request = GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: prompt.to_vec() })),
        stopping: Some(Stopping { max_tokens: Some(max_tokens), ..Stopping::default() }),
        sampling: Some(Sampling { seed: Some(11), ..Sampling::default() }),
        ..GenerateRequest::default()
    };
    let (mut text, mut tokens, mut cached) = (String::new(), 0, 0);
    let mut stream = client.generate(request).await.unwrap().into_inner();
    while let Some(message) = stream.message().await.unwrap() {
        match message.event {
            Some(Event::Chunk(chunk)) => {
                text += &chunk.text;
                tokens += chunk.token_ids.len() as u32;
            }
            Some(Event::Finish(finished)) => cached = finished.usage.unwrap().cached_tokens,
            _ => {}
        }
    }
    (text, tokens, cached)
}

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 97 + (seed + i) % 26).collect()
}

#[test]
fn a_simulated_server_answers_and_its_recording_replays() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let flag = format!("--record={}", record.display());
    let (one, other) = (prompt(0, 200), prompt(5, 100));
    let (answers, outcome, took_ns) = run(&["--simulate=h100-80g", &flag], &[&one, &other, &one], 30);
    assert!(answers.iter().all(|(text, tokens, _)| *tokens == 30 && *text == answers[0].0), "{answers:?}");
    assert_eq!(answers.iter().map(|(.., cached)| *cached).collect::<Vec<_>>(), [0, 0, 192]);
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    // 90 steps, each of which reads 16 GB of weights at no more than 3.35 TB/s.
    assert!(took_ns > 90 * 4_700_000, "{took_ns}");
}

#[test]
fn blocks_fit_the_device_and_costs_are_those_of_replay() {
    let made = |flags: &[&str]| {
        let settings = given(flags);
        let simulation = settings.simulate.simulation(settings.model.as_deref()).unwrap().unwrap();
        simulated(&settings, 1, simulation, Arc::new(ManualTime::default())).unwrap()
    };
    let (config, backend) = made(&["--simulate=h100-80g"]);
    assert_eq!(
        (config.device_blocks, config.max_batch_tokens, config.swap_block_ns),
        (29_043, MAX_BATCH_TOKENS, 38_131)
    );
    assert_eq!((backend.model.name.as_str(), backend.model.vocab_size), ("llama-3.1-8b", 128_256));
    let (config, backend) = made(&["--simulate=h100-80g", "--device-blocks=77", "--host-mem=1GiB"]);
    // Blocks of 2 MiB: half a thousand in host memory.
    assert_eq!((config.device_blocks, config.host_blocks, config.tiers[0].blocks), (77, 512, 512));
    assert_eq!(backend.stores.len(), 1);
}

#[test]
fn an_echo_ends_with_the_prompt() {
    let (answers, ..) = run(&["--simulate=l4-24g", "--simulate-text=echo"], &[&prompt(0, 20), &prompt(3, 20)], 25);
    let texts: Vec<&str> = answers.iter().map(|(text, ..)| text.as_str()).collect();
    assert_eq!(texts, ["abcdefghijklmnopqrst", "defghijklmnopqrstuvw"]);
}

#[test]
fn preempted_and_moved_requests_have_the_same_text() {
    let long = prompt(0, 160);
    let (plain, ..) = run(&["--simulate=h100-80g"], &[&long], 60);
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let flag = format!("--record={}", record.display());
    let flags = ["--simulate=h100-80g", "--roles=prefill,decode", "--shared-mem=1GiB", &flag];
    let (apart, outcome, _) = run(&flags, &[&long, &long], 60);
    assert_eq!((&apart[0].0, &apart[1].0), (&plain[0].0, &plain[0].0));
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    let (swapped, ..) = run(&["--simulate=h100-80g", "--workers=2", "--host-mem=1GiB"], &[&long, &long], 60);
    assert_eq!((&swapped[0].0, &swapped[1].0), (&plain[0].0, &plain[0].0));
}

#[test]
fn what_a_simulated_device_cannot_have_is_refused_in_one_line() {
    let refused = |flag: &str| {
        let settings = given(&["--simulate=h100-80g", flag]);
        let engines = Engines::of(&settings, 1).unwrap();
        refuse_beside_simulation(&settings, &engines).unwrap_err().to_string()
    };
    assert_eq!(refused("--worker=null"), "worker does not go with simulate: simulate names the workers");
    assert_eq!(
        refused("--attached-workers=1"),
        "attached-workers does not go with simulate: all workers are simulated"
    );
    assert_eq!(refused("--h2o=on"), "h2o does not go with simulate: a simulated device has no attention scores");
    for flag in ["--threads=2", "--kv-dtype=f16", "--disk=/d", "--remote=file:///r"] {
        assert!(refused(flag).contains(" does not go with simulate: "), "{flag}");
    }
}
