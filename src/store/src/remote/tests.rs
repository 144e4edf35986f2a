//! Tests of the remote tier on objects in memory that change, vanish, or never come.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::held::Coding;
use crate::record::{header_len, seal};

const KEY: BlockKey = BlockKey { root: 1, parent: 2, hash: 3, fingerprint: 4, first_token: 0, group: 0 };
const TOKENS: [Token; 2] = [5, 6];

/// Objects in memory.
#[derive(Clone, Debug, Default)]
struct Fake {
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    fault: Arc<Mutex<Option<Unanswered>>>,
    calls: Arc<Mutex<u32>>,
}

impl Fake {
    fn answer<T>(&self, value: T) -> Result<T, Unanswered> {
        *self.calls.lock().unwrap() += 1;
        self.fault.lock().unwrap().clone().map_or(Ok(value), Err)
    }
}

impl Objects for Fake {
    fn put(&self, name: &str, bytes: Vec<u8>, _: Instant) -> Result<(), Unanswered> {
        self.answer(())?;
        self.objects.lock().unwrap().insert(name.to_owned(), bytes);
        Ok(())
    }

    fn get(&self, name: &str, limit: usize, _: Instant) -> Result<Option<Vec<u8>>, Unanswered> {
        let object = self.objects.lock().unwrap().get(name).cloned();
        self.answer(object.map(|bytes| bytes[..bytes.len().min(limit)].to_vec()))
    }

    fn has(&self, names: &[String], _: Instant) -> Result<Vec<bool>, Unanswered> {
        assert!((1..=ASKED_AT_ONCE).contains(&names.len()), "{} questions at once", names.len());
        let has = names.iter().map(|name| self.objects.lock().unwrap().contains_key(name)).collect();
        self.answer(has)
    }
}

fn remote() -> (Remote, Fake) {
    let fake = Fake::default();
    (Remote::new(Box::new(fake.clone()), Duration::from_secs(1), 99), fake)
}

fn record(key: &BlockKey) -> Vec<u8> {
    let mut record = vec![7; header_len(2) + 100];
    seal(&mut record, 99, Coding::Raw, key, &TOKENS);
    record
}

#[test]
fn another_server_finds_a_block_by_its_key() {
    let (remote, fake) = remote();
    assert_eq!(remote.leading(&[KEY]), 0);
    assert_eq!(remote.get(&KEY, &TOKENS, 4096), Err(NoBlock::Unproven(Fault::Missing)));
    assert_eq!(remote.put(&KEY, record(&KEY)), Ok(236));
    let other = Remote::new(Box::new(fake), Duration::from_secs(1), 99);
    assert_eq!(other.leading(&[KEY]), 1);
    let (header, bytes) = other.get(&KEY, &TOKENS, 4096).unwrap();
    assert_eq!(bytes[header.payload_range()], [7; 100]);
}

#[test]
fn the_leading_blocks_of_a_chain_are_found_in_few_questions() {
    for (blocks, rounds_max) in [(0, 0), (1, 1), (8, 1), (9, 2), (100, 3), (2048, 5)] {
        let keys: Vec<BlockKey> = (0..blocks).map(|at| BlockKey { hash: at, ..KEY }).collect();
        for there in (0..=keys.len()).step_by(1 + keys.len() / 50) {
            let (remote, fake) = remote();
            keys[..there].iter().for_each(|key| _ = remote.put(key, Vec::new()).unwrap());
            *fake.calls.lock().unwrap() = 0;
            assert_eq!(remote.leading(&keys), there, "of {blocks}");
            let rounds = *fake.calls.lock().unwrap();
            assert!(
                rounds <= if there == 0 { rounds_max.min(1) } else { rounds_max },
                "{rounds} for {there} of {blocks}"
            );
        }
    }
}

#[test]
fn a_hole_in_a_window_is_found() {
    let keys: Vec<BlockKey> = (0..200).map(|at| BlockKey { hash: at, parent: at, ..KEY }).collect();
    for hole in [0, 5, 64, 131, 199, 200] {
        let (remote, fake) = remote();
        let written = keys.iter().enumerate().filter(|(at, _)| *at != hole);
        written.for_each(|(_, key)| _ = remote.put(key, Vec::new()).unwrap());
        *fake.calls.lock().unwrap() = 0;
        assert_eq!((remote.leading(&keys), *fake.calls.lock().unwrap()), (hole, (hole as u32 / 64 + 1).min(4)));
    }
}

