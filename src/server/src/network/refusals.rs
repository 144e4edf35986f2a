//! Counts of refused requests by reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A field is wrong, or the text has a token that the model does not have.
    Invalid,
    /// The message is longer than messages may be.
    MessageTooLarge,
    /// The call has more headers than calls may have.
    HeadersTooLarge,
    /// The `request_id` names an active request.
    DuplicateId,
    /// Prompt and output exceed the context.
    ContextTooLong,
    /// The request does not fit the device, even alone.
    NeverFits,
    /// The waiting queue of the engines is full.
    QueueFull,
    /// The waiting queue has no room for the tokens of the request.
    QueuedTokensFull,
    /// The queue of commands to the core's thread is full.
    CommandQueueFull,
    /// Too much text is being tokenised.
    TokenizerBusy,
    /// The client has as many requests before their first token as the limit allows.
    ClientQueueLimit,
    /// The client has as many open requests as the limit allows.
    ClientRequestLimit,
    /// The client or the server has as many sessions as the limit allows.
    SessionLimit,
    /// The deadline passed before the request reached the core.
    Deadline,
    /// The server is draining or has stopped.
    Draining,
    /// No engine is in service.
    NoWorker,
    /// A defect of the server, or a lack of random bits.
    Internal,
}

impl Reason {
    /// All reasons with their names, in the order of the numbers.
    const ALL: [(Self, &'static str); 17] = [
        (Self::Invalid, "invalid"),
        (Self::MessageTooLarge, "message_too_large"),
        (Self::HeadersTooLarge, "headers_too_large"),
        (Self::DuplicateId, "duplicate_id"),
        (Self::ContextTooLong, "context_too_long"),
        (Self::NeverFits, "never_fits"),
        (Self::QueueFull, "queue_full"),
        (Self::QueuedTokensFull, "queued_tokens_full"),
        (Self::CommandQueueFull, "command_queue_full"),
        (Self::TokenizerBusy, "tokenizer_busy"),
        (Self::ClientQueueLimit, "client_queue_limit"),
        (Self::ClientRequestLimit, "client_request_limit"),
        (Self::SessionLimit, "session_limit"),
        (Self::Deadline, "deadline"),
        (Self::Draining, "draining"),
        (Self::NoWorker, "no_worker"),
        (Self::Internal, "internal"),
    ];

    /// Returns the name of the reason in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns `true` if the request is one too many for the server or for its client, and no engine saw the request.
    fn is_overload(self) -> bool {
        matches!(
            self,
            Self::CommandQueueFull
                | Self::TokenizerBusy
                | Self::ClientQueueLimit
                | Self::ClientRequestLimit
                | Self::SessionLimit
        )
    }
}

/// Number of refused requests since the server started, by reason.
#[derive(Default)]
pub(crate) struct Refusals([AtomicU64; Reason::ALL.len()]);

impl Refusals {
    /// Counts a refused request.
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of refused requests by the name of the reason.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::ALL.iter().zip(&self.0).map(|((_, name), count)| (*name, count.load(Ordering::Relaxed)))
    }

    /// Returns the number of requests refused as too many before an engine saw them.
    pub(crate) fn overload(&self) -> u64 {
        let overload = Reason::ALL.iter().zip(&self.0).filter(|((reason, _), _)| reason.is_overload());
        overload.map(|(_, count)| count.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_number_a_name_and_a_count() {
        let refusals = Refusals::default();
        for (at, (reason, name)) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{name}");
            (0..=at).for_each(|_| refusals.count(reason));
        }
        let counted: Vec<_> = refusals.each().collect();
        assert_eq!(counted[0], ("invalid", 1));
        assert_eq!(counted[16], ("internal", 17));
        assert_eq!(refusals.overload(), 9 + 10 + 11 + 12 + 13);
    }
}
