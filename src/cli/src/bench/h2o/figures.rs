//! Figures of a case over all texts, from the sums of each text.

use serde::Serialize;

use super::quality::Quality;

/// Figures of one case.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    pub scorer: String,
    /// `true` if all layers evict, `false` if the model's full layers keep everything.
    pub all_layers: bool,
    /// Target of the evicting layers.
    pub ratio: f32,
    /// Tokens by held tokens of the evicting layers, mean over the run.
    pub evicting_ratio: f64,
    /// Tokens by held tokens over all layers, mean over the run.
    pub total_ratio: f64,
    /// Change of perplexity against the unevicted run.
    pub perplexity_percent: f64,
    pub kl_nats: f64,
    pub top1_percent: f64,
    pub recall_percent: f64,
    pub recall_of_unevicted_percent: f64,
    /// Recall by place of the fact, first to last, per cent.
    pub recall_by_depth: Vec<f64>,
    /// `true` if all gates of quality are passed.
    pub passes: bool,
    /// Counted tokens of all texts.
    pub tokens: u32,
    /// Sums by text.
    pub texts: Vec<Quality>,
}

impl Figures {
    /// Sums up the texts of a case. `unevicted` has the same texts; `full` of `layers` layers keep everything.
    pub fn new(texts: Vec<Quality>, unevicted: &[Quality], full: usize, layers: usize) -> Self {
        let sum = |of: &dyn Fn(&Quality) -> f64, all: &[Quality]| all.iter().map(of).sum::<f64>();
        let tokens = sum(&|text| f64::from(text.tokens), &texts);
        let (positions, held) = (sum(&|text| text.positions as f64, &texts), sum(&|text| text.held, &texts));
        let nats = |all: &[Quality]| sum(&|text| text.nats, all) / tokens;
        let (full, layers) = (full as f64, layers as f64);
        let (recalled, of) = (mean_recall(&texts), mean_recall(unevicted));
        let n_facts = texts.iter().map(|text| text.recall.len()).min().unwrap_or(0);
        let at_depth = |n: usize| 100.0 * texts.iter().map(|text| text.recall[n]).sum::<f64>() / texts.len() as f64;
        Self {
            evicting_ratio: positions / held,
            total_ratio: layers * positions / (full * positions + (layers - full) * held),
            perplexity_percent: 100.0 * ((nats(&texts) - nats(unevicted)).exp() - 1.0),
            kl_nats: sum(&|text| text.kl, &texts) / tokens,
            top1_percent: 100.0 * sum(&|text| f64::from(text.agree), &texts) / tokens,
            recall_percent: recalled,
            recall_of_unevicted_percent: if of > 0.0 { 100.0 * recalled / of } else { 0.0 },
            recall_by_depth: (0..n_facts).map(at_depth).collect(),
            tokens: tokens as u32,
            texts,
            ..Self::default()
        }
    }
}

/// Returns the share of the words recalled over all facts and texts, per cent.
pub fn mean_recall(texts: &[Quality]) -> f64 {
    let facts: Vec<f64> = texts.iter().flat_map(|text| text.recall.iter().copied()).collect();
    100.0 * facts.iter().sum::<f64>() / facts.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_means_over_tokens_and_layers_and_recall_is_compared() {
        let text = |nats, held: u32, recall: &[f64]| Quality {
            tokens: 10,
            nats,
            kl: 0.2,
            agree: 9,
            positions: 1000,
            held: f64::from(held),
            recall: recall.to_vec(),
            ..Quality::default()
        };
        let unevicted = [text(20.0, 1000, &[1.0, 1.0]), text(30.0, 1000, &[0.5, 1.0])];
        let figures =
            Figures::new(vec![text(21.0, 150, &[0.0, 1.0]), text(30.0, 250, &[0.0, 0.75])], &unevicted, 3, 12);
        assert_eq!((figures.evicting_ratio, figures.tokens), (5.0, 20));
        assert_eq!(figures.total_ratio, 12.0 / (3.0 + 9.0 / 5.0));
        assert!((figures.perplexity_percent - 100.0 * ((1.0f64 / 20.0).exp() - 1.0)).abs() < 1e-9);
        assert_eq!((figures.kl_nats, figures.top1_percent), (0.02, 90.0));
        assert_eq!((figures.recall_percent, figures.recall_of_unevicted_percent), (43.75, 50.0));
        assert_eq!(figures.recall_by_depth, [0.0, 87.5]);
    }
}
