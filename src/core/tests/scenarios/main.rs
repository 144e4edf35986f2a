//! Acceptance scenarios by number: behaviour of KsanaLLM's prefix cache and scheduler, and of this core.
//!
//! `docs/results/scenarios.md` lists all of them; `table.rs` checks that list. If this core differs on purpose, the test's doc comment says
//! so. The files after `table` have no numbers: ways through swapping and drafting that random runs seldom take.

mod admission;
mod eviction;
mod geometry;
mod matching;
mod pressure;
mod prompts;
mod reuse;
mod scenes;
mod split_fuse;
mod stages;
mod swap;
mod table;
mod time;

mod drafts;
mod limits;
mod swap_ends;
mod swap_paths;
mod turns;
mod victims;
