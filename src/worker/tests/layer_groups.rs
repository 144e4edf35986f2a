//! Layer groups, holes in block tables, windows and scores, step by step.

use std::sync::Arc;

use trunkline_port::{
    DeviceBlocks, Dropped, Keeps, LayerGroup, NO_BLOCK, RequestId, ScoreKind, Scored, SeqStart, Step, StepOutput,
    StepSeq,
};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, Worker, WorkerConfig};

const BLOCK: usize = 16;
const BLOCKS: u32 = 120;

/// A worker, and one sequence in slot 0 with tables of its own.
struct Run {
    worker: Worker,
    free: Vec<u32>,
    tables: Vec<Vec<u32>>,
    tokens: Vec<u32>,
    computed: usize,
    started: bool,
    drops: Vec<Dropped>,
    /// Rows to score, and the kind.
    scored: Option<(u32, ScoreKind)>,
    score_lists: u32,
}

fn group(layers: &[u32], keeps: Keeps) -> LayerGroup {
    LayerGroup { layers: layers.to_vec(), keeps, ..LayerGroup::default() }
}

/// A group of single KV heads; the model has two layers of two.
fn heads(heads: &[u32], keeps: Keeps) -> LayerGroup {
    LayerGroup { heads: heads.to_vec(), keeps, ..LayerGroup::default() }
}

impl Run {
    fn new(groups: Vec<LayerGroup>, tokens: &[u32], max_drafts: u32, threads: usize) -> Self {
        let n = groups.len().max(1);
        let model = Arc::new(Model::seeded(3).with_groups(groups).unwrap());
        let config = WorkerConfig { block_size: BLOCK as u32, device_blocks: BLOCKS, max_drafts, threads };
        Self {
            worker: Worker::new(model, config).unwrap(),
            free: (0..BLOCKS).map(|at| at * 7 % BLOCKS).collect(),
            tables: vec![Vec::new(); n],
            tokens: tokens.to_vec(),
            computed: 0,
            started: false,
            drops: Vec::new(),
            scored: None,
            score_lists: 0,
        }
    }

    /// Runs up to `n` tokens, and drafts `n_drafts` at most; returns the output, and logits of sampled tokens.
    fn step(&mut self, n: usize, n_drafts: u32) -> (StepOutput, Vec<Vec<f32>>) {
        let end = self.tokens.len().min(self.computed + n);
        let keep = if self.started { self.tables[0].len() } else { 0 };
        while self.tables[0].len() * BLOCK < end + n_drafts as usize {
            for table in &mut self.tables {
                table.push(self.free.pop().expect("blocks enough"));
            }
        }
        let n_history = if self.started { 0 } else { self.computed };
        let n_tokens = (end - self.computed) as u32;
        let (scored_rows, score_kind) = self.scored.unwrap_or_default();
        let seq = StepSeq {
            request: RequestId(1),
            start: !self.started,
            computed: self.computed as u32,
            n_tokens,
            n_history: n_history as u32,
            table_keep: keep as u32,
            n_blocks: (self.tables[0].len() - keep) as u32,
            sample: end == self.tokens.len(),
            n_drafts,
            ..StepSeq::default()
        };
        for drop in &self.drops {
            self.tables[drop.group as usize][drop.first as usize..][..drop.n as usize].fill(NO_BLOCK);
        }
        let step = Step {
            id: 1,
            seqs: vec![seq],
            tokens: self.tokens[self.computed - n_history..end].to_vec(),
            blocks: self.tables.iter().flat_map(|table| table[keep..].to_vec()).collect(),
            drops: std::mem::take(&mut self.drops),
            scored: (scored_rows > 0).then(|| Scored { seq: 0, rows: scored_rows.min(n_tokens) }).into_iter().collect(),
            score_kind,
            score_lists: self.score_lists,
            starts: if self.started { Vec::new() } else { vec![SeqStart::default()] },
            copies: Vec::new(),
            prompt_rows: Vec::new(),
        };
        let (output, logits) = self.worker.run_with_logits(&step).unwrap();
        self.computed = end + output.result.tokens.len().saturating_sub(1);
        self.tokens.extend(&output.result.tokens);
        self.started = true;
        (output, logits)
    }

