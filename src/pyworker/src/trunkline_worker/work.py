"""The threads that work: one submits steps in order, one waits for their results, one copies blocks. All outlive connections."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .facts import Settings
from .proto import messages as pb
from .results import EngineHung, EngineLost, Fault, Result, StepError
from .shared_memory import Region
from .slots import Batch, SlotTable

log = logging.getLogger(__name__)

Send = Callable[[pb.FromWorker], None]
Job = pb.Step | pb.Idle | pb.Reset | pb.Welcome
Copy = pb.ReadBlock | pb.WriteBlock

_REASONS = {
    Fault.NOT_FINITE: "what the model computed is not finite (weights trained in bf16 may need --dtype bf16 or f32)",
    Fault.UNSUPPORTED: "the engine cannot honour its sampling parameters",
}
HUNG = 60.0
"""Seconds for what runs to end when a connection is over, at least."""


@dataclass
class Running:
    """A submitted batch."""

    step: pb.Step
    batch: Batch
    starts: npt.NDArray[np.int64]
    wait: Callable[[], Result]
    begun: float
    outcome: Result | Exception | None = None
    """The result or the failure, once known."""


class Work:
    """Runs what connections deliver, and answers through the connection that is attached at that time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lost: BaseException | None = None
        self.life = 0
        self.intact = False
        """The KV of `life` is whole: no step has failed since the life began."""
        self.steps_done = 0
        self._table: SlotTable | None = None
        self._settings: Settings | None = None
        self._jobs: deque[Job] = deque()
        self._copies: deque[tuple[Copy, Region | None]] = deque()
        self._running: deque[Running] = deque()
        self._send: Send | None = None
        self._copying = False
        self._busy = False
        self._barrier = True
        self._stopped = False
        self._answered = 0.0
        self._changed = threading.Condition()
        engine.on_lost = self._lose
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for loop, name in [(self._run_jobs, "engine"), (self._run_waits, "results"), (self._run_copies, "copies")]
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def attach(self, send: Send) -> None:
        """Sends answers through `send` from now on."""
        with self._changed:
            self._send = send

    def deliver(self, message: pb.ToWorker, attached: Send, region: Region | None = None) -> None:
        """Takes a message of the server, unless the connection that answers through `attached` and shares `region` is over."""
        kind = message.WhichOneof("message")
        with self._changed:
            if self._send != attached:
                return
            if kind in ("welcome", "reset"):
                # Whatever is queued belongs to an earlier life, and copies wait until the new one has begun.
                self._jobs.clear()
                self._copies.clear()
                self._barrier = True
            if kind in ("welcome", "reset", "step", "idle"):
                self._jobs.append(getattr(message, kind))
            elif kind in ("read_block", "write_block"):
                self._copies.append((getattr(message, kind), region))
            self._changed.notify_all()

    def detach(self, timeout: float = HUNG) -> bool:
        """Drops queued messages and answers, and waits until nothing runs. Returns `True` if KV is intact.

        If something still runs after `timeout` seconds, the engine is lost.
        """
        with self._changed:
            self._send = None
            dropped_reset = any(isinstance(job, pb.Reset | pb.Welcome) for job in self._jobs)
            self._jobs.clear()
            self._copies.clear()
            self._changed.notify_all()
            ended = self._changed.wait_for(lambda: self.lost or not (self._busy or self._running or self._copying), timeout)
            if not ended:
                what = "a copy of a block" if not (self._busy or self._running) else "a step"
                self.lost = EngineHung(f"{what} did not end in {timeout:.0f} s; start this worker again")
            self.intact &= not dropped_reset
            return self.intact and self.lost is None

    def drain(self, timeout: float) -> None:
        """Waits until steps that were delivered are answered, `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost or not (self._busy or self._running or self._jobs), timeout)

    def stop(self) -> None:
        """Ends the threads, without waiting for what they do."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            if not isinstance(error, EngineLost):
                log.debug("the worker cannot continue", exc_info=True)
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        with self._changed:
            self.lost = self.lost or error
            self._changed.notify_all()

    def _answer(self, message: pb.FromWorker) -> None:
        with self._changed:
            send = self._send
        if send is not None:
            send(message)

    def _run_jobs(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stopped or self._has_room() or self._has_result())
                if self._stopped:
                    return
                # The next step is submitted before the answer of the last is awaited, if the engine can.
                job = self._jobs.popleft() if self._has_room() else None
                self._busy = True
            if job is None:
                self._finish_first()
            elif isinstance(job, pb.Step):
                self._submit(job)
            elif isinstance(job, pb.Idle):
                self._idle(job)
            else:
                self._begin_life(job)

    def _has_room(self) -> bool:
        return bool(self._jobs) and (len(self._running) < self.engine.depth or not isinstance(self._jobs[0], pb.Step))

    def _has_result(self) -> bool:
        return bool(self._running) and (self.engine.depth == 1 or self._running[0].outcome is not None)

    def _run_waits(self) -> None:
        """Waits for the results of submitted batches, so that the engine thread may submit others meanwhile."""
        if self.engine.depth == 1:
            return
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._awaited() is not None)
                if self._stopped:
                    return
                running = self._awaited()
                assert running is not None
            outcome = _outcome(running)
            with self._changed:
                running.outcome = outcome
                self._changed.notify_all()

    def _awaited(self) -> Running | None:
        return next((running for running in self._running if running.outcome is None), None)

    def _result_of(self, running: Running) -> Result:
        """Returns the result of a batch, or raises its failure."""
        if self.engine.depth == 1:
            return running.wait()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or running.outcome is not None)
            outcome = running.outcome
        if outcome is None:
            raise EngineLost("the worker was stopped")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _finish_first(self) -> None:
        self._finish(self._running[0])
        self._drop_first()

    def _drop_first(self) -> None:
        with self._changed:
            self._running.popleft()

    def _begin_life(self, job: pb.Welcome | pb.Reset) -> None:
        while self._running:
            self._discard(self._running[0])
            self._drop_first()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._copying)
        if isinstance(job, pb.Welcome):
            settings = Settings(job.block_size, job.blocks, job.steps_in_flight)
            if job.resumed and settings == self._settings:
                self.engine.forget_slots()
            else:
                self.engine.begin(settings)
            self._settings = settings
        else:
            self.engine.reset()
        if self._settings is None:
            raise EngineLost("the server sent a Reset before its Welcome")
        self._table = SlotTable(self.engine.model, self._settings, self.engine.structures)
        with self._changed:
            self.life, self.intact, self._barrier = job.life, True, False
            self._changed.notify_all()
        if isinstance(job, pb.Reset):
            log.info("life %d begins", job.life)
            self._answer(pb.FromWorker(reset_done=pb.ResetDone(life=job.life)))

    def _idle(self, job: pb.Idle) -> None:
        while self._running:
            self._finish_first()
        if job.life == self.life and self.intact:
            self.engine.idle()

    def _submit(self, step: pb.Step) -> None:
        if step.life != self.life or not self.intact or self._table is None:
            return
        begun = time.perf_counter()
        try:
            batch = self._table.apply(step)
            starts = self._table.starts[batch.slots]
            if not self.engine.own_samples:
                while self._running and not batch.knows_tokens():
                    self._finish_first()
                if not self.intact:
                    return
            # The slots know of the token before it is sampled, so that the next step may follow at once.
            wait = self.engine.submit(batch)
            self._table.reserve(batch)
        except EngineLost as error:
            self._fail_after_running(step, error)
            raise
        except Exception as error:
            self._fail_after_running(step, error)
            return
        with self._changed:
            self._running.append(Running(step, batch, starts, wait, begun))
            self._changed.notify_all()

    def _fail_after_running(self, step: pb.Step, error: Exception) -> None:
        # Steps are answered in their order: those before this one first.
        while self._running:
            self._finish_first()
        if self.intact:
            self._fail(step, error)

    def _finish(self, running: Running) -> None:
        if not self.intact:
            self._discard(running)
            return
        try:
            result = self._result_of(running)
            self._check(running.batch, result)
            done = _done(running, result)
        except EngineLost as error:
            self._fail(running.step, error)
            raise
        except Exception as error:
            self._fail(running.step, error)
            return
        # Steps on the way run any token in the place of one that was not sampled.
        running.batch.table.record(running.batch, running.starts, result.tokens)
        now = time.perf_counter()
        done.busy_us = int((now - max(running.begun, self._answered)) * 1e6)
        self._answered = now
        self.steps_done += 1
        self._answer(pb.FromWorker(step_done=done))

    def _discard(self, running: Running) -> None:
        try:
            self._result_of(running)
        except EngineLost:
            raise
        except Exception as error:
            log.debug("step %d failed after it was dropped: %s", running.step.id, error)

    def _check(self, batch: Batch, result: Result) -> None:
        """Checks a result against its batch, and fails the sequences whose numbers are not finite."""
        sampling, vocabulary = np.flatnonzero(batch.sample).tolist(), self.engine.model.vocab_size
        tokens = [0 if i in result.faults else token for i, token in zip(sampling, result.tokens, strict=False)]
        if len(result.tokens) != len(sampling) or any(not 0 <= token < vocabulary for token in tokens):
            raise StepError(f"step {batch.id}: the engine sampled {result.tokens[:8]} for {len(sampling)} sequences")
        result.tokens = tokens
        asked = [i for i in np.flatnonzero(batch.sample & (batch.logprobs >= 0)).tolist() if i not in result.faults]
        if len(result.logprobs) != len(asked):
            raise StepError(f"step {batch.id}: {len(result.logprobs)} log probabilities for {len(asked)} sequences")
        fit = [np.isfinite([entry.logprob, *entry.top_logprobs]).all() for entry in result.logprobs]
        result.faults.update({i: Fault.NOT_FINITE for i, good in zip(asked, fit, strict=True) if not good})
        result.logprobs = [entry for entry, good in zip(result.logprobs, fit, strict=True) if good]
        if result.scores:
            self._check_scores(batch, result)
        for i, fault in sorted(result.faults.items()):
            log.warning("step %d: request %d fails alone: %s", batch.id, batch.requests[i], _REASONS[fault])

    def _check_scores(self, batch: Batch, result: Result) -> None:
        groups = sum(group.scored for group in self.engine.model.groups)
        assert self._settings is not None
        entries = -(-batch.ends // self._settings.block_size) * (max(1, groups) if batch.by_group else 1)
        at = 0
        for i in np.flatnonzero(batch.scored_rows > 0).tolist():
            own = slice(at, at + int(entries[i]))
            at = own.stop
            if not np.isfinite(result.scores[own]).all():
                result.faults.setdefault(i, Fault.NOT_FINITE)
            if i in result.faults:
                result.scores[own] = [0.0] * len(result.scores[own])
        if at != len(result.scores):
            raise StepError(f"step {batch.id}: {len(result.scores)} scores for {at} entries of block tables")

    def _fail(self, step: pb.Step, error: Exception) -> None:
        expected = isinstance(error, StepError | EngineLost)
        reason = str(error) if expected else f"{type(error).__name__}: {error}"
        log.error("step %d failed: %s", step.id, reason, exc_info=None if expected else error)
        with self._changed:
            self.intact = False
        failed = pb.StepFailed(id=step.id, life=step.life, reason=reason[:4096])
        if isinstance(error, StepError) and error.request is not None:
            failed.request = error.request
        self._answer(pb.FromWorker(step_failed=failed))

    def _run_copies(self) -> None:
        while True:
            with self._changed:
                self._copying = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stopped or (self._copies and not self._barrier))
                if self._stopped:
                    return
                copy, region = self._copies.popleft()
                self._copying = True
                life = self.life
            if copy.life == life:
                answer = self._copy(copy, region)
                with self._changed:
                    current = not self._barrier
                if current:
                    self._answer(answer)

    def _copy(self, copy: Copy, region: Region | None) -> pb.FromWorker:
        error, data, slot_bytes = "", b"", 0
        try:
            if self._settings is None or copy.block >= self._settings.blocks:
                raise ValueError(f"there is no block {copy.block}")
            if isinstance(copy, pb.ReadBlock):
                data = self.engine.read_block(copy.block)
                if region is not None and copy.HasField("slot") and _put(region, copy.slot, data):
                    data, slot_bytes = b"", len(data)
            else:
                self.engine.write_block(copy.block, _contents(copy, region))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            log.error("copy of block %d: %s", copy.block, error)
        if isinstance(copy, pb.ReadBlock):
            return pb.FromWorker(block_read=pb.BlockRead(id=copy.id, data=data, error=error, slot_bytes=slot_bytes))
        return pb.FromWorker(block_written=pb.BlockWritten(id=copy.id, error=error))


