//! The next deadline of all engines, without asking each.

use crate::EngineId;

/// Mark of an engine without a deadline.
const NEVER: u64 = u64::MAX;

/// The earliest deadline of each engine's core, and of all.
#[derive(Debug)]
pub(crate) struct Deadlines {
    of_engines: Vec<u64>,
    first_ns: u64,
}

impl Deadlines {
    /// Creates the record of `engines` engines without deadlines.
    pub fn new(engines: usize) -> Self {
        Self { of_engines: vec![NEVER; engines], first_ns: NEVER }
    }

    /// Takes note of an engine's earliest deadline. MUST be called whenever a core may have changed it.
    pub fn set(&mut self, engine: EngineId, deadline_ns: Option<u64>) {
        let deadline_ns = deadline_ns.unwrap_or(NEVER);
        if std::mem::replace(&mut self.of_engines[engine.index()], deadline_ns) != deadline_ns {
            self.first_ns = self.of_engines.iter().copied().min().unwrap_or(NEVER);
        }
    }

    /// Returns the earliest deadline.
    pub fn first_ns(&self) -> Option<u64> {
        (self.first_ns != NEVER).then_some(self.first_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_deadline_is_the_least_of_those_set_last() {
        let mut deadlines = Deadlines::new(3);
        assert_eq!(deadlines.first_ns(), None);
        for (engine, deadline_ns, first_ns) in
            [(1, Some(7), Some(7)), (0, Some(9), Some(7)), (1, Some(8), Some(8)), (1, None, Some(9)), (0, None, None)]
        {
            deadlines.set(EngineId(engine), deadline_ns);
            assert_eq!(deadlines.first_ns(), first_ns);
        }
    }
}
