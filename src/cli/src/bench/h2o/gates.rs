//! Gates: bars for quality under eviction, from a file in the repository or of the user's own.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::quality::Case;

const BUILT_IN: &str = include_str!("gates.toml");

/// Bars, and the cases that have to reach them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gates {
    pub perplexity_percent: f64,
    pub kl_nats: f64,
    pub top1_percent: f64,
    pub recall_percent: f64,
    pub unevicted_recall_percent: f64,
    pub must_forget: Vec<String>,
    #[serde(default)]
    pub case: Vec<GatedCase>,
}

/// A case that has to pass all gates.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedCase {
    /// Tokens of the prompt, at least.
    pub prompt: usize,
    pub scorer: String,
    /// Ratio over all layers and tokens, at least.
    pub total_ratio: f64,
    /// Bytes of every token by the bytes left after compression, at least.
    pub bytes_ratio: Option<f64>,
}

/// Outcome of one gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Case and figure.
    pub gate: String,
    pub value: f64,
    /// Bar, with its direction.
    pub bar: String,
    pub passed: bool,
}

impl GatedCase {
    /// Returns the place of the case that has to pass among `cases`: of those of the scorer, the one with the least ratio that gives the total, or else the
    /// one with the greatest. `total` gives the total of a ratio.
    pub fn find(&self, cases: &[Case], total: impl Fn(f32) -> f32) -> Option<usize> {
        let reaches = |at: &usize| f64::from(total(cases[*at].ratio())) >= self.total_ratio;
        let by_ratio = |a: &usize, b: &usize| cases[*a].ratio().total_cmp(&cases[*b].ratio());
        let own = || (0..cases.len()).filter(|at| cases[*at].scorer == self.scorer);
        own().filter(reaches).min_by(by_ratio).or_else(|| own().max_by(by_ratio))
    }
}

