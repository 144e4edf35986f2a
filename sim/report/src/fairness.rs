//! Fairness of one replica towards tenants that compete for it.
//!
//! *Service* is work done for a tenant, in units: one per computed prompt token and [`OUTPUT_UNITS`] per generated token; none for
//! prefix hits or for tokens recomputed after a preemption. Service counts at the end of the step. The core's `vtc` policy counts
//! the same.
//!
//! A tenant *waits* while at least one of its requests at the replica has not begun to run. The scheduler chooses between two
//! tenants only while both wait, so the *gap* of two tenants is the greatest difference between their services over any interval
//! with both waiting throughout. Fair-queueing theory bounds this quantity (for LLM serving: the virtual token counter, OSDI 2024).
//! The gap is exact: over one interval, it is the range of the running difference of the two services.

/// Units of service per generated token; a prompt token counts one. Weights of the virtual token counter's authors.
pub const OUTPUT_UNITS: u64 = 2;

/// Competition of the tenants at one replica.
#[derive(Clone, Debug)]
pub struct Contention {
    tenants: Vec<Contender>,
    /// Pair `(a, b)`, `a < b`, at index `a * n + b`.
    pairs: Vec<Range>,
    n_waiting: usize,
    since_ns: u64,
}

/// Tenant at the replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contender {
    /// Requests that have not begun to run.
    waiting: u64,
    /// Service so far, units.
    service: u64,
    /// Service of the current step, not yet counted, units.
    fresh: u64,
    /// Time waiting together with another tenant, nanoseconds.
    pub contended_ns: u64,
    /// Service during that time, units.
    pub contended_service: u64,
}

/// Running difference of two services while both tenants wait.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    min: i64,
    max: i64,
    gap_max: u64,
}

impl Contention {
    /// Returns the competition of `n` tenants, none of them waiting.
    pub fn new(n: usize) -> Self {
        Self { tenants: vec![Contender::default(); n], pairs: vec![Range::default(); n * n], n_waiting: 0, since_ns: 0 }
    }

    /// Adds a waiting request.
    pub fn wait(&mut self, now_ns: u64, tenant: usize) {
        self.advance(now_ns);
        self.tenants[tenant].waiting += 1;
        if self.tenants[tenant].waiting > 1 {
            return;
        }
        self.n_waiting += 1;
        for other in 0..self.tenants.len() {
            if other != tenant && self.tenants[other].waiting > 0 {
                // An interval of the two begins.
                let difference = self.difference(tenant, other);
                let range = &mut self.pairs[pair(tenant, other, self.tenants.len())];
                (range.min, range.max) = (difference, difference);
            }
        }
    }

    /// Removes a waiting request: it begins to run, or was refused.
    pub fn leave(&mut self, now_ns: u64, tenant: usize) {
        self.advance(now_ns);
        self.tenants[tenant].waiting -= 1;
        self.n_waiting -= usize::from(self.tenants[tenant].waiting == 0);
    }

    /// Adds service from the step that ends now.
    pub fn serve(&mut self, tenant: usize, units: u64) {
        self.tenants[tenant].fresh += units;
    }

    /// Counts the service of the whole step at once, so that the order within a step makes no difference.
    pub fn step_ended(&mut self) {
        let contended = self.n_waiting > 1;
        for tenant in &mut self.tenants {
            let fresh = std::mem::take(&mut tenant.fresh);
            tenant.service += fresh;
            if contended && tenant.waiting > 0 {
                tenant.contended_service += fresh;
            }
        }
        if !contended {
            return;
        }
        let n = self.tenants.len();
        for a in 0..n {
            for b in a + 1..n {
                if self.tenants[a].waiting > 0 && self.tenants[b].waiting > 0 {
                    let difference = self.difference(a, b);
                    let range = &mut self.pairs[pair(a, b, n)];
                    range.min = range.min.min(difference);
                    range.max = range.max.max(difference);
                    range.gap_max = range.gap_max.max(range.max.abs_diff(range.min));
                }
            }
        }
    }

    /// Returns the greatest gap between any two tenants, units of service.
    pub fn gap_max(&self) -> u64 {
        self.pairs.iter().map(|range| range.gap_max).max().unwrap_or(0)
    }

    /// Returns the tenants by number.
    pub fn tenants(&self) -> &[Contender] {
        &self.tenants
    }

    /// Counts the time up to `now_ns`. A step sent ahead counts at its start, so an arrival may seem to be earlier.
    fn advance(&mut self, now_ns: u64) {
        let now_ns = now_ns.max(self.since_ns);
        let passed_ns = now_ns - self.since_ns;
        self.since_ns = now_ns;
        if passed_ns > 0 && self.n_waiting > 1 {
            for tenant in self.tenants.iter_mut().filter(|tenant| tenant.waiting > 0) {
                tenant.contended_ns += passed_ns;
            }
        }
    }

