//! Servers that send steps ahead of results (asynchronous scheduling): the same text as with one step at a time.

use trunkline_core::{Config, Preemption};
use trunkline_server::proto::{FinishReason, GenerateRequest, Sampling, Stopping};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::server::{Answer, Faulty, TestServer, collect, gated, greedy};

const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";

fn limits(max_steps_in_flight: u32) -> Config {
    Config { device_blocks: 64, max_batch_tokens: 300, max_steps_in_flight, ..Config::default() }
}

/// Greedy and sampled requests, some with penalties and biases, some that a stop string or a stop token may end.
fn requests() -> Vec<GenerateRequest> {
    let request = |i: usize| {
        let mut request = greedy(&format!("{} Branch {}, leaf {i}.", &TRUNK[..20 + 15 * (i % 5)], i % 7), 40);
        if i.is_multiple_of(2) {
            request.sampling = Some(Sampling {
                temperature: Some(0.9),
                seed: Some(i as u64),
                repetition_penalty: i.is_multiple_of(4).then_some(1.2),
                frequency_penalty: (i % 3) as f32 / 4.0,
                presence_penalty: if i.is_multiple_of(4) { 0.0 } else { 0.5 },
                logit_bias: [(101, (i % 5) as f32)].into(),
                ..Sampling::default()
            });
        }
        if i.is_multiple_of(3) {
            request.stopping =
                Some(Stopping { max_tokens: Some(60), stop_token_ids: (97..110).collect(), ..Stopping::default() });
        }
        request
    };
    (0..20).map(request).collect()
}

/// Sends all requests to a server, one after another, opens the `gate` of the worker if there is one, and reads all answers.
async fn answers<G>(server: &TestServer, gate: G) -> Vec<(Vec<u32>, FinishReason)> {
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for request in requests() {
        streams.push(client.open(request).await.unwrap());
    }
    drop(gate);
    let mut answers = Vec::new();
    for stream in streams {
        let Answer { token_ids, reason, .. } = collect(stream).await.unwrap();
        answers.push((token_ids, reason));
    }
    client.settled().await;
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_sent_ahead_give_the_same_text_and_replay() {
    let one = TestServer::start(limits(1)).await;
    let expected = answers(&one, ()).await;
    one.drain().await;
    assert!(expected.iter().any(|(_, reason)| *reason == FinishReason::Stop), "some end before their last token");
    let folder = tempfile::tempdir().unwrap();
    for ahead in [2, 4] {
        for tight in [false, true] {
            let mut config = limits(ahead);
            if tight {
                // Blocks run out, so that requests are preempted, swapped and computed again.
                (config.device_blocks, config.host_blocks, config.launch_watermark) = (22, 16, 0.0);
                config.preemption = Preemption::Swap;
            }
            let path = folder.path().join(format!("{ahead}-{tight}.jsonl"));
            // All requests are there before the first step ends.
            let (wrap, gate) = gated();
            let server = TestServer::start_with(config, Some(path.clone()), wrap).await;
            assert_eq!(answers(&server, gate).await, expected, "{ahead} steps in flight, tight: {tight}");
            let outcome = server.drain().await;
            assert_eq!(outcome.stats.preemptions > 0, tight);
            let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
            assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_takes_the_steps_behind_it_along() {
    let one = TestServer::start(limits(1)).await;
    let expected = answers(&one, ()).await;
    one.drain().await;
    let wrap = |worker| -> Box<dyn trunkline_port::StepRunner> {
        Box::new(Faulty { worker, fails_at: vec![9], panics_at: vec![25], panics_at_reset: false })
    };
    let server = TestServer::start_with(limits(3), None, wrap).await;
    assert_eq!(answers(&server, ()).await, expected, "every request starts over with the tokens that it has");
    server.drain().await;
}
