//! Tests of a connection that no network carries.

use std::future::Future;
use std::thread;

use trunkline_port::{DeviceBlocks, StepSeq};

use super::*;
use from_worker::Message;

mod shared;

fn link() -> (Arc<Link>, LinkQueue, UnboundedReceiver<Job>) {
    Link::new(1, 16, 100, None, Clock::start())
}

/// A step that samples one token for one request.
fn step(id: u64) -> Box<Step> {
    let seq = StepSeq { request: RequestId(7), n_tokens: 1, sample: true, ..StepSeq::default() };
    Box::new(Step { id, seqs: vec![seq], tokens: vec![1], ..Step::default() })
}

fn done(id: u64, life: u64, token: u32) -> wire::FromWorker {
    message(Message::StepDone(wire::StepDone { id, life, tokens: vec![token], busy_us: 5, ..Default::default() }))
}

fn message(message: Message) -> wire::FromWorker {
    wire::FromWorker { message: Some(message) }
}

/// The kind of an event, with the number of its step.
fn kind(event: Result<Option<(u64, WorkerEvent)>, Nonsense>) -> String {
    match event {
        Ok(None) => "nothing".into(),
        Ok(Some((life, WorkerEvent::Ready))) => format!("ready in life {life}"),
        Ok(Some((life, WorkerEvent::Done { step, .. }))) => format!("step {} of life {life}", step.id),
        Ok(Some((life, WorkerEvent::Failed { step, guilty }))) => format!("{} of {life} failed: {guilty:?}", step.id),
        Ok(Some(_)) => unreachable!("no event of a connection"),
        Err(nonsense) => nonsense.to_string(),
    }
}

