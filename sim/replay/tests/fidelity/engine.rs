//! vLLM's V1 scheduler as it is documented, written down as plainly as possible, so that a cost model can be judged apart from the
//! core's scheduling.
//!
//! A step gives tokens first to what runs, in the order of admission, then to what waits. A running request that finds no block
//! preempts the last of those that run, which waits again in front of all others and computes everything again but what is still cached.
//! After a preemption nothing is admitted in that step. A waiting request is admitted if there are blocks for all its tokens, yet takes
//! only those of its first chunk. Blocks that no one holds go in the order they were given up, the last of a request first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use trunkline_sim_perf::cost::{CostModel, StepShape};

const BLOCK: usize = 16;

/// A request and what became of it; times in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Job {
    pub prompt: Vec<u32>,
    pub output: usize,
    pub arrival_ns: u64,
    pub first_ns: u64,
    pub end_ns: u64,
    /// When each token came.
    pub tokens_ns: Vec<u64>,
    /// Names of its full blocks, each of what it and all before it hold.
    names: Vec<u64>,
    generated: usize,
    computed: usize,
    blocks: Vec<usize>,
}

impl Job {
    /// One that has ended, or will.
    pub fn new(prompt: Vec<u32>, output: usize, [arrival_ns, first_ns, end_ns]: [u64; 3]) -> Self {
        Self { prompt, output, arrival_ns, first_ns, end_ns, ..Self::default() }
    }

    fn tokens(&self) -> usize {
        self.prompt.len() + self.generated
    }

    /// Names the blocks that became full. What is generated is like nothing else.
    fn name_blocks(&mut self, request: usize) {
        for at in self.names.len()..self.tokens() / BLOCK {
            let mut hasher = DefaultHasher::new();
            self.names.last().hash(&mut hasher);
            match self.prompt.get(at * BLOCK..(at + 1) * BLOCK) {
                Some(tokens) => tokens.hash(&mut hasher),
                None => (request, at).hash(&mut hasher),
            }
            self.names.push(hasher.finish());
        }
    }
}

/// Blocks, those that no one holds in the order of their going.
#[derive(Default)]
struct Pool {
    names: Vec<Option<u64>>,
    holders: Vec<u32>,
    cached: HashMap<u64, usize>,
    free: BTreeMap<u64, usize>,
    freed_at: Vec<u64>,
    clock: u64,
}

impl Pool {
    fn new(blocks: usize) -> Self {
        let (names, holders, freed_at) = (vec![None; blocks], vec![1; blocks], vec![0; blocks]);
        let mut pool = Self { names, holders, freed_at, ..Self::default() };
        (0..blocks).for_each(|block| pool.give_up(block));
        pool
    }

    fn give_up(&mut self, block: usize) {
        self.holders[block] -= 1;
        if self.holders[block] == 0 {
            self.clock += 1;
            self.freed_at[block] = self.clock;
            self.free.insert(self.clock, block);
        }
    }

    fn hold(&mut self, block: usize) {
        if self.holders[block] == 0 {
            self.free.remove(&self.freed_at[block]);
        }
        self.holders[block] += 1;
    }

    fn take(&mut self) -> usize {
        let (_, block) = self.free.pop_first().expect("free blocks were counted");
        if let Some(name) = self.names[block].take()
            && self.cached.get(&name) == Some(&block)
        {
            self.cached.remove(&name);
        }
        self.holders[block] = 1;
        block
    }

    /// Takes blocks for tokens up to `end`, or none.
    fn extend(&mut self, job: &mut Job, end: usize) -> bool {
        let missing = end.div_ceil(BLOCK).saturating_sub(job.blocks.len());
        if missing > self.free.len() {
            return false;
        }
        job.blocks.extend((0..missing).map(|_| self.take()));
        true
    }

    fn release(&mut self, job: &mut Job) {
        for block in job.blocks.drain(..).rev() {
            self.give_up(block);
        }
    }

    /// Cached blocks from the beginning of a request. Its last token is always computed.
    fn hits(&self, job: &Job) -> Vec<usize> {
        let most = (job.tokens() - 1) / BLOCK;
        job.names[..most].iter().map_while(|name| self.cached.get(name).copied()).collect()
    }

    fn publish(&mut self, job: &Job) {
        for (block, name) in job.blocks.iter().zip(&job.names[..job.computed / BLOCK]) {
            if self.names[*block].is_none() {
                self.names[*block] = Some(*name);
                self.cached.entry(*name).or_insert(*block);
            }
        }
    }
}

