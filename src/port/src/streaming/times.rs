//! Times of a step that reads weights while computing.
//!
//! Groups are visited in a circle. For the `i`-th visit of a streamed group, counted over all passes, and a window of `slots`
//!
//! ```text
//! read(i)     = max(read(i - 1), computed(i - slots)) + bytes / rate       a slot is free when its group was computed with
//! computed(g) = max(computed(group before g), read(g) if streamed) + compute of g
//! ```
//!
//! where `computed(i)` is the end of the visit `i`. At most `ahead` groups are read ahead of the group in use: with `slots = ahead + 1` that is the same condition.

use crate::WeightReads;

/// Times of one group in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Visit {
    /// Bytes read; 0 for a pinned group.
    pub bytes: u64,
    /// Duration of the read, seconds; 0 for a pinned group.
    pub read_s: f64,
    /// Duration of the computation, seconds.
    pub compute_s: f64,
}

/// Returns the visits of a pass over groups of `(bytes, pinned)` and the output matrix after the last: the computation is spread by bytes, and the disk reads at one rate.
pub fn parts(groups: &[(u64, bool)], head_bytes: u64, read_s_per_byte: f64, compute_s: f64) -> Vec<Visit> {
    let all: u64 = groups.iter().map(|(bytes, _)| bytes).sum::<u64>() + head_bytes;
    let share = |bytes: u64| compute_s * bytes as f64 / all.max(1) as f64;
    let group = |(bytes, is_pinned): &(u64, bool)| {
        let read = if *is_pinned { 0 } else { *bytes };
        Visit { bytes: read, read_s: read as f64 * read_s_per_byte, compute_s: share(*bytes) }
    };
    let head = Visit { compute_s: share(head_bytes), ..Visit::default() };
    groups.iter().map(group).chain([head]).collect()
}

/// Simulated passes, and the last of them measured: the pipeline has filled by then.
const PASSES: usize = 12;
const MEASURED: usize = 6;

/// Returns the reads and the time of one pass in a full pipeline, as the mean of several.
pub fn pass(visits: &[Visit], slots: usize) -> WeightReads {
    let streamed = visits.iter().filter(|visit| visit.bytes > 0).count();
    // Ends of the computations with streamed groups, in order.
    let mut computed: Vec<f64> = Vec::with_capacity(streamed * PASSES);
    let (mut last_read, mut now, mut begin, mut exposed_s) = (0.0f64, 0.0f64, 0.0, 0.0);
    for n in 0..PASSES {
        if n == PASSES - MEASURED {
            (begin, exposed_s) = (now, 0.0);
        }
        for visit in visits {
            if visit.bytes > 0 {
                let free = computed.len().checked_sub(slots.max(1)).map_or(0.0, |at| computed[at]);
                last_read = last_read.max(free) + visit.read_s;
                exposed_s += (last_read - now).max(0.0);
                now = now.max(last_read);
            }
            now += visit.compute_s;
            if visit.bytes > 0 {
                computed.push(now);
            }
        }
    }
    let ns = |seconds: f64| (seconds * 1e9).round() as u64;
    WeightReads {
        steps: u64::from(streamed > 0),
        bytes: visits.iter().map(|visit| visit.bytes).sum(),
        reading_ns: ns(visits.iter().filter(|visit| visit.bytes > 0).map(|visit| visit.read_s).sum()),
        exposed_ns: ns(exposed_s / MEASURED as f64),
        step_ns: ns((now - begin) / MEASURED as f64),
        failed_reads: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(read_s: f64, compute_s: f64) -> Visit {
        Visit { bytes: 1, read_s, compute_s }
    }

    fn pinned(compute_s: f64) -> Visit {
        Visit { bytes: 0, read_s: 0.0, compute_s }
    }

    #[test]
    fn a_pass_takes_the_longer_of_reading_and_computing_if_the_window_is_wide_enough() {
        let alternating: Vec<Visit> = (0..20).flat_map(|_| [streamed(2.0, 1.0), pinned(1.0)]).collect();
        let reads = pass(&alternating, 2);
        assert_eq!((reads.step_ns, reads.reading_ns, reads.exposed_ns), (40_000_000_000, 40_000_000_000, 0));
        assert_eq!((reads.hidden_share(), reads.saved_share()), (Some(1.0), Some(0.5)));
        // All pinned groups first: the disk stands still while they are computed with, but for the window.
        let sorted: Vec<Visit> = [[pinned(1.0); 20], [streamed(2.0, 1.0); 20]].concat();
        let reads = pass(&sorted, 2);
        assert_eq!(reads.step_ns, 1_000_000_000 * (20 + 2 * 18 + 2));
    }

    #[test]
    fn a_window_of_one_slot_overlaps_nothing_but_pinned_groups() {
        let reads = pass(&[streamed(3.0, 1.0); 4], 1);
        assert_eq!((reads.step_ns, reads.hidden_ns()), (16_000_000_000, 0));
        assert_eq!(reads.serial_ns(), reads.step_ns);
    }

    #[test]
    fn parts_of_a_pass_share_its_computation_by_bytes() {
        let visits = parts(&[(2, false), (6, true)], 2, 0.5, 10.0);
        let head = Visit { compute_s: 2.0, ..Visit::default() };
        assert_eq!(visits, [Visit { bytes: 2, read_s: 1.0, compute_s: 2.0 }, Visit { compute_s: 6.0, ..head }, head]);
    }

    #[test]
    fn a_pass_without_reads_is_its_computation() {
        let reads = pass(&[pinned(1.0), pinned(0.5)], 0);
        assert_eq!(reads, WeightReads { step_ns: 1_500_000_000, ..WeightReads::default() });
    }
}
