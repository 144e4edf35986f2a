"""The torch engine behind the real server, whose KV heads drop what they read least: with the built-in model of Trunkline.

TRUNKLINE_PROGRAM names the program of the server.
"""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from trunkline_worker.cli import build, parse  # noqa: E402
from trunkline_worker.model_folder import revision  # noqa: E402
from trunkline_worker.session import Session, Target  # noqa: E402
from trunkline_worker.slots import HOLE  # noqa: E402

PROGRAM = os.environ.get("TRUNKLINE_PROGRAM")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="TRUNKLINE_PROGRAM does not name the program `trunkline`")

MODEL = Path(__file__).parents[3] / "models/small-world"
WAIT = 240
PROMPT = np.random.default_rng(4).integers(10, 2000, 900).tolist()
N_TOKENS = 60


class Worker:
    """A worker in a thread of the test, and the holes that it saw."""

    def __init__(self, address, name, *flags):
        arguments = ["--engine", "torch", "--model", str(MODEL), "--connect", address, "--h2o", "on", "--device", "cpu", *flags]
        self.engine = build(parse(arguments))
        self.holes = np.zeros(self.engine.model.n_groups, np.int64)
        """Entries without a block in each layer group, at most."""
        self.by_group = False
        self.steps = 0
        plain = self.engine.submit

        def submit(batch):
            self.steps += 1
            self.by_group |= batch.by_group
            entries = -(-batch.ends // 16)
            for slot, n in zip(batch.slots, entries, strict=True):
                self.holes = np.maximum(self.holes, (batch.table.tables[:, slot, :n] == HOLE).sum(1))
            return plain(batch)

        self.engine.submit = submit
        self.session = Session(self.engine, Target(address, name))
        self.failure = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            self.session.run()
        except BaseException as error:
            self.failure = error

    def stop(self):
        self.session.stop()
        self.thread.join(WAIT)
        assert self.failure is None


class Served:
    """A server with eviction that records."""

    def __init__(self, folder, *flags):
        self.recording, self.log = folder / "run.jsonl.gz", folder / "server.log"
        command = [PROGRAM, "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--model", str(MODEL)]
        command += ["--record", str(self.recording), "--worker-wait", str(WAIT), *flags]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        lines = [self.process.stdout.readline() for _ in range(2)]
        self.address = next(line for line in lines if line.startswith("listening")).split("//")[1].strip()
        self.metrics = next(line for line in lines if line.startswith("metrics")).split(" on ")[1].strip()

    def ask(self, prompt, *flags):
        """Starts a request; the process prints one JSON object."""
        ids = ",".join(map(str, prompt))
        command = [PROGRAM, "generate", "--addr", self.address, "--token-ids", ids, "--max-tokens", str(N_TOKENS)]
        return subprocess.Popen([*command, "--ignore-eos", "--json", *flags], stdout=subprocess.PIPE, text=True)

    def tokens(self, *prompts):
        """Returns the tokens that follow prompts, asked at once."""
        asked = [self.ask(prompt) for prompt in prompts]
        return [json.loads(process.communicate(timeout=WAIT)[0])["token_ids"] for process in asked]

    def wait_for(self, worker, n=1):
        """Waits until so many workers are ready."""
        while self.counter("trunkline_worker_joins_total") < n:
            assert worker.thread.is_alive() and self.process.poll() is None, worker.failure

    def counter(self, name):
        with urllib.request.urlopen(self.metrics, timeout=WAIT) as page:
            return sum(float(x) for x in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page.read().decode(), re.MULTILINE))

    def stop(self):
        """Stops the server, and returns the digest of its decisions and that of the recording replayed."""
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=WAIT)
        replayed = subprocess.run(
            [PROGRAM, "replay", "--recorded", str(self.recording)], capture_output=True, text=True, check=True
        )
        return re.search(r"digest (\w+)", out)[1], re.search(r"\n digest +(\w+)", replayed.stdout)[1]


@pytest.fixture
def served(tmp_path, request):
    made = Served(tmp_path, *request.param)
    yield made
    made.process.kill()


@pytest.fixture(scope="module", autouse=True)
def threads():
    torch.set_num_threads(1)


EVICTING = ["--h2o", "on:interval=8", "--h2o-ratio", "3", "--h2o-recent", "64"]


@pytest.mark.parametrize("served", [["--workers", "0", *EVICTING]], indirect=True)
def test_each_head_drops_its_own_blocks_and_a_request_says_the_same_twice(served):
    worker = Worker(served.address, "w")
    served.wait_for(worker)
    first, second = served.tokens(PROMPT)[0], served.tokens(PROMPT)[0]
    assert first == second and len(first) == N_TOKENS
    assert worker.by_group and served.counter("trunkline_h2o_dropped_blocks_total") > 0
    scored = np.array([group.scored for group in worker.engine.model.groups])
    # Heads that keep every token have no holes, and heads with other shares have other numbers of them.
    assert not worker.holes[~scored].any() and len(set(worker.holes[scored].tolist())) > 3
    assert served.counter("trunkline_prefix_blocks_total") >= len(PROMPT) // 16
    digest, replayed = served.stop()
    assert digest == replayed
    worker.stop()


SWAPPING = [
    "--workers",
    "0",
    "--device-blocks",
    "54",
    "--host-mem",
    "256MiB",
    "--preemption",
    "swap",
    "--max-steps-in-flight",
    "1",
]


@pytest.mark.parametrize("served", [[*SWAPPING, *EVICTING, "--h2o-trigger", "440"]], indirect=True)
def test_requests_that_are_swapped_out_say_what_they_say_alone(served):
    worker = Worker(served.address, "w")
    served.wait_for(worker)
    prompts = [PROMPT[n : n + 400] for n in range(0, 480, 60)]
    alone = [served.tokens(prompt)[0] for prompt in prompts]
    assert served.tokens(*prompts) == alone
    assert served.counter("trunkline_num_preemptions_total") > 0
    assert worker.holes.any()
    digest, replayed = served.stop()
    assert digest == replayed
    worker.stop()


@pytest.mark.parametrize(
    "served", [["--workers", "1", "--attached-workers", "1", "--device-blocks", "256", *EVICTING]], indirect=True
)
def test_a_worker_stands_beside_an_embedded_one_with_the_same_groups(served):
    # The embedded worker and this one have equal groups, weights, and orders of elements; the revision is given.
    worker = Worker(served.address, "w", "--revision", revision(MODEL), "--kv-tokens", "4096")
    served.wait_for(worker, 2)
    answers = served.tokens(*[PROMPT] * 6)
    assert worker.steps > 0 and len(answers) == 6
    worker.stop()
    digest, replayed = served.stop()
    assert digest == replayed


def test_heads_are_not_divided_among_stages():
    with pytest.raises(ValueError, match="--pipeline-parallel has no layer groups of single KV heads"):
        Worker("127.0.0.1:1", "w", "--pipeline-parallel", "2")


def test_the_worker_passes_the_check():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    check = subprocess.Popen([PROGRAM, "worker", "check", address], stdout=subprocess.PIPE, text=True)
    worker = Worker(address, "w", "--max-context", "512")
    out, _ = check.communicate(timeout=WAIT)
    worker.stop()
    passed = re.findall(r"^ (.+?)  +pass ", out, re.MULTILINE)
    assert check.returncode == 0, out
    assert {"dropped blocks", "swap out and in", "shared memory", "preemption at any token", "partial writes"} <= set(passed)
