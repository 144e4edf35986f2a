//! Recordings of simulated fleets, run again with changes.

#[path = "changes/ci.rs"]
mod ci;
#[path = "changes/diff.rs"]
mod diff;
#[path = "changes/explain.rs"]
mod explain;
#[path = "changes/fixture.rs"]
mod fixture;
#[path = "changes/rerun.rs"]
mod rerun;
#[path = "changes/tune.rs"]
mod tune;
