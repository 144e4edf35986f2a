//! Generator of the requests of a workload.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use super::arrivals::Beginnings;
use super::distribution::{Distribution, Sampler, Samples};
use super::history::{INSTRUCTION_TOKENS, PRIORITY_BEHIND, Step, compact, recent_tokens};
use super::horizon::Horizon;
use super::spec::{CompactionSpec, PopulationSpec, RetentionSpec, Spec, WorkloadError, WorkloadFault, label};
use super::{SAMPLES_MAX, TURNS_MAX};
use crate::rng_stream::RngStream;
use crate::trace::formats::SYNTHETIC;
use crate::trace::{
    Content, Format, GENERATED_FROM, Outcome, Piece, Source, Terms, TraceError, TraceFault, TraceReader, TraceRequest,
};

/// Random streams of a population: arrivals first, then one per session.
const PART_ARRIVALS: u64 = 0;
const PART_PROMPTS: u64 = 1;
const PART_SESSIONS: u64 = 2;
/// A system prompt is not cut below this fraction of the context, and a first answer not below this fraction of the rest.
const SHARE_KEPT: u32 = 4;

/// Population with its distributions loaded.
struct Population {
    /// Starts of the sessions not drawn yet; `None` after the last one.
    beginnings: Option<Beginnings>,
    /// Next sessions with their starts, nanoseconds: at least one unless no further session begins.
    ahead: VecDeque<(u64, Session)>,
    n_sessions: u64,
    prompts: Prompts,
    input: Sampler,
    output: Sampler,
    turns: Option<(Sampler, Sampler)>,
    agent: Option<Agent>,
    compaction: Option<CompactionSpec>,
    terms: Terms,
    retention: RetentionSpec,
}

/// Calls of an agent, their tokens, and the time and output of tools.
struct Agent {
    calls: Sampler,
    call_tokens: Sampler,
    tool: Sampler,
    tool_tokens: Sampler,
}

/// System prompts, most popular first.
#[derive(Default)]
struct Prompts {
    pieces: Vec<Piece>,
    /// Cumulative weights by popularity.
    weights: Vec<f64>,
}

impl Prompts {
    fn draw(&self, rng: &mut RngStream) -> Option<Piece> {
        let at = rng.unit() * self.weights.last()?;
        let drawn = self.weights.partition_point(|sum| *sum <= at).min(self.pieces.len() - 1);
        Some(self.pieces[drawn])
    }
}

/// Session and its conversation up to a request, which is scheduled or in flight.
struct Session {
    population: usize,
    rng: RngStream,
    said: Vec<Piece>,
    said_tokens: u32,
    /// Tokens of the system prompt.
    system_tokens: u32,
    /// Turns after the one of the next message.
    turns_left: u32,
    /// Calls of the turn of the next message after that message.
    calls_left: u32,
    /// Length of the output, tokens.
    output_tokens: u32,
    /// Message after the output; `None` if the request is the last.
    next: Option<Message>,
    /// Kind of the request.
    step: Step,
    /// Pieces before the recent turns: system prompt and summary.
    fixed: usize,
}

/// Next message of a session. Drawn ahead: the time of a request is known when the answer before it ends.
#[derive(Clone, Copy)]
struct Message {
    /// Time from the end of the answer to the message, nanoseconds.
    reaction_ns: u64,
    /// Length of the message, tokens.
    input_tokens: u32,
    /// Length of the answer to the message, tokens.
    output_tokens: u32,
}

impl Session {
    /// Returns the time from the end of the answer to the next request; `u64::MAX` if none follows.
    fn reaction_ns(&self, compaction: Option<&CompactionSpec>, max_context: u32) -> u64 {
        match self.next {
            None => u64::MAX,
            Some(_) if self.step == Step::Summary => 0,
            Some(_) if compaction.is_some_and(|spec| self.asks_for_summary(spec, max_context)) => 0,
            Some(message) => message.reaction_ns,
        }
    }

    /// Returns `true` if the answer takes the recent turns above the high watermark.
    fn is_long(&self, spec: &CompactionSpec) -> bool {
        let recent = recent_tokens(&self.said, self.fixed) + u64::from(self.output_tokens);
        self.step == Step::Turn && recent > spec.high.into()
    }

