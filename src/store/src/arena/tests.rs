//! Tests of the arena.

use proptest::prelude::*;

use super::*;

#[test]
fn the_last_freed_is_the_first_used() {
    let arena = Arena::new(64 << 20);
    let held: Vec<Piece> = (0..20).map(|_| arena.allocate(1 << 20).unwrap()).collect();
    let [first, second] = [(); 2].map(|()| arena.allocate(1 << 20).unwrap());
    let [at_first, at_second] = [first.as_ptr(), second.as_ptr()];
    drop(first);
    drop(second);
    let again = [(); 2].map(|()| arena.allocate(1 << 20).unwrap());
    assert_eq!([again[0].as_ptr(), again[1].as_ptr()], [at_second, at_first]);
    assert_eq!(held.len(), 20);
}

#[test]
fn the_limit_is_hard_and_idle_memory_of_other_sizes_makes_way() {
    let arena = Arena::new(20 << 20);
    let mut pieces: Vec<Piece> = (0..20).map(|_| arena.allocate(1 << 20).unwrap()).collect();
    assert!(arena.allocate(64).is_none());
    pieces.truncate(18);
    let stats = arena.stats();
    assert_eq!((stats.used_bytes, stats.idle_bytes), (18 << 20, 2 << 20));
    let other = arena.allocate(1_500_000).unwrap();
    let stats = arena.stats();
    assert!(stats.used_bytes + stats.idle_bytes <= stats.limit_bytes, "{stats:?}");
    assert_eq!(other.len(), 1_500_000);
}

#[test]
fn sizes_are_rounded_by_a_32nd_and_whole_pages_not_at_all() {
    assert_eq!(rounded(368_640), 368_640);
    assert_eq!(rounded(1), 64);
    for len in (MAPPED_MIN..4 << 20).step_by(7_919) {
        let size = rounded(len);
        assert!(size >= len && size - len <= (len / 32).max(PAGE), "{len} to {size}");
    }
}

#[test]
fn a_full_arena_exchanges_a_piece_for_a_smaller_one() {
    let arena = Arena::new(10 << 20);
    let mut pieces: Vec<Piece> = (0..10).map(|_| arena.allocate(1 << 20).unwrap()).collect();
    for at in 0..10 {
        let piece = pieces.remove(0);
        let mut piece = arena.exchange(piece, 600_000);
        piece.fill(at);
        assert_eq!(piece.len(), 600_000);
        pieces.push(piece);
        let stats = arena.stats();
        assert!(stats.used_bytes + stats.idle_bytes <= stats.limit_bytes, "{stats:?}");
    }
    assert_eq!(arena.stats().used_bytes, 10 * rounded(600_000) as u64);
    let same = arena.exchange(pieces.pop().unwrap(), 600_000);
    assert_eq!((same.len(), same[0]), (600_000, 9));
}

proptest! {
    #[test]
    fn used_and_idle_bytes_add_up_after_any_operations(
        operations in prop::collection::vec((any::<bool>(), 1usize..300_000), 1..200),
    ) {
        let arena = Arena::new(4 << 20);
        let mut pieces: Vec<(u8, Piece)> = Vec::new();
        for (at, (allocates, len)) in operations.into_iter().enumerate() {
            if allocates {
                let used = arena.stats().used_bytes;
                match arena.allocate(len) {
                    Some(mut piece) => {
                        piece.fill(at as u8);
                        pieces.push((at as u8, piece));
                    }
                    None => prop_assert!(used + rounded(len) as u64 > 4 << 20),
                }
            } else if !pieces.is_empty() {
                let (mark, piece) = pieces.swap_remove(len % pieces.len());
                prop_assert!(piece.iter().all(|byte| *byte == mark));
            }
            let stats = arena.stats();
            let used: u64 = pieces.iter().map(|(_, piece)| rounded(piece.len()) as u64).sum();
            prop_assert_eq!(stats.used_bytes, used);
            prop_assert!(stats.idle_bytes * IDLE_PART <= stats.used_bytes + stats.idle_bytes);
            prop_assert!(stats.used_bytes + stats.idle_bytes <= 4 << 20);
        }
    }
}
