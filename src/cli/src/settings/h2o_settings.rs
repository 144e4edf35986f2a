//! Flags of eviction within sequences (H2O), and the layer groups that follow from them.

use anyhow::Context;
use clap::Args;
use tracing::warn;
use trunkline_attach::Hello;
use trunkline_core::h2o::Mode;
use trunkline_core::{Config, Keeps};
use trunkline_port::{LayerGroup, ModelInfo};
use trunkline_worker::Model;

use crate::h2o::choice::{self, Choice};
use crate::h2o::full_heads::FullHeads;
use crate::h2o::head_loss::HeadLosses;
use crate::h2o::total::{self, Heads};

/// Tokens of a KV block if eviction is on, unless given: small blocks keep less that attention does not read (docs/guide/h2o.md).
pub const BLOCK_SIZE: u32 = 8;
/// Setting of the heads that keep every token.
const LAYERS: &str = "h2o-layers";
/// More layers, and KV heads of a layer, than models have.
const LAYERS_MAX: u32 = 1 << 16;
const HEADS_MAX: u32 = 1 << 8;
/// Ratio of a model for which nobody found the layers that keep every token, at most.
const RATIO_MAX_UNKNOWN: f32 = 2.0;
/// Of a model whose whole layers nobody found, one layer in so many keeps every token.
const FULL_LAYERS_UNKNOWN: u32 = 4;

/// Settings of eviction within sequences, in addition to `--h2o`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Eviction within sequences (H2O)")]
pub struct H2oSettings {
    /// Layers, or single KV heads as LAYER.HEAD, that keep every token while the others drop tokens, as in 7.2,17.1,18: those that read far
    /// back [default: the ones that lose most as found by trunkline h2o calibrate, else each fourth layer, with --h2o-ratio 2 at most].
    #[arg(long, value_name = "LAYERS")]
    pub h2o_layers: Option<String>,

    /// Tokens of a sequence for each token kept, on average over all KV heads, 1.1 to 16: says how many heads keep every token, and how much the
    /// others drop; the number of heads only if neither --h2o-layers nor the model's file names them [default: 2.5].
    #[arg(long, value_name = "RATIO")]
    pub h2o_total: Option<String>,

    /// Choice of the blocks to drop: own, by the scores of each KV head; or shared, by one score for all heads
    /// [default: own; shared for models of more than 256 KV heads].
    #[arg(long, value_name = "WHO")]
    pub h2o_choice: Option<String>,

    /// Way to rank the blocks of a sequence; an unknown name lists all [default: h2o].
    #[arg(long, value_name = "NAME")]
    pub h2o_scorer: Option<String>,

    /// Tokens of a sequence for each token kept in the heads that drop tokens, on average over these heads [default: as --h2o-total asks, 6 at most without --h2o-total].
    #[arg(long, value_name = "RATIO")]
    pub h2o_ratio: Option<String>,

    /// First tokens of a sequence that are never dropped, in whole blocks [default: 32].
    #[arg(long, value_name = "TOKENS")]
    pub h2o_sink: Option<String>,

    /// Last tokens of a sequence that are never dropped, in whole blocks [default: 256].
    #[arg(long, value_name = "TOKENS")]
    pub h2o_recent: Option<String>,

    /// Tokens kept or dropped together, a multiple of --block-size [default: --block-size].
    #[arg(long, value_name = "TOKENS")]
    pub h2o_block: Option<String>,

    /// Length of a sequence from which on tokens are dropped [default: 512].
    #[arg(long, value_name = "TOKENS")]
    pub h2o_trigger: Option<String>,

    /// Tokens generated between two plans of a sequence, at least [default: 16].
    #[arg(long, value_name = "TOKENS")]
    pub h2o_interval: Option<String>,

    /// Weight of the past in the moving average of scores, 0 to 1 [default: 0.9].
    #[arg(long, value_name = "WEIGHT")]
    pub h2o_alpha: Option<String>,

    /// Tokens generated from one whose attention is scored to the next, --h2o-interval at most; for the scorer h2o [default: 4].
    #[arg(long, value_name = "TOKENS")]
    pub h2o_score_interval: Option<String>,
}