    /// Returns `true` if a request for a summary follows the answer.
    fn asks_for_summary(&self, spec: &CompactionSpec, max_context: u32) -> bool {
        let tokens = [self.said_tokens, self.output_tokens, INSTRUCTION_TOKENS, spec.summary];
        let fits = tokens.into_iter().map(u64::from).sum::<u64>() <= max_context.into();
        spec.summary > 0 && fits && self.is_long(spec)
    }

    /// Notes new contents, all of them in the prompt of the next request.
    fn count_said(&mut self) {
        let tokens = self.said.iter().map(|piece| piece.tokens).fold(0, u32::saturating_add);
        self.said_tokens = tokens;
    }

    /// Returns the number of pieces of the system prompt.
    fn system_pieces(&self) -> usize {
        usize::from(self.system_tokens > 0)
    }
}

/// Closed source of the requests of a workload. Times count from the start of the first session.
pub struct Generator {
    seed: u64,
    requests: u64,
    duration_ns: u64,
    max_context: u32,
    first_ns: u64,
    populations: Vec<Population>,
    /// Sessions with a scheduled request, by time, then by scheduling.
    due: BTreeMap<(u64, u64), Session>,
    order: u64,
    /// Sessions waiting for an answer, by request number.
    waiting: HashMap<u64, Session>,
    /// Reaction times and request numbers of the sessions waiting for an answer.
    reactions: BTreeSet<(u64, u64)>,
    horizon: Horizon,
    n_given: u64,
    /// Number of the next new content.
    next_content: u32,
}

impl Generator {
    /// Prepares a workload and reads the traces of its empirical distributions.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`] if the spec is invalid or a trace cannot be read.
    pub fn new(spec: &Spec) -> Result<Self, WorkloadError> {
        let fail = |fault| WorkloadError { path: spec.folder.clone(), line: 0, fault };
        spec.check().map_err(fail)?;
        let mut generator = Self {
            seed: spec.seed,
            requests: spec.requests,
            duration_ns: (spec.duration_s * 1e9) as u64,
            max_context: spec.max_context_tokens,
            first_ns: 0,
            populations: Vec::new(),
            due: BTreeMap::new(),
            order: 0,
            waiting: HashMap::new(),
            reactions: BTreeSet::new(),
            horizon: Horizon::default(),
            n_given: 0,
            next_content: 0,
        };
        let mut library = Library { folder: &spec.folder, loaded: HashMap::new() };
        for (number, population) in spec.population.iter().enumerate() {
            let prepared = generator.prepare(number, population, &mut library).map_err(|error| {
                fail(WorkloadFault::Samples { population: label(number, &population.name), error: Box::new(error) })
            })?;
            generator.populations.push(prepared);
            generator.draw_sessions(number, 1);
        }
        generator.first_ns = generator.next_beginning().map_or(0, |(at_ns, _)| at_ns);
        Ok(generator)
    }

    fn prepare(
        &mut self,
        number: usize,
        spec: &PopulationSpec,
        library: &mut Library<'_>,
    ) -> Result<Population, TraceError> {
        let rng = |part| RngStream::new(self.seed, number as u64, part);
        let beginnings = Beginnings::new(spec.arrivals, rng(PART_ARRIVALS));
        let mut prompts = Prompts::default();
        if let Some(shared) = &spec.system_prompts {
            let tokens = library.sampler(&shared.tokens)?;
            let mut rng = rng(PART_PROMPTS);
            let mut sum = 0.0;
            for rank in 1..=shared.count {
                let tokens = tokens.count(&mut rng, self.max_context);
                prompts.pieces.push(Piece { content: self.next_content, tokens });
                self.next_content += 1;
                sum += libm::pow(f64::from(rank), -shared.zipf);
                prompts.weights.push(sum);
            }
        }
        let turns = match &spec.session {
            Some(session) => Some((library.sampler(&session.turns)?, library.sampler(&session.think_s)?)),
            None => None,
        };
        let agent = match &spec.agent {
            Some(agent) => Some(Agent {
                calls: library.sampler(&agent.calls)?,
                call_tokens: library.sampler(&agent.call_tokens)?,
                tool: library.sampler(&agent.tool_s)?,
                tool_tokens: library.sampler(&agent.tool_output_tokens)?,
            }),
            None => None,
        };
        let (input, output) = (library.sampler(&spec.input_tokens)?, library.sampler(&spec.output_tokens)?);
        let terms = spec.terms();
        Ok(Population {
            beginnings: Some(beginnings),
            ahead: VecDeque::new(),
            n_sessions: 0,
            prompts,
            input,
            output,
            turns,
            agent,
            compaction: spec.session.as_ref().and_then(|session| session.compaction),
            terms,
            retention: spec.retention,
        })
    }

