//! Layer groups: layers that share block tables, and the place of each layer's KV in the blocks of its group.

use trunkline_port::{Keeps, LayerGroup};

use crate::error::GroupsError;

/// Layers' worth of memory left unused in all groups together, as a part of the model's layers, at most: 1 in 10. Smaller groups waste
/// less, but each group has tables of its own.
const WASTE_MAX: usize = 10;

/// Group of a layer, place of the layer's KV within a block, and reach of the layer's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of the group.
    pub(crate) group: usize,
    /// Index of the layer within its group.
    pub(crate) index: usize,
    /// Positions read by a query, its own the last; `None` for all.
    pub(crate) window: Option<u32>,
    /// `true` if attention of the layer counts for scores.
    pub(crate) scored: bool,
    /// `true` for the last layer of a group smaller than the largest: the rest of its blocks stays unused.
    pub(crate) unused_behind: bool,
}

/// Layer groups of a model, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Groups {
    /// Groups as reported; empty for a single group that keeps all positions.
    listed: Vec<LayerGroup>,
    /// Positions kept by each group; one entry at least.
    keeps: Vec<Keeps>,
    /// Place of each layer.
    places: Vec<Place>,
    /// Layers of the largest group.
    largest: usize,
}

impl Groups {
    /// Checks the groups of a model whose layers have these windows; no groups stand for one with all layers.
    ///
    /// # Errors
    /// A layer in no group or in two, layers out of order, a window of 0, or a group that drops positions within the window of a layer.
    pub(crate) fn new(listed: Vec<LayerGroup>, windows: &[Option<u32>]) -> Result<Self, GroupsError> {
        let n_layers = windows.len() as u32;
        let whole = [LayerGroup { layers: (0..n_layers).collect(), keeps: Keeps::All }];
        let groups: &[LayerGroup] = if listed.is_empty() { &whole } else { &listed };
        let largest = groups.iter().map(|group| group.layers.len()).max().unwrap_or_default();
        let any_scored = groups.iter().any(|group| group.keeps == Keeps::Scored);
        let mut places = vec![None; windows.len()];
        for (number, group) in groups.iter().enumerate() {
            check_group(number, group, windows)?;
            for (index, layer) in group.layers.iter().enumerate() {
                let place = &mut places[*layer as usize];
                if place.is_some() {
                    return Err(GroupsError::Twice { layer: *layer });
                }
                let own = windows[*layer as usize];
                let window = match group.keeps {
                    Keeps::Window(window) => Some(own.map_or(window, |own| own.min(window))),
                    Keeps::All | Keeps::Scored => own,
                };
                let scored = !any_scored || group.keeps == Keeps::Scored;
                let unused_behind = index + 1 == group.layers.len() && index + 1 < largest;
                *place = Some(Place { group: number, index, window, scored, unused_behind });
            }
        }
        let missing = |layer: usize| GroupsError::Missing { layer: layer as u32 };
        let places: Result<Vec<Place>, GroupsError> =
            places.into_iter().enumerate().map(|(layer, place)| place.ok_or_else(|| missing(layer))).collect();
        let keeps = groups.iter().map(|group| group.keeps).collect();
        Ok(Self { keeps, places: places?, largest, listed })
    }

    /// Returns the groups of a model by the windows of its layers: none if no layer has a window. Layers that keep every position come
    /// first, because the first group does so anyway.
    pub(crate) fn of_windows(windows: &[Option<u32>]) -> Vec<LayerGroup> {
        let mut kinds: Vec<(Keeps, Vec<u32>)> = Vec::new();
        for (layer, window) in windows.iter().enumerate() {
            let keeps = window.map_or(Keeps::All, Keeps::Window);
            match kinds.iter_mut().find(|(kind, _)| *kind == keeps) {
                Some((_, layers)) => layers.push(layer as u32),
                None => kinds.push((keeps, vec![layer as u32])),
            }
        }
        kinds.sort_by_key(|(keeps, _)| *keeps != Keeps::All);
        if kinds.iter().all(|(keeps, _)| *keeps == Keeps::All) { Vec::new() } else { equal_groups(&kinds) }
    }

    /// Returns the groups as reported in [`trunkline_port::ModelInfo::groups`].
    pub(crate) fn listed(&self) -> &[LayerGroup] {
        &self.listed
    }

    /// Returns the positions that each group keeps.
    pub(crate) fn keeps(&self) -> &[Keeps] {
        &self.keeps
    }

    /// Returns the place of a layer.
    pub(crate) fn place(&self, layer: usize) -> Place {
        self.places[layer]
    }

    /// Returns the number of layers in the largest group: every block has room for as many.
    pub(crate) fn block_layers(&self) -> u32 {
        self.largest as u32
    }
}

fn check_group(number: usize, group: &LayerGroup, windows: &[Option<u32>]) -> Result<(), GroupsError> {
    let (group_number, n_layers) = (number as u32, windows.len() as u32);
    if group.layers.is_empty() {
        return Err(GroupsError::Empty { group: group_number });
    }
    if group.keeps == Keeps::Window(0) {
        return Err(GroupsError::NoWindow { group: group_number });
    }
    if let Some(layer) = group.layers.iter().copied().find(|layer| *layer >= n_layers) {
        return Err(GroupsError::NoLayer { layer, n_layers });
    }
    if !group.layers.is_sorted_by(|a, b| a < b) {
        return Err(GroupsError::Order { group: group_number });
    }
    // Which positions a window shows is fixed by the model; blocks that attention hardly reads may lie within it.
    let windowed = group.layers.iter().copied().find(|layer| windows[*layer as usize].is_some());
    match windowed {
        Some(layer) if group.keeps == Keeps::Scored => Err(GroupsError::ScoredWindow { layer }),
        _ => Ok(()),
    }
}

