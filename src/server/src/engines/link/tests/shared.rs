//! Tests of copies through shared memory: slots belong to one copy at a time, whatever the worker does.

use std::thread::JoinHandle;

use trunkline_attach::Region;

use super::*;

/// Bytes of a block.
const BYTES: usize = 4;

/// A connection in life 1 with `slots` slots, opened by the worker, whose end is returned.
fn shared(slots: u32) -> (Arc<Link>, LinkQueue, UnboundedReceiver<Job>, Region) {
    let (link, queue, mut jobs) = Link::new(1, 16, 100, region(slots), Clock::start());
    queue.welcome(1, wire::Welcome::default());
    let Ok(Job::Welcome(welcome)) = jobs.try_recv() else { panic!("a welcome") };
    let worker = Region::open(&welcome.shared_memory.unwrap()).unwrap();
    link.take(message(Message::SharedMemoryOpened(worker.opened()))).unwrap();
    (link, queue, jobs, worker)
}

fn region(slots: u32) -> Option<Region> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).unwrap();
    Some(Region::create(slots, BYTES as u64, secret).unwrap())
}

fn read(link: &Arc<Link>, life: u64, block: u32) -> JoinHandle<Result<[u8; BYTES], String>> {
    let blocks = LinkBlocks::new(Arc::clone(link), life, BYTES);
    thread::spawn(move || {
        let mut bytes = [0; BYTES];
        blocks.read(block, &mut bytes).map(|()| bytes).map_err(|err| err.to_string())
    })
}

/// Returns number and slot of the next block to read.
fn next(jobs: &mut UnboundedReceiver<Job>) -> (u64, Option<u32>) {
    let Some(Job::Read { id, slot, .. }) = jobs.blocking_recv() else { panic!("a block to read") };
    (id, slot)
}

fn answer(link: &Link, id: u64, slot_bytes: u64) {
    let read = wire::BlockRead { id, slot_bytes, ..Default::default() };
    assert_eq!(kind(link.take(message(Message::BlockRead(read)))), "nothing");
}

fn has_free_slot(link: &Link) -> bool {
    lock(&link.copies).slots.as_mut().is_some_and(|slots| slots.take().is_some())
}

#[test]
fn blocks_travel_in_messages_until_the_worker_has_opened_the_memory() {
    let (link, queue, mut jobs) = Link::new(1, 16, 100, region(2), Clock::start());
    queue.welcome(1, wire::Welcome::default());
    let Ok(Job::Welcome(welcome)) = jobs.try_recv() else { panic!("a welcome") };
    let worker = Region::open(&welcome.shared_memory.unwrap()).unwrap();
    let reading = read(&link, 1, 3);
    let (id, slot) = next(&mut jobs);
    assert_eq!(slot, None);
    link.take(message(Message::SharedMemoryOpened(worker.opened()))).unwrap();
    let data = vec![4; BYTES];
    link.take(message(Message::BlockRead(wire::BlockRead { id, data, ..Default::default() }))).unwrap();
    assert_eq!(reading.join().unwrap(), Ok([4; BYTES]));
    assert_eq!((link.stats().message_bytes, link.stats().shared_bytes), (BYTES as u64, 0));

    let reading = read(&link, 1, 3);
    let (id, slot) = next(&mut jobs);
    worker.write(slot.unwrap(), &[5; BYTES]).unwrap();
    answer(&link, id, BYTES as u64);
    assert_eq!(reading.join().unwrap(), Ok([5; BYTES]));

    let blocks = LinkBlocks::new(Arc::clone(&link), 1, BYTES);
    let writing = thread::spawn(move || blocks.write(7, &[6; BYTES]));
    let Some(Job::Write { id, block: 7, data, slot: Some(slot), slot_bytes, .. }) = jobs.blocking_recv() else {
        panic!("a block to write")
    };
    let mut bytes = [0; BYTES];
    worker.read(slot, &mut bytes).unwrap();
    assert_eq!((data.len(), slot_bytes, bytes), (0, BYTES as u64, [6; BYTES]));
    let written = wire::BlockWritten { id, error: String::new() };
    link.take(message(Message::BlockWritten(written))).unwrap();
    writing.join().unwrap().unwrap();
    let stats = link.stats();
    assert!(stats.shares_memory);
    assert_eq!((stats.message_bytes, stats.shared_bytes), (BYTES as u64, 2 * BYTES as u64));
}

#[test]
fn a_worker_may_send_the_bytes_although_there_is_a_slot() {
    let (link, _queue, mut jobs, _worker) = shared(1);
    let reading = read(&link, 1, 3);
    let (id, slot) = next(&mut jobs);
    assert_eq!(slot, Some(0));
    let data = vec![4; BYTES];
    link.take(message(Message::BlockRead(wire::BlockRead { id, data, ..Default::default() }))).unwrap();
    assert_eq!(reading.join().unwrap(), Ok([4; BYTES]));
    assert_eq!((link.stats().message_bytes, link.stats().shared_bytes), (BYTES as u64, 0));
}

