//! Benchmark of eviction within sequences: ratio, quality and speed of every scorer, side by side, with gates.
//!
//! The embedded worker runs without a server and without a core: the planner of the core drops blocks from tables made here, as the core
//! would. Ratios are true ones: held tokens of all layers, mean over the counted steps. Facts are asked for after the eviction.

mod figures;
mod gates;
mod options;
mod quality;
mod served;
mod speed;
mod stored;
mod text_set;

use std::io::{self, Write};

use anyhow::{Context, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use trunkline_core::h2o::{Settings, Target};
use trunkline_core::{H2oConfig, names::registry};
use trunkline_port::{Keeps, LayerGroup, ModelInfo};
use trunkline_server::layout;
use trunkline_store::BlockLayout;
use trunkline_text::Tokenizer;
use trunkline_worker::{KvDtype, Model};

use self::figures::{Figures, mean_recall};
use self::gates::{GatedCase, Gates, Measured, Outcome};
pub use self::options::H2oOptions;
use self::quality::{Case, Lengths, Look, Quality};
use self::served::{Load, Served};
use self::speed::Speed;
use self::stored::Stored;
use self::text_set::BENCH;
use super::measure::Report;
use trunkline::h2o::choice::Choice;
use trunkline::h2o::full_heads::FullHeads;
use trunkline::h2o::head_loss::{HeadLosses, Reading, TOKENS_MIN, default_tokens, head_losses};
use trunkline::h2o::rig::{BLOCK, Rig};
use trunkline::h2o::sources::{KINDS, Source};
use trunkline::h2o::texts::{self, Outline};
use trunkline::h2o::total::{self, Heads};
use trunkline::model::model_source::ModelSource;
use trunkline::serve::rotation;
use trunkline::settings::h2o_settings::windows;

const NOTES: [&str; 3] = [
    "Ratio: target of the evicting layers; then tokens by held tokens, mean over the run, in the evicting layers and over all layers.",
    "Perplexity, KL and top-1 are against the unevicted run on the same text, forced, one token per step, from the first plan on.",
    "Recall: words of facts asked for after the eviction, each after the right words before it; by depth from the first fact to the last.",
];

/// Maximum number of tokens of a question about a fact and its answer, after another question and answer.
const QUESTIONS: u32 = 384;
/// Ratio of the heads that drop tokens by that of the gates, where it is chosen for them: plans follow it within a block.
const EVICTING_SPARE: f32 = 1.02;

/// All figures of a run.
#[derive(Debug, Serialize)]
struct H2oReport {
    model: String,
    /// Layers and KV heads that keep everything, as in `--full-layers`.
    full_layers: String,
    /// Number of KV heads that keep everything.
    full_heads: usize,
    prompt: usize,
    unevicted_recall_percent: f64,
    unevicted: Vec<Quality>,
    cases: Vec<Figures>,
    /// Number of the gated case, or else the first one.
    compared: usize,
    /// Bytes and work of the store, for the compared case.
    stored: Stored,
    /// The server with and without eviction and compression.
    served: Vec<Served>,
    gates: Vec<Outcome>,
    /// Reason for which nothing is gated.
    ungated: Option<String>,
    #[serde(flatten)]
    report: Report,
}

/// Runs the benchmark and prints the report.
///
/// # Errors
/// If the model cannot be read or run, or a gate fails; the report is printed in the latter case, too.
pub fn run(options: &H2oOptions) -> anyhow::Result<()> {
    let report = measure(options)?;
    let text = if options.json { serde_json::to_string_pretty(&report)? } else { report.render() };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")?;
    let failed = report.gates.iter().filter(|outcome| !outcome.passed).count();
    ensure!(failed == 0, "{failed} of {} gates failed", report.gates.len());
    Ok(())
}

/// Facts of a run, shared by all its parts.
struct Plan<'a> {
    options: &'a H2oOptions,
    tokenizer: Tokenizer,
    lengths: Lengths,
    /// Sources of the texts.
    sources: Vec<Source>,
    texts: Vec<texts::Text>,
    n_facts: usize,
    /// Maximum number of tokens of a question and its answer.
    asked: usize,
    scorers: Vec<String>,
}

