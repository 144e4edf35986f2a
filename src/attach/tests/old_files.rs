//! Messages of earlier programs are still read, bit for bit: version 1 of the protocol of workers.

#[path = "../../../tests/harness/fixtures.rs"]
mod fixtures;

use prost::Message;
use trunkline_attach::wire::from_worker::Message as Said;
use trunkline_attach::wire::to_worker::Message as Heard;
use trunkline_attach::{Hello, wire};

/// Announcement with every field.
fn hello() -> wire::Hello {
    let group = |layers: &[u32], window, scored| wire::WorkerLayerGroup {
        layers: layers.to_vec(),
        window,
        scored,
        heads: Vec::new(),
        weight: if scored { 1250 } else { 0 },
    };
    wire::Hello {
        protocol: 1,
        name: "gpu-0".into(),
        program: "example 1".into(),
        model: Some(wire::WorkerModel {
            name: "tiny".into(),
            revision: "r1".into(),
            vocab_size: 300,
            max_context: 4096,
            eos_token_ids: vec![2, 299],
            n_layers: 4,
            hidden_size: 64,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            kv_dtype: "f32".into(),
            kv_bytes_per_token: 1536,
            groups: vec![group(&[0, 3], 0, false), group(&[1], 64, false), group(&[2], 0, true)],
        }),
        kv: Some(wire::WorkerKv { block_sizes: vec![16, 32], tokens: 1000, block_io: true }),
        abilities: Some(wire::WorkerAbilities {
            max_sequences: 64,
            max_tokens: 2048,
            steps_in_flight: 2,
            max_drafts: 3,
            max_logprobs: 20,
            partial_writes: true,
            scores: true,
            seeded_sampling: true,
            pipeline_stages: 2,
            in_step_hits: true,
            shared_memory: true,
            scores_by_group: true,
            ..wire::WorkerAbilities::default()
        }),
        resume: Some(wire::Resume { session: "s".into(), life: 7 }),
        lock_step: Some(wire::LockStep { group: "moe".into(), size: 4, rank: 3 }),
    }
}

/// A step with a prompt's first chunk, and a decode that drafts and drops.
fn step() -> wire::Step {
    let sampling = wire::WorkerSampling {
        temperature: 0.7,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.05,
        repetition_penalty: 1.1,
        seed: u64::MAX,
        logprobs: Some(0),
        ..wire::WorkerSampling::default()
    };
    let start = wire::Start { index: 1, request: 9, tokens: vec![1, 2, 299], n_prompt: 3, sampling: Some(sampling) };
    wire::Step {
        id: 12,
        life: 7,
        starts: vec![start],
        slots: vec![3, 0],
        computed: vec![40, 0],
        n_tokens: vec![1, 2],
        sample: vec![1, 0],
        n_generated: vec![8, 0],
        table_keep: vec![2, 0],
        n_blocks: vec![1, 1],
        blocks: vec![u32::MAX, 5, 6, 7, 8, 9],
        kv_write_from: vec![40, 0],
        n_drafts: vec![3, 0],
        drops: vec![wire::Drop { index: 0, group: 2, first: 1, n: 1 }],
        scored_rows: vec![1, 0],
        score_kind: wire::ScoreKind::Max.into(),
        scores_by_group: true,
        prompt_rows: Vec::new(),
    }
}

fn done() -> wire::StepDone {
    wire::StepDone {
        id: 12,
        life: 7,
        tokens: vec![4, 299],
        counts: vec![2, 0],
        logprobs: vec![wire::WorkerLogprob { logprob: -0.5, top_ids: vec![4], top_logprobs: vec![-0.5] }],
        scores: vec![0.25, 0.0, 0.75],
        drafted: 3,
        accepted: 1,
        busy_us: 1500,
        prompt_logprobs: Vec::new(),
        weights: None,
        faults: vec![wire::SequenceFault::None.into(), wire::SequenceFault::Unsupported.into()],
    }
}

