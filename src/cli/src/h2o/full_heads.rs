//! KV heads that keep every token while the others drop tokens, and the layer groups that follow.

use std::fmt;

use anyhow::{Context, ensure};
use trunkline_port::{Keeps, LAYER_GROUPS_MAX, LayerGroup};
use trunkline_quote::quoted;
use trunkline_worker::{equal_groups, equal_head_groups};

use super::choice::Choice;

/// Layer groups of a model whose heads share out by their losses, at most where the blocks then waste little ([`equal_groups`]): more of them
/// follow the losses closer, and each has block tables. In SmolLM2 6 groups that drop tokens lose 7 % less than 3, and 11 no less than 6.
const WEIGHED_GROUPS: usize = 8;

/// KV heads that keep every token, of a model with `per_layer` KV heads in each layer.
///
/// As text, a list of layers with all their heads, and of single heads as LAYER.HEAD: `7,18.2` is layer 7, and head 2 of layer 18.
#[derive(Clone, Debug, PartialEq)]
pub struct FullHeads {
    /// `layer * per_layer + head`, ascending.
    heads: Vec<u32>,
    n_layers: u32,
    per_layer: u32,
    /// Loss of each head of the model, if it drops tokens alone; empty if nobody measured it.
    losses: Vec<f64>,
}

impl FullHeads {
    /// Makes a set of heads, numbered `layer * per_layer + head`.
    pub fn new(mut heads: Vec<u32>, n_layers: u32, per_layer: u32) -> Self {
        heads.sort_unstable();
        heads.dedup();
        Self { heads, n_layers, per_layer, losses: Vec::new() }
    }

    /// Sets the loss of each head of the model. Heads that drop tokens are then grouped by loss, and a group of a high loss keeps more.
    ///
    /// # Panics
    /// Panics if there is not one loss for each head.
    #[must_use]
    pub fn with_losses(self, losses: Vec<f64>) -> Self {
        assert_eq!(losses.len(), self.n_all(), "a loss for each head");
        Self { losses, ..self }
    }

    /// Makes a set of all heads of some layers.
    pub fn of_layers(layers: &[u32], n_layers: u32, per_layer: u32) -> Self {
        let heads = layers.iter().flat_map(|layer| layer * per_layer..(layer + 1) * per_layer).collect();
        Self::new(heads, n_layers, per_layer)
    }

