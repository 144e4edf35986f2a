//! Parts of a request's time, which add up to it.

use serde::{Serialize, Serializer};

/// Part of the time between the arrival of a request and its end. At any moment a request is in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Waits for its first admission.
    Queue,
    /// Waits for blocks in tiers: for a look-up, or for their copies.
    Load,
    /// The step under way runs a part of its prompt for the first time.
    Prefill,
    /// The step under way runs its answer.
    Decode,
    /// In the batch; the step under way does not run it.
    Others,
    /// Out of the batch after a preemption, or on its way to another engine.
    Preempted,
    /// The step under way computes again what had KV before.
    Recompute,
    /// Waits for its own copies to or from host memory, or in the batch for those of others.
    Copies,
    /// In the batch; no step is under way, and no copy.
    Idle,
    /// Its engine has no worker.
    Absent,
}

impl Part {
    /// All parts, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::Queue,
        Self::Load,
        Self::Prefill,
        Self::Decode,
        Self::Others,
        Self::Preempted,
        Self::Recompute,
        Self::Copies,
        Self::Idle,
        Self::Absent,
    ];

    /// Returns the name of the part, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Load => "loads",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Others => "steps_of_others",
            Self::Preempted => "preempted",
            Self::Recompute => "recompute",
            Self::Copies => "copies",
            Self::Idle => "idle",
            Self::Absent => "no_worker",
        }
    }

    /// Returns `true` if a step works for the request.
    pub fn is_work(self) -> bool {
        matches!(self, Self::Prefill | Self::Decode | Self::Recompute)
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Time by part, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts([u64; Part::ALL.len()]);

impl Parts {
    /// Adds time to a part.
    pub fn add(&mut self, part: Part, ns: u64) {
        self.0[part as usize] += ns;
    }

    /// Returns the time of a part.
    pub fn of(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// Returns the time of all parts together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the parts that took time.
    pub fn iter(&self) -> impl Iterator<Item = (Part, u64)> + '_ {
        Part::ALL.into_iter().zip(self.0).filter(|(_, ns)| *ns > 0)
    }
}

impl Serialize for Parts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Part::ALL.into_iter().zip(self.0).map(|(part, ns)| (part.name(), ns)))
    }
}
