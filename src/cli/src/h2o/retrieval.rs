//! Layers that read far back: those whose attention returns to a text that is repeated.
//!
//! The model reads a text, an instruction to repeat it, and the text again. A layer that fetches tokens from far back attends from the second
//! copy to the first, whatever the text is about; the other layers look at their surroundings and at the first tokens. The measure follows
//! KVzip (arXiv 2505.23416), which scores single entries of the KV cache this way, and finds the layers of DuoAttention (arXiv 2410.10819)
//! without training.

use trunkline_port::{Keeps, ModelInfo, ScoreKind};
use trunkline_text::Tokenizer;
use trunkline_worker::Model;

use crate::bench::h2o::rig::{BLOCK, Rig, Run};
use crate::bench::h2o::texts;

/// Tokens between the two copies, at most.
pub const BETWEEN_MAX: usize = 64;
/// First tokens of a text that do not count: attention rests there when it has nothing to read.
const SINK: usize = 32;
/// Tokens of a chunk of the second copy.
const CHUNK: usize = 256;
const INSTRUCTION: &str = "\n\nRepeat the previous text exactly:\n";

/// Share of the layers that keep every token by default: between a quarter and three tenths keep recall (`docs/h2o.md`).
const FULL_SHARE: f64 = 0.275;

/// Returns the share of each layer of a model in all far reading, over `texts` texts of each kind and `tokens` tokens.
///
/// # Errors
/// If a kind has too little text, or the model cannot run.
pub fn far_reading(
    model: Model,
    tokenizer: &Tokenizer,
    tokens: usize,
    texts: u32,
    threads: usize,
) -> anyhow::Result<Vec<f64>> {
    let n_layers = model.info().n_layers;
    let mut rig = Rig::new(model, 2 * tokens + BETWEEN_MAX, threads)?.with_layers_apart(n_layers);
    let mut reading = Reading::new(n_layers);
    for number in 0..u64::from(texts) {
        for kind in texts::KINDS {
            let text = texts::text(kind, number, tokenizer, tokens, 0, 0)?;
            reading.add(&mut rig, tokenizer, &text.tokens)?;
        }
    }
    Ok(reading.shares())
}

/// Returns the layers that keep every token by default: 27.5 % of them, at least one.
pub fn full_layers(shares: &[f64], info: &ModelInfo) -> Vec<u32> {
    let n = (f64::from(info.n_layers) * FULL_SHARE).round().max(1.0);
    first_layers(shares, info, n as usize)
}

/// Far reading of each layer, over all texts so far.
#[derive(Debug)]
struct Reading {
    layers: Vec<f64>,
}

impl Reading {
    /// Begins without a text.
    fn new(n_layers: u32) -> Self {
        Self { layers: vec![0.0; n_layers as usize] }
    }

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
        // The highest attention that each block of the first copy gets, by layer.
        let blocks = text.len() / BLOCK;
        let mut highest = vec![vec![0f32; blocks]; self.layers.len()];
        for chunk in text.chunks(CHUNK) {
            let scored = Some((chunk.len() as u32, ScoreKind::Max));
            let run = Run { seq: &mut seq, tokens: chunk, scored, sample: false, again: false };
            let answer = rig.step(&mut [run])?.pop().unwrap_or_default();
            let entries = answer.scores.len() / self.layers.len();
            for (highest, scores) in highest.iter_mut().zip(answer.scores.chunks_exact(entries)) {
                highest.iter_mut().zip(scores).for_each(|(highest, score)| *highest = highest.max(*score));
            }
        }
        rig.end(seq);
        for (layer, highest) in self.layers.iter_mut().zip(highest) {
            let counted = &highest[SINK.div_ceil(BLOCK).min(blocks)..];
            *layer += counted.iter().map(|score| f64::from(*score)).sum::<f64>() / counted.len().max(1) as f64;
        }
        Ok(())
    }

    /// Returns the share of each layer in all far reading; the shares add up to 1.
    fn shares(&self) -> Vec<f64> {
        let total: f64 = self.layers.iter().sum();
        self.layers.iter().map(|layer| if total > 0.0 { layer / total } else { 0.0 }).collect()
    }
}

/// Returns the `n` layers with the largest shares, ascending, without those that have a window. Of equal shares the lower layer is first.
pub fn first_layers(shares: &[f64], info: &ModelInfo, n: usize) -> Vec<u32> {
    let windowed = info.groups.iter().filter(|group| matches!(group.keeps, Keeps::Window(_)));
    let windowed: Vec<u32> = windowed.flat_map(|group| group.layers.iter().copied()).collect();
    let mut order: Vec<u32> = (0..shares.len() as u32).filter(|layer| !windowed.contains(layer)).collect();
    order.sort_by(|a, b| shares[*b as usize].total_cmp(&shares[*a as usize]));
    order.truncate(n);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use trunkline_port::LayerGroup;

    use super::*;

    #[test]
    fn the_layers_with_the_largest_shares_come_first_and_windows_never() {
        let shares = [0.1, 0.3, 0.05, 0.3, 0.25];
        let (none, windows) = (
            ModelInfo { n_layers: 5, ..ModelInfo::default() },
            LayerGroup { layers: vec![1, 4], keeps: Keeps::Window(64) },
        );
        assert_eq!(first_layers(&shares, &none, 3), [1, 3, 4]);
        assert_eq!(full_layers(&shares, &none), [1], "27.5 % of five layers");
        let windowed = ModelInfo { groups: vec![windows], ..none.clone() };
        assert_eq!(first_layers(&shares, &windowed, 2), [0, 3]);
        assert_eq!(first_layers(&shares, &none, 9).len(), 5);
    }

    #[test]
    fn every_layer_of_a_model_gets_a_share() {
        let (model, tokenizer) = (Model::seeded(5), Tokenizer::bytes());
        let n_layers = model.info().n_layers;
        let shares = far_reading(model, &tokenizer, 192, 1, 1).unwrap();
        assert_eq!(shares.len(), n_layers as usize);
        assert!(
            (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares.iter().all(|share| *share > 0.0),
            "{shares:?}"
        );
        assert!(shares[0] != shares[1], "layers are told apart");
    }
}
