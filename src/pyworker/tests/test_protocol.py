"""The connection, the slots and the threads, with the toy engine."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
from attached import Attached, greet
from scheduler import Scheduler, Server, greedy

from trunkline_worker import cli
from trunkline_worker.facts import LockStep, Settings
from trunkline_worker.proto import ATTACH
from trunkline_worker.proto import messages as pb
from trunkline_worker.results import EngineLost, StepError
from trunkline_worker.session import Connection, Refused, Target, hello
from trunkline_worker.slots import SlotTable
from trunkline_worker.toy import ToyEngine, next_token
from trunkline_worker.work import Work


def expected(prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(np.array(tokens, np.int64)))
    return tokens


def prompts(n, seed=1):
    draw = np.random.default_rng(seed)
    shared = [draw.integers(4, 500, 64).tolist() for _ in range(2)]
    return [(shared[i % 2] if i % 3 else []) + draw.integers(4, 500, int(draw.integers(1, 90))).tolist() for i in range(n)] + [
        shared[0],
        shared[0],
    ]


@pytest.mark.parametrize("whole_hits", [False, True])
def test_tokens_survive_chunks_hits_preemption_and_swap(whole_hits):
    with Attached() as worker:
        scheduler = greet(worker, whole_hits=whole_hits, max_running=6)
        scheduler.welcome()
        for prompt in prompts(24):
            scheduler.add(prompt, 20)
        for seq in scheduler.run(every=3):
            assert seq.tokens == expected(seq.prompt, 20)
        assert scheduler.counts["hits"] > 10 and scheduler.counts["swaps"] > 5 and scheduler.counts["preemptions"] > 5


def test_hello_says_what_the_worker_is():
    with Attached(token="secret") as worker:
        peer = worker.server.accept()
        hello = peer.receive("hello")
        assert peer.metadata["authorization"] == "Bearer secret"
        assert (hello.protocol, hello.name, hello.model.vocab_size) == (1, "w", 512)
        assert list(hello.kv.block_sizes) == [16, 32, 8] and hello.kv.block_io
        assert not hello.HasField("resume")


def two_steps(life):
    """A prompt, and the decode of the token that the worker samples after it: sent before the first is answered."""
    first = pb.Step(id=1, life=life, slots=[3], computed=[0], n_tokens=[3], sample=[1], n_blocks=[1], blocks=[5])
    first.starts.add(index=0, request=7, tokens=[10, 11, 12], n_prompt=3, sampling=greedy())
    second = pb.Step(id=2, life=life, slots=[3], computed=[3], n_tokens=[1], sample=[1], n_generated=[1], table_keep=[1])
    return first, second


def test_a_second_step_runs_on_the_sample_of_the_first():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        for step in two_steps(1):
            scheduler.peer.send(step=step)
        tokens = [scheduler.peer.receive("step_done").tokens[0] for _ in range(2)]
        assert [10, 11, 12, *tokens] == expected([10, 11, 12], 2)


def test_a_bad_step_fails_and_the_next_life_is_sound():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        first, second = two_steps(1)
        first.blocks[0] = 40
        scheduler.peer.send(step=first)
        scheduler.peer.send(step=second)
        failed = scheduler.peer.receive("step_failed")
        assert failed.id == 1 and "block" in failed.reason
        scheduler.peer.send(reset=pb.Reset(life=2))
        # Nothing was said of the second step.
        assert scheduler.peer.receive("reset_done").life == 2
        scheduler.peer.send(step=two_steps(1)[0])
        scheduler.peer.send(step=two_steps(2)[0])
        done = scheduler.peer.receive("step_done")
        assert (done.life, list(done.tokens)) == (2, expected([10, 11, 12], 1)[3:])


def test_answers_are_ready_before_the_first_message_is_heard(monkeypatch):
    """The receiver hears everything that the server has to say before the connection is handed out."""
    server = Server()
    work = Work(ToyEngine())
    work.start()

    def greet_at_once():
        peer = server.accept()
        Scheduler(peer, peer.receive("hello"), blocks=40, block_size=16).welcome()
        peer.send(step=two_steps(1)[0])
        done.append(peer.receive("step_done"))

    done = []
    greeter = threading.Thread(target=greet_at_once)
    greeter.start()
    # The thread that hears messages runs to its end of work inside of its start.
    start = threading.Thread.start

    def slow_start(thread):
        start(thread)
        if thread.name == "receiver":
            greeter.join(10)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    with grpc.insecure_channel(server.address) as channel:
        Connection(channel, Target(server.address, "w"), hello(work.engine, "w", None), work).cancel()
    assert len(done) == 1
    work.stop()
    server.stop()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"slots": [1, 1]}, "once"),
        ({"slots": []}, "slot"),
        ({"computed": [9]}, "known"),
        ({"n_tokens": [0]}, "to run"),
        ({"n_tokens": [2]}, "sample"),
        ({"table_keep": [3]}, "kept beyond"),
        ({"n_blocks": [2]}, "blocks for"),
        ({"n_blocks": [0], "blocks": []}, "in the table"),
        ({"computed": [0, 0]}, "column computed"),
        ({"drops": [pb.Drop(index=4)]}, "drop"),
        ({"starts": [pb.Start(index=1, tokens=[1], n_prompt=1)]}, "start names"),
        ({"starts": [pb.Start(index=0, tokens=[600], n_prompt=1, sampling=greedy())]}, "vocabulary"),
        ({"starts": [pb.Start(index=0, tokens=[], n_prompt=0)]}, "start has"),
        ({"starts": [pb.Start(index=0, tokens=[1], n_prompt=1)]}, "without sampling"),
        (
            {"starts": [pb.Start(index=0, tokens=[1], n_prompt=1, sampling=greedy(grammar=pb.WorkerGrammar(regex="a")))]},
            "did not announce grammars",
        ),
        ({"prompt_rows": [pb.PromptRows(index=0, n=1)]}, "did not announce prompt_logprobs"),
    ],
)
def test_nonsense_fails_the_step_and_nothing_else(change, what):
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        step = two_steps(1)[0]
        for name, value in change.items():
            step.ClearField(name)
            getattr(step, name).extend(value)
        scheduler.peer.send(step=step)
        assert what in scheduler.peer.receive("step_failed").reason
        scheduler.peer.send(reset=pb.Reset(life=2))
        scheduler.peer.receive("reset_done")
        scheduler.peer.send(step=two_steps(2)[0])
        scheduler.peer.receive("step_done")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("temperature", -1.0, "a number of at least 0"),
        ("temperature", float("nan"), "a number of at least 0"),
        ("temperature", float("inf"), "a number of at least 0"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.5, "above 0 and at most 1"),
        ("min_p", -0.5, "from 0 to 1"),
        ("min_p", float("nan"), "from 0 to 1"),
        ("repetition_penalty", 0.0, "a number above 0"),
        ("repetition_penalty", float("inf"), "a number above 0"),
        ("frequency_penalty", -2.5, "from -2 to 2"),
        ("presence_penalty", float("nan"), "from -2 to 2"),
    ],
)
def test_sampling_parameters_out_of_range_fail_the_step_of_their_request(field, value, wanted):
    step = two_steps(1)[0]
    setattr(step.starts[0].sampling, field, value)
    with pytest.raises(StepError) as failed:
        SlotTable(ToyEngine().model, Settings(16, 8, 2)).apply(step)
    assert str(failed.value) == f"step 1: {field} is {value:g}; it must be {wanted}" and failed.value.request == 7


def test_a_broken_connection_is_resumed_with_its_kv():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        # Half of the tokens come before the break, half after it; the prompt's KV is not computed again.
        seq = scheduler.add(range(10, 60), 12)
        while len(seq.tokens) < 56:
            scheduler.step()
        scheduler.peer.hang_up()
        peer = worker.server.accept()
        hello = peer.receive("hello")
        assert (hello.resume.session, hello.resume.life) == ("s1", 1)
        scheduler.peer = peer
        scheduler.welcome(resumed=True)
        seq.started, seq.sent_len = False, 0
        scheduler.run()
        assert seq.tokens == expected(range(10, 60), 12)
        assert scheduler.counts["preemptions"] == 0 and worker.session.connections == 2


def test_a_session_that_is_not_resumed_begins_without_contents():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        scheduler.add(range(10, 60), 3)
        scheduler.run()
        scheduler.peer.hang_up()
        peer = worker.server.accept()
        peer.receive("hello")
        scheduler.peer = peer
        scheduler.welcome(resumed=False, session="s2", life=9)
        # The blocks of the first session hold nothing now, so the toy model says another token.
        seq = scheduler.add(range(10, 60), 3, request=5)
        step, _ = scheduler.plan()
        assert seq.computed == 48
        peer.send(step=step)
        assert peer.receive("step_done").tokens[0] != expected(range(10, 60), 1)[-1]


def test_after_a_failed_step_nothing_is_resumed():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        scheduler.peer.send(step=pb.Step(id=1, life=1))
        scheduler.peer.receive("step_failed")
        scheduler.peer.hang_up()
        assert not worker.server.accept().receive("hello").HasField("resume")


def test_copies_of_blocks_that_do_not_exist_are_answered_with_an_error():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        scheduler.peer.send(read_block=pb.ReadBlock(id=1, life=1, block=40))
        assert "no block 40" in scheduler.peer.receive("block_read").error
        scheduler.peer.send(write_block=pb.WriteBlock(id=2, life=1, block=0, data=b"short"))
        assert scheduler.peer.receive("block_written").error
        # Copies of other lives are not answered at all.
        scheduler.peer.send(read_block=pb.ReadBlock(id=3, life=7, block=0))
        scheduler.peer.send(read_block=pb.ReadBlock(id=4, life=1, block=0))
        assert scheduler.peer.receive("block_read").id == 4


def test_heartbeats_are_sent_while_nothing_happens():
    with Attached() as worker:
        peer = worker.server.accept()
        peer.receive("hello")
        Scheduler(peer, pb.Hello(), blocks=4, block_size=16).welcome(heartbeat_ms=60)
        for _ in range(3):
            assert peer.inbox.get(timeout=20).HasField("heartbeat")


def test_a_silent_server_is_dialed_again():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome(heartbeat_ms=100, silence_ms=300)
        assert worker.server.accept().receive("hello").resume.session == "s1"


def test_a_refusal_is_final():
    with Attached() as worker:
        peer = worker.server.accept()
        peer.receive("hello")
        peer.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "another model")
        peer.hang_up()
        worker.thread.join(20)
        assert isinstance(worker.failure, Refused) and "another model" in str(worker.failure)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"block_size": 64}, "block_size is 64; it must be a size that the worker announced"),
        ({"blocks": 0}, "blocks is 0; it must be from 1 to 256"),
        ({"blocks": 257}, "blocks is 257; it must be from 1 to 256"),
        ({"steps_in_flight": 3}, "steps_in_flight is 3; it must be from 1 to 2"),
        ({"heartbeat_ms": 0}, "heartbeat_ms is 0; it must be at least 1"),
        ({"heartbeat_ms": 500, "silence_ms": 500}, "silence_ms is 500; it must be above heartbeat_ms"),
        ({"resumed": True}, "life is 1; it must be that of the session to resume"),
    ],
)
def test_a_welcome_that_does_not_fit_is_final(fields, fault):
    with Attached() as worker:
        scheduler = greet(worker)
        plain = {"session": "s", "life": 1, "block_size": 16, "blocks": 40, "steps_in_flight": 2}
        scheduler.peer.send(welcome=pb.Welcome(**{**plain, "heartbeat_ms": 500, "silence_ms": 60_000, **fields}))
        worker.thread.join(20)
        assert isinstance(worker.failure, Refused) and str(worker.failure).endswith(f"does not fit this worker: Welcome.{fault}")


def test_a_server_that_is_full_is_asked_again():
    with Attached() as worker:
        peer = worker.server.accept()
        peer.receive("hello")
        peer.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "enough workers")
        peer.hang_up()
        worker.server.accept().receive("hello")


HANGING = """
import sys, threading
from trunkline_worker import cli, session
from trunkline_worker.toy import ToyEngine

