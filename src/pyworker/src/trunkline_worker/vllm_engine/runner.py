"""The engine: vLLM's executor and model runner run our steps; vLLM's scheduler and block manager stay out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import structures
from ..engine import Engine
from ..facts import Abilities, KvFacts, Settings
from ..proto import messages as pb
from ..results import EngineLost, Fault, Logprob, Result, StepError
from ..slots import Batch, SlotTable
from . import layout as layouts
from . import start
from .batches import Batches
from .calls import Calls

log = logging.getLogger(__name__)

MAX_LOGPROBS = 20


class VllmEngine(Engine):
    """Runs a model with vLLM's executor."""

    abilities = Abilities(max_logprobs=MAX_LOGPROBS, seeded_sampling=True, in_step_hits=True)

    def __init__(self, options: start.Options, version: str) -> None:
        self.program = f"vllm {version}"
        self._config, self._executor, caches = start.start(options)
        self._calls = Calls(self._executor)
        self._batches = Batches(options.pipeline_parallel > 1, runner_v2=start.has_runner_v2(self._config))
        self._parts = start.parts_of(self._calls, caches[0], self._config)
        self._failed = False
        """A step failed, and vLLM has not forgotten it yet."""
        block = self._parts.shape.tokens
        self._blocks = min(config.num_blocks for config in caches) - 1
        stages = options.pipeline_parallel
        # As in vLLM, a step enters the first stage while the steps before it are in later ones. One more waits in front.
        self.depth = stages + 1 if stages > 1 else 1
        self.lock_step = options.group
        self.model = start.facts(options, self._config, self._parts)
        self.kv = KvFacts((block,), self._blocks * block, block_io=False)
        # Masks were run in one stage, with the model runner V1.
        runs_masks = stages == 1 and not start.has_runner_v2(self._config)
        if runs_masks and all(self._calls("trunkline_masks_work")):
            self.structures = structures.of_folder(options.model, self.model)
        self.abilities = replace(
            self.abilities,
            max_sequences=options.max_sequences,
            max_tokens=options.max_tokens,
            steps_in_flight=2 * stages,
            seeded_sampling=all(self._calls("trunkline_seeds_work")),
            pipeline_stages=stages,
            grammars=self.structures is not None,
        )
        self._executor.register_failure_callback(self._process_ended)
        self._prove_layout()

    def _process_ended(self) -> None:
        if self.on_lost is not None:
            self.on_lost(EngineLost("a process of vLLM ended; its KV is lost"))

    def begin(self, settings: Settings) -> None:
        """Forgets all sequences; blocks have been there since the start.

        Raises:
            EngineLost: the server wants other blocks, or vLLM cannot go on after a failed step.
        """
        if settings.block_size != self.kv.block_sizes[0] or settings.blocks > self._blocks:
            raise EngineLost(f"the server wants {settings}, and vLLM has {self._blocks} blocks of {self.kv.block_sizes[0]}")
        # The server may have gone after a failed step, before it sent a reset.
        self.reset()

    def reset(self) -> None:
        """Forgets all sequences.

        Raises:
            EngineLost: a step failed, and vLLM does not say now what it said at the start.
        """
        self._batches.forget()
        if self._failed:
            self._recover()

    def _recover(self) -> None:
        try:
            self._calls("trunkline_recover")
            said = self._trial_prompt(steps=4)
        except Exception as error:
            raise EngineLost(f"vLLM cannot go on after a failed step: {error}") from error
        if said != self._expected:
            raise EngineLost(f"vLLM cannot go on after a failed step: it says {said} now, and said {self._expected} at the start")
        self._failed = False
        log.warning("vLLM goes on after a failed step")

    def forget_slots(self) -> None:
        """Forgets all sequences, and keeps blocks."""
        self._batches.forget()

    def run(self, batch: Batch) -> Result:
        """Runs a batch through vLLM's model runner."""
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], Result]:
        """Sends a batch to vLLM's workers."""
        if (batch.scored_rows > 0).any():
            raise StepError("vLLM reports no attention scores")
        step, seeds = self._batches.build(batch), self._batches.seeds(batch)
        temperatures = self._batches.temperatures(batch)
        # Later steps change the slots before the answer is there.
        names = self._batches.requests(batch)
        wanted = {i: (names[i], int(batch.logprobs[i])) for i in np.flatnonzero(batch.sample).tolist()}
        refused = self._batches.refused(batch)
        try:
            answer, stuck = self._send(batch, step, seeds, temperatures)
        except Exception as error:
            raise self._failure(len(names), error) from error

        def result() -> Result:
            try:
                output = next(said for said in answer() if said is not None)
            except Exception as error:
                raise self._failure(len(names), error) from error
            return _result(output, wanted, refused + stuck)

        return result

    def _send(
        self, batch: Batch, step: Any, seeds: dict[str, int], temperatures: dict[str, float]
    ) -> tuple[Callable[[], list[Any]], list[int]]:
        """Sends a step to vLLM's workers, and returns the call that waits for them, and the sequences that cannot go on."""
        if not batch.has_answers():
            return self._calls.send("trunkline_step", step, seeds, temperatures), []
        model = self._calls.send("trunkline_forward", step, temperatures)
        # The model runs while the rest of what may be next is found.
        allowed = batch.allowed()
        assert allowed is not None, "a batch with answers has masks"
        sampling = np.flatnonzero(batch.sample)[allowed.rows]
        names = self._batches.requests(batch)
        sample = self._calls.send("trunkline_sample", seeds, ([names[i] for i in sampling.tolist()], allowed.bits))

        def answer() -> list[Any]:
            model()
            return sample()

        return answer, allowed.stuck

    def _failure(self, n: int, error: Exception) -> Exception:
        reason = f"vLLM failed to run {n} sequences: {type(error).__name__}: {error}"
        # Processes that work together may each be at another point now.
        if not self._calls.is_one_process or self.lock_step is not None:
            return EngineLost(reason)
        # The model runner may hold half a step now; `reset` comes next.
        self._failed = True
        return StepError(reason)

    def idle(self) -> None:
        """Runs an empty step, in which the experts of this worker compute for the others of its group.

        Raises:
            EngineLost: vLLM failed to run it.
        """
        try:
            self._calls("trunkline_idle")
        except Exception as error:
            raise EngineLost(f"vLLM failed to run an empty step: {type(error).__name__}: {error}") from error

    def read_block(self, block: int) -> bytes:
        """Returns the elements of a block."""
        return self._parts.join(self._calls("trunkline_read", block + 1))

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block."""
        self._calls("trunkline_write", block + 1, self._parts.split(data))

    def close(self) -> None:
        """Ends vLLM's processes."""
        self._executor.shutdown()

    # The proof of the layout, before the server hears that blocks can be copied.

    def _prove_layout(self) -> None:
        """Announces block copies if a generation goes on equally from copied blocks, with all others overwritten."""
        size = self.kv.block_sizes[0]
        self._expected = self._trial_prompt(steps=4)
        """Tokens said after the prompt of the proof: the same after a failed step."""
        if self._blocks < 6:
            log.warning("too few blocks to prove the layout of KV: blocks will not be copied")
            return
        settings = Settings(size, self._blocks, 1)
        vocabulary = self.model.vocab_size
        prompt = self._prompt()
        other = [*prompt[: size // 2], *((t + 5) % vocabulary for t in prompt[size // 2 :])]
        expected = self._expected
        self._trial(settings, other, [2, 3], steps=0)
        first, second = (self._parts.raw_layers(self._calls("trunkline_read", block + 1)) for block in (0, 2))
        found = {layouts.find(a, b, self._parts.shape, size // 2) for a, b in zip(first, second, strict=True)}
        if len(found) == 1:
            self._parts = replace(self._parts, layout=found.pop())
        if self._parts.layout is None:
            log.warning("the order of elements in vLLM's KV blocks is unknown here: blocks are copied as they are")
        self._trial(settings, prompt, [0, 1], steps=0)
        kept = [self.read_block(block) for block in (0, 1)]
        for block in range(6):
            self.write_block(block, bytes(len(kept[0])))
        for block, data in zip((5, 4), kept, strict=True):
            self.write_block(block, data)
        if [self.read_block(block) for block in (5, 4)] != kept:
            log.warning("copied blocks of KV differ from the originals: blocks will not be copied")
            return
        resumed = self._trial(settings, prompt + expected[:1], [5, 4], steps=3, computed=len(prompt))
        if resumed != expected[1:]:
            log.warning("a generation from copied blocks says %s, not %s: blocks will not be copied", resumed, expected[1:])
            return
        self.kv = replace(self.kv, block_io=True)
        log.info("KV blocks can be copied: %s", self._parts.layout or "opaque")

    def _prompt(self) -> list[int]:
        """Returns the prompt of the proof: a block and a half, or a block less three where there is one block."""
        size = self.kv.block_sizes[0]
        return [(7 * i + 11) % self.model.vocab_size for i in range(size + size // 2 if self._blocks > 1 else size - 3)]

    def _trial_prompt(self, steps: int) -> list[int]:
        """Runs the prompt of the proof in the first blocks, whose contents are lost."""
        settings = Settings(self.kv.block_sizes[0], self._blocks, 1)
        return self._trial(settings, self._prompt(), [0, 1][: self._blocks], steps)

    def _trial(self, settings: Settings, tokens: list[int], blocks: list[int], steps: int, computed: int = 0) -> list[int]:
        """Runs a sequence alone, greedily, and returns the tokens that it says in so many steps."""
        table = SlotTable(self.model, settings)
        said: list[int] = []
        for i in range(max(steps, 1)):
            at = computed if i == 0 else len(tokens) + i - 1
            step = pb.Step(id=i + 1, slots=[0], computed=[at], sample=[1], n_generated=[i])
            step.n_tokens.append(len(tokens) - computed if i == 0 else 1)
            step.table_keep.append(0 if i == 0 else len(blocks))
            if i == 0:
                step.n_blocks.append(len(blocks))
                step.blocks.extend(blocks)
                step.starts.add(index=0, tokens=tokens, n_prompt=len(tokens))
                step.starts[0].sampling.top_p = step.starts[0].sampling.repetition_penalty = 1.0
            batch = table.apply(step)
            starts = table.starts[batch.slots]
            result = self.run(batch)
            table.reserve(batch)
            table.record(batch, starts, result.tokens)
            said += result.tokens
        self._batches.forget()
        return said


def _result(output: Any, wanted: dict[int, tuple[str, int]], refused: list[int]) -> Result:
    """Returns what vLLM says about the sampling sequences of a batch.

    `wanted` has name and number of log probabilities of each by its index, -1 for none. `refused` are sequences whose sampling
    parameters vLLM does not take.
    """
    tokens, logprobs = [], []
    # None unless vLLM was told to count them.
    nans = getattr(output, "num_nans_in_logits", None) or {}
    faults = {i: Fault.NOT_FINITE for i, (name, _) in wanted.items() if nans.get(name, 0) > 0}
    faults.update(dict.fromkeys(refused, Fault.UNSUPPORTED))
    for i, (name, n) in wanted.items():
        row = output.req_id_to_index[name]
        sampled = output.sampled_token_ids[row]
        if len(sampled) != 1:
            raise EngineLost(f"vLLM sampled {len(sampled)} tokens for a sequence that was to get one")
        tokens.append(int(sampled[0]))
        if n >= 0 and i not in faults:
            logprobs.append(_logprob(output.logprobs, row, n))
    return Result(tokens, logprobs, faults=faults)


def _logprob(lists: Any, row: int, n: int) -> Logprob:
    """Returns the log probabilities of one row: vLLM puts the sampled token first, then the most likely ones."""
    ids, values = lists.logprob_token_ids[row], lists.logprobs[row]
    return Logprob(float(values[0]), [int(i) for i in ids[1 : n + 1]], [float(v) for v in values[1 : n + 1]])
