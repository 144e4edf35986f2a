//! Runs found against a search everywhere.

use proptest::prelude::*;

use super::super::{Parent, Published};
use super::*;
use crate::blocks::hash::{Namespace, extend_hashes};
use crate::blocks::prefix::Prefix;
use crate::eviction::REGISTRY;

/// Blocks of one list beyond which some are not compared.
const COMPARED_MAX: usize = 8;

/// Blocks of the pool: room for all texts in blocks of one token, none evicted.
const POOL: u32 = 512;

fn root(salt: &str) -> BlockHash {
    Namespace { salt, ..Namespace::default() }.root()
}

/// A tree, and the texts published in it.
struct Scene {
    tree: PrefixTree,
    size: usize,
    texts: Vec<(BlockHash, Vec<Token>)>,
    tables: Vec<(Vec<BlockHandle>, usize)>,
}

impl Scene {
    fn new(size: usize) -> Self {
        let mut tree = PrefixTree::new(size as u32, POOL, REGISTRY.make("lru", POOL).unwrap());
        tree.note_contents();
        Self { tree, size, texts: Vec::new(), tables: Vec::new() }
    }

    fn hashes(&self, root: BlockHash, tokens: &[Token]) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        extend_hashes(&mut hashes, root, self.size as u32, tokens);
        hashes
    }

    /// Publishes the full blocks of a text that are not there, before step `step`.
    fn publish(&mut self, root: BlockHash, tokens: &[Token]) {
        let tokens = &tokens[..tokens.len() / self.size * self.size];
        let hashes = self.hashes(root, tokens);
        let (mut found, mut table) = (Prefix::default(), Vec::new());
        self.tree.find(root, &hashes, tokens, &mut found);
        self.tree.hold(&found, &mut table);
        let from = table.len();
        assert!(self.tree.allocate((hashes.len() - from) as u32, &mut table));
        for at in from..hashes.len() {
            let block = &tokens[at * self.size..][..self.size];
            assert_eq!(self.tree.publish(table[at], Parent::of(root, &table[..at]), hashes[at], block), Published::New);
        }
        self.texts.push((root, tokens.to_vec()));
        self.tables.push((table, hashes.len()));
    }

    fn release(&mut self, at: usize) {
        let (mut table, n) = self.tables.remove(at);
        self.texts.remove(at);
        self.tree.release(&mut table, n);
    }

    /// Returns the length of the longest run around a window of a prompt in any text, by looking everywhere.
    fn longest(&self, root: BlockHash, prompt: &[Token], (at, covered): (usize, usize), whole_blocks: bool) -> usize {
        let (size, end) = (self.size, prompt.len() - 1);
        let runs = self.texts.iter().filter(|(there, _)| *there == root).flat_map(|(_, text)| {
            let blocks = (0..text.len() / size).filter(|block| prompt[at..].starts_with(&text[block * size..][..size]));
            blocks.map(move |block| {
                let source = block * size;
                let behind = text[source..].iter().zip(&prompt[at..end]).take_while(|(a, b)| a == b).count();
                if whole_blocks {
                    return behind / size * size;
                }
                // As far back as the block before.
                let first = source - size.min(source);
                let before = text[first..source].iter().rev().zip(prompt[covered..at].iter().rev());
                behind + before.take_while(|(a, b)| a == b).count()
            })
        });
        runs.max().unwrap_or(0)
    }

    /// Returns `true` if some list of blocks with one text, or behind one block, is longer than what is compared.
    fn is_crowded(&self) -> bool {
        let mut blocks: Vec<(BlockHash, &[Token])> = Vec::new();
        for (root, text) in &self.texts {
            blocks.extend((0..text.len() / self.size).map(|at| (*root, &text[..(at + 1) * self.size])));
        }
        blocks.sort();
        blocks.dedup();
        let last = |text: &'_ [Token]| text[text.len() - self.size..].to_vec();
        blocks.iter().any(|(root, text)| {
            let same = blocks.iter().filter(|(there, other)| there == root && last(other) == last(text)).count();
            let siblings = blocks.iter().filter(|(there, other)| {
                let is_as_long = other.len() == text.len();
                there == root && is_as_long && other[..text.len() - self.size] == text[..text.len() - self.size]
            });
            same.max(siblings.count()) > COMPARED_MAX
        })
    }

    /// Checks the runs of a prompt against the search everywhere.
    fn check(&mut self, root: BlockHash, prompt: &[Token], rule: RunRule) {
        let RunRule { least, whole_blocks } = rule;
        let (size, hashes) = (self.size, self.hashes(root, prompt));
        let mut found = Prefix::default();
        self.tree.find(root, &hashes, prompt, &mut found);
        let (from, hit) = (found.len() * size, found.last());
        let mut runs = Vec::new();
        self.tree.find_runs(root, prompt, (from as u32, hit), rule, &mut runs);
        let mut covered = from;
        let mut rest = &runs[..];
        if let Some((first, others)) = runs.split_first().filter(|(run, _)| run.is_exact) {
            assert!(!whole_blocks, "{first:?} is a part of a block");
            assert!(hit.is_some() && first.at == first.from && first.len < size as u32 + 1);
            self.assert_source(prompt, first);
            (covered, rest) = (first.end() as usize, others);
        }
        let (mut at, is_crowded) = (covered, self.is_crowded());
        while at + size <= prompt.len() && at + 1 < prompt.len() {
            let longest = self.longest(root, prompt, (at, covered), whole_blocks);
            let run = rest.first().filter(|run| (run.at as usize..=at).contains(&at) && run.end() as usize > at);
            match run {
                Some(run) if longest >= least.max(1) as usize => {
                    assert!(is_crowded || run.len as usize == longest, "{run:?} is not {longest} long");
                    assert!(run.at as usize >= covered && run.len >= least && !run.is_exact);
                    assert!(!whole_blocks || (run.from % size as u32, run.len % size as u32) == (0, 0), "{run:?}");
                    self.assert_source(prompt, run);
                    (at, covered, rest) = (run.end() as usize, run.end() as usize, &rest[1..]);
                }
                _ => {
                    assert!(is_crowded || longest < least.max(1) as usize, "{longest} tokens at {at} are not found");
                    at += 1;
                }
            }
        }
        assert!(rest.is_empty() || is_crowded, "{rest:?} are runs that nobody else finds");
    }

    /// Asserts that the tokens of a run are those of its source, and that the source can be held and released.
    fn assert_source(&mut self, prompt: &[Token], run: &CachedRun) {
        let mut chain = Vec::new();
        self.tree.hold_source(run, &mut chain);
        let source: Vec<Token> = chain.iter().flat_map(|block| self.tree.contents(*block).1.to_vec()).collect();
        assert_eq!(source[run.from as usize..][..run.len as usize], prompt[run.at as usize..run.end() as usize]);
        assert!(source.len() - self.size < (run.from + run.len) as usize, "the last block has the last token");
        let n = chain.len();
        self.tree.release(&mut chain, n);
    }
}

