//! Announcement of a worker: model, KV blocks, limits and abilities.

use trunkline_port::{Keeps, LayerGroup, ModelInfo};

use crate::{PROTOCOL, wire};

/// Maximum length of [`Hello::name`], bytes.
const NAME_BYTES: usize = 256;
/// Maximum length of every other text, bytes.
const TEXT_BYTES: usize = 4096;
/// Maximum number of tokens of a block.
const BLOCK_SIZE_MAX: u32 = 1 << 16;
/// Maximum number of bytes of a block: a block travels in one message.
const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of stages of a worker's pipeline.
const PIPELINE_STAGES_MAX: u32 = 64;
/// Maximum number of KV heads of a model whose layer groups have single heads.
const HEADS_MAX: u64 = 1 << 20;
/// Maximum number of workers of a lock-step group.
const GROUP_SIZE_MAX: u32 = 1024;
/// Number of entries of each list in a [`wire::Hello`], at most.
const LIST_MAX: usize = 1 << 16;

/// Announcement of a worker: the first message of each connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hello {
    /// Name of the worker, unique among the workers of a server; 1 to 256 bytes without control characters.
    pub name: String,
    /// Program and version, for logs.
    pub program: String,
    /// Model of the worker.
    pub model: ModelInfo,
    /// KV blocks on the worker's device.
    pub kv: KvRoom,
    /// Limits and abilities of the worker.
    pub abilities: Abilities,
    /// Session to continue after a broken connection.
    pub resume: Option<Resume>,
    /// Group of a worker that runs its steps in lock step with others.
    pub lock_step: Option<LockStep>,
}

/// Place of a worker in a group that runs each step of the model together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockStep {
    /// Name of the group; 1 to 256 bytes without control characters.
    pub group: String,
    /// Workers of the group.
    pub size: u32,
    /// Number of the worker in the group, below `size`.
    pub rank: u32,
}

/// Room for KV on a worker's device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvRoom {
    /// Sizes of a block in tokens, preferred first; at least one.
    pub block_sizes: Vec<u32>,
    /// Tokens of all blocks together: a worker has `tokens / block size` blocks.
    pub tokens: u64,
    /// `true` if the worker reads and writes blocks for the server.
    pub block_io: bool,
}

/// Limits and abilities of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Maximum number of sequences of one step; at least 1.
    pub max_sequences: u32,
    /// Maximum number of tokens of one step; at least 1.
    pub max_tokens: u32,
    /// Steps taken before the first is answered, at least 1.
    pub steps_in_flight: u32,
    /// Maximum number of tokens drafted for a sequence in one step.
    pub max_drafts: u32,
    /// Most likely tokens reported with each token, at most; 0 for no log probabilities.
    pub max_logprobs: u32,
    /// `true` if KV below `kv_write_from` stays unwritten.
    pub partial_writes: bool,
    /// `true` if the worker reports attention scores of blocks.
    pub scores: bool,
    /// `true` if the worker reports scores of each layer group by itself where a step asks for them.
    pub scores_by_group: bool,
    /// `true` if sampling is supported, with token n drawn from (seed, n) alone.
    pub seeded_sampling: bool,
    /// `true` if penalties for generated tokens and biases of logits are honoured.
    pub penalties: bool,
    /// `true` if answers get the structure that a request asks for.
    pub grammars: bool,
    /// `true` if log probabilities of the tokens of prompts are reported.
    pub prompt_logprobs: bool,
    /// Stages of the worker's pipeline, at least 1.
    pub pipeline_stages: u32,
    /// `true` if a sequence may read blocks that sequences before it fill in the same step.
    pub in_step_hits: bool,
    /// `true` if the worker opens memory shared by a server on its machine, for copies of blocks.
    pub shared_memory: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            max_sequences: 1,
            max_tokens: 1,
            steps_in_flight: 1,
            max_drafts: 0,
            max_logprobs: 0,
            partial_writes: false,
            scores: false,
            scores_by_group: false,
            seeded_sampling: false,
            penalties: false,
            grammars: false,
            prompt_logprobs: false,
            pipeline_stages: 1,
            in_step_hits: false,
            shared_memory: false,
        }
    }
}

/// Session to continue after a broken connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Name of the session, from [`wire::Welcome::session`].
    pub session: String,
    /// Life of the KV held by the worker.
    pub life: u64,
}