fn measure(options: &H2oOptions) -> anyhow::Result<H2oReport> {
    let gates = Gates::load(options.gates.as_deref())?;
    let model = load(options)?;
    let (name, plan) = (model.name().to_owned(), Plan::new(options, &model)?);
    let (info, windows) = (model.info(), windows(&model.info()));
    let gated = gates.case(plan.lengths.prompt);
    let total = plan.total(gated)?;
    let (full, losses) = plan.full_heads(&info, total, gated)?;
    let mut report = Report::new("h2o", options.quick, NOTES.to_vec());
    let groups = full.groups(&windows, plan.choice(&info))?;
    let weights = plan.weights(&info, &groups);
    let model = model.with_groups(groups)?;
    let info = model.info();
    let n_all = (Heads::of(&info).whole + Heads::of(&info).dropping) as usize;
    let layout = BlockLayout { frequencies: Some(rotation(&model)), ..layout(&info, options.planner.block_size) };
    let mut rig = plan.rig(model, plan.choice(&info))?;
    let settings = plan.cases(plan.ratio(total, gated, &info)?, &weights)?;
    let compared = gated.and_then(|gated| plan.gated(gated, &settings, &info)).unwrap_or(0);
    let mut stored = Stored::default();
    let look: Look<'_> = &mut |rig, prompt, case, seq| {
        if case == compared { stored.add(rig, &layout, prompt, seq) } else { Ok(()) }
    };
    let (unevicted, mut cases) = plan.measure(&mut rig, &settings, full.len(), n_all, look)?;
    let speeds = plan.speed(&mut rig, &settings, compared, &mut report)?;
    drop(rig);
    if !full.is_empty() {
        let none = FullHeads::new(Vec::new(), info.n_layers, info.n_kv_heads);
        let ratio = cases[compared].total_ratio as f32;
        cases.extend(plan.baselines(&gates.must_forget, none.groups(&windows, Choice::Shared)?, ratio, n_all)?);
    }
    let served = plan.served(&settings[compared], &full, losses.as_ref())?;
    let unevicted_recall_percent = mean_recall(&unevicted);
    cases.iter_mut().for_each(|case| case.passes = gates.are_met(case));
    let bytes_ratio = (options.kv_dtype == "bf16").then(|| stored.bytes.totals()[0]);
    let measured = Measured {
        ratio: settings[compared].ratio(),
        unevicted_recall_percent,
        kinds: &plan.gated_kinds(),
        cases: &cases,
        bytes_ratio,
        speeds: &speeds,
        served: (options.requests > 0).then_some(&served),
    };
    let outcomes = gated.map(|case| gates.check(case, &measured)).unwrap_or_default();
    Ok(H2oReport {
        model: name,
        full_layers: full.to_string(),
        full_heads: full.len(),
        prompt: plan.lengths.prompt,
        unevicted_recall_percent,
        unevicted,
        cases,
        stored,
        served,
        compared,
        gates: outcomes,
        ungated: if gated.is_some() { None } else { Some(ungated(&gates)) },
        report,
    })
}

