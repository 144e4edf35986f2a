//! The graph of modules of a crate, and its circles.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::paths;

/// Modules of a crate, such as `tree/nodes`, and for each the modules that it uses.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns the name of the module in a file, given the path of the file below `src/`.
pub fn module(file: &str) -> String {
    let name = file.strip_suffix(".rs").unwrap_or(file);
    name.strip_suffix("/mod").unwrap_or(name).to_owned()
}

/// Builds the graph of a crate from (path below `src/`, source without tests). A module and the modules below it count as one
/// unit: uses between the two are left out, and so are items of the crate root.
pub fn graph(files: &[(String, String)]) -> Graph {
    let names: BTreeSet<String> = files.iter().map(|(file, _)| module(file)).collect();
    let mut graph = Graph::new();
    for (file, text) in files {
        let me = module(file);
        let mut used = paths(text, "crate");
        for path in paths(text, "super") {
            let mut parent: Vec<String> = me.split('/').map(str::to_owned).collect();
            parent.pop();
            let climbs = path.iter().take_while(|part| *part == "super").count();
            parent.truncate(parent.len().saturating_sub(climbs));
            parent.extend(path[climbs..].iter().cloned());
            used.push(parent);
        }
        let uses = used.iter().filter_map(|path| longest_known(path, &names));
        let below = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}/"));
        let uses = uses.filter(|other| !below(other, &me) && !below(&me, other)).collect();
        graph.insert(me, uses);
    }
    graph
}

/// Folds a graph of modules to the files and folders directly below `src/`.
pub fn folders(graph: &Graph) -> Graph {
    let folder = |module: &str| module.split('/').next().unwrap_or_default().to_owned();
    let mut folders = Graph::new();
    for (module, uses) in graph {
        let from = folder(module);
        let others = uses.iter().map(|used| folder(used)).filter(|used| *used != from);
        folders.entry(from.clone()).or_default().extend(others);
    }
    folders
}

fn longest_known(path: &[String], names: &BTreeSet<String>) -> Option<String> {
    (1..=path.len()).rev().map(|n| path[..n].join("/")).find(|name| names.contains(name))
}

/// Returns all groups of modules that use each other, directly or through others.
pub fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = graph.keys().map(|from| (&from[..], reachable(graph, from))).collect();
    let mut out: Vec<Vec<String>> = Vec::new();
    for from in graph.keys().filter(|from| reach[&from[..]].contains(&from[..])) {
        if out.iter().any(|group| group.contains(from)) {
            continue;
        }
        let back = |to: &&&str| reach.get(**to).is_some_and(|there| there.contains(&from[..]));
        out.push(reach[&from[..]].iter().filter(back).map(|name| (*name).to_owned()).collect());
    }
    out
}

fn reachable<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = graph[from].iter().map(String::as_str).collect();
    while let Some(at) = open.pop() {
        if seen.insert(at) {
            open.extend(graph.get(at).into_iter().flatten().map(String::as_str));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_through_crate_and_super() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let files = [
            file("lib.rs", "mod a;"),
            file("a.rs", "use crate::b::B;"),
            file("a/one.rs", "use super::two::Two;\nuse super::A;"),
            file("a/two.rs", "use super::one::One;"),
            file("b.rs", "use crate::{c::C, d};"),
            file("c.rs", "fn f() { crate::a::g() }"),
            file("d.rs", "use crate::Config;"),
        ];
        let circles = circles(&graph(&files));
        assert_eq!(circles, [vec!["a", "b", "c"], vec!["a/one", "a/two"]]);
    }

    #[test]
    fn folders_may_be_in_a_circle_though_no_modules_are() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let files = [
            file("a.rs", "mod low; mod high;"),
            file("a/high.rs", "use crate::b::B;"),
            file("a/low.rs", ""),
            file("b.rs", "use crate::a::low::Low;"),
        ];
        let modules = graph(&files);
        assert!(circles(&modules).is_empty());
        assert_eq!(circles(&folders(&modules)), [vec!["a", "b"]]);
    }
}
