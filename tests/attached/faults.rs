//! Attached workers that fail single sequences, or say numbers of them that are not finite.

use std::collections::BTreeSet;

use tonic::Code;
use trunkline_attach::wire::{self, SequenceFault, from_worker, to_worker};
use trunkline_server::proto::{GenerateRequest, Output};
use trunkline_tests::attached::Attached;
use trunkline_tests::server::{Answer, greedy};

use super::{ask_all, check, prompts, start};

/// Byte behind which a sequence fails.
const BAD: u32 = b'~' as u32;

/// Marks the sequences in `bad` slots of an answer as failed. Each sequence of the step has one token, or none.
fn fail(done: &mut wire::StepDone, step: &wire::Step, bad: &BTreeSet<u32>) {
    let mut tokens = std::mem::take(&mut done.tokens).into_iter();
    for (at, slot) in step.slots.iter().enumerate() {
        let sampled = tokens.by_ref().take(step.sample.get(at).copied().unwrap_or(0) as usize);
        let is_bad = bad.contains(slot);
        done.faults.push(if is_bad { SequenceFault::NotFinite } else { SequenceFault::None }.into());
        done.tokens.extend(sampled.filter(|_| !is_bad));
    }
    // Nobody else asks for some.
    done.logprobs.clear();
}

/// Says a log probability that is not a number of the last sequence that has one.
fn spoil(done: &mut wire::StepDone, _: &wire::Step, _: &BTreeSet<u32>) {
    if let Some(last) = done.logprobs.last_mut() {
        last.logprob = f32::NAN;
    }
}

type Edit = fn(&mut wire::StepDone, &wire::Step, &BTreeSet<u32>);

/// Runs a worker to its end, whose answers `edit` changes where sequences behind [`BAD`] run.
async fn serve(mut worker: Attached, edit: Edit) {
    let mut bad = BTreeSet::new();
    while let Ok(Some(job)) = worker.job().await {
        let step = if let to_worker::Message::Step(step) = &job { Some(step.clone()) } else { None };
        let mut answer = worker.answer(job);
        if let (Some(step), Some(from_worker::Message::StepDone(done))) = (step, &mut answer) {
            for start in &step.starts {
                let slot = step.slots[start.index as usize];
                bad.remove(&slot);
                bad.extend((start.tokens.last() == Some(&BAD)).then_some(slot));
            }
            if step.slots.iter().any(|slot| bad.contains(slot)) {
                edit(done, &step, &bad);
            }
        }
        if let Some(answer) = answer {
            worker.send(answer);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_an_attached_worker_fails_ends_alone() {
    for edit in [fail as Edit, spoil] {
        let prompts = prompts(4);
        let server = start(1).await;
        let worker = tokio::spawn(serve(Attached::fresh(server.addr(), "a").await, edit));
        let mut client = server.client().await;
        let life = client.until(|info| info.engines[0].worker.is_some()).await.engines[0].worker.clone().unwrap().life;
        let (mut asking, asked) = (client.clone(), prompts.clone());
        let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
        for n in 0..5 {
            let output = Some(Output { logprobs: Some(1), ..Output::default() });
            let bad = GenerateRequest { output, ..greedy(&format!("{n}~"), 10) };
            let status: Result<Answer, _> = client.ask(bad).await;
            let status = status.unwrap_err();
            assert!(status.code() == Code::Internal && status.message().contains("finite"), "{status:?}");
        }
        check(&answers.await.unwrap(), &prompts).await;
        let info = client.settled().await;
        let engine = &info.engines[0];
        assert_eq!((engine.worker.clone().unwrap().life, engine.counters.unwrap().restarted), (life, 0));
        server.drain().await;
        worker.await.unwrap();
    }
}
