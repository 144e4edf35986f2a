"""Stages in processes of their own, with the toy model: tokens, steps under way, failures, and the death of a stage."""

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from attached import Attached, greet
from scheduler import Scheduler, Server, greedy
from test_protocol import expected, prompts, two_steps

from trunkline_worker import cli
from trunkline_worker.facts import Settings
from trunkline_worker.pipeline import Pipeline, even, portable
from trunkline_worker.proto import messages as pb
from trunkline_worker.results import EngineLost
from trunkline_worker.slots import SlotTable
from trunkline_worker.toy import ToyEngine, ToyStage, staged


@pytest.fixture(params=[2, 3])
def engine(request):
    made = staged(4096, request.param)
    yield made
    made.close()


def test_tokens_survive_chunks_hits_preemption_and_swap(engine):
    with Attached(engine) as worker:
        scheduler = greet(worker, max_running=6)
        stages = scheduler.hello.abilities.pipeline_stages
        assert (stages, scheduler.hello.abilities.steps_in_flight) == (engine.depth - 1, 2 * stages)
        scheduler.welcome()
        for prompt in prompts(24):
            scheduler.add(prompt, 20)
        for seq in scheduler.run(every=3):
            assert seq.tokens == expected(seq.prompt, 20)
        assert scheduler.counts["hits"] > 10 and scheduler.counts["swaps"] > 5 and scheduler.counts["preemptions"] > 5


def start(step, slot, tokens, life=1):
    """A step that starts a sequence of its own, in a block of its own."""
    columns = {"slots": [slot], "n_tokens": [len(tokens)], "sample": [1], "n_blocks": [1], "blocks": [slot]}
    made = pb.Step(id=step, life=life, **columns)
    made.starts.add(index=0, request=10 + slot, tokens=tokens, n_prompt=len(tokens), sampling=greedy())
    return made


def test_steps_enter_while_earlier_ones_are_under_way_and_are_answered_in_order(engine):
    with Attached(engine) as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        n = engine.depth - 1
        said = {slot: [20 + slot, 30] for slot in range(n)}
        # A step of each sequence, and twice a step for the token that the one before samples: none waits for an answer.
        for slot in range(n):
            scheduler.peer.send(step=start(slot + 1, slot, said[slot]))
        for turn in (1, 2):
            for slot in range(n):
                columns = {"slots": [slot], "computed": [1 + turn], "n_tokens": [1], "sample": [1], "n_generated": [turn]}
                scheduler.peer.send(step=pb.Step(id=turn * n + slot + 1, life=1, table_keep=[1], **columns))
        for step in range(3 * n):
            done = scheduler.peer.receive("step_done")
            assert done.id == step + 1
            said[step % n] += done.tokens
        assert all(tokens == expected([20 + slot, 30], 3) for slot, tokens in said.items())


def test_a_step_that_fails_in_one_stage_is_answered_and_the_next_life_is_sound(engine):
    with Attached(engine) as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        broken = start(1, 0, [5, 6])
        broken.blocks[0] = 0xFFFF_FFFF
        scheduler.peer.send(step=broken)
        scheduler.peer.send(step=start(2, 1, [7, 8]))
        failed = scheduler.peer.receive("step_failed")
        assert failed.id == 1 and "without a block" in failed.reason
        scheduler.peer.send(reset=pb.Reset(life=2))
        assert scheduler.peer.receive("reset_done").life == 2
        scheduler.peer.send(step=start(3, 1, [7, 8], life=2))
        assert list(scheduler.peer.receive("step_done").tokens) == expected([7, 8], 1)[2:]


def test_blocks_hold_the_layers_of_all_stages(engine):
    engine.begin(Settings(16, 4, 2))
    with pytest.raises(ValueError, match="9 bytes for a block"):
        engine.write_block(0, bytes(9))
    data = np.arange(engine.depth - 1, dtype="<f4").repeat(32).tobytes()
    engine.write_block(3, data)
    assert engine.read_block(3) == data and engine.read_block(2) != data


def test_a_batch_that_travels_keeps_what_later_steps_change():
    engine = ToyEngine()
    table = SlotTable(engine.model, Settings(16, 8, 2))
    first = two_steps(1)[0]
    first.starts[0].sampling.repetition_penalty = 2.0
    sent = portable(table.apply(first))
    table.apply(start(2, 3, [40, 41, 42]))
    assert sent.tokens().tolist() == sent.tokens_of(0).tolist() == sent.histories[0].tolist() == [10, 11, 12]
    assert (sent.table.tables[0, 0].tolist(), sent.requests.tolist()) == ([5], [7])


