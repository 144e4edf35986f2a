//! Least time added to all requests of an engine, the request itself among them.
//!
//! A request that is sent to an engine waits there and computes its prompt, delays the prompts behind, and makes the steps of the others longer: by its
//! prompt once, and by its context with each token. The cost is the sum of these delays in nanoseconds, for all who have them:
//!
//! ```text
//! cost = w * (wait + own + come) + n * own / 2 + decode + lost
//! ```
//!
//! * `own`: time to compute what the engine is believed not to cache of the prompt, tokens and pairs of attention;
//! * `wait`: the same for the prompts that are there without a first token ([`Load::prefill_tokens`], [`Load::prefill_pairs`]);
//! * `come`: requests still to come wait as well: `rate * own * (wait + own / 2) / (1 - rho)`, the value function of a queue (Hyytiä, *Lookahead actions
//!   in dispatching to parallel queues*, 2013), with the rate of arrivals at an engine, and the share of its time `rho` that their prompts take;
//! * `n * own / 2`: steps with the prompt are longer for the `n` requests there ([`STALL`]);
//! * `decode`: while the request and the others are together, each reads the context of all with each token: for the rest of the others' answers, by their
//!   age, but half an answer at least, as for answers whose rest their age says nothing about; and its own answer, which differs where engines do;
//! * `lost`: time to compute again what is pushed out of the cache there, as often as prompts were found somewhere;
//! * `w`: `ttft_percent / 100`, how much a second before the first token counts against a second of the answer. With 100 the mean of E2E is least, and
//!   tails of TTFT grow. The default of 400 says that a second of silence is as bad as four of a slower answer.
//!
//! The times come from steps: [`super::step_cost`] learns what a token, a pair, a sequence and a token read take on each kind of engine. The length of
//! answers and the rate of arrivals are learned as well. Prefixes are tracked by [`super::holders`]; engines are not asked.

use trunkline_core::names::spec::Param;

use super::holders::{Holders, Mark, Marks};
use super::step_cost::{Factors, StepCost};
use super::{EngineFacts, Incoming, LOAD_STALE, Load, Pick, Router, RouterContext};
use crate::step_work::StepWork;

pub(super) const NAME: &str = "added_time";

pub(super) const PARAMS: [Param; 2] = [
    Param {
        key: "ttft_percent",
        about: "weight of time before the first token against time after it",
        default: 400,
        min: 1,
        max: 1_000_000,
    },
    LOAD_STALE,
];

/// Tokens between the first marks of a prompt.
const MARK_TOKENS: usize = 128;
/// Length of an answer before one has ended, tokens: between those of Alpaca and ShareGPT in the paper on vLLM (58 and 338, SOSP 2023).
const ANSWER_START: f64 = 256.0;
/// Least weight of a value against those before.
const WEIGHT: f64 = 1.0 / 64.0;

/// Highest share of an engine's time that prompts count for: a queue that is never empty has no value function.
const RHO_MAX: f64 = 0.95;
/// Weight of a stall of an answer by a prompt, against a second of slower tokens. Between 0.25 and 1, chats, agents, bursts and mixtures of them differ by
/// a few per cent in simulation; with 1, tails of TTFT are longer, because long prompts go where few decode and wait there.
const STALL: f64 = 0.5;

/// A mean of the latest values: of all until there are many.
#[derive(Clone, Copy, Debug)]
struct Mean {
    value: f64,
    seen: u32,
}

impl Mean {
    fn new(value: f64) -> Self {
        Self { value, seen: 0 }
    }

    fn see(&mut self, value: f64) {
        self.seen = self.seen.saturating_add(1);
        let weight = (1.0 / f64::from(self.seen)).max(WEIGHT);
        self.value = if self.seen == 1 { value } else { self.value + weight * (value - self.value) };
    }
}

#[derive(Debug)]
pub(super) struct AddedTime {
    ttft_weight: f64,
    marks: Marks,
    holders: Holders,
    engines: Vec<EngineFacts>,
    /// Learned times of steps, by kind of engine, and their factors at the last pick.
    costs: Vec<StepCost>,
    factors: Vec<Factors>,
    /// Tokens of an answer.
    answer: Mean,
    /// Share of a prompt that some engine is believed to cache.
    found: Mean,
    /// Time from one arrival to the next, nanoseconds.
    gap_ns: Mean,
    last_ns: Option<u64>,
    /// Time that a prompt takes where it was sent, nanoseconds.
    own_ns: Mean,
    /// Marks of the current request, and the tokens of it that each engine knows; kept to reuse their memory.
    prompt: Vec<Mark>,
    known: Vec<u32>,
}

/// Facts about the current request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    tokens: f64,
    /// Arrivals at an engine in a nanosecond.
    rate: f64,
    /// Time of an engine to that which prompts leave of it.
    busy: f64,
    answer: f64,
    found: f64,
}

