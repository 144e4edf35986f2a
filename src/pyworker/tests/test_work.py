"""The engine thread: order of answers when a submission fails, values that are not numbers, and messages of old connections."""

import queue
import threading

import numpy as np
import pytest

from trunkline_worker.proto import messages as pb
from trunkline_worker.results import EngineHung, EngineLost, Fault, Logprob
from trunkline_worker.toy import ToyEngine
from trunkline_worker.work import Work


class Rig:
    """A worker's threads with the ends of a connection."""

    def __init__(self, engine):
        self.answers = queue.Queue()
        self.send = self.answers.put
        self.work = Work(engine)
        self.work.attach(self.send)
        self.work.start()
        self.deliver(welcome=pb.Welcome(session="s", life=1, block_size=16, blocks=8, steps_in_flight=2))

    def deliver(self, **message):
        self.work.deliver(pb.ToWorker(**message), self.send)

    def start(self, step, slot, n_tokens=2, life=1, **sampling):
        """Delivers a step that starts one sequence."""
        start = pb.Start(index=0, request=10 + slot, tokens=[5] * n_tokens, n_prompt=n_tokens)
        start.sampling.CopyFrom(pb.WorkerSampling(top_p=1, repetition_penalty=1, **sampling))
        columns = {"slots": [slot], "n_tokens": [n_tokens], "sample": [1], "n_blocks": [1], "blocks": [slot]}
        self.deliver(step=pb.Step(id=step, life=life, starts=[start], **columns))

    def answer(self):
        return self.answers.get(timeout=20)


class Deferred(ToyEngine):
    """An engine that submits ahead, and has no memory for slot 1."""

    depth = 2

    def submit(self, batch):
        if 1 in batch.slots:
            raise MemoryError("no memory")
        result = self.run(batch)
        return lambda: result


def test_a_submission_that_fails_is_answered_behind_the_steps_before_it():
    rig = Rig(Deferred())
    with rig.work._changed:
        # Both are queued before the engine thread looks.
        rig.start(1, slot=0)
        rig.start(2, slot=1)
    assert rig.answer().step_done.id == 1
    failed = rig.answer().step_failed
    assert failed.id == 2 and "no memory" in failed.reason
    rig.work.stop()


class Hanging(ToyEngine):
    """An engine whose steps and copies end when the test allows it."""

    def __init__(self):
        super().__init__()
        self.begun, self.may_end = threading.Semaphore(0), threading.Event()

    def run(self, batch):
        self.begun.release()
        self.may_end.wait(20)
        return super().run(batch)

    def read_block(self, block):
        self.begun.release()
        self.may_end.wait(20)
        return super().read_block(block)


@pytest.mark.parametrize("what", ["a step", "a copy of a block"])
def test_what_does_not_end_ends_the_worker(what):
    engine = Hanging()
    rig = Rig(engine)
    if what == "a step":
        rig.start(1, slot=0)
    else:
        rig.deliver(read_block=pb.ReadBlock(id=1, life=1, block=0))
    assert engine.begun.acquire(timeout=20)
    assert not rig.work.detach(timeout=0)
    assert isinstance(rig.work.lost, EngineHung)
    assert str(rig.work.lost) == f"{what} did not end in 0 s; start this worker again"
    engine.may_end.set()
    rig.work.stop()


class Faulty(ToyEngine):
    """An engine that fails in the middle of a step: the failure leaves half of the KV written."""

    def __init__(self, failure):
        super().__init__()
        self.failure, self.resets = failure, 0

    def run(self, batch):
        result = super().run(batch)
        if self.failure and batch.id == 2:
            raise self.failure
        return result

    def reset(self):
        super().reset()
        self.failure, self.resets = None, self.resets + 1


