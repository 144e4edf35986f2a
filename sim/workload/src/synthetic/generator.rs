//! Generator of the requests of a workload.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use super::arrivals::Beginnings;
use super::distribution::{Distribution, Sampler, Samples};
use super::rng_stream::RngStream;
use super::spec::{PopulationSpec, RetentionSpec, Spec, WorkloadError, WorkloadFault, label};
use super::{SAMPLES_MAX, TURNS_MAX};
use crate::trace::{
    Content, Format, GENERATED_FROM, Outcome, Piece, Source, Terms, TraceError, TraceFault, TraceReader, TraceRequest,
};

/// Random streams of a population: arrivals first, then one per session.
const PART_ARRIVALS: u64 = 0;
const PART_PROMPTS: u64 = 1;
const PART_SESSIONS: u64 = 2;
/// A system prompt takes at most this fraction of the context, and a first answer this fraction of the rest.
const SHARE_AT_MOST: u32 = 4;

/// Population with its distributions loaded.
struct Population {
    beginnings: Beginnings,
    /// Start of the next session, nanoseconds.
    next_ns: Option<u64>,
    n_sessions: u64,
    prompts: Prompts,
    input: Sampler,
    output: Sampler,
    turns: Option<(Sampler, Sampler)>,
    agent: Option<Agent>,
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

/// Session and its conversation so far.
struct Session {
    population: usize,
    rng: RngStream,
    said: Vec<Piece>,
    said_tokens: u32,
    /// Tokens of the system prompt.
    system_tokens: u32,
    /// Turns after the current one.
    turns_left: u32,
    /// Calls of the current turn after the current one.
    calls_left: u32,
    /// Length of the next output, tokens.
    output_tokens: u32,
}

/// Session with a scheduled request, ordered by time, then by scheduling.
struct Due {
    at_ns: u64,
    order: u64,
    session: Session,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.order) == (other.at_ns, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.order).cmp(&(other.at_ns, other.order))
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
    due: BinaryHeap<Reverse<Due>>,
    order: u64,
    /// Sessions waiting for an answer, by request number.
    waiting: HashMap<u64, Session>,
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
            due: BinaryHeap::new(),
            order: 0,
            waiting: HashMap::new(),
            n_given: 0,
            next_content: 0,
        };
        let mut library = Library { folder: &spec.folder, loaded: HashMap::new() };
        for (number, population) in spec.population.iter().enumerate() {
            let prepared = generator.prepare(number, population, &mut library).map_err(|error| {
                fail(WorkloadFault::Samples { population: label(number, &population.name), error: Box::new(error) })
            })?;
            generator.populations.push(prepared);
        }
        generator.first_ns = generator.populations.iter().filter_map(|it| it.next_ns).min().unwrap_or(0);
        Ok(generator)
    }

    fn prepare(
        &mut self,
        number: usize,
        spec: &PopulationSpec,
        library: &mut Library<'_>,
    ) -> Result<Population, TraceError> {
        let rng = |part| RngStream::new(self.seed, number as u64, part);
        let mut beginnings = Beginnings::new(spec.arrivals, rng(PART_ARRIVALS));
        let next_ns = next_ns(&mut beginnings, self.duration_ns);
        let mut prompts = Prompts::default();
        if let Some(shared) = &spec.system_prompts {
            let tokens = library.sampler(&shared.tokens)?;
            let mut rng = rng(PART_PROMPTS);
            let mut sum = 0.0;
            for rank in 1..=shared.count {
                let tokens = tokens.count(&mut rng, self.max_context / SHARE_AT_MOST);
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
            beginnings,
            next_ns,
            n_sessions: 0,
            prompts,
            input,
            output,
            turns,
            agent,
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
        beginnings.filter_map(|(number, population)| Some((population.next_ns?, number))).min()
    }

    fn content(&mut self) -> u32 {
        let content = self.next_content;
        self.next_content += 1;
        content
    }

    /// Starts a session of a population with its first question.
    fn begin(&mut self, number: usize) -> Session {
        let content = self.content();
        let population = &mut self.populations[number];
        let mut rng = RngStream::new(self.seed, number as u64, PART_SESSIONS + population.n_sessions);
        population.n_sessions += 1;
        population.next_ns = next_ns(&mut population.beginnings, self.duration_ns);

        let mut said: Vec<_> = population.prompts.draw(&mut rng).into_iter().collect();
        let system_tokens = said.first().map_or(0, |piece| piece.tokens);
        let turns = population.turns.as_ref().map_or(1, |(turns, _)| turns.count(&mut rng, TURNS_MAX));
        let (input, output, calls) = population.question(&mut rng);
        let room = self.max_context - system_tokens;
        let output_tokens = output.min(room / SHARE_AT_MOST);
        let input_tokens = input.min(room - output_tokens);
        said.push(Piece { content, tokens: input_tokens });
        let said_tokens = system_tokens + input_tokens;
        Session {
            population: number,
            rng,
            said,
            said_tokens,
            system_tokens,
            turns_left: turns - 1,
            calls_left: calls - 1,
            output_tokens,
        }
    }

    /// Returns the request of a session; the session waits for the answer unless this request is its last.
    fn ask(&mut self, at_ns: u64, session: Session) -> TraceRequest {
        let number = self.n_given;
        self.n_given += 1;
        let population = &self.populations[session.population];
        let request = TraceRequest {
            arrival_ns: at_ns - self.first_ns,
            input_tokens: session.said_tokens,
            output_tokens: session.output_tokens,
            content: Content::Pieces(session.said.clone().into()),
            output: None,
            terms: population.terms,
            retention: population.retention.hints(session.system_tokens, session.said_tokens),
        };
        if session.turns_left + session.calls_left > 0 && self.n_given < self.requests {
            self.waiting.insert(number, session);
        }
        request
    }

    /// Continues a session after its answer, if the context has room.
    fn continue_session(&mut self, mut session: Session, number: u64, now_ns: u64) {
        let answer = Piece { content: GENERATED_FROM | number as u32, tokens: session.output_tokens };
        session.said.push(answer);
        let population = &self.populations[session.population];
        let (delay_ns, input_tokens) = population.next_message(&mut session);
        let said_tokens = u64::from(session.said_tokens) + u64::from(answer.tokens) + u64::from(input_tokens);
        if said_tokens + u64::from(session.output_tokens) > u64::from(self.max_context) {
            return;
        }
        session.said_tokens = said_tokens as u32;
        let content = self.content();
        session.said.push(Piece { content, tokens: input_tokens });
        self.order += 1;
        let at_ns = now_ns.saturating_add(delay_ns);
        self.due.push(Reverse(Due { at_ns, order: self.order, session }));
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

    /// Draws the delay and length of the next message: a tool's output or a user's next question.
    fn next_message(&self, session: &mut Session) -> (u64, u32) {
        let rng = &mut session.rng;
        if session.calls_left > 0
            && let Some(agent) = &self.agent
        {
            session.calls_left -= 1;
            let last = session.calls_left == 0;
            session.output_tokens = if last { self.output.tokens(rng) } else { agent.call_tokens.tokens(rng) };
            return (agent.tool.time_ns(rng), agent.tool_tokens.tokens(rng));
        }
        session.turns_left -= 1;
        let delay_ns = self.turns.as_ref().map_or(0, |(_, think)| think.time_ns(rng));
        let (input, output, calls) = self.question(rng);
        (session.output_tokens, session.calls_left) = (output, calls - 1);
        (delay_ns, input)
    }
}

/// Returns the start of a population's next session, if before the end.
fn next_ns(beginnings: &mut Beginnings, duration_ns: u64) -> Option<u64> {
    beginnings.next_s().map(|at_s| (at_s * 1e9) as u64).filter(|at_ns| *at_ns <= duration_ns)
}

impl Source for Generator {
    fn format(&self) -> Format {
        Format::Synthetic
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        if self.n_given == self.requests {
            return Ok(None);
        }
        let due_ns = self.due.peek().map(|Reverse(due)| due.at_ns);
        let begins_ns = self.next_beginning().map(|(at_ns, _)| at_ns);
        Ok(due_ns.into_iter().chain(begins_ns).min().map(|at_ns| at_ns - self.first_ns))
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        if self.n_given == self.requests {
            return Ok(None);
        }
        let beginning = self.next_beginning();
        let due = self.due.peek().map(|Reverse(due)| due.at_ns);
        match (due, beginning) {
            (Some(due_ns), beginning) if beginning.is_none_or(|(at_ns, _)| due_ns <= at_ns) => {
                let Reverse(Due { at_ns, session, .. }) = self.due.pop().expect("it was seen");
                Ok(Some(self.ask(at_ns, session)))
            }
            (_, Some((at_ns, population))) => {
                let session = self.begin(population);
                Ok(Some(self.ask(at_ns, session)))
            }
            (_, None) => Ok(None),
        }
    }

    fn ended(&mut self, number: u64, now_ns: u64, outcome: Outcome) {
        let Some(session) = self.waiting.remove(&number) else { return };
        if outcome == Outcome::Completed {
            self.continue_session(session, number, now_ns.saturating_add(self.first_ns));
        }
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
