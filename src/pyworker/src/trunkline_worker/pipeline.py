"""A pipeline of processes: each holds the KV of its own layers and runs them, so that several steps are under way at once.

The worker's process keeps the slots, and sends each step to all stages at once. A stage runs its layers and hands the rows on to
the next; the last one samples. Blocks are copied by a thread of each stage, alongside the steps.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .facts import Abilities, KvFacts, ModelFacts, Settings
from .results import EngineLost, Result, StepError
from .slots import Batch, Int32s, SlotTable
from .structures import Allowed

log = logging.getLogger(__name__)

MAX_STAGES = 64
START_TIMEOUT = 600.0
"""Seconds for the stages to load their weights."""
END_TIMEOUT = 5.0
"""Seconds for a stage to end when asked to; then it is killed."""


@dataclass
class StageTable:
    """The rows of `SlotTable` that belong to one batch, in the order of the batch."""

    tables: Int32s
    temperature: npt.NDArray[np.float32]
    top_k: Int32s
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    penalty: npt.NDArray[np.float32]
    frequency: npt.NDArray[np.float32]
    presence: npt.NDArray[np.float32]
    bias: dict[int, dict[int, float]]
    seed: npt.NDArray[np.uint64]


@dataclass
class StageBatch(Batch):
    """A batch that travels to a stage: with its own part of the slots, so that later steps change nothing in it."""

    rows: Int32s
    """Tokens to run of all sequences."""
    histories: dict[int, Int32s]
    """All tokens of the sampling sequences with a repetition penalty, by their number among the sampling ones."""
    generated: dict[int, Int32s]
    """Generated tokens of those with a penalty for generated tokens, likewise."""
    may_follow: Allowed | None
    """What may be next in those with a structure."""

    def allowed(self) -> Allowed | None:
        """Returns what may be next in the sequences that sample and have a structure."""
        return self.may_follow

    def tokens(self) -> Int32s:
        """Returns the tokens to run of all sequences, one range after another."""
        return self.rows

    def tokens_of(self, i: int) -> Int32s:
        """Returns the tokens to run of the `i`-th sequence."""
        first = int(self.n_tokens[:i].sum())
        return self.rows[first : first + self.n_tokens[i]]


def portable(batch: Batch) -> StageBatch:
    """Returns a copy of a batch without the slots that it does not use."""
    table, slots = batch.table, batch.slots
    entries = -(-int(batch.ends.max()) // table.settings.block_size)
    part = StageTable(
        tables=table.tables[:, slots, :entries],
        temperature=table.temperature[slots],
        top_k=table.top_k[slots],
        top_p=table.top_p[slots],
        min_p=table.min_p[slots],
        penalty=table.penalty[slots],
        frequency=table.frequency[slots],
        presence=table.presence[slots],
        bias={i: table.bias[slot] for i, slot in enumerate(slots.tolist()) if slot in table.bias},
        seed=table.seed[slots],
    )
    sampling = slots[batch.sample]
    fields = {**vars(batch), "table": cast(SlotTable, part), "slots": np.arange(len(slots), dtype=np.int32)}
    return StageBatch(
        **fields,
        rows=batch.tokens(),
        histories={
            int(i): table.tokens[sampling[i], : table.n_tokens[sampling[i]]].copy()
            for i in np.flatnonzero(table.penalty[sampling] != 1)
        },
        generated={
            int(i): table.tokens[sampling[i], table.n_prompt[sampling[i]] : table.n_tokens[sampling[i]]].copy()
            for i in np.flatnonzero(table.counts_generated(sampling))
        },
        may_follow=batch.allowed(),
    )


class Stage(ABC):
    """The layers of one process. Made there by the factory that `Pipeline` gets."""

    @abstractmethod
    def begin(self, settings: Settings) -> None:
        """Prepares blocks of the size and number that the server chose."""

    @abstractmethod
    def run(self, batch: StageBatch, before: Any) -> Any:
        """Runs the layers of this stage on what the stage before returned (None in the first stage).

        Returns what the next stage needs, or the `Result` in the last one.

        Raises:
            StepError: the batch cannot be run.
            EngineLost: this stage cannot run again, for example after an error of its GPU. The worker ends.
        """

    @abstractmethod
    def read_block(self, block: int) -> bytes:
        """Returns the elements of a block in the layers of this stage."""

    @abstractmethod
    def write_block(self, block: int, data: bytes) -> None:
        """Replaces the contents of a block in the layers of this stage."""


Factory = Callable[[], Stage]


@dataclass(frozen=True)
class Failure:
    """A step that failed in a stage, handed on to the end of the pipeline instead of rows."""

    reason: str
    request: int | None = None
    ends_worker: bool = False
    """The stage cannot run again."""

    @staticmethod
    def of(stage: str, error: Exception) -> Failure:
        """Describes an exception of a stage."""
        if isinstance(error, StepError):
            return Failure(str(error), error.request)
        if isinstance(error, EngineLost):
            return Failure(f"{stage}: {error}", ends_worker=True)
        return Failure(f"{stage}: {type(error).__name__}: {error}")


@dataclass
class _Handle:
    """A stage, seen from the worker's process."""

    name: str
    process: Any
    steps: Connection
    copies: Connection
    answers: queue.SimpleQueue[Any]
    """Answers to copies and to `begin`; None after the end of the process."""
    ended: threading.Event
    """The process has ended, and `Pipeline` knows how."""