def _put(region: Region, slot: int, data: bytes) -> bool:
    """Writes a block to a slot. Returns `False` if it must travel in the message: the server takes it either way."""
    try:
        region.write(slot, data)
    except (OSError, ValueError) as error:
        log.warning("a block travels in a message: %s", error)
        return False
    return True


def _contents(copy: pb.WriteBlock, region: Region | None) -> bytes:
    if not copy.HasField("slot"):
        return copy.data
    if region is None:
        raise ValueError("a slot was named without shared memory")
    return region.read(copy.slot, copy.slot_bytes)


def _done(running: Running, result: Result) -> pb.StepDone:
    """Returns the answer to a step."""
    batch, step, faults = running.batch, running.step, result.faults
    sampling = np.flatnonzero(batch.sample).tolist()
    tokens = [token for i, token in zip(sampling, result.tokens, strict=True) if i not in faults]
    done = pb.StepDone(id=step.id, life=step.life, tokens=tokens, scores=result.scores)
    if faults:
        column = [int(faults.get(i, pb.SEQUENCE_FAULT_NONE)) for i in range(len(batch))]
        done.faults.extend(cast(list[pb.SequenceFault], column))
    for entry in result.logprobs:
        done.logprobs.add(logprob=entry.logprob, top_ids=entry.top_ids, top_logprobs=entry.top_logprobs)
    return done


def _outcome(running: Running) -> Result | Exception:
    try:
        return running.wait()
    except Exception as error:
        return error
