//! Tests of records.

use proptest::prelude::*;

use super::*;

const KEY: BlockKey =
    BlockKey { root: 1 << 100, parent: 2 << 90, hash: 3 << 80, fingerprint: 4, first_token: 32, group: 1 };
const TOKENS: [Token; 3] = [7, 8, 1 << 20];

fn record() -> Vec<u8> {
    record_of(&KEY)
}

fn record_of(key: &BlockKey) -> Vec<u8> {
    let mut record = vec![0; header_len(3)];
    record.extend((0..500u32).map(|at| at as u8));
    seal(&mut record, 99, Coding::Frame, key, &TOKENS);
    place(&mut record, 3, Address { sequence: 11, segment: 12, offset: 13 });
    record
}

#[test]
fn a_record_says_all_about_its_block() {
    let record = record();
    let header = Header::read(&record).unwrap();
    assert_eq!((header.coding, header.layout, header.key), (Coding::Frame, 99, KEY));
    assert_eq!(header.tokens, TOKENS);
    assert_eq!(header.address, Address { sequence: 11, segment: 12, offset: 13 });
    assert_eq!((header.record_len(), announced_len(&record)), (record.len(), Some(header_len(3))));
    assert_eq!(header.payload(&record), Ok(&record[header_len(3)..]));
    assert_eq!(header.prove(99, &KEY, &TOKENS), Ok(()));
}

#[test]
fn each_part_of_the_identity_is_proven() {
    let header = Header::read(&record()).unwrap();
    assert_eq!(header.prove(98, &KEY, &TOKENS), Err(Fault::Stale));
    let others = [
        BlockKey { root: 5, ..KEY },
        BlockKey { parent: 5, ..KEY },
        BlockKey { hash: 5, ..KEY },
        BlockKey { fingerprint: 5, ..KEY },
        BlockKey { first_token: 48, ..KEY },
        BlockKey { group: 0, ..KEY },
    ];
    for key in others {
        assert_eq!(header.prove(99, &key, &TOKENS), Err(Fault::Swapped), "{key:?}");
    }
    assert_eq!(header.prove(99, &KEY, &TOKENS[..2]), Err(Fault::Swapped));
    assert_eq!(header.prove(99, &KEY, &[7, 8, 9]), Err(Fault::Swapped));
}

#[test]
fn every_flipped_bit_and_every_missing_byte_is_found() {
    let mut record = record();
    let check = |bytes: &[u8]| Header::read(bytes).and_then(|header| header.payload(bytes).map(<[u8]>::len));
    assert_eq!(check(&record), Ok(500));
    for at in 0..record.len() * 8 {
        record[at / 8] ^= 1 << (at % 8);
        assert!(check(&record).is_err(), "bit {at}");
        record[at / 8] ^= 1 << (at % 8);
    }
    for len in 0..record.len() {
        assert!(check(&record[..len]).is_err(), "{len} bytes");
    }
    assert_eq!(check(&[0; 4096]), Err(Fault::Torn));
    assert_eq!(check(&record[..100]), Err(Fault::Short));
}

#[test]
fn the_bytes_of_a_record_are_pinned() {
    let first = record_of(&BlockKey { group: 0, ..KEY });
    assert_eq!(xxh3_64(&first), 0xb9e6_8b77_29b0_8e58, "records of other versions would not be read");
    let differing: Vec<usize> = (0..120).filter(|at| first[*at] != record()[*at]).collect();
    assert_eq!((differing, record()[7]), (vec![7], 1), "the group is one byte of the header");
}

proptest! {
    #[test]
    fn any_bytes_are_a_record_or_a_fault(mut bytes in prop::collection::vec(any::<u8>(), 0..400), is_magic: bool) {
        if is_magic && bytes.len() > 8 {
            bytes[..4].copy_from_slice(&MAGIC);
        }
        prop_assert!(Header::read(&bytes).is_err());
    }
}