impl H2oSettings {
    /// Puts the numbers and the scorer into the limits of the core.
    ///
    /// # Errors
    /// If a text is not a number, the total is out of range, or the choice is unknown.
    pub fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        self.total()?;
        self.choice()?;
        if let Some(layers) = &self.h2o_layers {
            // The model is not known yet, or is one of attached workers: any layer may be there.
            FullHeads::parse(LAYERS, layers, LAYERS_MAX, HEADS_MAX)?;
        }
        let values = [
            ("scorer", &self.h2o_scorer),
            ("ratio", &self.h2o_ratio),
            ("sink", &self.h2o_sink),
            ("recent", &self.h2o_recent),
            ("block", &self.h2o_block),
            ("trigger", &self.h2o_trigger),
            ("interval", &self.h2o_interval),
            ("alpha", &self.h2o_alpha),
            ("score-interval", &self.h2o_score_interval),
        ];
        values.into_iter().try_for_each(|(key, value)| value.iter().try_for_each(|text| config.h2o.set(key, text)))?;
        Ok(())
    }

    /// Divides the layers of a model into those that keep every token and those that drop tokens, if eviction is on or the layers are
    /// given, and gives the core its groups, their weights and the ratio. `losses` are those of the model's heads, if they were measured.
    ///
    /// # Errors
    /// If a layer or head is not a number, does not exist, or has a sliding window, or if the total is not a number or out of reach.
    pub fn divide(&self, model: Model, losses: Option<&HeadLosses>, config: &mut Config) -> anyhow::Result<Model> {
        let is_wanted = config.h2o.mode != Mode::Off || self.h2o_layers.is_some();
        let model = if is_wanted { self.with_groups(model, losses, config)? } else { model };
        config.worker.groups = model.info().groups.iter().map(|group| group.keeps).collect();
        Ok(model)
    }

    /// Gives the core the ratio that the total asks for, unless the ratio is set or no group of the model drops tokens.
    ///
    /// # Errors
    /// If the total is not a number or out of reach, or comes with a ratio.
    pub fn set_ratio(&self, model: &ModelInfo, config: &mut Config) -> anyhow::Result<()> {
        let total = self.total()?;
        if model.groups.iter().any(|group| group.keeps == Keeps::Scored) {
            total::set_ratio(total, Heads::of(model), config)?;
        }
        Ok(())
    }

    /// Lets the KV heads of an attached worker choose by themselves, if the worker can, is divided for that, and nothing else is set.
    ///
    /// # Errors
    /// If the choice is unknown.
    pub fn set_choice(&self, hello: &Hello, config: &mut Config) -> anyhow::Result<()> {
        let is_divided = hello.model.groups.iter().all(|group| group.heads.len() == 1);
        let is_able = is_divided && hello.abilities.scores_by_group;
        config.h2o.by_group = is_able && self.choice()?.is_by_group(&hello.model);
        let is_own = self.h2o_choice.is_some() && self.choice()? == Choice::Own;
        if is_own && !config.h2o.by_group {
            warn!(
                "--h2o-choice own has no effect: the worker's layer groups are not single KV heads, or it reports no scores by group"
            );
        }
        Ok(())
    }

    fn total(&self) -> anyhow::Result<Option<f32>> {
        self.h2o_total.as_deref().map(|text| total::parse(total::SETTING, text)).transpose()
    }

    /// Returns the choice of the blocks to drop.
    ///
    /// # Errors
    /// If the choice is unknown.
    pub fn choice(&self) -> anyhow::Result<Choice> {
        let given = self.h2o_choice.as_deref().map(|text| Choice::parse(choice::SETTING, text));
        Ok(given.transpose()?.unwrap_or_default())
    }

    fn with_groups(&self, model: Model, losses: Option<&HeadLosses>, config: &mut Config) -> anyhow::Result<Model> {
        let info = model.info();
        let full = known_heads(&info, self.h2o_layers.as_deref(), losses, self.total()?)?;
        let is_known = full.is_some();
        let every_fourth = || FullHeads::of_layers(&spread_over_unlimited(&info), info.n_layers, info.n_kv_heads);
        let choice = self.choice()?.of(&info);
        let model = divided(model, &full.unwrap_or_else(every_fourth), choice)?;
        let info = model.info();
        if let Some(line) = nothing_to_drop(&info, config.h2o.mode) {
            warn!("{line}");
            return Ok(model);
        }
        config.h2o.by_group = choice.is_by_group(&info);
        config.h2o.weigh(&info.groups);
        self.set_ratio(&info, config)?;
        let ratio = config.h2o.ratio.get_or_insert(RATIO_MAX_UNKNOWN);
        if !is_known && *ratio > RATIO_MAX_UNKNOWN {
            warn!(
                "dropping at most one token of two, because it is not known which KV heads read far back; trunkline h2o \
                 calibrate finds them"
            );
            *ratio = RATIO_MAX_UNKNOWN;
        }
        Ok(model)
    }
}

