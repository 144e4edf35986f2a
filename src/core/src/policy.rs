//! Policies: small traits that decide what the scheduler leaves open, found by name.

use crate::config::ConfigError;

/// The names of all policies.
pub fn names() -> &'static [&'static str] {
    &["fcfs", "priority"]
}

/// The policy called `name`.
pub fn by_name(name: &str) -> Result<(), ConfigError> {
    if names().contains(&name) {
        Ok(())
    } else {
        Err(ConfigError::UnknownPolicy { name: name.into(), known: names().join(", ") })
    }
}
