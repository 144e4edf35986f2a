//! Acceptance scenarios by number: behaviour of KsanaLLM's prefix cache and scheduler, and of this core.
//!
//! Behaviour comes from KsanaLLM's tests, code and defects; block counts of the host are for one rank, where KsanaLLM's tests have two. A test asserts
//! KsanaLLM's numbers or outcome, unless its doc comment says how this core differs, and why. Scenarios of several engines are in
//! `src/cluster/tests/several/scenarios.rs`. The last five files have no numbers: ways through swapping and drafting that random runs seldom take.

mod admission;
mod eviction;
mod geometry;
mod matching;
mod numbers;
mod pressure;
mod prompts;
mod reuse;
mod scenes;
mod split_fuse;
mod stages;
mod swap;
mod time;

mod drafts;
mod limits;
mod swap_ends;
mod swap_paths;
mod turns;
mod victims;