/// Reason for refusing a Hello.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloFault {
    /// The worker speaks another version of the protocol.
    #[error("hello: the worker speaks version {version} of the protocol, this server version {PROTOCOL}")]
    Protocol {
        /// Version in the message.
        version: u32,
    },
    /// A part of the message is not there.
    #[error("hello: {field} is missing")]
    Missing {
        /// Path of the field.
        field: &'static str,
    },
    /// A text is empty, too long, or contains control characters.
    #[error("hello: {field} must have {range} bytes and no control characters")]
    Text {
        /// Path of the field.
        field: &'static str,
        /// Valid lengths, in words.
        range: &'static str,
    },
    /// A number or a list is outside its range.
    #[error("hello: {field} is {value}; it must be {range}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// Value in the message.
        value: u64,
        /// Valid values, in words.
        range: &'static str,
    },
    /// The layer groups do not hold each layer once.
    #[error("hello: model.groups: layer {layer} must be below n_layers and in exactly one group, in ascending order")]
    Layer {
        /// Number of a layer at fault.
        layer: u32,
    },
    /// The layer groups do not hold each KV head once.
    #[error(
        "hello: model.groups: head {head} must be below n_layers * n_kv_heads and in exactly one group, in ascending order"
    )]
    Head {
        /// Number of the head.
        head: u32,
    },
    /// A layer group has a window and scores at once, or the first group has a window.
    #[error("hello: model.groups[{group}]: {reason}")]
    Group {
        /// Index of the group.
        group: usize,
        /// Rule broken by the group, in words.
        reason: &'static str,
    },
}

impl Hello {
    /// Converts the announcement to a message.
    pub fn encode(&self) -> wire::Hello {
        let (model, abilities) = (&self.model, &self.abilities);
        wire::Hello {
            protocol: PROTOCOL,
            name: self.name.clone(),
            program: self.program.clone(),
            model: Some(encode_model(model)),
            kv: Some(wire::WorkerKv {
                block_sizes: self.kv.block_sizes.clone(),
                tokens: self.kv.tokens,
                block_io: self.kv.block_io,
            }),
            abilities: Some(wire::WorkerAbilities {
                max_sequences: abilities.max_sequences,
                max_tokens: abilities.max_tokens,
                steps_in_flight: abilities.steps_in_flight,
                max_drafts: abilities.max_drafts,
                max_logprobs: abilities.max_logprobs,
                partial_writes: abilities.partial_writes,
                scores: abilities.scores,
                scores_by_group: abilities.scores_by_group,
                seeded_sampling: abilities.seeded_sampling,
                penalties: abilities.penalties,
                grammars: abilities.grammars,
                prompt_logprobs: abilities.prompt_logprobs,
                pipeline_stages: abilities.pipeline_stages,
                in_step_hits: abilities.in_step_hits,
                shared_memory: abilities.shared_memory,
            }),
            resume: self
                .resume
                .as_ref()
                .map(|resume| wire::Resume { session: resume.session.clone(), life: resume.life }),
            lock_step: self.lock_step.clone().map(|LockStep { group, size, rank }| wire::LockStep {
                group,
                size,
                rank,
            }),
        }
    }

    /// Converts a message to an announcement, and checks every field.
    ///
    /// # Errors
    /// If the message breaks a rule of the protocol; the error says which.
    pub fn decode(message: wire::Hello) -> Result<Self, HelloFault> {
        if message.protocol != PROTOCOL {
            return Err(HelloFault::Protocol { version: message.protocol });
        }
        check_text("name", &message.name, 1, NAME_BYTES, "1 to 256")?;
        check_text("program", &message.program, 0, TEXT_BYTES, "at most 4096")?;
        let model = decode_model(message.model.ok_or(HelloFault::Missing { field: "model" })?)?;
        let kv = decode_kv(message.kv.ok_or(HelloFault::Missing { field: "kv" })?, &model)?;
        let abilities = decode_abilities(&message.abilities.ok_or(HelloFault::Missing { field: "abilities" })?)?;
        let resume = message.resume.map(|resume| Resume { session: resume.session, life: resume.life });
        if let Some(resume) = &resume {
            check_text("resume.session", &resume.session, 1, NAME_BYTES, "1 to 256")?;
        }
        let lock_step = message.lock_step.map(decode_lock_step).transpose()?;
        Ok(Self { name: message.name, program: message.program, model, kv, abilities, resume, lock_step })
    }
}