impl<'a> Plan<'a> {
    fn new(options: &'a H2oOptions, model: &Model) -> anyhow::Result<Self> {
        let tokenizer = ModelSource::of(options.model.as_deref()).tokenizer()?;
        let whole = |n: u32| (n / options.planner.block_size * options.planner.block_size) as usize;
        let (prompt, after, n_facts) = if options.quick {
            (512, 48, 2)
        } else {
            let prompt = options.prompt.unwrap_or_else(|| default_prompt(model.info().max_context, options.after));
            (whole(prompt), whole(options.after), options.facts as usize)
        };
        let lengths = Lengths { prompt, after, before: 16 };
        let mut sources = Source::all(&options.kinds, &options.text)?;
        sources.truncate(if options.quick { 1 } else { sources.len() });
        let mut all = Vec::new();
        for number in 0..u64::from(options.texts) {
            for source in &sources {
                let outline = Outline { set: &BENCH, source, number, prompt, after, n_facts };
                all.push(texts::text(&outline, &tokenizer)?);
            }
        }
        let asked = all.iter().flat_map(|text| &text.facts).map(|fact| texts::asked_tokens(fact, &tokenizer));
        let asked = asked.collect::<anyhow::Result<Vec<_>>>()?.into_iter().max().unwrap_or_default();
        let (context, needed) = (model.config().max_context as usize, prompt + after + asked);
        ensure!(
            needed <= context,
            "the model's context is {context} tokens; prompt, continuation and questions need {needed}: give a shorter --prompt or --after"
        );
        let scorers = if options.scorers.is_empty() {
            trunkline_core::h2o::REGISTRY.names().map(str::to_owned).collect()
        } else {
            options.scorers.clone()
        };
        Ok(Self { options, tokenizer, lengths, sources, texts: all, n_facts, asked, scorers })
    }

    /// Returns the kinds of text that have to pass: those of the run if files of the user's are among them, else all of the project's.
    fn gated_kinds(&self) -> Vec<&str> {
        let of_run = || self.sources.iter().map(|source| source.name.as_str()).collect();
        if self.options.text.is_empty() { KINDS.to_vec() } else { of_run() }
    }

    /// Returns the choice of the blocks to drop.
    fn choice(&self, info: &ModelInfo) -> Choice {
        self.options.choice.of(info)
    }

    /// Returns the weights of the groups that drop tokens; none if one plan is for all.
    fn weights(&self, info: &ModelInfo, groups: &[LayerGroup]) -> Vec<f32> {
        let mut weights = H2oConfig::weights_of(groups);
        if self.choice(info) == Choice::Own {
            weights.resize(groups.iter().filter(|group| group.keeps == Keeps::Scored).count(), 1.0);
        }
        weights
    }

    fn case(&self, scorer: &str, lossy_ratio: f32, weights: &[f32]) -> Case {
        let settings = |weight: &f32| Settings {
            sink_tokens: self.options.planner.sink,
            recent_tokens: self.options.planner.recent,
            block_tokens: self.options.planner.block_tokens(),
            score_interval: self.options.planner.score_interval,
            target: Target::Adaptive { lossy_ratio },
            weight: *weight,
            ..Settings::default()
        };
        Case { scorer: scorer.to_owned(), settings: weights.iter().map(settings).collect() }
    }

    /// Returns the total ratio for which heads and ratios are chosen.
    fn total(&self, gated: Option<&GatedCase>) -> anyhow::Result<f32> {
        let default = gated.map_or(total::DEFAULT, |case| case.total_ratio as f32);
        self.options.total.as_deref().map_or(Ok(default), |text| total::parse("total", text))
    }

    /// Returns the ratio of the heads that drop tokens for a total, of a model that is divided, but at least that of the gates. If the command line
    /// gives heads, or ratios, the total of the gates may be out of reach.
    fn ratio(&self, total: f32, gated: Option<&GatedCase>, model: &ModelInfo) -> anyhow::Result<f32> {
        let (heads, excess) = (Heads::of(model), self.excess());
        let of_total = match self.options.total.is_some() && self.options.ratios.is_empty() {
            true => total::reached("total", total, heads, excess)?,
            false => total::ratio(total, heads, excess).unwrap_or(H2oConfig::RATIO),
        };
        let planned = self.evicting(gated).and_then(|evicting| total::planned(evicting, excess));
        Ok(planned.map_or(of_total, |planned| of_total.max(planned)))
    }

