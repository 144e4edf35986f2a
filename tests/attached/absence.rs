//! Waits for workers whose connections broke.

use std::time::Duration;

use trunkline_tests::attached::{Attached, Wire};

use super::{ask_all, attaching, check, forever, launch, prompts};

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_killed_worker_wait_no_longer_than_computing_them_elsewhere_takes() {
    let prompts = prompts(8);
    let mut options = attaching(2);
    // A time that no test reaches: only the other worker can end the wait.
    options.attach.resume = Duration::from_secs(24 * 3600);
    let server = launch(options).await;
    let wire = Wire::to(server.addr()).await;
    let mut a = Attached::fresh(wire.addr, "a").await;
    let mut client = server.client().await;
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    client.until(|info| info.engines[0].requests == 8).await;
    a.serve_until(|_, steps| steps == 5).await.unwrap();
    wire.cut();
    // Alone, the requests wait; with another worker they move.
    client.until(|info| info.engines[0].worker.as_ref().is_some_and(|worker| !worker.connected)).await;
    assert_eq!(client.info().await.engines[0].requests, 8, "nowhere to go");
    let b = forever(&server, "b");
    check(&answers.await.unwrap(), &prompts).await;
    assert!(client.settled().await.engines[0].worker.is_none(), "the seat is free for a successor");
    // The same with the other worker there from the start.
    let mut c = Attached::fresh(wire.addr, "c").await;
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    c.serve_until(|_, steps| steps == 2).await.unwrap();
    wire.cut();
    check(&answers.await.unwrap(), &prompts).await;
    client.settled().await;
    server.drain().await;
    b.await.unwrap();
}