fn decode_lock_step(message: wire::LockStep) -> Result<LockStep, HelloFault> {
    let wire::LockStep { group, size, rank } = message;
    check_text("lock_step.group", &group, 1, NAME_BYTES, "1 to 256")?;
    check_range("lock_step.size", size.into(), (1..=GROUP_SIZE_MAX).contains(&size), "1 to 1024")?;
    check_range("lock_step.rank", rank.into(), rank < size, "below lock_step.size")?;
    Ok(LockStep { group, size, rank })
}

fn check_text(
    field: &'static str,
    text: &str,
    least: usize,
    most: usize,
    range: &'static str,
) -> Result<(), HelloFault> {
    let good = (least..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    if good { Ok(()) } else { Err(HelloFault::Text { field, range }) }
}

fn check_range(field: &'static str, value: u64, good: bool, range: &'static str) -> Result<(), HelloFault> {
    if good { Ok(()) } else { Err(HelloFault::Range { field, value, range }) }
}

fn encode_model(model: &ModelInfo) -> wire::WorkerModel {
    let group = |group: &LayerGroup| wire::WorkerLayerGroup {
        layers: group.layers.clone(),
        window: if let Keeps::Window(window) = group.keeps { window } else { 0 },
        scored: group.keeps == Keeps::Scored,
        heads: group.heads.clone(),
        weight: group.weight,
    };
    wire::WorkerModel {
        name: model.name.clone(),
        revision: model.revision.clone(),
        vocab_size: model.vocab_size,
        max_context: model.max_context,
        eos_token_ids: model.eos_token_ids.clone(),
        n_layers: model.n_layers,
        hidden_size: model.hidden_size,
        n_heads: model.n_heads,
        n_kv_heads: model.n_kv_heads,
        head_dim: model.head_dim,
        kv_dtype: model.kv_dtype.clone(),
        kv_bytes_per_token: model.kv_bytes_per_token,
        groups: model.groups.iter().map(group).collect(),
    }
}

fn decode_model(model: wire::WorkerModel) -> Result<ModelInfo, HelloFault> {
    check_text("model.name", &model.name, 1, TEXT_BYTES, "1 to 4096")?;
    check_text("model.revision", &model.revision, 0, TEXT_BYTES, "at most 4096")?;
    check_text("model.kv_dtype", &model.kv_dtype, 1, TEXT_BYTES, "1 to 4096")?;
    let below_max = |value: u32| (1..u32::MAX).contains(&value);
    for (field, value) in [("model.vocab_size", model.vocab_size), ("model.max_context", model.max_context)] {
        check_range(field, value.into(), below_max(value), "at least 1 and below 2^32 - 1")?;
    }
    let n_layers = model.n_layers;
    check_range("model.n_layers", n_layers.into(), (1..=LIST_MAX as u32).contains(&n_layers), "from 1 to 65536")?;
    let lists = [("model.eos_token_ids", model.eos_token_ids.len()), ("model.groups", model.groups.len())];
    for (field, len) in lists {
        check_range(field, len as u64, len <= LIST_MAX, "at most 65536 entries long")?;
    }
    for token in &model.eos_token_ids {
        check_range("model.eos_token_ids", u64::from(*token), *token < model.vocab_size, "below vocab_size")?;
    }
    let has_heads = model.groups.iter().any(|group| !group.heads.is_empty());
    let n_members = u64::from(n_layers) * if has_heads { u64::from(model.n_kv_heads) } else { 1 };
    let n_heads = u64::from(n_layers) * u64::from(model.n_kv_heads);
    check_range("model.n_kv_heads", model.n_kv_heads.into(), n_heads <= HEADS_MAX, "at most 1048576 in all layers")?;
    let groups = decode_groups(&model.groups, has_heads, n_members as usize)?;
    let info = ModelInfo {
        name: model.name,
        revision: model.revision,
        vocab_size: model.vocab_size,
        max_context: model.max_context,
        eos_token_ids: model.eos_token_ids,
        n_layers,
        hidden_size: model.hidden_size,
        n_heads: model.n_heads,
        n_kv_heads: model.n_kv_heads,
        head_dim: model.head_dim,
        kv_dtype: model.kv_dtype,
        kv_bytes_per_token: model.kv_bytes_per_token,
        groups,
    };
    let bytes = info.kv_bytes_per_token;
    let divides = bytes >= 1 && bytes.is_multiple_of(u64::from(info.n_groups()));
    check_range("model.kv_bytes_per_token", bytes, divides, "at least 1 and a multiple of the number of groups")?;
    Ok(info)
}

/// Checks that groups have each of the `n_members` layers, or KV heads if `has_heads`, once.
fn decode_groups(
    groups: &[wire::WorkerLayerGroup],
    has_heads: bool,
    n_members: usize,
) -> Result<Vec<LayerGroup>, HelloFault> {
    let missed =
        |number: u32| if has_heads { HelloFault::Head { head: number } } else { HelloFault::Layer { layer: number } };
    let mut seen = vec![false; n_members];
    let mut out = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        let fault = |reason| Err(HelloFault::Group { group: index, reason });
        let keeps = match (group.window, group.scored) {
            (0, false) => Keeps::All,
            (0, true) => Keeps::Scored,
            (_, true) => return fault("a group has a window or scores, not both"),
            (_, false) if index == 0 => return fault("the first group keeps all positions, without a window"),
            (window, false) => Keeps::Window(window),
        };
        let (members, others) = if has_heads { (&group.heads, &group.layers) } else { (&group.layers, &group.heads) };
        if members.is_empty() || !others.is_empty() {
            return fault("a group has at least one layer; or all groups have heads, and none layers");
        }
        let mut last = None;
        for member in members {
            let fresh = seen.get_mut(*member as usize).map(|seen| !std::mem::replace(seen, true));
            if fresh != Some(true) || last >= Some(*member) {
                return Err(missed(*member));
            }
            last = Some(*member);
        }
        if group.weight > LayerGroup::WEIGHT_MAX || (group.weight > 0 && !group.scored) {
            return fault("a weight is at most 64000, and only groups with scores have one");
        }
        let (layers, heads) = (group.layers.clone(), group.heads.clone());
        out.push(LayerGroup { layers, heads, keeps, weight: group.weight });
    }
    match seen.iter().position(|seen| !seen) {
        Some(member) if !groups.is_empty() => Err(missed(member as u32)),
        _ => Ok(out),
    }
}