class Hanging(ToyEngine):
    def run(self, batch):
        print("running", flush=True)
        threading.Event().wait()
    def close(self):
        threading.Event().wait()

session.HUNG = cli.CLOSE_TIMEOUT = 0
cli.build = lambda arguments: Hanging()
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_worker_whose_step_hangs_ends_when_the_connection_does():
    server = Server()
    command = [sys.executable, "-c", HANGING, "--connect", server.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peer = server.accept()
    peer.receive("hello")
    Scheduler(peer, pb.Hello(), blocks=40, block_size=16).welcome(resume_ms=0)
    peer.send(step=two_steps(1)[0])
    assert process.stdout.readline() == "running\n"
    peer.hang_up()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "trunkline-worker: a step did not end in 0 s; start this worker again" in errors
    server.stop()


class IdleEngine(ToyEngine):
    """Remembers what it ran, and in which order."""

    lock_step = LockStep("experts", 4, 3)

    def __init__(self):
        super().__init__()
        self.ran = []

    def idle(self):
        self.ran.append("idle")

    def run(self, batch):
        self.ran.append("step")
        return super().run(batch)


def test_steps_without_sequences_run_in_the_order_of_steps_and_in_their_life_only():
    with Attached(IdleEngine()) as worker:
        scheduler = greet(worker)
        place = scheduler.hello.lock_step
        assert (place.group, place.size, place.rank) == ("experts", 4, 3)
        scheduler.welcome()
        first, second = two_steps(1)
        for message in [{"idle": pb.Idle(life=1)}, {"step": first}, {"idle": pb.Idle(life=1)}, {"idle": pb.Idle(life=0)}]:
            scheduler.peer.send(**message)
        scheduler.peer.send(step=second)
        for _ in range(2):
            scheduler.peer.receive("step_done")
        assert worker.engine.ran == ["idle", "step", "idle", "step"]


def test_a_worker_ends_with_its_group():
    with Attached(IdleEngine()) as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        scheduler.peer.send(step=two_steps(1)[0])
        scheduler.peer.receive("step_done")
        scheduler.peer.refusal = (grpc.StatusCode.ABORTED, "another worker of the group is gone")
        scheduler.peer.hang_up()
        worker.thread.join(20)
        assert isinstance(worker.failure, EngineLost) and "another worker of the group is gone" in str(worker.failure)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--data-parallel-size", "2"], "--data-parallel-size 2 needs --data-parallel-group NAME"),
        (
            ["--data-parallel-group", "g", "--data-parallel-rank", "1"],
            "--data-parallel-rank is 1; it must be below --data-parallel-size, which is 1",
        ),
    ],
)
def test_a_place_outside_the_group_is_refused_in_one_line(flags, line, capsys):
    assert cli.main(["--engine", "toy", "--connect", "localhost:1", *flags]) == 1
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("num_attention_heads"), "KeyError: 'num_attention_heads'"),
        (AssertionError("rank 1 is out of bounds\nsecond line"), "AssertionError: rank 1 is out of bounds"),
        (RuntimeError(), "RuntimeError: "),
        (ValueError("1 validation error\n  the model has no experts"), "1 validation error the model has no experts"),
    ],
)
def test_any_failure_at_the_start_is_one_line(error, line, capsys, monkeypatch):
    def build(_arguments):
        raise error

    monkeypatch.setattr(cli, "build", build)
    assert cli.main(["--engine", "toy", "--connect", "localhost:1"]) == 1
    assert capsys.readouterr().err == f"trunkline-worker: {line}\n"


