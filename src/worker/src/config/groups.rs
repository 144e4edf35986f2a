//! Layer groups: layers, or single KV heads, that share block tables, and the place of each head's KV in the blocks of its group.

use trunkline_port::{Keeps, LAYER_GROUPS_MAX, LayerGroup};

use crate::error::{GroupMember, GroupsError};

/// Layers' worth of memory left unused in all groups together, as a part of the model's layers, at most: 1 in 10. Smaller groups waste
/// less, but each group has tables of its own.
const WASTE_MAX: usize = 10;

/// Layers of the first group, which keep every position, as a part of a model all of whose layers have a window: 1 in 8. Fewer would keep less
/// behind the window, but each group has tables of its own.
const FIRST_GROUP_PART: usize = 8;

/// Group of a KV head, place of its KV within a block, and reach of its attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    /// Number of the group.
    pub(crate) group: usize,
    /// Index of the head's layer within a block; in a group of single heads that of the head.
    pub(crate) index: usize,
    /// Number of the head within its layer in the block; 0 in a group of single heads.
    pub(crate) head: usize,
    /// Positions read by a query, its own the last; `None` for all.
    pub(crate) window: Option<u32>,
    /// Weight of the head's attention in scores of all groups together; 0 if it does not count.
    pub(crate) score_weight: f32,
    /// Number of the head's group among those with scores; `None` if the head has none.
    pub(crate) score_list: Option<usize>,
    /// `true` for the last head of a group smaller than the largest: the rest of its blocks stays unused.
    pub(crate) unused_behind: bool,
}

/// Layer groups of a model, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Groups {
    /// Groups as reported; empty for a single group that keeps all positions.
    listed: Vec<LayerGroup>,
    /// Positions kept by each group; one entry at least.
    keeps: Vec<Keeps>,
    /// `[layer][KV head]`: place of each head.
    places: Vec<Place>,
    n_kv_heads: usize,
    /// Groups with scores; 1 if no group has any, for all heads then.
    n_score_lists: usize,
    /// Layers of a block, and KV heads of each.
    block_shape: (u32, u32),
}

impl Groups {
    /// Checks the groups of a model whose layers have these windows, and `n_kv_heads` KV heads each; no groups stand for one with all layers.
    ///
    /// # Errors
    /// A layer or head in no group or in two, layers or heads out of order, layers mixed with heads, a window of 0, or a group that drops positions
    /// within the window of a layer.
    pub(crate) fn new(listed: Vec<LayerGroup>, windows: &[Option<u32>], n_kv_heads: u32) -> Result<Self, GroupsError> {
        let n_layers = windows.len() as u32;
        let whole = [LayerGroup { layers: (0..n_layers).collect(), ..LayerGroup::default() }];
        let groups: &[LayerGroup] = if listed.is_empty() { &whole } else { &listed };
        let of_heads = groups.iter().any(|group| !group.heads.is_empty());
        let (unit, others) = if of_heads { (1, n_kv_heads as usize) } else { (n_kv_heads as usize, 1) };
        let name = if of_heads { GroupMember::Head } else { GroupMember::Layer };
        let members = |group: &LayerGroup| if of_heads { group.heads.clone() } else { group.layers.clone() };
        let largest = groups.iter().map(|group| members(group).len()).max().unwrap_or_default();
        let any_scored = groups.iter().any(|group| group.keeps == Keeps::Scored);
        let weighs = groups.iter().any(|group| group.weight > 0);
        let mut n_score_lists = 0;
        let mut places = vec![None; windows.len() * n_kv_heads as usize];
        for (number, group) in groups.iter().enumerate() {
            let members = members(group);
            check_group(number, group, &members, windows, others)?;
            let counts = !any_scored || group.keeps == Keeps::Scored;
            let score_list = counts.then_some(if any_scored { n_score_lists } else { 0 });
            n_score_lists += usize::from(counts);
            for (index, member) in members.iter().enumerate() {
                let own = windows[*member as usize / others];
                let window = match group.keeps {
                    Keeps::Window(window) => Some(own.map_or(window, |own| own.min(window))),
                    Keeps::All | Keeps::Scored => own,
                };
                let score_weight = if counts { score_weight(group, weighs) } else { 0.0 };
                for head in 0..unit {
                    let unused_behind = head + 1 == unit && index + 1 == members.len() && index + 1 < largest;
                    let place = &mut places[*member as usize * unit + head];
                    if place
                        .replace(Place { group: number, index, head, window, score_weight, score_list, unused_behind })
                        .is_some()
                    {
                        return Err(GroupsError::Twice { member: name(*member) });
                    }
                }
            }
        }
        let missing = |place: usize| GroupsError::Missing { member: name((place / unit) as u32) };
        let places: Result<Vec<Place>, GroupsError> =
            places.into_iter().enumerate().map(|(at, place)| place.ok_or_else(|| missing(at))).collect();
        let keeps = groups.iter().map(|group| group.keeps).collect();
        let (places, n_kv_heads) = (places?, n_kv_heads as usize);
        let n_score_lists = if any_scored { n_score_lists } else { 1 };
        Ok(Self { keeps, places, n_kv_heads, block_shape: (largest as u32, unit as u32), n_score_lists, listed })
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
        if kinds.iter().all(|(keeps, _)| *keeps == Keeps::All) { Vec::new() } else { equal_groups(&kinds, 0) }
    }