#[test]
fn what_the_step_being_made_computes_is_not_found_until_the_next() {
    let mut scene = Scene::new(4);
    let text: Vec<Token> = (0..12).collect();
    scene.tree.begin_step(7);
    scene.publish(root(""), &text);
    let prompt = [&[99][..], &text, &[98]].concat();
    let find = |scene: &Scene, root| {
        let mut runs = Vec::new();
        scene.tree.find_runs(root, &prompt, (0, None), to_the_token(4), &mut runs);
        runs.iter().map(|run| (run.at, run.from, run.len)).collect::<Vec<_>>()
    };
    assert_eq!(find(&scene, root("")), []);
    scene.tree.begin_step(8);
    assert_eq!(find(&scene, root("")), [(1, 0, 12)]);
    assert_eq!(find(&scene, root("other")), [], "another namespace");
    scene.tree.strike_out_held();
    assert_eq!(find(&scene, root("")), [], "flushed");
    scene.tree.check();
}

fn to_the_token(least: u32) -> RunRule {
    RunRule { least, whole_blocks: false }
}

#[test]
fn of_equal_runs_the_one_published_last_is_found() {
    let mut scene = Scene::new(4);
    scene.tree.begin_step(1);
    let text = |first: Token| (first..first + 4).chain(50..58).chain([first; 4]).collect::<Vec<Token>>();
    [10, 20, 30].into_iter().for_each(|first| scene.publish(root(""), &text(first)));
    scene.tree.begin_step(2);
    let mut runs = Vec::new();
    for rule in [to_the_token(4), RunRule { least: 4, whole_blocks: true }] {
        runs.clear();
        scene.tree.find_runs(root(""), &text(40), (0, None), rule, &mut runs);
        let latest = scene.tables[2].0[2].index;
        assert_eq!(
            runs.iter().map(|run| (run.at, run.len, run.last)).collect::<Vec<_>>(),
            [(4, 8, latest)],
            "{rule:?}"
        );
    }
}

/// First of two tokens in no text.
const SECRET: Token = 5000;

/// Two trees with equal texts, but for one token of a block.
struct TwoTrees {
    scenes: [Scene; 2],
    /// The block in which they differ, in both.
    blocks: [Vec<Token>; 2],
}

impl TwoTrees {
    /// Publishes the texts in one tree, and in the other texts with another token at `at` in the text `text`.
    fn new(texts: &[Vec<Token>], size: usize, text: usize, at: usize) -> Self {
        let mut others = texts.to_vec();
        others[text][at] = SECRET;
        let block = |texts: &[Vec<Token>]| texts[text].iter().skip(at / size * size).take(size).copied().collect();
        let blocks = [block(texts), block(&others)];
        let scenes = [texts, &others].map(|texts| {
            let mut scene = Scene::new(size);
            scene.tree.begin_step(1);
            texts.iter().for_each(|text| scene.publish(root(""), text));
            scene.tree.begin_step(2);
            scene
        });
        Self { scenes, blocks }
    }