/// Returns the heads of a model that keep every token: the heads given, or the ones that lose most; `None` if neither is known.
fn known_heads(
    info: &ModelInfo,
    given: Option<&str>,
    losses: Option<&HeadLosses>,
    total: Option<f32>,
) -> anyhow::Result<Option<FullHeads>> {
    let Some(given) = given else {
        return losses.map(|losses| losses.full_heads(info, total.unwrap_or(total::DEFAULT))).transpose();
    };
    let full = FullHeads::parse(LAYERS, given, info.n_layers, info.n_kv_heads)?;
    Ok(Some(match losses {
        Some(losses) => {
            losses.check(info)?;
            losses.join(full)
        }
        None => full,
    }))
}

/// Divides a model for a server with `--h2o on` elsewhere: heads of `layers` keep every token, or else the ones that lose most.
///
/// # Errors
/// If a layer or head is not a number, does not exist, or has a sliding window, or if no heads are known.
pub fn divided_for_a_server(
    model: Model,
    layers: Option<&str>,
    losses: Option<&HeadLosses>,
    total: Option<f32>,
    choice: Choice,
) -> anyhow::Result<Model> {
    let choice = choice.of(&model.info());
    let full = known_heads(&model.info(), layers, losses, total)?.context(
        "it is not known which KV heads of the model read far back; find them with trunkline h2o calibrate, or name some with --h2o-layers",
    )?;
    divided(model, &full, choice)
}

/// Divides a model into layer groups.
fn divided(model: Model, full: &FullHeads, choice: Choice) -> anyhow::Result<Model> {
    let windows = windows(&model.info());
    Ok(model.with_groups(full.groups(&windows, choice)?)?)
}

/// Returns the layer groups of a model's layers with a sliding window.
pub fn windows(info: &ModelInfo) -> Vec<LayerGroup> {
    info.groups.iter().filter(|group| matches!(group.keeps, Keeps::Window(_))).cloned().collect()
}

/// Returns the layers that keep every token in a model for which nobody found them: every fourth of the layers without a sliding window.
fn spread_over_unlimited(info: &ModelInfo) -> Vec<u32> {
    let windows = windows(info);
    let is_windowed = |layer: &u32| windows.iter().any(|group| group.layers.contains(layer));
    let unlimited: Vec<u32> = (0..info.n_layers).filter(|layer| !is_windowed(layer)).collect();
    spread_layers(unlimited.len() as u32).into_iter().filter_map(|at| unlimited.get(at as usize).copied()).collect()
}

/// Returns a line for the log if eviction is on and no layer group of the model drops tokens.
fn nothing_to_drop(info: &ModelInfo, mode: Mode) -> Option<String> {
    if mode == Mode::Off || info.groups.iter().any(|group| group.keeps == Keeps::Scored) {
        return None;
    }
    let n_windowed: usize = windows(info).iter().map(|group| group.layers.len()).sum();
    let rest = if n_windowed == info.n_layers as usize {
        "all layers have a sliding window, and drop what is behind the window".to_owned()
    } else {
        format!(
            "every KV head of the {} layers without a sliding window keeps every token",
            info.n_layers as usize - n_windowed
        )
    };
    Some(format!("--h2o {} drops nothing of {}: {rest}", mode.name(), info.name))
}

/// Returns the layers that keep every token in a model for which nobody found them: every fourth.
pub fn spread_layers(n_layers: u32) -> Vec<u32> {
    let n_full = (n_layers / FULL_LAYERS_UNKNOWN).max(1);
    (0..n_full).map(|layer| (2 * layer + 1) * n_layers / (2 * n_full)).collect()
}

#[cfg(test)]
mod tests {
    use trunkline_attach::Abilities;

    use super::*;

    fn divided(settings: &H2oSettings, mode: Mode) -> anyhow::Result<(Vec<Vec<u32>>, Config)> {
        let mut config = Config::default();
        config.h2o.mode = mode;
        settings.apply(&mut config)?;
        let model = settings.divide(Model::seeded(1), None, &mut config)?;
        Ok((model.info().groups.into_iter().map(|group| group.layers).collect(), config))
    }

    fn layers_of(text: &str) -> H2oSettings {
        H2oSettings { h2o_layers: Some(text.into()), ..H2oSettings::default() }
    }

