//! Messages of earlier clients are still read, bit for bit: requests and answers of `trunkline.v1`, and exported sessions, which users keep.

#[path = "../../../tests/harness/fixtures.rs"]
mod fixtures;

use prost::Message;
use trunkline_server::proto as pb;

fn ids(ids: &[u32]) -> pb::TokenIds {
    pb::TokenIds { ids: ids.to_vec() }
}

/// A request with every field.
fn request() -> pb::GenerateRequest {
    let hint = pb::RetentionHint {
        from: 1,
        to: Some(8),
        part: pb::RetentionPart::Answer.into(),
        priority: Some(80),
        ttl_ms: 60_000,
        demote: false,
        pin: false,
    };
    pb::GenerateRequest {
        request_id: "r-1".into(),
        prompt: Some(pb::generate_request::Prompt::TokenIds(ids(&[1, 2, 299]))),
        add_special_tokens: Some(false),
        sampling: Some(pb::Sampling {
            temperature: Some(0.7),
            top_p: Some(0.9),
            top_k: 40,
            min_p: 0.05,
            repetition_penalty: Some(1.1),
            seed: Some(u64::MAX),
            ..pb::Sampling::default()
        }),
        stopping: Some(pb::Stopping {
            max_tokens: Some(9),
            min_tokens: 2,
            stop: vec!["END".into()],
            stop_token_ids: vec![2],
            ignore_eos: true,
        }),
        output: Some(pb::Output {
            logprobs: Some(0),
            skip_special_tokens: Some(false),
            include_stop_string: false,
            ..pb::Output::default()
        }),
        cache_salt: "salt".into(),
        tenant: "acme".into(),
        share_cache: Some(false),
        adapter: "lora".into(),
        extra_keys: vec!["image".into()],
        priority: -1,
        h2o: "on".into(),
        kv_dtype: "q8_0".into(),
        retention: vec![hint],
        reuse: "anywhere".into(),
        prefetch: false,
        background: false,
        timeout_ms: 1500,
    }
}

fn chunk() -> pb::Chunk {
    let top = vec![pb::Alternative { token_id: 4, logprob: -0.5 }];
    pb::Chunk {
        token_ids: vec![4, 5],
        text: "ok".into(),
        logprobs: vec![pb::TokenLogprob { token_id: 4, logprob: -0.5, top }],
        prompt_logprobs: Vec::new(),
    }
}

fn finish() -> pb::Finish {
    let usage = pb::Usage {
        prompt_tokens: 3,
        cached_tokens: 2,
        completion_tokens: 9,
        preemptions: 1,
        copied_tokens: 1,
        ..pb::Usage::default()
    };
    let stopped_by = Some(pb::finish::StoppedBy::StopString("END".into()));
    pb::Finish { reason: pb::FinishReason::Stop.into(), usage: Some(usage), timings: None, stopped_by }
}

fn answer(event: pb::generate_response::Event) -> pb::GenerateResponse {
    pb::GenerateResponse { request_id: "r-1".into(), event: Some(event) }
}

fn export() -> pb::SessionExport {
    let turn = |number, pinned| pb::Turn {
        number,
        id: format!("t-{number}"),
        input: Some(ids(&[7, 8])),
        input_tokens: 2,
        answer: Some(chunk()),
        finish: Some(finish()),
        pinned,
    };
    let layout = pb::Layout { version: 1, since: 2, first_recent: 1, covered: 1, summary: Some(ids(&[6])) };
    pb::SessionExport {
        model: "small-world".into(),
        settings: Some(pb::SessionSettings {
            tenant: "acme".into(),
            cache_salt: "salt".into(),
            share_cache: Some(true),
            kv_dtype: "f32".into(),
            h2o: "off".into(),
            priority: -1,
            compaction: Some(pb::Compaction::default()),
        }),
        prefix: Some(ids(&[1])),
        forgotten: 1,
        old_pins: vec![turn(0, true)],
        turns: vec![turn(1, false)],
        layouts: vec![layout],
    }
}

#[test]
fn messages_of_clients_are_read_as_they_were_written() {
    let text = pb::GenerateRequest {
        prompt: Some(pb::generate_request::Prompt::Text("hello".into())),
        ..pb::GenerateRequest::default()
    };
    let (chunk, finish) =
        (pb::generate_response::Event::Chunk(chunk()), pb::generate_response::Event::Finish(finish()));
    let made = [
        ("request", request().encode_to_vec()),
        ("request-of-text", text.encode_to_vec()),
        ("chunk", answer(chunk.clone()).encode_to_vec()),
        ("finish", answer(finish.clone()).encode_to_vec()),
        ("abort", pb::AbortRequest { request_ids: vec!["r-1".into()] }.encode_to_vec()),
        ("export", export().encode_to_vec()),
    ];
    let kept = fixtures::kept(env!("CARGO_MANIFEST_DIR"), "v1/messages.txt", &made);
    assert_eq!(pb::GenerateRequest::decode(&kept["request"][..]), Ok(request()));
    assert_eq!(pb::GenerateRequest::decode(&kept["request-of-text"][..]), Ok(text));
    assert_eq!(pb::GenerateResponse::decode(&kept["chunk"][..]), Ok(answer(chunk)));
    assert_eq!(pb::GenerateResponse::decode(&kept["finish"][..]), Ok(answer(finish)));
    assert_eq!(pb::AbortRequest::decode(&kept["abort"][..]).map(|abort| abort.request_ids.len()), Ok(1));
    assert_eq!(pb::SessionExport::decode(&kept["export"][..]), Ok(export()));
}
