//! The run of a changed recording: verbatim up to the first decision that differs, and from there on with workers whose answers take the time of
//! [`Times`](super::times::Times).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};

use trunkline_cluster::{Cluster, EngineId, Input, Output};
use trunkline_core::core::event::{Action, Event};
use trunkline_core::{FinishReason, Lookup, RequestId, Step, StepResult, Token, Transfer};
use trunkline_sim_perf::cost::StepShape;
use trunkline_sim_perf::link;

use super::decisions::{mark, step_mark, text};
use super::script::{Entry, Script, What};
use super::times::copy_mark;
use super::{Change, Difference, Ended, Rerun, RerunError, Timing, Until};
use crate::accepted_drafts;

/// Answer that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Copy(u64),
    Lookup(u64, u32),
    Step(u64),
}

/// Entry of the queue: time, order of entry, engine, number of lost workers there, answer.
type Scheduled = (u64, u64, u32, u32, Due);

/// Worker of an engine, as far as it owes answers.
#[derive(Default)]
struct Worker {
    /// Steps in flight with the time at which each was sent.
    steps: VecDeque<(Box<Step>, u64)>,
    copies: BTreeMap<u64, (Box<Transfer>, u64)>,
    lookups: BTreeMap<u64, (Box<Lookup>, u64)>,
    /// End of the last step, of those scheduled too.
    ended_ns: u64,
    /// End of the last copy of each direction.
    busy_ns: BTreeMap<usize, u64>,
    lives: u32,
}

impl Worker {
    fn lose(&mut self, now_ns: u64) {
        *self = Self { ended_ns: self.ended_ns.min(now_ns), lives: self.lives + 1, ..Self::default() };
    }
}

pub(super) struct Run<'a> {
    script: &'a Script,
    changes: &'a [Change],
    timing: Timing,
    cluster: Cluster,
    workers: Vec<Worker>,
    /// Next entry of the script.
    at: usize,
    /// `true` until a decision differs.
    follows: bool,
    now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    orders: u64,
    /// Places of the requests under way among the requests of the script.
    open: HashMap<RequestId, usize>,
    /// Tokens of each request so far.
    generated: Vec<u32>,
    stops: Vec<RequestId>,
    outputs: Vec<Output>,
    /// Requests that completed in the recording and have not ended in this run.
    awaited: BTreeSet<usize>,
    /// Decisions behind the last input, if somebody asks for them.
    texts: Option<String>,
    found: Rerun,
}

impl<'a> Run<'a> {
    pub fn new(script: &'a Script, changes: &'a [Change], timing: Timing) -> Result<Self, RerunError> {
        changes.iter().try_for_each(|change| script.check(change))?;
        let mut config = script.cluster.clone();
        changes.iter().try_for_each(|change| change.apply(&mut config))?;
        let cluster = Cluster::new(&config).map_err(|error| RerunError::Cluster(Box::new(error)))?;
        Ok(Self {
            workers: (0..cluster.n_engines()).map(|_| Worker::default()).collect(),
            cluster,
            script,
            changes,
            timing,
            at: 0,
            follows: timing == Timing::Recorded,
            now_ns: 0,
            queue: BinaryHeap::new(),
            orders: 0,
            open: HashMap::new(),
            generated: script.requests.iter().map(|_| 0).collect(),
            stops: Vec::new(),
            outputs: Vec::new(),
            awaited: (0..script.requests.len()).filter(|at| script.requests[*at].completed()).collect(),
            texts: None,
            found: Rerun { requests: script.requests.iter().map(|_| Ended::default()).collect(), ..Rerun::default() },
        })
    }

    /// Runs to the end.
    pub fn run(mut self, until: Until) -> Result<Rerun, RerunError> {
        while self.follows && !self.is_over(until) {
            if !self.follow()? {
                break;
            }
        }
        while !self.follows && !self.is_over(until) {
            if !self.go_on()? {
                break;
            }
        }
        self.found.digest = self.cluster.digest();
        Ok(self.found)
    }

