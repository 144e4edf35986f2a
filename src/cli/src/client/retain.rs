//! Retention hints on the command line: `0..2048:priority=80,ttl_ms=60000`.

use trunkline_core::names::spec::{Param, Spec};
use trunkline_core::request::retention::{PRIORITY_MAX, TO_END};
use trunkline_quote::quoted;
use trunkline_server::proto::{RetentionHint, RetentionPart};

const NS_PER_MS: u64 = 1_000_000;

const PARAMS: [Param; 4] = [
    Param {
        key: "priority",
        about: "priority; lower is evicted first",
        default: NOT_SET,
        min: 0,
        max: PRIORITY_MAX as u64,
    },
    Param {
        key: "ttl_ms",
        about: "time to the default priority; 0 is without an end",
        default: 0,
        min: 0,
        max: u64::MAX,
    },
    Param { key: "demote", about: "1: leave the device for the nearest tier at once", default: 0, min: 0, max: 1 },
    Param { key: "pin", about: "1: keep the full priority for all of ttl_ms", default: 0, min: 0, max: 1 },
];
/// Value of a priority that is left out.
const NOT_SET: u64 = PRIORITY_MAX as u64 + 1;

/// Parses a hint: a part or a range of tokens, then priority and time to live.
///
/// # Errors
/// If the range or a parameter is not understood, or the priority is missing. The server checks the rest.
pub fn hint(text: &str) -> Result<RetentionHint, String> {
    let spec = Spec::new(text);
    let (from, to, part) = tokens(spec.name)
        .ok_or_else(|| format!("{} is not a range; write FROM..TO, FROM.., prompt or answer", quoted(spec.name)))?;
    let values = spec.values(&PARAMS).map_err(|error| error.to_string())?;
    if values[0] == NOT_SET {
        return Err(format!("add a priority from 0 to {PRIORITY_MAX}, as in '{}:priority=80'", spec.name));
    }
    let (priority, demote, pin) = (Some(values[0] as u32), values[2] == 1, values[3] == 1);
    Ok(RetentionHint { from, to, part: part.into(), priority, ttl_ms: values[1], demote, pin })
}

/// Returns a hint of a trace as a client sends it.
pub fn sent(hint: &trunkline_core::RetentionHint) -> RetentionHint {
    RetentionHint {
        from: hint.from,
        to: (hint.to != TO_END).then_some(hint.to),
        part: RetentionPart::Unspecified.into(),
        priority: Some(hint.priority.into()),
        ttl_ms: hint.ttl_ns.div_ceil(NS_PER_MS),
        demote: hint.demote,
        pin: hint.pin,
    }
}

/// Returns the first token, the token after the last one, and the part.
fn tokens(name: &str) -> Option<(u32, Option<u32>, RetentionPart)> {
    match name {
        "prompt" => Some((0, None, RetentionPart::Prompt)),
        "answer" => Some((0, None, RetentionPart::Answer)),
        range => {
            let (from, to) = range.split_once("..")?;
            let to = if to.is_empty() { None } else { Some(to.parse().ok()?) };
            Some((from.parse().ok()?, to, RetentionPart::Unspecified))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_parts_are_read() {
        let read = |text| hint(text).map(|hint| (hint.from, hint.to, hint.part, hint.priority, hint.ttl_ms));
        assert_eq!(read("0..2048:priority=80,ttl_ms=60000"), Ok((0, Some(2048), 0, Some(80), 60_000)));
        assert_eq!(read("7..:priority=100"), Ok((7, None, 0, Some(100), 0)));
        assert_eq!(read("prompt:priority=50"), Ok((0, None, 1, Some(50), 0)));
        assert!(hint("answer:priority=0,demote=1").unwrap().demote);
        assert!(hint("prompt:priority=100,ttl_ms=1000,pin=1").unwrap().pin);
        assert_eq!(read("answer:priority=0"), Ok((0, None, 2, Some(0), 0)));
    }

    #[test]
    fn faults_are_one_line_with_the_remedy() {
        let fault = |text| hint(text).unwrap_err();
        assert_eq!(fault("all:priority=3"), "'all' is not a range; write FROM..TO, FROM.., prompt or answer");
        assert_eq!(fault("0..4"), "add a priority from 0 to 100, as in '0..4:priority=80'");
        assert_eq!(
            fault("0..4:priority=high"),
            "'0..4': priority is 'high'; it must be a whole number between 0 and 100"
        );
        assert_eq!(fault("0..4:prio=3"), "'0..4' has no parameter 'prio'; it has: priority, ttl_ms, demote, pin");
    }
}