/// Every kind of message of a worker.
fn said() -> Vec<(&'static str, Said)> {
    let messages = vec![
        Said::Hello(hello()),
        Said::StepDone(done()),
        Said::StepFailed(wire::StepFailed { id: 12, life: 7, reason: "no memory".into(), request: Some(9) }),
        Said::ResetDone(wire::ResetDone { life: 8 }),
        Said::BlockRead(wire::BlockRead { id: 1, data: vec![1, 2, 3], error: String::new(), slot_bytes: 4096 }),
        Said::BlockWritten(wire::BlockWritten { id: 2, error: "no such block".into() }),
        Said::Heartbeat(wire::Heartbeat {}),
        Said::SharedMemoryOpened(wire::SharedMemoryOpened { proof: vec![0xaa; 16] }),
    ];
    let name = |message: &Said| match message {
        Said::Hello(_) => "hello",
        Said::StepDone(_) => "step-done",
        Said::StepFailed(_) => "step-failed",
        Said::ResetDone(_) => "reset-done",
        Said::BlockRead(_) => "block-read",
        Said::BlockWritten(_) => "block-written",
        Said::Heartbeat(_) => "heartbeat-of-worker",
        Said::SharedMemoryOpened(_) => "shared-memory-opened",
    };
    messages.into_iter().map(|message| (name(&message), message)).collect()
}

/// Every kind of message of a server.
fn heard() -> Vec<(&'static str, Heard)> {
    let shared_memory = wire::SharedMemory { pid: 100, fd: 9, mark: vec![0x55; 16], slots: 16, slot_bytes: 1 << 20 };
    let welcome = wire::Welcome {
        session: "s".into(),
        life: 7,
        resumed: true,
        engine: 1,
        block_size: 16,
        blocks: 62,
        steps_in_flight: 2,
        max_drafts: 3,
        heartbeat_ms: 1000,
        silence_ms: 5000,
        resume_ms: 10_000,
        shared_memory: Some(shared_memory),
    };
    let messages = vec![
        Heard::Welcome(welcome),
        Heard::Step(step()),
        Heard::Reset(wire::Reset { life: 8 }),
        Heard::ReadBlock(wire::ReadBlock { id: 1, life: 7, block: 5, slot: Some(0) }),
        Heard::WriteBlock(wire::WriteBlock {
            id: 2,
            life: 7,
            block: 6,
            data: vec![1, 2, 3],
            slot: None,
            slot_bytes: 0,
        }),
        Heard::Heartbeat(wire::Heartbeat {}),
        Heard::Idle(wire::Idle { life: 7 }),
    ];
    let name = |message: &Heard| match message {
        Heard::Welcome(_) => "welcome",
        Heard::Step(_) => "step",
        Heard::Reset(_) => "reset",
        Heard::ReadBlock(_) => "read-block",
        Heard::WriteBlock(_) => "write-block",
        Heard::Heartbeat(_) => "heartbeat-of-server",
        Heard::Idle(_) => "idle",
    };
    messages.into_iter().map(|message| (name(&message), message)).collect()
}

#[test]
fn messages_of_version_1_are_read_as_they_were_written() {
    let from = |message: &Said| wire::FromWorker { message: Some(message.clone()) };
    let to = |message: &Heard| wire::ToWorker { message: Some(message.clone()) };
    let mut made: Vec<_> = said().iter().map(|(name, message)| (*name, from(message).encode_to_vec())).collect();
    made.extend(heard().iter().map(|(name, message)| (*name, to(message).encode_to_vec())));
    let kept = fixtures::kept(env!("CARGO_MANIFEST_DIR"), "v1/messages.txt", &made);
    for (name, message) in said() {
        assert_eq!(wire::FromWorker::decode(&kept[name][..]).unwrap(), from(&message), "{name}");
    }
    for (name, message) in heard() {
        assert_eq!(wire::ToWorker::decode(&kept[name][..]).unwrap(), to(&message), "{name}");
    }
    let announced = Hello::decode(hello()).expect("a Hello of version 1");
    assert_eq!(announced.encode(), hello(), "every field counts");
    let session = announced.accept(match &heard()[0].1 {
        Heard::Welcome(welcome) => welcome.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(session.map(|session| session.blocks), Ok(62));
}