def test_a_token_that_cannot_be_read_is_one_line(tmp_path, capsys):
    assert cli.main(["--engine", "toy", "--connect", "localhost:1", "--token-file", str(tmp_path / "none")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("trunkline-worker: ") and "none" in lines[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_that_loads_its_model(number):
    program = """
import sys, threading
from trunkline_worker import cli
def build(_arguments):
    print("loading", flush=True)
    threading.Event().wait()
cli.build = build
sys.exit(cli.main(["--engine", "toy", "--connect", "localhost:1"]))
"""
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert worker.stdout.readline() == "loading\n"
    worker.send_signal(number)
    _, said = worker.communicate(timeout=20)
    assert worker.returncode == 0 and said.splitlines()[0].endswith(f"stopping ({number.name})") and said.count("\n") == 1


class Small(ToyEngine):
    """An engine without memory for the blocks that the server wants."""

    closed = False

    def begin(self, settings):
        raise MemoryError(f"no memory for {settings.blocks} blocks")

    def close(self):
        self.closed = True


def test_a_failure_of_the_first_life_is_one_line(capsys, monkeypatch):
    server, engine = Server(), Small()
    monkeypatch.setattr(cli, "build", lambda arguments: engine)
    monkeypatch.setattr(cli.signal, "signal", lambda number, handler: None)
    status = []
    worker = threading.Thread(target=lambda: status.append(cli.main(["--connect", server.address])))
    worker.start()
    peer = server.accept()
    peer.receive("hello")
    Scheduler(peer, pb.Hello(), blocks=40, block_size=16).welcome()
    worker.join(20)
    lines = capsys.readouterr().err.splitlines()
    assert status == [1] and lines[-1] == "trunkline-worker: MemoryError: no memory for 40 blocks" and engine.closed
    assert not any("Traceback" in line for line in lines)
    server.stop()


def test_sigterm_ends_the_process_cleanly():
    server = Server()
    command = [sys.executable, "-m", "trunkline_worker", "--engine", "toy", "--connect", server.address]
    process = subprocess.Popen(command)
    peer = server.accept()
    peer.receive("hello")
    Scheduler(peer, pb.Hello(), blocks=40, block_size=16).welcome()
    peer.send(step=two_steps(1)[0])
    peer.receive("step_done")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert peer.closed_by_worker.wait(20)
    server.stop()


def test_generated_messages_are_up_to_date(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    proto = Path(__file__).parents[3] / "proto"
    out = tmp_path / "set"
    source = "trunkline/v1/worker.proto"
    assert protoc.main(["", f"-I{proto}", f"--descriptor_set_out={out}", str(proto / source)]) == 0
    from google.protobuf import descriptor_pb2

    fresh = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    ours = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(ours)
    for file in (fresh, ours):
        # Names of JSON fields are filled in by one side alone.
        for message in file.message_type:
            for nested in (message, *message.nested_type):
                for field in nested.field:
                    field.ClearField("json_name")
    assert fresh == ours
    service, method = ATTACH.strip("/").split("/")
    assert service == f"{fresh.package}.{fresh.service[0].name}" and method == fresh.service[0].method[0].name
