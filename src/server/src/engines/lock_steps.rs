//! Groups of attached workers that run each step of the model together, as the ranks of a model whose experts are divided among them do.
//!
//! If a member runs a step, each of the others runs a step or an idle one at the same time. The server counts the steps sent to each member.
//! **A member with fewer steps than another, and none in flight, gets idle steps until it has as many.** A member with a step in flight gets
//! none yet: with the answer its engine may have another step for it.
//!
//! Nobody waits for ever: of the members with the fewest steps, those with a step in flight end it, because all others have been sent as many.
//!
//! The members start when all are there. If one goes, fails a step or loses its connection, the counts mean nothing any more: all members go,
//! and start over when all are there again.

use trunkline_attach::LockStep;
use trunkline_cluster::EngineId;

/// A worker of a group, in its seat.
#[derive(Debug)]
struct Member {
    rank: u32,
    engine: EngineId,
    /// Steps sent, idle ones too.
    sent: u64,
    /// Steps sent and not answered. Idle steps have no answer.
    in_flight: u32,
}

#[derive(Debug)]
struct Group {
    name: String,
    size: u32,
    members: Vec<Member>,
}

impl Group {
    fn is_complete(&self) -> bool {
        self.members.len() == self.size as usize
    }

    fn missing(&self) -> usize {
        self.size as usize - self.members.len()
    }
}

/// Reason for a worker not to join its group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GroupFault {
    #[error("group {group} has {size} workers, not {wanted}")]
    Size { group: String, size: u32, wanted: u32 },
    #[error("rank {rank} of group {group} is taken")]
    RankTaken { group: String, rank: u32 },
    #[error("group {group} has {size} workers, and the server has room for {room} of them")]
    NoRoom { group: String, size: u32, room: usize },
    #[error("all {vacant} engines that are left wait for workers of other groups")]
    Reserved { vacant: usize },
}

/// All groups with a member that is there.
#[derive(Debug, Default)]
pub(crate) struct LockSteps {
    groups: Vec<Group>,
}

impl LockSteps {
    fn group_of(&self, engine: EngineId) -> Option<&Group> {
        self.groups.iter().find(|group| group.members.iter().any(|member| member.engine == engine))
    }

    fn member(&mut self, engine: EngineId) -> Option<&mut Member> {
        self.groups.iter_mut().flat_map(|group| &mut group.members).find(|member| member.engine == engine)
    }

    /// Returns `true` if the worker of an engine is a member of a group.
    pub(crate) fn has(&self, engine: EngineId) -> bool {
        self.group_of(engine).is_some()
    }

    /// Returns `true` unless the worker of an engine waits for other members of its group.
    pub(crate) fn is_ready(&self, engine: EngineId) -> bool {
        self.group_of(engine).is_none_or(Group::is_complete)
    }

    /// Returns the group of an engine's worker: its name, and the rank of the worker.
    pub(crate) fn rank(&self, engine: EngineId) -> Option<(&str, u32)> {
        let group = self.group_of(engine)?;
        let member = group.members.iter().find(|member| member.engine == engine)?;
        Some((&group.name, member.rank))
    }

