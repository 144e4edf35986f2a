//! A request to generate: what becomes of each of its fields.

use tonic::Status;
use trunkline_server::proto;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::sampling::Structure;

use crate::proto::vllm::grpc::engine::generate_request::Input;
use crate::proto::vllm::grpc::engine::sampling_params::Constraint;
use crate::proto::vllm::grpc::engine::{GenerateRequest, SamplingParams};

/// Maximum number of answers to one prompt.
const N_MAX: u32 = 128;

/// A request whose fields can all be honoured.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: String,
    pub(crate) input: Input,
    /// `true` for tokens as they come, `false` for whole answers.
    pub(crate) streams: bool,
    /// Answers to the prompt.
    pub(crate) n: u32,
    /// Stop tokens of the request, without those of the model.
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) max_tokens: Option<u32>,
    seed: Option<i32>,
    /// The request of a choice, but for the prompt and what depends on it.
    message: proto::GenerateRequest,
}

fn refused(field: &str, why: &str) -> Status {
    Status::invalid_argument(format!("{field} {why}"))
}

/// Refuses fields that ask for what the server does not have.
fn check_extras(request: &GenerateRequest) -> Result<(), Status> {
    let asked_for = [
        ("kv_transfer_params", request.kv_transfer_params.is_some()),
        ("kv_transfer_params_json", request.kv_transfer_params_json.as_ref().is_some_and(|json| !json.is_empty())),
        ("mm_inputs", request.mm_inputs.is_some()),
        ("extra_mm_inputs", !request.extra_mm_inputs.is_empty()),
        ("media_refs", request.media_refs.is_some()),
    ];
    if let Some((field, _)) = asked_for.into_iter().find(|(_, is_set)| *is_set) {
        let why = match field {
            "kv_transfer_params" | "kv_transfer_params_json" => "is not supported: the server moves KV by itself",
            _ => "is not supported: the model reads text alone",
        };
        return Err(refused(field, why));
    }
    match request.data_parallel_rank {
        None | Some(0) => Ok(()),
        Some(rank) => Err(refused("data_parallel_rank", &format!("is {rank}; the server has rank 0 alone"))),
    }
}

fn check_sampling(params: &SamplingParams) -> Result<(), Status> {
    if let Some(token) = params.logit_bias.keys().find(|token| **token < 0) {
        return Err(refused("logit_bias", &format!("has the token {token}; token ids are 0 or more")));
    }
    for (field, n) in [("prompt_logprobs", params.prompt_logprobs), ("logprobs", params.logprobs)] {
        if let Some(n) = n.filter(|n| *n < 0) {
            return Err(refused(field, &format!("is {n}; it must be 0 or more: not all tokens can be reported")));
        }
    }
    if params.truncate_prompt_tokens.is_some() {
        return Err(refused("truncate_prompt_tokens", "is not supported; send the tokens to keep"));
    }
    if params.n > N_MAX {
        return Err(refused("n", &format!("is {}; it must be between 1 and {N_MAX}", params.n)));
    }
    match &params.constraint {
        Some(Constraint::StructuralTag(_)) => {
            Err(refused("structural_tag", "is not supported; json_schema, regex, grammar, choice and json_object are"))
        }
        _ => Ok(()),
    }
}