    /// Returns the ratio of the heads that drop tokens that the gates ask for, with a little to spare, unless the command line gives heads or ratios.
    fn evicting(&self, gated: Option<&GatedCase>) -> Option<f32> {
        let H2oOptions { full_layers, ratios, .. } = self.options;
        let is_free = full_layers.is_none() && ratios.is_empty();
        gated.filter(|_| is_free)?.evicting_ratio.map(|ratio| ratio as f32 * EVICTING_SPARE)
    }

    /// Returns the share of a prompt that heads hold beyond the plans.
    fn excess(&self) -> f64 {
        let settings = self.case("h2o", H2oConfig::RATIO, &[1.0]).settings;
        total::excess(&settings[0], (self.lengths.prompt + self.lengths.before) as u32)
    }

    /// Returns all cases, checked.
    fn cases(&self, ratio: f32, weights: &[f32]) -> anyhow::Result<Vec<Case>> {
        let (default, weights) = ([ratio], if weights.is_empty() { &[1.0] } else { weights });
        let ratios = if self.options.ratios.is_empty() { &default[..] } else { &self.options.ratios };
        let of_ratio = |ratio: f32| self.scorers.iter().map(move |scorer| self.case(scorer, ratio, weights));
        let cases: Vec<Case> = ratios.iter().copied().flat_map(of_ratio).collect();
        let mut settings = cases.iter().flat_map(|case| &case.settings);
        settings.try_for_each(|settings| settings.validate(self.options.planner.block_size))?;
        Ok(cases)
    }

    /// Returns the number of the case that has to pass the gates, of a model that is divided.
    fn gated(&self, gated: &GatedCase, cases: &[Case], model: &ModelInfo) -> Option<usize> {
        gated.find(cases, |ratio| total::of(ratio, Heads::of(model), self.excess()))
    }

    /// Returns the heads that keep everything, the ones of the command line or the ones that the losses of all heads give for the total and the ratio of
    /// the gates, and the losses, if they are known.
    fn full_heads(
        &self,
        info: &ModelInfo,
        total: f32,
        gated: Option<&GatedCase>,
    ) -> anyhow::Result<(FullHeads, Option<HeadLosses>)> {
        let (options, source) = (self.options, ModelSource::of(self.options.model.as_deref()));
        let losses = source.head_losses(&source.revision()?)?;
        let losses = match (options.full_layers.as_deref(), losses) {
            (None, None) => Some(found(load(options)?, &self.tokenizer, self.lengths.prompt, options.threads)?),
            (_, losses) => losses,
        };
        let given = match options.full_layers.as_deref() {
            Some("none") => Some(FullHeads::new(Vec::new(), info.n_layers, info.n_kv_heads)),
            Some(list) => Some(FullHeads::parse("full-layers", list, info.n_layers, info.n_kv_heads)?),
            None => None,
        };
        let full = match (given, &losses) {
            (Some(given), Some(losses)) if !given.is_empty() => losses.join(given),
            (Some(given), _) => given,
            (None, losses) => {
                let losses = losses.as_ref().context("losses of the heads")?;
                match self.evicting(gated) {
                    Some(evicting) => losses.full_heads_at(info, total, evicting)?,
                    None => losses.full_heads(info, total)?,
                }
            }
        };
        ensure!(full.len() < full.n_all(), "at least one KV head has to evict");
        Ok((full, losses))
    }

    /// Starts a worker with memory for a prompt, a batch of cases, and all their questions.
    fn rig(&self, model: Model, choice: Choice) -> anyhow::Result<Rig> {
        let block = self.options.planner.block_size as usize;
        let questions = 9 * self.n_facts * (self.asked + block).next_multiple_of(block);
        let Lengths { prompt, after, .. } = self.lengths;
        // A second reading of the prompt runs alongside the cases of a batch.
        let tokens = 3 * prompt + 12 * (after + 2 * block.max(16)) + questions;
        Rig::new(model, tokens, block, self.options.threads, choice == Choice::Own)
    }

