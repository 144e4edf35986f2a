//! Gates: bars for quality under eviction, from a file in the repository or of the user's own.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::figures::{Figures, OfKind};
use super::quality::Case;
use super::served::Served;
use super::speed::Speed;

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
    /// Minimum number of tokens of the prompt.
    pub prompt: usize,
    pub scorer: String,
    /// Ratio over all layers and tokens, at least.
    pub total_ratio: f64,
    /// Ratio of the heads that drop tokens, at least.
    pub evicting_ratio: Option<f64>,
    /// Gain of decode steps of one sequence against steps without eviction, per cent, at least.
    pub decode_gain_percent: Option<f64>,
    /// Share of a decode step without eviction that scores cost, per cent, at most, for each batch.
    pub scores_percent: Option<f64>,
    /// Most requests at once on the server with eviction, by those on the server without, at least.
    pub at_once_ratio: Option<f64>,
    /// Minimum number of bytes of every token by the bytes left after compression.
    pub bytes_ratio: Option<f64>,
}

/// Outcome of one gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Case and figure.
    pub gate: String,
    /// Figure; `None` if the run did not measure one, and the gate then fails.
    pub value: Option<f64>,
    /// Bar, with its direction and tolerance.
    pub bar: String,
    pub passed: bool,
    /// `true` for a figure beyond the bar, but by less than the tolerance.
    pub slipped: bool,
}

/// Figures of a run, for the gates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured<'a> {
    /// Ratio of the case that has to pass.
    pub ratio: f32,
    /// Recall without eviction, per cent.
    pub unevicted_recall_percent: f64,
    /// Kinds of text that have to pass, each by itself.
    pub kinds: &'a [&'a str],
    /// All cases.
    pub cases: &'a [Figures],
    /// Ratio of all bytes of the case; `None` if the KV has another type than the gate is for.
    pub bytes_ratio: Option<f64>,
    /// Decode steps, by batch: of one sequence first.
    pub speeds: &'a [Speed],
    /// Servers; `None` for a run that was to have none, whose requests at once are not gated.
    pub served: Option<&'a [Served]>,
}

impl Outcome {
    /// Compares a figure with its bar.
    fn at_least(gate: String, value: Option<f64>, bar: f64, tolerance: f64) -> Self {
        let (passed, slipped) = match value {
            Some(value) => (value >= bar - tolerance, value >= bar - tolerance && value < bar),
            None => (false, false),
        };
        let within = if tolerance > 0.0 { format!(" - {tolerance:.4}") } else { String::new() };
        Self { gate, value, bar: format!("at least {bar}{within}"), passed, slipped }
    }

    fn at_most(gate: String, value: Option<f64>, bar: f64, tolerance: f64) -> Self {
        let outcome = Self::at_least(gate, value.map(|value| -value), -bar, tolerance);
        let within = if tolerance > 0.0 { format!(" + {tolerance:.4}") } else { String::new() };
        Self { value, bar: format!("at most {bar}{within}"), ..outcome }
    }

    /// Returns the outcome as a line.
    pub fn render(&self) -> String {
        let mark = match (self.passed, self.slipped) {
            (true, true) => "slip",
            (true, false) => "pass",
            (false, _) => "FAIL",
        };
        let value = self.value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.4}"));
        format!("{mark} {}: {value}, {}\n", self.gate, self.bar)
    }
}

