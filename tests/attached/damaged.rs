//! Workers with damaged messages alongside a sound one: `TRUNKLINE_SEEDS=10000 cargo test -p trunkline-tests --test attached damaged`. Every request is
//! answered, with the text that it has without them.

use prost::Message as _;
use rand_pcg::Pcg64Mcg;
use trunkline_attach::wire::from_worker::Message;
use trunkline_driver::seeds::Sample;
use trunkline_server::Options;
use trunkline_tests::damage::damaged;

use super::*;

/// Returns a message as another one of the protocol, if there is one after the damage. Tokens inside the vocabulary and faults of sequences
/// are left as they were: there a worker is believed.
fn damaged_message(message: &Message, rng: &mut Pcg64Mcg) -> Option<Message> {
    let bytes = wire::FromWorker { message: Some(message.clone()) }.encode_to_vec();
    let mut other = wire::FromWorker::decode(damaged(&bytes, rng).as_slice()).ok()?.message?;
    if let (Message::StepDone(done), Message::StepDone(sound)) = (&mut other, message) {
        let vocabulary = trunkline_tests::attached::model().vocab_size;
        if done.tokens.len() == sound.tokens.len() && done.tokens.iter().all(|token| *token < vocabulary) {
            done.tokens.clone_from(&sound.tokens);
        }
        done.faults.clone_from(&sound.faults);
    }
    Some(other)
}

/// Attaches a worker as soon as the server has a place for it.
async fn attach(addr: std::net::SocketAddr) -> Attached {
    let mut device = Device::default();
    loop {
        match Attached::attach(addr, hello("damaged"), device).await {
            Ok(worker) => return worker,
            Err((_, again)) => device = again,
        }
        tokio::task::yield_now().await;
    }
}

/// Announces a worker with a damaged Hello, and leaves. Returns `true` if the server refused the Hello.
async fn announce(addr: std::net::SocketAddr, rng: &mut Pcg64Mcg) -> bool {
    let bytes = hello("damaged").encode().encode_to_vec();
    let Ok(hello) = wire::Hello::decode(damaged(&bytes, rng).as_slice()) else { return false };
    match dial(addr, hello).await {
        Ok((answers, mut jobs, _)) => {
            drop(answers);
            while let Ok(Some(_)) = jobs.message().await {}
            false
        }
        Err(status) => {
            let refusals =
                [Code::InvalidArgument, Code::FailedPrecondition, Code::AlreadyExists, Code::ResourceExhausted];
            assert!(refusals.contains(&status.code()), "{status:?}");
            true
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_messages_of_a_worker_harm_no_request() {
    let prompts = prompts(3);
    let plain = TestServer::start(limits()).await;
    let texts = |answers: Vec<Answer>| answers.into_iter().map(|answer| answer.text).collect::<Vec<_>>();
    let expected = texts(ask_all(&mut plain.client().await, &prompts).await);
    let mut options: Options = attaching(2);
    options.attach.resume = Duration::ZERO;
    let server = launch(options).await;
    let sound = forever(&server, "sound");
    let mut client = server.client().await;
    client.until(|info| info.engines.iter().any(|engine| engine.worker.is_some())).await;
    let sample = Sample::from_env(51, 40);
    let (mut refused, mut sent) = (0, 0);
    for seed in &sample.seeds {
        println!("seed {seed}");
        let mut rng = Pcg64Mcg::seed_from_u64(*seed);
        refused += u32::from(announce(server.addr(), &mut rng).await);
        let mut worker = attach(server.addr()).await;
        let (mut asking, asked) = (client.clone(), prompts.clone());
        let mut answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
        let after = rng.random_range(1..12);
        // A worker that did harm gets no request for a while.
        let answered = tokio::select! {
            job = worker.serve_until(|_, steps| steps == after) => {
                let answer = worker.answer(job.expect("a sound worker so far"));
                if let Some(message) = answer.and_then(|answer| damaged_message(&answer, &mut rng)) {
                    worker.send(message);
                    sent += 1;
                }
                worker.leave().await;
                answers.await
            }
            answered = &mut answers => answered,
        };
        assert_eq!(texts(answered.unwrap()), expected);
    }
    assert!(sample.seeds.len() < 40 || (refused > 0 && sent > 3), "{refused} refused, {sent} sent");
    client.settled().await;
    server.drain().await;
    sound.await.unwrap();
}