#[test]
fn objects_that_are_not_the_block_are_misses_by_kind() {
    let (remote, fake) = remote();
    remote.put(&KEY, record(&KEY)).unwrap();
    let name = remote.name(&KEY);
    let outcome = |bytes: Vec<u8>| {
        fake.objects.lock().unwrap().insert(name.clone(), bytes);
        remote.get(&KEY, &TOKENS, 4096).map(|_| ())
    };
    let whole = record(&KEY);
    assert_eq!(outcome(whole.clone()), Ok(()));
    assert_eq!(outcome(whole[..200].to_vec()), Err(NoBlock::Unproven(Fault::Short)));
    let mut flipped = whole.clone();
    flipped[190] ^= 1;
    assert_eq!(outcome(flipped), Err(NoBlock::Unproven(Fault::Flipped)));
    assert_eq!(outcome(record(&BlockKey { parent: 9, ..KEY })), Err(NoBlock::Unproven(Fault::Swapped)));
    assert_eq!(outcome(Vec::new()), Err(NoBlock::Unproven(Fault::Short)));
    let mut other = whole.clone();
    seal(&mut other, 98, Coding::Raw, &KEY, &TOKENS);
    assert_eq!(outcome(other), Err(NoBlock::Unproven(Fault::Stale)));
    assert_eq!(remote.get(&KEY, &[5, 7], 4096).map(|_| ()), Err(NoBlock::Unproven(Fault::Stale)));
    assert_eq!(outcome(whole), Ok(()));
    assert_eq!(
        remote.get(&KEY, &TOKENS, 200).map(|_| ()),
        Err(NoBlock::Unproven(Fault::Short)),
        "longer than any record"
    );
}

#[test]
fn a_store_that_does_not_answer_is_not_asked_again_for_a_while() {
    for fault in [Unanswered::Deadline, Unanswered::Failed("no way".to_owned())] {
        let (remote, fake) = remote();
        remote.put(&KEY, record(&KEY)).unwrap();
        *fake.fault.lock().unwrap() = Some(fault);
        *fake.calls.lock().unwrap() = 0;
        for _ in 0..50 {
            assert_eq!(remote.get(&KEY, &TOKENS, 4096), Err(NoBlock::Unanswered));
            assert_eq!(remote.leading(&[KEY]), 0);
        }
        assert!(remote.stats().is_down);
        let calls = *fake.calls.lock().unwrap();
        assert!((3..=6).contains(&calls), "{calls} calls");
    }
}

#[test]
fn a_store_that_takes_no_writes_is_read_all_the_same() {
    let (remote, fake) = remote();
    remote.put(&KEY, record(&KEY)).unwrap();
    let get = || remote.get(&KEY, &TOKENS, 4096).map(|_| ());
    *fake.fault.lock().unwrap() = Some(Unanswered::Failed("the bucket is full".to_owned()));
    *fake.calls.lock().unwrap() = 0;
    for _ in 0..50 {
        assert_eq!(remote.put(&KEY, record(&KEY)), Err(NoBlock::Refused));
    }
    let calls = *fake.calls.lock().unwrap();
    assert!((3..=6).contains(&calls), "{calls} calls");
    *fake.fault.lock().unwrap() = None;
    assert_eq!((get(), remote.leading(&[KEY]), remote.is_left_alone()), (Ok(()), 1, true));
    let stats = remote.stats();
    assert_eq!((stats.is_down, stats.takes_no_writes), (false, true), "an answer to a read is none to a write");
}

#[test]
fn side_tables_are_written_again_after_an_hour_and_found_by_other_servers() {
    let (remote, fake) = remote();
    let start = Instant::now();
    let put = |seconds: u64| {
        let now = start + Duration::from_secs(seconds);
        remote.put_table(5, now, || Some(b"table".to_vec())).unwrap();
        std::mem::take(&mut *fake.calls.lock().unwrap())
    };
    assert_eq!([0, 0, 3599, 3600, 3601].map(put), [1, 0, 0, 1, 0]);
    let other = Remote::new(Box::new(fake.clone()), Duration::from_secs(1), 99);
    assert_eq!(other.table(5), Ok(b"table".to_vec()));
    assert_eq!(other.table(6), Err(NoBlock::Unproven(Fault::Stale)), "its frames cannot be read");
    fake.objects.lock().unwrap().insert(other.table_name(5), b"noise".to_vec());
    assert!(other.table(5).is_err());
}
