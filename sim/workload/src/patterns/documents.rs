//! Prompts that begin with one of many contents: documents, templates, branches of a search.

use super::Asked;
use super::scene::{Scene, Zipf, behind};

/// Questions about documents, some documents far more often than others.
pub fn popular(scene: &mut Scene) -> Vec<Asked> {
    let zipf = scene.range(0.5, 1.3);
    questions(scene, zipf, 0.0, 0.0)
}

/// Questions about documents, all equally often.
pub fn uniform(scene: &mut Scene) -> Vec<Asked> {
    questions(scene, 0.0, 0.0, 0.0)
}

/// Popular documents that new ones take the place of.
pub fn turnover(scene: &mut Scene) -> Vec<Asked> {
    let zipf = scene.range(0.6, 1.3);
    let replaced = scene.log_range(0.01, 0.4);
    questions(scene, zipf, replaced, 0.0)
}

/// Popular documents, and now and then many prompts in a row that never return.
pub fn scans(scene: &mut Scene) -> Vec<Asked> {
    let zipf = scene.range(0.5, 1.3);
    let scanned = scene.log_range(0.1, 1.5);
    questions(scene, zipf, 0.0, scanned)
}

/// Makes questions about documents. A question replaces a document with the chance `replaced`; scans ask for `scanned` times as many
/// blocks as the questions.
fn questions(scene: &mut Scene, zipf: f64, replaced: f64, scanned: f64) -> Vec<Asked> {
    let mean = scene.mean_length(40.0);
    let n = ((scene.capacity * scene.log_range(0.4, 12.0) / mean) as usize).max(3);
    let lengths = scene.spread();
    let mut documents = scene.contents(n, mean, lengths);
    let ranks = Zipf::new(n, zipf);
    let question = scene.log_range(0.5, 4.0);
    let system = if scene.chance(0.3) { scene.whole(1, 4) } else { 0 };
    let system = scene.new_blocks(system);
    let scan = scene.capacity * scene.log_range(0.1, 4.0);
    let mut scan_left = 0.0;
    let mut out = Vec::new();
    let mut at = 0.0;
    while at < scene.blocks {
        if scan_left <= 0.0 && scene.chance(scanned * mean / scan) {
            scan_left = scan;
        }
        let prompt = if scan_left > 0.0 {
            let length = scene.length(mean, lengths);
            scan_left -= length as f64;
            scene.new_blocks(length)
        } else {
            let document = &documents[ranks.draw(scene)];
            let part = if scene.chance(0.1) { scene.whole(1, document.len()) } else { document.len() };
            let asked = if question < 1.0 { scene.around(question) } else { scene.geometric(question) };
            behind(&behind(&system, document[..part].to_vec()), scene.new_blocks(asked))
        };
        if scene.chance(replaced) {
            let rank = ranks.draw(scene);
            documents[rank] = scene.new_blocks(documents[rank].len());
        }
        at += prompt.len() as f64;
        out.push((at, prompt));
    }
    out
}

/// Templates with a common beginning, in one to three levels, with new text behind; some prompts are sent again at once.
pub fn templates(scene: &mut Scene) -> Vec<Asked> {
    let mean = scene.mean_length(24.0);
    let fan = scene.whole(2, 9);
    let levels = scene.whole(1, 3);
    let mut heads = vec![Vec::new()];
    for level in 0..levels {
        let mut longer = Vec::new();
        for head in &heads {
            let n = if level == 0 { fan } else { scene.whole(1, fan) };
            for _ in 0..n {
                let length = scene.geometric(mean);
                longer.push(behind(head, scene.new_blocks(length)));
            }
        }
        heads = longer;
        if heads.len() as f64 * mean > 20.0 * scene.capacity {
            break;
        }
    }
    for at in (1..heads.len()).rev() {
        heads.swap(at, scene.below(at + 1));
    }
    let exponent = scene.range(0.0, 1.4);
    let ranks = Zipf::new(heads.len(), exponent);
    let tail = scene.log_range(0.5, 20.0).min(scene.capacity / 30.0).max(0.5);
    let again = scene.range(0.0, 0.2);
    let mut out: Vec<Asked> = Vec::new();
    let mut at = 0.0;
    while at < scene.blocks {
        let prompt = if scene.chance(again) && !out.is_empty() {
            out[out.len() - 1 - scene.below(out.len().min(100))].1.clone()
        } else {
            let head = &heads[ranks.draw(scene)];
            let length = if tail < 1.0 { scene.around(tail) } else { scene.geometric(tail) };
            behind(head, scene.new_blocks(length))
        };
        at += prompt.len() as f64;
        out.push((at, prompt));
    }
    out
}

/// Searches, as of tree of thoughts: prompts that go on from one of a tree, several trees at once.
pub fn search(scene: &mut Scene) -> Vec<Asked> {
    let root = scene.mean_length(30.0).round() as usize;
    let step = scene.log_range(1.0, 4.0);
    let nodes = scene.log_range(5.0, 60.0) as usize;
    let room = scene.capacity * scene.log_range(0.1, 4.0);
    let at_once = ((room / (root as f64 + nodes as f64 * step)) as usize).max(1);
    let depth = scene.below(3);
    let mut trees: Vec<Vec<Vec<u32>>> = (0..at_once).map(|_| vec![scene.new_blocks(root)]).collect();
    let mut out = Vec::new();
    let mut at = 0.0;
    while at < scene.blocks {
        let tree = scene.below(at_once);
        let n = trees[tree].len();
        let from = match depth {
            0 => scene.below(n),
            1 => n - 1 - scene.below(n.min(4)),
            _ => scene.below(n).min(scene.below(n)),
        };
        let length = scene.geometric(step);
        let prompt = behind(&trees[tree][from], scene.new_blocks(length));
        at += prompt.len() as f64;
        if n >= nodes || prompt.len() as f64 > scene.capacity / 4.0 {
            trees[tree] = vec![scene.new_blocks(root)];
        } else {
            trees[tree].push(prompt.clone());
        }
        out.push((at, prompt));
    }
    out
}

/// The same contents in the same order, again and again, with other prompts between them.
pub fn loops(scene: &mut Scene) -> Vec<Asked> {
    let mean = scene.mean_length(30.0);
    let lengths = scene.spread();
    let n = ((scene.capacity * scene.log_range(0.3, 4.0) / mean) as usize).max(2);
    let contents = scene.contents(n, mean, lengths);
    let (question, other, jump) = (scene.range(0.0, 2.0), scene.range(0.0, 0.4), scene.range(0.0, 0.05));
    let mut out = Vec::new();
    let (mut at, mut next) = (0.0, 0);
    while at < scene.blocks {
        let prompt = if scene.chance(other) {
            let length = scene.length(mean, lengths);
            scene.new_blocks(length)
        } else {
            next = if scene.chance(jump) { scene.below(n) } else { (next + 1) % n };
            let asked = scene.around(question);
            behind(&contents[next], scene.new_blocks(asked))
        };
        at += prompt.len() as f64;
        out.push((at, prompt));
    }
    out
}
