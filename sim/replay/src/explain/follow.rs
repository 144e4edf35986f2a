//! One request followed through a recording: where its time went, and who held what it waited for.

use std::collections::BTreeMap;

use trunkline_cluster::{Cluster, EngineId};
use trunkline_core::request::sequence::SequenceState;
use trunkline_core::{BlockHash, Lack, Preempted, Request, RequestId, Usage};

use super::engine::{Engine, Gone, holders, seated};
use super::part::Part;
use super::{Blamed, Explained, Miss, MissCause, Wait, Why};

/// Requests named at a wait, at most: those that hold most.
const HOLDERS_MAX: usize = 5;
/// Waits kept of a request, at most: the longest.
pub(super) const WAITS_MAX: usize = 1000;

/// State of a followed request since the last input.
#[derive(Clone, Debug, PartialEq)]
struct Situation {
    engine: EngineId,
    part: Part,
    why: Option<Why>,
    /// Requests that hold what this one waits for, each with its share; in steps of its own, the other prompts.
    holders: Vec<(RequestId, u64)>,
    /// Sum of the shares, with those of the request itself.
    whole: u64,
}

/// Evictions of blocks, and an engine with the tokens that it has.
type AtAdmission = (Vec<Option<Gone>>, Option<(EngineId, u32)>);

/// A request from its arrival to its end.
pub(super) struct Followed {
    explained: Explained,
    hashes: Vec<BlockHash>,
    block_size: u32,
    since_ns: u64,
    now: Situation,
    /// Tokens that had KV at some time.
    reached: u32,
    /// `true` once it was admitted anywhere.
    was_admitted: bool,
    blamed: BTreeMap<RequestId, Blamed>,
    /// Evictions of the blocks of its prompt, and the longest prefix on another engine, at its first admission.
    at_admission: Option<AtAdmission>,
}

impl Followed {
    pub fn new(at_ns: u64, request: &Request, block_size: u32) -> Self {
        let explained = Explained {
            id: request.id,
            tenant: request.tenant,
            submitted_ns: at_ns,
            prompt_tokens: request.prompt.len() as u32,
            ..Explained::default()
        };
        let now = Situation { engine: EngineId(0), part: Part::Queue, why: None, holders: Vec::new(), whole: 0 };
        Self {
            explained,
            hashes: request.hashes.clone(),
            block_size,
            since_ns: at_ns,
            now,
            reached: 0,
            was_admitted: false,
            blamed: BTreeMap::new(),
            at_admission: None,
        }
    }

    pub fn id(&self) -> RequestId {
        self.explained.id
    }

    /// Counts the time since the last input.
    pub fn pass(&mut self, at_ns: u64) {
        let ns = at_ns - std::mem::replace(&mut self.since_ns, at_ns);
        if ns == 0 {
            return;
        }
        let Situation { engine, part, why, holders, whole } = &self.now;
        self.explained.parts.add(*part, ns);
        // Shares of the interval: cut so that they add up to it.
        let (mut passed, mut counted) = (0u64, 0u64);
        for (request, share) in holders {
            passed += share;
            let until = (u128::from(ns) * u128::from(passed) / u128::from((*whole).max(1))) as u64;
            let blamed = self.blamed.entry(*request).or_insert_with(|| Blamed::new(*request));
            blamed.add(*part, until - counted);
            counted = until;
        }
        if part.is_work() {
            return;
        }
        match self.explained.waits.last_mut() {
            Some(last) if last.is_like(*engine, *part, *why) && last.end_ns() + ns == at_ns => last.ns += ns,
            _ => {
                let mut most = holders.clone();
                most.sort_by_key(|(request, share)| (std::cmp::Reverse(*share), *request));
                most.truncate(HOLDERS_MAX);
                let wait = Wait { from_ns: at_ns - ns, ns, engine: *engine, part: *part, why: *why, held_by: most };
                self.explained.waits.push(wait);
            }
        }
    }

