//! States of streamed groups.

/// State of a streamed group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// Has no memory.
    OnDisk,
    /// Is being read into a slot.
    InFlight,
    /// Lies in a slot, for the next use.
    Resident,
    /// Is computed with: protected from eviction.
    InUse,
    /// Lies in a slot without a use: the slot may be filled with another group.
    Evicting,
}

/// Causes of a change of [`GroupState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// The reader took a slot for the group.
    ReadBegan,
    /// The group was read, and its checksum is right.
    ReadEnded,
    /// The group could not be read, or its checksum is wrong.
    ReadFailed,
    /// The step came to the group.
    UseBegan,
    /// The step came to the next group.
    UseEnded,
    /// A step that failed left the group behind.
    Abandoned,
    /// The slot was taken for another group.
    SlotTaken,
}

/// Every change of [`GroupState`].
pub const GROUP_TRANSITIONS: [(GroupEvent, GroupState, GroupState); 7] = {
    use GroupEvent::{Abandoned, ReadBegan, ReadEnded, ReadFailed, SlotTaken, UseBegan, UseEnded};
    use GroupState::{Evicting, InFlight, InUse, OnDisk, Resident};
    [
        (ReadBegan, OnDisk, InFlight),
        (ReadEnded, InFlight, Resident),
        (ReadFailed, InFlight, OnDisk),
        (UseBegan, Resident, InUse),
        (UseEnded, InUse, Evicting),
        (Abandoned, Resident, Evicting),
        (SlotTaken, Evicting, OnDisk),
    ]
};

/// States of all streamed groups, in the order of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups(Vec<GroupState>);

impl Groups {
    /// Creates `n` groups on the disk.
    pub fn new(n: usize) -> Self {
        Self(vec![GroupState::OnDisk; n])
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no groups.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the state of a group.
    pub fn state(&self, group: usize) -> GroupState {
        self.0[group]
    }

    /// Returns the number of groups in a state.
    pub fn count(&self, state: GroupState) -> usize {
        self.0.iter().filter(|of| **of == state).count()
    }

    /// Changes the state of a group.
    ///
    /// # Panics
    /// If [`GROUP_TRANSITIONS`] does not list the change.
    pub fn apply(&mut self, group: usize, event: GroupEvent) {
        let from = self.0[group];
        let next = GROUP_TRANSITIONS.iter().find(|(on, left, _)| *on == event && *left == from);
        let Some((.., to)) = next else { panic!("group {group} of weights is {from:?}: no {event:?}") };
        self.0[group] = *to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_documented() {
        let table: String =
            GROUP_TRANSITIONS.iter().map(|(event, from, to)| format!("{event:?}: {from:?} -> {to:?}\n")).collect();
        let expected = "\
ReadBegan: OnDisk -> InFlight
ReadEnded: InFlight -> Resident
ReadFailed: InFlight -> OnDisk
UseBegan: Resident -> InUse
UseEnded: InUse -> Evicting
Abandoned: Resident -> Evicting
SlotTaken: Evicting -> OnDisk
";
        assert_eq!(table, expected);
    }

    #[test]
    fn a_group_goes_round() {
        let mut groups = Groups::new(2);
        for event in [
            GroupEvent::ReadBegan,
            GroupEvent::ReadEnded,
            GroupEvent::UseBegan,
            GroupEvent::UseEnded,
            GroupEvent::SlotTaken,
        ] {
            groups.apply(1, event);
        }
        assert_eq!((groups.count(GroupState::OnDisk), groups.state(1)), (2, GroupState::OnDisk));
    }

    #[test]
    #[should_panic(expected = "group 0 of weights is InUse: no SlotTaken")]
    fn a_group_in_use_is_protected() {
        let mut groups = Groups::new(1);
        for event in [GroupEvent::ReadBegan, GroupEvent::ReadEnded, GroupEvent::UseBegan, GroupEvent::SlotTaken] {
            groups.apply(0, event);
        }
    }
}
