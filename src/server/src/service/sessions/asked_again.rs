//! Requests for a summary that was empty: its beginning, with the end tokens masked, and then the rest.

use trunkline_core::Token;

use crate::proto;
use crate::proto::generate_request::Prompt;

/// Tokens of a summary before which it may not end.
const BEGUN: u32 = 16;
/// Bias of a token that must not be.
const MASKED: f32 = -100.0;

/// Returns the request for the beginning of a summary, which is not empty: `request` for a few tokens, none of them of `ends`.
pub fn beginning_of_summary(mut request: proto::GenerateRequest, ends: &[Token]) -> proto::GenerateRequest {
    let masked = ends.iter().map(|end| (*end, MASKED));
    request.sampling.get_or_insert_default().logit_bias.extend(masked);
    let stopping = request.stopping.get_or_insert_default();
    stopping.max_tokens = stopping.max_tokens.map(|most| most.min(BEGUN));
    request
}

/// Returns the request for what follows the beginning of a summary; `None` if the beginning is as long as a summary may be.
pub fn rest_of_summary(mut request: proto::GenerateRequest, begun: &[Token]) -> Option<proto::GenerateRequest> {
    if let Some(Prompt::TokenIds(prompt)) = &mut request.prompt {
        prompt.ids.extend_from_slice(begun);
    }
    let stopping = request.stopping.get_or_insert_default();
    stopping.max_tokens = stopping.max_tokens.map(|most| most.saturating_sub(begun.len() as u32));
    (stopping.max_tokens != Some(0)).then_some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_summary_has_no_end_and_the_rest_goes_on() {
        let request = |most| proto::GenerateRequest {
            prompt: Some(Prompt::TokenIds(proto::TokenIds { ids: vec![1, 2] })),
            stopping: Some(proto::Stopping { max_tokens: Some(most), ..Default::default() }),
            ..Default::default()
        };
        let begun = beginning_of_summary(request(40), &[7, 9]);
        assert_eq!(begun.sampling.unwrap().logit_bias, [(7, -100.0), (9, -100.0)].into());
        assert_eq!(begun.stopping.unwrap().max_tokens, Some(16));
        let rest = rest_of_summary(request(40), &[5; 16]).unwrap();
        assert_eq!(rest.stopping.clone().unwrap().max_tokens, Some(24));
        let ids = proto::TokenIds { ids: [vec![1, 2], vec![5; 16]].concat() };
        assert_eq!(rest.prompt, Some(Prompt::TokenIds(ids)));
        assert_eq!(beginning_of_summary(request(9), &[7]).stopping.unwrap().max_tokens, Some(9));
        assert_eq!(rest_of_summary(request(9), &[5; 9]), None);
    }
}
