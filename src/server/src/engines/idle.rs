//! Time in which a worker has no step, by what it waits for.

/// What a worker without a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleCause {
    /// A request to run.
    Requests,
    /// The scheduler: from the end of a step until the core's thread has decided what comes next.
    Scheduler,
    /// Blocks of the requests there are: room for them, or copies and lookups in tiers.
    Blocks,
}

impl IdleCause {
    /// All causes, with the names that metrics have.
    pub(crate) const ALL: [(&str, Self); 3] =
        [("requests", Self::Requests), ("scheduler", Self::Scheduler), ("blocks", Self::Blocks)];
}

/// Time without a step so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Idle {
    /// Beginning of the wait under way, and what it is for.
    since: Option<(u64, IdleCause)>,
    total_ns: [u64; IdleCause::ALL.len()],
}

impl Idle {
    /// Notes that the worker waits for `cause` from now on.
    pub(crate) fn wait(&mut self, cause: IdleCause, now_ns: u64) {
        if self.since.is_none_or(|(_, of)| of != cause) {
            self.stop(now_ns);
            self.since = Some((now_ns, cause));
        }
    }

    /// Notes that the worker has a step, or is no longer there.
    pub(crate) fn stop(&mut self, now_ns: u64) {
        if let Some((since_ns, cause)) = self.since.take() {
            self.total_ns[cause as usize] += now_ns.saturating_sub(since_ns);
        }
    }

    /// Notes that the worker is lost.
    pub(crate) fn forget(&mut self) {
        self.since = None;
    }

    /// Returns `true` if the worker waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the nanoseconds of waits for `cause` until now.
    pub(crate) fn total_ns(&self, cause: IdleCause) -> u64 {
        self.total_ns[cause as usize]
    }

    /// Returns the times with that of the wait under way.
    pub(crate) fn until(mut self, now_ns: u64) -> Self {
        self.stop(now_ns);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_counts_for_its_cause() {
        let mut idle = Idle::default();
        idle.stop(5);
        idle.wait(IdleCause::Requests, 10);
        idle.wait(IdleCause::Requests, 15);
        idle.stop(30);
        idle.wait(IdleCause::Scheduler, 40);
        idle.wait(IdleCause::Blocks, 43);
        let until = idle.until(50);
        assert_eq!(IdleCause::ALL.map(|(_, cause)| until.total_ns(cause)), [20, 3, 7]);
        assert_eq!((idle.total_ns(IdleCause::Blocks), idle.is_waiting(), until.is_waiting()), (0, true, false));
    }
}
