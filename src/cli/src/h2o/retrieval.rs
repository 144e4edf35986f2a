//! KV heads that read far back: those whose attention returns to a text that is repeated.
//!
//! The model reads a text, an instruction to repeat it, and the text again. A head that fetches tokens from far back attends from the second
//! copy to the first, whatever the text is about; the other heads look at their surroundings and at the first tokens. The measure follows
//! KVzip (arXiv 2505.23416), which scores single entries of the KV cache this way, and finds the heads of DuoAttention (arXiv 2410.10819)
//! without training.

use trunkline_port::{Keeps, ModelInfo, ScoreKind};
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

use super::full_heads::FullHeads;
use crate::bench::h2o::rig::{BLOCK, Rig, Run};
use crate::bench::h2o::texts;

/// Tokens between the two copies, at most.
pub const BETWEEN_MAX: usize = 64;
/// First tokens of a text that do not count: attention rests there when it has nothing to read.
const SINK: usize = 32;
/// Tokens of a chunk of the second copy.
const CHUNK: usize = 256;
const INSTRUCTION: &str = "\n\nRepeat the previous text exactly:\n";

/// Share of the KV heads that keep every token by default: with one of 6 tokens kept in the others, the total is above 2.5 (`docs/h2o.md`).
const FULL_SHARE: f64 = 0.275;

/// Returns the share of each KV head of a model in all far reading, as `[layer][head]`, over `texts` texts of each kind and `tokens` tokens.
///
/// # Errors
/// If a kind has too little text, or the model cannot run.
pub fn far_reading(
    model: Model,
    tokenizer: &Tokenizer,
    tokens: usize,
    texts: u32,
    threads: usize,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let (n_layers, per_layer) = (model.info().n_layers, model.info().n_kv_heads);
    let n_heads = (n_layers * per_layer) as usize;
    let mut rig = Rig::new(model, 2 * tokens + BETWEEN_MAX, threads)?.with_heads_apart(n_heads);
    let mut reading = Reading { heads: vec![0.0; n_heads] };
    for number in 0..u64::from(texts) {
        for kind in texts::KINDS {
            let text = texts::text(kind, number, tokenizer, tokens, 0, 0)?;
            reading.add(&mut rig, tokenizer, &text.tokens)?;
        }
    }
    Ok(reading.shares().chunks(per_layer as usize).map(<[f64]>::to_vec).collect())
}

/// Returns the heads that keep every token by default: 27.5 % of them at most, and at least one.
pub fn full_heads(shares: &[Vec<f64>], info: &ModelInfo) -> FullHeads {
    let n = (shares.iter().map(Vec::len).sum::<usize>() as f64 * FULL_SHARE).floor().max(1.0);
    first_heads(shares, info, n as usize)
}

/// Far reading of each head, over all texts so far.
#[derive(Debug)]
struct Reading {
    heads: Vec<f64>,
}

impl Reading {
    /// Adds a text of whole blocks.
    ///
    /// # Errors
    /// If the tokenizer has no token for the instruction, or the model cannot run.
    fn add(&mut self, rig: &mut Rig, tokenizer: &Tokenizer, text: &[u32]) -> anyhow::Result<()> {
        let mut between = tokenizer.encode_with(INSTRUCTION, false)?;
        between.truncate(BETWEEN_MAX);
        let mut seq = rig.start();
        rig.prefill(&mut seq, text, false)?;
        rig.prefill(&mut seq, &between, false)?;
        // The highest attention that each block of the first copy gets, by head.
        let blocks = text.len() / BLOCK;
        let mut highest = vec![vec![0f32; blocks]; self.heads.len()];
        for chunk in text.chunks(CHUNK) {
            let scored = Some((chunk.len() as u32, ScoreKind::Max));
            let run = Run { seq: &mut seq, tokens: chunk, scored, sample: false, again: false };
            let answer = rig.step(&mut [run])?.pop().unwrap_or_default();
            let entries = answer.scores.len() / self.heads.len();
            for (highest, scores) in highest.iter_mut().zip(answer.scores.chunks_exact(entries)) {
                highest.iter_mut().zip(scores).for_each(|(highest, score)| *highest = highest.max(*score));
            }
        }
        rig.end(seq);
        for (head, highest) in self.heads.iter_mut().zip(highest) {
            let counted = &highest[SINK.div_ceil(BLOCK).min(blocks)..];
            *head += counted.iter().map(|score| f64::from(*score)).sum::<f64>() / counted.len().max(1) as f64;
        }
        Ok(())
    }

    /// Returns the share of each head in all far reading; the shares add up to 1.
    fn shares(&self) -> Vec<f64> {
        let total: f64 = self.heads.iter().sum();
        self.heads.iter().map(|head| if total > 0.0 { head / total } else { 0.0 }).collect()
    }
}

/// Returns the `n` heads with the largest shares, without those of layers that have a window. Of equal shares the lower head is first.
pub fn first_heads(shares: &[Vec<f64>], info: &ModelInfo, n: usize) -> FullHeads {
    let windowed = info.groups.iter().filter(|group| matches!(group.keeps, Keeps::Window(_)));
    let windowed: Vec<u32> = windowed.flat_map(|group| group.layers.iter().copied()).collect();
    let per_layer = info.n_kv_heads;
    let shares: Vec<f64> = shares.iter().flatten().copied().collect();
    let mut order: Vec<u32> = (0..shares.len() as u32).filter(|head| !windowed.contains(&(head / per_layer))).collect();
    order.sort_by(|a, b| shares[*b as usize].total_cmp(&shares[*a as usize]));
    order.truncate(n);
    FullHeads::new(order, info.n_layers, per_layer)
}

#[cfg(test)]
mod tests {
    use trunkline_port::LayerGroup;

    use super::*;

    #[test]
    fn the_heads_with_the_largest_shares_come_first_and_windows_never() {
        let shares = [[0.1, 0.02], [0.2, 0.1], [0.05, 0.02], [0.03, 0.2], [0.2, 0.08]].map(Vec::from);
        let none = ModelInfo { n_layers: 5, n_kv_heads: 2, ..ModelInfo::default() };
        assert_eq!(first_heads(&shares, &none, 4).to_string(), "0.0,1.0,3.1,4.0");
        assert_eq!(full_heads(&shares, &none).len(), 2, "27.5 % of ten heads");
        let windows = LayerGroup { layers: vec![1, 4], heads: Vec::new(), keeps: Keeps::Window(64) };
        let windowed = ModelInfo { groups: vec![windows], ..none.clone() };
        assert_eq!(first_heads(&shares, &windowed, 2).to_string(), "0.0,3.1");
        assert_eq!(first_heads(&shares, &none, 99).len(), 10);
    }

    #[test]
    fn every_head_of_a_model_gets_a_share() {
        let (model, tokenizer) = (Model::seeded(5), Tokenizer::bytes());
        let info = model.info();
        let shares = far_reading(model, &tokenizer, 192, 1, 1).unwrap();
        assert_eq!((shares.len(), shares[0].len()), (info.n_layers as usize, info.n_kv_heads as usize));
        let heads: Vec<f64> = shares.into_iter().flatten().collect();
        assert!((heads.iter().sum::<f64>() - 1.0).abs() < 1e-9 && heads.iter().all(|share| *share > 0.0), "{heads:?}");
        assert!(heads.iter().enumerate().all(|(at, share)| !heads[..at].contains(share)), "heads are told apart");
    }
}
