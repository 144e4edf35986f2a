//! Announcements and answers: every value survives the wire, and every broken rule is named.

use std::time::Duration;

use proptest::prelude::*;
use prost::Message;
use trunkline_attach::{Abilities, Hello, HelloFault, KvRoom, LockStep, Resume, Session, wire};
use trunkline_port::{Keeps, LayerGroup, ModelInfo};

fn hello() -> Hello {
    let group = |layers: &[u32], keeps| LayerGroup { layers: layers.to_vec(), keeps, ..LayerGroup::default() };
    let scored = LayerGroup { weight: 1250, ..group(&[2], Keeps::Scored) };
    let groups = vec![group(&[0, 3], Keeps::All), group(&[1], Keeps::Window(64)), scored];
    let model = ModelInfo {
        name: "tiny".to_owned(),
        revision: "r1".to_owned(),
        vocab_size: 300,
        max_context: 4096,
        eos_token_ids: vec![2, 299],
        n_layers: 4,
        hidden_size: 64,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        kv_dtype: "f32".to_owned(),
        kv_bytes_per_token: 1536,
        groups,
    };
    let abilities = Abilities {
        max_sequences: 64,
        max_tokens: 2048,
        steps_in_flight: 2,
        max_drafts: 3,
        max_logprobs: 20,
        partial_writes: true,
        in_step_hits: true,
        shared_memory: true,
        scores: true,
        scores_by_group: true,
        seeded_sampling: true,
        penalties: true,
        grammars: true,
        prompt_logprobs: true,
        pipeline_stages: 2,
    };
    Hello {
        name: "gpu-0".to_owned(),
        program: "test 1".to_owned(),
        model,
        kv: KvRoom { block_sizes: vec![16, 32], tokens: 1000, block_io: true },
        abilities,
        resume: Some(Resume { session: "s".to_owned(), life: 7 }),
        lock_step: Some(LockStep { group: "moe".to_owned(), size: 4, rank: 3 }),
    }
}

/// Gives the layer groups single KV heads instead of layers.
fn give_heads(hello: &mut wire::Hello, heads: [&[u32]; 3]) {
    for (group, heads) in hello.model.as_mut().unwrap().groups.iter_mut().zip(heads) {
        (group.layers, group.heads) = (Vec::new(), heads.to_vec());
    }
}

#[test]
fn a_hello_survives_the_wire() {
    for resume in [hello().resume, None] {
        let sent = Hello { resume, ..hello() };
        let bytes = sent.encode().encode_to_vec();
        assert_eq!(Hello::decode(wire::Hello::decode(&bytes[..]).unwrap()), Ok(sent));
    }
    let mut divided = hello().encode();
    give_heads(&mut divided, [&[0, 3, 7], &[1, 2], &[4, 5, 6]]);
    let decoded = Hello::decode(divided.clone()).unwrap();
    assert_eq!((&decoded.model.groups[2].heads[..], &decoded.model.groups[2].layers[..]), (&[4, 5, 6][..], &[][..]));
    assert_eq!(decoded.encode(), divided);
}

