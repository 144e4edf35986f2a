//! Specs as they are written, and what comes of them.

use std::collections::HashMap;
use std::io::Write;

use super::*;
use crate::trace::stats::{StatsOptions, stats};
use crate::trace::{
    Content, GENERATED_FROM, Outcome, Source, TimeScaled, Trace, TraceRequest, convert, formats, generated_token,
};
use trunkline_core::RetentionHint;
use trunkline_core::draw::mix;
use trunkline_core::request::retention::TO_END;

const CHAT: &str = r#"
seed = 7
requests = 2000
max-context-tokens = 16_384

[[population]]
name = "chat"
arrivals = { process = "poisson", sessions-per-s = 2.0 }
input-tokens = { kind = "lognormal", mean = 300, cv = 1.5, max = 4096 }
output-tokens = { kind = "lognormal", mean = 200, cv = 1.0, max = 1024 }
system-prompts = { count = 20, zipf = 1.0, tokens = { kind = "uniform", min = 100, max = 900 } }
session = { turns = { kind = "uniform", min = 1, max = 9 }, think-s = { kind = "exponential", mean = 20 } }

[[population]]
name = "agents"
arrivals = { process = "on-off", sessions-per-s = 2.0, on-s = 30, off-s = 60 }
input-tokens = { kind = "constant", value = 400 }
output-tokens = { kind = "constant", value = 300 }
[population.agent]
calls = { kind = "constant", value = 5 }
call-tokens = { kind = "constant", value = 40 }
tool-s = { kind = "exponential", mean = 3 }
tool-output-tokens = { kind = "lognormal", mean = 600, cv = 1.0, max = 4000 }
"#;

fn generator(text: &str) -> Generator {
    Generator::new(&Spec::parse(text).unwrap()).unwrap()
}

fn requests(text: &str) -> Vec<TraceRequest> {
    let spec = Spec::parse(text).unwrap();
    spec.assumed_service.requests(Generator::new(&spec).unwrap()).map(Result::unwrap).collect()
}

/// One population of sessions of one turn.
fn simple(requests: u64, arrivals: &str, input: &str) -> String {
    format!(
        "requests = {requests}\n[[population]]\narrivals = {{ {arrivals} }}\ninput-tokens = {{ {input} }}\n\
         output-tokens = {{ kind = \"constant\", value = 10 }}\n"
    )
}

fn digest(requests: &[TraceRequest]) -> u64 {
    let mut digest = 0;
    for request in requests {
        let Content::Pieces(pieces) = &request.content else { panic!("made of pieces") };
        let lengths = [request.arrival_ns, request.input_tokens.into(), request.output_tokens.into()];
        let pieces = pieces.iter().map(|piece| u64::from(piece.content) << 32 | u64::from(piece.tokens));
        lengths.into_iter().chain(pieces).for_each(|value| digest = mix(digest ^ value));
    }
    digest
}

#[test]
fn the_same_spec_gives_the_same_requests() {
    let first = requests(CHAT);
    assert_eq!(first, requests(CHAT));
    // Reports depend on what is made up, so it must not change between versions or machines unnoticed.
    assert_eq!(format!("{:016x}", digest(&first)), "fa7c00b516d24b96");
    assert_ne!(digest(&requests(&CHAT.replace("seed = 7", "seed = 8"))), digest(&first));
}

#[test]
fn requests_come_in_order_and_fit_the_context() {
    let all = requests(CHAT);
    assert_eq!(all.len(), 2000);
    assert!(all.is_sorted_by_key(|request| request.arrival_ns));
    assert_eq!(all[0].arrival_ns, 0);
    for request in &all {
        assert_eq!(request.prompt().len(), request.input_tokens as usize);
        assert!(request.input_tokens + request.output_tokens <= 16_384 && request.output_tokens > 0);
    }
    assert!(all.iter().any(|request| request.input_tokens > 6_000), "long sessions");
}