class Pipeline(Engine):
    """Runs batches through stages in processes of their own.

    `shares` are the bytes of one token in a block that each stage holds, in the order of layers.
    """

    def __init__(
        self,
        program: str,
        model: ModelFacts,
        kv: KvFacts,
        abilities: Abilities,
        stages: Sequence[tuple[str, Factory]],
        shares: Sequence[int],
    ) -> None:
        n = len(stages)
        self.program, self.model, self.kv = f"{program}, {n} stages", model, kv
        self.abilities = replace(abilities, pipeline_stages=n, steps_in_flight=2 * n)
        # One batch waits in front of the first stage.
        self.depth = n + 1
        self._shares = shares
        self._block_size = 0
        self._closing = False
        self._lost: EngineLost | None = None
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._copying = threading.Lock()
        self._stages = self._spawn(stages)
        try:
            self._answers(START_TIMEOUT)
        except BaseException:
            self.close()
            raise

    def _spawn(self, stages: Sequence[tuple[str, Factory]]) -> list[_Handle]:
        # PyTorch's and gRPC's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        links = [context.Pipe(duplex=False) for _ in stages[1:]]
        results, results_in = context.Pipe(duplex=False)
        handles = []
        for i, (name, factory) in enumerate(stages):
            steps, steps_in = context.Pipe()
            copies, copies_in = context.Pipe()
            before = links[i - 1][0] if i else None
            after = links[i][1] if i < len(links) else results_in
            arguments = (name, factory, steps_in, copies_in, before, after)
            process = context.Process(target=_serve, args=arguments, name=name, daemon=True)
            process.start()
            # The ends that the stage has now: a pipe ends when nobody holds its other end.
            for end in (steps_in, copies_in, before, after):
                if end is not None:
                    end.close()
            handle = _Handle(name, process, steps, copies, queue.SimpleQueue(), threading.Event())
            handles.append(handle)
            for connection in (steps, copies):
                self._start(self._pump, connection, handle.answers)
            self._start(self._watch, handle)
        self._start(self._pump, results, self._results)
        return handles

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, name="stages", daemon=True).start()

    @staticmethod
    def _pump(connection: Connection, into: queue.SimpleQueue[Any]) -> None:
        """Takes what arrives at once, and None at the end: nobody waits for this process to be ready."""
        try:
            while True:
                into.put(connection.recv())
        except (EOFError, OSError):
            into.put(None)

    def _watch(self, handle: _Handle) -> None:
        """Waits for the end of a stage, which is the end of the worker unless the worker asked for it."""
        handle.process.join()
        code = handle.process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._lost = self._lost or EngineLost(f"{handle.name} {how}; its KV is lost")
        handle.ended.set()
        self._results.put(None)
        if self.on_lost is not None and not self._closing:
            self.on_lost(self._lost)

    def _gone(self, handle: _Handle) -> EngineLost:
        handle.ended.wait(END_TIMEOUT)
        return self._lost or EngineLost(f"{handle.name} closed its connection")

    def _send(self, handle: _Handle, connection: Connection, *message: Any) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise self._gone(handle) from error

    def _answers(self, timeout: float | None = None) -> list[Any]:
        """Returns the answers of all stages to one message."""
        answers = []
        for handle in self._stages:
            try:
                answers.append(handle.answers.get(timeout=timeout))
            except queue.Empty:
                raise EngineLost(f"{handle.name} said nothing for {timeout:.0f} s") from None
            if answers[-1] is None:
                # The next caller finds it too.
                handle.answers.put(None)
                raise self._gone(handle)
        failed = [answer for answer in answers if isinstance(answer, Failure)]
        if failed:
            raise ValueError(failed[0].reason)
        return answers

    def begin(self, settings: Settings) -> None:
        """Prepares blocks in all stages."""
        self._block_size = settings.block_size
        self._ask("begin", settings)

    def _ask(self, *command: Any) -> None:
        """Sends a command to all stages, and waits until they have done it."""
        for stage in self._stages:
            self._send(stage, stage.steps, *command)
        try:
            self._answers()
        except ValueError as error:
            raise EngineLost(str(error)) from error

    def reset(self) -> None:
        """Forgets nothing: stages keep no sequences, and blocks are written before they are read again."""

    def run(self, batch: Batch) -> Result:
        """Runs a batch to its end."""
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], Result]:
        """Sends a batch to all stages."""
        message = portable(batch)
        for stage in self._stages:
            self._send(stage, stage.steps, "step", message)
        return self._result

    def _result(self) -> Result:
        result = self._results.get()
        if result is None:
            self._results.put(None)
            raise self._gone(self._stages[-1])
        if isinstance(result, Failure):
            if result.ends_worker:
                raise EngineLost(result.reason)
            raise StepError(result.reason, result.request)
        return cast(Result, result)

    def read_block(self, block: int) -> bytes:
        """Returns the elements of a block, in the order of layers."""
        with self._copying:
            for stage in self._stages:
                self._send(stage, stage.copies, "read", block)
            return b"".join(self._answers())

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block in all stages."""
        sizes = [share * self._block_size for share in self._shares]
        if len(data) != sum(sizes):
            raise ValueError(f"{len(data)} bytes for a block of {sum(sizes)}")
        with self._copying:
            at = 0
            for stage, size in zip(self._stages, sizes, strict=True):
                self._send(stage, stage.copies, "write", block, data[at : at + size])
                at += size
            self._answers()

    def close(self) -> None:
        """Ends the processes."""
        self._closing = True
        for stage in self._stages:
            # A stage that is gone needs no word.
            with contextlib.suppress(OSError):
                stage.steps.send(None)
        for stage in self._stages:
            if not stage.ended.wait(END_TIMEOUT):
                stage.process.kill()


def even(weights: Sequence[int], n: int) -> list[range]:
    """Divides layers of the given costs among `n` stages, so that the dearest stage is as cheap as possible.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    if not 1 <= n <= min(len(weights), MAX_STAGES):
        raise ValueError(f"{n} pipeline stages: choose from 1 to {min(len(weights), MAX_STAGES)}, the layers of the model")
    sums = [0, *np.cumsum(weights).tolist()]
    # best[i] is the least cost of the dearest stage for the first i layers, with the beginning of its last stage.
    best = [(sums[i], 0) for i in range(len(sums))]
    begins = [best]
    for stage in range(1, n):
        best = [
            min(((max(begins[-1][j][0], sums[i] - sums[j]), j) for j in range(stage, i)), default=(sums[-1] + 1, 0))
            for i in range(len(sums))
        ]
        begins.append(best)
    parts, end = [], len(weights)
    for row in reversed(begins):
        parts.append(range(row[end][1], end))
        end = row[end][1]
    return parts[::-1]