class Meeting(ToyStage):
    """Meets the other stage: the first stage in its second step, the last one in its first step."""

    def __init__(self, is_last, barrier):
        super().__init__(is_last)
        self.barrier, self.meets_in = barrier, 1 if is_last else 2

    def run(self, batch, before):
        if batch.id == self.meets_in:
            self.barrier.wait(20)
        return super().run(batch, before)


def test_the_first_stage_runs_the_second_step_while_the_last_one_runs_the_first():
    barrier = multiprocessing.get_context("spawn").Barrier(2)
    one = ToyEngine()
    stages = [(f"stage {i}", partial(Meeting, i == 1, barrier)) for i in range(2)]
    engine = Pipeline("toy", one.model, one.kv, one.abilities, stages, [8, 8])
    with Attached(engine) as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        for step in (1, 2):
            scheduler.peer.send(step=start(step, step, [step, 9]))
        # Stages that took turns would wait for nothing, and the steps would fail.
        said = [scheduler.peer.receive("step_done").tokens[0] for _ in range(2)]
        assert said == [expected([step, 9], 1)[-1] for step in (1, 2)]
    engine.close()


class Broken(ToyStage):
    """Cannot run again after its first step."""

    def run(self, batch, before):
        if batch.id == 2:
            raise EngineLost("its device runs nothing any more")
        return super().run(batch, before)


def test_a_stage_that_cannot_run_again_ends_the_worker_with_its_reason():
    one = ToyEngine()
    engine = Pipeline("toy", one.model, one.kv, one.abilities, [("stage 0", partial(Broken, True))], [8])
    with Attached(engine) as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        for step in (1, 2):
            scheduler.peer.send(step=start(step, step, [step, 9]))
        scheduler.peer.receive("step_done")
        failed = scheduler.peer.receive("step_failed")
        worker.thread.join(20)
        assert isinstance(worker.failure, EngineLost)
        assert failed.reason == str(worker.failure) == "stage 0: its device runs nothing any more"
    engine.close()


@pytest.mark.parametrize("at_work", [False, True])
def test_a_stage_that_dies_ends_the_worker_with_one_line(engine, at_work):
    with Attached(engine) as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        scheduler.peer.send(step=start(1, 0, [5, 6]))
        scheduler.peer.receive("step_done")
        os.kill(engine._stages[1].process.pid, signal.SIGKILL)
        if at_work:
            scheduler.peer.send(step=start(2, 1, [7, 8]))
        worker.thread.join(20)
        assert isinstance(worker.failure, EngineLost)
        assert str(worker.failure) == "stage 1 was ended by SIGKILL; its KV is lost"


def test_a_stage_that_dies_while_it_starts_is_one_line(monkeypatch, capsys):
    one = ToyEngine()

    def build(_arguments):
        return Pipeline("toy", one.model, one.kv, one.abilities, [("stage 0", partial(os._exit, 3))], [8])

    monkeypatch.setattr(cli, "build", build)
    assert cli.main(["--engine", "toy", "--connect", "localhost:1"]) == 1
    assert capsys.readouterr().err == "trunkline-worker: stage 0 ended with status 3; its KV is lost\n"


def test_a_worker_process_ends_with_its_stages(tmp_path):
    server = Server()
    command = [sys.executable, "-m", "trunkline_worker", "--engine", "toy", "--pipeline-parallel", "2"]
    process = subprocess.Popen([*command, "--connect", server.address], stderr=subprocess.PIPE, text=True)
    peer = server.accept()
    hello = peer.receive("hello")
    assert hello.abilities.pipeline_stages == 2
    Scheduler(peer, pb.Hello(), blocks=40, block_size=16).welcome()
    peer.send(step=start(1, 0, [5, 6]))
    peer.receive("step_done")
    children = [int(pid) for pid in children_of(process.pid)]
    stage = next(pid for pid in children if b"spawn_main" in command_of(pid))
    os.kill(stage, signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    lines = [line for line in errors.splitlines() if line.startswith("trunkline-worker:")]
    assert process.returncode == 1 and len(lines) == 1 and "was ended by SIGTERM; its KV is lost" in lines[0]
    server.stop()


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def command_of(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("costs", "n", "dearest"),
    [([1] * 6, 2, 3), ([1] * 5 + [4], 2, 5), ([1, 1, 1, 9], 3, 9), ([5, 1, 1, 1, 4], 3, 5), ([2], 1, 2), ([1] * 7, 3, 3)],
)
def test_layers_are_divided_by_cost(costs, n, dearest):
    parts = even(costs, n)
    assert len(parts) == n and all(parts) and [i for part in parts for i in part] == list(range(len(costs)))
    assert max(sum(costs[i] for i in part) for part in parts) == dearest


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="3 pipeline stages: choose from 1 to 2"):
        even([1, 1], 3)