#[test]
fn lengths_and_arrivals_have_the_moments_of_the_spec() {
    let text = simple(
        50_000,
        r#"process = "gamma", sessions-per-s = 5, cv = 2"#,
        r#"kind = "lognormal", mean = 400, cv = 0.8"#,
    );
    let all = requests(&text).into_iter().map(Ok);
    let options = StatsOptions { capacities: vec![10], ..StatsOptions::default() };
    let stats = stats(all, formats::SYNTHETIC, &options).unwrap();
    assert!((stats.input_tokens.mean / 400.0 - 1.0).abs() < 0.02, "{:?}", stats.input_tokens);
    // exp of the mean of the logarithm.
    let median = 400.0 / (1.0f64 + 0.64).sqrt();
    assert!((f64::from(stats.input_tokens.p50) / median - 1.0).abs() < 0.02, "{:?}", stats.input_tokens);
    assert!((stats.arrivals.rate_requests_s / 5.0 - 1.0).abs() < 0.03, "{:?}", stats.arrivals);
    assert!((stats.arrivals.gap_cv / 2.0 - 1.0).abs() < 0.05, "{:?}", stats.arrivals);
    assert_eq!(stats.prefixes.unwrap().hit_ratio_blocks, 0.0, "no two prompts are alike");
}

#[test]
fn system_prompts_are_as_popular_as_zipf_says() {
    let text = simple(30_000, r#"process = "constant", sessions-per-s = 5"#, r#"kind = "constant", value = 5"#)
        + "system-prompts = { count = 10, zipf = 1.0, tokens = { kind = \"constant\", value = 64 } }\n";
    let mut counts = [0u32; 10];
    for request in requests(&text) {
        let Content::Pieces(pieces) = &request.content else { unreachable!() };
        assert_eq!((pieces.len(), pieces[0].tokens), (2, 64));
        counts[pieces[0].content as usize] += 1;
    }
    let harmonic: f64 = (1..=10).map(|n| 1.0 / f64::from(n)).sum();
    for (n, count) in (1..).zip(counts) {
        let expected = 30_000.0 / harmonic / f64::from(n);
        assert!((f64::from(count) / expected - 1.0).abs() < 0.08, "{n}: {count} for {expected}");
    }
}

const TURNS: &str = r#"
requests = 1000
[[population]]
arrivals = { process = "constant", sessions-per-s = 0.01 }
input-tokens = { kind = "constant", value = 50 }
output-tokens = { kind = "constant", value = 20 }
session = { turns = { kind = "constant", value = 3 }, think-s = { kind = "constant", value = 10 } }
"#;
const S: u64 = 1_000_000_000;

#[test]
fn the_next_turn_waits_for_the_end_of_the_answer() {
    let mut source = generator(TURNS);
    assert_eq!(source.next_arrival_ns().unwrap(), Some(0));
    let first = source.next_request().unwrap().unwrap();
    assert_eq!((first.arrival_ns, first.input_tokens, first.output_tokens), (0, 50, 20));
    // Nothing but the next session is known until the answer has ended.
    assert_eq!(source.next_arrival_ns().unwrap(), Some(100 * S));
    source.ended(0, 33 * S, Outcome::Completed);
    assert_eq!(source.next_arrival_ns().unwrap(), Some(43 * S));
    let second = source.next_request().unwrap().unwrap();
    assert_eq!((second.arrival_ns, second.input_tokens), (43 * S, 50 + 20 + 50));
    // The prompt is what was said: the first prompt and the very tokens that were generated.
    let said: Vec<_> = first.prompt().into_iter().chain((0..20).map(|n| generated_token(0, n))).collect();
    assert_eq!(second.prompt()[..70], said);
    assert!(second.prompt()[70..].iter().all(|token| *token < GENERATED_FROM));
    // Refused: the session is over.
    source.ended(1, 50 * S, Outcome::Refused);
    assert_eq!(source.next_arrival_ns().unwrap(), Some(100 * S));
    assert_eq!(source.sessions_under_way(), 0);
}

#[test]
fn turns_end_when_they_are_all_asked() {
    let mut source = generator(TURNS);
    for turn in 0..3 {
        assert_eq!(source.next_arrival_ns().unwrap(), Some(turn * 11 * S));
        source.next_request().unwrap().unwrap();
        source.ended(turn, (turn * 11 + 1) * S, Outcome::Completed);
    }
    assert_eq!(source.next_arrival_ns().unwrap(), Some(100 * S));
}

#[test]
fn a_source_twice_as_fast_waits_half_as_long() {
    let mut source = TimeScaled::new(generator(TURNS), 2.0);
    source.next_request().unwrap().unwrap();
    source.ended(0, 33 * S, Outcome::Completed);
    assert_eq!(source.next_arrival_ns().unwrap(), Some(38 * S));
    assert_eq!(source.next_request().unwrap().unwrap().arrival_ns, 38 * S);
    assert_eq!(source.next_arrival_ns().unwrap(), Some(50 * S));
}

#[test]
fn agents_call_tools_and_then_answer() {
    let text = r#"
requests = 6
[assumed-service]
first-token-s = 1.0
per-token-s = 0.0
[[population]]
arrivals = { process = "constant", sessions-per-s = 0.0001 }
input-tokens = { kind = "constant", value = 100 }
output-tokens = { kind = "constant", value = 30 }
session = { turns = { kind = "constant", value = 2 }, think-s = { kind = "constant", value = 60 } }
agent = { calls = { kind = "constant", value = 3 }, call-tokens = { kind = "constant", value = 7 }, tool-s = { kind = "constant", value = 2 }, tool-output-tokens = { kind = "constant", value = 500 } }
"#;
    let shape: Vec<_> =
        requests(text).iter().map(|it| (it.arrival_ns / S, it.input_tokens, it.output_tokens)).collect();
    assert_eq!(shape[..3], [(0, 100, 7), (3, 607, 7), (6, 1114, 30)]);
    assert_eq!(shape[3..], [(67, 1244, 7), (70, 1751, 7), (73, 2258, 30)]);
}

/// A server that ends requests in another order, at other times.
fn serve(text: &str, service_ns: impl Fn(u64) -> u64) -> Vec<TraceRequest> {
    serve_watched(&mut generator(text), service_ns, &mut |_, _, _| {})
}

/// As [`serve`]. Calls `watch` before each event with the source, the number of requests so far, and the next end.
fn serve_watched<S: Source>(
    source: &mut S,
    service_ns: impl Fn(u64) -> u64,
    watch: &mut dyn FnMut(&mut S, usize, u64),
) -> Vec<TraceRequest> {
    let mut ends: Vec<(u64, u64)> = Vec::new();
    let mut given = Vec::new();
    loop {
        ends.sort_unstable();
        watch(source, given.len(), ends.first().map_or(u64::MAX, |(end_ns, _)| *end_ns));
        let arrival_ns = source.next_arrival_ns().unwrap();
        match (ends.first().copied(), arrival_ns) {
            (Some((end_ns, number)), arrival_ns) if arrival_ns.is_none_or(|at| end_ns <= at) => {
                ends.remove(0);
                source.ended(number, end_ns, Outcome::Completed);
            }
            (_, Some(at_ns)) => {
                let request = source.next_request().unwrap().unwrap();
                assert_eq!(request.arrival_ns, at_ns);
                ends.push((at_ns + service_ns(given.len() as u64), given.len() as u64));
                given.push(request);
            }
            (_, None) => return given,
        }
    }
}

#[test]
fn what_is_asked_does_not_depend_on_how_fast_it_is_answered() {
    let text = CHAT.replace("requests = 2000", "requests = 100_000\nduration-s = 100");
    /// Lengths of sessions, by the content of their first question's length and what comes after.
    fn shapes(requests: &[TraceRequest]) -> HashMap<Vec<u32>, u32> {
        let mut shapes = HashMap::new();
        for request in requests {
            let Content::Pieces(pieces) = &request.content else { unreachable!() };
            let shape = pieces.iter().map(|piece| piece.tokens).chain([request.output_tokens]).collect();
            *shapes.entry(shape).or_default() += 1;
        }
        shapes
    }
    let fast = serve(&text, |_| S / 10);
    let slow = serve(&text, |number| 20 * S + number * 7919 % 13 * S);
    assert!(fast.len() > 500 && fast.last().unwrap().arrival_ns < slow.last().unwrap().arrival_ns);
    assert_eq!(shapes(&fast), shapes(&slow));
}

#[test]
fn no_request_arrives_before_the_earliest_time_that_the_source_knows() {
    let text = CHAT.replace("mean = 20", "mean = 0.5").replace("mean = 3 }", "mean = 0.1 }");
    for (speed, service_ns) in [(1.0, S / 50), (1.0, 3 * S), (0.37, S), (1000.0, S / 900)] {
        let mut source = TimeScaled::new(generator(&text), speed);
        let mut bounds = Vec::new();
        let given = serve_watched(&mut source, |number| number * 7919 % 13 * service_ns, &mut |source, n, end_ns| {
            bounds.extend((0..6).map(|after| (n + after, after, source.earliest_arrival_ns(after, end_ns))));
        });
        let mut met = [0; 6];
        for (number, after, bound_ns) in bounds.iter().filter(|(number, ..)| *number < given.len()) {
            let arrival_ns = given[*number].arrival_ns;
            assert!(arrival_ns >= *bound_ns, "{number} at {arrival_ns} ns, {after} behind, before {bound_ns}");
            met[*after] += usize::from(arrival_ns - bound_ns < S / 1000);
        }
        println!("{speed} {service_ns}: {met:?} of {} to the millisecond", bounds.len() / 6);
        assert!(met[0] > bounds.len() / 20 && met[2] > 0, "{met:?}");
    }
}

#[test]
fn memory_is_for_sessions_under_way_only() {
    let text = simple(1_000_000, r#"process = "poisson", sessions-per-s = 100"#, r#"kind = "constant", value = 500"#);
    let mut source = generator(&text);
    let mut n = 0u64;
    while let Some(request) = source.next_request().unwrap() {
        assert_eq!(request.input_tokens, 500);
        n += 1;
    }
    assert_eq!((n, source.sessions_under_way(), source.next_arrival_ns().unwrap()), (1_000_000, 0, None));
}

#[test]
fn lengths_of_a_trace_are_drawn_from_its_requests() {
    let folder = tempfile::tempdir().unwrap();
    let trace = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,1\n1,200,2\n2,300,3\n";
    std::fs::write(folder.path().join("small.csv"), trace).unwrap();
    let of = |column: &str| format!(r#"{{ kind = "empirical", trace = "small.csv", of = "{column}" }}"#);
    let spec = format!(
        "requests = 300\n[[population]]\narrivals = {{ process = \"constant\", sessions-per-s = 1 }}\n\
         input-tokens = {}\noutput-tokens = {}\n",
        of("input"),
        of("output")
    );
    let path = folder.path().join("spec.toml");
    std::fs::write(&path, &spec).unwrap();
    let spec = Spec::load(&path).unwrap();
    let mut seen = [0; 4];
    for request in spec.assumed_service.requests(Generator::new(&spec).unwrap()) {
        let request = request.unwrap();
        assert_eq!(request.input_tokens, request.output_tokens * 100);
        seen[request.output_tokens as usize] += 1;
    }
    assert!(seen[1..].iter().all(|n| (70..130).contains(n)), "{seen:?}");

    std::fs::remove_file(folder.path().join("small.csv")).unwrap();
    let message = Generator::new(&spec).err().unwrap().to_string();
    assert!(message.ends_with("small.csv: no such file; check the path"), "{message}");
    assert!(message.contains(": of population 1: "), "{message}");
}

/// The fault of a spec, without the file's name.
fn fault(text: &str) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let message = Spec::load(file.path()).unwrap_err().to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message.strip_prefix(&file.path().display().to_string()).expect("begins with the file").to_string()
}

#[test]
fn faults_of_a_spec_are_named_with_their_line() {
    let with = |from: &str, to: &str| {
        assert!(CHAT.contains(from), "{from}");
        fault(&CHAT.replace(from, to))
    };
    assert_eq!(with("cv = 1.5", "cv = -1"), ", line 9: cv is -1; it must be from 0 to 100");
    assert_eq!(with("min = 100", "min = 1000"), ", line 11: min is 1000, above max, which is 900; exchange them");
    assert_eq!(
        with("sessions-per-s = 2.0 }", "sessions-per-s = 0 }"),
        ", line 8: sessions-per-s is 0; it must be from 0.000001 to 1000000"
    );
    assert_eq!(with("on-s = 30", "on-s = 0.00001"), ", line 16: on-s is 0.00001; it must be from 0.001 to 1000000000");
    assert_eq!(with("requests = 2000", "requests = 0"), ": requests is 0; it must be from 1 to 1073741824");
    assert_eq!(
        with("zipf = 1.0", "zipf = 11"),
        ": zipf of system-prompts of population 1 (chat) is 11; it must be from 0 to 10"
    );
    assert_eq!(
        with("count = 20", "count = 0"),
        ": count of system-prompts of population 1 (chat) is 0; it must be from 1 to 1048576"
    );
    assert_eq!(
        with("max-context-tokens = 16_384", "max-context-tokens = 7"),
        ": max-context-tokens is 7; it must be from 8 to 16777216"
    );
    assert!(with("requests = 2000", "request = 2000").starts_with(", line 3: unknown field `request`"));
    assert!(with("\"poisson\"", "\"fish\"").starts_with(", line 8: unknown variant `fish`"));
    assert!(with("cv = 1.5", "cw = 1.5").starts_with(", line 9: unknown field `cw`"));
    assert!(with("requests = 2000\n", "").contains("missing field `requests`"));
    assert!(fault("requests = \n").starts_with(", line 1: "));
    assert!(fault("").contains("missing field"));
    let missing = Spec::load(std::path::Path::new("no/such/spec.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("no/such/spec.toml: cannot be read: "), "{missing}");
}

#[test]
fn odd_specs_end_without_a_panic() {
    let numbers = ["0", "1", "1e9", "-1", "0.5", "nan", "inf", "100"];
    let mut ran = 0;
    for a in numbers {
        for b in numbers {
            let text = CHAT
                .replace("requests = 2000", "requests = 50")
                .replace("mean = 300", &format!("mean = {a}"))
                .replace("mean = 200", &format!("mean = {b}"))
                .replace("mean = 20 ", &format!("mean = {a} "))
                .replace("min = 1, max = 9", &format!("min = {b}, max = 1e9"))
                .replace("min = 100, max = 900", "min = 1, max = 900")
                .replace("value = 400", "value = 3")
                .replace("value = 300", "value = 9")
                .replace("value = 40 ", "value = 4 ")
                .replace("max-context-tokens = 16_384", "max-context-tokens = 8");
            if let Ok(spec) = Spec::parse(&text) {
                let all = spec.assumed_service.requests(Generator::new(&spec).unwrap());
                assert!(all.map(Result::unwrap).all(|it| it.input_tokens + it.output_tokens <= 8));
                ran += 1;
            }
        }
    }
    assert!(ran >= 20, "{ran}");
}

#[test]
fn only_what_does_not_fit_is_cut() {
    let first = |system: u32, input: u32, output: u32| {
        let constant = |value: u32| format!("{{ kind = \"lognormal\", mean = {value}, cv = 0 }}");
        let text = format!(
            "requests = 1\nmax-context-tokens = 1000\n[[population]]\n\
             arrivals = {{ process = \"constant\", sessions-per-s = 1 }}\ninput-tokens = {}\noutput-tokens = {}\n\
             system-prompts = {{ count = 1, zipf = 0, tokens = {} }}\n",
            constant(input),
            constant(output),
            constant(system)
        );
        let request = requests(&text).remove(0);
        let Content::Pieces(pieces) = &request.content else { unreachable!() };
        assert_eq!(pieces[0].tokens + pieces[1].tokens, request.input_tokens);
        [pieces[0].tokens, pieces[1].tokens, request.output_tokens]
    };
    for (drawn, expected) in [
        // Each as long as the others allow.
        ([600, 100, 300], [600, 100, 300]),
        ([10, 980, 10], [10, 980, 10]),
        ([10, 10, 980], [10, 10, 980]),
        // The system prompt gives way first, then the answer, then the question.
        ([999, 100, 300], [600, 100, 300]),
        ([999, 100, 700], [250, 100, 650]),
        ([200, 100, 900], [200, 100, 700]),
        ([999, 700, 700], [250, 563, 187]),
        ([200, 999, 100], [200, 700, 100]),
        ([1_000_000; 3], [250, 563, 187]),
    ] {
        let [system, input, output] = drawn;
        assert_eq!(first(system, input, output), expected, "{drawn:?}");
    }
}

#[test]
fn a_first_request_that_can_never_fit_is_refused() {
    let spec = |system: &str, calls: &str| {
        simple(1, r#"process = "constant", sessions-per-s = 1"#, r#"kind = "uniform", min = 500, max = 900"#)
            .replace("requests = 1\n", "requests = 1\nmax-context-tokens = 60_509\n")
            + &format!(
                "name = \"coders\"\nsystem-prompts = {{ count = 2, zipf = 0, tokens = {{ {system} }} }}\n{calls}"
            )
    };
    let constant = r#"kind = "constant", value = 60_000"#;
    assert_eq!(
        fault(&spec(constant, "")),
        ": a first request of population 1 (coders) has at least 60510 tokens (system prompt 60000, question 500, answer 10), \
         and max-context-tokens is 60509; raise it, or shorten them"
    );
    let calls = "agent = { calls = { kind = \"constant\", value = 2 }, call-tokens = { kind = \"constant\", value = 9 }, \
         tool-s = { kind = \"constant\", value = 1 }, tool-output-tokens = { kind = \"constant\", value = 5 } }\n";
    for spec in [spec(r#"kind = "lognormal", mean = 60_000, cv = 1"#, ""), spec(constant, calls)] {
        let all = requests(&spec);
        assert!(all.iter().all(|request| request.input_tokens + request.output_tokens <= 60_509));
    }
}

/// A file of the examples that ship with the sources.
fn example(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

#[test]
fn the_examples_are_what_they_say() {
    for name in ["chat", "agents", "chat-and-agents", "day"] {
        let spec = Spec::load(&example(&format!("workloads/{name}.toml"))).unwrap();
        let requests = spec.assumed_service.requests(Generator::new(&spec).unwrap()).map(Result::unwrap);
        let n = requests.take(2_000).filter(|request| request.input_tokens > 0).count();
        assert_eq!(n, 2_000, "{name}");
    }
}

#[test]
fn the_day_of_the_examples_follows_their_curve() {
    let spec = Spec::load(&example("workloads/day.toml")).unwrap();
    let curve = crate::daily::DailyCurve::find(&example("curves/office-day.csv").display().to_string()).unwrap();
    let arrivals = spec.population[0].arrivals;
    assert!(matches!(arrivals, Arrivals::Hourly { curve: of_spec, .. } if of_spec == curve), "{arrivals:?}");
}

#[test]
fn hourly_rates_are_checked() {
    let spec = |rates: &str| {
        simple(
            10,
            &format!(r#"process = "hourly", sessions-per-s = 1, rates = {rates}"#),
            r#"kind = "constant", value = 5"#,
        )
    };
    assert_eq!(requests(&spec(&format!("{:?}", [1.0; 24]))).len(), 10);
    assert_eq!(fault(&spec("[1, 2]")), ", line 3: 2 rates; a day has 24, one for each hour");
}

/// If this fails, the generator changed: make the trace again by the command in the workload, and say so in the
/// changelog.
#[test]
fn the_trace_of_the_examples_is_made_by_the_generator() {
    let spec = Spec::load(&example("workloads/chat-and-agents.toml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.jsonl");
    let requests = spec.assumed_service.requests(Generator::new(&spec).unwrap());
    convert(requests, formats::SYNTHETIC, &path, formats::MOONCAKE, &mut |_| {}).unwrap();
    let shipped = Trace::load(&example("traces/chat-and-agents.jsonl.gz"), None, None).unwrap();
    assert_eq!(Trace::load(&path, None, None).unwrap(), shipped);
}

#[test]
fn populations_have_tenants_priorities_and_deadlines() {
    let population = |terms: &str| {
        format!(
            "[[population]]\narrivals = {{ process = \"poisson\", sessions-per-s = 1.0 }}\n\
             input-tokens = {{ kind = \"constant\", value = 10 }}\noutput-tokens = {{ kind = \"constant\", value = 5 }}\n{terms}"
        )
    };
    let text =
        format!("requests = 40\n{}{}", population(""), population("tenant = 2\npriority = -1\ndeadline-s = 1.5\n"));
    let spec = Spec::parse(&text).unwrap();
    assert_eq!(spec.tenants(), 3);
    let mut generator = Generator::new(&spec).unwrap();
    let mut seen = std::collections::HashSet::new();
    while let Some(request) = generator.next_request().unwrap() {
        let terms = request.terms;
        seen.insert((terms.tenant, terms.priority, terms.deadline_ns));
    }
    assert_eq!(seen, [(0, 0, None), (2, -1, Some(1_500_000_000))].into());
    let (_, fault) = Spec::parse(&text.replace("1.5", "-1")).unwrap_err();
    assert!(fault.to_string().starts_with("deadline-s of population 2 is -1; it must be from"), "{fault}");
}

#[test]
fn populations_have_retention_hints_for_the_parts_of_a_request() {
    let text = |hints: &str| {
        format!(
            "requests = 30\n[[population]]\narrivals = {{ process = \"poisson\", sessions-per-s = 1.0 }}\n\
             input-tokens = {{ kind = \"constant\", value = 10 }}\noutput-tokens = {{ kind = \"constant\", value = 5 }}\n\
             system-prompts = {{ count = 1, zipf = 0.0, tokens = {{ kind = \"constant\", value = 40 }} }}\n\
             session = {{ turns = {{ kind = \"constant\", value = 2 }}, think-s = {{ kind = \"constant\", value = 1 }} }}\n{hints}"
        )
    };
    let requests = |hints: &str| -> Vec<TraceRequest> {
        let generator = Generator::new(&Spec::parse(&text(hints)).unwrap()).unwrap();
        AssumedLatency::default().requests(generator).map(Result::unwrap).collect()
    };
    let hint = |from, to, priority, ttl_ns| RetentionHint { from, to, priority, ttl_ns, demote: false, pin: false };
    let hinted = requests(
        "retention = { system-prompt = { priority = 80, ttl-s = 1.5 }, conversation = { priority = 40 }, answer = { priority = 0 } }",
    );
    for request in &hinted {
        let n = request.input_tokens;
        let expected = [hint(0, 40, 80, 1_500_000_000), hint(40, n, 40, 0), hint(n, TO_END, 0, 0)];
        assert_eq!(*request.retention, expected);
    }
    assert!(hinted.iter().any(|request| request.input_tokens == 65), "second turns have a longer conversation");
    let mut plain = requests("");
    assert!(plain.iter().all(|request| request.retention.is_empty()));
    plain.iter_mut().zip(&hinted).for_each(|(request, hinted)| request.retention = hinted.retention.clone());
    assert_eq!(plain, hinted, "hints draw no random numbers");
    let fault = |hints: &str| Spec::parse(&text(hints)).unwrap_err().1.to_string();
    assert_eq!(
        fault("retention = { answer = { priority = 101 } }"),
        "priority of answer in retention of population 1 is 101; it must be from 0 to 100"
    );
    assert_eq!(
        fault("retention = { answer = { priority = 3, ttl-s = 1.0 } }"),
        "ttl-s of answer in retention of population 1 is 1; it must be from 0 to 0"
    );
}

/// One session of 30 turns of 100 tokens each way after a system prompt of 500.
fn long_chat(compaction: &str) -> String {
    let constant = |value: u32| format!("{{ kind = \"constant\", value = {value} }}");
    let (hundred, turns, think) = (constant(100), constant(30), constant(1));
    format!(
        "requests = 1000\nduration-s = 1.0\nmax-context-tokens = 16384\n[[population]]\nname = \"chat\"\n\
         arrivals = {{ process = \"constant\", sessions-per-s = 1.0 }}\ninput-tokens = {hundred}\noutput-tokens = {hundred}\n\
         system-prompts = {{ count = 1, zipf = 0.0, tokens = {} }}\n\
         session = {{ turns = {turns}, think-s = {think}{compaction} }}\n",
        constant(500)
    )
}

fn pieces(request: &TraceRequest) -> Vec<(u32, u32)> {
    let Content::Pieces(pieces) = &request.content else { panic!("made of pieces") };
    pieces.iter().map(|piece| (piece.content, piece.tokens)).collect()
}

#[test]
fn a_long_history_is_summarised_computed_ahead_and_goes_on() {
    let requests = requests(&long_chat(", compaction = { high = 1000, low = 450, summary = 50 }"));
    let at: Vec<usize> = (0..requests.len()).filter(|at| requests[*at].terms.priority == 100).collect();
    // Six turns have 1,200 tokens, and two of them stay. Then each fourth turn is above 1,000.
    assert_eq!(at[..6], [6, 7, 12, 13, 18, 19]);
    let (last, summary, ahead, next) = (&requests[5], &requests[6], &requests[7], &requests[8]);
    assert_eq!((last.input_tokens, last.output_tokens), (500 + 5 * 200 + 100, 100));
    assert_eq!((summary.input_tokens, summary.output_tokens), (last.input_tokens + 100 + 32, 50));
    assert_eq!(pieces(summary)[..12], pieces(last)[..12], "after the whole prompt");
    assert_eq!((ahead.input_tokens, ahead.output_tokens), (500 + 50 + 400, 1));
    assert_eq!(pieces(ahead)[1], (GENERATED_FROM | 6, 50), "the summary, as generated");
    assert_eq!(pieces(ahead)[2..], pieces(summary)[9..13], "the newest turns");
    assert_eq!(pieces(next)[..6], pieces(ahead)[..]);
    assert_eq!((next.input_tokens, next.terms.priority), (950 + 100, 0));
    assert_eq!(requests.iter().filter(|request| request.terms.priority == 0).count(), 30, "no turn is lost");
    assert!(requests.windows(2).all(|pair| pair[0].arrival_ns < pair[1].arrival_ns));
}

#[test]
fn equal_watermarks_without_a_summary_are_a_sliding_window() {
    let requests = requests(&long_chat(", compaction = { high = 1000, low = 1000, summary = 0 }"));
    assert_eq!(requests.len(), 30);
    let lengths: Vec<u32> = requests.iter().map(|request| request.input_tokens).collect();
    assert_eq!(lengths[..6], [600, 800, 1000, 1200, 1400, 1600]);
    assert!(lengths[6..].iter().all(|tokens| *tokens == 1600), "{lengths:?}");
    let wrong = Spec::parse(&long_chat(", compaction = { high = 10, low = 11, summary = 0 }")).unwrap_err().1;
    assert_eq!(wrong.to_string(), "low of compaction of population 1 (chat) is 11; it must be from 0 to 10");
}