    /// Returns the number of sessions with a request scheduled or in flight that is not their last.
    pub fn sessions_under_way(&self) -> usize {
        self.due.len() + self.waiting.len()
    }

    /// Returns the start and the population of the next session.
    fn next_beginning(&self) -> Option<(u64, usize)> {
        let beginnings = self.populations.iter().enumerate();
        beginnings.filter_map(|(number, population)| Some((population.ahead.front()?.0, number))).min()
    }

    fn content(&mut self) -> u32 {
        let content = self.next_content;
        self.next_content += 1;
        content
    }

    /// Draws sessions of a population until `n` are ahead, or no further one begins.
    fn draw_sessions(&mut self, number: usize, n: usize) {
        let population = &mut self.populations[number];
        while population.ahead.len() < n
            && let Some(beginnings) = &mut population.beginnings
        {
            let Some(at_ns) = next_ns(beginnings, self.duration_ns) else {
                population.beginnings = None;
                return;
            };
            let rng = RngStream::new(self.seed, number as u64, PART_SESSIONS + population.n_sessions);
            population.n_sessions += 1;
            let session = population.session(number, rng, self.max_context);
            population.ahead.push_back((at_ns, session));
        }
    }

    /// Starts the next session of a population with its first question.
    fn begin(&mut self, number: usize) -> Option<(u64, Session)> {
        let (at_ns, mut session) = self.populations[number].ahead.pop_front()?;
        self.draw_sessions(number, 1);
        let content = self.content();
        session.said.last_mut()?.content = content;
        Some((at_ns, session))
    }

    /// Returns the request of a session; the session waits for the answer unless this request is its last.
    fn ask(&mut self, at_ns: u64, session: Session) -> TraceRequest {
        let number = self.n_given;
        self.n_given += 1;
        let reaction_ns = self.reaction_ns(&session);
        self.horizon.remove(at_ns, reaction_ns);
        let population = &self.populations[session.population];
        let mut terms = population.terms;
        if session.step != Step::Turn {
            terms.priority = terms.priority.saturating_add(PRIORITY_BEHIND);
        }
        let request = TraceRequest {
            arrival_ns: at_ns - self.first_ns,
            input_tokens: session.said_tokens,
            output_tokens: session.output_tokens,
            content: Content::Pieces(session.said.clone().into()),
            output: None,
            terms,
            retention: population.retention.hints(session.system_tokens, session.said_tokens),
            turn: None,
        };
        if session.next.is_some() && self.n_given < self.requests {
            self.reactions.insert((reaction_ns, number));
            self.waiting.insert(number, session);
        }
        request
    }

    /// Returns the time from the end of a session's answer to its next request.
    fn reaction_ns(&self, session: &Session) -> u64 {
        session.reaction_ns(self.populations[session.population].compaction.as_ref(), self.max_context)
    }

    /// Continues a session after its answer, if the context has room.
    fn continue_session(&mut self, mut session: Session, number: u64, now_ns: u64) {
        let Some(message) = session.next else { return };
        let answer = Piece { content: GENERATED_FROM | number as u32, tokens: session.output_tokens };
        let compaction = self.populations[session.population].compaction;
        let mut reaction_ns = 0;
        match (session.step, compaction) {
            (Step::Turn, Some(spec)) if session.asks_for_summary(&spec, self.max_context) => {
                let instruction = Piece { content: self.content(), tokens: INSTRUCTION_TOKENS };
                session.said.extend([answer, instruction]);
                (session.step, session.output_tokens) = (Step::Summary, spec.summary);
            }
            (Step::Summary, Some(spec)) => {
                session.said.pop();
                let pieces = (session.system_pieces(), session.fixed);
                session.fixed = compact(&mut session.said, pieces, Some(answer), &spec);
                (session.step, session.output_tokens) = (Step::Ahead, 1);
            }
            (step, _) => {
                let is_long = compaction.filter(|spec| session.is_long(spec));
                // The token behind the new context is dropped.
                session.said.extend((step == Step::Turn).then_some(answer));
                if let Some(spec) = is_long {
                    let pieces = (session.system_pieces(), session.fixed);
                    session.fixed = compact(&mut session.said, pieces, None, &spec);
                }
                if !self.next_turn(&mut session, message) {
                    return;
                }
                reaction_ns = message.reaction_ns;
            }
        }
        session.count_said();
        self.order += 1;
        let at_ns = now_ns.saturating_add(reaction_ns);
        let reaction_ns = self.reaction_ns(&session);
        self.horizon.add(at_ns, reaction_ns);
        self.due.insert((at_ns, self.order), session);
    }

