//! Figures of a case over all texts, from the sums of each text.

use comfy_table::{CellAlignment, Table, presets};
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
    /// Figures by kind of text.
    pub kinds: Vec<OfKind>,
    /// Sums by text.
    pub texts: Vec<Quality>,
}

/// Figures of a case over the texts of one kind, with standard errors over the counted tokens, as if tokens were independent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfKind {
    pub kind: String,
    /// Counted tokens.
    pub tokens: u32,
    pub perplexity_percent: f64,
    pub perplexity_error: f64,
    pub kl_nats: f64,
    pub kl_error: f64,
    pub top1_percent: f64,
    pub recall_of_unevicted_percent: f64,
}

impl OfKind {
    fn new(texts: &[Quality], unevicted: &[Quality]) -> Self {
        let sum = |of: &dyn Fn(&Quality) -> f64| texts.iter().map(of).sum::<f64>();
        let tokens = sum(&|text| f64::from(text.tokens));
        let change = (sum(&|text| text.nats) - unevicted.iter().map(|text| text.nats).sum::<f64>()) / tokens;
        let kl = sum(&|text| text.kl) / tokens;
        let error = |squares: f64, mean: f64| ((squares / tokens - mean * mean).max(0.0) / tokens).sqrt();
        Self {
            kind: kind_of(&texts[0]).to_owned(),
            tokens: tokens as u32,
            perplexity_percent: 100.0 * (change.exp() - 1.0),
            perplexity_error: 100.0 * change.exp() * error(sum(&|text| text.change_squares), change),
            kl_nats: kl,
            kl_error: error(sum(&|text| text.kl_squares), kl),
            top1_percent: 100.0 * sum(&|text| f64::from(text.agree)) / tokens,
            recall_of_unevicted_percent: of_unevicted(mean_recall(texts), mean_recall(unevicted)),
        }
    }
}

/// Returns the kind of a text, its name without the number.
fn kind_of(text: &Quality) -> &str {
    text.text.rsplit_once(' ').map_or(text.text.as_str(), |(kind, _)| kind)
}

/// Returns the figures of each kind of text, in the order of the first of each. `unevicted` has the same texts.
fn by_kind(texts: &[Quality], unevicted: &[Quality]) -> Vec<OfKind> {
    let mut kinds: Vec<&str> = Vec::new();
    for kind in texts.iter().map(kind_of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let of_kind = |kind: &&str| {
        let pairs = texts.iter().zip(unevicted).filter(|(text, _)| kind_of(text) == *kind);
        let (texts, unevicted): (Vec<Quality>, Vec<Quality>) = pairs.map(|(a, b)| (a.clone(), b.clone())).unzip();
        OfKind::new(&texts, &unevicted)
    };
    kinds.iter().map(of_kind).collect()
}

fn of_unevicted(recalled: f64, of: f64) -> f64 {
    if of > 0.0 { 100.0 * recalled / of } else { 0.0 }
}

/// Returns a table of the kinds of text of a case.
pub fn render_kinds(kinds: &[OfKind]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["text", "tokens", "perplexity", "+/-", "KL nats", "+/-", "top-1", "recall of unevicted"]);
    for of in kinds {
        table.add_row([
            of.kind.clone(),
            of.tokens.to_string(),
            format!("{:+.2} %", of.perplexity_percent),
            format!("{:.2}", of.perplexity_error),
            format!("{:.4}", of.kl_nats),
            format!("{:.4}", of.kl_error),
            format!("{:.1} %", of.top1_percent),
            format!("{:.0} %", of.recall_of_unevicted_percent),
        ]);
    }
    for column in 1..8 {
        table.column_mut(column).expect("eight columns").set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
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
            recall_of_unevicted_percent: of_unevicted(recalled, of),
            kinds: by_kind(&texts, unevicted),
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
    #[test]
    fn kinds_of_text_have_figures_of_their_own_with_standard_errors() {
        let text = |name: &str, nats, agree| Quality {
            text: name.into(),
            tokens: 100,
            nats,
            kl: 1.0,
            kl_squares: 0.05,
            change_squares: 1.0,
            agree,
            recall: vec![0.5],
            ..Quality::default()
        };
        let unevicted = [text("code 0", 50.0, 100), text("talk 0", 60.0, 100), text("code 1", 70.0, 100)];
        let texts = vec![text("code 0", 51.0, 90), text("talk 0", 60.0, 99), text("code 1", 71.0, 94)];
        let kinds = Figures::new(texts, &unevicted, 0, 1).kinds;
        let names: Vec<_> = kinds.iter().map(|of| (&of.kind[..], of.tokens, of.top1_percent)).collect();
        assert_eq!(names, [("code", 200, 92.0), ("talk", 100, 99.0)]);
        let code = &kinds[0];
        assert!((code.perplexity_percent - 100.0 * (0.01f64.exp() - 1.0)).abs() < 1e-9);
        // The variance of a token's change is 0.01 - 0.01^2, that of a divergence 0.0005 - 0.01^2.
        assert!((code.perplexity_error - 100.0 * 0.01f64.exp() * (0.0099f64 / 200.0).sqrt()).abs() < 1e-9);
        assert!((code.kl_error - (0.0004f64 / 200.0).sqrt()).abs() < 1e-9);
        assert_eq!(code.recall_of_unevicted_percent, 100.0);
        assert!(render_kinds(&kinds).contains("+1.01 %"));
    }
}