    /// Returns the view of a prompt on both trees: its prefix hit, and the first token and the length of each run.
    fn find(&mut self, prompt: &[Token], rule: RunRule) -> [(usize, Vec<(u32, u32)>); 2] {
        self.scenes.each_mut().map(|scene| {
            let (mut found, hashes) = (Prefix::default(), scene.hashes(root(""), prompt));
            scene.tree.find(root(""), &hashes, prompt, &mut found);
            let from = (found.len() * scene.size) as u32;
            let mut runs = Vec::new();
            scene.tree.find_runs(root(""), prompt, (from, found.last()), rule, &mut runs);
            (found.len(), runs.iter().map(|run| (run.at, run.len)).collect())
        })
    }
}

/// A guesser who knows all tokens around one tries it: in the middle of known ones, at their end and at their beginning.
#[test]
fn only_runs_to_the_token_say_which_token_a_block_has() {
    let text: Vec<Token> = (0..32).collect();
    let end = [SECRET + 1];
    for (at, known) in [(21, 8..22), (21, 0..22), (18, 18..32)] {
        let mut pair = TwoTrees::new(std::slice::from_ref(&text), 4, 0, at);
        let prompt = [&end, &text[known.clone()], &end].concat();
        let prompt = if known.start == 0 { &prompt[1..] } else { &prompt[..] };
        let [one, other] = pair.find(prompt, to_the_token(4));
        assert_ne!(one, other, "token {at} of a prompt with {known:?}");
        let [one, other] = pair.find(prompt, RunRule { least: 4, whole_blocks: true });
        assert_eq!(one, other, "token {at} of a prompt with {known:?}");
        assert!(one.0 == 5 || !one.1.is_empty(), "whole blocks are found: {one:?}");
    }
}

/// Texts put together from pieces of a few others.
fn texts() -> impl Strategy<Value = Vec<Vec<Token>>> {
    let piece = (0..5u32, 0..20u32, 1..14u32);
    prop::collection::vec(prop::collection::vec(piece, 1..5), 2..9).prop_map(|all| {
        let tokens = |(text, from, n): (u32, u32, u32)| (from..from + n).map(move |at| text * 100 + at % 17);
        all.into_iter().map(|pieces| pieces.into_iter().flat_map(tokens).collect()).collect()
    })
}

proptest! {
    #[test]
    fn runs_are_those_that_a_search_everywhere_finds(
        texts in texts(),
        size in 1..6usize,
        least in 1..12u32,
        whole_blocks in any::<bool>(),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let rule = RunRule { least, whole_blocks };
        let mut scene = Scene::new(size);
        scene.tree.begin_step(1);
        for (at, text) in texts.iter().enumerate() {
            scene.publish(root(if at % 4 == 3 { "b" } else { "" }), text);
        }
        scene.tree.begin_step(2);
        for salt in ["", "b"] {
            texts.iter().for_each(|text| scene.check(root(salt), text, rule));
            let prompts: Vec<Vec<Token>> = texts.windows(2).map(|two| [&two[1][two[1].len() / 3..], &two[0]].concat()).collect();
            prompts.iter().for_each(|prompt| scene.check(root(salt), prompt, rule));
        }
        for index in gone {
            if !scene.tables.is_empty() {
                scene.release(index.index(scene.tables.len()));
            }
        }
        scene.tree.flush();
        scene.tree.check();
        texts.iter().for_each(|text| scene.check(root(""), &[&[7], &text[..]].concat(), rule));
    }

    /// Two trees differ in one block, and in nothing else. A prompt with neither block in full shows nothing of it.
    #[test]
    fn whole_blocks_show_nothing_of_a_block_outside_the_prompt(
        texts in texts(),
        size in 2..6usize,
        least in 1..12u32,
        prompt in prop::collection::vec((any::<prop::sample::Index>(), 0..12usize, 1..20usize), 1..5),
        (text, at) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let text = text.index(texts.len());
        let mut pair = TwoTrees::new(&texts, size, text, at.index(texts[text].len()));
        let mut tokens: Vec<Token> = vec![SECRET];
        for (of, from, n) in prompt {
            let source = of.get(&texts);
            tokens.extend(source.iter().skip(from).take(n));
        }
        tokens.push(SECRET + 1);
        let is_crowded = pair.scenes.iter().any(Scene::is_crowded);
        if !is_crowded && !pair.blocks.iter().any(|block| tokens.windows(size).any(|window| window == block)) {
            let [one, other] = pair.find(&tokens, RunRule { least, whole_blocks: true });
            prop_assert_eq!(one, other);
        }
    }
}
