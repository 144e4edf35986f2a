//! Acceptance scenarios: how KsanaLLM's prefix cache and scheduler behave, by number, and what this core does there.
//!
//! `docs/scenarios.md` lists all of them; `table.rs` checks that list. Where this core differs on purpose, the test says so
//! in front. The files after `table` have no numbers: ways through swapping and drafting that random runs seldom take.

mod admission;
mod eviction;
mod geometry;
mod matching;
mod pressure;
mod rig;
mod scenes;
mod split_fuse;
mod swap;
mod table;
mod time;

mod drafts;
mod limits;
mod swap_ends;
mod swap_paths;
mod victims;