# The process of a stage.


def _serve(
    name: str, factory: Factory, steps: Connection, copies: Connection, before: Connection | None, after: Connection
) -> None:
    """Runs a stage until the worker's process closes its end, or is gone."""
    # An interrupt from the keyboard reaches all processes; the worker's own decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stage = factory()
    except Exception as error:
        steps.send(Failure.of(name, error))
        return
    steps.send("ready")
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for connection, into in [(steps, commands), (before, rows)]:
        if connection is not None:
            threading.Thread(target=Pipeline._pump, args=(connection, into), daemon=True).start()
    threading.Thread(target=_copy, args=(name, stage, copies), daemon=True).start()
    while (command := commands.get()) is not None:
        try:
            if command[0] == "begin":
                steps.send(_attempt(name, stage.begin, *command[1:]))
                continue
            given = rows.get() if before is not None else None
            if before is not None and given is None:
                break
            if not isinstance(given, Failure):
                given = _attempt(name, stage.run, command[1], given)
            after.send(given)
        except OSError:
            break
    # Threads that wait for pipes would keep the process.
    os._exit(0)


def _attempt(name: str, act: Callable[..., Any], *arguments: Any) -> Any:
    try:
        answer = act(*arguments)
    except Exception as error:
        if not isinstance(error, StepError | EngineLost):
            log.exception("%s", name)
        return Failure.of(name, error)
    return b"" if answer is None else answer


def _copy(name: str, stage: Stage, copies: Connection) -> None:
    """Answers the copies of blocks."""
    try:
        while True:
            kind, *arguments = copies.recv()
            act = stage.read_block if kind == "read" else stage.write_block
            copies.send(_attempt(name, act, *arguments))
    except (EOFError, OSError):
        return