    /// Adds the next message to a session; returns `false` if the context has no room for the message and its answer.
    fn next_turn(&mut self, session: &mut Session, message: Message) -> bool {
        let said_tokens = recent_tokens(&session.said, 0) + u64::from(message.input_tokens);
        if said_tokens + u64::from(message.output_tokens) > u64::from(self.max_context) {
            return false;
        }
        (session.step, session.output_tokens) = (Step::Turn, message.output_tokens);
        session.said.push(Piece { content: self.content(), tokens: message.input_tokens });
        self.populations[session.population].draw_next(session);
        true
    }

    /// Brings the horizon up to `n` scheduled requests.
    fn look_ahead(&mut self, n: usize) {
        (0..self.populations.len()).for_each(|number| self.draw_sessions(number, n));
        let ahead = self.populations.iter().flat_map(|population| population.ahead.iter().take(n));
        let ahead = ahead.map(|(at_ns, session)| (*at_ns, self.reaction_ns(session)));
        let due = self.due.iter().take(n).map(|((at_ns, _), session)| (*at_ns, self.reaction_ns(session)));
        let known: Vec<_> = due.chain(ahead).collect();
        self.horizon.fill(known.into_iter(), n);
    }
}

impl Population {
    /// Draws the tokens of a question, of the answer to its first call, and the calls of the turn.
    fn question(&self, rng: &mut RngStream) -> (u32, u32, u32) {
        let (input, output) = Sampler::pair(&self.input, &self.output, rng);
        let Some(agent) = &self.agent else { return (input, output, 1) };
        let calls = agent.calls.count(rng, TURNS_MAX);
        let output = if calls > 1 { agent.call_tokens.tokens(rng) } else { output };
        (input, output, calls)
    }

    /// Draws a session with its first question, whose content is not numbered yet.
    fn session(&self, population: usize, mut rng: RngStream, max_context: u32) -> Session {
        let mut said: Vec<_> = self.prompts.draw(&mut rng).into_iter().collect();
        let turns = self.turns.as_ref().map_or(1, |(turns, _)| turns.count(&mut rng, TURNS_MAX));
        let (input, output, calls) = self.question(&mut rng);
        let drawn = [said.first().map_or(0, |piece| piece.tokens), input, output];
        let [system_tokens, input_tokens, output_tokens] = fit(drawn, max_context);
        said.iter_mut().for_each(|prompt| prompt.tokens = system_tokens);
        said.push(Piece { content: 0, tokens: input_tokens });
        let mut session = Session {
            population,
            rng,
            said,
            said_tokens: system_tokens + input_tokens,
            system_tokens,
            turns_left: turns - 1,
            calls_left: calls - 1,
            output_tokens,
            next: None,
            step: Step::Turn,
            fixed: 0,
        };
        session.fixed = session.system_pieces();
        self.draw_next(&mut session);
        session
    }

    /// Draws the next message of a session, if one follows.
    fn draw_next(&self, session: &mut Session) {
        let follows = session.turns_left + session.calls_left > 0;
        session.next = follows.then(|| self.next_message(session));
    }

    /// Draws the next message: a tool's output or a user's next question.
    fn next_message(&self, session: &mut Session) -> Message {
        let rng = &mut session.rng;
        if session.calls_left > 0
            && let Some(agent) = &self.agent
        {
            session.calls_left -= 1;
            let last = session.calls_left == 0;
            let output_tokens = if last { self.output.tokens(rng) } else { agent.call_tokens.tokens(rng) };
            let (reaction_ns, input_tokens) = (agent.tool.time_ns(rng), agent.tool_tokens.tokens(rng));
            return Message { reaction_ns, input_tokens, output_tokens };
        }
        session.turns_left -= 1;
        let reaction_ns = self.turns.as_ref().map_or(0, |(_, think)| think.time_ns(rng));
        let (input_tokens, output_tokens, calls) = self.question(rng);
        session.calls_left = calls - 1;
        Message { reaction_ns, input_tokens, output_tokens }
    }
}