    /// Returns the decisions behind the inputs of these numbers, in a run without a change.
    pub fn decisions_at(mut self, inputs: &[usize]) -> Result<Vec<String>, RerunError> {
        let mut texts = Vec::with_capacity(inputs.len());
        self.texts = Some(String::new());
        for input in inputs {
            while self.at <= *input && self.follows && self.follow()? {}
            texts.push(self.texts.clone().unwrap_or_default());
        }
        Ok(texts)
    }

    fn is_over(&self, until: Until) -> bool {
        match until {
            Until::End => self.awaited.is_empty() && !self.follows,
            Until::Request(at) => self.found.requests[at].end.is_some(),
            Until::First(n) => self.awaited.first().is_none_or(|at| *at >= n),
        }
    }

    /// Delivers the next input of the script as recorded. Returns `false` at the end of the script.
    fn follow(&mut self) -> Result<bool, RerunError> {
        let Some(entry) = self.script.entries.get(self.at) else { return Ok(false) };
        let number = self.at;
        let Some(input) = self.entry_input(entry)? else {
            self.leave_out(&entry.what);
            self.now_ns = entry.at_ns;
            self.differ(number, entry.at_ns, "the request does not come".into());
            self.stop_overdue();
            self.at += 1;
            return Ok(true);
        };
        self.open(&entry.what);
        self.now_ns = entry.at_ns;
        self.at += 1;
        self.hear(&input);
        self.cluster.handle(entry.at_ns, input, &mut self.outputs);
        if let Some(last) = &mut self.texts {
            *last = text(&self.outputs);
        }
        if mark(&self.outputs) != self.script.marks[number] {
            self.differ(number, entry.at_ns, text(&self.outputs));
        }
        self.take_outputs();
        self.stop_overdue();
        Ok(true)
    }

    /// Notes the first difference, and schedules the answers that workers owe.
    fn differ(&mut self, input: usize, at_ns: u64, decisions: String) {
        self.found.first_difference = Some(Difference { input, at_ns, decisions, recorded: None });
        self.follows = false;
        for engine in 0..self.workers.len() {
            let worker = &mut self.workers[engine];
            let steps = std::mem::take(&mut worker.steps);
            let copies = std::mem::take(&mut worker.copies);
            let lookups = std::mem::take(&mut worker.lookups);
            for (step, sent_ns) in steps {
                self.owe_step(engine, step, sent_ns);
            }
            copies.into_values().for_each(|(copy, at_ns)| self.owe_copy(engine, copy, at_ns));
            lookups.into_values().for_each(|(lookup, at_ns)| self.owe_lookup(engine, lookup, at_ns));
        }
    }

    /// Stops the requests that are past their stop at the first difference: the driver had found the stop string, and its input was still to come.
    fn stop_overdue(&mut self) {
        if self.follows {
            return;
        }
        let is_overdue =
            |at: usize| self.script.requests[at].stop_at.is_some_and(|tokens| tokens <= self.generated[at] as usize);
        self.stops.extend(self.open.iter().filter(|(_, at)| is_overdue(**at)).map(|(id, _)| *id));
        self.stops.sort_unstable();
        self.stops.dedup();
        self.deliver_stops();
    }

    /// Returns the input of an entry as this run gets it; `None` if it does not come.
    fn entry_input(&self, entry: &Entry) -> Result<Option<Input>, RerunError> {
        Ok(match &entry.what {
            What::Submit(_, input) => {
                let block_size = self.script.cluster.engines[0].core.block_size;
                let changed = self.changes.iter().try_fold((**input).clone(), |input, change| change.input(input));
                changed.map(|mut input| {
                    if let Input::Client(Event::Submit(request)) | Input::Engine(_, Event::Submit(request)) = &mut input
                    {
                        request.hash_prompt(block_size);
                    }
                    input
                })
            }
            What::Fixed(input) | What::Stop(input) | What::Follows(input) => Some((**input).clone()),
            What::Step { engine, odd: Some(result), .. } => {
                Some(Input::Engine(*engine, Event::StepFinished((**result).clone())))
            }
            What::Step { engine, step, odd: None } => {
                let worker = &self.workers[engine.index()];
                let front = worker.steps.front().filter(|(sent, _)| sent.id == *step);
                let (sent, _) = front.ok_or(RerunError::Damaged)?;
                Some(Input::Engine(*engine, Event::StepFinished(self.answer(sent))))
            }
        })
    }

