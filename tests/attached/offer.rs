//! Requests beyond the abilities of the workers.

use std::sync::Arc;

use tonic::Code;
use trunkline_attach::Hello;
use trunkline_cluster::ClusterConfig;
use trunkline_server::proto::GenerateRequest;
use trunkline_server::proto::sampling::Structure;
use trunkline_server::{Backend, MakeWorker, SamplingOffer, WorkerError};
use trunkline_tests::attached::{Attached, dial, hello};
use trunkline_tests::server::{Client, TestServer, greedy};
use trunkline_text::Tokenizer;

use super::{ask_all, attaching, check, prompts};

/// Checks that a request which needs scores is refused. A worker without them would fail the step, and lose the KV of all requests.
pub(super) async fn assert_refuses_h2o(client: &mut Client) {
    for mode in ["probe", "on"] {
        let status = client.ask(GenerateRequest { h2o: mode.into(), ..greedy("a", 1) }).await.unwrap_err();
        let line = format!("h2o is '{mode}'; the workers of this server report no attention scores");
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, line.as_str()));
    }
    client.ask(GenerateRequest { h2o: "off".into(), ..greedy("a", 1) }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_worker_that_is_accepted_decides_about_the_model() {
    let decide = |hello: &Hello| -> Result<(Backend, ClusterConfig), WorkerError> {
        if hello.name == "small" {
            return Err("too small".into());
        }
        let workers: MakeWorker = Arc::new(|_| Err("no embedded workers".into()));
        let (tokenizer, offer) = (
            Tokenizer::bytes(),
            SamplingOffer {
                max_logprobs: 3,
                seeded_sampling: true,
                penalties: false,
                grammars: false,
                scores: false,
                prompt_logprobs: false,
            },
        );
        let backend = Backend {
            model: hello.model.clone(),
            further_kv: Vec::new(),
            tokenizer,
            workers,
            stores: Vec::new(),
            offer,
        };
        Ok((backend, attaching(1).cluster))
    };
    let server = TestServer::of_first_worker(attaching(1), Box::new(decide)).await;
    let mut client = server.client().await;
    let prompts = prompts(3);
    let status = client.ask(greedy(&prompts[0], 1)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "no worker has attached yet; try again later"));
    let status = dial(server.addr(), hello("small").encode()).await.map(drop).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "too small"));
    let worker = Attached::fresh(server.addr(), "a").await;
    let worker = tokio::spawn(worker.serve());
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    let mut request = greedy(&prompts[0], 1);
    request.output.as_mut().unwrap().logprobs = Some(4);
    let status = client.ask(request).await.unwrap_err();
    assert_eq!(status.message(), "logprobs is 4; the workers of this server report at most 3");
    let mut request = greedy(&prompts[0], 1);
    request.sampling.as_mut().unwrap().presence_penalty = 0.5;
    let status = client.ask(request).await.unwrap_err();
    let line = "presence_penalty is not supported by the workers of this server; leave it out";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, line));
    let mut request = greedy(&prompts[0], 1);
    request.sampling.as_mut().unwrap().structure = Some(Structure::Regex("a+".into()));
    request.stopping.as_mut().unwrap().ignore_eos = false;
    let status = client.ask(request).await.unwrap_err();
    let line = "structured output is not supported by the workers of this server; leave it out";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, line));
    assert_refuses_h2o(&mut client).await;
    server.drain().await;
    worker.await.unwrap();

    let nobody = TestServer::of_first_worker(attaching(1), Box::new(decide)).await;
    assert_eq!(nobody.drain().await.stats.requests.accepted, 0, "it stops without a model");
}