fn decode_kv(kv: wire::WorkerKv, model: &ModelInfo) -> Result<KvRoom, HelloFault> {
    let n = kv.block_sizes.len();
    check_range("kv.block_sizes", n as u64, (1..=64).contains(&n), "from 1 to 64 entries long")?;
    for (i, size) in kv.block_sizes.iter().enumerate() {
        let value = u64::from(*size);
        let good = (1..=BLOCK_SIZE_MAX).contains(size) && !kv.block_sizes[..i].contains(size);
        check_range("kv.block_sizes", value, good, "from 1 to 65536, each size once")?;
        let per_token = model.kv_bytes_per_token / u64::from(model.n_groups());
        let bytes = per_token.saturating_mul(value);
        check_range("the size of a block", bytes, bytes <= BLOCK_BYTES_MAX, "at most 1 GiB")?;
        let blocks = kv.tokens / value;
        let good = (1..u64::from(u32::MAX)).contains(&blocks);
        check_range("kv.tokens", kv.tokens, good, "at least one block and below 2^32 - 1 blocks")?;
    }
    Ok(KvRoom { block_sizes: kv.block_sizes, tokens: kv.tokens, block_io: kv.block_io })
}

fn decode_abilities(message: &wire::WorkerAbilities) -> Result<Abilities, HelloFault> {
    for (field, value) in [
        ("abilities.max_sequences", message.max_sequences),
        ("abilities.max_tokens", message.max_tokens),
        ("abilities.steps_in_flight", message.steps_in_flight),
    ] {
        check_range(field, value.into(), value >= 1, "at least 1")?;
    }
    let stages = message.pipeline_stages;
    check_range("abilities.pipeline_stages", stages.into(), stages <= PIPELINE_STAGES_MAX, "at most 64")?;
    Ok(Abilities {
        max_sequences: message.max_sequences,
        max_tokens: message.max_tokens,
        steps_in_flight: message.steps_in_flight,
        max_drafts: message.max_drafts,
        max_logprobs: message.max_logprobs,
        partial_writes: message.partial_writes,
        scores: message.scores,
        scores_by_group: message.scores_by_group,
        seeded_sampling: message.seeded_sampling,
        penalties: message.penalties,
        grammars: message.grammars,
        prompt_logprobs: message.prompt_logprobs,
        pipeline_stages: stages.max(1),
        in_step_hits: message.in_step_hits,
        shared_memory: message.shared_memory,
    })
}