    /// Notes which request of the script an entry submits.
    fn open(&mut self, what: &What) {
        if let What::Submit(at, _) = what {
            let served = &self.script.requests[*at];
            self.open.insert(served.id, *at);
            self.generated[*at] = served.given;
        }
    }

    /// Waits no longer for a request that does not come.
    fn leave_out(&mut self, what: &What) {
        if let What::Submit(at, _) = what {
            self.awaited.remove(at);
        }
    }

    /// Keeps the books of what workers owe.
    fn hear(&mut self, input: &Input) {
        let Input::Engine(engine, event) = input else {
            if let Input::Retire(engine) = input {
                self.workers[engine.index()].lose(self.now_ns);
            }
            return;
        };
        let worker = &mut self.workers[engine.index()];
        match event {
            Event::StepFinished(result) => {
                if let Some((step, _)) = worker.steps.pop_front_if(|(step, _)| step.id == result.step) {
                    self.cluster.recycle(*engine, step);
                    worker.ended_ns = self.now_ns;
                }
            }
            Event::TransferFinished(id) | Event::TransferFailed(id) | Event::TransferInterrupted(id) => {
                worker.copies.remove(id);
            }
            Event::TransferPartial { transfer, .. } => {
                worker.copies.remove(transfer);
            }
            Event::LookupEnded { lookup, .. } => {
                worker.lookups.remove(lookup);
            }
            Event::WorkerJoined | Event::WorkerLost | Event::WorkerTaken => worker.lose(self.now_ns),
            Event::WorkerResumed => worker.steps.clear(),
            _ => {}
        }
    }

    /// Delivers whatever is due next. Returns `false` if nothing is.
    fn go_on(&mut self) -> Result<bool, RerunError> {
        while matches!(
            self.script.entries.get(self.at),
            Some(Entry { what: What::Follows(_) | What::Step { .. } | What::Stop(_), .. })
        ) {
            self.at += 1;
        }
        let entry_ns = self.script.entries.get(self.at).map(|entry| entry.at_ns);
        let due_ns = self.queue.peek().map(|Reverse((at_ns, ..))| *at_ns);
        let next_ns = entry_ns.into_iter().chain(due_ns).min();
        if let Some(deadline_ns) = self.cluster.next_deadline_ns()
            && next_ns.is_none_or(|next_ns| deadline_ns < next_ns)
        {
            self.deliver(deadline_ns, Input::Client(Event::Tick))?;
            return Ok(true);
        }
        let Some(next_ns) = next_ns else { return Ok(false) };
        if due_ns == Some(next_ns) {
            let Reverse((at_ns, _, engine, life, due)) = self.queue.pop().expect("it was there");
            self.end(at_ns, EngineId(engine), life, due)?;
            return Ok(true);
        }
        let entry = &self.script.entries[self.at];
        self.at += 1;
        match self.entry_input(entry)? {
            Some(input) => {
                self.open(&entry.what);
                self.now_ns = self.now_ns.max(entry.at_ns);
                self.hear(&input);
                self.deliver(entry.at_ns, input)?;
            }
            None => self.leave_out(&entry.what),
        }
        Ok(true)
    }

    fn end(&mut self, at_ns: u64, engine: EngineId, life: u32, due: Due) -> Result<(), RerunError> {
        let worker = &mut self.workers[engine.index()];
        if worker.lives != life {
            return Ok(());
        }
        let event = match due {
            Due::Step(id) => {
                let Some((step, _)) = worker.steps.pop_front_if(|(step, _)| step.id == id) else { return Ok(()) };
                if !step.scored.is_empty() {
                    return Err(RerunError::Scores);
                }
                let result = self.answer(&step);
                self.cluster.recycle(engine, step);
                Event::StepFinished(result)
            }
            Due::Copy(id) => match worker.copies.remove(&id) {
                Some(_) => Event::TransferFinished(id),
                None => return Ok(()),
            },
            Due::Lookup(id, found) => match worker.lookups.remove(&id) {
                Some(_) => Event::LookupEnded { lookup: id, found },
                None => return Ok(()),
            },
        };
        self.deliver(at_ns, Input::Engine(engine, event))
    }