    /// Measures the servers, unless no requests are asked for.
    fn served(&self, case: &Case, full: &FullHeads, losses: Option<&HeadLosses>) -> anyhow::Result<Vec<Served>> {
        if self.options.requests == 0 {
            return Ok(Vec::new());
        }
        served::measure(&self.load(case, full, losses)?)
    }

    /// Returns the load on servers: texts without facts, each with a number before it.
    fn load(&'a self, case: &'a Case, full: &'a FullHeads, losses: Option<&'a HeadLosses>) -> anyhow::Result<Load<'a>> {
        let Lengths { prompt, after, .. } = self.lengths;
        let requests = self.options.requests.min(if self.options.quick { 6 } else { u32::MAX });
        let mut prompts = Vec::new();
        for (number, source) in (0..requests).zip(self.sources.iter().cycle()) {
            let text = number / self.sources.len() as u32 % self.options.texts;
            let outline = Outline { set: &BENCH, source, number: text.into(), prompt, after: 0, n_facts: 0 };
            let text = texts::text(&outline, &self.tokenizer)?;
            let begin = texts::begin(&self.tokenizer)?;
            let first = self.tokenizer.encode_with(&format!("{number}"), false)?;
            let rest = text.tokens.into_iter().skip(begin.len());
            prompts.push(begin.into_iter().chain(first).chain(rest).take(prompt).collect());
        }
        let H2oOptions { model, kv_dtype, threads, .. } = self.options;
        let answer = after as u32;
        let choice = self.options.choice;
        let block_size = self.options.planner.block_size;
        Ok(Load {
            model: model.as_deref(),
            kv_dtype,
            block_size,
            case,
            full,
            choice,
            losses,
            threads: *threads,
            prompts,
            answer,
        })
    }

    /// Measures all cases on all texts.
    fn measure(
        &self,
        rig: &mut Rig,
        cases: &[Case],
        full: usize,
        layers: usize,
        look: Look<'_>,
    ) -> anyhow::Result<(Vec<Quality>, Vec<Figures>)> {
        let mut unevicted = Vec::new();
        let mut by_case = vec![Vec::new(); cases.len()];
        for text in &self.texts {
            let mut all = quality::measure(rig, text, &self.tokenizer, self.lengths, cases, &mut *look)?.into_iter();
            unevicted.extend(all.next());
            by_case.iter_mut().zip(all).for_each(|(case, quality)| case.push(quality));
            for (case, texts) in cases.iter().zip(&by_case) {
                let (last, to_compare) = (&texts[texts.len() - 1..], &unevicted[unevicted.len() - 1..]);
                progress(case, &Figures::new(last.to_vec(), to_compare, full, layers));
            }
        }
        let figures = by_case.into_iter().zip(cases).map(|(texts, case)| Figures {
            scorer: case.scorer.clone(),
            ratio: case.ratio(),
            ..Figures::new(texts, &unevicted, full, layers)
        });
        let figures = figures.collect();
        Ok((unevicted, figures))
    }

    /// Measures the baselines of the recall gate: scorers in all layers, which make `groups`, at one ratio.
    fn baselines(
        &self,
        scorers: &[String],
        groups: Vec<LayerGroup>,
        ratio: f32,
        n_all: usize,
    ) -> anyhow::Result<Vec<Figures>> {
        let model = load(self.options)?.with_groups(groups)?;
        let cases: Vec<Case> = scorers.iter().map(|scorer| self.case(scorer, ratio, &[1.0])).collect();
        let (_, figures) =
            self.measure(&mut self.rig(model, Choice::Shared)?, &cases, 0, n_all, &mut |_, _, _, _| Ok(()))?;
        Ok(figures.into_iter().map(|figures| Figures { all_layers: true, ..figures }).collect())
    }

    /// Measures decode speed with a case that reads scores of decode steps, the compared one, or else the first. Adds the figures to the report.
    fn speed(&self, rig: &mut Rig, cases: &[Case], compared: usize, report: &mut Report) -> anyhow::Result<Vec<Speed>> {
        let mut by_rank = cases[compared..].iter().chain(cases);
        let Some(case) = by_rank.find(|case| case.scorer == "h2o") else { return Ok(Vec::new()) };
        let batches = if self.options.quick { &[1][..] } else { &[1, 8] };
        let speeds = speed::measure(rig, &self.texts[0], self.lengths, case, batches)?;
        speeds.iter().for_each(|speed| add_speed(report, speed));
        Ok(speeds)
    }
}

