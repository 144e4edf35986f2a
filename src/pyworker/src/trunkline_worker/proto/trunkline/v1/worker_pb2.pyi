from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORE_KIND_MEAN: _ClassVar[ScoreKind]
    SCORE_KIND_MAX: _ClassVar[ScoreKind]

class SequenceFault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEQUENCE_FAULT_NONE: _ClassVar[SequenceFault]
    SEQUENCE_FAULT_NOT_FINITE: _ClassVar[SequenceFault]
    SEQUENCE_FAULT_UNSUPPORTED: _ClassVar[SequenceFault]
SCORE_KIND_MEAN: ScoreKind
SCORE_KIND_MAX: ScoreKind
SEQUENCE_FAULT_NONE: SequenceFault
SEQUENCE_FAULT_NOT_FINITE: SequenceFault
SEQUENCE_FAULT_UNSUPPORTED: SequenceFault

class FromWorker(_message.Message):
    __slots__ = ("hello", "step_done", "step_failed", "reset_done", "block_read", "block_written", "heartbeat", "shared_memory_opened")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_DONE_FIELD_NUMBER: _ClassVar[int]
    STEP_FAILED_FIELD_NUMBER: _ClassVar[int]
    RESET_DONE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_READ_FIELD_NUMBER: _ClassVar[int]
    BLOCK_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_OPENED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step_done: StepDone
    step_failed: StepFailed
    reset_done: ResetDone
    block_read: BlockRead
    block_written: BlockWritten
    heartbeat: Heartbeat
    shared_memory_opened: SharedMemoryOpened
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step_done: _Optional[_Union[StepDone, _Mapping]] = ..., step_failed: _Optional[_Union[StepFailed, _Mapping]] = ..., reset_done: _Optional[_Union[ResetDone, _Mapping]] = ..., block_read: _Optional[_Union[BlockRead, _Mapping]] = ..., block_written: _Optional[_Union[BlockWritten, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., shared_memory_opened: _Optional[_Union[SharedMemoryOpened, _Mapping]] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("welcome", "step", "reset", "read_block", "write_block", "heartbeat", "idle")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    READ_BLOCK_FIELD_NUMBER: _ClassVar[int]
    WRITE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    step: Step
    reset: Reset
    read_block: ReadBlock
    write_block: WriteBlock
    heartbeat: Heartbeat
    idle: Idle
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., reset: _Optional[_Union[Reset, _Mapping]] = ..., read_block: _Optional[_Union[ReadBlock, _Mapping]] = ..., write_block: _Optional[_Union[WriteBlock, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., idle: _Optional[_Union[Idle, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "name", "program", "model", "kv", "abilities", "resume", "lock_step")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    ABILITIES_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    LOCK_STEP_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    name: str
    program: str
    model: WorkerModel
    kv: WorkerKv
    abilities: WorkerAbilities
    resume: Resume
    lock_step: LockStep
    def __init__(self, protocol: _Optional[int] = ..., name: _Optional[str] = ..., program: _Optional[str] = ..., model: _Optional[_Union[WorkerModel, _Mapping]] = ..., kv: _Optional[_Union[WorkerKv, _Mapping]] = ..., abilities: _Optional[_Union[WorkerAbilities, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., lock_step: _Optional[_Union[LockStep, _Mapping]] = ...) -> None: ...

class LockStep(_message.Message):
    __slots__ = ("group", "size", "rank")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    group: str
    size: int
    rank: int
    def __init__(self, group: _Optional[str] = ..., size: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class WorkerModel(_message.Message):
    __slots__ = ("name", "revision", "vocab_size", "max_context", "eos_token_ids", "n_layers", "hidden_size", "n_heads", "n_kv_heads", "head_dim", "kv_dtype", "kv_bytes_per_token", "groups")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    N_HEADS_FIELD_NUMBER: _ClassVar[int]
    N_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    vocab_size: int
    max_context: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_dtype: str
    kv_bytes_per_token: int
    groups: _containers.RepeatedCompositeFieldContainer[WorkerLayerGroup]
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., n_layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., n_heads: _Optional[int] = ..., n_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., kv_bytes_per_token: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[WorkerLayerGroup, _Mapping]]] = ...) -> None: ...

class WorkerLayerGroup(_message.Message):
    __slots__ = ("layers", "window", "scored", "heads", "weight")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    window: int
    scored: bool
    heads: _containers.RepeatedScalarFieldContainer[int]
    weight: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., window: _Optional[int] = ..., scored: bool = ..., heads: _Optional[_Iterable[int]] = ..., weight: _Optional[int] = ...) -> None: ...

class WorkerKv(_message.Message):
    __slots__ = ("block_sizes", "tokens", "block_io")
    BLOCK_SIZES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IO_FIELD_NUMBER: _ClassVar[int]
    block_sizes: _containers.RepeatedScalarFieldContainer[int]
    tokens: int
    block_io: bool
    def __init__(self, block_sizes: _Optional[_Iterable[int]] = ..., tokens: _Optional[int] = ..., block_io: bool = ...) -> None: ...

class WorkerAbilities(_message.Message):
    __slots__ = ("max_sequences", "max_tokens", "steps_in_flight", "max_drafts", "max_logprobs", "partial_writes", "scores", "seeded_sampling", "pipeline_stages", "in_step_hits", "shared_memory", "scores_by_group", "penalties", "grammars", "prompt_logprobs")
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_WRITES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    SEEDED_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_STAGES_FIELD_NUMBER: _ClassVar[int]
    IN_STEP_HITS_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SCORES_BY_GROUP_FIELD_NUMBER: _ClassVar[int]
    PENALTIES_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    max_sequences: int
    max_tokens: int
    steps_in_flight: int
    max_drafts: int
    max_logprobs: int
    partial_writes: bool
    scores: bool
    seeded_sampling: bool
    pipeline_stages: int
    in_step_hits: bool
    shared_memory: bool
    scores_by_group: bool
    penalties: bool
    grammars: bool
    prompt_logprobs: bool
    def __init__(self, max_sequences: _Optional[int] = ..., max_tokens: _Optional[int] = ..., steps_in_flight: _Optional[int] = ..., max_drafts: _Optional[int] = ..., max_logprobs: _Optional[int] = ..., partial_writes: bool = ..., scores: bool = ..., seeded_sampling: bool = ..., pipeline_stages: _Optional[int] = ..., in_step_hits: bool = ..., shared_memory: bool = ..., scores_by_group: bool = ..., penalties: bool = ..., grammars: bool = ..., prompt_logprobs: bool = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("session", "life")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    session: str
    life: int
    def __init__(self, session: _Optional[str] = ..., life: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session", "life", "resumed", "engine", "block_size", "blocks", "steps_in_flight", "max_drafts", "heartbeat_ms", "silence_ms", "resume_ms", "shared_memory")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    SILENCE_MS_FIELD_NUMBER: _ClassVar[int]
    RESUME_MS_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    session: str
    life: int
    resumed: bool
    engine: int
    block_size: int
    blocks: int
    steps_in_flight: int
    max_drafts: int
    heartbeat_ms: int
    silence_ms: int
    resume_ms: int
    shared_memory: SharedMemory
    def __init__(self, session: _Optional[str] = ..., life: _Optional[int] = ..., resumed: bool = ..., engine: _Optional[int] = ..., block_size: _Optional[int] = ..., blocks: _Optional[int] = ..., steps_in_flight: _Optional[int] = ..., max_drafts: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., silence_ms: _Optional[int] = ..., resume_ms: _Optional[int] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("pid", "fd", "mark", "slots", "slot_bytes")
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    fd: int
    mark: bytes
    slots: int
    slot_bytes: int
    def __init__(self, pid: _Optional[int] = ..., fd: _Optional[int] = ..., mark: _Optional[bytes] = ..., slots: _Optional[int] = ..., slot_bytes: _Optional[int] = ...) -> None: ...

class SharedMemoryOpened(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("id", "life", "starts", "slots", "computed", "n_tokens", "sample", "n_generated", "table_keep", "n_blocks", "blocks", "kv_write_from", "n_drafts", "drops", "scored_rows", "score_kind", "scores_by_group", "prompt_rows")
    ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    N_GENERATED_FIELD_NUMBER: _ClassVar[int]
    TABLE_KEEP_FIELD_NUMBER: _ClassVar[int]
    N_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_WRITE_FROM_FIELD_NUMBER: _ClassVar[int]
    N_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    SCORED_ROWS_FIELD_NUMBER: _ClassVar[int]
    SCORE_KIND_FIELD_NUMBER: _ClassVar[int]
    SCORES_BY_GROUP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ROWS_FIELD_NUMBER: _ClassVar[int]
    id: int
    life: int
    starts: _containers.RepeatedCompositeFieldContainer[Start]
    slots: _containers.RepeatedScalarFieldContainer[int]
    computed: _containers.RepeatedScalarFieldContainer[int]
    n_tokens: _containers.RepeatedScalarFieldContainer[int]
    sample: _containers.RepeatedScalarFieldContainer[int]
    n_generated: _containers.RepeatedScalarFieldContainer[int]
    table_keep: _containers.RepeatedScalarFieldContainer[int]
    n_blocks: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    kv_write_from: _containers.RepeatedScalarFieldContainer[int]
    n_drafts: _containers.RepeatedScalarFieldContainer[int]
    drops: _containers.RepeatedCompositeFieldContainer[Drop]
    scored_rows: _containers.RepeatedScalarFieldContainer[int]
    score_kind: ScoreKind
    scores_by_group: bool
    prompt_rows: _containers.RepeatedCompositeFieldContainer[PromptRows]
    def __init__(self, id: _Optional[int] = ..., life: _Optional[int] = ..., starts: _Optional[_Iterable[_Union[Start, _Mapping]]] = ..., slots: _Optional[_Iterable[int]] = ..., computed: _Optional[_Iterable[int]] = ..., n_tokens: _Optional[_Iterable[int]] = ..., sample: _Optional[_Iterable[int]] = ..., n_generated: _Optional[_Iterable[int]] = ..., table_keep: _Optional[_Iterable[int]] = ..., n_blocks: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ..., kv_write_from: _Optional[_Iterable[int]] = ..., n_drafts: _Optional[_Iterable[int]] = ..., drops: _Optional[_Iterable[_Union[Drop, _Mapping]]] = ..., scored_rows: _Optional[_Iterable[int]] = ..., score_kind: _Optional[_Union[ScoreKind, str]] = ..., scores_by_group: bool = ..., prompt_rows: _Optional[_Iterable[_Union[PromptRows, _Mapping]]] = ...) -> None: ...

class PromptRows(_message.Message):
    __slots__ = ("index", "first", "n", "top")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    index: int
    first: int
    n: int
    top: int
    def __init__(self, index: _Optional[int] = ..., first: _Optional[int] = ..., n: _Optional[int] = ..., top: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("index", "request", "tokens", "n_prompt", "sampling")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    index: int
    request: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    n_prompt: int
    sampling: WorkerSampling
    def __init__(self, index: _Optional[int] = ..., request: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., n_prompt: _Optional[int] = ..., sampling: _Optional[_Union[WorkerSampling, _Mapping]] = ...) -> None: ...

class WorkerSampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "logprobs", "frequency_penalty", "presence_penalty", "logit_bias", "grammar")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    logprobs: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    grammar: WorkerGrammar
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., logprobs: _Optional[int] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., grammar: _Optional[_Union[WorkerGrammar, _Mapping]] = ...) -> None: ...

class WorkerGrammar(_message.Message):
    __slots__ = ("json_schema", "regex", "lark")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    lark: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., lark: _Optional[str] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("index", "group", "first", "n")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    index: int
    group: int
    first: int
    n: int
    def __init__(self, index: _Optional[int] = ..., group: _Optional[int] = ..., first: _Optional[int] = ..., n: _Optional[int] = ...) -> None: ...

class StepDone(_message.Message):
    __slots__ = ("id", "life", "tokens", "counts", "logprobs", "scores", "drafted", "accepted", "busy_us", "faults", "prompt_logprobs", "weights")
    ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    life: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[WorkerLogprob]
    scores: _containers.RepeatedScalarFieldContainer[float]
    drafted: int
    accepted: int
    busy_us: int
    faults: _containers.RepeatedScalarFieldContainer[SequenceFault]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[WorkerLogprob]
    weights: WorkerWeightReads
    def __init__(self, id: _Optional[int] = ..., life: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[WorkerLogprob, _Mapping]]] = ..., scores: _Optional[_Iterable[float]] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., busy_us: _Optional[int] = ..., faults: _Optional[_Iterable[_Union[SequenceFault, str]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[WorkerLogprob, _Mapping]]] = ..., weights: _Optional[_Union[WorkerWeightReads, _Mapping]] = ...) -> None: ...

class WorkerWeightReads(_message.Message):
    __slots__ = ("bytes", "reading_ns", "exposed_ns", "step_ns", "failed_reads")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    READING_NS_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    FAILED_READS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    reading_ns: int
    exposed_ns: int
    step_ns: int
    failed_reads: int
    def __init__(self, bytes: _Optional[int] = ..., reading_ns: _Optional[int] = ..., exposed_ns: _Optional[int] = ..., step_ns: _Optional[int] = ..., failed_reads: _Optional[int] = ...) -> None: ...

class WorkerLogprob(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class StepFailed(_message.Message):
    __slots__ = ("id", "life", "reason", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: int
    life: int
    reason: str
    request: int
    def __init__(self, id: _Optional[int] = ..., life: _Optional[int] = ..., reason: _Optional[str] = ..., request: _Optional[int] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("life",)
    LIFE_FIELD_NUMBER: _ClassVar[int]
    life: int
    def __init__(self, life: _Optional[int] = ...) -> None: ...

class Idle(_message.Message):
    __slots__ = ("life",)
    LIFE_FIELD_NUMBER: _ClassVar[int]
    life: int
    def __init__(self, life: _Optional[int] = ...) -> None: ...

class ResetDone(_message.Message):
    __slots__ = ("life",)
    LIFE_FIELD_NUMBER: _ClassVar[int]
    life: int
    def __init__(self, life: _Optional[int] = ...) -> None: ...

class ReadBlock(_message.Message):
    __slots__ = ("id", "life", "block", "slot")
    ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    id: int
    life: int
    block: int
    slot: int
    def __init__(self, id: _Optional[int] = ..., life: _Optional[int] = ..., block: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class BlockRead(_message.Message):
    __slots__ = ("id", "data", "error", "slot_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    data: bytes
    error: str
    slot_bytes: int
    def __init__(self, id: _Optional[int] = ..., data: _Optional[bytes] = ..., error: _Optional[str] = ..., slot_bytes: _Optional[int] = ...) -> None: ...

class WriteBlock(_message.Message):
    __slots__ = ("id", "life", "block", "data", "slot", "slot_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    life: int
    block: int
    data: bytes
    slot: int
    slot_bytes: int
    def __init__(self, id: _Optional[int] = ..., life: _Optional[int] = ..., block: _Optional[int] = ..., data: _Optional[bytes] = ..., slot: _Optional[int] = ..., slot_bytes: _Optional[int] = ...) -> None: ...

class BlockWritten(_message.Message):
    __slots__ = ("id", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    error: str
    def __init__(self, id: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