    /// Returns the groups as reported in [`trunkline_port::ModelInfo::groups`].
    pub(crate) fn listed(&self) -> &[LayerGroup] {
        &self.listed
    }

    /// Returns the number of groups with scores; 1 if no group has any, for all heads then.
    pub(crate) fn n_score_lists(&self) -> usize {
        self.n_score_lists
    }

    /// Returns the positions that each group keeps.
    pub(crate) fn keeps(&self) -> &[Keeps] {
        &self.keeps
    }

    /// Returns the places of a layer's KV heads.
    pub(crate) fn places(&self, layer: usize) -> &[Place] {
        &self.places[layer * self.n_kv_heads..][..self.n_kv_heads]
    }

    /// Returns the layers in the largest group and the KV heads of each: every block has room for as many. In groups of single heads each
    /// counts as a layer.
    pub(crate) fn block_shape(&self) -> (u32, u32) {
        self.block_shape
    }
}

/// Returns the weight of a group's heads in scores. What a head loses with a block is about the attention of the head to the block times the
/// loss of the head, and the tokens that a group keeps go with the root of its loss ([`LayerGroup::weight`]). So the sum of attention
/// with squared weights says what all heads together lose with a block. Without weights in any group all count equally.
fn score_weight(group: &LayerGroup, weighs: bool) -> f32 {
    if weighs { (group.weight as f32 / 1000.0).powi(2) } else { 1.0 }
}

/// Checks one group: `members` are its layers, or its heads, of which a layer has `per_layer`.
fn check_group(
    number: usize,
    group: &LayerGroup,
    members: &[u32],
    windows: &[Option<u32>],
    per_layer: usize,
) -> Result<(), GroupsError> {
    let (group_number, n_members) = (number as u32, (windows.len() * per_layer) as u32);
    let of_heads = !group.heads.is_empty();
    let name = if of_heads { GroupMember::Head } else { GroupMember::Layer };
    if members.is_empty() {
        return Err(GroupsError::Empty { group: group_number });
    }
    if of_heads && !group.layers.is_empty() {
        return Err(GroupsError::Both { group: group_number });
    }
    if group.keeps == Keeps::Window(0) {
        return Err(GroupsError::NoWindow { group: group_number });
    }
    if let Some(member) = members.iter().copied().find(|member| *member >= n_members) {
        return Err(GroupsError::Unknown { member: name(member), n: n_members });
    }
    if !members.is_sorted_by(|a, b| a < b) {
        return Err(GroupsError::Order { group: group_number });
    }
    // Which positions a window shows is fixed by the model; blocks that attention hardly reads may lie within it.
    let layers = members.iter().map(|member| *member / per_layer as u32);
    let windowed = layers.into_iter().find(|layer| windows[*layer as usize].is_some());
    match windowed {
        Some(layer) if group.keeps == Keeps::Scored => Err(GroupsError::ScoredWindow { layer }),
        _ => Ok(()),
    }
}