/// Returns a system prompt, a question and an answer as drawn if the context has room for all three. Otherwise the system prompt gives way first,
/// down to a quarter of the context, then the answer, down to a quarter of the rest, and then the question.
fn fit([system, input, output]: [u32; 3], max_context: u32) -> [u32; 3] {
    let room_left = max_context.saturating_sub(input.saturating_add(output));
    let system = system.min(room_left.max(max_context / SHARE_KEPT));
    let room = max_context - system;
    let output = output.min(room.saturating_sub(input).max(room / SHARE_KEPT));
    [system, input.min(room - output), output]
}

/// Returns the start of a population's next session, if before the end.
fn next_ns(beginnings: &mut Beginnings, duration_ns: u64) -> Option<u64> {
    beginnings.next_s().map(|at_s| (at_s * 1e9) as u64).filter(|at_ns| *at_ns <= duration_ns)
}

impl Source for Generator {
    fn format(&self) -> Format {
        SYNTHETIC
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        if self.n_given == self.requests {
            return Ok(None);
        }
        let due_ns = self.due.first_key_value().map(|((at_ns, _), _)| *at_ns);
        let begins_ns = self.next_beginning().map(|(at_ns, _)| at_ns);
        Ok(due_ns.into_iter().chain(begins_ns).min().map(|at_ns| at_ns - self.first_ns))
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        if self.n_given == self.requests {
            return Ok(None);
        }
        let beginning = self.next_beginning();
        let due_ns = self.due.first_key_value().map(|((at_ns, _), _)| *at_ns);
        let is_due = due_ns.is_some_and(|due_ns| beginning.is_none_or(|(at_ns, _)| due_ns <= at_ns));
        let next = match beginning {
            _ if is_due => self.due.pop_first().map(|((at_ns, _), session)| (at_ns, session)),
            Some((_, population)) => self.begin(population),
            None => None,
        };
        Ok(next.map(|(at_ns, session)| self.ask(at_ns, session)))
    }

    fn ended(&mut self, number: u64, now_ns: u64, outcome: Outcome) {
        let Some(session) = self.waiting.remove(&number) else { return };
        self.reactions.remove(&(self.reaction_ns(&session), number));
        if outcome == Outcome::Completed {
            self.continue_session(session, number, now_ns.saturating_add(self.first_ns));
        }
    }

    fn earliest_arrival_ns(&mut self, n: usize, end_ns: u64) -> u64 {
        if self.n_given == self.requests {
            return u64::MAX;
        }
        let shortest_ns = self.reactions.first().map_or(u64::MAX, |(reaction_ns, _)| *reaction_ns);
        if let Some(lacking) = self.horizon.lacks(n) {
            self.look_ahead(lacking);
        }
        end_ns.saturating_add(shortest_ns).min(self.horizon.at_ns(n).saturating_sub(self.first_ns))
    }

    fn waits_for_ends(&self) -> bool {
        self.populations.iter().any(|population| population.turns.is_some() || population.agent.is_some())
    }

    fn requests_hint(&self) -> Option<u64> {
        Some(self.requests)
    }
}

/// Lengths of traces for empirical distributions, each trace read once.
struct Library<'a> {
    folder: &'a Path,
    loaded: HashMap<PathBuf, Samples>,
}

impl Library<'_> {
    fn sampler(&mut self, distribution: &Distribution) -> Result<Sampler, TraceError> {
        let Distribution::Empirical { trace, .. } = distribution else {
            return Ok(Sampler::new(distribution.clone(), None));
        };
        if !self.loaded.contains_key(trace) {
            let path = self.folder.join(trace);
            let requests = TraceReader::open(&path, None)?.take(SAMPLES_MAX);
            let lengths = requests.map(|request| request.map(|request| (request.input_tokens, request.output_tokens)));
            let lengths: Vec<_> = lengths.collect::<Result<_, _>>()?;
            if lengths.is_empty() {
                return Err(TraceError { path, line: 0, fault: TraceFault::Empty });
            }
            self.loaded.insert(trace.clone(), Samples { lengths: lengths.into() });
        }
        Ok(Sampler::new(distribution.clone(), self.loaded.get(trace).cloned()))
    }
}