/// Shows the figures of a case on one text. If standard error is closed, they are lost.
fn progress(case: &Case, of_text: &Figures) {
    let name = of_text.texts.first().map_or("", |text| &text.text[..]);
    let Figures { total_ratio, perplexity_percent, kl_nats, top1_percent, recall_of_unevicted_percent, .. } = of_text;
    let _ = writeln!(
        io::stderr(),
        "{name}, {}: total {total_ratio:.2}, perplexity {perplexity_percent:+.2} %, KL {kl_nats:.4}, top-1 {top1_percent:.1} %, \
         recall {recall_of_unevicted_percent:.0} % of unevicted",
        case.scorer
    );
}

fn add_speed(report: &mut Report, speed: &Speed) {
    let case = |way: &str| format!("{way}, batch {}", speed.batch);
    for (way, ms) in [("off", &speed.off_ms), ("probe", &speed.probe_ms), ("on", &speed.on_ms)] {
        report.add("decode", case(way), "tokens/s", ms.iter().map(|ms| speed.batch as f64 * 1e3 / ms).collect());
    }
    report.add("decode", case("on by off"), "x", vec![speed.on_by_off()]);
    report.add("decode", case("cost of scores"), "%", vec![speed.scores_percent()]);
}

/// Returns the reason for which a run has no gates.
fn ungated(gates: &Gates) -> String {
    match gates.least_prompt() {
        Some(least) => format!("nothing is gated: the gates are for prompts of {least} tokens and more"),
        None => "nothing is gated: the gates file has no case".into(),
    }
}

fn load(options: &H2oOptions) -> anyhow::Result<Model> {
    let types: Vec<(&str, KvDtype)> = KvDtype::ALL.iter().map(|dtype| (dtype.name(), *dtype)).collect();
    let dtype = registry::choose("kv-dtype", &types, &options.kv_dtype)?;
    Ok(ModelSource::of(options.model.as_deref()).model()?.with_kv_dtype(dtype))
}

/// Returns the tokens of a prompt, if no number is given: 2,048, or as many as leave room for the rest of the text and for questions.
fn default_prompt(max_context: u32, after: u32) -> u32 {
    max_context.saturating_sub(after + QUESTIONS).clamp(256, 2048)
}

/// Returns the losses that `h2o calibrate` would find, with texts of at most 2,048 tokens.
fn found(model: Model, tokenizer: &Tokenizer, prompt: usize, threads: usize) -> anyhow::Result<HeadLosses> {
    let tokens = prompt.min(default_tokens(model.info().max_context)).max(TOKENS_MIN as usize) / BLOCK * BLOCK;
    let sources = KINDS.map(Source::of_kind);
    head_losses(model, &Reading { tokenizer, sources: &sources, texts: 1, tokens, threads })
}

