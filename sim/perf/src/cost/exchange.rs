//! Times of exchanges among the devices of a replica, or of a group of ranks: within a node over the peer link, between nodes over the node link.
//!
//! A node has [`Hardware::peer_devices`] devices. Devices beyond them are in further nodes if the hardware has a node link; else the peer link joins
//! all. Exchanges among nodes are hierarchical: first within each node, then each device exchanges its share of the bytes over its own
//! node link. Nothing overlaps, neither with arithmetic nor one link with the other.

use super::Parallel;
use crate::hardware::{Hardware, NodeLink};

impl Parallel {
    /// Returns the time of an all-reduce of `tokens` tokens with `token_bytes` bytes each, seconds, 0 for one device: `latency + 2 (n - 1) / n * bytes /
    /// bandwidth` of the peer link for `n` devices of a node, and as much of the node link for the bytes of one device and the number of nodes.
    pub(super) fn all_reduce_s(self, hardware: &Hardware, tokens: f64, token_bytes: f64) -> f64 {
        if self.tensor == 1 {
            return 0.0;
        }
        let bytes = tokens * token_bytes;
        let twice = |members: u32| 2.0 * f64::from(members - 1) / f64::from(members);
        let (in_node, link) = in_node(hardware, self.tensor);
        let within_s = match in_node {
            1 => 0.0,
            _ => hardware.peer_link_latency_s + twice(in_node) * bytes / hardware.peer_link_bytes_s,
        };
        let nodes = self.tensor.div_ceil(in_node);
        within_s + link.map_or(0.0, |link| link.latency_s + twice(nodes) * bytes / f64::from(in_node) / link.bytes_s)
    }

    /// Returns the time of an all-gather or of a reduce-scatter among the ranks of a group, for `tokens` tokens of all ranks with `token_bytes` bytes
    /// each, seconds, 0 for one rank: `latency + (n - 1) / n * bytes / bandwidth` of the peer link for `n` ranks of a node; the tokens of other nodes
    /// come over the node links, a share to each rank of the node.
    pub(super) fn all_gather_s(self, hardware: &Hardware, tokens: f64, token_bytes: f64) -> f64 {
        if self.data == 1 {
            return 0.0;
        }
        let bytes = tokens * token_bytes;
        let (devices, link) = in_node(hardware, self.data * self.tensor);
        let ranks = (devices / self.tensor).clamp(1, self.data);
        let others = |members: u32, of: u32| f64::from(of - members) / f64::from(of);
        let within_s = match ranks {
            1 => 0.0,
            _ => hardware.peer_link_latency_s + others(1, ranks) * bytes / hardware.peer_link_bytes_s,
        };
        let across_s =
            |link: NodeLink| link.latency_s + others(ranks, self.data) * bytes / f64::from(ranks) / link.bytes_s;
        within_s + link.map_or(0.0, across_s)
    }

    /// Returns the time to send `tokens` tokens with `token_bytes` bytes each from one stage to the next, seconds, 0 for one stage: `latency + bytes /
    /// bandwidth` of the peer link, or of the node link if the stages are in several nodes: the slowest stage sets the pace.
    pub(super) fn send_s(self, hardware: &Hardware, tokens: f64, token_bytes: f64) -> f64 {
        if self.pipeline == 1 {
            return 0.0;
        }
        let (_, link) = in_node(hardware, self.devices());
        let peer_link = NodeLink { bytes_s: hardware.peer_link_bytes_s, latency_s: hardware.peer_link_latency_s };
        let NodeLink { bytes_s, latency_s } = link.unwrap_or(peer_link);
        latency_s + tokens * token_bytes / bytes_s
    }
}

/// Returns the number of devices, of `devices` that exchange, within a node, and the link to the others; `None` if there are no others, or no link to them.
fn in_node(hardware: &Hardware, devices: u32) -> (u32, Option<NodeLink>) {
    match hardware.node_link.filter(|_| devices > hardware.peer_devices) {
        Some(link) => (hardware.peer_devices, Some(link)),
        None => (devices, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 tokens of 8,192 bytes over the peer link and over the node link, seconds.
    const PEER_S: f64 = 8.192e-3;
    const NODE_S: f64 = 8.192e-2;

    fn device(node_link: Option<NodeLink>) -> Hardware {
        Hardware {
            peer_link_bytes_s: 1e9,
            peer_link_latency_s: 1e-6,
            peer_devices: 4,
            node_link,
            ..*crate::hardware::by_name("h100-80g").unwrap()
        }
    }

    const LINK: NodeLink = NodeLink { bytes_s: 1e8, latency_s: 5e-6 };

    fn near(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
    }

    #[test]
    fn an_all_reduce_takes_the_latency_and_the_bytes_of_the_links() {
        let s = |tensor, link| Parallel::tensor(tensor).all_reduce_s(&device(link), 1000.0, 8192.0);
        assert_eq!(s(1, Some(LINK)), 0.0);
        // Each of two devices sends and receives half of the bytes twice.
        near(s(2, Some(LINK)), 1e-6 + PEER_S);
        near(s(4, Some(LINK)), 1e-6 + 1.5 * PEER_S);
        // Two nodes, then three: each of four devices of a node has a quarter of the bytes.
        near(s(8, Some(LINK)), 1e-6 + 1.5 * PEER_S + 5e-6 + 1.0 * NODE_S / 4.0);
        near(s(12, Some(LINK)), 1e-6 + 1.5 * PEER_S + 5e-6 + 4.0 / 3.0 * NODE_S / 4.0);
        near(s(8, None), 1e-6 + 1.75 * PEER_S);
    }

    #[test]
    fn ranks_of_other_nodes_send_over_the_node_links() {
        let s = |text: &str, link| text.parse::<Parallel>().unwrap().all_gather_s(&device(link), 1000.0, 8192.0);
        near(s("dp4ep4", Some(LINK)), 1e-6 + 0.75 * PEER_S);
        near(s("dp8ep8", Some(LINK)), 1e-6 + 0.75 * PEER_S + 5e-6 + 0.5 * NODE_S / 4.0);
        near(s("dp8ep8", None), 1e-6 + 0.875 * PEER_S);
        // Two ranks of two devices in each of two nodes; and one rank a node, which shares with none.
        near(s("tp2dp4ep8", Some(LINK)), 1e-6 + 0.5 * PEER_S + 5e-6 + 0.5 * NODE_S / 2.0);
        near(s("tp4dp2ep8", Some(LINK)), 5e-6 + 0.5 * NODE_S);
    }

    #[test]
    fn stages_in_several_nodes_send_over_the_node_link() {
        let s = |text: &str, link| text.parse::<Parallel>().unwrap().send_s(&device(link), 1000.0, 8192.0);
        assert_eq!(s("tp4", Some(LINK)), 0.0);
        near(s("tp2pp2", Some(LINK)), 1e-6 + PEER_S);
        near(s("tp4pp2", Some(LINK)), 5e-6 + NODE_S);
        near(s("tp4pp2", None), 1e-6 + PEER_S);
    }
}