/// Divides layers of several kinds into groups of about equal size, each of one kind, so that little of the blocks stays unused. Of the sizes up
/// to the smallest kind that waste at most a tenth, this is the smallest that makes at most `most` groups, or else the largest. If that makes more than
/// [`LAYER_GROUPS_MAX`] groups, this is the smallest size that does not: blocks of smaller kinds then stay unused in part.
///
/// For example 8 layers that keep all positions and 22 that evict give groups of 8, 8, 7 and 7 with a `most` of 0, and with 8 two groups of 4 and
/// six of 4 or 3.
///
/// The core keeps every position in the first group, because its blocks are those of the prefix tree. Where all kinds have a window, an eighth
/// of the layers therefore makes the first group, so that the others can give back what is behind their window: 32 layers give eight groups of 4.
pub fn equal_groups(kinds: &[(Keeps, Vec<u32>)], most: usize) -> Vec<LayerGroup> {
    let kinds = &with_first_group(kinds);
    let total: usize = kinds.iter().map(|(_, layers)| layers.len()).sum();
    let smallest = kinds.iter().map(|(_, layers)| layers.len()).filter(|n| *n > 0).min().unwrap_or_default();
    let wasted = |size: usize| -> usize {
        kinds.iter().map(|(_, layers)| layers.len().next_multiple_of(size) - layers.len()).sum()
    };
    let n_groups = |size: usize| -> usize { kinds.iter().map(|(_, layers)| layers.len().div_ceil(size)).sum() };
    // Groups of one layer waste nothing.
    let sizes: Vec<usize> = (1..=smallest).filter(|size| wasted(*size) * WASTE_MAX <= total).collect();
    let few = sizes.iter().find(|size| n_groups(**size) <= most);
    let Some(size) = few.or(sizes.last()).copied() else { return Vec::new() };
    let size = (size..total).find(|size| n_groups(*size) <= LAYER_GROUPS_MAX).unwrap_or(total);
    let mut groups = Vec::new();
    for (keeps, layers) in kinds {
        let mut rest = layers.as_slice();
        for left in (1..=layers.len().div_ceil(size)).rev() {
            let (layers, others) = rest.split_at(rest.len().div_ceil(left));
            groups.push(LayerGroup { layers: layers.to_vec(), keeps: *keeps, ..LayerGroup::default() });
            rest = others;
        }
    }
    groups
}

/// Divides the layers for the first group from the others, if all kinds have a window: of those with the longest window, which lose least by
/// keeping every position.
fn with_first_group(kinds: &[(Keeps, Vec<u32>)]) -> Vec<(Keeps, Vec<u32>)> {
    let mut kinds = kinds.to_vec();
    let total: usize = kinds.iter().map(|(_, layers)| layers.len()).sum();
    let window = |kind: &(Keeps, Vec<u32>)| match kind.0 {
        Keeps::Window(window) => Some(window),
        Keeps::All | Keeps::Scored => None,
    };
    let windows: Option<Vec<u32>> = kinds.iter().map(window).collect();
    let longest = windows.and_then(|windows| (0..windows.len()).max_by_key(|kind| windows[*kind]));
    if let Some(longest) = longest {
        let (keeps, mut first) = kinds.remove(longest);
        let rest = first.split_off(total.div_ceil(FIRST_GROUP_PART).min(first.len()));
        kinds.insert(0, (keeps, first));
        kinds.insert(1, (keeps, rest));
        kinds.retain(|(_, layers)| !layers.is_empty());
    }
    kinds
}

