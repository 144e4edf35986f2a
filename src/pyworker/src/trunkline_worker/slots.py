"""Slots: the tokens, sampling parameters and block tables of running sequences, changed by the steps of the server.

All slots share a few arrays that grow in place, so a step of a thousand decodes is a few array operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .facts import ModelFacts, Settings
from .proto import messages as pb
from .results import StepError
from .structures import Allowed, Answer, Structures

Int32s = npt.NDArray[np.int32]

NO_BLOCK = 0xFFFF_FFFF
"""Entry of a block table without a block, on the wire."""
HOLE = -1
"""Entry of a block table without a block, in `SlotTable.tables`."""
MAX_SLOTS = 1 << 16
"""Slots of a server, at most: a larger number is taken for nonsense."""

Array = npt.NDArray[np.generic]


@dataclass
class Batch:
    """A validated step: one entry of each array for each sequence, in the order of the step."""

    id: int
    table: SlotTable
    slots: Int32s
    computed: Int32s
    n_tokens: Int32s
    sample: npt.NDArray[np.bool_]
    n_generated: Int32s
    kv_write_from: Int32s
    scored_rows: Int32s
    score_max: bool
    by_group: bool
    """Scores are wanted of each layer group by itself."""
    starts: list[int]
    """Indices of sequences that begin in their slot with this step."""
    cut: list[int]
    """Indices of running sequences whose block table lost or changed entries that existed before this step."""
    n_blocks: Int32s
    """Number of entries appended to each block table, in each layer group."""
    requests: npt.NDArray[np.uint64]
    """Numbers of the requests; a later step may change their slots."""
    logprobs: Int32s
    """Most likely tokens to report with a sampled token; -1 for none."""

    def __len__(self) -> int:
        """Returns the number of sequences."""
        return len(self.slots)

    @property
    def ends(self) -> Int32s:
        """Position after the last token to run of each sequence."""
        return self.computed + self.n_tokens

    def tokens_of(self, i: int) -> Int32s:
        """Returns the tokens to run of the `i`-th sequence; the last one may be unknown (-1)."""
        first = self.computed[i]
        return self.table.tokens[self.slots[i], first : first + self.n_tokens[i]]

    def tokens(self) -> Int32s:
        """Returns the tokens to run of all sequences, one range after another."""
        if self.n_tokens.max(initial=0) == 1:
            return self.table.tokens[self.slots, self.computed]
        return np.concatenate([self.tokens_of(i) for i in range(len(self))])

    def knows_tokens(self) -> bool:
        """Returns `True` if no token to run is still to be sampled by an earlier batch."""
        return bool((self.table.tokens[self.slots, self.ends - 1] >= 0).all())

    def has_answers(self) -> bool:
        """Returns `True` if a sequence that samples has a structure."""
        answers = self.table.answers
        return bool(answers) and any(slot in answers for slot in self.slots[self.sample].tolist())

    def allowed(self) -> Allowed | None:
        """Returns what may be next in the sequences that sample and have a structure; None if no sequence has one.

        All tokens to run are known. What is not found yet is waited for, so the model is best at work already.
        """
        return self.table.allowed(self)

    def positions(self) -> Int32s:
        """Returns the positions of the tokens to run, in the order of `tokens`."""
        if self.n_tokens.max(initial=0) == 1:
            return self.computed
        ranges = [np.arange(a, b, dtype=np.int32) for a, b in zip(self.computed, self.ends, strict=True)]
        return np.concatenate(ranges)


class SlotTable:
    """The slots of a worker.

    `tokens[slot, position]` is -1 where a sampled token is not known yet; `tables[group, slot, entry]` is a block or `HOLE`.
    """

    def __init__(self, model: ModelFacts, settings: Settings, structures: Structures | None = None) -> None:
        self.model = model
        self.settings = settings
        self.structures = structures
        self.answers: dict[int, Answer] = {}
        """For slots whose request asks for a structure: the answer so far."""
        self.size = 0
        width = 64
        self.tokens: Int32s = np.full((0, width * settings.block_size), -1, np.int32)
        self.tables: Int32s = np.full((model.n_groups, 0, width), HOLE, np.int32)
        self.n_tokens: Int32s = np.zeros(0, np.int32)
        self.table_len: Int32s = np.zeros(0, np.int32)
        self.n_prompt: Int32s = np.zeros(0, np.int32)
        self.starts: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.request: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.temperature: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self.top_k: Int32s = np.zeros(0, np.int32)
        self.top_p: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self.min_p: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self.penalty: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self.frequency: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self.presence: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self.bias: dict[int, dict[int, float]] = {}
        """For slots whose request has some: numbers to add to the logits of tokens."""
        self.seed: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.logprobs: Int32s = np.zeros(0, np.int32)
        self.n_starts = 0

    def counts_generated(self, slots: Int32s) -> npt.NDArray[np.bool_]:
        """Returns `True` for each slot with a penalty for generated tokens."""
        counts: npt.NDArray[np.bool_] = (self.frequency[slots] != 0) | (self.presence[slots] != 0)
        return counts

    def allowed(self, batch: Batch) -> Allowed | None:
        """Returns what may be next in the sequences of a batch that sample and have a structure, None if there are none."""
        slots = batch.slots[batch.sample].tolist()
        rows = [row for row, slot in enumerate(slots) if slot in self.answers]
        if not rows or self.structures is None:
            return None
        bits, stuck = self.structures.masks([self.answers[slots[row]] for row in rows])
        numbers = np.flatnonzero(batch.sample)[rows].tolist()
        return Allowed(np.array(rows), bits, [i for i, is_stuck in zip(numbers, stuck, strict=True) if is_stuck])

    def apply(self, step: pb.Step) -> Batch:
        """Changes the slots as a step asks, and returns the batch to run.

        Raises:
            StepError: the step breaks a rule of the protocol. The slots may be half changed then.
        """
        n = len(step.slots)
        slots = np.array(list(step.slots), np.int64)
        if n == 0 or slots.max() >= MAX_SLOTS or len(np.unique(slots)) != n:
            raise StepError(f"step {step.id}: needs at least one slot, each below {MAX_SLOTS} and once")
        if step.prompt_rows:
            raise StepError(f"step {step.id}: prompt_rows is set; the worker did not announce prompt_logprobs")
        self._grow_slots(int(slots.max()) + 1)
        slots32 = slots.astype(np.int32)
        batch = Batch(
            id=step.id,
            table=self,
            slots=slots32,
            computed=_column("computed", step.computed, n),
            n_tokens=_column("n_tokens", step.n_tokens, n),
            sample=_column("sample", step.sample, n) != 0,
            n_generated=_column("n_generated", step.n_generated, n),
            kv_write_from=_column("kv_write_from", step.kv_write_from, n),
            scored_rows=_column("scored_rows", step.scored_rows, n),
            score_max=step.score_kind == pb.SCORE_KIND_MAX,
            by_group=step.scores_by_group,
            starts=[start.index for start in step.starts],
            cut=[],
            n_blocks=_column("n_blocks", step.n_blocks, n),
            requests=np.zeros(0, np.uint64),
            logprobs=np.zeros(0, np.int32),
        )
        for start in step.starts:
            self._start(start, batch)
        batch.requests, batch.logprobs = self.request[slots32], self.logprobs[slots32]
        for drop in step.drops:
            self._drop(drop, batch)
        self._change_tables(step, batch)
        self._check(batch)
        return batch

    def reserve(self, batch: Batch) -> None:
        """Makes room for the token that each sampling sequence of a batch is about to get; unknown until `record`."""
        slots = batch.slots[batch.sample]
        if len(slots):
            self._grow_tokens(int(self.n_tokens[slots].max()) + 1)
            self.tokens[slots, self.n_tokens[slots]] = -1
            self.n_tokens[slots] += 1

    def record(self, batch: Batch, starts: npt.NDArray[np.int64], tokens: list[int]) -> None:
        """Enters the tokens sampled by a batch.

        `starts` are the values of `SlotTable.starts` for the batch's slots at the time of `reserve`: a slot that another
        sequence took meanwhile is left alone.
        """
        slots, ends = batch.slots[batch.sample], batch.ends[batch.sample]
        live = self.starts[slots] == starts[batch.sample]
        self.tokens[slots[live], ends[live]] = np.array(tokens, np.int32)[live]
        if self.structures is not None and self.answers:
            places = zip(slots[live].tolist(), ends[live].tolist(), self.tokens[slots[live], ends[live]].tolist(), strict=True)
            found = ((self.answers.get(slot), end, token) for slot, end, token in places)
            self.structures.take_in((answer, end, token) for answer, end, token in found if answer is not None)

    def _start(self, start: pb.Start, batch: Batch) -> None:
        if start.index >= len(batch):
            raise StepError(f"step {batch.id}: a start names sequence {start.index} of {len(batch)}")
        slot, n = int(batch.slots[start.index]), len(start.tokens)
        if not 1 <= start.n_prompt <= n or n > self.model.max_context:
            raise StepError(f"step {batch.id}: a start has {n} tokens, {start.n_prompt} of the prompt", start.request)
        if not start.HasField("sampling"):
            raise StepError(f"step {batch.id}: a start without sampling parameters", start.request)
        tokens = np.array(list(start.tokens), np.int64)
        if tokens.max() >= self.model.vocab_size:
            raise StepError(f"step {batch.id}: token {tokens.max()} is not in the vocabulary", start.request)
        if fault := _sampling_fault(start.sampling):
            raise StepError(f"step {batch.id}: {fault}", start.request)
        if (biased := max(start.sampling.logit_bias, default=0)) >= self.model.vocab_size:
            raise StepError(f"step {batch.id}: token {biased} of logit_bias is not in the vocabulary", start.request)
        if start.sampling.HasField("grammar") and start.sampling.grammar.WhichOneof("text") is None:
            raise StepError(f"step {batch.id}: grammar has no text", start.request)
        if start.sampling.HasField("grammar") and self.structures is None:
            raise StepError(f"step {batch.id}: grammar is set; the worker did not announce grammars", start.request)
        self._grow_tokens(n)
        self.tokens[slot, :n] = tokens
        self.n_tokens[slot] = n
        self.n_prompt[slot] = start.n_prompt
        self.table_len[slot] = 0
        self.tables[:, slot] = HOLE
        self.request[slot] = start.request
        self.n_starts += 1
        self.starts[slot] = self.n_starts
        sampling = start.sampling
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = min(sampling.top_k, self.model.vocab_size)
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.penalty[slot] = sampling.repetition_penalty
        self.frequency[slot] = sampling.frequency_penalty
        self.presence[slot] = sampling.presence_penalty
        self.bias.pop(slot, None)
        if sampling.logit_bias:
            self.bias[slot] = dict(sorted(sampling.logit_bias.items()))
        self.seed[slot] = sampling.seed
        self.answers.pop(slot, None)
        if self.structures is not None and sampling.HasField("grammar"):
            generated = list(start.tokens[start.n_prompt :])
            self.answers[slot] = self.structures.begin(sampling.grammar, start.n_prompt, generated)
        self.logprobs[slot] = sampling.logprobs if sampling.HasField("logprobs") else -1

    def _drop(self, drop: pb.Drop, batch: Batch) -> None:
        if drop.index >= len(batch) or drop.group >= self.model.n_groups:
            raise StepError(f"step {batch.id}: a drop names sequence {drop.index}, group {drop.group}")
        slot = batch.slots[drop.index]
        end = drop.first + drop.n
        if drop.n == 0 or end > self.table_len[slot]:
            raise StepError(f"step {batch.id}: entries {drop.first}..{end} of a table of {self.table_len[slot]} dropped")
        self.tables[drop.group, slot, drop.first : end] = HOLE
        batch.cut.append(drop.index)

    def _change_tables(self, step: pb.Step, batch: Batch) -> None:
        keep = _column("table_keep", step.table_keep, len(batch))
        old = self.table_len[batch.slots]
        if (keep > old).any():
            raise StepError(f"step {batch.id}: a block table is kept beyond its end")
        groups = self.model.n_groups
        blocks = np.array(list(step.blocks), np.int64)
        if len(blocks) != int(batch.n_blocks.sum(dtype=np.int64)) * groups:
            raise StepError(f"step {batch.id}: {len(blocks)} blocks for {batch.n_blocks.sum()} entries in {groups} groups")
        if (blocks[blocks != NO_BLOCK] >= self.settings.blocks).any():
            raise StepError(f"step {batch.id}: a block is not below {self.settings.blocks}")
        blocks = np.where(blocks == NO_BLOCK, HOLE, blocks).astype(np.int32)
        self._grow_tables(int((keep + batch.n_blocks).max()))
        at = 0
        started = set(batch.starts)
        for i in np.flatnonzero((keep != old) | (batch.n_blocks > 0)):
            slot, first, n = batch.slots[i], keep[i], int(batch.n_blocks[i])
            self.tables[:, slot, first:] = HOLE
            self.tables[:, slot, first : first + n] = blocks[at : at + n * groups].reshape(groups, n)
            self.table_len[slot] = first + n
            at += n * groups
            if keep[i] < old[i] and i not in started:
                batch.cut.append(int(i))

    def _check(self, batch: Batch) -> None:
        known = self.n_tokens[batch.slots]
        ends = batch.computed.astype(np.int64) + batch.n_tokens
        block = self.settings.block_size
        wrong = (batch.n_tokens < 1) | (ends > known) | (batch.sample & (ends != known))
        wrong |= ends > self.table_len[batch.slots].astype(np.int64) * block
        wrong |= batch.scored_rows > batch.n_tokens
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            slot = batch.slots[i]
            raise StepError(
                f"step {batch.id}, slot {slot}: tokens {batch.computed[i]}..{ends[i]} to run, sample {batch.sample[i]}, but "
                f"{known[i]} tokens are known and {self.table_len[slot]} blocks of {block} are in the table",
                int(self.request[slot]),
            )
        if (ends + batch.sample > self.model.max_context + 1).any():
            raise StepError(f"step {batch.id}: a sequence is longer than {self.model.max_context} tokens")

    def _grow_slots(self, n: int) -> None:
        if n <= self.size:
            return
        more = max(n, 2 * self.size, 16) - self.size
        for name in _BY_SLOT:
            old: Array = getattr(self, name)
            fill = -1 if name == "tokens" else 0
            setattr(self, name, np.concatenate([old, np.full((more, *old.shape[1:]), fill, old.dtype)]))
        holes = np.full((self.tables.shape[0], more, self.tables.shape[2]), HOLE, np.int32)
        self.tables = np.concatenate([self.tables, holes], axis=1)
        self.size += more

    def _grow_tokens(self, n: int) -> None:
        width = self.tokens.shape[1]
        if n > width:
            more = max(n, 2 * width) - width
            self.tokens = np.pad(self.tokens, ((0, 0), (0, more)), constant_values=-1)

    def _grow_tables(self, n: int) -> None:
        width = self.tables.shape[2]
        if n > width:
            more = max(n, 2 * width) - width
            self.tables = np.pad(self.tables, ((0, 0), (0, 0), (0, more)), constant_values=HOLE)


_BY_SLOT = (
    *("tokens", "n_tokens", "table_len", "n_prompt", "starts", "request"),
    *("temperature", "top_k", "top_p", "min_p", "penalty", "frequency", "presence", "seed", "logprobs"),
)


def _sampling_fault(sampling: pb.WorkerSampling) -> str | None:
    """Returns the first sampling parameter outside its range, with the range, if there is one."""
    temperature, penalty = sampling.temperature, sampling.repetition_penalty
    checks = [
        ("temperature", temperature, math.isfinite(temperature) and temperature >= 0, "a number of at least 0"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", penalty, math.isfinite(penalty) and penalty > 0, "a number above 0"),
        ("frequency_penalty", sampling.frequency_penalty, abs(sampling.frequency_penalty) <= 2, "from -2 to 2"),
        ("presence_penalty", sampling.presence_penalty, abs(sampling.presence_penalty) <= 2, "from -2 to 2"),
        *(("logit_bias", bias, abs(bias) <= 100, "from -100 to 100") for bias in sampling.logit_bias.values()),
    ]
    return next((f"{name} is {value:g}; it must be {wanted}" for name, value, good, wanted in checks if not good), None)


def _column(name: str, values: Iterable[int], n: int) -> Int32s:
    """Returns a column of a step; an empty one is all zeros."""
    column = np.array(list(values), np.int64)
    if len(column) == 0:
        return np.zeros(n, np.int32)
    if len(column) != n or column.max() > 0x7FFF_FFFF:
        raise StepError(f"column {name} has {len(column)} entries of 32 bits for {n} sequences")
    return column.astype(np.int32)
