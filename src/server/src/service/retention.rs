//! Retention hints of clients: checked, then resolved to positions of tokens once the length of the prompt is known.

use trunkline_core::RetentionHint;
use trunkline_core::request::retention::{
    HINTS_MAX, PIN_NS_MAX, PRIORITY_DEFAULT, PRIORITY_MAX, RetentionError, TO_END, check,
};

use crate::proto::{self, RetentionPart};

const NS_PER_MS: u64 = 1_000_000;

/// Fault in the retention hints of a client. Hints count from 0.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HintFault {
    #[error(transparent)]
    Core(#[from] RetentionError),
    #[error("retention[{at}]: priority is missing; set 0 to {PRIORITY_MAX}")]
    NoPriority { at: usize },
    #[error("retention[{at}]: part is {part}; it must be a RetentionPart")]
    Part { at: usize, part: i32 },
}

/// Checks what can be checked without the prompt.
///
/// # Errors
/// The first fault, with the number of the hint.
pub(crate) fn check_hints(hints: &[proto::RetentionHint]) -> Result<(), HintFault> {
    if hints.len() > HINTS_MAX {
        return Err(RetentionError::TooMany { n: hints.len() }.into());
    }
    for (at, hint) in hints.iter().enumerate() {
        let Some(priority) = hint.priority else {
            return Err(HintFault::NoPriority { at });
        };
        if priority > u32::from(PRIORITY_MAX) {
            return Err(RetentionError::Priority { at, priority }.into());
        }
        if priority < u32::from(PRIORITY_DEFAULT) && hint.ttl_ms > 0 {
            return Err(RetentionError::LivesBelowDefault { at }.into());
        }
        if hint.demote && priority >= u32::from(PRIORITY_DEFAULT) {
            return Err(RetentionError::DemotesAboveEarly { at }.into());
        }
        if hint.pin && priority != u32::from(PRIORITY_MAX) {
            return Err(RetentionError::PinsBelowHighest { at }.into());
        }
        if hint.pin && !(1..=PIN_NS_MAX / NS_PER_MS).contains(&hint.ttl_ms) {
            return Err(RetentionError::PinTime { at }.into());
        }
        if RetentionPart::try_from(hint.part).is_err() {
            return Err(HintFault::Part { at, part: hint.part });
        }
        if let Some(to) = hint.to.filter(|to| *to <= hint.from) {
            return Err(RetentionError::Empty { at, from: hint.from, to }.into());
        }
    }
    Ok(())
}

/// Returns the hints by positions of tokens, for a prompt of `prompt_tokens` tokens. Hints without a token in their part are left out.
///
/// # Errors
/// If ranges overlap or are out of order.
pub(crate) fn resolve(hints: &[proto::RetentionHint], prompt_tokens: u32) -> Result<Vec<RetentionHint>, HintFault> {
    let resolved = |hint: &proto::RetentionHint| {
        let part = match hint.part() {
            RetentionPart::Unspecified => 0..TO_END,
            RetentionPart::Prompt => 0..prompt_tokens,
            RetentionPart::Answer => prompt_tokens..TO_END,
        };
        RetentionHint {
            from: hint.from.max(part.start),
            to: hint.to.unwrap_or(TO_END).min(part.end),
            priority: hint.priority.unwrap_or(PRIORITY_DEFAULT.into()) as u8,
            ttl_ns: hint.ttl_ms.saturating_mul(NS_PER_MS),
            demote: hint.demote,
            pin: hint.pin,
        }
    };
    let hints: Vec<_> = hints.iter().map(resolved).filter(|hint| hint.from < hint.to).collect();
    check(&hints)?;
    Ok(hints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(from: u32, to: Option<u32>, part: RetentionPart, priority: u32, ttl_ms: u64) -> proto::RetentionHint {
        proto::RetentionHint {
            from,
            to,
            part: part.into(),
            priority: Some(priority),
            ttl_ms,
            demote: false,
            pin: false,
        }
    }

    #[test]
    fn ranges_end_with_their_part() {
        use RetentionPart::{Answer, Prompt, Unspecified};
        let hints = [hint(0, Some(4), Unspecified, 80, 0), hint(4, None, Prompt, 60, 2), hint(0, None, Answer, 0, 0)];
        let expected = [(0, 4, 80, 0), (4, 10, 60, 2_000_000), (10, TO_END, 0, 0)];
        let expected = expected.map(|(from, to, priority, ttl_ns)| RetentionHint {
            from,
            to,
            priority,
            ttl_ns,
            demote: false,
            pin: false,
        });
        assert_eq!(resolve(&hints, 10).unwrap(), expected);
        assert_eq!(resolve(&hints[1..2], 4).unwrap(), [], "the prompt is shorter");
        let away = [proto::RetentionHint { demote: true, ..hint(0, None, Answer, 0, 0) }];
        let expected = RetentionHint { from: 10, to: TO_END, priority: 0, ttl_ns: 0, demote: true, pin: false };
        assert_eq!(resolve(&away, 10).unwrap(), [expected]);
        let whole = [hint(0, None, Unspecified, 40, 0)];
        assert_eq!(
            resolve(&whole, 4).unwrap(),
            [RetentionHint { from: 0, to: TO_END, priority: 40, ttl_ns: 0, demote: false, pin: false }]
        );
    }

    #[test]
    fn faults_name_the_hint() {
        use RetentionPart::{Answer, Unspecified};
        let fault = |hints: &[proto::RetentionHint]| match check_hints(hints) {
            Err(fault) => fault.to_string(),
            Ok(()) => resolve(hints, 10).unwrap_err().to_string(),
        };
        let any = hint(0, Some(4), Unspecified, 80, 0);
        assert_eq!(fault(&[any; 17]), "retention has 17 hints; send at most 16");
        assert_eq!(
            fault(&[any, any]).split(';').next(),
            Some("retention[1]: the range begins at token 0, before the end of the range before")
        );
        assert_eq!(
            fault(&[proto::RetentionHint { priority: None, ..any }]),
            "retention[0]: priority is missing; set 0 to 100"
        );
        assert_eq!(fault(&[hint(0, None, Answer, 101, 0)]), "retention[0]: priority is 101; it must be 0 to 100");
        assert_eq!(
            fault(&[hint(0, None, Answer, 3, 1)]),
            "retention[0]: a priority below 35 has no time to live; leave it out"
        );
        assert_eq!(
            fault(&[proto::RetentionHint { part: 7, ..any }]),
            "retention[0]: part is 7; it must be a RetentionPart"
        );
        let stays = proto::RetentionHint { demote: true, ..any };
        assert_eq!(fault(&[stays]), "retention[0]: demote needs a priority below 35; set 0, or leave demote out");
        let pin = |priority, ttl_ms| {
            fault(&[proto::RetentionHint { pin: true, ..hint(0, None, Unspecified, priority, ttl_ms) }])
        };
        assert_eq!(pin(99, 1), "retention[0]: pin needs the priority 100; set it, or leave pin out");
        let needs_time = "retention[0]: a pin needs a time to live, a day at most; set ttl_ms to 1 to 86400000";
        assert_eq!((pin(100, 0).as_str(), pin(100, 86_400_001).as_str()), (needs_time, needs_time));
        assert!(fault(&[hint(4, Some(4), Answer, 40, 0)]).starts_with("retention[0]: no token is in the range 4..4"));
    }
}
