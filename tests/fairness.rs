//! Shares of clients: nobody fills the queue or the batch for all others.

use std::sync::{Arc, Mutex};

use tonic::Code;
use trunkline_core::Config;
use trunkline_tests::server::{TestServer, collect, gated, greedy};

/// A server with steps one by one, two sequences in each, and fair shares.
fn config() -> Config {
    Config { device_blocks: 512, max_batch_size: 2, policy: "vtc".into(), ..Config::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_fills_its_share_of_the_queue_and_no_more() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |options| options.queue_per_client = Some(3), wrap).await;
    let (mut greedy_one, mut other) = (server.client_from(2).await, server.client_from(3).await);
    let mut streams = Vec::new();
    for at in 0..3 {
        streams.push(greedy_one.open(greedy(&format!("mine {at}"), 2)).await.unwrap());
    }
    let status = greedy_one.open(greedy("one more", 2)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.message(),
        "this client has 3 requests that wait for their first token, which is the limit; try again later"
    );
    let status = server.client_from(2).await.open(greedy("one more", 2)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "another connection of the same address");
    streams.push(other.open(greedy("other", 2)).await.unwrap());

    drop(gate);
    for stream in streams {
        collect(stream).await.unwrap();
    }
    greedy_one.ask(greedy("one more", 2)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_has_so_many_open_requests_and_no_more() {
    let server = TestServer::start_options(config(), |options| options.requests_per_client = Some(1), |w| Box::new(w));
    let server = server.await;
    let (mut client, mut other) = (server.client_from(2).await, server.client_from(3).await);
    let mut stream = client.open(greedy("long", 4000)).await.unwrap();
    stream.message().await.unwrap().unwrap();
    let status = client.open(greedy("one more", 2)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "this client has 1 open requests, which is the limit; try again later");
    other.ask(greedy("other", 2)).await.unwrap();
    drop(stream);
    client.until(|info| info.counters.unwrap().finished == 2).await;
    client.ask(greedy("one more", 2)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_ends_without_a_token_leaves_its_share() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |options| options.queue_per_client = Some(2), wrap).await;
    let mut client = server.client_from(2).await;
    let streams = [client.open(greedy("a", 2)).await.unwrap(), client.open(greedy("b", 2)).await.unwrap()];
    assert_eq!(client.open(greedy("c", 2)).await.unwrap_err().code(), Code::ResourceExhausted);
    drop(streams);
    client.until(|info| info.counters.unwrap().finished == 2).await;
    let stream = client.open(greedy("c", 2)).await.unwrap();
    drop(gate);
    collect(stream).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_addresses_have_fair_shares() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |_| {}, wrap).await;
    let (mut many, mut few) = (server.client_from(2).await, server.client_from(3).await);
    let ended = Arc::new(Mutex::new(Vec::new()));
    let read = |name: &'static str, stream| {
        let ended = ended.clone();
        tokio::spawn(async move {
            collect(stream).await.unwrap();
            ended.lock().unwrap().push(name);
        })
    };
    let mut tasks = vec![read("first", many.open(greedy("first", 2)).await.unwrap())];
    // The first step runs the first request alone.
    few.until(|info| info.counters.unwrap().steps == 1).await;
    for at in 0..7 {
        tasks.push(read("flood", many.open(greedy(&format!("flood {at}"), 2)).await.unwrap()));
    }
    tasks.push(read("single", few.open(greedy("single", 2)).await.unwrap()));
    for _ in 0..3 {
        gate.send(()).unwrap();
    }
    few.until(|_| ended.lock().unwrap().len() == 2).await;
    let mut names = ended.lock().unwrap().clone();
    // Two steps end both; the tasks that read their streams may write the names in either order.
    names.sort_unstable();
    assert_eq!(names, ["first", "single"], "the single request passes the flood");
    drop(gate);
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_of_one_client_keep_nobody_else_waiting() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(Config { max_batch_size: 8, ..config() }, |_| {}, wrap).await;
    let (mut greedy_one, mut other) = (server.client_from(2).await, server.client_from(3).await);
    let mut unread = Vec::new();
    for at in 0..300 {
        unread.push(greedy_one.open(greedy(&format!("mine {at}"), 900)).await.unwrap());
    }
    let mut steps = 1;
    let mut answer = || {
        gate.send(()).unwrap();
        steps += 1;
        steps
    };
    // The batch is full of the first client's long answers.
    for _ in 0..20 {
        let begun = answer();
        other.until(|info| info.counters.unwrap().steps == begun).await;
    }
    for ended in 1..=5 {
        let stream = other.open(greedy(&format!("short {ended}"), 20)).await.unwrap();
        let mut taken = 0;
        while other.info().await.counters.unwrap().finished < ended {
            let begun = answer();
            other.until(|info| info.counters.unwrap().steps == begun).await;
            taken += 1;
        }
        // One step runs on without it, one leaves out who gives the place up, and one is in flight.
        assert!(taken <= 23, "answer {ended} of 20 tokens took {taken} steps");
        assert_eq!(collect(stream).await.unwrap().token_ids.len(), 20);
    }
    drop(gate);
    drop(unread);
}
