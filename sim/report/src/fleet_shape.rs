//! The facts about a fleet needed by observers before the start of a replay.

/// Sizes of a fleet, replica by replica and tier by tier, and its permanent failures.
///
/// ```
/// use trunkline_sim_report::FleetShape;
///
/// let shape = FleetShape { device_blocks: vec![900, 1100], ..FleetShape::default() };
/// assert_eq!(shape.replicas(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetShape {
    /// KV blocks on the devices of each replica.
    pub device_blocks: Vec<u64>,
    /// Bytes of one KV block on a device.
    pub block_bytes: u64,
    /// Name of each tier of the prefix cache and its blocks over all replicas, nearest tier first.
    pub tiers: Vec<(String, u64)>,
    /// Time in nanoseconds and replica of each failure without a return.
    pub lost: Vec<(u64, u32)>,
    /// Replicas that are not up at the start; 0 without autoscaling.
    pub off: u32,
    /// `true` if replicas start, stop or fail, so that their number is worth a chart.
    pub changes: bool,
}

impl FleetShape {
    /// Returns the number of replicas.
    pub fn replicas(&self) -> u32 {
        self.device_blocks.len() as u32
    }
}
