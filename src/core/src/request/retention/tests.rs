//! Classes, ends and faults of hints, and the blocks for which a claim holds.

use super::*;

fn hint(from: u32, to: u32, priority: u8, ttl_ns: u64) -> RetentionHint {
    RetentionHint { from, to, priority, ttl_ns, demote: false, pin: false }
}

#[test]
fn priorities_fall_into_classes_of_equal_width() {
    let class = |priority| hint(0, 1, priority, 0).class_above();
    assert_eq!([0, 34, 35, 36, 51, 52, 67, 68, 83, 84, 100].map(class), [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
}

#[test]
fn a_hint_falls_by_a_class_after_each_equal_part_of_its_life() {
    let ends = hint(0, 1, 100, 60).ends(1_000);
    assert_eq!(ends, [1_060, 1_045, 1_030, 1_015, 0]);
    assert_eq!([1_000, 1_014, 1_015, 1_030, 1_059, 1_060].map(|now_ns| class_at(&ends, now_ns)), [4, 4, 3, 2, 1, 0]);
    assert_eq!(hint(0, 1, 60, 10).ends(5), [15, 10, 0, 0, 0]);
    assert_eq!(hint(0, 1, 36, 0).ends(5), [u64::MAX, 0, 0, 0, 0]);
    assert_eq!(hint(0, 1, 35, 9).ends(5), [0; 5]);
    assert_eq!(hint(0, 1, 40, u64::MAX).ends(5), [u64::MAX, 0, 0, 0, 0], "no overflow");
}

#[test]
fn a_pin_is_a_class_of_its_own_and_does_not_fall_before_its_end() {
    let pin = RetentionHint { pin: true, ..hint(0, 1, 100, 60) };
    assert_eq!((pin.class_above(), pin.ends(1_000)), (PINNED, [1_060; PINNED]));
    assert_eq!([1_000, 1_059, 1_060].map(|now_ns| class_at(&pin.ends(1_000), now_ns)), [PINNED, PINNED, 0]);
    let pinned_to = |hints: &[RetentionHint]| Claim { tenant: 0, hints }.pinned_to(8, 4);
    let ending = |from, to| RetentionHint { from, to, ..pin };
    let all = [ending(3, 9), hint(9, 20, 50, 0), ending(20, 21), ending(32, 40)];
    assert_eq!([pinned_to(&all[..2]), pinned_to(&all), pinned_to(&[ending(0, TO_END)])], [3, 6, 8]);
    assert_eq!((pinned_to(&all[3..]), pinned_to(&[])), (0, 0), "behind the last block");
}

#[test]
fn faults_name_the_hint() {
    assert_eq!(check(&[hint(0, 4, 80, 1), hint(4, 8, 35, 1), hint(9, TO_END, 0, 0)]), Ok(()));
    assert_eq!(check(&[hint(0, 1, 101, 0)]), Err(RetentionError::Priority { at: 0, priority: 101 }));
    let empty = check(&[hint(0, 1, 50, 0), hint(7, 7, 50, 0)]);
    assert_eq!(empty, Err(RetentionError::Empty { at: 1, from: 7, to: 7 }));
    let unordered = check(&[hint(0, 8, 50, 0), hint(7, 9, 50, 0)]);
    assert_eq!(unordered, Err(RetentionError::Unordered { at: 1, from: 7 }));
    assert_eq!(check(&[hint(0, 1, 34, 1)]), Err(RetentionError::LivesBelowDefault { at: 0 }));
    let stays = RetentionHint { demote: true, ..hint(0, 1, 35, 0) };
    assert_eq!(check(&[stays]), Err(RetentionError::DemotesAboveEarly { at: 0 }));
    assert_eq!(check(&[RetentionHint { priority: 34, ..stays }]), Ok(()));
    let pin = |priority, ttl_ns| check(&[RetentionHint { pin: true, ..hint(0, 1, priority, ttl_ns) }]);
    assert_eq!(pin(99, 1), Err(RetentionError::PinsBelowHighest { at: 0 }));
    let bad_time = Err(RetentionError::PinTime { at: 0 });
    assert_eq!(
        [pin(100, 0), pin(100, PIN_NS_MAX + 1), pin(100, 1), pin(100, PIN_NS_MAX)],
        [bad_time, bad_time, Ok(()), Ok(())]
    );
    let many: Vec<_> = (0..17).map(|at| hint(at, at + 1, 50, 0)).collect();
    assert_eq!(check(&many), Err(RetentionError::TooMany { n: 17 }));
    assert_eq!(check(&many[..16]), Ok(()));
}

/// Returns the ends by block of 8 blocks of 4 tokens.
fn by_block(hints: &[RetentionHint]) -> Vec<Ends> {
    let (claim, mut at, mut all) = (Claim { tenant: 0, hints }, 0, Vec::new());
    while let Some((ends, until)) = claim.ends_at(at, 8, 4, 0) {
        assert!(until > at && until <= 8);
        all.extend(std::iter::repeat_n(ends, until - at));
        at = until;
        if at == 8 {
            break;
        }
    }
    all
}

#[test]
fn a_hint_holds_for_the_blocks_before_its_range() {
    let (weak, strong) = ([20, 0, 0, 0, 0], [12, 9, 6, 3, 0]);
    let hints = [hint(9, 13, 100, 12), hint(20, 25, 40, 20)];
    // Tokens 9 to 12 are in blocks 2 and 3; 20 to 24 in blocks 5 and 6.
    let both = [20, 9, 6, 3, 0];
    assert_eq!(by_block(&hints), [both, both, both, both, weak, weak, weak]);
    assert_eq!(by_block(&hints[..1]), [strong; 4]);
    assert_eq!(by_block(&[hint(32, TO_END, 100, 12)]), [] as [Ends; 0], "the range begins after the last block");
    assert_eq!(by_block(&[hint(31, TO_END, 100, 12)]), [strong; 8]);
}

#[test]
fn blocks_leave_early_only_if_all_behind_them_do() {
    let from = |hints: &[RetentionHint]| Claim { tenant: 0, hints }.early_from(8, 4);
    assert_eq!(from(&[]), 8);
    assert_eq!(from(&[hint(0, TO_END, 0, 0)]), 0);
    assert_eq!(from(&[hint(9, TO_END, 34, 0)]), 3, "block 2 has a token without the hint");
    assert_eq!(from(&[hint(9, 31, 34, 0)]), 8, "the last token has no hint");
    assert_eq!(from(&[hint(4, 9, 0, 0), hint(9, 32, 34, 0), hint(32, 40, 90, 0)]), 1);
    assert_eq!(from(&[hint(4, 8, 0, 0), hint(9, 32, 34, 0)]), 3);
    assert_eq!(from(&[hint(4, 9, 35, 0), hint(9, 32, 34, 0)]), 3);
    let away = |from| RetentionHint { demote: true, ..hint(from, TO_END, 0, 0) };
    let demoted = |hints: &[RetentionHint]| Claim { tenant: 0, hints }.demoted_from(8, 4);
    assert_eq!((demoted(&[hint(0, 9, 0, 0), away(9)]), demoted(&[hint(0, TO_END, 0, 0)])), (3, 8));
}
