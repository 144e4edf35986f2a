//! Lanes by hand, and against a model that computes again at every event what is left of each copy.

use super::*;

/// What is asked of a direction: when, latency, work, nanoseconds.
type Asked = (u64, u64, u64);

fn copy(id: usize, (asked_ns, latency_ns, work_ns): Asked) -> Copy {
    let (from, to) = (Place::Device, Place::Host);
    Copy { id: id as u64, asked_ns, begin_ns: asked_ns + latency_ns, work_ns, from, to, blocks: 1 }
}

/// When each copy ended, in the order of `asked`, and how long the direction was busy. Turns come before what is asked at their time.
fn run(asked: &[Asked]) -> (Vec<u64>, u64) {
    let mut direction = LinkDirection::default();
    let mut ends = vec![u64::MAX; asked.len()];
    let mut wake_ups = BinaryHeap::new();
    let mut asked = asked.iter().enumerate().peekable();
    let mut ended = Vec::new();
    loop {
        let next_ns = wake_ups.peek().map(|Reverse((at_ns, _))| *at_ns);
        match asked.next_if(|(_, asked)| next_ns.is_none_or(|next_ns| asked.0 < next_ns)) {
            Some((id, asked)) => direction.ask(copy(id, *asked)),
            None => match wake_ups.pop() {
                Some(Reverse((at_ns, version))) => {
                    direction.wake_up(at_ns, version, &mut ended);
                    ended.drain(..).for_each(|copy| ends[copy.id as usize] = at_ns);
                }
                None => break,
            },
        }
        wake_ups.extend(direction.next_wake_up().map(|wake_up| Reverse((wake_up.at_ns, wake_up.version))));
    }
    (ends, direction.busy_ns)
}

/// The same as literally as possible: what is left of every copy, taken down from event to event in fractions of nanoseconds.
fn modelled(asked: &[Asked]) -> (Vec<f64>, f64) {
    let mut left: Vec<f64> = asked.iter().map(|(_, _, work_ns)| *work_ns as f64).collect();
    let mut ends = vec![f64::INFINITY; asked.len()];
    let (mut now, mut busy) = (0.0, 0.0);
    let begin = |i: usize| (asked[i].0 + asked[i].1) as f64;
    while ends.iter().any(|end| end.is_infinite()) {
        let open: Vec<usize> = (0..asked.len()).filter(|i| ends[*i].is_infinite()).collect();
        let moving: Vec<usize> = open.iter().copied().filter(|i| begin(*i) <= now).collect();
        let begins = open.iter().map(|i| begin(*i)).filter(|begin| *begin > now);
        let n = moving.len() as f64;
        let next = moving.iter().map(|i| now + left[*i] * n).chain(begins).fold(f64::INFINITY, f64::min);
        for i in &moving {
            left[*i] -= (next - now) / n;
            if left[*i] < 1e-6 {
                ends[*i] = next;
            }
        }
        busy += if moving.is_empty() { 0.0 } else { next - now };
        now = next;
    }
    (ends, busy)
}

#[test]
fn copies_that_overlap_share_the_link_equally() {
    assert_eq!(run(&[(0, 10, 100)]), (vec![110], 100), "alone it has all of it");
    assert_eq!(run(&[(0, 10, 100), (0, 10, 100)]), (vec![210, 210], 200));
    // From 10 to 60 the first is alone, then each has half: it has 50 left, which takes 100. The second is alone from 160 on, with 50 left.
    assert_eq!(run(&[(0, 10, 100), (50, 10, 100)]), (vec![160, 210], 200));
    // A short one passes a long one: 20 of it take 40, and the long one ends when both would have.
    assert_eq!(run(&[(0, 10, 100), (50, 10, 20)]), (vec![130, 100], 120));
    // The latency of the second is that in which the first moves alone; when it begins to move, the first has ended.
    assert_eq!(run(&[(0, 100, 100), (100, 100, 100)]), (vec![200, 300], 200));
    // Thirds: 30 of the link's time each take 90, though no third of a nanosecond is a whole number.
    assert_eq!(run(&[(0, 0, 31), (0, 0, 31), (0, 0, 31)]), (vec![93, 93, 93], 93));
    assert_eq!(run(&[(7, 0, 0), (7, 5, 0)]), (vec![7, 12], 0), "nothing to move takes no time");
}