    /// Reads a list of layers and heads; messages name it `setting`.
    ///
    /// # Errors
    /// If an entry is not a number, or the model has no such layer or head.
    pub fn parse(setting: &str, text: &str, n_layers: u32, per_layer: u32) -> anyhow::Result<Self> {
        let mut heads = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let number = |text: &str| {
                let number = text.parse::<u32>().ok();
                number.with_context(|| {
                    format!("{setting} names {entry}; give numbers, as in 7,14 or 7.2,14.0", entry = quoted(entry))
                })
            };
            let (layer, head) = match entry.split_once('.') {
                Some((layer, head)) => (number(layer)?, Some(number(head)?)),
                None => (number(entry)?, None),
            };
            ensure!(
                layer < n_layers,
                "{setting} names layer {layer}; the model has the layers 0 to {}",
                n_layers.saturating_sub(1)
            );
            match head {
                None => heads.extend(layer * per_layer..(layer + 1) * per_layer),
                Some(head) => {
                    let last = per_layer.saturating_sub(1);
                    ensure!(head < per_layer, "{setting} names KV head {entry}; a layer has the KV heads 0 to {last}");
                    heads.push(layer * per_layer + head);
                }
            }
        }
        Ok(Self::new(heads, n_layers, per_layer))
    }

    /// Returns the number of heads.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns `true` if every head drops tokens.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Returns `true` if a head, by number, keeps every token.
    pub fn contains(&self, head: u32) -> bool {
        self.heads.binary_search(&head).is_ok()
    }

    /// Returns the number of KV heads of the model.
    pub fn n_all(&self) -> usize {
        (self.n_layers * self.per_layer) as usize
    }

    /// Divides the model into layer groups: the heads of this set, those of layers with sliding windows, and the others, which drop tokens. Groups
    /// have whole layers if no layer is divided. With losses, the groups that drop tokens have members of similar loss, in falling order, and
    /// weights. With [`Choice::Own`] each group has one head.
    ///
    /// # Errors
    /// If a head of this set is in a layer with a sliding window.
    pub fn groups(&self, windows: &[LayerGroup], choice: Choice) -> anyhow::Result<Vec<LayerGroup>> {
        let is_windowed = |layer: u32| windows.iter().any(|group| group.layers.contains(&layer));
        let own: Vec<u32> = self.heads.iter().map(|head| head / self.per_layer).collect();
        if let Some(layer) = own.iter().find(|layer| is_windowed(**layer)) {
            anyhow::bail!(
                "h2o-layers names layer {layer}, which has a sliding window; name layers that read every token"
            );
        }
        let drops = |head: &u32| !self.contains(*head) && !is_windowed(head / self.per_layer);
        let all = 0..self.n_layers * self.per_layer;
        // Without heads that drop tokens there is nothing to choose.
        let choice = if all.clone().any(|head| drops(&head)) { choice } else { Choice::Shared };
        let is_whole = |layers: &[u32]| layers.len() == self.per_layer as usize;
        let is_divided = choice == Choice::Own || own.chunk_by(|a, b| a == b).any(|layers| !is_whole(layers));
        let per_member = if is_divided { 1 } else { self.per_layer };
        let members = |heads: &mut dyn Iterator<Item = u32>| -> Vec<u32> {
            heads.filter(|head| head.is_multiple_of(per_member)).map(|head| head / per_member).collect()
        };
        let heads_of = |layers: &[u32]| -> Vec<u32> {
            layers.iter().flat_map(|layer| layer * self.per_layer..(layer + 1) * self.per_layer).collect()
        };
        let mut kinds = vec![(Keeps::All, members(&mut self.heads.iter().copied()))];
        kinds.extend(windows.iter().map(|group| (group.keeps, members(&mut heads_of(&group.layers).into_iter()))));
        let mut dropping = members(&mut all.filter(drops));
        let loss = |member: &u32| self.loss(*member * per_member..(*member + 1) * per_member);
        dropping.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
        kinds.push((Keeps::Scored, dropping));
        kinds.retain(|(_, members)| !members.is_empty());
        let most = match choice {
            Choice::Own => LAYER_GROUPS_MAX,
            Choice::Shared if self.losses.is_empty() => 0,
            Choice::Shared => WEIGHED_GROUPS,
        };
        let mut groups = if is_divided { equal_head_groups(&kinds, most) } else { equal_groups(&kinds, most) };
        groups.iter_mut().for_each(|group| {
            group.layers.sort_unstable();
            group.heads.sort_unstable();
        });
        self.weigh(&mut groups);
        Ok(groups)
    }

    /// Sets the weights of the groups that drop tokens, in units of the mean over their heads. Sets none without losses, or if there is one such group.
    ///
    /// A head that keeps one token of r is taken to lose in proportion to r. The sum over all heads, at an equal number of tokens, is least if the tokens
    /// of each go with the root of its loss.
    fn weigh(&self, groups: &mut [LayerGroup]) {
        let dropping: Vec<&mut LayerGroup> = groups.iter_mut().filter(|group| group.keeps == Keeps::Scored).collect();
        let heads_of = |group: &LayerGroup| -> Vec<u32> {
            let of_layers = group.layers.iter().flat_map(|layer| layer * self.per_layer..(layer + 1) * self.per_layer);
            of_layers.chain(group.heads.iter().copied()).collect()
        };
        let heads: Vec<Vec<u32>> = dropping.iter().map(|group| heads_of(group)).collect();
        let roots = heads.iter().map(|heads| (self.loss(heads.iter().copied()) / heads.len() as f64).sqrt());
        let roots: Vec<f64> = roots.collect();
        let sum: f64 = roots.iter().zip(&heads).map(|(root, heads)| root * heads.len() as f64).sum();
        let n_heads: usize = heads.iter().map(Vec::len).sum();
        if dropping.len() < 2 || sum == 0.0 {
            return;
        }
        for (group, root) in dropping.into_iter().zip(roots) {
            group.weight = ((root * n_heads as f64 / sum * 1000.0).round() as u32).min(LayerGroup::WEIGHT_MAX);
        }
    }

    /// Returns the loss of several heads together; 0 without losses.
    fn loss(&self, heads: impl Iterator<Item = u32>) -> f64 {
        heads.filter_map(|head| self.losses.get(head as usize)).sum()
    }
}