    /// Runs steps of `chunk` tokens until `n` tokens are computed; returns the logits of sampled tokens.
    fn until(&mut self, n: usize, chunk: usize, n_drafts: u32) -> Vec<Vec<f32>> {
        let mut logits = Vec::new();
        while self.computed < n {
            let samples = self.computed + chunk >= self.tokens.len();
            logits.extend(self.step(chunk, if samples { n_drafts } else { 0 }).1);
        }
        logits
    }

    fn read(&self, block: u32) -> Vec<u8> {
        let blocks = self.worker.blocks();
        let mut bytes = vec![0; blocks.block_bytes()];
        blocks.read(block, &mut bytes).unwrap();
        bytes
    }
}

fn prompt(n: usize) -> Vec<u32> {
    let text = "Some layers read all of a text, others only what is near; the tables of both are indexed by position. ";
    Tokenizer::bytes().encode(&text.repeat(n.div_ceil(text.len()))).unwrap()[..n].to_vec()
}

#[test]
fn groups_that_drop_nothing_compute_the_bits_of_one_group() {
    let mut plain = Run::new(Vec::new(), &prompt(150), 0, 1);
    let expected = plain.until(180, 150, 0);
    for groups in [
        vec![group(&[0], Keeps::All), group(&[1], Keeps::All)],
        vec![group(&[1], Keeps::Scored), group(&[0], Keeps::Window(4000))],
        vec![group(&[0, 1], Keeps::Scored)],
        vec![heads(&[1, 2], Keeps::All), heads(&[0, 3], Keeps::Scored)],
        vec![heads(&[3], Keeps::All), heads(&[0, 1, 2], Keeps::Window(4000))],
    ] {
        for (chunk, max_drafts, threads) in [(150, 0, 1), (13, 0, 2), (64, 5, 1)] {
            let mut run = Run::new(groups.clone(), &prompt(150), max_drafts, threads);
            let logits = run.until(180, chunk, max_drafts);
            let n = expected.len().min(logits.len());
            assert!(n >= 30 && logits[..n] == expected[..n], "{groups:?} in chunks of {chunk}");
            assert_eq!(run.tokens[..180], plain.tokens[..180]);
        }
    }
}

#[test]
fn a_window_gives_back_the_blocks_behind_it_and_computes_the_same_bits() {
    let groups = vec![group(&[0], Keeps::All), group(&[1], Keeps::Window(40))];
    let mut kept = Run::new(groups.clone(), &prompt(150), 0, 1);
    let expected = kept.until(200, 150, 0);
    let mut full = Run::new(Vec::new(), &prompt(150), 0, 1);
    assert_ne!(full.until(200, 150, 0), expected, "a window shows");
    for chunk in [5, 50] {
        let mut run = Run::new(groups.clone(), &prompt(150), 0, 2);
        let mut logits = Vec::new();
        while run.computed < 200 {
            // Every block behind the window of the next row goes.
            let gone = (run.computed + 1).saturating_sub(40) / BLOCK;
            let held = run.tables[1].iter().take_while(|block| **block == NO_BLOCK).count();
            if gone > held {
                run.drops.push(Dropped { seq: 0, group: 1, first: held as u32, n: (gone - held) as u32 });
                run.free.splice(0..0, run.tables[1][held..gone].to_vec());
            }
            logits.extend(run.step(chunk, 0).1);
        }
        assert_eq!(logits, expected, "in chunks of {chunk}");
        assert!(run.tables[1].iter().filter(|block| **block == NO_BLOCK).count() > 8);
    }
}

/// Groups in which the second layer drops blocks.
fn evicting() -> Vec<LayerGroup> {
    vec![group(&[0], Keeps::All), group(&[1], Keeps::Scored)]
}

/// Groups in which one KV head of each layer drops blocks; the second has room for a head more.
fn divided() -> Vec<LayerGroup> {
    vec![heads(&[0], Keeps::All), heads(&[1, 3], Keeps::Scored), heads(&[2], Keeps::All)]
}

