//! Total ratio of a model whose KV heads drop tokens: tokens of all heads by the tokens that they keep; and the ratio of the heads that drop, which
//! follows from it.

use std::ops::RangeInclusive;

use anyhow::{Context, anyhow, ensure};
use trunkline_core::h2o::Settings;
use trunkline_core::{Config, H2oConfig, Keeps};
use trunkline_port::ModelInfo;
use trunkline_quote::{cut, quoted};

/// Total unless another is given.
pub const DEFAULT: f32 = 2.5;
const RANGE: RangeInclusive<f32> = 1.1..=16.0;
/// Greatest ratio that a core takes.
const RATIO_MAX: f32 = 64.0;
/// Tokens of a sequence for which a server chooses heads and ratio. Shorter sequences keep a little more than the total asks for.
const SEQUENCE: u32 = 4096;

/// Name of the setting in a server and a worker.
pub const SETTING: &str = "h2o-total";

/// KV heads of a model without those of layers with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Number that keep every token.
    pub whole: u32,
    /// Number that drop tokens.
    pub dropping: u32,
}

impl Heads {
    /// Counts those of a model.
    pub fn of(model: &ModelInfo) -> Self {
        let of = |keeps: Keeps| {
            let groups = model.groups.iter().filter(|group| group.keeps == keeps);
            groups.map(|group| group.layers.len() as u32 * model.n_kv_heads + group.heads.len() as u32).sum()
        };
        Self { whole: of(Keeps::All), dropping: of(Keeps::Scored) }
    }

    fn counts(self) -> (f64, f64) {
        (self.whole.into(), self.dropping.into())
    }
}

/// Returns the share of a sequence of `tokens` tokens that heads hold beyond the tokens that plans are to keep, at most: a plan keeps whole blocks, and the
/// sequence grows until the next plan.
pub fn excess(settings: &Settings, tokens: u32) -> f64 {
    f64::from(settings.block_tokens + settings.interval_steps) / f64::from(tokens.max(1))
}

/// Reads a total from text; messages name it `setting`.
///
/// # Errors
/// If the text is not a number of the range.
pub fn parse(setting: &str, text: &str) -> anyhow::Result<f32> {
    let total: f32 = text.parse().map_err(|_| anyhow!("{setting} is {text}; give a number", text = quoted(text)))?;
    ensure!(
        RANGE.contains(&total),
        "{setting} is {}; it must be between {} and {}",
        cut(text),
        RANGE.start(),
        RANGE.end()
    );
    Ok(total)
}

/// Returns the ratio that [`ratio`] gives; messages name the total `setting`.
///
/// # Errors
/// If no ratio gives the total.
pub fn reached(setting: &str, total: f32, heads: Heads, excess: f64) -> anyhow::Result<f32> {
    ratio(total, heads, excess).with_context(|| {
        let Heads { whole, dropping } = heads;
        // Rounded down, so that the number shown is reached.
        let most = (of(RATIO_MAX, heads, excess) * 100.0).floor() / 100.0;
        format!(
            "{setting} is {total}, but {whole} of {} KV heads keep every token; give {most} at most",
            whole + dropping
        )
    })
}

/// Returns the ratio of the heads that drop tokens at which all heads have the total `total`, if heads hold the share [`excess`] of a sequence beyond the
/// plans. Returns `None` if so many heads keep every token that no ratio gives it.
pub fn ratio(total: f32, heads: Heads, excess: f64) -> Option<f32> {
    let (whole, dropping) = heads.counts();
    let kept = (whole + dropping) / f64::from(total) - whole - dropping * excess;
    let ratio = (dropping / kept) as f32;
    (kept > 0.0 && ratio <= RATIO_MAX).then_some(ratio.max(1.0))
}

/// Returns the ratio to be planned with for heads that drop tokens to have the ratio `evicting`, with what they hold beyond the plans; `None` if no plan gives it.
pub fn planned(evicting: f32, excess: f64) -> Option<f32> {
    let kept = 1.0 / f64::from(evicting) - excess;
    (kept > 0.0).then_some((1.0 / kept) as f32).filter(|ratio| *ratio <= RATIO_MAX)
}

/// Returns the total if the heads that drop tokens keep one of `ratio`: the inverse of [`ratio`].
pub fn of(ratio: f32, heads: Heads, excess: f64) -> f32 {
    let (whole, dropping) = heads.counts();
    ((whole + dropping) / (whole + dropping * (1.0 / f64::from(ratio) + excess))) as f32
}