impl AddedTime {
    pub(super) fn new(values: &[u64], context: RouterContext) -> Self {
        let RouterContext { engines, block_size } = context;
        let kinds = engines.iter().map(|engine| engine.kind + 1).max().unwrap_or(0);
        let first = |kind| engines.iter().find(|engine| engine.kind == kind);
        let cost = |kind| StepCost::new(first(kind).map_or(0, |engine| engine.token_ns));
        let costs: Vec<StepCost> = (0..kinds).map(cost).collect();
        Self {
            ttft_weight: values[0] as f64 / 100.0,
            marks: Marks { first_blocks: MARK_TOKENS.div_ceil(block_size as usize), block_size },
            holders: Holders::new(engines.iter().map(|engine| engine.cache_blocks * u64::from(block_size))),
            factors: vec![Factors::default(); costs.len()],
            costs,
            answer: Mean::new(ANSWER_START),
            found: Mean::new(0.0),
            gap_ns: Mean::new(f64::INFINITY),
            own_ns: Mean::new(0.0),
            last_ns: None,
            prompt: Vec::new(),
            known: vec![0; engines.len()],
            engines,
        }
    }

    /// Returns the time that a request adds on an engine, nanoseconds, given the tokens known there.
    fn added_ns(&self, engine: usize, load: &Load, known: u32, asked: &Asked) -> f64 {
        let Asked { tokens, rate, busy, answer, found } = *asked;
        let facts = &self.engines[engine];
        let Factors { fixed, token, pair, seq, read } = self.factors[facts.kind as usize];
        let known = f64::from(known);
        let own = self.own_ns_on(engine, known, tokens);
        let wait = token * load.prefill_tokens as f64 + pair * load.prefill_pairs as f64;
        let come = rate * busy * own * (wait + own / 2.0);
        let n = f64::from(load.requests);
        let answer = if facts.decodes { answer } else { 1.0 };
        let age = load.answer_tokens as f64 / n.max(1.0);
        let together = (answer - age).max(answer / 2.0) * (read * (load.tokens as f64 + n * tokens) + 2.0 * n * seq);
        let decode = together + answer * (fixed + seq + read * tokens);
        let excess = self.holders.excess(engine, (tokens - known) as u64) as f64;
        let lost = found * excess * (token + pair * tokens / 2.0);
        self.ttft_weight * (wait + own + come) + STALL * n * own + decode + lost
    }

    /// Returns the time to compute what an engine does not know of a prompt, nanoseconds.
    fn own_ns_on(&self, engine: usize, known: f64, tokens: f64) -> f64 {
        let Factors { token, pair, .. } = self.factors[self.engines[engine].kind as usize];
        token * (tokens - known) + pair * (tokens * tokens - known * known) / 2.0
    }
}

impl Router for AddedTime {
    fn pick(&mut self, now_ns: u64, request: &Incoming<'_>, loads: &[Load]) -> Pick {
        self.marks.of(request.hashes, &mut self.prompt);
        self.known.fill(0);
        self.holders.find(&self.prompt, &mut self.known);
        for (factors, cost) in self.factors.iter_mut().zip(&mut self.costs) {
            *factors = cost.factors();
        }
        if let Some(last_ns) = self.last_ns.replace(now_ns) {
            self.gap_ns.see((now_ns - last_ns) as f64);
        }
        let n_open = loads.iter().filter(|load| load.open).count();
        let rate = 1.0 / (self.gap_ns.value.max(1.0) * n_open as f64);
        let asked = Asked {
            tokens: request.prompt_tokens.into(),
            rate,
            busy: 1.0 / (1.0 - (rate * self.own_ns.value).min(RHO_MAX)),
            answer: self.answer.value,
            found: self.found.value,
        };
        // The last token of a prompt is always run.
        let most = request.prompt_tokens.saturating_sub(1);
        let (mut best, mut least_ns) = (None, f64::INFINITY);
        for (engine, load) in loads.iter().enumerate().filter(|(_, load)| load.open) {
            let added_ns = self.added_ns(engine, load, self.known[engine].min(most), &asked);
            if best.is_none() || added_ns < least_ns {
                (best, least_ns) = (Some(engine), added_ns);
            }
        }
        let engine = best.expect("an engine is open");
        let known = self.known[engine].min(most);
        self.own_ns.see(self.own_ns_on(engine, known.into(), asked.tokens));
        let longest = self.known.iter().max().copied().unwrap_or(0);
        self.found.see(f64::from(longest.min(most)) / asked.tokens.max(1.0));
        self.holders.add(engine, &self.prompt);
        Pick { engine, known_tokens: known }
    }

    fn lost(&mut self, engine: usize) {
        self.holders.clear(engine);
    }

    fn learns(&self) -> bool {
        true
    }

    fn stepped(&mut self, engine: usize, work: &StepWork, ns: u64) {
        self.costs[self.engines[engine].kind as usize].observe(work, ns);
    }

    fn answered(&mut self, tokens: u32) {
        self.answer.see(tokens.into());
    }
}