#[test]
fn copies_wait_for_a_slot_and_take_the_one_that_is_free() {
    let (link, _queue, mut jobs, worker) = shared(1);
    let readings = [read(&link, 1, 3), read(&link, 1, 3), read(&link, 1, 3)];
    for turn in 0..3 {
        let (id, slot) = next(&mut jobs);
        assert_eq!(slot, Some(0));
        assert!(!has_free_slot(&link) && jobs.try_recv().is_err(), "the slot is taken");
        worker.write(0, &[turn; BYTES]).unwrap();
        answer(&link, id, BYTES as u64);
    }
    let mut read = readings.map(|reading| reading.join().unwrap().unwrap()[0]);
    read.sort_unstable();
    assert_eq!(read, [0, 1, 2]);
    // An error of the worker frees the slot too.
    for _ in 0..3 {
        let failing = self::read(&link, 1, 3);
        let (id, _) = next(&mut jobs);
        let error = wire::BlockRead { id, error: "no".into(), slot_bytes: 4, ..Default::default() };
        link.take(message(Message::BlockRead(error))).unwrap();
        assert_eq!(failing.join().unwrap(), Err("no".into()));
    }
}

#[test]
fn a_slot_of_an_interrupted_copy_is_not_used_before_the_worker_begins_the_next_life() {
    let (link, queue, mut jobs, worker) = shared(1);
    let interrupted = read(&link, 1, 3);
    let (late, _) = next(&mut jobs);
    let waiting = read(&link, 1, 3);
    let steps = queue.into_steps();
    assert!(steps(StepJob::Reset { life: 2 }));
    assert!(interrupted.join().unwrap().is_err());
    assert_eq!(waiting.join().unwrap(), Err("the worker was reset".into()), "nobody waits for a slot of an ended life");
    assert!(matches!(jobs.try_recv(), Ok(Job::Reset { life: 2 })));
    let reading = read(&link, 2, 5);
    answer(&link, late, BYTES as u64);
    assert!(!has_free_slot(&link) && jobs.try_recv().is_err(), "the worker may still write the slot");
    assert_eq!(kind(link.take(message(Message::ResetDone(wire::ResetDone { life: 2 })))), "ready in life 2");
    let (id, slot) = next(&mut jobs);
    worker.write(slot.unwrap(), &[8; BYTES]).unwrap();
    answer(&link, id, BYTES as u64);
    assert_eq!(reading.join().unwrap(), Ok([8; BYTES]));
}

#[test]
fn a_worker_that_keeps_slots_harms_nobody_once_its_connection_ends() {
    let (link, _queue, mut jobs, worker) = shared(2);
    let readings = [read(&link, 1, 1), read(&link, 1, 2), read(&link, 1, 3)];
    let kept = [next(&mut jobs).1, next(&mut jobs).1];
    assert_ne!(kept[0], kept[1]);
    link.close_copies();
    assert!(readings.map(|reading| reading.join().unwrap().is_err()).into_iter().all(|failed| failed));
    assert!(!link.stats().shares_memory);
    // The memory is the worker's alone now.
    worker.write(0, &[1; BYTES]).unwrap();
    assert!(read(&link, 1, 1).join().unwrap().is_err());
}

#[test]
fn lies_about_shared_memory_end_the_connection() {
    let not_shared = Nonsense::NotShared.to_string();
    let opened = |proof: Vec<u8>| message(Message::SharedMemoryOpened(wire::SharedMemoryOpened { proof }));
    let (link, _queue, mut jobs, worker) = shared(1);
    assert_eq!(kind(link.take(message(Message::SharedMemoryOpened(worker.opened())))), not_shared, "twice");
    let reading = read(&link, 1, 3);
    let (id, _) = next(&mut jobs);
    answer(&link, id, BYTES as u64 + 1);
    assert_eq!(reading.join().unwrap(), Err("the worker read 5 bytes of a block of 4 bytes".into()));
    assert!(matches!(end_of(&link), Some(LinkEnd::Faulty(_))));

    let (link, queue, _jobs) = Link::new(1, 16, 100, region(1), Clock::start());
    queue.welcome(1, wire::Welcome::default());
    for proof in [vec![0; 16], Vec::new(), vec![0; 1 << 20]] {
        assert_eq!(kind(link.take(opened(proof))), not_shared);
    }
    let (link, queue, mut jobs) = Link::new(1, 16, 100, None, Clock::start());
    queue.welcome(1, wire::Welcome::default());
    assert!(matches!(jobs.try_recv(), Ok(Job::Welcome(welcome)) if welcome.shared_memory.is_none()));
    assert_eq!(kind(link.take(opened(vec![0; 16]))), not_shared, "nothing was offered");
    let reading = read(&link, 1, 3);
    let (id, slot) = next(&mut jobs);
    assert_eq!(slot, None);
    let read = wire::BlockRead { id, slot_bytes: BYTES as u64, ..Default::default() };
    let line = format!("block reading {id} was answered with a slot, and named none");
    assert_eq!(kind(link.take(message(Message::BlockRead(read)))), line);
    assert!(reading.join().unwrap().is_err());
}
