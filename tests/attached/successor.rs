//! Successors of workers that leave in order.

use trunkline_attach::wire::to_worker;
use trunkline_server::proto::EngineState;
use trunkline_tests::attached::Attached;

use super::{ask_all, attaching, check, forever, gone, launch, prompts};

/// Requests find blocks that a step under way is to fill, so the KV of the worker cannot be kept when it leaves with the step.
#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_worker_that_left_with_a_step_under_way_gets_requests() {
    let prompts = prompts(8);
    let mut options = attaching(2);
    options.cluster.engines.iter_mut().for_each(|engine| engine.core.worker.in_step_hits = true);
    let server = launch(options).await;
    let mut leaving = Attached::fresh(server.addr(), "a").await;
    let engine = leaving.session.engine as usize;
    let staying = forever(&server, "b");
    let mut client = server.client().await;
    client.until(|info| info.engines.iter().all(|engine| engine.worker.is_some())).await;
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    leaving.serve_until(|job, _| matches!(job, to_worker::Message::Step(_))).await.unwrap();
    leaving.leave().await;
    check(&answers.await.unwrap(), &prompts).await;
    gone(&mut client, engine).await;
    let before = client.settled().await.engines[engine].counters.unwrap().accepted;
    let successor = forever(&server, "c");
    client.until(|info| info.engines[engine].worker.is_some()).await;
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    let info = client.settled().await;
    assert!(info.engines.iter().all(|engine| engine.state() == EngineState::Up), "{:?}", info.engines);
    assert!(info.engines[engine].counters.unwrap().accepted > before);
    server.drain().await;
    for worker in [staying, successor] {
        worker.await.unwrap();
    }
}