impl H2oReport {
    /// Returns the figures of all cases.
    fn quality(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let header = [
            "scorer",
            "KV heads",
            "ratio",
            "evicting",
            "total",
            "perplexity",
            "KL nats",
            "top-1",
            "recall",
            "by depth",
            "quality",
        ];
        table.set_header(header);
        table.add_row(["off", "", "", "", "", "", "", "", &format!("{:.0} %", self.unevicted_recall_percent), "", ""]);
        for case in &self.cases {
            let heads = if case.all_layers || self.full_heads == 0 {
                "all".to_owned()
            } else {
                format!("all but {}", self.full_heads)
            };
            let depths: Vec<String> = case.recall_by_depth.iter().map(|recall| format!("{recall:.0}")).collect();
            table.add_row([
                case.scorer.clone(),
                heads,
                format!("{:.2}", case.ratio),
                format!("{:.2}", case.evicting_ratio),
                format!("{:.2}", case.total_ratio),
                format!("{:+.2} %", case.perplexity_percent),
                format!("{:.4}", case.kl_nats),
                format!("{:.1} %", case.top1_percent),
                format!("{:.0} %", case.recall_percent),
                depths.join(" "),
                if case.passes { "pass" } else { "fail" }.to_owned(),
            ]);
        }
        for column in 2..9 {
            table.column_mut(column).expect("eleven columns").set_cell_alignment(CellAlignment::Right);
        }
        table.trim_fmt()
    }

    fn render(&self) -> String {
        let gates: String = self.gates.iter().map(Outcome::render).chain(self.ungated.clone()).collect();
        let compared = &self.cases[self.compared];
        let kinds = format!(
            "{} at {:.2}, by kind of text:\n{}",
            compared.scorer,
            compared.ratio,
            figures::render_kinds(&compared.kinds)
        );
        let served = if self.served.is_empty() { String::new() } else { served::render(&self.served) + "\n\n" };
        format!(
            "{}\n\n{}, prompts of {} tokens\n{}\n\n{kinds}\n\n{}\n\n{served}{gates}",
            self.report.render(),
            self.model,
            self.prompt,
            self.quality(),
            self.stored.render()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: H2oOptions,
    }

    fn options(arguments: &[&str]) -> H2oOptions {
        let quick = ["h2o", "--quick", "--threads", "1"];
        let random = ["--model", "random"].iter().filter(|_| !arguments.contains(&"--model"));
        Line::parse_from(quick.iter().chain(random).chain(arguments)).options
    }

    #[test]
    fn a_quick_run_has_figures_of_every_scorer_and_of_the_baselines() {
        let report = measure(&options(&["--full-layers", "1", "--ratios", "1.5", "--recent", "64"])).unwrap();
        let names: Vec<_> = report.cases.iter().map(|case| (&case.scorer[..], case.all_layers)).collect();
        let scorers = ["h2o", "streaming", "snapkv", "tova", "hmax", "kvzip", "random"].map(|name| (name, false));
        assert_eq!(names[..7], scorers);
        assert_eq!(names[7..], [("streaming", true), ("random", true)]);
        for case in &report.cases {
            // One of two layers evicts, from the first plan on; baselines evict in both, to the same total.
            let (evicting, total) = (case.evicting_ratio, case.total_ratio);
            assert!(
                case.all_layers || evicting > 1.3 && evicting <= 1.5 && total < evicting,
                "{}: {evicting}",
                case.scorer
            );
            assert!((total - report.cases[0].total_ratio).abs() < 0.08, "{}: {total}", case.scorer);
            assert!(!case.all_layers || total == evicting);
            assert!(case.kl_nats > 0.0 && case.kl_nats.is_finite(), "eviction changes the distribution");
            assert_eq!((case.recall_by_depth.len(), case.tokens), (2, 31));
        }
        let ungated = "nothing is gated: the gates are for prompts of 2048 tokens and more";
        assert_eq!((report.gates.len(), report.ungated.as_deref()), (0, Some(ungated)));
        let stored = &report.stored;
        assert_eq!(stored.work.iter().map(|work| &work.mode[..]).collect::<Vec<_>>(), ["probe", "full", "store"]);
        // 70 blocks of each of the two heads of a layer, and those that eviction left of the other: without the first and the last 256 tokens.
        assert!(stored.work.iter().all(|work| work.blocks == stored.work[0].blocks && work.fallbacks == 0));
        assert!(stored.work[0].blocks > 72 && stored.work[0].blocks < 144, "{}", stored.work[0].blocks);
        assert_eq!(stored.work[2].cache_hits, stored.work[2].blocks, "the second time");
        let [both, full, kept] = stored.bytes.totals();
        assert!(both >= full && both >= kept && full >= report.cases[0].total_ratio - 0.2, "{both} {full} {kept}");
        let served: Vec<_> = report.served.iter().map(|served| (&served.way[..], served.mismatches)).collect();
        assert_eq!(served, [("off", 0), ("h2o", 0), ("h2o, full", 0), ("h2o, store", 0)]);
        assert!(report.served.iter().all(|served| served.requests == 6 && served.peak >= 1));
        let (text, json) = (report.render(), serde_json::to_value(&report).unwrap());
        assert!(text.contains("all but 2") && text.contains("on by off, batch 1"));
        assert!(text.contains("by kind of text:") && text.ends_with(ungated));
        assert_eq!(json["cases"].as_array().unwrap().len(), 9);
        assert_eq!(json["benchmark"], "h2o");
    }

    #[test]
    fn a_text_of_the_users_is_measured_in_place_of_the_kinds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my letters.txt");
        let line =
            |n: u32| format!("Letter {n}: the {n}. of {} boxes arrived, and was put on shelf {}.\n", 2 * n, n * n);
        fs::write(&path, (1..60).map(line).collect::<String>()).unwrap();
        let file = path.display().to_string();
        let small = ["--text", &file, "--scorers", "h2o", "--full-layers", "1", "--ratios", "1.5", "--recent", "64"];
        let report = measure(&options(&[&small[..], &["--requests", "0"]].concat())).unwrap();
        let kinds: Vec<&str> = report.cases[0].kinds.iter().map(|of| &of.kind[..]).collect();
        assert_eq!(kinds, ["my letters"]);
        fs::write(&path, (1..4).map(line).collect::<String>()).unwrap();
        let fault = measure(&options(&small)).unwrap_err().to_string();
        assert!(
            fault.starts_with("'my letters' has ") && fault.contains("too few for text 1 of 560 tokens"),
            "{fault}"
        );
    }

