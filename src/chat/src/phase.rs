//! Phases of a chat: of the turn under way, and of the compaction under way.
//!
//! Two small machines run side by side, because a turn may be generated while the history is being summarised. The one rule between
//! the machines stands in [`crate::Chat`]: a compaction that is ready takes effect only while no turn runs.

/// Phase of the compaction of a chat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No compaction is under way.
    #[default]
    Idle,
    /// The model writes the summary. The chat goes on in the old context.
    Summarising,
    /// The new context is being computed into the prefix cache.
    Warming,
    /// The new context takes effect at the next turn boundary.
    Ready,
}

/// Causes of a change of [`Phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseEvent {
    /// Turns to summarise were chosen.
    Planned,
    /// The summary is there.
    Summarised,
    /// The new context was computed, or could not be: then the next turn computes the context.
    Warmed,
    /// The new context took effect.
    Swapped,
    /// There is no summary; the old context stays.
    Failed,
    /// The chat was rewound, or nobody wants the compaction any more.
    Cancelled,
}

/// Every change of [`Phase`].
pub const TRANSITIONS: [(PhaseEvent, Phase, Phase); 8] = {
    use Phase::{Idle, Ready, Summarising, Warming};
    use PhaseEvent::{Cancelled, Failed, Planned, Summarised, Swapped, Warmed};
    [
        (Planned, Idle, Summarising),
        (Summarised, Summarising, Warming),
        (Warmed, Warming, Ready),
        (Swapped, Ready, Idle),
        (Failed, Summarising, Idle),
        (Cancelled, Summarising, Idle),
        (Cancelled, Warming, Idle),
        (Cancelled, Ready, Idle),
    ]
};

impl Phase {
    /// Returns the phase after an event, or `None` if the table has no such change.
    pub fn after(self, event: PhaseEvent) -> Option<Self> {
        TRANSITIONS.into_iter().find_map(|(on, from, to)| (on == event && from == self).then_some(to))
    }
}

/// Phase of the newest turn of a chat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnPhase {
    /// All turns are whole.
    #[default]
    Quiet,
    /// A turn is being generated.
    Running,
}

/// Causes of a change of [`TurnPhase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEvent {
    /// The prompt of a turn was assembled.
    Begun,
    /// The answer is whole, and the turn part of the transcript.
    Ended,
    /// There is no whole answer; the turn leaves nothing behind.
    GivenUp,
}

/// Every change of [`TurnPhase`].
pub const TURN_TRANSITIONS: [(TurnEvent, TurnPhase, TurnPhase); 3] = {
    use TurnEvent::{Begun, Ended, GivenUp};
    use TurnPhase::{Quiet, Running};
    [(Begun, Quiet, Running), (Ended, Running, Quiet), (GivenUp, Running, Quiet)]
};

impl TurnPhase {
    /// Returns the phase after an event, or `None` if the table has no such change.
    pub fn after(self, event: TurnEvent) -> Option<Self> {
        TURN_TRANSITIONS.into_iter().find_map(|(on, from, to)| (on == event && from == self).then_some(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_as_reviewed() {
        use PhaseEvent::{Cancelled, Failed, Planned, Summarised, Swapped, Warmed};
        let mut table = String::new();
        for from in [Phase::Idle, Phase::Summarising, Phase::Warming, Phase::Ready] {
            let row = [Planned, Summarised, Warmed, Swapped, Failed, Cancelled].map(|event| match from.after(event) {
                Some(to) => format!("{event:?}>{to:?}"),
                None => format!("{event:?}!"),
            });
            table.push_str(&format!("{from:?}: {}\n", row.join(" ")));
        }
        for from in [TurnPhase::Quiet, TurnPhase::Running] {
            let row = [TurnEvent::Begun, TurnEvent::Ended, TurnEvent::GivenUp].map(|event| match from.after(event) {
                Some(to) => format!("{event:?}>{to:?}"),
                None => format!("{event:?}!"),
            });
            table.push_str(&format!("{from:?}: {}\n", row.join(" ")));
        }
        let reviewed = "\
Idle: Planned>Summarising Summarised! Warmed! Swapped! Failed! Cancelled!
Summarising: Planned! Summarised>Warming Warmed! Swapped! Failed>Idle Cancelled>Idle
Warming: Planned! Summarised! Warmed>Ready Swapped! Failed! Cancelled>Idle
Ready: Planned! Summarised! Warmed! Swapped>Idle Failed! Cancelled>Idle
Quiet: Begun>Running Ended! GivenUp!
Running: Begun! Ended>Quiet GivenUp>Quiet
";
        assert_eq!(table, reviewed);
    }
}
