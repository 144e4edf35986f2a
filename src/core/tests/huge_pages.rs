//! The great arrays of a pool lie on huge pages where the system has them.
#![cfg(target_os = "linux")]

use std::path::Path;

use trunkline_core::cache::tree::PrefixTree;
use trunkline_core::eviction::REGISTRY;

/// Bytes of this process's memory advised to lie on huge pages.
fn advised() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux lists the memory of a process");
    let (mut size, mut sum) = (0, 0);
    for line in maps.lines() {
        if let Some(kib) = line.strip_prefix("Size:") {
            size = kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a size is a number of kB") << 10;
        }
        if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hg")) {
            sum += size;
        }
    }
    sum
}

#[test]
fn the_tokens_of_a_large_pool_are_on_huge_pages_if_the_system_has_them() {
    let blocks = 1 << 20;
    let before = advised();
    let tree = PrefixTree::new(16, blocks, REGISTRY.make("lru", blocks).expect("there is lru"));
    let more = advised() - before;
    let expected = if Path::new("/sys/kernel/mm/transparent_hugepage").exists() { 64 * u64::from(blocks) } else { 0 };
    assert!(more >= expected, "{more} bytes are advised");
    assert_eq!(tree.usable(), blocks);
}
