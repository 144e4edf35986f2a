//! An engine of a recording as seen from outside: its steps and copies in flight, its last reasons, and the blocks that left its cache.

use std::collections::{BTreeSet, HashMap, VecDeque};

use trunkline_cluster::{Cluster, EngineId, Output};
use trunkline_core::core::event::Action;
use trunkline_core::request::sequence::SequenceState;
use trunkline_core::{Lack, NotAdmitted, RequestId, Step, StepSeq};

use crate::recorded::{News, Shown};

/// Share of a request in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub request: RequestId,
    /// Position of the first token.
    pub computed: u32,
    /// Tokens that are sure to have KV at the end of the step: without drafts.
    pub kept: u32,
    /// Tokens that the step runs, with drafts.
    pub tokens: u32,
    /// `true` if the tokens are of an answer.
    pub decodes: bool,
}

impl Ran {
    fn of(seq: &StepSeq) -> Self {
        let tokens = seq.n_tokens + seq.n_drafts;
        let decodes = seq.sample && seq.n_tokens == 1 && seq.n_generated > 0;
        Self { request: seq.request, computed: seq.computed, kept: seq.n_tokens, tokens, decodes }
    }
}

/// Step in flight.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    id: u64,
    pub ran: Vec<Ran>,
}

impl Flight {
    /// Returns the number of the step.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the share of a request.
    pub fn of(&self, request: RequestId) -> Option<&Ran> {
        self.ran.iter().find(|ran| ran.request == request)
    }
}

/// Last time that a block left the cache of an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub at_ns: u64,
    /// Request that needed the room.
    pub by: Option<RequestId>,
}

/// One engine.
#[derive(Default)]
pub(super) struct Engine {
    /// Steps in flight, oldest first.
    pub steps: VecDeque<Flight>,
    copies: BTreeSet<u64>,
    /// Admission tried last without success, since the last step was made.
    pub not_admitted: Option<NotAdmitted>,
    /// Lacks of waiting requests, of the last time that each was considered.
    pub lacks: HashMap<RequestId, Lack>,
    /// Blocks that were evicted, by fingerprint.
    pub gone: HashMap<u64, Gone>,
    /// Stages that work on different steps.
    pub stages: usize,
    pub has_worker: bool,
}

impl Engine {
    /// Returns an engine without a worker.
    pub fn new(stages: usize) -> Self {
        Self { stages, ..Self::default() }
    }

    /// Takes note of an input: news of the worker, outputs, and the reasons behind them.
    pub fn see(&mut self, me: EngineId, shown: &Shown, cluster: &mut Cluster) {
        if let Some((engine, news)) = shown.news
            && engine == me
        {
            self.hear(news);
        }
        let made_step = self.take_outputs(me, shown.outputs);
        let reasons = cluster.take_reasons(me);
        if made_step || !reasons.not_admitted.is_empty() {
            self.not_admitted = reasons.not_admitted.last().copied();
        }
        self.lacks.extend(reasons.not_admitted.iter().map(|noted| (noted.request, noted.lack)));
        for evicted in &reasons.evicted {
            let gone = Gone { at_ns: shown.at_ns, by: evicted.by };
            self.gone.extend(evicted.fingerprints.iter().map(|print| (*print, gone)));
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::StepEnded(id) => self.steps.retain(|step| step.id > id),
            News::CopyEnded { id, .. } => {
                self.copies.remove(&id);
            }
            News::Resumed => self.steps.clear(),
            News::Lost | News::Joined => {
                self.has_worker = matches!(news, News::Joined);
                self.steps.clear();
                self.copies.clear();
                self.gone.clear();
            }
        }
    }

    /// Returns `true` if a step was made.
    fn take_outputs(&mut self, me: EngineId, outputs: &[Output]) -> bool {
        let mut made_step = false;
        for output in outputs {
            match output {
                Output::Engine(engine, Action::RunStep(step)) if *engine == me => {
                    made_step = true;
                    self.begin(step);
                }
                Output::Engine(engine, Action::Transfer(transfer)) if *engine == me => {
                    self.copies.insert(transfer.id);
                }
                Output::Engine(engine, Action::ResetWorker) if *engine == me => self.hear(News::Lost),
                Output::Engine(engine, Action::Finish { request, .. } | Action::Refuse { request, .. })
                    if *engine == me =>
                {
                    self.lacks.remove(request);
                }
                Output::Moved { request, from, .. } if *from == me => {
                    self.lacks.remove(request);
                }
                _ => {}
            }
        }
        made_step
    }

    fn begin(&mut self, step: &Step) {
        for seq in step.seqs.iter().filter(|seq| seq.start) {
            self.lacks.remove(&seq.request);
        }
        self.steps.push_back(Flight { id: step.id, ran: step.seqs.iter().map(Ran::of).collect() });
    }

    /// Returns the steps that are under way now: the oldest in flight, or one for each stage of a pipeline.
    pub fn under_way(&self) -> impl Iterator<Item = &Flight> {
        self.steps.iter().take(self.stages.max(1))
    }

    /// Returns `true` if copies are under way.
    pub fn copies(&self) -> bool {
        !self.copies.is_empty()
    }
}

/// Returns the requests that hold device blocks of an engine, with their blocks.
pub(super) fn holders(cluster: &Cluster, engine: EngineId) -> Vec<(RequestId, u64)> {
    let standings = cluster.core(engine).standings().filter(|standing| standing.blocks > 0);
    standings.map(|standing| (standing.request, u64::from(standing.blocks))).collect()
}

/// Returns the requests that sit in the batch of an engine.
pub(super) fn seated(cluster: &Cluster, engine: EngineId) -> Vec<(RequestId, u64)> {
    let sits = |state| {
        use SequenceState::{Decode, Loading, Prefill, SwappingIn};
        matches!(state, Prefill | Decode | Loading | SwappingIn)
    };
    cluster
        .core(engine)
        .standings()
        .filter(|standing| sits(standing.state))
        .map(|standing| (standing.request, 1))
        .collect()
}
