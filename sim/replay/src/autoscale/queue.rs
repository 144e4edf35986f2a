//! `queue`: waiting requests per replica, or the age of the oldest waiting request.
//!
//! A backlog orders one replica for every `target` waiting requests; replicas that are starting count towards them, so a long start
//! does not order more and more. An empty queue says nothing about spare capacity, so a replica stops only if the others have room
//! for the running requests.

use trunkline_core::names::spec::Param;

use super::{Observed, ScalingPolicy, with_limits};

const MS_NS: u64 = 1_000_000;

pub(super) const PARAMS: [Param; 8] = with_limits(&[
    Param { key: "target", about: "waiting requests per replica to order", default: 8, min: 1, max: 1_000_000 },
    Param {
        key: "age_ms",
        about: "age of a waiting request that orders a replica; 0 is none",
        default: 2_000,
        min: 0,
        max: 3_600_000,
    },
    Param {
        key: "running",
        about: "running requests for which a replica has room",
        default: 32,
        min: 1,
        max: 1_000_000,
    },
]);

/// Policy on the queue.
#[derive(Debug)]
pub(super) struct Queue {
    target: u32,
    age_ns: Option<u64>,
    running: u64,
}

impl Queue {
    pub(super) fn new(values: &[u64]) -> Self {
        let age_ns = (values[1] > 0).then_some(values[1] * MS_NS);
        Self { target: values[0] as u32, age_ns, running: values[2] }
    }
}

impl ScalingPolicy for Queue {
    fn desired(&mut self, observed: &Observed) -> u32 {
        let is_old = self.age_ns.is_some_and(|age_ns| observed.oldest_waiting_ns >= age_ns);
        let backlog = observed.waiting / self.target;
        let missing = backlog.max(u32::from(is_old));
        let present = observed.provisioned();
        if missing > 0 {
            return (present - observed.starting) + missing.max(observed.starting);
        }
        let room = u64::from(present.saturating_sub(1)) * self.running;
        if observed.waiting == 0 && u64::from(observed.running) <= room { present.saturating_sub(1) } else { present }
    }
}