/// Divides KV heads of several kinds into groups as [`equal_groups`] divides layers.
pub fn equal_head_groups(kinds: &[(Keeps, Vec<u32>)], most: usize) -> Vec<LayerGroup> {
    let groups = equal_groups(kinds, most).into_iter();
    groups.map(|group| LayerGroup { heads: group.layers, layers: Vec::new(), ..group }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(layers: &[u32], keeps: Keeps) -> LayerGroup {
        LayerGroup { layers: layers.to_vec(), keeps, ..LayerGroup::default() }
    }

    fn head_group(heads: &[u32], keeps: Keeps) -> LayerGroup {
        LayerGroup { heads: heads.to_vec(), keeps, ..LayerGroup::default() }
    }

    #[test]
    fn layers_find_their_group_and_their_place_in_a_block() {
        let listed = vec![group(&[1, 3], Keeps::Scored), group(&[0], Keeps::All), group(&[2], Keeps::Window(9))];
        let groups = Groups::new(listed.clone(), &[Some(5), None, Some(12), None], 2).unwrap();
        let place = |group, index, window, scored| {
            let score_weight = if scored { 1.0 } else { 0.0 };
            let score_list = scored.then_some(0);
            let of = |head| Place {
                group,
                index,
                head,
                window,
                score_weight,
                score_list,
                unused_behind: group > 0 && head == 1,
            };
            [of(0), of(1)]
        };
        let expected = [
            place(1, 0, Some(5), false),
            place(0, 0, None, true),
            place(2, 0, Some(9), false),
            place(0, 1, None, true),
        ];
        assert_eq!((0..4).map(|layer| groups.places(layer)).collect::<Vec<_>>(), expected);
        assert_eq!((groups.block_shape(), groups.listed()), ((2, 2), listed.as_slice()));
        // Without groups there is one, and every layer counts for scores.
        let groups = Groups::new(Vec::new(), &[None; 3], 2).unwrap();
        assert_eq!((groups.block_shape(), groups.keeps(), groups.listed()), ((3, 2), &[Keeps::All][..], &[][..]));
        assert!((0..3).flat_map(|layer| groups.places(layer)).all(|place| place.score_weight == 1.0));
    }

    #[test]
    fn heads_of_one_layer_may_be_in_different_groups() {
        let listed = vec![
            head_group(&[1, 4], Keeps::All),
            head_group(&[0, 2, 3], Keeps::Scored),
            head_group(&[5], Keeps::Window(4)),
        ];
        let groups = Groups::new(listed, &[None, None, Some(6)], 2).unwrap();
        let place = |group, index, window, scored, unused_behind| Place {
            group,
            index,
            head: 0,
            window,
            score_weight: if scored { 1.0 } else { 0.0 },
            score_list: scored.then_some(0),
            unused_behind,
        };
        assert_eq!(groups.places(0), [place(1, 0, None, true, false), place(0, 0, None, false, false)]);
        assert_eq!(groups.places(1), [place(1, 1, None, true, false), place(1, 2, None, true, false)]);
        assert_eq!(groups.places(2), [place(0, 1, Some(6), false, true), place(2, 0, Some(4), false, true)]);
        assert_eq!(groups.block_shape(), (3, 1));
    }

    #[test]
    fn heads_count_for_scores_by_the_square_of_what_their_group_keeps() {
        let weighted = |heads: &[u32], weight| LayerGroup { weight, ..head_group(heads, Keeps::Scored) };
        let listed = vec![head_group(&[1], Keeps::All), weighted(&[0], 1_500), weighted(&[2], 500), weighted(&[3], 0)];
        let groups = Groups::new(listed, &[None, None], 2).unwrap();
        let weights = |layer| groups.places(layer).iter().map(|place| place.score_weight).collect::<Vec<_>>();
        assert_eq!((weights(0), weights(1)), (vec![2.25, 0.0], vec![0.25, 0.0]));
        let lists = |layer| groups.places(layer).iter().map(|place| place.score_list).collect::<Vec<_>>();
        assert_eq!((lists(0), lists(1)), (vec![Some(0), None], vec![Some(1), Some(2)]), "whatever the weight");
        assert_eq!(groups.n_score_lists(), 3);
    }

    #[test]
    fn groups_that_contradict_the_model_are_refused() {
        let all = |layers: &[u32]| group(layers, Keeps::All);
        let heads = |heads: &[u32]| head_group(heads, Keeps::All);
        let layer = GroupMember::Layer;
        for (listed, expected) in [
            (vec![all(&[0, 1]), all(&[1, 2])], GroupsError::Twice { member: layer(1) }),
            (vec![all(&[0]), all(&[2])], GroupsError::Missing { member: layer(1) }),
            (vec![all(&[0, 1, 3])], GroupsError::Unknown { member: layer(3), n: 3 }),
            (vec![all(&[0, 1, 2]), all(&[])], GroupsError::Empty { group: 1 }),
            (vec![all(&[0]), all(&[2, 1])], GroupsError::Order { group: 1 }),
            (vec![all(&[0]), all(&[1, 1, 2])], GroupsError::Order { group: 1 }),
            (vec![all(&[0]), group(&[1, 2], Keeps::Window(0))], GroupsError::NoWindow { group: 1 }),
            (vec![group(&[0, 1, 2], Keeps::Scored)], GroupsError::ScoredWindow { layer: 2 }),
            (vec![heads(&[0, 1, 2, 3, 5])], GroupsError::Missing { member: GroupMember::Head(4) }),
            (vec![heads(&[0, 1, 2, 3, 4, 6])], GroupsError::Unknown { member: GroupMember::Head(6), n: 6 }),
            (vec![heads(&[0, 1]), all(&[1, 2])], GroupsError::Empty { group: 1 }),
            (vec![LayerGroup { layers: vec![1], ..heads(&[0, 1]) }], GroupsError::Both { group: 0 }),
            (vec![heads(&[0, 1, 2, 3]), head_group(&[4, 5], Keeps::Scored)], GroupsError::ScoredWindow { layer: 2 }),
        ] {
            assert_eq!(Groups::new(listed, &[None, None, Some(7)], 2), Err(expected));
        }
    }

    #[test]
    fn groups_are_about_equal_and_waste_little() {
        let at_most = |most, full: u32, rest: u32| -> Vec<usize> {
            let kinds = [(Keeps::All, (0..full).collect()), (Keeps::Scored, (full..full + rest).collect())];
            equal_groups(&kinds, most).iter().map(|group| group.layers.len()).collect()
        };
        let sizes = |full, rest| at_most(0, full, rest);
        assert_eq!(sizes(8, 22), [8, 8, 7, 7]);
        assert_eq!(sizes(10, 20), [10, 10, 10]);
        assert_eq!(sizes(4, 22), [4, 4, 4, 4, 4, 3, 3]);
        assert_eq!(sizes(7, 25), [7, 7, 6, 6, 6]);
        assert_eq!(sizes(1, 2), [1, 1, 1]);
        assert_eq!(sizes(0, 5), [5]);
        assert_eq!(at_most(8, 8, 22), [4, 4, 4, 4, 4, 4, 3, 3]);
        assert_eq!(at_most(8, 24, 66), [12, 12, 11, 11, 11, 11, 11, 11]);
        assert_eq!(at_most(8, 3, 13), [1; 16], "groups of 2 and 3 waste an eighth");
        assert_eq!(at_most(2, 1, 2), [1, 1, 1], "no size makes so few");
        assert_eq!(at_most(8, 1, 255).len(), LAYER_GROUPS_MAX);
        assert_eq!(at_most(8, 1, 257), [vec![1], vec![2; 128], vec![1]].concat(), "258 groups of 1 would be too many");
        let many = at_most(8, 2, 1022);
        assert_eq!((many.len(), many[0], many[1]), (206, 2, 5), "2 of the 5 heads in blocks of the first group");
        let windows: Vec<_> = (0..70).map(|layer| (Keeps::Window(layer + 1), vec![layer])).collect();
        assert_eq!(equal_groups(&windows, 0).len(), 70, "each kind has a group, whatever the limit");
        assert!(equal_groups(&[], 0).is_empty());
        let groups = equal_groups(&[(Keeps::All, vec![1, 3]), (Keeps::Window(8), vec![0, 2, 4, 5])], 0);
        let expected = [group(&[1, 3], Keeps::All), group(&[0, 2], Keeps::Window(8)), group(&[4, 5], Keeps::Window(8))];
        assert_eq!(groups, expected);
    }

    #[test]
    fn windows_of_layers_give_groups_of_one_kind() {
        assert!(Groups::of_windows(&[None; 4]).is_empty());
        let window = |layers: &[u32]| group(layers, Keeps::Window(8));
        assert_eq!(Groups::of_windows(&[Some(8)]), [window(&[0])]);
        assert_eq!(Groups::of_windows(&[Some(8); 3]), [window(&[0]), window(&[1]), window(&[2])]);
        let sizes =
            |n: usize| Groups::of_windows(&vec![Some(8); n]).iter().map(|group| group.layers.len()).collect::<Vec<_>>();
        assert_eq!(sizes(32), [4; 8], "one of eight groups keeps what is behind the window");
        assert_eq!(sizes(26), [4, 4, 4, 4, 4, 3, 3]);
        // The longest window loses least in the first group.
        let two = Groups::of_windows(&[Some(8), Some(30), Some(8), Some(30)]);
        assert_eq!(two[0], group(&[1], Keeps::Window(30)));
        assert_eq!(two[1..], [group(&[3], Keeps::Window(30)), window(&[0]), window(&[2])]);
        let mixed = [Some(8), None, Some(8), None];
        assert_eq!(Groups::of_windows(&mixed), [group(&[1, 3], Keeps::All), group(&[0, 2], Keeps::Window(8))]);
    }
}
