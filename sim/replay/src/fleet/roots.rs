//! Roots of the namespaces of a trace.

use std::collections::HashMap;

use trunkline_core::{BlockHash, Namespace};
use trunkline_sim_perf::model::Model;

/// Roots of the namespaces seen so far, by number.
#[derive(Default)]
pub(super) struct Roots(HashMap<u32, BlockHash>);

impl Roots {
    /// Returns the root of a namespace that request `number` has for itself.
    pub(super) fn of_request(model: &Model, number: u64) -> BlockHash {
        let salt = format!("request {number}");
        Namespace { model: model.name, salt: &salt, ..Namespace::default() }.root()
    }

    /// Returns the root of a numbered namespace of `model`. Namespace 0 has no salt.
    pub(super) fn of(&mut self, model: &Model, namespace: u32) -> BlockHash {
        *self.0.entry(namespace).or_insert_with(|| {
            let salt = if namespace == 0 { String::new() } else { namespace.to_string() };
            Namespace { model: model.name, salt: &salt, ..Namespace::default() }.root()
        })
    }
}
