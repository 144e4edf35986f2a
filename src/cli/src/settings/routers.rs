//! Help of `--router`: all routers and their parameters.

use std::fmt::Write;

use trunkline_cluster::ROUTER_DEFAULT;
use trunkline_cluster::router::REGISTRY;

/// Returns the help of `--router`, with all routers and their parameters.
pub fn router_help() -> String {
    let mut help = format!("Router, which assigns requests to workers [default: {ROUTER_DEFAULT}]:");
    for entry in REGISTRY.entries() {
        let params: Vec<String> = entry.params.iter().map(|param| format!("{}={}", param.key, param.default)).collect();
        let params = if params.is_empty() { String::new() } else { format!(" [:{}]", params.join(",")) };
        // Writing to a string cannot fail.
        let _ = write!(help, "\n- {}{params}: {}", entry.name, entry.about);
    }
    help
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_router_with_its_parameters() {
        let help = router_help();
        for entry in REGISTRY.entries() {
            assert!(help.contains(entry.name) && entry.params.iter().all(|param| help.contains(param.key)), "{help}");
        }
    }
}