    /// Looks where the request stands behind an input.
    pub fn look(&mut self, cluster: &Cluster, engines: &[Engine]) {
        let id = self.explained.id;
        let Some(at) = cluster.engine_of(id) else { return };
        if self.explained.engines.last() != Some(&at) {
            self.explained.engines.push(at);
        }
        let engine = &engines[at.index()];
        let Some(standing) = cluster.core(at).standing(id) else { return };
        let (part, why) = match standing.state {
            _ if !engine.has_worker => (Part::Absent, None),
            SequenceState::Waiting => self.waits(engine),
            SequenceState::Loading => (Part::Load, None),
            SequenceState::SwappingOut | SequenceState::SwappingIn => (Part::Copies, None),
            SequenceState::Swapped | SequenceState::Preempted => (Part::Preempted, None),
            SequenceState::Prefill | SequenceState::Decode => (self.runs(engine), None),
        };
        if !self.was_admitted && !matches!(standing.state, SequenceState::Waiting) {
            self.was_admitted = true;
            self.at_admission = Some(self.look_for_blocks(at, cluster, engine));
        }
        let (holders, whole) = self.held_by(part, why, at, cluster, engine);
        self.now = Situation { engine: at, part, why, holders, whole };
    }

    fn waits(&self, engine: &Engine) -> (Part, Option<Why>) {
        let id = self.explained.id;
        let part = if self.was_admitted { Part::Preempted } else { Part::Queue };
        match (engine.lacks.get(&id), engine.not_admitted) {
            (Some(Lack::Lookup), _) => (Part::Load, Some(Why::Lacks(Lack::Lookup))),
            (Some(lack), _) => (part, Some(Why::Lacks(*lack))),
            (None, Some(head)) => (part, Some(Why::Behind(head.request, head.lack))),
            (None, None) => (part, Some(Why::StepInFlight)),
        }
    }

    /// Returns the part of a request in the batch.
    fn runs(&self, engine: &Engine) -> Part {
        let id = self.explained.id;
        let mut under_way = engine.under_way().peekable();
        if under_way.peek().is_none() {
            return if engine.copies() { Part::Copies } else { Part::Idle };
        }
        match under_way.find_map(|step| step.of(id)) {
            None => Part::Others,
            Some(ran) if ran.computed < self.reached => Part::Recompute,
            Some(ran) if ran.decodes => Part::Decode,
            Some(_) => Part::Prefill,
        }
    }

    /// Notes the tokens that a step computed.
    pub fn computed(&mut self, engine: &Engine, step: u64) {
        let id = self.explained.id;
        let ran = engine.steps.iter().find(|flight| flight.id() == step).and_then(|flight| flight.of(id));
        self.reached = self.reached.max(ran.map_or(0, |ran| ran.computed + ran.kept));
    }

    /// Returns the requests that hold what this one waits for, and the sum of all shares.
    fn held_by(
        &self,
        part: Part,
        why: Option<Why>,
        at: EngineId,
        cluster: &Cluster,
        engine: &Engine,
    ) -> (Vec<(RequestId, u64)>, u64) {
        let id = self.explained.id;
        let lack = why.and_then(|why| why.lack());
        let tokens = |prompts: bool| {
            let ran = engine.under_way().flat_map(|step| &step.ran).filter(move |ran| !(prompts && ran.decodes));
            ran.map(|ran| (ran.request, u64::from(ran.tokens))).collect::<Vec<_>>()
        };
        let mut all = match (part, lack) {
            (Part::Queue | Part::Preempted, Some(Lack::Seat)) => seated(cluster, at),
            (Part::Queue | Part::Preempted, Some(Lack::Blocks | Lack::Turn)) => holders(cluster, at),
            (Part::Queue | Part::Preempted, Some(Lack::Prefix)) => tokens(true),
            (Part::Queue, _) | (Part::Others, _) => tokens(false),
            (Part::Preempted, None) => holders(cluster, at),
            (Part::Prefill | Part::Decode | Part::Recompute, _) => {
                // The whole step counts, so that the shares of other prompts are those of its tokens.
                let whole = tokens(false).iter().map(|(_, tokens)| tokens).sum();
                let mut others = tokens(true);
                others.retain(|(request, _)| *request != id);
                return (others, whole);
            }
            _ => Vec::new(),
        };
        all.retain(|(request, _)| *request != id);
        let whole = all.iter().map(|(_, share)| share).sum();
        (all, whole)
    }