/// Returns the structure of the answer that a constraint asks for.
fn structure(constraint: Constraint) -> Option<Structure> {
    match constraint {
        Constraint::JsonSchema(schema) => Some(Structure::JsonSchema(schema)),
        Constraint::Regex(regex) => Some(Structure::Regex(regex)),
        Constraint::Grammar(grammar) => Some(Structure::Grammar(grammar)),
        Constraint::JsonObject(true) => Some(Structure::JsonSchema(r#"{"type":"object"}"#.into())),
        Constraint::Choice(choice) => Some(Structure::Choice(proto::Choices { texts: choice.choices })),
        Constraint::JsonObject(false) | Constraint::StructuralTag(_) => None,
    }
}

/// Returns the value of a field for which 0 is not set, as vLLM's service reads it.
fn set(value: f32) -> Option<f32> {
    (value != 0.0).then_some(value)
}

impl Asked {
    /// Checks a request.
    ///
    /// `spaces_between_special_tokens` and `include_stop_str_in_output` are about text, which the answers do not have; `grammar_from_first_token` is about a
    /// constraint, and requests with one are refused.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a field that cannot be honoured; the message begins with its name.
    pub(crate) fn of(request: GenerateRequest) -> Result<Self, Status> {
        check_extras(&request)?;
        let GenerateRequest { request_id, input, sampling_params, stream, .. } = request;
        let params = sampling_params.unwrap_or_default();
        check_sampling(&params)?;
        let input = input.ok_or_else(|| refused("input", "is missing; set tokenized or text"))?;
        let sampling = proto::Sampling {
            temperature: params.temperature,
            top_p: set(params.top_p),
            top_k: params.top_k,
            min_p: params.min_p,
            repetition_penalty: set(params.repetition_penalty),
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            logit_bias: params.logit_bias.iter().map(|(token, bias)| (token.unsigned_abs(), *bias)).collect(),
            structure: params.constraint.and_then(structure),
            seed: None,
        };
        let stopping = proto::Stopping {
            max_tokens: None,
            min_tokens: params.min_tokens,
            stop: params.stop,
            stop_token_ids: params.stop_token_ids.clone(),
            ignore_eos: params.ignore_eos,
        };
        let output = proto::Output {
            logprobs: params.logprobs.map(i32::unsigned_abs),
            prompt_logprobs: params.prompt_logprobs.map(i32::unsigned_abs),
            skip_special_tokens: Some(params.skip_special_tokens),
            ..proto::Output::default()
        };
        Ok(Self {
            id: request_id,
            input,
            streams: stream,
            n: params.n.max(1),
            stop_token_ids: params.stop_token_ids,
            max_tokens: params.max_tokens,
            seed: params.seed,
            message: proto::GenerateRequest {
                sampling: Some(sampling),
                stopping: Some(stopping),
                output: Some(output),
                ..proto::GenerateRequest::default()
            },
        })
    }

    /// Returns the request of one choice.
    pub(crate) fn choice(&self, choice: u32, id: String, ids: Vec<u32>, max_tokens: u32) -> proto::GenerateRequest {
        let mut message = self.message.clone();
        message.request_id = id;
        message.prompt = Some(Prompt::TokenIds(proto::TokenIds { ids }));
        if let Some(stopping) = &mut message.stopping {
            stopping.max_tokens = Some(max_tokens);
        }
        if let Some(output) = &mut message.output {
            // The other choices find the prompt in the cache.
            output.prompt_logprobs = output.prompt_logprobs.filter(|_| choice == 0);
        }
        if let Some(sampling) = &mut message.sampling {
            // The draws of further choices differ, and those of the first are those of a request for one.
            let of_choice = |seed: i32| i64::from(seed).cast_unsigned().wrapping_add(choice.into());
            sampling.seed = self.seed.map(of_choice);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::vllm::grpc::engine::{
        ChoiceConstraint, KvTransferParams, MediaRefs, MultimodalInputs, TokenizedInput,
    };

    fn request(edit: impl FnOnce(&mut GenerateRequest, &mut SamplingParams)) -> GenerateRequest {
        let input = Some(Input::Tokenized(TokenizedInput { input_ids: vec![1, 2], ..TokenizedInput::default() }));
        let (mut request, mut params) =
            (GenerateRequest { input, ..GenerateRequest::default() }, SamplingParams::default());
        edit(&mut request, &mut params);
        request.sampling_params = Some(params);
        request
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        type Edit = fn(&mut GenerateRequest, &mut SamplingParams);
        let cases: [(&str, Edit); 12] = [
            ("logit_bias", |_, params| _ = params.logit_bias.insert(-1, 1.0)),
            ("prompt_logprobs", |_, params| params.prompt_logprobs = Some(-1)),
            ("logprobs", |_, params| params.logprobs = Some(-1)),
            ("truncate_prompt_tokens", |_, params| params.truncate_prompt_tokens = Some(-1)),
            ("n", |_, params| params.n = 129),
            ("structural_tag", |_, params| params.constraint = Some(Constraint::StructuralTag("a".into()))),
            ("kv_transfer_params", |request, _| request.kv_transfer_params = Some(KvTransferParams::default())),
            ("kv_transfer_params_json", |request, _| request.kv_transfer_params_json = Some("{}".into())),
            ("mm_inputs", |request, _| request.mm_inputs = Some(MultimodalInputs::default())),
            ("media_refs", |request, _| request.media_refs = Some(MediaRefs::default())),
            ("data_parallel_rank", |request, _| request.data_parallel_rank = Some(1)),
            ("input", |request, _| request.input = None),
        ];
        for (field, edit) in cases {
            let status = Asked::of(request(edit)).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{field}");
            assert_eq!(status.message().split(' ').next(), Some(field));
        }
    }

    #[test]
    fn every_constraint_is_a_structure_and_none_is_none() {
        let choices = vec!["a".to_owned()];
        for (constraint, expected) in [
            (Constraint::JsonSchema("{}".into()), Some(Structure::JsonSchema("{}".into()))),
            (Constraint::Regex("a+".into()), Some(Structure::Regex("a+".into()))),
            (Constraint::Grammar("start: \"a\"".into()), Some(Structure::Grammar("start: \"a\"".into()))),
            (Constraint::JsonObject(true), Some(Structure::JsonSchema(r#"{"type":"object"}"#.into()))),
            (Constraint::JsonObject(false), None),
            (
                Constraint::Choice(ChoiceConstraint { choices: choices.clone() }),
                Some(Structure::Choice(proto::Choices { texts: choices })),
            ),
        ] {
            let asked = Asked::of(request(|_, params| params.constraint = Some(constraint))).unwrap();
            assert_eq!(asked.choice(0, "a".into(), vec![1], 9).sampling.unwrap().structure, expected);
        }
    }

    #[test]
    fn a_zero_that_means_not_set_is_none_and_the_draws_of_choices_differ() {
        let asked = Asked::of(request(|request, params| {
            request.data_parallel_rank = Some(0);
            params.constraint = Some(Constraint::JsonObject(false));
            params.seed = Some(-1);
            (params.logprobs, params.prompt_logprobs) = (Some(3), Some(2));
            (params.frequency_penalty, params.presence_penalty) = (0.5, -0.5);
            params.logit_bias.insert(7, 1.5);
        }));
        let asked = asked.unwrap();
        assert_eq!((asked.n, asked.max_tokens), (1, None));
        let first = asked.choice(0, "a".into(), vec![1, 2], 9);
        let sampling = first.sampling.unwrap();
        assert_eq!((sampling.temperature, sampling.top_p, sampling.repetition_penalty), (None, None, None));
        assert_eq!((sampling.frequency_penalty, sampling.presence_penalty), (0.5, -0.5));
        assert_eq!(sampling.logit_bias, [(7, 1.5)].into());
        let output = first.output.unwrap();
        assert_eq!((first.stopping.unwrap().max_tokens, output.logprobs), (Some(9), Some(3)));
        let second = asked.choice(1, "b".into(), vec![1, 2], 9);
        assert_eq!((output.prompt_logprobs, second.output.unwrap().prompt_logprobs), (Some(2), None));
        assert_eq!((sampling.seed, second.sampling.unwrap().seed), (Some(u64::MAX), Some(0)));
    }
}