    #[test]
    fn the_kinds_of_the_run_are_gated_if_a_file_is_among_them_and_else_all_of_the_project() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letters.txt");
        fs::write(&path, "Dear John, all is well. ".repeat(90).replace(". ", ".\n")).unwrap();
        let file = path.display().to_string();
        let kinds = |arguments: &[&str]| {
            let options = options(arguments);
            let plan = Plan::new(&options, &load(&options).unwrap()).unwrap();
            plan.gated_kinds().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&["--kinds", "talk"]), KINDS);
        assert_eq!(kinds(&["--text", &file]), ["letters"]);
    }

    #[test]
    fn a_default_prompt_fits_the_context() {
        assert_eq!(
            [32_768, 4096, 2048, 1024, 512].map(|context| default_prompt(context, 144)),
            [2048, 2048, 1520, 496, 256]
        );
    }

    #[test]
    fn bad_layers_and_settings_are_refused() {
        let error = |arguments: &[&str]| format!("{:#}", measure(&options(arguments)).unwrap_err());
        assert_eq!(error(&["--full-layers", "9"]), "full-layers names layer 9; the model has the layers 0 to 1");
        assert_eq!(error(&["--full-layers", "0,1"]), "at least one KV head has to evict");
        assert_eq!(error(&["--full-layers", "x"]), "full-layers names 'x'; give numbers, as in 7,14 or 7.2,14.0");
        assert_eq!(
            error(&["--block", "20"]),
            "h2o block is 20 tokens; it must be a multiple of the KV block of 8 tokens"
        );
        assert!(error(&["--kv-dtype", "f8"]).contains("unknown kv-dtype 'f8'"));
        assert!(error(&["--scorers", "best"]).contains("unknown h2o scorer 'best'"));
        assert!(error(&["--model", "/no/model"]).contains("/no/model"));
    }
}