pub struct Engine<'a> {
    pub max_tokens: usize,
    pub max_sequences: usize,
    pub cost: &'a dyn CostModel,
    pub preemptions: u64,
    pub steps: u64,
    jobs: Vec<Job>,
    pool: Pool,
    waiting: VecDeque<usize>,
    running: Vec<usize>,
}

impl<'a> Engine<'a> {
    pub fn new(
        jobs: Vec<Job>,
        blocks: usize,
        max_tokens: usize,
        max_sequences: usize,
        cost: &'a dyn CostModel,
    ) -> Self {
        let (waiting, running) = Default::default();
        let mut jobs = jobs;
        jobs.iter_mut().enumerate().for_each(|(request, job)| job.name_blocks(request));
        Self {
            max_tokens,
            max_sequences,
            cost,
            preemptions: 0,
            steps: 0,
            jobs,
            pool: Pool::new(blocks),
            waiting,
            running,
        }
    }

    /// Runs all jobs to their ends.
    pub fn run(&mut self) -> &[Job] {
        let (mut now_ns, mut arrived, mut ended) = (0, 0, 0);
        while ended < self.jobs.len() {
            while arrived < self.jobs.len() && self.jobs[arrived].arrival_ns <= now_ns {
                self.waiting.push_back(arrived);
                arrived += 1;
            }
            let step = self.schedule();
            if step.is_empty() {
                now_ns = self.jobs[arrived].arrival_ns;
                continue;
            }
            self.steps += 1;
            now_ns += self.cost.step_ns(&self.shape(&step));
            ended += self.finish(&step, now_ns);
        }
        &self.jobs
    }

    fn schedule(&mut self) -> Vec<(usize, usize)> {
        let (mut step, mut budget, mut preempted) = (Vec::new(), self.max_tokens, false);
        let mut at = 0;
        'running: while at < self.running.len() && budget > 0 {
            let request = self.running[at];
            let job = &self.jobs[request];
            let n = (job.tokens() - job.computed).min(budget);
            let end = job.computed + n;
            while !self.pool.extend(&mut self.jobs[request], end) {
                preempted = true;
                let victim = self.running.pop().expect("one runs");
                self.pool.release(&mut self.jobs[victim]);
                self.jobs[victim].computed = 0;
                self.waiting.push_front(victim);
                self.preemptions += 1;
                if victim == request {
                    break 'running;
                }
            }
            step.push((request, n));
            budget -= n;
            at += 1;
        }
        while !preempted && budget > 0 && self.running.len() < self.max_sequences {
            let Some(request) = self.waiting.front().copied() else { break };
            let Some(n) = self.admit(request, budget) else { break };
            self.waiting.pop_front();
            self.running.push(request);
            step.push((request, n));
            budget -= n;
        }
        step
    }

    fn admit(&mut self, request: usize, budget: usize) -> Option<usize> {
        let job = &mut self.jobs[request];
        let hits = self.pool.hits(job);
        let idle = hits.iter().filter(|block| self.pool.holders[**block] == 0).count();
        if job.tokens().div_ceil(BLOCK) - hits.len() > self.pool.free.len() - idle {
            return None;
        }
        hits.iter().for_each(|block| self.pool.hold(*block));
        job.computed = hits.len() * BLOCK;
        job.blocks = hits;
        let n = (job.tokens() - job.computed).min(budget);
        let end = job.computed + n;
        assert!(self.pool.extend(job, end), "blocks were counted");
        Some(n)
    }

    fn shape(&self, step: &[(usize, usize)]) -> StepShape {
        step.iter().fold(StepShape::default(), |shape, (request, n)| {
            let job = &self.jobs[*request];
            let mut part = match n {
                1 => StepShape::decodes(1, job.computed as u64 + 1),
                n => StepShape::prefill(*n as u64, job.computed as u64),
            };
            part.sampled = u64::from(job.computed + n == job.tokens());
            shape.and(part)
        })
    }

    fn finish(&mut self, step: &[(usize, usize)], now_ns: u64) -> usize {
        let mut ended = 0;
        for (request, n) in step {
            let job = &mut self.jobs[*request];
            job.computed += n;
            self.pool.publish(job);
            if job.computed < job.tokens() {
                continue;
            }
            job.generated += 1;
            job.tokens_ns.push(now_ns);
            job.name_blocks(*request);
            if job.generated == 1 {
                job.first_ns = now_ns;
            }
            if job.generated == job.output {
                job.end_ns = now_ns;
                self.pool.release(job);
                self.running.retain(|other| other != request);
                ended += 1;
            }
        }
        ended
    }
}