    /// Checks that a worker, of a group or of none, can be seated with `vacant` seats left: seats are kept for the missing members of
    /// groups, so that no two groups wait for the same seats.
    pub(crate) fn check(&self, wants: Option<&LockStep>, vacant: usize) -> Result<(), GroupFault> {
        let kept: usize = self.groups.iter().map(Group::missing).sum();
        let Some(LockStep { group: name, size, rank }) = wants else {
            return if vacant > kept || kept == 0 { Ok(()) } else { Err(GroupFault::Reserved { vacant }) };
        };
        let group = name.clone();
        match self.groups.iter().find(|group| group.name == *name) {
            Some(known) if known.size != *size => Err(GroupFault::Size { group, size: known.size, wanted: *size }),
            Some(known) if known.members.iter().any(|member| member.rank == *rank) => {
                Err(GroupFault::RankTaken { group, rank: *rank })
            }
            None if vacant < kept + *size as usize => {
                Err(GroupFault::NoRoom { group, size: *size, room: vacant.saturating_sub(kept) })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Notes that a checked worker has the seat of an engine. Returns the engines that start now, in the order of ranks: all of the group if
    /// it is complete.
    pub(crate) fn join(&mut self, engine: EngineId, lock_step: LockStep) -> Vec<EngineId> {
        let LockStep { group: name, size, rank } = lock_step;
        let at = self.groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
            self.groups.push(Group { name, size, members: Vec::new() });
            self.groups.len() - 1
        });
        let group = &mut self.groups[at];
        group.members.push(Member { rank, engine, sent: 0, in_flight: 0 });
        group.members.sort_by_key(|member| member.rank);
        assert!(group.members.len() <= group.size as usize, "a group has one member of each rank");
        let members = group.members.iter().map(|member| member.engine);
        if group.is_complete() { members.collect() } else { Vec::new() }
    }

    /// Ends the group of an engine's worker, and returns the engines of the other members.
    pub(crate) fn leave(&mut self, engine: EngineId) -> Vec<EngineId> {
        let has = |group: &Group| group.members.iter().any(|member| member.engine == engine);
        let Some(at) = self.groups.iter().position(has) else { return Vec::new() };
        let members = self.groups.swap_remove(at).members;
        members.into_iter().map(|member| member.engine).filter(|other| *other != engine).collect()
    }

    /// Notes a step that is sent to the worker of an engine.
    pub(crate) fn sent(&mut self, engine: EngineId) {
        if let Some(member) = self.member(engine) {
            member.sent += 1;
            member.in_flight += 1;
        }
    }

    /// Notes the answer to a step.
    pub(crate) fn answered(&mut self, engine: EngineId) {
        if let Some(member) = self.member(engine) {
            member.in_flight -= 1;
        }
    }

    /// Counts an idle step for a member that owes one, and returns its engine. `None` if no member does.
    pub(crate) fn next_idle(&mut self) -> Option<EngineId> {
        for group in self.groups.iter_mut().filter(|group| group.is_complete()) {
            let most = group.members.iter().map(|member| member.sent).max()?;
            if let Some(member) = group.members.iter_mut().find(|member| member.sent < most && member.in_flight == 0) {
                member.sent += 1;
                return Some(member.engine);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(group: &str, size: u32, rank: u32) -> LockStep {
        LockStep { group: group.into(), size, rank }
    }

    fn engines(numbers: &[u32]) -> Vec<EngineId> {
        numbers.iter().copied().map(EngineId).collect()
    }

    fn idle(groups: &mut LockSteps) -> Vec<EngineId> {
        std::iter::from_fn(|| groups.next_idle()).collect()
    }

    #[test]
    fn members_start_when_all_are_there_and_go_together() {
        let mut groups = LockSteps::default();
        assert!(groups.join(EngineId(3), rank("a", 2, 1)).is_empty());
        assert!(groups.has(EngineId(3)) && !groups.is_ready(EngineId(3)) && groups.is_ready(EngineId(1)));
        assert_eq!(groups.join(EngineId(1), rank("a", 2, 0)), engines(&[1, 3]), "in the order of ranks");
        assert!(groups.is_ready(EngineId(3)));
        assert_eq!(groups.rank(EngineId(3)), Some(("a", 1)));
        assert_eq!(groups.leave(EngineId(1)), engines(&[3]));
        assert!(!groups.has(EngineId(3)) && groups.leave(EngineId(3)).is_empty());
    }

    #[test]
    fn a_member_without_a_step_in_flight_gets_as_many_as_the_others() {
        let mut groups = LockSteps::default();
        (0..3).for_each(|at| _ = groups.join(EngineId(at), rank("a", 3, at)));
        assert!(idle(&mut groups).is_empty());
        groups.sent(EngineId(0));
        groups.sent(EngineId(2));
        assert_eq!(idle(&mut groups), engines(&[1]));
        // Two steps in flight: engine 2 may have a step of its own once it has answered.
        groups.sent(EngineId(0));
        assert_eq!(idle(&mut groups), engines(&[1]));
        groups.answered(EngineId(2));
        groups.sent(EngineId(2));
        assert!(idle(&mut groups).is_empty());
        // And if it has none, it idles.
        groups.answered(EngineId(0));
        groups.sent(EngineId(0));
        assert_eq!(idle(&mut groups), engines(&[1]));
        groups.answered(EngineId(2));
        assert_eq!(idle(&mut groups), engines(&[2]));
    }

    #[test]
    fn seats_are_kept_for_missing_members() {
        let mut groups = LockSteps::default();
        let fault = |groups: &LockSteps, wants: Option<LockStep>, vacant| {
            groups.check(wants.as_ref(), vacant).map_err(|fault| fault.to_string())
        };
        assert_eq!(fault(&groups, None, 0), Ok(()), "full seats are another matter");
        let line = "group a has 3 workers, and the server has room for 2 of them";
        assert_eq!(fault(&groups, Some(rank("a", 3, 0)), 2), Err(line.into()));
        assert_eq!(fault(&groups, Some(rank("a", 3, 0)), 3), Ok(()));
        groups.join(EngineId(0), rank("a", 3, 0));
        assert_eq!(fault(&groups, Some(rank("a", 3, 0)), 2), Err("rank 0 of group a is taken".into()));
        assert_eq!(fault(&groups, Some(rank("a", 2, 1)), 2), Err("group a has 3 workers, not 2".into()));
        assert_eq!(fault(&groups, Some(rank("a", 3, 2)), 2), Ok(()));
        let line = "all 2 engines that are left wait for workers of other groups";
        assert_eq!(fault(&groups, None, 2), Err(line.into()));
        assert_eq!(fault(&groups, None, 3), Ok(()));
        let line = "group b has 2 workers, and the server has room for 1 of them";
        assert_eq!(fault(&groups, Some(rank("b", 2, 0)), 3), Err(line.into()));
    }
}