#[test]
fn ends_are_those_of_a_model_that_computes_every_share_again() {
    let mut state = 0_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut overlapping = 0;
    for round in 0..300 {
        let latency_ns = [0, 10_000, 1_000_000][round % 3];
        let spacing_ns = [1, 50_000, 400_000][round / 3 % 3];
        let mut at_ns = 0;
        let asked: Vec<Asked> = (0..1 + below(60))
            .map(|_| {
                at_ns += below(spacing_ns);
                (at_ns, latency_ns, [0, below(1000), 100_000, below(1_000_000)][below(4) as usize])
            })
            .collect();
        let ((ends, busy_ns), (modelled, modelled_busy)) = (run(&asked), modelled(&asked));
        // Every end may be rounded up, and those after it be late by as much.
        let late = asked.len() as f64;
        for (i, (end_ns, expected)) in ends.iter().zip(&modelled).enumerate() {
            let off = *end_ns as f64 - expected;
            assert!((-1e-3..=late).contains(&off), "round {round}: copy {i} of {asked:?} ends at {end_ns}: {expected}");
            let (asked_ns, latency_ns, work_ns) = asked[i];
            overlapping += u32::from(*end_ns > asked_ns + latency_ns + work_ns);
        }
        assert!((busy_ns as f64 - modelled_busy).abs() <= late, "round {round}: busy {busy_ns}: {modelled_busy}");
        let work_ns: u64 = asked.iter().map(|it| it.2).sum();
        assert!((work_ns..=work_ns + late as u64).contains(&busy_ns), "no time is lost while something moves");
        assert_eq!(run(&asked), (ends, busy_ns));
    }
    assert!(overlapping > 1000, "{overlapping} copies had to share");
}

#[test]
fn what_is_lost_leaves_nothing_behind() {
    let mut direction = LinkDirection::default();
    let (mut ended, mut lost) = (Vec::new(), Vec::new());
    direction.ask(copy(1, (0, 10, 100)));
    let begin = direction.next_wake_up().unwrap();
    direction.wake_up(begin.at_ns, begin.version, &mut ended);
    let end = direction.next_wake_up().unwrap();
    direction.ask(copy(2, (45, 10, 100)));
    let join = direction.next_wake_up().unwrap();
    assert_eq!((begin.at_ns, end.at_ns, join.at_ns), (10, 110, 55));
    direction.lose(50, &mut lost);
    assert_eq!(lost.drain(..).map(|copy| copy.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((direction.next_wake_up(), direction.busy_ns), (None, 40));
    // What comes after it is alone, and old wake_ups are passed over.
    direction.ask(copy(3, (55, 0, 5)));
    let wake_up = direction.next_wake_up().unwrap();
    direction.wake_up(join.at_ns, join.version, &mut ended);
    assert_eq!((wake_up.at_ns, direction.next_wake_up()), (55, None));
    direction.wake_up(wake_up.at_ns, wake_up.version, &mut ended);
    let wake_up = direction.next_wake_up().unwrap();
    direction.wake_up(end.at_ns, end.version, &mut ended);
    assert_eq!(ended, []);
    direction.wake_up(wake_up.at_ns, wake_up.version, &mut ended);
    assert_eq!((wake_up.at_ns, ended.len(), direction.busy_ns), (60, 1, 45));
}

#[test]
fn a_link_on_which_nothing_moves_ends_its_copies_at_the_end_of_time() {
    assert_eq!(run(&[(5, 5, u64::MAX), (6, 5, u64::MAX)]).0, [u64::MAX; 2]);
}