    /// Returns the service of the lower-numbered tenant minus that of the other.
    fn difference(&self, a: usize, b: usize) -> i64 {
        let (low, high) = (a.min(b), a.max(b));
        self.tenants[low].service as i64 - self.tenants[high].service as i64
    }
}

/// Returns the index of a pair among those of `n` tenants.
fn pair(a: usize, b: usize, n: usize) -> usize {
    a.min(b) * n + a.max(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens at one time: requests of tenants that come, those that begin, services.
    struct Moment {
        at_ns: u64,
        come: Vec<usize>,
        begin: Vec<usize>,
        services: Vec<(usize, u64)>,
    }

    fn moment(at_ns: u64, come: &[usize], begin: &[usize], services: &[(usize, u64)]) -> Moment {
        Moment { at_ns, come: come.into(), begin: begin.into(), services: services.into() }
    }

    fn play(n: usize, moments: &[Moment]) -> Contention {
        let mut contention = Contention::new(n);
        for moment in moments {
            moment.services.iter().for_each(|(tenant, units)| contention.serve(*tenant, *units));
            contention.step_ended();
            moment.come.iter().for_each(|tenant| contention.wait(moment.at_ns, *tenant));
            moment.begin.iter().for_each(|tenant| contention.leave(moment.at_ns, *tenant));
        }
        contention
    }

    #[test]
    fn service_counts_only_while_two_wait() {
        let contention = play(
            2,
            &[
                moment(0, &[0, 0, 0], &[0], &[]),
                // Tenant 0 is alone.
                moment(10, &[1], &[], &[(0, 1_000)]),
                moment(20, &[], &[], &[(0, 100)]),
                moment(30, &[], &[1], &[(0, 100), (1, 30)]),
                // Tenant 1 waits no longer.
                moment(40, &[], &[], &[(0, 700), (1, 5)]),
            ],
        );
        assert_eq!(contention.gap_max(), 170);
        let [a, b] = contention.tenants() else { panic!("two tenants") };
        assert_eq!((a.contended_ns, a.contended_service), (20, 200));
        assert_eq!((b.contended_ns, b.contended_service), (20, 30));
    }

    #[test]
    fn the_gap_is_over_any_interval_not_only_whole_ones() {
        // The difference goes 0, 50, -150, -20: from its highest to its lowest is 200.
        let contention = play(
            2,
            &[
                moment(0, &[0, 1], &[], &[]),
                moment(1, &[], &[], &[(0, 50)]),
                moment(2, &[], &[], &[(1, 200)]),
                moment(3, &[], &[], &[(0, 130)]),
            ],
        );
        assert_eq!(contention.gap_max(), 200);
        // The same services shared out within each step leave no gap.
        let fair = play(2, &[moment(0, &[0, 1], &[], &[]), moment(1, &[], &[], &[(0, 50), (1, 50)])]);
        assert_eq!(fair.gap_max(), 0);
    }

    #[test]
    fn a_new_interval_forgets_the_difference_of_the_old() {
        let contention = play(
            2,
            &[
                moment(0, &[0, 1], &[], &[]),
                moment(1, &[], &[1], &[(0, 40)]),
                moment(2, &[1], &[], &[(0, 500)]),
                moment(3, &[], &[], &[(1, 60)]),
            ],
        );
        assert_eq!(contention.gap_max(), 60);
    }

    #[test]
    fn gaps_agree_with_a_search_of_all_intervals() {
        let mut state = 9u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let n = 2 + below(3) as usize;
            let mut waiting = vec![0u64; n];
            let mut moments = Vec::new();
            // Which waited after each moment, and what each was given by the step that ended in it.
            let mut history: Vec<(Vec<bool>, Vec<u64>)> = Vec::new();
            for at_ns in 0..60 {
                let mut given = vec![0; n];
                given.iter_mut().for_each(|units| *units = below(100));
                let (mut come, mut begin) = (Vec::new(), Vec::new());
                for (tenant, waiting) in waiting.iter_mut().enumerate() {
                    if below(3) == 0 {
                        come.push(tenant);
                        *waiting += 1;
                    } else if *waiting > 0 && below(3) == 0 {
                        begin.push(tenant);
                        *waiting -= 1;
                    }
                }
                let services: Vec<_> = given.iter().copied().enumerate().collect();
                moments.push(moment(at_ns, &come, &begin, &services));
                history.push((waiting.iter().map(|waiting| *waiting > 0).collect(), given));
            }
            let mut expected = 0;
            for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
                for from in 0..history.len() {
                    let mut difference = 0i64;
                    for at in from..history.len() - 1 {
                        if !(history[at].0[a] && history[at].0[b]) {
                            break;
                        }
                        difference += history[at + 1].1[a] as i64 - history[at + 1].1[b] as i64;
                        expected = expected.max(difference.unsigned_abs());
                    }
                }
            }
            assert_eq!(play(n, &moments).gap_max(), expected);
        }
    }
}