    fn deliver(&mut self, at_ns: u64, input: Input) -> Result<(), RerunError> {
        self.now_ns = self.now_ns.max(at_ns);
        self.cluster.handle(self.now_ns, input, &mut self.outputs);
        self.take_outputs();
        self.deliver_stops();
        match self.found.lacks_fit {
            true => Err(RerunError::TooFewSteps { found: self.script.times.n_steps() }),
            false => Ok(()),
        }
    }

    fn deliver_stops(&mut self) {
        while let Some(id) = self.stops.pop() {
            self.cluster.handle(self.now_ns, Input::Client(Event::Stop(id)), &mut self.outputs);
            self.take_outputs();
        }
    }

    fn take_outputs(&mut self) {
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Engine(engine, Action::RunStep(step)) if self.follows => {
                    self.workers[engine.index()].steps.push_back((step, self.now_ns));
                }
                Output::Engine(engine, Action::RunStep(step)) => self.owe_step(engine.index(), step, self.now_ns),
                Output::Engine(engine, Action::Transfer(copy)) if self.follows => {
                    self.workers[engine.index()].copies.insert(copy.id, (copy, self.now_ns));
                }
                Output::Engine(engine, Action::Transfer(copy)) => self.owe_copy(engine.index(), copy, self.now_ns),
                Output::Engine(engine, Action::Lookup(lookup)) if self.follows => {
                    self.workers[engine.index()].lookups.insert(lookup.id, (lookup, self.now_ns));
                }
                Output::Engine(engine, Action::Lookup(lookup)) => {
                    self.owe_lookup(engine.index(), lookup, self.now_ns);
                }
                Output::Engine(engine, Action::ResetWorker) => self.workers[engine.index()].lose(self.now_ns),
                Output::Engine(_, action) | Output::Cluster(action) => self.tell_client(action),
                _ => {}
            }
        }
        self.outputs = outputs;
    }

    fn tell_client(&mut self, action: Action) {
        match action {
            Action::Token { request, .. } => {
                let Some(at) = self.open.get(&request).copied() else { return };
                let (ended, served) = (&mut self.found.requests[at], &self.script.requests[at]);
                ended.first_token_ns.get_or_insert(self.now_ns);
                self.generated[at] += 1;
                if !self.follows && served.stop_at == Some(self.generated[at] as usize) {
                    self.stops.push(request);
                }
            }
            Action::Finish { request, reason, usage } => {
                let Some(at) = self.open.remove(&request) else { return };
                let ended = &mut self.found.requests[at];
                ended.end = Some((self.now_ns, reason));
                ended.cached_tokens = usage.cached_tokens;
                self.awaited.remove(&at);
            }
            Action::Refuse { request, refusal } if refusal != trunkline_core::Refusal::DuplicateId => {
                let Some(at) = self.open.remove(&request) else { return };
                self.found.requests[at].end = Some((self.now_ns, FinishReason::Error));
                self.awaited.remove(&at);
            }
            _ => {}
        }
    }

    fn owe_step(&mut self, engine: usize, step: Box<Step>, sent_ns: u64) {
        let (times, shape) = (&self.script.times, StepShape::of(&step));
        let recorded =
            times.recorded_step_ns(step_mark(engine as u32, &step)).filter(|_| self.timing == Timing::Recorded);
        let sources = &mut self.found.sources;
        let ns = match recorded {
            Some(ns) => {
                sources.recorded_steps += 1;
                ns
            }
            None => {
                sources.fitted_steps += 1;
                times.fitted_step_ns(&shape).unwrap_or_else(|| {
                    self.found.lacks_fit = true;
                    1
                })
            }
        };
        let worker = &mut self.workers[engine];
        worker.ended_ns = (worker.ended_ns.max(sent_ns) + ns).max(self.now_ns);
        let (end_ns, life, id) = (worker.ended_ns, worker.lives, step.id);
        worker.steps.push_back((step, sent_ns));
        self.schedule(end_ns, engine, life, Due::Step(id));
    }

    fn owe_copy(&mut self, engine: usize, copy: Box<Transfer>, begun_ns: u64) {
        let (times, direction) = (&self.script.times, link::direction(copy.from, copy.to));
        let block_ns = self.cluster.core(EngineId(engine as u32)).config().swap_block_ns;
        let recorded = times.recorded_copy_ns(copy_mark(engine as u32, &copy));
        let worker = &mut self.workers[engine];
        let busy_ns = worker.busy_ns.entry(direction).or_default();
        let end_ns = match recorded {
            Some(ns) => begun_ns + ns,
            None => (*busy_ns).max(begun_ns) + times.copy_ns(direction, copy.pairs.len() as u64, block_ns),
        };
        let end_ns = end_ns.max(self.now_ns);
        *busy_ns = end_ns.max(*busy_ns);
        let (id, life) = (copy.id, worker.lives);
        worker.copies.insert(id, (copy, begun_ns));
        self.schedule(end_ns, engine, life, Due::Copy(id));
    }

    fn owe_lookup(&mut self, engine: usize, lookup: Box<Lookup>, begun_ns: u64) {
        let (found, ns) = self.script.times.answer(&lookup);
        let worker = &mut self.workers[engine];
        let (id, life) = (lookup.id, worker.lives);
        worker.lookups.insert(id, (lookup, begun_ns));
        self.schedule((begun_ns + ns).max(self.now_ns), engine, life, Due::Lookup(id, found));
    }

    fn schedule(&mut self, at_ns: u64, engine: usize, life: u32, due: Due) {
        self.orders += 1;
        self.queue.push(Reverse((at_ns, self.orders, engine as u32, life, due)));
    }

    /// Returns the answer to a step: the recorded texts.
    fn answer(&self, step: &Step) -> StepResult {
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        for seq in &step.seqs {
            if seq.sample {
                let served = self.open.get(&seq.request).map(|at| &self.script.requests[*at]);
                let more = accepted_drafts(self.script.acceptance, seq.request.0, seq.n_generated, seq.n_drafts);
                let token = |n: u32| -> Token {
                    served.map_or(0, |served| served.output.get(n as usize).copied().unwrap_or(served.filler))
                };
                result.tokens.extend((seq.n_generated..=seq.n_generated + more).map(token));
            }
            result.ends.push(result.tokens.len() as u32);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::Settings;
    use crate::fleet::record;
    use trunkline_sim_perf::{hardware, model};
    use trunkline_sim_report::outcome::Outcome;
    use trunkline_sim_workload::trace::{Content, Trace, TraceRequest, formats};

    #[test]
    fn a_stop_that_was_to_come_at_the_first_difference_comes() {
        let request = |at: u32| TraceRequest {
            arrival_ns: u64::from(at) * 200_000_000,
            input_tokens: 60,
            output_tokens: 100,
            content: Content::Unique(at),
            ..TraceRequest::default()
        };
        let trace = Trace { format: formats::SYNTHETIC, requests: (0..40).map(request).collect() };
        let settings = Settings::new(*hardware::by_name("h100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording.jsonl");
        let cost = settings.cost_model().unwrap();
        let mut nobody = |_: &Outcome| ControlFlow::Continue(());
        record(&mut trace.source(), &settings, &*cost, &mut nobody, &path).unwrap();
        let mut script = Script::load(&path, &mut |_| {}).unwrap();
        // A stop string in the first token of each, whose stop the recording does not have.
        script.requests.iter_mut().for_each(|served| served.stop_at = Some(1));
        let left_out = script.requests[20].clone();
        let run = script.rerun(&[Change::Without(left_out.id)], Timing::Recorded, Until::End).unwrap();
        let at_ns = run.first_difference.unwrap().at_ns;
        assert_eq!(at_ns, left_out.at_ns);
        let is_under_way = |served: &&crate::rerun::Served| {
            served.first_token_ns.is_some_and(|ns| ns < at_ns) && served.end.unwrap().0 > at_ns
        };
        let stopped: Vec<_> = script.requests.iter().filter(is_under_way).collect();
        assert!(!stopped.is_empty());
        for (served, ended) in script.requests.iter().zip(&run.requests).filter(|(served, _)| is_under_way(served)) {
            assert_eq!(ended.end, Some((at_ns, FinishReason::Stop)), "request {}", served.id);
        }
    }
}
