"""Structured output of the torch engine behind the real server, with the built-in model of Trunkline.

TRUNKLINE_PROGRAM names the program of the server.
"""

import json
import os
import re
import subprocess
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

from trunkline_worker.cli import build, parse  # noqa: E402
from trunkline_worker.session import Session, Target  # noqa: E402

PROGRAM = os.environ.get("TRUNKLINE_PROGRAM")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="TRUNKLINE_PROGRAM does not name the program `trunkline`")

MODEL = Path(__file__).parents[3] / "models/small-world"
WAIT = 240
PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "kind": {"enum": ["cat", "dog", "bird"]},
    },
    "required": ["name", "legs", "kind"],
    "additionalProperties": False,
}
STRUCTURES = {
    "a schema": {"json": PET},
    "an object": {"json_object": True},
    "an expression": {"regex": "[A-Z][a-z]{2,9} (sat|ran) on the [a-z]+\\."},
    "a choice": {"choice": ["yes, said the fox", "no, said the fox", "perhaps"]},
    "lark": {"grammar": 'start: "[" item ("," item)* "]"\nitem: /[a-c]+/ "=" /[0-9]{1,2}/'},
    "gbnf": {"grammar": 'root ::= "- " [a-z ]{3,20} "\\n" ("- " [a-z]+ "\\n"){1,3}'},
}


class Server:
    def __init__(self, *flags):
        command = [PROGRAM, "serve", "--listen", "127.0.0.1:0", "--model", str(MODEL), "--worker-wait", str(WAIT), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = next(line for line in self.process.stdout if line.startswith("listening"))
        self.address = line.split("//")[1].strip()
        # Whatever it says later must not fill the pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def complete(self, **fields):
        body = {"prompt": "Once upon a time", "max_tokens": 90, "temperature": 0, "return_token_ids": True, **fields}
        request = urllib.request.Request(f"http://{self.address}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return json.load(answer)["choices"][0]

    def counter(self, name):
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=WAIT) as page:
            return sum(float(x) for x in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page.read().decode(), re.MULTILINE))

    def wait_for(self, worker):
        while self.counter("trunkline_worker_joins_total") < 1:
            assert worker.thread.is_alive() and self.process.poll() is None

    def stop(self):
        self.process.terminate()
        self.process.wait(WAIT)


class Worker:
    def __init__(self, address, *flags):
        arguments = ["--engine", "torch", "--model", str(MODEL), "--connect", address, "--device", "cpu", "--dtype", "f32"]
        self.engine = build(parse([*arguments, "--threads", "1", *flags]))
        self.session = Session(self.engine, Target(address, "w"))
        self.thread = threading.Thread(target=self.session.run, daemon=True)
        self.thread.start()

    def stop(self):
        self.session.stop()
        self.thread.join(WAIT)
        self.engine.close()


@pytest.fixture(scope="module")
def embedded():
    made = Server("--workers", "1")
    yield made
    made.stop()


@pytest.fixture(scope="module", params=[[], ["--pipeline-parallel", "2"]], ids=["one process", "two stages"])
def attached(request):
    made = Server("--workers", "0")
    worker = Worker(made.address, *request.param)
    made.wait_for(worker)
    yield made
    worker.stop()
    made.stop()


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_greedy_answers_are_those_of_the_embedded_worker(attached, embedded, structure):
    answers = [server.complete(structured_outputs=structure) for server in (attached, embedded)]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert len(answers[0]["token_ids"]) > 2


def test_all_of_two_hundred_random_answers_are_valid(attached):
    def ask(seed):
        compact = {"json": PET, "disable_any_whitespace": True}
        return attached.complete(structured_outputs=compact, temperature=1.5, seed=seed, max_tokens=200)

    # The server compiles few structures at once, and refuses more: the first request has it compiled.
    answers = [ask(0)]
    with ThreadPoolExecutor(8) as pool:
        answers += pool.map(ask, range(1, 200))
    for answer in answers:
        assert answer["finish_reason"] == "stop", answer
        pet = json.loads(answer["text"])
        assert set(pet) == {"name", "legs", "kind"} and pet["kind"] in ("cat", "dog", "bird"), pet
        assert 0 <= pet["legs"] <= 8 and len(pet["name"]) <= 8
    assert len({answer["text"] for answer in answers}) > 150


def test_a_preempted_answer_goes_on_where_it_was():
    server = Server("--workers", "0", "--device-blocks", "40", "--preemption", "recompute")
    worker = Worker(server.address)
    try:
        server.wait_for(worker)
        digits = {"regex": "([0-9]{3}-){30}[0-9]{3}"}
        ask = lambda seed: server.complete(structured_outputs=digits, max_tokens=200, temperature=1, seed=seed)  # noqa: E731
        # One after another, then all at once.
        alone = [ask(seed)["text"] for seed in range(8)]
        with ThreadPoolExecutor(8) as pool:
            together = [answer["text"] for answer in pool.map(ask, range(8))]
        assert together == alone and all(re.fullmatch("([0-9]{3}-){30}[0-9]{3}", text.strip()) for text in together)
        assert server.counter("trunkline_num_preemptions_total") > 0
    finally:
        worker.stop()
        server.stop()
