//! Tests of shared memory: both ends in one process.

use std::io::Write;
use std::os::fd::AsRawFd;

use super::*;

fn secret(first: u8) -> [u8; 32] {
    std::array::from_fn(|at| first.wrapping_add(at as u8))
}

fn region() -> Region {
    Region::create(3, 5000, secret(1)).unwrap()
}

#[test]
fn bytes_of_a_slot_reach_the_other_end_and_no_other_slot() {
    let server = region();
    let worker = Region::open(&server.offer()).unwrap();
    assert_eq!((worker.slots(), worker.slot_bytes()), (3, 8192));
    assert!(server.is_proved_by(&worker.opened()));
    assert!(!server.is_proved_by(&wire::SharedMemoryOpened { proof: server.offer().mark }), "the mark is not proof");
    for slot in 0..3 {
        worker.write(slot, &[slot as u8 + 1; 5000]).unwrap();
    }
    for slot in 0..3 {
        let mut bytes = vec![0; 5000];
        server.read(slot, &mut bytes).unwrap();
        assert_eq!(bytes, vec![slot as u8 + 1; 5000]);
    }
    server.write(1, &[9; 8192]).unwrap();
    let mut bytes = vec![0; 8192];
    worker.read(1, &mut bytes).unwrap();
    assert_eq!(bytes, vec![9; 8192]);
    worker.read(2, &mut bytes).unwrap();
    assert_eq!(bytes[..5000], [3; 5000]);
}

#[test]
fn slots_and_lengths_beyond_the_memory_are_refused() {
    let region = region();
    assert!(matches!(region.write(3, &[0]), Err(RegionFault::Slot { slot: 3, slots: 3 })));
    assert!(matches!(region.read(u32::MAX, &mut [0]), Err(RegionFault::Slot { slot: u32::MAX, .. })));
    let long = region.read(0, &mut [0; 8193]);
    assert!(matches!(long, Err(RegionFault::Length { n_bytes: 8193, slot_bytes: 8192 })));
    for (slots, bytes) in [(0, 1), (1025, 1), (1, 0), (1, (1 << 30) + 1), (u32::MAX, u64::MAX)] {
        assert!(Region::create(slots, bytes, secret(1)).is_err(), "{slots} slots of {bytes}");
    }
}

#[test]
fn nobody_changes_the_size_of_the_memory() {
    let server = region();
    let worker = Region::open(&server.offer()).unwrap();
    for len in [0, 4096, 1 << 20] {
        assert!(worker.file.set_len(len).is_err(), "{len}");
    }
    server.read(2, &mut [0; 8192]).unwrap();
}

#[test]
fn a_file_that_is_cut_causes_an_error_and_no_signal() {
    let file = tempfile();
    file.set_len(4096 + 2 * 4096).unwrap();
    let region = Region::of(file, 2, 4096, &secret(1));
    region.read(1, &mut [0; 4096]).unwrap();
    region.file.set_len(4096 + 100).unwrap();
    assert!(matches!(region.read(0, &mut [0; 4096]), Err(RegionFault::Copy(_))));
    assert!(matches!(region.read(1, &mut [0; 4096]), Err(RegionFault::Copy(_))));
}

/// A file in memory without seals.
fn tempfile() -> File {
    File::from(rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
}

#[test]
fn another_file_is_left_alone() {
    let server = region();
    let offer = server.offer();
    let refused = |edit: &dyn Fn(&mut wire::SharedMemory)| {
        let mut offer = offer.clone();
        edit(&mut offer);
        Region::open(&offer).unwrap_err()
    };
    // Another server's memory, of the same shape.
    let other = Region::create(3, 5000, secret(100)).unwrap();
    let fd = other.offer().fd;
    assert!(matches!(refused(&|offer| offer.fd = fd), RegionFault::OtherFile { .. }));
    // A file of the right length and contents that can be cut.
    let mut file = tempfile();
    file.write_all(&secret(1)).unwrap();
    file.set_len(4096 + 3 * 8192).unwrap();
    assert!(matches!(refused(&|offer| offer.fd = file.as_raw_fd() as u32), RegionFault::OtherFile { .. }));
    // A pipe, which is not opened.
    let (reader, _writer) = io::pipe().unwrap();
    assert!(matches!(refused(&|offer| offer.fd = reader.as_raw_fd() as u32), RegionFault::OtherFile { .. }));
    assert!(matches!(refused(&|offer| offer.slots = 2), RegionFault::OtherFile { .. }));
    assert!(matches!(refused(&|offer| offer.mark.truncate(3)), RegionFault::OtherFile { .. }));
    assert!(matches!(refused(&|offer| offer.mark.clear()), RegionFault::OtherFile { .. }));
    assert!(matches!(refused(&|offer| offer.pid = u32::MAX), RegionFault::Open { .. }), "another machine");
    assert!(matches!(refused(&|offer| offer.fd = u32::MAX), RegionFault::Open { .. }));
    assert!(matches!(refused(&|offer| offer.slot_bytes = u64::MAX), RegionFault::Range { .. }));
    assert!(matches!(refused(&|offer| offer.slot_bytes = 100), RegionFault::Range { .. }));
    assert!(matches!(refused(&|offer| offer.slots = u32::MAX), RegionFault::Range { .. }));
}

#[test]
fn the_memory_is_the_owners_alone_and_goes_with_the_last_open_file() {
    use std::os::unix::fs::PermissionsExt;
    // A mark of its own: another test may get the number of the file that this one closes.
    let server = Region::create(3, 5000, secret(200)).unwrap();
    assert_eq!(server.file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let offer = server.offer();
    let worker = Region::open(&offer).unwrap();
    drop(server);
    worker.write(0, &[7; 10]).unwrap();
    assert!(Region::open(&offer).is_err(), "the server's file is closed");
}
