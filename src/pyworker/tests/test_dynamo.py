"""The backend of Dynamo: the checks of Dynamo's conformance kit, and Dynamo's own worker and front end in front of the server.

The kit (`dynamo-backend-common`, feature `testing`) is for engines in Rust, so its checks are here in Python. TRUNKLINE_PROGRAM
names the program of the server.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("dynamo.common.backend", reason="ai-dynamo is not installed")
pytest.importorskip("uvloop", reason="ai-dynamo is not installed")

from dynamo._core import Context
from dynamo.llm.exceptions import CannotConnect, EngineShutdown, InvalidArgument

from trunkline_worker.dynamo_backend import TrunklineEngine, body_of, chunks

PROGRAM = os.environ.get("TRUNKLINE_PROGRAM")
served = pytest.mark.skipif(PROGRAM is None, reason="TRUNKLINE_PROGRAM does not name the program `trunkline`")

MODEL = Path(__file__).parents[3] / "models/small-world"
WAIT = 90


def body(**request):
    return body_of({"token_ids": [1, 2, 3], **request}, "a", 100)


def test_options_have_their_names():
    found = body(
        sampling_options={"temperature": 0.5, "seed": 7, "n": 1, "top_p": None, "guided_decoding": {"json": {"type": "object"}}},
        stop_conditions={"max_tokens": 9, "stop": ["x"], "stop_token_ids_hidden": [1], "min_tokens": 2},
        output_options={"logprobs": 0},
        routing={"priority": 3},
    )
    assert found["sampling_params"] == {
        "temperature": 0.5,
        "seed": 7,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop_token_ids": [1],
        "logprobs": 0,
        "structured_outputs": {"json": {"type": "object"}},
    }
    assert (found["token_ids"], found["priority"], found["request_id"]) == ([1, 2, 3], 3, "a")
    # What fits the context is the most.
    assert (
        body()["sampling_params"]["max_tokens"]
        == body(stop_conditions={"max_tokens": 10_000})["sampling_params"]["max_tokens"]
        == 97
    )
    ignored = body(stop_conditions={"ignore_eos": True, "stop_token_ids_hidden": [1]})["sampling_params"]
    assert ignored["ignore_eos"] and ignored["stop_token_ids"] == []


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"sampling_options": {"n": 2}}, "n is 2"),
        ({"sampling_options": {"use_beam_search": True}}, "use_beam_search"),
        ({"output_options": {"prompt_logprobs": 1}}, "prompt_logprobs"),
        ({"sampling_options": {"guided_decoding": {"structural_tag": {}}}}, "structural_tag"),
    ],
)
def test_what_the_server_does_not_have_is_refused(request_, what):
    with pytest.raises(InvalidArgument, match=what):
        body(**request_)


def test_events_become_chunks():
    async def lines():
        token = {"token": "a", "logprob": -1.0, "bytes": [97]}
        first = {"index": 0, "token_ids": [7], "finish_reason": None, "logprobs": {"content": [{**token, "top_logprobs": []}]}}
        last = {"index": 0, "token_ids": [8], "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens_details": {"cached_tokens": 16}}
        for event in ({"choices": [first]}, {"choices": [last], "usage": usage}, {"choices": [], "usage": usage}):
            yield b"data: " + json.dumps(event).encode() + b"\n"
            yield b"\n"
        yield b"data: [DONE]\n"

    async def all_of(events):
        return [chunk async for chunk in chunks(events)]

    first, last = asyncio.run(all_of(lines()))
    assert (first["token_ids"], first["log_probs"], first["top_logprobs"][0][0]["token"]) == ([7], [-1.0], "a")
    assert last == {"token_ids": [8], "index": 0, "finish_reason": "length", "cached": 16}

    async def broken():
        yield b'data: {"error": {"message": "the engine is gone"}}\n'

    with pytest.raises(EngineShutdown, match="the engine is gone"):
        asyncio.run(all_of(broken()))


def test_a_server_that_is_not_there_cannot_be_connected():
    async def with_session(engine):
        import aiohttp

        engine._http = aiohttp.ClientSession()
        try:
            async for _ in engine.generate({"token_ids": [1]}, Context()):
                pass
        finally:
            await engine.cleanup()

    with pytest.raises(CannotConnect, match="127"):
        asyncio.run(with_session(TrunklineEngine("http://127.0.0.1:9")))


@contextlib.contextmanager
def serving(*flags, model=MODEL):
    command = [PROGRAM, "serve", "--listen", "127.0.0.1:0", "--model", str(model), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = next(line for line in process.stdout if line.startswith("listening"))
    threading.Thread(target=process.stdout.read, daemon=True).start()
    yield "http://" + line.split("//")[1].strip()
    process.terminate()
    process.wait(WAIT)


@pytest.fixture(scope="module")
def server():
    with serving() as address:
        yield address


async def collect(engine, context=None, **request):
    return [chunk async for chunk in engine.generate({"token_ids": [1, 2, 3], **request}, context or Context())]


async def conformance(engine):
    """The checks of `run_conformance`, in its order."""
    config = await engine.start(1)
    assert config.model
    # One terminal chunk, the last, with the usage.
    answer = await collect(engine, stop_conditions={}, sampling_options={}, output_options={})
    assert answer and [("finish_reason" in chunk) for chunk in answer] == [False] * (len(answer) - 1) + [True]
    assert answer[-1]["completion_usage"]["completion_tokens"] == sum(len(chunk["token_ids"]) for chunk in answer)
    # Eight at once.
    answers = await asyncio.gather(*(collect(engine) for _ in range(8)))
    assert all("finish_reason" in answer[-1] for answer in answers)
    # A cancel is observed within two seconds.
    context = Context()
    asyncio.get_running_loop().call_later(0.05, context.stop_generating)
    # No end token: nothing but the cancel ends it.
    endless = {"max_tokens": 10_000, "ignore_eos": True}
    answer = await asyncio.wait_for(collect(engine, context, stop_conditions=endless), 2)
    assert answer[-1]["finish_reason"] == "cancelled" and "completion_usage" in answer[-1]
    # Cleaned up, and again.
    await engine.cleanup()
    await engine.cleanup()
    return config


@served
def test_the_checks_of_the_conformance_kit(tmp_path):
    # The kit's requests have no limit of tokens: answers fill a short context.
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).symlink_to(MODEL / name)
    config = json.loads((MODEL / "config.json").read_text()) | {"max_position_embeddings": 160}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with serving(model=tmp_path) as server:
        config = asyncio.run(conformance(TrunklineEngine(server)))
    assert config.model == tmp_path.name and config.llm.context_length == 160
    assert config.llm.kv_cache_block_size > 0 and config.llm.total_kv_blocks > 0


@served
def test_answers_keep_to_what_was_asked(server):
    async def asked():
        engine = TrunklineEngine(server)
        await engine.start(1)
        try:
            options = {"temperature": 0.0, "guided_decoding": {"regex": "[ab]{5}"}}
            held = await collect(engine, sampling_options=options, output_options={"logprobs": 2})
            with pytest.raises(InvalidArgument):
                await collect(engine, sampling_options={"temperature": -1.0})
            return held
        finally:
            await engine.cleanup()

    held = asyncio.run(asked())
    assert held[-1]["finish_reason"] == "stop"
    assert len(held[0]["log_probs"]) == len(held[0]["token_ids"]) and len(held[0]["top_logprobs"][0]) == 2


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@served
def test_dynamos_front_end_and_worker_serve_the_model(server, tmp_path):
    """Without etcd and NATS, as docs/reference/gateways.md has it."""
    port = free_port()
    # Dynamo looks for the chat template here, and offers no chats of a model without.
    for name in ("tokenizer.json", "config.json", "chat_template.jinja"):
        (tmp_path / name).symlink_to(MODEL / name)
    template = (MODEL / "chat_template.jinja").read_text()
    settings = {"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    environment = {**os.environ, "DYN_FILE_KV": str(tmp_path / "found"), "HF_HUB_OFFLINE": "1", "DYN_SYSTEM_PORT": "-1"}
    planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    backend = [sys.executable, "-m", "trunkline_worker.dynamo_backend", "--server", server, "--model-path", str(tmp_path)]
    front = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    processes = []
    with (tmp_path / "log").open("w") as log:
        for command in (backend, front):
            processes.append(subprocess.Popen([*command, *planes], env=environment, stdout=log, stderr=log))
    try:
        wait_for_model(port, processes, tmp_path / "log")
        messages = [{"role": "user", "content": "Once upon a time"}]
        chat = {"model": "small-world", "messages": messages, "max_tokens": 12, "temperature": 0}
        whole = ask(port, chat)
        assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["completion_tokens"] == 12
        # Dynamo puts the BOS token in front of a chat, too.
        direct = ask(server.rsplit(":", 1)[1], {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}, "completions")
        assert whole["choices"][0]["message"]["content"] == direct["choices"][0]["text"]
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["left", "right"]}}}
        held = ask(port, chat | {"response_format": schema})["choices"][0]["message"]["content"]
        assert json.loads(held) in ("left", "right")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def ask(port, body, path="chat/completions"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/{path}", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=WAIT) as answer:
        return json.load(answer)


def wait_for_model(port, processes, log):
    """Waits until the front end lists the model."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        assert all(process.poll() is None for process in processes), log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                if json.load(answer)["data"]:
                    return
        except OSError:
            pass
        threading.Event().wait(0.2)
    pytest.fail(log.read_text()[-3000:])
