//! `load`: waiting and running requests per replica against a target, as the HorizontalPodAutoscaler of Kubernetes does.
//!
//! `ceil(requests / target)`, unless the load per replica is within the tolerance of the target. Replicas that are starting count as
//! replicas without load, as pods that are not ready do there.

use trunkline_core::names::spec::Param;

use super::{Observed, ScalingPolicy, with_limits};

pub(super) const PARAMS: [Param; 7] = with_limits(&[
    Param { key: "target", about: "requests per replica", default: 32, min: 1, max: 1_000_000 },
    Param { key: "tolerance_percent", about: "change of load without effect", default: 10, min: 0, max: 100 },
]);

/// Policy on the number of requests.
#[derive(Debug)]
pub(super) struct Load {
    target: u64,
    tolerance_percent: u64,
}

impl Load {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { target: values[0], tolerance_percent: values[1] }
    }
}

impl ScalingPolicy for Load {
    fn desired(&mut self, observed: &Observed) -> u32 {
        let requests = u64::from(observed.waiting) + u64::from(observed.running);
        let present = observed.provisioned();
        let at_target = u64::from(present) * self.target;
        if requests.abs_diff(at_target) * 100 <= at_target * self.tolerance_percent {
            return present;
        }
        requests.div_ceil(self.target).try_into().unwrap_or(u32::MAX)
    }
}
