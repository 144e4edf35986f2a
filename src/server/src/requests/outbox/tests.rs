//! Tests of outboxes: order, bounds and ends.

use trunkline_core::RequestId;

use super::*;
use crate::network::clock::Clock;
use crate::network::limits::NetworkLimits;

fn token() -> Output {
    Output::Token { token: 7, logprobs: None }
}

fn finish() -> Output {
    Output::Finish { reason: FinishReason::Length, usage: Usage::default(), times: RequestTimes::default() }
}

/// An outbox with room for `tokens` unread tokens, and its call.
fn outbox_of(tokens: u64) -> (OutboxSender, OutboxReceiver, Arc<Call>) {
    let limits = NetworkLimits { unread_bytes_per_call: tokens * token().bytes(), ..NetworkLimits::default() };
    let call = Call::detached(limits, Clock::start());
    let (sender, receiver) = outbox(call.clone());
    (sender, receiver, call)
}

fn unread_bytes(call: &Call) -> u64 {
    call.connection().network().unread_bytes()
}

fn poll(receiver: &OutboxReceiver, max: usize) -> Poll<usize> {
    receiver.poll_recv_many(&mut Context::from_waker(Waker::noop()), &mut Vec::new(), max)
}

#[test]
fn outputs_come_in_order_and_their_bytes_are_counted_until_taken() {
    let (sender, receiver, call) = outbox_of(3);
    assert_eq!(poll(&receiver, 8), Poll::Pending);
    assert!(sender.send(token()) && sender.send(token()) && sender.send(finish()));
    assert_eq!(unread_bytes(&call), 3 * token().bytes());
    assert!(matches!(receiver.try_recv(), Some(Output::Token { .. })));
    assert_eq!(poll(&receiver, 8), Poll::Ready(2));
    assert_eq!(unread_bytes(&call), 0);
    drop(sender);
    assert_eq!(poll(&receiver, 8), Poll::Ready(0));
    assert!(!receiver.is_discarded());
}

#[test]
fn log_probabilities_count_by_their_number() {
    let top = vec![(1, 0.5); 20];
    let bytes = size_of_val(top.as_slice()) as u64;
    let logprobs = TokenLogprobs { request: RequestId(1), token: 7, logprob: -0.5, top };
    let output = Output::Token { token: 7, logprobs: Some(logprobs) };
    assert_eq!(output.bytes(), token().bytes() + bytes);
}

#[test]
fn the_token_beyond_the_limit_discards_all_but_an_end_does_not() {
    let (sender, receiver, call) = outbox_of(2);
    assert!(sender.send(token()) && sender.send(token()) && sender.send(finish()), "the end has room in any case");
    assert_eq!(poll(&receiver, 8), Poll::Ready(3));

    let (sender, receiver, other) = outbox_of(2);
    assert!(sender.send(token()) && sender.send(token()) && !sender.send(token()));
    assert!(sender.is_closed() && receiver.is_discarded() && !sender.send(finish()));
    assert_eq!(poll(&receiver, 8), Poll::Ready(0));
    assert_eq!((unread_bytes(&call), unread_bytes(&other)), (0, 0));
}

#[test]
fn a_closed_outbox_takes_and_holds_nothing() {
    let (sender, receiver, call) = outbox_of(2);
    assert!(sender.send(token()));
    drop(receiver);
    assert!(sender.is_closed() && !sender.send(token()));
    assert_eq!(unread_bytes(&call), 0);
}