impl fmt::Display for FullHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for heads in self.heads.chunk_by(|a, b| a / self.per_layer == b / self.per_layer) {
            let layer = heads[0] / self.per_layer;
            if heads.len() == self.per_layer as usize {
                write!(f, "{separator}{layer}")?;
                separator = ",";
                continue;
            }
            for head in heads {
                write!(f, "{separator}{layer}.{}", head % self.per_layer)?;
                separator = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(text: &str) -> FullHeads {
        FullHeads::parse("h2o-layers", text, 4, 3).unwrap()
    }

    fn weights(groups: &[LayerGroup]) -> Vec<u32> {
        groups.iter().map(|group| group.weight).collect()
    }

    fn members(groups: &[LayerGroup]) -> Vec<(Keeps, &[u32], &[u32])> {
        groups.iter().map(|group| (group.keeps, &group.layers[..], &group.heads[..])).collect()
    }

    #[test]
    fn layers_and_heads_are_read_and_written() {
        for (text, expected) in
            [("2,0", "0,2"), ("1.2, 3,1.0", "1.0,1.2,3"), ("1.0,1.1,1.2,1", "1"), ("0.1,0.1", "0.1")]
        {
            assert_eq!(heads(text).to_string(), expected);
            assert_eq!(heads(expected), heads(text));
        }
        assert_eq!((heads("1,2.0").len(), heads("1,2.0").n_all()), (4, 12));
        assert_eq!(heads("1,3"), FullHeads::of_layers(&[3, 1], 4, 3));
        let fault = |text: &str| FullHeads::parse("h2o-layers", text, 4, 3).unwrap_err().to_string();
        assert_eq!(fault("0,4"), "h2o-layers names layer 4; the model has the layers 0 to 3");
        assert_eq!(fault("0.3"), "h2o-layers names KV head 0.3; a layer has the KV heads 0 to 2");
        for text in ["x", "1.", "", "1.x", "1.0.0"] {
            assert!(fault(text).ends_with("give numbers, as in 7,14 or 7.2,14.0"), "{}", fault(text));
        }
    }

    #[test]
    fn whole_layers_stay_whole_and_divided_ones_divide_the_model() {
        let whole = heads("1").groups(&[], Choice::Shared).unwrap();
        let expected: [(Keeps, &[u32], &[u32]); 4] = [
            (Keeps::All, &[1], &[]),
            (Keeps::Scored, &[0], &[]),
            (Keeps::Scored, &[2], &[]),
            (Keeps::Scored, &[3], &[]),
        ];
        assert_eq!(members(&whole), expected);
        let divided = heads("0.1,2").groups(&[], Choice::Shared).unwrap();
        let expected: [(Keeps, &[u32], &[u32]); 3] = [
            (Keeps::All, &[], &[1, 6, 7, 8]),
            (Keeps::Scored, &[], &[0, 2, 3, 4]),
            (Keeps::Scored, &[], &[5, 9, 10, 11]),
        ];
        assert_eq!(members(&divided), expected);
    }

    #[test]
    fn heads_that_choose_by_themselves_have_groups_of_their_own() {
        let losses = vec![9.0, 0.0, 1.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0];
        let windows = [LayerGroup { layers: vec![2], keeps: Keeps::Window(64), ..LayerGroup::default() }];
        let groups = heads("0.1,3").with_losses(losses).groups(&windows, Choice::Own).unwrap();
        let heads_of = |keeps: Keeps| -> Vec<u32> {
            groups.iter().filter(|group| group.keeps == keeps).flat_map(|group| group.heads.clone()).collect()
        };
        assert!(groups.len() == 12 && groups.iter().all(|group| group.heads.len() == 1));
        assert_eq!(heads_of(Keeps::All), [1, 9, 10, 11]);
        assert_eq!(heads_of(Keeps::Window(64)), [6, 7, 8]);
        assert_eq!(heads_of(Keeps::Scored), [0, 4, 2, 3, 5], "by their losses");
        // Roots of 9, 9, 1, 0 and 0, by their mean.
        assert_eq!(weights(&groups)[7..], [2143, 2143, 714, 0, 0]);
        let all = heads("0,1,3").groups(&windows, Choice::Own).unwrap();
        assert!(all.iter().all(|group| group.heads.is_empty()), "nothing drops tokens: {all:?}");
    }

    #[test]
    fn heads_that_lose_most_keep_most_beyond_the_floors() {
        // Head 0.1 and layer 2 keep every token; of the others, 0.0 and 1.1 lose most, then 3.1 and 3.2.
        let losses = vec![9.0, 0.0, 1.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0];
        let heads = heads("0.1,2").with_losses(losses);
        let groups = heads.groups(&[], Choice::Shared).unwrap();
        let expected: [(Keeps, &[u32], &[u32]); 6] = [
            (Keeps::All, &[], &[1, 6]),
            (Keeps::All, &[], &[7, 8]),
            (Keeps::Scored, &[], &[0, 4]),
            (Keeps::Scored, &[], &[10, 11]),
            (Keeps::Scored, &[], &[2, 3]),
            (Keeps::Scored, &[], &[5, 9]),
        ];
        assert_eq!(members(&groups), expected);
        // Roots of the mean losses 9, 4, 1/2 and 0, and their mean of 1.427.
        assert_eq!(weights(&groups), [0, 0, 2103, 1402, 496, 0]);
        let unknown = FullHeads::new(vec![1, 6, 7, 8], 4, 3).groups(&[], Choice::Shared).unwrap();
        assert_eq!(weights(&unknown), [0; 3], "nobody measured losses");
        let one =
            FullHeads::new((0..11).collect(), 4, 3).with_losses(vec![1.0; 12]).groups(&[], Choice::Shared).unwrap();
        assert_eq!(weights(&one)[1..].iter().max(), Some(&0), "one group keeps the mean");
    }

    #[test]
    fn whole_layers_are_divided_by_the_losses_of_their_heads() {
        let losses = vec![0.0, 0.0, 1.0, 9.0, 9.0, 9.0, 4.0, 4.0, 4.0, 0.0, 0.0, 0.0];
        let heads = heads("1").with_losses(losses);
        let groups = heads.groups(&[], Choice::Shared).unwrap();
        let expected: [(Keeps, &[u32], &[u32]); 4] = [
            (Keeps::All, &[1], &[]),
            (Keeps::Scored, &[2], &[]),
            (Keeps::Scored, &[0], &[]),
            (Keeps::Scored, &[3], &[]),
        ];
        assert_eq!(members(&groups), expected);
        let weights = weights(&groups[1..]);
        assert!(weights[0] > weights[1] && weights[1] > 0 && weights[2] == 0, "{weights:?}");
    }

    #[test]
    fn layers_with_windows_are_kept_apart() {
        let windows = [LayerGroup { layers: vec![2], keeps: Keeps::Window(64), ..LayerGroup::default() }];
        let divided = heads("0.1,1.2,3.0").groups(&windows, Choice::Shared).unwrap();
        let expected: [(Keeps, &[u32], &[u32]); 4] = [
            (Keeps::All, &[], &[1, 5, 9]),
            (Keeps::Window(64), &[], &[6, 7, 8]),
            (Keeps::Scored, &[], &[0, 2, 3]),
            (Keeps::Scored, &[], &[4, 10, 11]),
        ];
        assert_eq!(members(&divided), expected);
        let fault = heads("2.1").groups(&windows, Choice::Shared).unwrap_err().to_string();
        assert!(fault.starts_with("h2o-layers names layer 2, which has a sliding window"), "{fault}");
    }
}