/// Divides layers of several kinds into groups of about equal size, each of one kind, so that little of the blocks stays unused: the largest
/// size up to the smallest kind that wastes at most a tenth.
///
/// For example 8 layers that keep all positions and 22 that evict give groups of 8, 8, 7 and 7.
pub fn equal_groups(kinds: &[(Keeps, Vec<u32>)]) -> Vec<LayerGroup> {
    let total: usize = kinds.iter().map(|(_, layers)| layers.len()).sum();
    let smallest = kinds.iter().map(|(_, layers)| layers.len()).filter(|n| *n > 0).min().unwrap_or_default();
    let wasted = |size: usize| -> usize {
        kinds.iter().map(|(_, layers)| layers.len().next_multiple_of(size) - layers.len()).sum()
    };
    // Groups of one layer waste nothing.
    let Some(size) = (1..=smallest).rev().find(|size| wasted(*size) * WASTE_MAX <= total) else { return Vec::new() };
    let mut groups = Vec::new();
    for (keeps, layers) in kinds {
        let mut rest = layers.as_slice();
        for left in (1..=layers.len().div_ceil(size)).rev() {
            let (layers, others) = rest.split_at(rest.len().div_ceil(left));
            groups.push(LayerGroup { layers: layers.to_vec(), keeps: *keeps });
            rest = others;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(layers: &[u32], keeps: Keeps) -> LayerGroup {
        LayerGroup { layers: layers.to_vec(), keeps }
    }

    #[test]
    fn layers_find_their_group_and_their_place_in_a_block() {
        let listed = vec![group(&[1, 3], Keeps::Scored), group(&[0], Keeps::All), group(&[2], Keeps::Window(9))];
        let groups = Groups::new(listed.clone(), &[Some(5), None, Some(12), None]).unwrap();
        let place = |group, index, window, scored| Place { group, index, window, scored, unused_behind: group > 0 };
        let expected = [
            place(1, 0, Some(5), false),
            place(0, 0, None, true),
            place(2, 0, Some(9), false),
            place(0, 1, None, true),
        ];
        assert_eq!((0..4).map(|layer| groups.place(layer)).collect::<Vec<_>>(), expected);
        assert_eq!((groups.block_layers(), groups.listed()), (2, listed.as_slice()));
        // Without groups there is one, and every layer counts for scores.
        let groups = Groups::new(Vec::new(), &[None; 3]).unwrap();
        assert_eq!((groups.block_layers(), groups.keeps(), groups.listed()), (3, &[Keeps::All][..], &[][..]));
        assert!((0..3).all(|layer| groups.place(layer).scored));
    }

    #[test]
    fn groups_that_contradict_the_model_are_refused() {
        let all = |layers: &[u32]| group(layers, Keeps::All);
        for (listed, expected) in [
            (vec![all(&[0, 1]), all(&[1, 2])], GroupsError::Twice { layer: 1 }),
            (vec![all(&[0]), all(&[2])], GroupsError::Missing { layer: 1 }),
            (vec![all(&[0, 1, 3])], GroupsError::NoLayer { layer: 3, n_layers: 3 }),
            (vec![all(&[0, 1, 2]), all(&[])], GroupsError::Empty { group: 1 }),
            (vec![all(&[0]), all(&[2, 1])], GroupsError::Order { group: 1 }),
            (vec![all(&[0]), all(&[1, 1, 2])], GroupsError::Order { group: 1 }),
            (vec![all(&[0]), group(&[1, 2], Keeps::Window(0))], GroupsError::NoWindow { group: 1 }),
            (vec![group(&[0, 1, 2], Keeps::Scored)], GroupsError::ScoredWindow { layer: 2 }),
        ] {
            assert_eq!(Groups::new(listed, &[None, None, Some(7)]), Err(expected));
        }
    }

    #[test]
    fn groups_are_about_equal_and_waste_little() {
        let sizes = |full: u32, rest: u32| -> Vec<usize> {
            let kinds = [(Keeps::All, (0..full).collect()), (Keeps::Scored, (full..full + rest).collect())];
            equal_groups(&kinds).iter().map(|group| group.layers.len()).collect()
        };
        assert_eq!(sizes(8, 22), [8, 8, 7, 7]);
        assert_eq!(sizes(10, 20), [10, 10, 10]);
        assert_eq!(sizes(4, 22), [4, 4, 4, 4, 4, 3, 3]);
        assert_eq!(sizes(7, 25), [7, 7, 6, 6, 6]);
        assert_eq!(sizes(1, 2), [1, 1, 1]);
        assert_eq!(sizes(0, 5), [5]);
        assert!(equal_groups(&[]).is_empty());
        let groups = equal_groups(&[(Keeps::All, vec![1, 3]), (Keeps::Window(8), vec![0, 2, 4, 5])]);
        let expected = [group(&[1, 3], Keeps::All), group(&[0, 2], Keeps::Window(8)), group(&[4, 5], Keeps::Window(8))];
        assert_eq!(groups, expected);
    }

    #[test]
    fn windows_of_layers_give_groups_of_one_kind() {
        assert!(Groups::of_windows(&[None; 4]).is_empty());
        assert_eq!(Groups::of_windows(&[Some(8); 3]), [group(&[0, 1, 2], Keeps::Window(8))]);
        let mixed = [Some(8), None, Some(8), None];
        assert_eq!(Groups::of_windows(&mixed), [group(&[1, 3], Keeps::All), group(&[0, 2], Keeps::Window(8))]);
    }
}