    #[test]
    fn layers_are_divided_if_eviction_is_on() {
        assert_eq!(divided(&H2oSettings::default(), Mode::Off).unwrap().1.worker.groups, []);
        let (groups, config) = divided(&layers_of("1"), Mode::On).unwrap();
        assert_eq!(
            config.worker.groups,
            [Keeps::All, Keeps::All, Keeps::Scored, Keeps::Scored],
            "a group for each head"
        );
        assert!(groups.iter().all(Vec::is_empty) && config.h2o.by_group);
        assert_eq!(config.h2o.ratio, Some(6.0), "half of the model is whole");
        let shared = H2oSettings { h2o_choice: Some("shared".into()), ..layers_of("1") };
        let (groups, config) = divided(&shared, Mode::On).unwrap();
        assert_eq!((groups, config.worker.groups), (vec![vec![1], vec![0]], vec![Keeps::All, Keeps::Scored]));
        assert!(!config.h2o.by_group);
    }

    /// Returns losses of a seeded model's heads that grow with the number of the head.
    fn growing_losses() -> HeadLosses {
        let info = Model::seeded(1).info();
        let n = info.n_layers * info.n_kv_heads;
        let losses: Vec<f64> = (0..n).map(|head| f64::from(head * head) / f64::from(n * n * n)).collect();
        HeadLosses { rest: losses.clone(), repeated: losses, keep: None }
    }

    #[test]
    fn heads_of_an_attached_worker_choose_if_it_can_and_is_divided_for_that() {
        let by_group = |heads: &[&[u32]], scores_by_group: bool, choice: Option<&str>| {
            let group = |(at, heads): (usize, &&[u32])| {
                let keeps = if at == 0 { Keeps::All } else { Keeps::Scored };
                LayerGroup { heads: heads.to_vec(), keeps, ..LayerGroup::default() }
            };
            let groups = heads.iter().enumerate().map(group).collect();
            let abilities = Abilities { scores: true, scores_by_group, ..Abilities::default() };
            let hello = Hello { model: ModelInfo { groups, ..ModelInfo::default() }, abilities, ..Hello::default() };
            let settings = H2oSettings { h2o_choice: choice.map(Into::into), ..H2oSettings::default() };
            let mut config = Config::default();
            settings.set_choice(&hello, &mut config).unwrap();
            config.h2o.by_group
        };
        let single: [&[u32]; 3] = [&[0], &[1], &[2]];
        assert!(by_group(&single, true, None) && by_group(&single, true, Some("own")));
        assert!(!by_group(&single, true, Some("shared")) && !by_group(&single, false, Some("own")));
        assert!(!by_group(&[&[0, 1], &[2, 3], &[4]], true, Some("own")), "heads share groups");
        assert!(!by_group(&[&[0], &[1]], true, None), "one head drops tokens");
    }

    #[test]
    fn heads_that_lose_most_are_whole_unless_others_are_given() {
        let info = Model::seeded(1).info();
        let losses = growing_losses();
        let divide = |settings: &H2oSettings| {
            let mut config = Config::default();
            config.h2o.mode = Mode::On;
            let model = settings.divide(Model::seeded(1), Some(&losses), &mut config).unwrap();
            let whole = model.info().groups.into_iter().filter(|group| group.keeps == Keeps::All);
            let heads_of = |layer: u32| layer * info.n_kv_heads..(layer + 1) * info.n_kv_heads;
            let heads: Vec<u32> =
                whole.flat_map(|group| group.layers.into_iter().flat_map(heads_of).chain(group.heads)).collect();
            (heads, config.h2o.ratio.unwrap())
        };
        let last = info.n_layers * info.n_kv_heads - 1;
        let (heads, ratio) = divide(&H2oSettings::default());
        assert_eq!(heads, [last]);
        assert!((ratio - 3.0 / (4.0 / 2.5 - 1.0 - 3.0 * 32.0 / 4096.0)).abs() < 1e-3, "{ratio}");
        let (heads, ratio) = divide(&H2oSettings { h2o_total: Some("1.5".into()), ..H2oSettings::default() });
        assert_eq!(heads, [last - 1, last]);
        assert!((ratio - 2.0 / (4.0 / 1.5 - 2.0 - 2.0 * 32.0 / 4096.0)).abs() < 1e-3, "{ratio}");
        assert_eq!(divide(&layers_of("0.1")).0, [1], "heads that are given win");
    }