#[test]
fn heads_drop_blocks_by_themselves() {
    let logits_of = |groups: Vec<LayerGroup>| {
        let mut run = Run::new(groups, &prompt(150), 0, 1);
        run.until(150, 43, 0);
        run.drops = vec![Dropped { seq: 0, group: 1, first: 1, n: 6 }];
        run.until(170, 1, 0)
    };
    let all = |heads_all: &[u32], dropping: &[u32]| vec![heads(heads_all, Keeps::All), heads(dropping, Keeps::Scored)];
    let both = logits_of(evicting());
    assert_eq!(logits_of(all(&[0, 1], &[2, 3])), both, "both heads of a layer are the layer");
    let (second, third) = (logits_of(all(&[0, 1, 3], &[2])), logits_of(all(&[0, 1, 2], &[3])));
    assert!(second != both && third != both && second != third);
}

#[test]
fn dropped_positions_are_invisible_wherever_the_rest_of_the_blocks_lies() {
    dropped_positions_are_invisible(evicting);
    dropped_positions_are_invisible(divided);
}

fn dropped_positions_are_invisible(groups: fn() -> Vec<LayerGroup>) {
    let mut plain = Run::new(groups(), &prompt(150), 0, 1);
    let unevicted = plain.until(170, 150, 0);
    let mut run = Run::new(groups(), &prompt(150), 0, 1);
    run.until(150, 150, 0);
    run.drops = vec![Dropped { seq: 0, group: 1, first: 1, n: 3 }, Dropped { seq: 0, group: 1, first: 6, n: 1 }];
    let gone: Vec<u32> = [1, 2, 3, 6].map(|entry| run.tables[1][entry]).to_vec();
    let logits = run.until(170, 1, 0);
    assert_ne!(logits, unevicted[1..], "what is gone is missed");

    // The same again, and what was in the blocks is overwritten.
    let mut other = Run::new(groups(), &prompt(150), 0, 2);
    other.until(150, 37, 0);
    let blocks = other.worker.blocks();
    gone.iter().for_each(|block| blocks.write(*block, &vec![0xff; blocks.block_bytes()]).unwrap());
    other.drops = vec![Dropped { seq: 0, group: 1, first: 1, n: 3 }, Dropped { seq: 0, group: 1, first: 6, n: 1 }];
    assert_eq!(other.until(170, 1, 0), logits);

    // A sequence that comes back from elsewhere brings its holes along, to other blocks.
    let mut run = Run::new(groups(), &prompt(150), 0, 1);
    run.until(150, 150, 0);
    let bytes: Vec<Vec<Vec<u8>>> =
        run.tables.iter().map(|table| table.iter().map(|b| run.read(*b)).collect()).collect();
    let mut back = Run::new(groups(), &run.tokens, 0, 1);
    for (group, bytes) in bytes.iter().enumerate() {
        for (entry, bytes) in bytes.iter().enumerate() {
            if group == 1 && [1, 2, 3, 6].contains(&entry) {
                back.tables[group].push(NO_BLOCK);
                continue;
            }
            let block = back.free.remove(0);
            back.worker.blocks().write(block, bytes).unwrap();
            back.tables[group].push(block);
        }
    }
    back.computed = run.computed;
    let (first, rest) = (back.step(1, 0).1, back.until(170, 1, 0));
    assert_eq!([first, rest].concat(), logits);
}

#[test]
fn drafts_run_beside_holes_and_change_no_bit() {
    let tokens = prompt(200);
    let run = |max_drafts: u32| {
        let mut run = Run::new(evicting(), &tokens, max_drafts, 1);
        run.until(200, 200, 0);
        run.drops = vec![Dropped { seq: 0, group: 1, first: 2, n: 5 }];
        run.until(240, 1, max_drafts);
        run.tokens[..240].to_vec()
    };
    assert_eq!(run(6), run(0));
}

