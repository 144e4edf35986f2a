//! Decisions as they are compared: what runs, where and which way, without times and numbers of blocks.
//!
//! The digest of a core covers the numbers of blocks too, which differ from the first request on if an engine has more of them. A mark leaves them
//! out, so that two runs differ where they first decide differently about requests.

use trunkline_cluster::Output;
use trunkline_core::core::event::Action;
use trunkline_core::{Request, Step, StepSeq};

/// Requests of a step that are named in a text.
const NAMED_MAX: usize = 12;

/// Folds numbers into a mark.
pub(crate) fn fold(mark: u64, value: u64) -> u64 {
    let product = u128::from(mark ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product as u64) ^ (product >> 64) as u64
}

/// Returns the mark of a prompt in its namespace, to find the request in another recording.
pub(crate) fn prompt_mark(request: &Request) -> u64 {
    let root = request.root.0;
    let begin = fold(fold(fold(10, (root >> 64) as u64), root as u64), request.prompt.len() as u64);
    request.prompt.iter().fold(begin, |mark, token| fold(mark, u64::from(*token)))
}

fn seq_mark(mark: u64, seq: &StepSeq) -> u64 {
    let flags = u64::from(seq.sample) | u64::from(seq.n_drafts) << 1 | u64::from(seq.n_generated) << 32;
    let mark = fold(mark, seq.request.0);
    fold(fold(mark, u64::from(seq.computed) << 32 | u64::from(seq.n_tokens)), flags)
}

/// Returns the mark of a step on an engine: which tokens of which requests it runs.
pub(super) fn step_mark(engine: u32, step: &Step) -> u64 {
    step.seqs.iter().fold(fold(1, engine.into()), seq_mark)
}

/// Returns the mark of the decisions in the outputs of an input; 0 without any.
pub(super) fn mark(outputs: &[Output]) -> u64 {
    outputs.iter().fold(0, |mark, output| match output {
        Output::Engine(engine, action) => action_mark(mark, u64::from(engine.0), action),
        Output::Cluster(action) => action_mark(mark, u64::MAX, action),
        Output::Placed { request, engine } => fold(fold(fold(mark, 2), request.0), engine.0.into()),
        Output::Moved { request, from, to, .. } => {
            fold(fold(fold(mark, 3), request.0), u64::from(from.0) << 32 | u64::from(to.0))
        }
        Output::Health { .. } | Output::Emptied(_) => mark,
    })
}

fn action_mark(mark: u64, engine: u64, action: &Action) -> u64 {
    match action {
        Action::RunStep(step) => fold(mark, step_mark(engine as u32, step)),
        Action::Transfer(transfer) => fold(fold(fold(mark, 4), engine), transfer.pairs.len() as u64),
        Action::Lookup(lookup) => fold(fold(fold(mark, 5), engine), lookup.keys.len() as u64),
        Action::Finish { request, reason, usage } => {
            fold(fold(fold(mark, 6), request.0), (*reason as u64) << 32 | u64::from(usage.completion_tokens))
        }
        Action::Refuse { request, refusal } => fold(fold(fold(mark, 7), request.0), refusal.number()),
        Action::Withdrawn(request) => fold(fold(mark, 8), request.id.0),
        Action::ResetWorker => fold(fold(mark, 9), engine),
        Action::Token { .. }
        | Action::Cancel { .. }
        | Action::Release { .. }
        | Action::Adopt { .. }
        | Action::PromptValued { .. }
        | Action::Flushed { .. }
        | Action::Drained => mark,
    }
}

/// Returns the decisions in the outputs of an input, for people.
pub(crate) fn text(outputs: &[Output]) -> String {
    let parts: Vec<String> = outputs.iter().filter_map(output_text).collect();
    if parts.is_empty() { "decides nothing".into() } else { parts.join("; ") }
}

fn output_text(output: &Output) -> Option<String> {
    match output {
        Output::Placed { request, engine } => Some(format!("places {request} on {engine}")),
        Output::Moved { request, from, to, .. } => Some(format!("moves {request} from {from} to {to}")),
        Output::Engine(engine, Action::RunStep(step)) => Some(format!("{engine} runs {}", step_text(step))),
        Output::Engine(engine, Action::Transfer(transfer)) => Some(format!(
            "{engine} copies {} blocks from {:?} to {:?}",
            transfer.pairs.len(),
            transfer.from,
            transfer.to
        )),
        Output::Engine(engine, Action::Lookup(lookup)) => {
            Some(format!("{engine} asks a shared tier for {} blocks", lookup.keys.len()))
        }
        Output::Engine(_, action) | Output::Cluster(action) => match action {
            Action::Finish { request, reason, .. } => Some(format!("{request} ends ({})", reason.as_str())),
            Action::Refuse { request, refusal } => Some(format!("{request} is refused ({refusal})")),
            Action::Withdrawn(request) => Some(format!("{} is taken back", request.id)),
            _ => None,
        },
        Output::Health { .. } | Output::Emptied(_) => None,
    }
}

fn step_text(step: &Step) -> String {
    let one = |seq: &StepSeq| match seq.n_tokens {
        1 => seq.request.to_string(),
        n => format!("{} ({n} tokens)", seq.request),
    };
    let (mut prompts, decodes): (Vec<_>, Vec<_>) = step.seqs.iter().partition(|seq| seq.n_tokens > 1);
    let n = step.seqs.len();
    prompts.extend(decodes);
    let named: Vec<String> = prompts.into_iter().take(NAMED_MAX).map(one).collect();
    let more = if n > NAMED_MAX { format!(" and {} more", n - NAMED_MAX) } else { String::new() };
    format!("{}{more}", named.join(", "))
}