/// Returns the end of a connection if the server has ended it.
fn end_of(link: &Link) -> Option<LinkEnd> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(link.ended()).poll(&mut cx) {
        std::task::Poll::Ready(end) => Some(end),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn the_end_of_a_stream_reaches_the_reader_though_nobody_takes_the_jobs() {
    let (ended, _queue, _jobs) = link();
    assert_eq!(end_of(&ended), None);
    ended.end(Status::aborted("late"));
    assert_eq!(end_of(&ended), Some(LinkEnd::Broke("the server ended the connection".into())));
    let (faulty, _queue, _jobs) = link();
    faulty.end_faulty("three bytes".into());
    faulty.end(Status::aborted("late"));
    assert!(faulty.is_faulty());
    assert_eq!(end_of(&faulty), Some(LinkEnd::Faulty("three bytes".into())));
}

#[test]
fn answers_come_in_the_order_of_the_steps_and_those_of_earlier_lives_are_dropped() {
    let (link, queue, mut jobs) = link();
    queue.welcome(3, wire::Welcome::default());
    let steps = queue.into_steps();
    assert!(matches!(jobs.try_recv(), Ok(Job::Welcome(_))));
    for id in [1, 2] {
        assert!(steps(StepJob::Run { life: 3, step: step(id) }));
        let Ok(Job::Run { life, step }) = jobs.try_recv() else { panic!("a step") };
        assert_eq!(link.send_step(life, step).unwrap().id, id);
    }
    assert_eq!(kind(link.take(done(2, 3, 0))), "an answer to step 2; the next to be answered is step 1");
    assert_eq!(kind(link.take(done(1, 2, 0))), "nothing", "an earlier life");
    assert_eq!(kind(link.take(done(1, 3, 9))), "step 1 of life 3");
    assert_eq!(kind(link.take(done(1, 4, 9))), "an answer to step 1 of life 4, which is not under way");
    assert_eq!(link.stats().steps, 1);
    let failed = wire::StepFailed { id: 2, life: 3, request: Some(7), ..Default::default() };
    assert_eq!(kind(link.take(message(Message::StepFailed(failed)))), "2 of 3 failed: Some(RequestId(7))");
    assert_eq!(kind(link.take(done(3, 3, 0))), "an answer to step 3 of life 3, which is not under way");
    assert!(steps(StepJob::Run { life: 3, step: step(3) }));
    assert!(steps(StepJob::Reset { life: 4 }));
    let Ok(Job::Run { life, step }) = jobs.try_recv() else { panic!("a step") };
    assert!(link.send_step(life, step).is_none(), "the life is over");
    assert!(matches!(jobs.try_recv(), Ok(Job::Reset { life: 4 })));
    let reset = |life| link.take(message(Message::ResetDone(wire::ResetDone { life })));
    assert_eq!(kind(reset(3)), "nothing");
    assert_eq!(kind(reset(5)), "unexpected start of life 5");
    assert_eq!(kind(reset(4)), "ready in life 4");
    assert_eq!(kind(reset(4)), "unexpected start of life 4");
}

#[test]
fn a_request_that_the_step_does_not_run_is_not_to_blame() {
    let (link, queue, _jobs) = link();
    queue.welcome(1, wire::Welcome::default());
    link.send_step(1, step(1)).unwrap();
    let failed = wire::StepFailed { id: 1, life: 1, request: Some(8), ..Default::default() };
    assert_eq!(kind(link.take(message(Message::StepFailed(failed)))), "1 of 1 failed: None");
}

#[test]
fn a_block_is_read_by_number_and_copies_end_with_the_life_and_the_connection() {
    let (link, queue, mut jobs) = link();
    queue.welcome(1, wire::Welcome::default());
    jobs.try_recv().unwrap();
    let blocks = |life| LinkBlocks::new(Arc::clone(&link), life, 4);
    let read = |life| {
        let blocks = blocks(life);
        thread::spawn(move || {
            let mut bytes = [0; 4];
            blocks.read(9, &mut bytes).map(|()| bytes).map_err(|err| err.to_string())
        })
    };
    let reading = read(1);
    let Some(Job::Read { id, life: 1, block: 9, slot: None }) = jobs.blocking_recv() else { panic!("a block to read") };
    let answer = wire::BlockRead { id, data: vec![1, 2, 3, 4], ..Default::default() };
    assert_eq!(kind(link.take(message(Message::BlockRead(answer.clone())))), "nothing");
    assert_eq!(reading.join().unwrap(), Ok([1, 2, 3, 4]));
    assert_eq!(kind(link.take(message(Message::BlockRead(answer)))), "nothing", "nobody waits");

    let failing = read(1);
    let Some(Job::Read { id, .. }) = jobs.blocking_recv() else { panic!("a block to read") };
    let answer = wire::BlockRead { id, error: "no\tdevice".into(), ..Default::default() };
    link.take(message(Message::BlockRead(answer))).unwrap();
    assert_eq!(failing.join().unwrap(), Err("no\\tdevice".into()));

    let interrupted = read(1);
    assert!(matches!(jobs.blocking_recv(), Some(Job::Read { .. })));
    link.reset(2);
    assert_eq!(interrupted.join().unwrap(), Err("the worker was reset, or its connection broke".into()));
    assert_eq!(blocks(1).write(0, &[0; 4]).unwrap_err().to_string(), "the worker was reset");
    assert!(jobs.try_recv().is_err(), "no copy of an earlier life is sent");
    link.close_copies();
    assert_eq!(blocks(2).write(0, &[0; 4]).unwrap_err().to_string(), "the connection to the worker is broken");
}

#[test]
fn a_block_of_another_size_ends_the_connection() {
    let (link, queue, mut jobs) = link();
    queue.welcome(0, wire::Welcome::default());
    jobs.try_recv().unwrap();
    let blocks = LinkBlocks::new(Arc::clone(&link), 0, 4);
    let reading = thread::spawn(move || blocks.read(0, &mut [0; 4]).unwrap_err().to_string());
    let Some(Job::Read { id, .. }) = jobs.blocking_recv() else { panic!("a block to read") };
    let answer = wire::BlockRead { id, data: vec![1; 5], ..Default::default() };
    link.take(message(Message::BlockRead(answer))).unwrap();
    assert_eq!(reading.join().unwrap(), "the worker read 5 bytes of a block of 4 bytes");
    let Some(Job::End(status)) = jobs.blocking_recv() else { panic!("the end") };
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
}
