//! Total ratio of a model whose KV heads drop tokens: tokens of all heads by the tokens that they keep; and the ratio of the heads that drop, which
//! follows from it.

use std::ops::RangeInclusive;

use anyhow::{Context, anyhow, ensure};
use trunkline_core::{Config, H2oConfig, Keeps};
use trunkline_port::ModelInfo;

/// Total unless another is given.
pub const DEFAULT: f32 = 2.5;
const RANGE: RangeInclusive<f32> = 1.1..=16.0;
/// Greatest ratio that a core takes.
const RATIO_MAX: f32 = 64.0;
/// Tokens held by tokens that plans keep: between two plans a sequence grows, and a plan keeps whole blocks. Measured with 4,096 tokens, blocks of 16 and
/// plans every 16 tokens: 1.006 to 1.01.
const HELD: f64 = 1.01;

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

/// Reads a total from text; messages name it `setting`.
///
/// # Errors
/// If the text is no number of the range.
pub fn parse(setting: &str, text: &str) -> anyhow::Result<f32> {
    let total: f32 = text.parse().map_err(|_| anyhow!("{setting} is '{text}'; give a number"))?;
    ensure!(RANGE.contains(&total), "{setting} is {text}; it must be between {} and {}", RANGE.start(), RANGE.end());
    Ok(total)
}

/// Returns the ratio that [`ratio`] gives; messages name the total `setting`.
///
/// # Errors
/// If no ratio gives the total.
pub fn reached(setting: &str, total: f32, heads: Heads) -> anyhow::Result<f32> {
    ratio(total, heads).with_context(|| {
        let Heads { whole, dropping } = heads;
        // Rounded down, so that the number shown is reached.
        let most = (of(RATIO_MAX, heads) * 100.0).floor() / 100.0;
        format!(
            "{setting} is {total}, but {whole} of {} KV heads keep every token; give {most} at most",
            whole + dropping
        )
    })
}

/// Returns the ratio of the heads that drop tokens at which all heads have the total `total`. Returns `None` if so many heads keep every token that no
/// ratio gives it.
pub fn ratio(total: f32, heads: Heads) -> Option<f32> {
    let (whole, dropping) = heads.counts();
    let kept = (whole + dropping) / (f64::from(total) * HELD) - whole;
    let ratio = (dropping / kept) as f32;
    (kept > 0.0 && ratio <= RATIO_MAX).then_some(ratio.max(1.0))
}

/// Returns the total if the heads that drop tokens keep one of `ratio`: the inverse of [`ratio`].
pub fn of(ratio: f32, heads: Heads) -> f32 {
    let (whole, dropping) = heads.counts();
    ((whole + dropping) / (whole + dropping / f64::from(ratio)) / HELD) as f32
}

/// Sets the ratio of a core for a model with these heads, unless one is set: so that the total is as given, or else [`DEFAULT`] with a ratio of
/// [`H2oConfig::RATIO`] at most.
///
/// # Errors
/// If no ratio gives the total, or both are set.
pub fn set_ratio(total: Option<f32>, heads: Heads, config: &mut Config) -> anyhow::Result<()> {
    let Some(total) = total else {
        let found = ratio(DEFAULT, heads).unwrap_or(H2oConfig::RATIO).min(H2oConfig::RATIO);
        config.h2o.ratio.get_or_insert(found);
        return Ok(());
    };
    ensure!(config.h2o.ratio.is_none(), "h2o-total and h2o-ratio contradict each other; give one of them");
    config.h2o.ratio = Some(reached(SETTING, total, heads)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use trunkline_port::LayerGroup;

    use super::*;

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
            let ratio = ratio(total, heads).unwrap();
            let kept = f64::from(whole) + f64::from(16 - whole) / f64::from(ratio);
            assert!((16.0 / kept - f64::from(total) * HELD).abs() < 1e-5, "{total}, {whole} whole: {ratio}");
            assert!((of(ratio, heads) - total).abs() < 1e-5);
        }
        assert_eq!([ratio(4.0, model(4)), ratio(2.5, model(7))], [None; 2], "too many heads are whole");
        let layers = |layers: &[u32], keeps| LayerGroup { layers: layers.to_vec(), keeps, ..LayerGroup::default() };
        let groups = vec![layers(&[0], Keeps::All), layers(&[1, 2, 3], Keeps::Scored)];
        let by_layers = ModelInfo { n_layers: 4, n_kv_heads: 8, groups, ..ModelInfo::default() };
        assert_eq!(ratio(2.5, Heads::of(&by_layers)), ratio(2.5, model(4)), "a quarter is whole in both");
    }

    #[test]
    fn a_ratio_that_is_set_stays_and_a_total_out_of_reach_is_refused() {
        let set = |total, whole, given: &str| {
            let mut config = Config { h2o: given.parse().unwrap(), ..Config::default() };
            set_ratio(total, model(whole), &mut config).map(|()| config.h2o.ratio.unwrap()).map_err(|e| e.to_string())
        };
        assert_eq!(set(None, 4, "on"), Ok(ratio(DEFAULT, model(4)).unwrap()));
        assert_eq!(set(None, 4, "on:ratio=3"), Ok(3.0));
        assert_eq!([set(None, 7, "on"), set(None, 6, "on")], [Ok(6.0), Ok(6.0)], "6 at most without a total");
        assert_eq!(set(Some(3.0), 4, "on"), Ok(ratio(3.0, model(4)).unwrap()));
        assert!(set(Some(3.0), 4, "on:ratio=3").unwrap_err().ends_with("give one of them"));
        assert_eq!(set(Some(3.5), 4, "on"), Ok(ratio(3.5, model(4)).unwrap()));
        assert!(set(Some(3.5), 4, "on").unwrap() > H2oConfig::RATIO, "a total that is given may need more than 6");
        let far = "h2o-total is 3.98, but 4 of 16 KV heads keep every token; give 3.78 at most";
        assert_eq!(set(Some(3.98), 4, "on"), Err(far.to_owned()));
        assert!(set(Some(3.78), 4, "on").is_ok());
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