impl Gates {
    /// Reads a file, or the gates of the project.
    ///
    /// # Errors
    /// If the file cannot be read or is no gates file.
    pub fn load(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(toml::from_str(BUILT_IN)?) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the gates {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is no gates file", path.display()))
    }

    /// Returns the case that has to pass with prompts of `prompt` tokens.
    pub fn case(&self, prompt: usize) -> Option<&GatedCase> {
        self.case.iter().filter(|case| case.prompt <= prompt).max_by_key(|case| case.prompt)
    }

    /// Returns `true` if the recall of a case passes.
    pub fn passes_recall(&self, figures: &Figures) -> bool {
        figures.recall_of_unevicted_percent >= self.recall_percent
    }

    /// Returns `true` if a case passes all gates of quality: perplexity, KL, top-1 and recall.
    pub fn are_met(&self, figures: &Figures) -> bool {
        figures.perplexity_percent.abs() <= self.perplexity_percent
            && figures.kl_nats <= self.kl_nats
            && figures.top1_percent >= self.top1_percent
            && self.passes_recall(figures)
    }

    /// Checks the case that has to pass, whose ratio is `ratio`, and the baselines that have to fail. `bytes_ratio` is of all bytes of the case.
    pub fn check(
        &self,
        case: &GatedCase,
        ratio: f32,
        unevicted_recall: f64,
        all: &[Figures],
        bytes_ratio: Option<f64>,
    ) -> Vec<Outcome> {
        let at_least = |gate: String, value: f64, bar: f64| Outcome {
            passed: value >= bar,
            gate,
            value,
            bar: format!("at least {bar}"),
        };
        let at_most = |gate: String, value: f64, bar: f64| Outcome {
            passed: value <= bar,
            gate,
            value,
            bar: format!("at most {bar}"),
        };
        let is_case =
            |figures: &Figures| !figures.all_layers && figures.scorer == case.scorer && figures.ratio == ratio;
        let mut out = vec![at_least("unevicted, recall %".into(), unevicted_recall, self.unevicted_recall_percent)];
        let name = |what: &str| format!("{} at {ratio:.2}, {what}", case.scorer);
        if let Some(figures) = all.iter().find(|figures| is_case(figures)) {
            let perplexity = figures.perplexity_percent.abs();
            out.push(at_least(name("total ratio"), figures.total_ratio, case.total_ratio));
            out.push(at_most(name("perplexity %, either way"), perplexity, self.perplexity_percent));
            out.push(at_most(name("KL, nats"), figures.kl_nats, self.kl_nats));
            out.push(at_least(name("top-1 %"), figures.top1_percent, self.top1_percent));
            let recall = figures.recall_of_unevicted_percent;
            out.push(at_least(name("recall, % of unevicted"), recall, self.recall_percent));
        }
        if let Some((value, bar)) = bytes_ratio.zip(case.bytes_ratio) {
            out.push(at_least(name("total ratio of bytes"), value, bar));
        }
        for figures in all.iter().filter(|figures| figures.all_layers && self.must_forget.contains(&figures.scorer)) {
            out.push(Outcome {
                gate: format!(
                    "{} in all layers at {:.2} has to fail: recall, % of unevicted",
                    figures.scorer, figures.ratio
                ),
                value: figures.recall_of_unevicted_percent,
                bar: format!("below {}", self.recall_percent),
                passed: !self.passes_recall(figures),
            });
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::h2o::{Settings, Target};

    use super::*;

    fn figures(scorer: &str, all_layers: bool, recall: f64) -> Figures {
        Figures {
            scorer: scorer.into(),
            all_layers,
            ratio: 3.0,
            total_ratio: 2.0,
            perplexity_percent: -1.9,
            kl_nats: 0.02,
            top1_percent: 97.0,
            recall_of_unevicted_percent: recall,
            ..Figures::default()
        }
    }

    fn check(unevicted: f64, all: &[Figures], bytes_ratio: f64) -> Vec<String> {
        let gates = Gates::load(None).unwrap();
        let case = GatedCase { prompt: 1024, scorer: "h2o".into(), total_ratio: 2.0, bytes_ratio: Some(3.0) };
        let slipped = |outcome: &Outcome| !outcome.passed;
        let failed = gates.check(&case, 3.0, unevicted, all, Some(bytes_ratio)).into_iter().filter(slipped);
        failed.map(|outcome| outcome.gate).collect()
    }

    #[test]
    fn a_figure_that_slips_fails_its_gate() {
        let good = [figures("h2o", false, 95.0), figures("streaming", true, 30.0), figures("random", true, 94.0)];
        assert_eq!(check(80.0, &good, 3.0), [""; 0]);
        assert_eq!(check(79.9, &good, 3.0), ["unevicted, recall %"]);
        assert_eq!(check(80.0, &good, 2.9), ["h2o at 3.00, total ratio of bytes"]);
        type Slip = fn(&mut Figures);
        let slips: [(Slip, &str); 6] = [
            (|f| f.total_ratio = 1.99, "h2o at 3.00, total ratio"),
            (|f| f.perplexity_percent = 2.1, "h2o at 3.00, perplexity %, either way"),
            (|f| f.perplexity_percent = -2.1, "h2o at 3.00, perplexity %, either way"),
            (|f| f.kl_nats = 0.021, "h2o at 3.00, KL, nats"),
            (|f| f.top1_percent = 96.9, "h2o at 3.00, top-1 %"),
            (|f| f.recall_of_unevicted_percent = 94.9, "h2o at 3.00, recall, % of unevicted"),
        ];
        for (slip, gate) in slips {
            let mut all = good.clone();
            slip(&mut all[0]);
            assert_eq!(check(80.0, &all, 3.0), [gate]);
            assert!(gate.contains("ratio") || !Gates::load(None).unwrap().are_met(&all[0]));
        }
    }

    #[test]
    fn the_least_ratio_of_the_scorer_that_gives_the_total_has_to_pass() {
        let case = |scorer: &str, lossy_ratio| Case {
            scorer: scorer.into(),
            settings: vec![Settings { target: Target::Adaptive { lossy_ratio }, ..Settings::default() }],
        };
        let gated = GatedCase { prompt: 1024, scorer: "h2o".into(), total_ratio: 2.0, bytes_ratio: None };
        let find = |cases: &[Case]| gated.find(cases, |ratio| ratio / 2.0);
        assert_eq!(find(&[case("h2o", 6.0), case("tova", 4.0), case("h2o", 5.0), case("h2o", 3.0)]), Some(2));
        assert_eq!(find(&[case("h2o", 2.0), case("h2o", 3.0)]), Some(1), "no ratio gives the total");
        assert_eq!(find(&[case("tova", 5.0)]), None);
        // The gates find the figures of the case by its ratio, also where 1 / (1 / ratio) is another number.
        let odd = case("h2o", 3.5);
        let all = [Figures { ratio: 3.5, ..figures("h2o", false, 10.0) }];
        let failed = Gates::load(None).unwrap().check(&gated, odd.ratio(), 90.0, &all, None);
        assert_eq!(failed.iter().filter(|outcome| !outcome.passed).count(), 1, "recall: {failed:?}");
    }

    #[test]
    fn a_baseline_that_passes_the_recall_gate_fails_the_bench() {
        for scorer in ["streaming", "random"] {
            let failed = check(90.0, &[figures("h2o", false, 96.0), figures(scorer, true, 95.0)], 3.0);
            assert_eq!(failed, [format!("{scorer} in all layers at 3.00 has to fail: recall, % of unevicted")]);
        }
    }

    #[test]
    fn the_longest_case_that_fits_the_prompt_is_gated() {
        let gates = Gates::load(None).unwrap();
        assert!(gates.case(2047).is_none());
        assert_eq!(gates.case(3583).unwrap().total_ratio, 2.0);
        assert_eq!(gates.case(100_000).unwrap().total_ratio, 2.5);
        assert!(Gates::load(Some(Path::new("/no/gates.toml"))).unwrap_err().to_string().contains("/no/gates.toml"));
    }
}