    #[test]
    fn groups_are_weighed_by_the_losses_unless_weights_are_given() {
        let losses = growing_losses();
        let weights = |given: &str, settings: &H2oSettings| {
            let mut config = Config { h2o: given.parse().unwrap(), ..Config::default() };
            settings.divide(Model::seeded(1), Some(&losses), &mut config).unwrap();
            config.validate().map(|()| config.h2o.weights).map_err(|error| error.to_string())
        };
        let default = weights("on", &H2oSettings::default()).unwrap();
        assert!(default.len() > 1 && default.is_sorted_by(|a, b| a > b), "{default:?}");
        let named = weights("on", &layers_of("0.0")).unwrap();
        assert!(named.len() > 1 && named.is_sorted_by(|a, b| a > b), "heads that are given have losses too: {named:?}");
        let given = vec!["1"; default.len()].join("/");
        assert_eq!(weights(&format!("on:weights={given}"), &H2oSettings::default()), Ok(vec![1.0; default.len()]));
        let fault = weights("on:weights=1/1/1/1/1/1/1/1/1", &H2oSettings::default()).unwrap_err();
        assert!(fault.starts_with("h2o weights has 9 numbers for "), "{fault}");
    }

    #[test]
    fn layers_that_keep_every_token_are_spread_over_those_without_a_window() {
        let unlimited = |windowed: &[u32], n_layers: u32| {
            let groups =
                vec![LayerGroup { layers: windowed.to_vec(), keeps: Keeps::Window(8), ..LayerGroup::default() }];
            spread_over_unlimited(&ModelInfo { n_layers, groups, ..ModelInfo::default() })
        };
        assert_eq!(unlimited(&[2, 4], 8), [5], "the middle of 0, 1, 3, 5, 6 and 7 is not layer 4");
        assert_eq!(unlimited(&[0, 2, 4, 6, 8, 10, 12, 14], 16), [5, 13]);
        assert_eq!(unlimited(&[0, 1], 2), Vec::<u32>::new());
        // Layer 1, the middle of all, has a window, and layer 0 is the only one to keep every token.
        let windowed = LayerGroup { layers: vec![1], keeps: Keeps::Window(8), ..LayerGroup::default() };
        let whole = LayerGroup { layers: vec![0], ..LayerGroup::default() };
        let model = Model::seeded(1).with_groups(vec![whole, windowed]).unwrap();
        let mut config = Config { h2o: "on".parse().unwrap(), ..Config::default() };
        let info = H2oSettings::default().divide(model, None, &mut config).unwrap().info();
        assert_eq!(config.worker.groups, [Keeps::All, Keeps::Window(8)]);
        let line = "--h2o on drops nothing of seeded-tiny: every KV head of the 1 layers without a sliding window keeps every token";
        assert_eq!(nothing_to_drop(&info, Mode::On).unwrap(), line);
        assert_eq!(nothing_to_drop(&info, Mode::Off), None);
        let all = vec![LayerGroup { layers: vec![0, 1], keeps: Keeps::Window(8), ..LayerGroup::default() }];
        let line = nothing_to_drop(&ModelInfo { groups: all, ..info }, Mode::Probe).unwrap();
        assert!(
            line.starts_with("--h2o probe drops nothing of seeded-tiny: all layers have a sliding window"),
            "{line}"
        );
    }

    #[test]
    fn a_model_nobody_looked_at_drops_at_most_every_second_token() {
        let (_, config) = divided(&H2oSettings::default(), Mode::On).unwrap();
        assert_eq!(
            (config.h2o.ratio, config.worker.groups),
            (Some(2.0), [[Keeps::All; 2], [Keeps::Scored; 2]].concat())
        );
        let low = H2oSettings { h2o_ratio: Some("1.5".into()), ..H2oSettings::default() };
        assert_eq!(divided(&low, Mode::On).unwrap().1.h2o.ratio, Some(1.5));
    }

    #[test]
    fn wrong_layers_and_numbers_are_reported() {
        let fault = |settings: &H2oSettings| divided(settings, Mode::On).unwrap_err().to_string();
        assert_eq!(fault(&layers_of("7")), "h2o-layers names layer 7; the model has the layers 0 to 1");
        assert_eq!(fault(&layers_of("7,x")), "h2o-layers names 'x'; give numbers, as in 7,14 or 7.2,14.0");
        assert_eq!(fault(&layers_of("one")), "h2o-layers names 'one'; give numbers, as in 7,14 or 7.2,14.0");
        let few = H2oSettings { h2o_sink: Some("few".into()), ..H2oSettings::default() };
        assert_eq!(fault(&few), "h2o sink is 'few'; give a number");
        let whose = H2oSettings { h2o_choice: Some("mine".into()), ..H2oSettings::default() };
        assert_eq!(fault(&whose), "h2o-choice is 'mine'; give own or shared");
        let much = H2oSettings { h2o_total: Some("much".into()), ..H2oSettings::default() };
        assert_eq!(divided(&much, Mode::Off).unwrap_err().to_string(), "h2o-total is 'much'; give a number");
    }
}