#[test]
fn every_broken_rule_of_a_hello_is_named() {
    type Break = fn(&mut wire::Hello);
    let model: fn(&mut wire::Hello) -> &mut wire::WorkerModel = |hello| hello.model.as_mut().unwrap();
    let breaks: [(Break, &str); 31] = [
        (|hello| hello.protocol = 2, "version 2 of the protocol"),
        (|hello| hello.name.clear(), "name must have 1 to 256 bytes"),
        (|hello| hello.name = "x".repeat(257), "name must have 1 to 256 bytes"),
        (|hello| hello.name = "a\nb".to_owned(), "no control characters"),
        (|hello| hello.model = None, "model is missing"),
        (|hello| hello.kv = None, "kv is missing"),
        (|hello| hello.abilities = None, "abilities is missing"),
        (|hello| hello.model.as_mut().unwrap().vocab_size = 0, "model.vocab_size is 0"),
        (|hello| hello.model.as_mut().unwrap().max_context = u32::MAX, "model.max_context is 4294967295"),
        (|hello| hello.model.as_mut().unwrap().n_layers = 0, "model.n_layers is 0"),
        (|hello| hello.model.as_mut().unwrap().eos_token_ids[0] = 300, "model.eos_token_ids is 300"),
        (|hello| hello.model.as_mut().unwrap().kv_bytes_per_token = 1000, "model.kv_bytes_per_token is 1000"),
        (|hello| hello.model.as_mut().unwrap().groups[1].layers = vec![0], "layer 0"),
        (|hello| hello.model.as_mut().unwrap().groups[0].layers = vec![3, 0], "layer 0"),
        (|hello| hello.model.as_mut().unwrap().groups[1].layers = vec![9], "layer 9"),
        (|hello| drop(hello.model.as_mut().unwrap().groups.pop()), "layer 2"),
        (|hello| hello.model.as_mut().unwrap().groups[1].heads = vec![1], "groups[0]: a group has at least one layer"),
        (|hello| give_heads(hello, [&[0, 1, 2, 3, 4], &[5], &[6, 9]]), "head 9"),
        (|hello| give_heads(hello, [&[0, 1, 2, 3, 4], &[5], &[6]]), "head 7"),
        (|hello| hello.model.as_mut().unwrap().groups[2].window = 5, "groups[2]: a group has a window or scores"),
        (|hello| hello.model.as_mut().unwrap().groups[2].weight = 64_001, "groups[2]: a weight is at most 64000"),
        (|hello| hello.model.as_mut().unwrap().groups[1].weight = 1, "groups[1]: a weight is at most 64000, and only"),
        (|hello| hello.model.as_mut().unwrap().groups[0].window = 5, "groups[0]: the first group keeps all"),
        (|hello| hello.kv.as_mut().unwrap().block_sizes.clear(), "kv.block_sizes is 0"),
        (|hello| hello.kv.as_mut().unwrap().block_sizes.push(16), "kv.block_sizes is 16"),
        (|hello| hello.kv.as_mut().unwrap().tokens = 31, "kv.tokens is 31"),
        (|hello| hello.abilities.as_mut().unwrap().steps_in_flight = 0, "abilities.steps_in_flight is 0"),
        (|hello| hello.abilities.as_mut().unwrap().pipeline_stages = 65, "abilities.pipeline_stages is 65"),
        (|hello| hello.lock_step.as_mut().unwrap().rank = 4, "lock_step.rank is 4"),
        (|hello| hello.lock_step.as_mut().unwrap().size = 0, "lock_step.size is 0"),
        (|hello| hello.lock_step.as_mut().unwrap().group.clear(), "lock_step.group must have 1 to 256 bytes"),
    ];
    for (break_rule, expected) in breaks {
        let mut message = hello().encode();
        break_rule(&mut message);
        let line = Hello::decode(message).unwrap_err().to_string();
        assert!(line.contains(expected) && !line.contains('\n'), "{line:?} does not say {expected:?}");
    }
    let mut message = hello().encode();
    model(&mut message).kv_bytes_per_token = 3 << 40;
    assert!(matches!(Hello::decode(message), Err(HelloFault::Range { field: "the size of a block", .. })));
}

fn session() -> Session {
    Session {
        name: "s".to_owned(),
        life: 7,
        resumed: true,
        engine: 3,
        block_size: 32,
        blocks: 31,
        steps_in_flight: 2,
        max_drafts: 3,
        heartbeat: Duration::from_secs(1),
        silence: Duration::from_secs(5),
        resume: Duration::from_secs(30),
        shared_memory: Some(wire::SharedMemory { pid: 1, fd: 2, mark: vec![3; 16], slots: 4, slot_bytes: 8192 }),
    }
}

#[test]
fn a_welcome_survives_the_wire() {
    let bytes = session().encode().encode_to_vec();
    assert_eq!(hello().accept(wire::Welcome::decode(&bytes[..]).unwrap()), Ok(session()));
    let mut old = hello();
    old.abilities.shared_memory = false;
    let accepted = old.accept(session().encode());
    assert_eq!(accepted, Ok(Session { shared_memory: None, ..session() }), "it did not ask for memory");
}

#[test]
fn a_welcome_beyond_the_announcement_is_refused() {
    let good = session();
    let bad = [
        (Session { block_size: 64, ..good.clone() }, "block_size"),
        (Session { block_size: 0, ..good.clone() }, "block_size"),
        (Session { blocks: 32, ..good.clone() }, "blocks"),
        (Session { blocks: 0, ..good.clone() }, "blocks"),
        (Session { steps_in_flight: 3, ..good.clone() }, "steps_in_flight"),
        (Session { max_drafts: 4, ..good.clone() }, "max_drafts"),
        (Session { heartbeat: Duration::ZERO, ..good.clone() }, "heartbeat_ms"),
        (Session { silence: good.heartbeat, ..good.clone() }, "silence_ms"),
        (Session { life: 8, ..good.clone() }, "life"),
    ];
    for (session, field) in bad {
        assert_eq!(hello().accept(session.encode()).unwrap_err().field, field);
    }
    let fresh = Hello { resume: None, ..hello() };
    assert_eq!(fresh.accept(good.encode()).unwrap_err().field, "life", "nothing was to be resumed");
}

proptest! {
    #[test]
    fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = wire::Hello::decode(&bytes[..]) {
            let _ = Hello::decode(message);
        }
        if let Ok(message) = wire::Welcome::decode(&bytes[..]) {
            let _ = hello().accept(message);
        }
    }
}
