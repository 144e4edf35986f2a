//! States of recurrent layers as pages of the pool of blocks, under an engine that keeps them there.

use anyhow::{bail, ensure};
use trunkline_core::h2o::Mode;
use trunkline_port::Keeps;
use trunkline_sim_perf::memory::StatePages;
use trunkline_sim_replay::Settings;

/// Divides the layers of a hybrid model into groups of as many, and gives blocks as many tokens as fill the page of a state, if the engine keeps states in
/// pages. A state stands for all tokens before it, so a group of recurrent layers keeps the last token's block alone. `given` says if a user chose the size
/// of a block.
///
/// # Errors
/// If blocks of the size that is given are smaller than a state.
pub(super) fn divide(settings: &mut Settings, given: bool) -> anyhow::Result<()> {
    if !settings.memory.has_state_pages()
        || settings.core.worker.groups.len() > 1
        || settings.core.h2o.mode != Mode::Off
    {
        return Ok(());
    }
    let Some(pages) = StatePages::of(&settings.model, settings.parallel) else { return Ok(()) };
    let StatePages { block_tokens, layers, attention_groups, state_groups } = pages;
    let size = settings.core.block_size;
    if given {
        ensure!(
            size >= block_tokens,
            "block-size is {size}, smaller than a page of the states of {}, which takes as much as {block_tokens} tokens; leave it out",
            settings.model.name
        );
    } else {
        settings.core.block_size = block_tokens;
    }
    let groups = attention_groups.saturating_add(state_groups);
    if groups as usize > trunkline_port::LAYER_GROUPS_MAX {
        bail!("{} has {groups} groups of layers, more than are modelled; leave out --engine", settings.model.name);
    }
    let keeps = (0..groups).map(|group| if group < attention_groups { Keeps::All } else { Keeps::Window(1) });
    settings.core.worker.groups = keeps.collect();
    settings.group_sizes = vec![layers; groups as usize];
    Ok(())
}