impl Measured<'_> {
    /// Checks the time of decode steps, and the requests at once. The cost of scores may be more by two of its standard errors.
    fn check_speed(&self, case: &GatedCase, name: &dyn Fn(&str) -> String) -> Vec<Outcome> {
        let mut out = Vec::new();
        if let Some(bar) = case.decode_gain_percent {
            let gain = self.speeds.first().map(|speed| 100.0 * (speed.on_by_off() - 1.0));
            out.push(Outcome::at_least(name("gain in decode speed, batch 1, %"), gain, bar, 0.0));
        }
        if let Some(bar) = case.scores_percent {
            let cost = |speed: &Speed| {
                let gate = name(&format!("cost of scores, batch {}, %", speed.batch));
                Outcome::at_most(gate, Some(speed.scores_percent()), bar, 2.0 * speed.scores_error())
            };
            out.extend(self.speeds.iter().map(cost));
            if self.speeds.is_empty() {
                out.push(Outcome::at_most(name("cost of scores, %"), None, bar, 0.0));
            }
        }
        if let (Some(bar), Some(served)) = (case.at_once_ratio, self.served) {
            let peak = |way: &str| served.iter().find(|served| served.way == way).map(|served| served.peak as f64);
            let ratio = peak("h2o").zip(peak("off")).map(|(with, without)| with / without);
            out.push(Outcome::at_least(name("requests at once, by those without eviction"), ratio, bar, 0.0));
        }
        out
    }
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
    /// If the file cannot be read or is not a gates file.
    pub fn load(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(toml::from_str(BUILT_IN)?) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the gates {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a gates file", path.display()))
    }

    /// Returns the case that has to pass with prompts of `prompt` tokens.
    pub fn case(&self, prompt: usize) -> Option<&GatedCase> {
        self.case.iter().filter(|case| case.prompt <= prompt).max_by_key(|case| case.prompt)
    }

    /// Returns the least prompt that has gates.
    pub fn least_prompt(&self) -> Option<usize> {
        self.case.iter().map(|case| case.prompt).min()
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

    /// Checks the case that has to pass, and the baselines that have to fail. A figure that was not measured fails its gate.
    pub fn check(&self, case: &GatedCase, measured: &Measured<'_>) -> Vec<Outcome> {
        let is_case = |figures: &&Figures| {
            !figures.all_layers && figures.scorer == case.scorer && figures.ratio == measured.ratio
        };
        let figures = measured.cases.iter().find(is_case);
        let at = figures.map(|figures| format!(" at {:.2}", figures.ratio)).unwrap_or_default();
        let name = |of: &str| format!("{}{at}, {of}", case.scorer);
        let of = |figure: &dyn Fn(&Figures) -> f64| figures.map(figure);
        let least = |of_what: &str, value: Option<f64>, bar: f64| Outcome::at_least(name(of_what), value, bar, 0.0);
        let most = |of_what: &str, value: Option<f64>, bar: f64| Outcome::at_most(name(of_what), value, bar, 0.0);
        let unevicted = Some(measured.unevicted_recall_percent);
        let mut out =
            vec![Outcome::at_least("unevicted, recall %".into(), unevicted, self.unevicted_recall_percent, 0.0)];
        out.push(least("total ratio", of(&|figures| figures.total_ratio), case.total_ratio));
        out.extend(case.evicting_ratio.map(|bar| least("evicting ratio", of(&|figures| figures.evicting_ratio), bar)));
        let perplexity = of(&|figures| figures.perplexity_percent.abs());
        out.push(most("perplexity %, either way", perplexity, self.perplexity_percent));
        out.push(most("KL, nats", of(&|figures| figures.kl_nats), self.kl_nats));
        out.push(least("top-1 %", of(&|figures| figures.top1_percent), self.top1_percent));
        let recall = of(&|figures| figures.recall_of_unevicted_percent);
        out.push(least("recall, % of unevicted", recall, self.recall_percent));
        for kind in measured.kinds {
            let of_kind = figures.and_then(|figures| figures.kinds.iter().find(|of| of.kind == *kind));
            out.extend(self.check_kind(&name(kind), of_kind));
        }
        let bytes = measured.bytes_ratio.filter(|_| figures.is_some());
        out.extend(case.bytes_ratio.map(|bar| least("total ratio of bytes", bytes, bar)));
        out.extend(measured.check_speed(case, &name));
        out.extend(self.must_forget.iter().map(|scorer| self.check_baseline(scorer, measured.cases)));
        out
    }

    /// Checks one kind of text. The bars are those of all texts, less or more two standard errors of so few tokens.
    fn check_kind(&self, name: &str, of: Option<&OfKind>) -> [Outcome; 3] {
        let (perplexity, kl, top1) =
            (of.map(|of| of.perplexity_percent.abs()), of.map(|of| of.kl_nats), of.map(|of| of.top1_percent));
        let two_errors = |error: &dyn Fn(&OfKind) -> f64| 2.0 * of.map_or(0.0, error);
        let share = self.top1_percent / 100.0;
        let top1_error = |of: &OfKind| 100.0 * (share * (1.0 - share) / f64::from(of.tokens)).sqrt();
        let gate = |figure: &str| format!("{name}, {figure}");
        [
            Outcome::at_most(
                gate("perplexity %, either way"),
                perplexity,
                self.perplexity_percent,
                two_errors(&|of| of.perplexity_error),
            ),
            Outcome::at_most(gate("KL, nats"), kl, self.kl_nats, two_errors(&|of| of.kl_error)),
            Outcome::at_least(gate("top-1 %"), top1, self.top1_percent, two_errors(&top1_error)),
        ]
    }

    /// Checks that a scorer in all layers fails the gate of recall.
    fn check_baseline(&self, scorer: &str, cases: &[Figures]) -> Outcome {
        let figures = cases.iter().find(|figures| figures.all_layers && figures.scorer == scorer);
        let at = figures.map(|figures| format!(" at {:.2}", figures.ratio)).unwrap_or_default();
        Outcome {
            gate: format!("{scorer} in all layers{at} has to fail: recall, % of unevicted"),
            value: figures.map(|figures| figures.recall_of_unevicted_percent),
            bar: format!("below {}", self.recall_percent),
            passed: figures.is_some_and(|figures| !self.passes_recall(figures)),
            slipped: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::h2o::{Settings, Target};

    use super::*;
    use trunkline::h2o::sources::KINDS;

    fn of_kind(kind: &str) -> OfKind {
        OfKind {
            kind: kind.into(),
            tokens: 1_000,
            perplexity_percent: -1.9,
            perplexity_error: 0.5,
            kl_nats: 0.02,
            kl_error: 0.001,
            top1_percent: 97.0,
            recall_of_unevicted_percent: 90.0,
        }
    }

    fn figures(scorer: &str, all_layers: bool, recall: f64) -> Figures {
        Figures {
            scorer: scorer.into(),
            all_layers,
            ratio: 3.0,
            evicting_ratio: 2.9,
            total_ratio: 2.0,
            perplexity_percent: -1.9,
            kl_nats: 0.02,
            top1_percent: 97.0,
            recall_of_unevicted_percent: recall,
            kinds: KINDS.map(of_kind).to_vec(),
            ..Figures::default()
        }
    }

    fn gated() -> GatedCase {
        GatedCase {
            prompt: 1024,
            scorer: "h2o".into(),
            total_ratio: 2.0,
            evicting_ratio: Some(2.9),
            decode_gain_percent: Some(20.0),
            scores_percent: Some(1.0),
            at_once_ratio: Some(2.0),
            bytes_ratio: Some(3.0),
        }
    }

    /// Returns steps with eviction of `on` ms, and with scores of `probe` ms, where steps without either take 12.
    fn speed(batch: usize, probe: [f64; 5], on: f64) -> Speed {
        Speed { batch, score_interval: 1, off_ms: vec![12.0; 5], probe_ms: probe.to_vec(), on_ms: vec![on; 5] }
    }

    fn speeds() -> [Speed; 2] {
        [1, 8].map(|batch| speed(batch, [12.1; 5], 9.9))
    }

    fn served(off: usize, h2o: usize) -> [Served; 2] {
        [("off", off), ("h2o", h2o)].map(|(way, peak)| Served { way: way.into(), peak, ..Served::default() })
    }

    /// Returns what a run measures if all is well.
    fn measured(cases: &[Figures]) -> Measured<'_> {
        Measured {
            ratio: 3.0,
            unevicted_recall_percent: 80.0,
            kinds: &KINDS,
            cases,
            bytes_ratio: Some(3.0),
            speeds: speeds().to_vec().leak(),
            served: Some(served(4, 8).to_vec().leak()),
        }
    }

    fn failed(measured: &Measured<'_>) -> Vec<String> {
        let outcomes = Gates::load(None).unwrap().check(&gated(), measured);
        outcomes.into_iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.gate).collect()
    }

    fn good() -> [Figures; 3] {
        [figures("h2o", false, 95.0), figures("streaming", true, 30.0), figures("random", true, 94.0)]
    }

    #[test]
    fn a_figure_that_slips_fails_its_gate() {
        let good = good();
        assert_eq!(failed(&measured(&good)), [""; 0]);
        assert_eq!(failed(&Measured { unevicted_recall_percent: 79.9, ..measured(&good) }), ["unevicted, recall %"]);
        let bytes = Measured { bytes_ratio: Some(2.9), ..measured(&good) };
        assert_eq!(failed(&bytes), ["h2o at 3.00, total ratio of bytes"]);
        let slow = [speed(1, [12.0; 5], 10.1)];
        let slow = Measured { speeds: &slow, ..measured(&good) };
        assert_eq!(failed(&slow), ["h2o at 3.00, gain in decode speed, batch 1, %"]);
        let few = served(4, 7);
        let few = Measured { served: Some(&few), ..measured(&good) };
        assert_eq!(failed(&few), ["h2o at 3.00, requests at once, by those without eviction"]);
        assert_eq!(failed(&Measured { served: None, ..few }), [""; 0], "a run without a server");
        type Slip = fn(&mut Figures);
        let slips: [(Slip, &str); 7] = [
            (|f| f.total_ratio = 1.99, "h2o at 3.00, total ratio"),
            (|f| f.evicting_ratio = 2.89, "h2o at 3.00, evicting ratio"),
            (|f| f.perplexity_percent = 2.1, "h2o at 3.00, perplexity %, either way"),
            (|f| f.perplexity_percent = -2.1, "h2o at 3.00, perplexity %, either way"),
            (|f| f.kl_nats = 0.021, "h2o at 3.00, KL, nats"),
            (|f| f.top1_percent = 96.9, "h2o at 3.00, top-1 %"),
            (|f| f.recall_of_unevicted_percent = 94.9, "h2o at 3.00, recall, % of unevicted"),
        ];
        for (slip, gate) in slips {
            let mut all = good.clone();
            slip(&mut all[0]);
            assert_eq!(failed(&measured(&all)), [gate]);
            assert!(gate.contains("ratio") || !Gates::load(None).unwrap().are_met(&all[0]));
        }
    }

    #[test]
    fn scores_may_cost_two_standard_errors_more() {
        let good = good();
        let fails = |probe: [f64; 5]| {
            let speeds = [speed(1, [12.0; 5], 9.9), speed(8, probe, 9.9)];
            failed(&Measured { speeds: &speeds, ..measured(&good) })
        };
        // A cost of 2 %, with a standard error of 0.83: distances of 2, 1, 0, 1 and 2 from the median.
        assert_eq!(fails([12.0, 12.12, 12.24, 12.36, 12.48]), [""; 0]);
        assert_eq!(fails([12.22, 12.23, 12.24, 12.25, 12.26]), ["h2o at 3.00, cost of scores, batch 8, %"]);
    }

    #[test]
    fn every_kind_of_text_has_to_pass_within_two_standard_errors() {
        type Slip = fn(&mut OfKind);
        // The standard error of 97 % of 1,000 tokens is 0.54 %.
        let slips: [(Slip, Slip, &str); 3] = [
            (|of| of.perplexity_percent = 2.9, |of| of.perplexity_percent = 3.1, "perplexity %, either way"),
            (|of| of.kl_nats = 0.0219, |of| of.kl_nats = 0.0221, "KL, nats"),
            (|of| of.top1_percent = 96.0, |of| of.top1_percent = 95.9, "top-1 %"),
        ];
        for (within, beyond, figure) in slips {
            let gate = format!("h2o at 3.00, code, {figure}");
            let mut all = good();
            within(&mut all[0].kinds[1]);
            let outcomes = Gates::load(None).unwrap().check(&gated(), &measured(&all));
            let slipped: Vec<_> = outcomes.iter().filter(|outcome| outcome.slipped).collect();
            assert!(slipped.len() == 1 && slipped[0].gate == gate && slipped[0].passed, "{slipped:?}");
            assert!(slipped[0].render().starts_with("slip h2o at 3.00, code, "), "{}", slipped[0].render());
            beyond(&mut all[0].kinds[1]);
            assert_eq!(failed(&measured(&all)), [gate]);
        }
    }

    #[test]
    fn a_figure_that_was_not_measured_fails_its_gate_by_name() {
        let baselines = &good()[1..];
        let outcomes = Gates::load(None).unwrap().check(&gated(), &measured(baselines));
        let lines: String = outcomes.iter().filter(|outcome| !outcome.passed).map(Outcome::render).collect();
        for gate in ["total ratio", "KL, nats", "top-1 %", "prose, KL, nats", "total ratio of bytes"] {
            assert!(lines.contains(&format!("FAIL h2o, {gate}: not measured, at ")), "{gate}: {lines}");
        }
        let mut all = good();
        all[0].kinds.remove(2);
        let of_diary = ["perplexity %, either way", "KL, nats", "top-1 %"];
        assert_eq!(failed(&measured(&all)), of_diary.map(|figure| format!("h2o at 3.00, diary, {figure}")));
        let all = good();
        assert_eq!(
            failed(&measured(&all[..2])),
            ["random in all layers has to fail: recall, % of unevicted"],
            "a baseline is missing"
        );
        let none = Measured { bytes_ratio: None, speeds: &[], served: Some(&[]), ..measured(&all) };
        assert_eq!(failed(&none).len(), 4);
    }

    #[test]
    fn the_least_ratio_of_the_scorer_that_gives_the_total_has_to_pass() {
        let case = |scorer: &str, lossy_ratio| Case {
            scorer: scorer.into(),
            settings: vec![Settings { target: Target::Adaptive { lossy_ratio }, ..Settings::default() }],
        };
        let gated = gated();
        let find = |cases: &[Case]| gated.find(cases, |ratio| ratio / 2.0);
        assert_eq!(find(&[case("h2o", 6.0), case("tova", 4.0), case("h2o", 5.0), case("h2o", 3.0)]), Some(2));
        assert_eq!(find(&[case("h2o", 2.0), case("h2o", 3.0)]), Some(1), "no ratio gives the total");
        assert_eq!(find(&[case("tova", 5.0)]), None);
        // The gates find the figures of the case by its ratio, also where 1 / (1 / ratio) is another number.
        let odd = case("h2o", 3.5);
        let [ours, others @ ..] = good();
        let all = [&[Figures { ratio: 3.5, ..ours }], &others[..]].concat();
        assert_eq!(failed(&Measured { ratio: odd.ratio(), ..measured(&all) }), [""; 0]);
    }

    #[test]
    fn a_baseline_that_passes_the_recall_gate_fails_the_bench() {
        for at in [1, 2] {
            let mut all = good();
            all[at].recall_of_unevicted_percent = 95.0;
            let scorer = &all[at].scorer;
            let gate = format!("{scorer} in all layers at 3.00 has to fail: recall, % of unevicted");
            assert_eq!(failed(&measured(&all)), [gate]);
        }
    }

    #[test]
    fn the_longest_case_that_fits_the_prompt_is_gated() {
        let gates = Gates::load(None).unwrap();
        assert!(gates.case(2047).is_none());
        assert_eq!(gates.least_prompt(), Some(2048));
        assert_eq!(gates.case(3583).unwrap().total_ratio, 2.0);
        assert_eq!(gates.case(100_000).unwrap().total_ratio, 2.5);
        assert!(Gates::load(Some(Path::new("/no/gates.toml"))).unwrap_err().to_string().contains("/no/gates.toml"));
    }
}
