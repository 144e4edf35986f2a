//! Memory of a device by its parts, for reports.

use std::fmt;

/// Memory of the fullest device of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryParts {
    /// Memory that is shared out, bytes.
    pub total: u64,
    /// Share of it for all that follows, bytes.
    pub budget: u64,
    /// Weights as they are loaded, bytes.
    pub weights: u64,
    /// States of recurrent layers next to the blocks, bytes.
    pub states: u64,
    /// Memory of a step, and of libraries.
    pub workspace: WorkspaceParts,
}

/// Workspace of an engine, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceParts {
    /// Activations of the layers.
    pub layers: u64,
    /// Logits and their copies, with the hidden states of a step; layers and sampler have the same memory, one after the other.
    pub sampler: u64,
    /// Libraries, links among devices and graphs.
    pub other: u64,
}

impl WorkspaceParts {
    /// Returns the bytes of all parts.
    pub fn bytes(self) -> u64 {
        self.layers.max(self.sampler).saturating_add(self.other)
    }
}

impl MemoryParts {
    /// Returns the bytes that are not for KV blocks.
    pub fn taken(&self) -> u64 {
        self.weights.saturating_add(self.states).saturating_add(self.workspace.bytes())
    }

    /// Returns the bytes for KV blocks; 0 if there is no room.
    pub fn kv(&self) -> u64 {
        self.budget.saturating_sub(self.taken())
    }
}

/// Writes a number of bytes in GiB.
struct Gib(u64);

impl fmt::Display for Gib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}", self.0 as f64 / f64::from(1 << 30))
    }
}

impl fmt::Display for MemoryParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkspaceParts { layers, sampler, other } = self.workspace;
        write!(f, "{} of {} GiB: weights {}", Gib(self.budget), Gib(self.total), Gib(self.weights))?;
        if self.states > 0 {
            write!(f, ", states {}", Gib(self.states))?;
        }
        if self.workspace != WorkspaceParts::default() {
            let (largest, what) = if layers > sampler { (layers, "layers") } else { (sampler, "sampler") };
            let of = Gib(self.workspace.bytes());
            write!(f, ", workspace {of} ({what} {}, libraries and graphs {})", Gib(largest), Gib(other))?;
        }
        write!(f, ", KV {}", Gib(self.kv()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_in_gib() {
        let gib = |gib: f64| (gib * f64::from(1 << 30)) as u64;
        let workspace = WorkspaceParts { layers: gib(0.5), sampler: gib(4.75), other: gib(0.25) };
        let parts = MemoryParts { total: gib(80.0), budget: gib(72.0), weights: gib(15.0), states: 0, workspace };
        assert_eq!(
            parts.to_string(),
            "72.00 of 80.00 GiB: weights 15.00, workspace 5.00 (sampler 4.75, libraries and graphs 0.25), KV 52.00"
        );
        let plain = MemoryParts { states: gib(1.0), workspace: WorkspaceParts::default(), ..parts };
        assert_eq!(plain.to_string(), "72.00 of 80.00 GiB: weights 15.00, states 1.00, KV 56.00");
        assert_eq!(MemoryParts { weights: u64::MAX, ..parts }.kv(), 0);
    }
}