    fn look_for_blocks(
        &self,
        at: EngineId,
        cluster: &Cluster,
        engine: &Engine,
    ) -> (Vec<Option<Gone>>, Option<(EngineId, u32)>) {
        let gone = self.hashes.iter().map(|hash| engine.gone.get(&hash.fingerprint()).copied()).collect();
        let others = (0..cluster.n_engines() as u32).map(EngineId).filter(|other| *other != at);
        let found = others.map(|other| (other, cluster.core(other).cached_on_device(&self.hashes)));
        let best =
            found.filter(|(_, blocks)| *blocks > 0).max_by_key(|(other, blocks)| (*blocks, std::cmp::Reverse(*other)));
        (gone, best)
    }

    pub fn token(&mut self, at_ns: u64) {
        self.explained.first_token_ns.get_or_insert(at_ns);
        if self.explained.output_tokens == 0 {
            self.explained.before_first_token = self.explained.parts;
        }
        self.explained.output_tokens += 1;
    }

    pub fn preempted(&mut self, at_ns: u64, preempted: &Preempted) {
        self.explained.preemptions.push((at_ns, *preempted));
    }

    /// Ends the request, and returns what became of it.
    pub fn end(mut self, at_ns: u64, end: String, usage: Option<&Usage>) -> Explained {
        let cached = usage.map_or(0, |usage| usage.cached_tokens);
        let mut explained = self.explained;
        explained.ended_ns = at_ns;
        explained.end = end;
        explained.cached_tokens = cached;
        explained.loaded_tokens = usage.map_or(0, |usage| usage.loaded_tokens);
        explained.miss = self.at_admission.take().filter(|_| usage.is_some()).and_then(|(gone, other)| {
            let first = cached.div_ceil(self.block_size) as usize;
            miss(&gone, other, first, self.block_size, &explained)
        });
        explained.blamed = self.blamed.into_values().filter(|blamed| blamed.total_ns() > 0).collect();
        explained.blamed.sort_by_key(|blamed| (std::cmp::Reverse(blamed.total_ns()), blamed.request));
        explained.keep_longest(WAITS_MAX);
        explained
    }
}

/// Returns the first block of a prompt that was not in the cache.
fn miss(
    gone: &[Option<Gone>],
    other: Option<(EngineId, u32)>,
    first: usize,
    block_size: u32,
    explained: &Explained,
) -> Option<Miss> {
    let cause = match (gone.get(first)?, other) {
        (Some(Gone { at_ns, by }), _) => MissCause::Evicted { at_ns: *at_ns, by: *by },
        (None, Some((engine, blocks))) if blocks as usize > first => MissCause::Elsewhere { engine },
        (None, _) => MissCause::New,
    };
    let blocks = match cause {
        MissCause::Evicted { .. } => gone[first..].iter().take_while(|gone| gone.is_some()).count() as u32,
        MissCause::Elsewhere { .. } => other.map_or(0, |(_, blocks)| blocks - first as u32),
        MissCause::New => 0,
    };
    let computed = explained.prompt_tokens.saturating_sub(explained.cached_tokens);
    let tokens = (blocks * block_size).min(computed);
    let prefill_ns = explained.parts.of(Part::Prefill);
    let saves_ns = u128::from(prefill_ns) * u128::from(tokens) / u128::from(computed.max(1));
    Some(Miss { block: first as u32, cause, tokens, saves_ns: saves_ns as u64 })
}
