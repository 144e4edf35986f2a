//! State machines as tables.
//!
//! A table lists every change of state as (event, state left, state entered). Nothing else changes a state, and a change that
//! the table does not list panics. Each table is pinned by a test that compares its text, so a change shows in review.

/// One row of a table: the event, the state left, and the state entered.
pub type Transition<E, S> = (E, S, S);

/// Returns the state that `event` leads to from the state `from`, or `None` if `table` lists no such change.
#[inline]
pub(crate) fn next<E: Copy + PartialEq, S: Copy + PartialEq>(
    table: &[Transition<E, S>],
    event: E,
    from: S,
) -> Option<S> {
    table.iter().find(|(on, left, _)| *on == event && *left == from).map(|(.., to)| *to)
}

/// Returns `true` if `table` lists the change. For machines in which the state entered depends on more than the event.
pub(crate) fn lists<E: Copy + PartialEq, S: Copy + PartialEq>(table: &[Transition<E, S>], change: (E, S, S)) -> bool {
    table.contains(&change)
}

/// Renders a table as text, one `event: from -> to` a line, for tests that pin it.
#[cfg(test)]
pub(crate) fn text<E: std::fmt::Debug, S: std::fmt::Debug>(table: &[Transition<E, S>]) -> String {
    table.iter().map(|(event, from, to)| format!("{event:?}: {from:?} -> {to:?}\n")).collect()
}