#[test]
fn scores_have_an_entry_for_each_block_and_add_up_to_one() {
    let alone = || vec![group(&[0, 1], Keeps::Scored)];
    for (groups, holes) in [(evicting(), true), (divided(), true), (alone(), true), (Vec::new(), false)] {
        let scored = groups.iter().position(|group| group.keeps == Keeps::Scored).unwrap_or(0);
        let mut run = Run::new(groups, &prompt(150), 0, 1);
        let mut unscored = run.step(150, 0).0;
        assert!(std::mem::take(&mut unscored.result.scores).is_empty());
        run.scored = Some((1, ScoreKind::Mean));
        if holes {
            run.drops = vec![Dropped { seq: 0, group: scored as u32, first: 1, n: 3 }];
        }
        let scores = run.step(1, 0).0.result.scores;
        assert_eq!(scores.len(), 151usize.div_ceil(BLOCK));
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{scores:?}");
        for (entry, score) in scores.iter().enumerate() {
            let dropped = holes && (1..4).contains(&entry);
            assert!(if dropped { *score == 0.0 } else { *score > 0.0 }, "{scores:?}");
        }
        run.scored = Some((1, ScoreKind::Max));
        let largest = run.step(1, 0).0.result.scores;
        assert!(largest[..4].iter().all(|score| (0.0..=1.0).contains(score)) && largest[0] > 0.0);
        assert_eq!(largest[9], 0.0, "all positions are nearer than 32");
    }
}

#[test]
fn scores_by_group_are_those_of_each_group_alone() {
    let of = |heads: [&[u32]; 3], scored: &[usize], by_group: bool, kind: ScoreKind| {
        let keeps = |at: usize| if scored.contains(&at) { Keeps::Scored } else { Keeps::All };
        let groups = heads.iter().enumerate().map(|(at, members)| self::heads(members, keeps(at))).collect();
        let mut run = Run::new(groups, &prompt(150), 0, 2);
        (run.scored, run.score_lists) = (Some((40, kind)), if by_group { scored.len() as u32 } else { 0 });
        run.step(150, 0).0.result.scores
    };
    let heads: [&[u32]; 3] = [&[0], &[1, 3], &[2]];
    for kind in [ScoreKind::Mean, ScoreKind::Max] {
        let alone = [0, 1, 2].map(|at| of(heads, &[at], false, kind));
        assert!(alone[0] != alone[1] && alone[1] != alone[2], "{kind:?}");
        for scored in [&[1, 2][..], &[0, 1, 2], &[2]] {
            let lists = of(heads, scored, true, kind);
            let expected: Vec<f32> = scored.iter().flat_map(|at| alone[*at].clone()).collect();
            assert_eq!(lists.len(), expected.len());
            assert!(
                lists.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6),
                "{kind:?}: {lists:?}, {expected:?}"
            );
        }
    }
}

#[test]
fn scores_depend_neither_on_threads_nor_on_drafts() {
    let scores = |threads, max_drafts| {
        let mut run = Run::new(evicting(), &prompt(300), max_drafts, threads);
        run.scored = Some((32, ScoreKind::Mean));
        let first = run.step(300, 0).0.result.scores;
        (first, run.step(1, max_drafts).0.result.scores)
    };
    let expected = scores(1, 0);
    assert_eq!(scores(2, 0), expected);
    // Whatever is drafted, the row is the same.
    assert_eq!(scores(2, 4), expected);
}

#[test]
fn facts_about_the_model_count_every_block() {
    let model = Model::seeded(3);
    let plain = model.info();
    assert!(plain.groups.is_empty());
    let grouped = Model::seeded(3).with_groups(evicting()).unwrap().info();
    assert_eq!((grouped.groups, grouped.kv_bytes_per_token), (evicting(), plain.kv_bytes_per_token));
    let run = Run::new(evicting(), &[], 0, 1);
    let bytes = run.worker.blocks().block_bytes() as u64;
    assert_eq!(bytes * 2, plain.kv_bytes_per_token * BLOCK as u64, "a block has one of two layers");
    let three = Model::seeded(3).with_groups(divided()).unwrap().info();
    assert_eq!(three.kv_bytes_per_token * 4, plain.kv_bytes_per_token * 6, "three blocks of two heads for four heads");
    assert!(Model::seeded(3).with_groups(vec![group(&[0], Keeps::All)]).is_err());
}
