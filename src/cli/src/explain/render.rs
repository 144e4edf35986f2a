//! Explanations as text.

use trunkline_core::RequestId;
use trunkline_sim_replay::explain::{Explained, Miss, MissCause, Part, Wait};
use trunkline_sim_replay::rerun::Difference;
use trunkline_sim_replay::what_if::{Counterfactual, WhatIf};

use crate::output::{align_right, grouped, per_cent, table};

/// Waits and requests to blame shown of a request, at most; JSON has all.
const SHOWN: usize = 8;

/// Formats nanoseconds as seconds, exactly.
fn exact(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Formats nanoseconds as seconds, to a tenth of a millisecond.
fn short(ns: u64) -> String {
    format!("{:.4}", ns as f64 / 1e9)
}

fn signed(ns: i64) -> String {
    format!("{:+.4}", ns as f64 / 1e9)
}

fn optional(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".into(), short)
}

/// Returns the table of the slowest requests.
pub(super) fn slowest(requests: &[Explained]) -> String {
    let parts: Vec<Part> =
        Part::ALL.into_iter().filter(|part| requests.iter().any(|request| request.parts.of(*part) > 0)).collect();
    let mut rows = table();
    let mut header = vec!["request".to_owned(), "arrival".into(), "E2E".into(), "TTFT".into()];
    header.extend(parts.iter().map(|part| part.name().replace('_', " ")));
    header.push("most to blame".into());
    rows.set_header(header);
    for request in requests {
        let mut cells = vec![
            request.id.to_string(),
            short(request.submitted_ns),
            short(request.e2e_ns()),
            optional(request.ttft_ns()),
        ];
        cells.extend(parts.iter().map(|part| short(request.parts.of(*part))));
        let blamed = request.blamed.first();
        cells.push(blamed.map_or_else(|| "-".into(), |it| format!("{} ({})", it.request, short(it.total_ns()))));
        rows.add_row(cells);
    }
    align_right(&mut rows, 0);
    format!("{}\n\nseconds; `trunkline explain RECORDING --request ID` says more of one", rows.trim_fmt())
}

/// Returns explanations in full.
pub(super) fn requests(requests: &[Explained], answers: &[WhatIf]) -> String {
    let one = |(at, request): (usize, &Explained)| {
        let answer = answers.get(at).map(|answer| format!("\n\n{}", what_if(answer, request))).unwrap_or_default();
        explained(request) + &answer
    };
    requests.iter().enumerate().map(one).collect::<Vec<_>>().join("\n\n")
}

fn explained(request: &Explained) -> String {
    let engines: Vec<String> = request.engines.iter().map(|engine| engine.0.to_string()).collect();
    let head = format!(
        "request {} of tenant {}: {} prompt tokens, {} from the cache, {} output tokens, on engine {}; {}",
        request.id,
        request.tenant,
        grouped(request.prompt_tokens.into()),
        grouped(request.cached_tokens.into()),
        grouped(request.output_tokens.into()),
        if engines.is_empty() { "-".into() } else { engines.join(">") },
        request.end
    );
    let mut texts = vec![head, parts(request)];
    texts.extend((!request.waits.is_empty()).then(|| waits(request)));
    texts.extend((!request.blamed.is_empty()).then(|| blamed(request)));
    texts.extend(request.miss.as_ref().map(|found| miss(found, request)));
    texts.join("\n\n")
}

fn parts(request: &Explained) -> String {
    let mut rows = table();
    rows.set_header(["part", "seconds", "share", "before first token"]);
    let share = |ns: u64| per_cent(ns as f64 / request.e2e_ns().max(1) as f64);
    for (part, ns) in request.parts.iter() {
        let before = request.before_first_token.of(part);
        rows.add_row([part.name().replace('_', " "), exact(ns), share(ns), exact(before)]);
    }
    let total = request.before_first_token.total();
    rows.add_row(["E2E".into(), exact(request.parts.total()), share(request.parts.total()), exact(total)]);
    align_right(&mut rows, 1);
    rows.trim_fmt()
}

fn held(wait: &Wait) -> String {
    let unit = match wait.part {
        Part::Others => " tokens",
        _ => "",
    };
    let all: Vec<String> = wait.held_by.iter().map(|(request, share)| format!("{request} ({share}{unit})")).collect();
    all.join(", ")
}

/// Returns the longest waits, in their order.
fn waits(request: &Explained) -> String {
    let mut longest: Vec<&Wait> = request.waits.iter().collect();
    longest.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
    longest.truncate(SHOWN);
    longest.sort_by_key(|wait| wait.from_ns);
    let mut rows = table();
    rows.set_header(["waits at", "seconds", "part", "because", "held most by"]);
    for wait in longest {
        let why = wait.why.map_or_else(String::new, |why| why.to_string());
        rows.add_row([
            short(wait.from_ns - request.submitted_ns),
            short(wait.ns),
            wait.part.name().replace('_', " "),
            why,
            held(wait),
        ]);
    }
    let more = request.waits.len().saturating_sub(SHOWN) + request.waits_left_out;
    let note = if more > 0 { format!("\n{} shorter waits", grouped(more as u64)) } else { String::new() };
    rows.trim_fmt() + &note
}

fn blamed(request: &Explained) -> String {
    let mut rows = table();
    rows.set_header(["held by request", "waited", "its prompt in shared steps"]);
    for blamed in request.blamed.iter().take(SHOWN) {
        rows.add_row([blamed.request.to_string(), short(blamed.waited_ns), short(blamed.shared_ns)]);
    }
    align_right(&mut rows, 0);
    let more = request.blamed.len().saturating_sub(SHOWN);
    let note = if more > 0 { format!("\n{} others", grouped(more as u64)) } else { String::new() };
    rows.trim_fmt() + &note
}

fn miss(miss: &Miss, request: &Explained) -> String {
    let cause = match miss.cause {
        MissCause::Evicted { at_ns, by } => {
            let ago = request.submitted_ns.checked_sub(at_ns);
            let when =
                ago.map_or_else(|| "after it arrived".into(), |ago| format!("{} s before it arrived", short(ago)));
            let by = by.map_or_else(|| "to make room ahead".into(), |by: RequestId| format!("for request {by}"));
            format!("was evicted {when}, {by}")
        }
        MissCause::Elsewhere { engine } => format!("was on {engine}"),
        MissCause::New => return format!("first missed block: {}, which no engine had on its device", miss.block),
    };
    format!(
        "first missed block: {}, which {cause}; {} tokens from there on would have saved {} s of prefill",
        miss.block,
        grouped(miss.tokens.into()),
        short(miss.saves_ns)
    )
}

/// Returns what changes would have saved.
fn what_if(answer: &WhatIf, request: &Explained) -> String {
    let mut rows = table();
    rows.set_header(["what if", "E2E", "saves", "TTFT", "saves", "first difference", "steps recorded", "fitted"]);
    for run in &answer.runs {
        rows.add_row(row(run));
    }
    align_right(&mut rows, 1);
    let mut lines = vec![rows.trim_fmt()];
    let differences = answer.runs.iter().filter_map(|run| Some((run, run.first_difference.as_ref()?)));
    lines.extend(differences.map(|(run, difference)| describe(run, difference)));
    lines.extend(answer.impossible.iter().map(|(change, why)| format!("{change}: impossible: {why}")));
    let fitted = answer.fitted_e2e_ns.map_or_else(
        || "with fitted times alone the request does not end".into(),
        |ns| {
            format!(
                "with fitted times alone the recorded decisions take {} s, where they took {} s",
                short(ns),
                short(request.e2e_ns())
            )
        },
    );
    let error = answer.fit_error.as_deref().unwrap_or("unknown");
    lines.push(format!(
        "Steps have their recorded times where they run the same tokens of the same requests, else those of a fit to this recording (median / p95 error: {error}); {fitted}."
    ));
    lines.join("\n")
}

fn row(run: &Counterfactual) -> [String; 8] {
    let saves = |ns: Option<i64>| ns.map_or_else(|| "-".into(), signed);
    let first = run.first_difference.as_ref().map_or_else(|| "none".into(), |it| format!("at {}", short(it.at_ns)));
    [
        run.change.to_string(),
        optional(run.e2e_ns),
        saves(run.saved_ns),
        optional(run.ttft_ns),
        saves(run.ttft_saved_ns),
        first,
        grouped(run.sources.recorded_steps),
        grouped(run.sources.fitted_steps),
    ]
}

fn describe(run: &Counterfactual, difference: &Difference) -> String {
    let recorded = difference.recorded.as_deref().unwrap_or("unknown");
    format!("{} at {}: {}; recorded: {recorded}", run.change, short(difference.at_ns), difference.decisions)
}