def test_a_step_that_the_engine_fails_is_answered_and_the_next_life_is_sound():
    engine = Faulty(RuntimeError("the kernel said no"))
    rig = Rig(engine)
    rig.start(1, slot=0)
    first = rig.answer().step_done
    rig.start(2, slot=1)
    rig.start(3, slot=2)
    failed = rig.answer().step_failed
    assert (failed.id, failed.reason, failed.HasField("request")) == (2, "RuntimeError: the kernel said no", False)
    rig.deliver(reset=pb.Reset(life=2))
    assert rig.answer().reset_done.life == 2
    rig.start(4, slot=1, life=2)
    again = rig.answer().step_done
    # Equal prompts, so equal tokens; the step between was dropped.
    assert (again.id, list(again.tokens), engine.resets, rig.work.lost) == (4, list(first.tokens), 1, None)
    rig.work.stop()


def test_an_engine_that_is_broken_says_so_and_ends_the_worker():
    rig = Rig(Faulty(EngineLost("a process died")))
    rig.start(2, slot=1)
    assert rig.answer().step_failed.reason == "a process died"
    with rig.work._changed:
        assert rig.work._changed.wait_for(lambda: rig.work.lost, 20)
    assert str(rig.work.lost) == "a process died"
    rig.work.stop()


class Unfit(ToyEngine):
    """An engine whose log probabilities and scores are not numbers for slot 3, and which refuses the parameters of slot 4."""

    def run(self, batch):
        result = super().run(batch)
        of = [float("nan") if slot == 3 else -1.0 for slot in batch.slots.tolist()]
        result.faults = {i: Fault.UNSUPPORTED for i, slot in enumerate(batch.slots.tolist()) if slot == 4}
        asked = [i for i in np.flatnonzero(batch.logprobs >= 0).tolist() if i not in result.faults]
        result.logprobs = [Logprob(of[i], [4], [-1.0]) for i in asked]
        result.scores = [of[i] for i in np.flatnonzero(batch.scored_rows > 0).tolist()]
        return result


def three(step, **columns):
    """A step that starts sequences in slots 0, 3 and 4, each with log probabilities."""
    message = pb.Step(
        id=step, life=1, slots=[0, 3, 4], n_tokens=[2] * 3, sample=[1] * 3, n_blocks=[1] * 3, blocks=[0, 1, 2], **columns
    )
    for i, slot in enumerate(message.slots):
        start = message.starts.add(index=i, request=10 + slot, tokens=[5, 5], n_prompt=2)
        start.sampling.CopyFrom(pb.WorkerSampling(top_p=1, repetition_penalty=1, logprobs=1))
    return message


@pytest.mark.parametrize("depth", [1, 2])
def test_numbers_that_are_none_and_parameters_that_are_refused_fail_their_sequence_alone(depth):
    engine = Unfit()
    engine.depth = depth
    rig = Rig(engine)
    with rig.work._changed:
        rig.deliver(step=three(1, scored_rows=[1, 1, 1]))
        # Sent before the first was answered: it runs all three on the tokens that were to come.
        rig.deliver(
            step=pb.Step(id=2, life=1, slots=[0, 3, 4], computed=[2] * 3, n_tokens=[1] * 3, sample=[1] * 3, table_keep=[1] * 3)
        )
    first, second = rig.answer().step_done, rig.answer().step_done
    assert (first.id, list(first.faults)) == (1, [0, pb.SEQUENCE_FAULT_NOT_FINITE, pb.SEQUENCE_FAULT_UNSUPPORTED])
    assert (len(first.tokens), len(first.logprobs), list(first.scores)) == (1, 1, [-1, 0, 0])
    assert (second.id, len(second.tokens), rig.work.intact) == (2, 1, True)
    # The slots take other sequences.
    rig.start(3, slot=5)
    assert (rig.answer().step_done.id, rig.work.life) == (3, 1)
    rig.work.stop()


def test_messages_of_a_connection_that_is_over_are_dropped():
    rig = Rig(ToyEngine())
    rig.start(1, slot=0)
    assert rig.answer().step_done.id == 1
    later = queue.Queue()
    assert rig.work.detach()
    rig.start(2, slot=1)
    rig.work.attach(later.put)
    rig.start(3, slot=1)
    rig.work.drain(20)
    assert rig.answers.empty() and later.empty()
    rig.work.stop()
