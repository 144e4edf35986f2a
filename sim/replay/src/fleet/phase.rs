//! States of a replica in the simulator, in addition to those of the engine in the cluster.

/// State of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not ordered, or stopped.
    Off,
    /// Ordered; usable after the start delay.
    Starting,
    /// Takes new requests.
    Up,
    /// Runs the requests it has; stops when empty.
    Draining,
    /// Failed at a given time; the requests wait for the return.
    Failed,
    /// Failed at random; the requests moved, unless no other replica takes any.
    Repair,
    /// Failed for good.
    Gone,
}