/// Sets the ratio of a core for a model with these heads, unless one is set: so that the total is as given, or else [`DEFAULT`] with a ratio of
/// [`H2oConfig::RATIO`] at most.
///
/// # Errors
/// If no ratio gives the total, or both are set.
pub fn set_ratio(total: Option<f32>, heads: Heads, config: &mut Config) -> anyhow::Result<()> {
    let excess = excess(&config.h2o.settings(config.block_size), SEQUENCE);
    let Some(total) = total else {
        let found = ratio(DEFAULT, heads, excess).unwrap_or(H2oConfig::RATIO).min(H2oConfig::RATIO);
        config.h2o.ratio.get_or_insert(found);
        return Ok(());
    };
    ensure!(config.h2o.ratio.is_none(), "h2o-total and h2o-ratio contradict each other; give one of them");
    config.h2o.ratio = Some(reached(SETTING, total, heads, excess)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use trunkline_core::h2o::{REGISTRY, State, Target};
    use trunkline_port::{LayerGroup, RequestId};

    use super::*;

    /// Of blocks of 16 tokens, and plans every 16.
    const EXCESS: f64 = 32.0 / 4096.0;

    /// Returns a model of ten layers of two KV heads: `whole` heads keep every token, two layers have a window, and the other heads drop tokens.
    fn model(whole: u32) -> Heads {
        let group =
            |heads: std::ops::Range<u32>, keeps| LayerGroup { heads: heads.collect(), keeps, ..LayerGroup::default() };
        let groups =
            vec![group(0..whole, Keeps::All), group(whole..16, Keeps::Scored), group(16..20, Keeps::Window(64))];
        Heads::of(&ModelInfo { n_layers: 10, n_kv_heads: 2, groups, ..ModelInfo::default() })
    }

    #[test]
    fn the_ratio_of_the_others_gives_the_total_over_all_heads() {
        for (total, whole) in [(2.5, 4), (3.0, 4), (2.5, 0), (1.5, 9)] {
            let heads = model(whole);
            assert_eq!(heads, Heads { whole, dropping: 16 - whole });
            let ratio = ratio(total, heads, EXCESS).unwrap();
            let kept = f64::from(whole) + f64::from(16 - whole) * (1.0 / f64::from(ratio) + EXCESS);
            assert!((16.0 / kept - f64::from(total)).abs() < 1e-5, "{total}, {whole} whole: {ratio}");
            assert!((of(ratio, heads, EXCESS) - total).abs() < 1e-5);
        }
        assert_eq!([ratio(4.0, model(4), EXCESS), ratio(2.5, model(7), EXCESS)], [None; 2], "too many heads are whole");
        let layers = |layers: &[u32], keeps| LayerGroup { layers: layers.to_vec(), keeps, ..LayerGroup::default() };
        let groups = vec![layers(&[0], Keeps::All), layers(&[1, 2, 3], Keeps::Scored)];
        let by_layers = ModelInfo { n_layers: 4, n_kv_heads: 8, groups, ..ModelInfo::default() };
        let of = |heads| ratio(2.5, heads, EXCESS);
        assert_eq!(of(Heads::of(&by_layers)), of(model(4)), "a quarter is whole in both");
    }

    #[test]
    fn the_total_is_reached_whatever_the_prompt_the_block_and_the_interval() {
        for (tokens, block_tokens, interval_steps) in
            [(4096, 16, 16), (2048, 16, 16), (2048, 64, 16), (2048, 16, 64), (1280, 32, 32), (16_384, 128, 128)]
        {
            let mut settings = Settings { block_tokens, interval_steps, ..Settings::default() };
            let (heads, total) = (model(3), 2.0);
            let lossy_ratio = ratio(total, heads, excess(&settings, tokens)).unwrap();
            settings.target = Target::Adaptive { lossy_ratio };
            let scorer = REGISTRY.make("streaming", settings).unwrap();
            let mut state = State::new(&scorer.needs(), 1);
            state.count_steps(interval_steps);
            let (mut dropped, mut positions, mut held) = (0, 0, 0);
            for now in tokens..tokens + 2 * interval_steps {
                let plans = state.plans(&*scorer, &[settings], RequestId(0), now);
                state.apply(&[settings], &plans);
                let drops = plans.iter().flat_map(|plan| &plan.drops);
                dropped += drops.map(|positions| positions.end - positions.start).sum::<u32>();
                state.count_steps(1);
                (positions, held) = (positions + now + 1, held + now + 1 - dropped);
            }
            let (whole, dropping) = heads.counts();
            let (positions, held) = (f64::from(positions), f64::from(held));
            let found = (whole + dropping) * positions / (whole * positions + dropping * held);
            assert!((2.0..2.15).contains(&found), "{tokens} tokens, {block_tokens}, {interval_steps}: {found}");
        }
    }

    #[test]
    fn a_ratio_that_is_set_stays_and_a_total_out_of_reach_is_refused() {
        let set = |total, whole, given: &str| {
            let mut config = Config { h2o: given.parse().unwrap(), ..Config::default() };
            set_ratio(total, model(whole), &mut config).map(|()| config.h2o.ratio.unwrap()).map_err(|e| e.to_string())
        };
        assert_eq!(set(None, 4, "on"), Ok(ratio(DEFAULT, model(4), EXCESS).unwrap()));
        assert_eq!(set(None, 4, "on:ratio=3"), Ok(3.0));
        assert_eq!([set(None, 7, "on"), set(None, 6, "on")], [Ok(6.0), Ok(6.0)], "6 at most without a total");
        assert_eq!(set(Some(3.0), 4, "on"), Ok(ratio(3.0, model(4), EXCESS).unwrap()));
        assert!(set(Some(3.0), 4, "on:ratio=3").unwrap_err().ends_with("give one of them"));
        assert_eq!(set(Some(3.5), 4, "on"), Ok(ratio(3.5, model(4), EXCESS).unwrap()));
        assert!(set(Some(3.5), 4, "on").unwrap() > H2oConfig::RATIO, "a total that is given may need more than 6");
        let far = "h2o-total is 3.98, but 4 of 16 KV heads keep every token; give 3.73 at most";
        assert_eq!(set(Some(3.98), 4, "on"), Err(far.to_owned()));
        assert!(set(Some(3.73), 4, "on").is_ok());
    }

    #[test]
    fn a_total_is_a_number_of_a_range() {
        assert_eq!(parse(SETTING, "3").unwrap(), 3.0);
        let fault = |text: &str| format!("{:#}", parse(SETTING, text).unwrap_err());
        assert_eq!(fault("much"), "h2o-total is 'much'; give a number");
        assert_eq!(fault("1"), "h2o-total is 1; it must be between 1.1 and 16");
        assert_eq!(fault("NaN"), "h2o-total is NaN; it must be between 1.1 and 16");
    }
}
