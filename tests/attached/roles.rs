//! Workers that prefill and workers that decode: who waits for whom.

use std::time::Duration;

use trunkline_cluster::Role;
use trunkline_tests::attached::{Attached, Wire, hello};
use trunkline_tests::server::{collect, greedy};

use super::{ask_all, attaching, check, forever, gone, launch, prompts};

#[tokio::test(flavor = "multi_thread")]
async fn with_roles_requests_wait_for_a_prefill_worker_and_for_no_decode_worker() {
    let prompts = prompts(4);
    let mut options = attaching(2);
    options.attach.resume = Duration::ZERO;
    (options.cluster.engines[0].role, options.cluster.engines[1].role) = (Role::Prefill, Role::Decode);
    let server = launch(options).await;
    let wire = Wire::to(server.addr()).await;
    let prefill = Attached::fresh(wire.addr, "prefill").await;
    assert_eq!(prefill.session.engine, 0);
    let prefill = tokio::spawn(prefill.serve());
    let mut client = server.client().await;
    // Nobody decodes: requests stay on the prefill engine.
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    let decode = forever(&server, "decode");
    client.until(|info| info.engines[1].worker.is_some()).await;
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    assert_eq!(client.settled().await.engines[1].counters.unwrap().accepted, 4, "handed over");
    wire.cut();
    prefill.await.unwrap();
    client.until(|info| info.engines[0].worker.is_none()).await;
    // Nobody prefills: requests wait, and are not refused.
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    client.until(|info| info.engines[0].requests == 4).await;
    let next = forever(&server, "next");
    check(&answers.await.unwrap(), &prompts).await;
    client.settled().await;
    server.drain().await;
    next.await.unwrap();
    decode.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_comes_back_does_not_end_the_wait_for_a_prefill_worker() {
    let prompts = prompts(2);
    let mut options = attaching(2);
    (options.cluster.engines[0].role, options.cluster.engines[1].role) = (Role::Prefill, Role::Decode);
    let server = launch(options).await;
    let prefill = Attached::fresh(server.addr(), "prefill").await;
    let wire = Wire::to(server.addr()).await;
    let decode = Attached::fresh(wire.addr, "decode").await;
    prefill.leave().await;
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_none()).await;
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    client.until(|info| info.engines[0].requests == 2).await;
    wire.cut();
    let device = decode.abandon();
    gone(&mut client, 1).await;
    let decode = Attached::attach(wire.addr, hello("decode"), device).await.map_err(|(status, _)| status).unwrap();
    assert!(decode.session.resumed);
    let decode = tokio::spawn(decode.serve());
    let late = client.open(greedy(&prompts[0], 24)).await.unwrap();
    client.until(|info| info.engines[0].requests == 3).await;
    let prefill = forever(&server, "next");
    check(&answers.await.unwrap(), &prompts).await;
    check(&[collect(late).await.unwrap()], &prompts[..1]).await;
    server.drain().await;
    prefill.await.unwrap();
    decode.await.unwrap();
}
