//! Replicas that are the ranks of data-parallel attention, and run in lock step.

use std::ops::Range;

use super::Settings;

/// Ranks that cannot run in lock step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockStepError {
    /// Group without all of its ranks.
    #[error(
        "{replicas} replicas for dp{data}: each replica is a rank, and {data} ranks share the experts; give a multiple of {data}"
    )]
    Replicas {
        /// Number of replicas of the kind.
        replicas: u32,
        /// Ranks of a group.
        data: u32,
    },
    /// Ranks that would start, stop or fail alone.
    #[error(
        "replicas with dp run in lock step, so none fails, starts or stops alone; leave failures and autoscaling out"
    )]
    Changes,
    /// Ranks of one group with different roles.
    #[error("replicas {} to {last} are the ranks of one group with dp and have different roles; give them one role", last + 1 - data)]
    Roles {
        /// Number of the group's last replica.
        last: u32,
        /// Ranks of a group.
        data: u32,
    },
}

impl Settings {
    /// Returns the replicas of each group in lock step; none without data-parallel attention.
    pub(crate) fn lock_step_groups(&self) -> Vec<Range<usize>> {
        let mut groups = Vec::new();
        let mut first = 0;
        for (replicas, _, parallel, _) in self.kinds() {
            let (end, data) = (first + replicas as usize, parallel.data as usize);
            if data > 1 {
                groups.extend((first..end).step_by(data).map(|at| at..(at + data).min(end)));
            }
            first = end;
        }
        groups
    }

    /// Checks that every group has all ranks, of one role, and keeps them.
    pub(super) fn validate_lock_step(&self) -> Result<(), LockStepError> {
        for (replicas, _, parallel, _) in self.kinds() {
            if !replicas.is_multiple_of(parallel.data) {
                return Err(LockStepError::Replicas { replicas, data: parallel.data });
            }
        }
        let groups = self.lock_step_groups();
        if !groups.is_empty() && self.replicas_change() {
            return Err(LockStepError::Changes);
        }
        for ranks in groups {
            let (data, last) = (ranks.len() as u32, ranks.end as u32 - 1);
            if ranks.clone().any(|rank| self.role_of(rank) != self.role_of(ranks.start)) {
                return Err(LockStepError::Roles { last, data });
            }
        }
        Ok(())
    }
}
