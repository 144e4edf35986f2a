"""vLLM behind the real server: in stages, and as a group whose experts are divided, one rank of which is killed.

TRUNKLINE_PROGRAM names the program of the server.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import grpc  # noqa: E402
import torch  # noqa: E402

PROGRAM = os.environ.get("TRUNKLINE_PROGRAM")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="TRUNKLINE_PROGRAM does not name the program `trunkline`")

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from serve import inference, requests  # noqa: E402

VOCABULARY, CONTEXT, WAIT = 512, 1024, 240
N_TOKENS = 48


def tiny(folder, made):
    with torch.no_grad():
        for parameter in made.parameters():
            # Random models of the usual spread say one token again and again.
            if parameter.dim() > 1:
                parameter.mul_(3.0)
    made.eval().save_pretrained(folder)
    made.folder = folder
    return made


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    torch.manual_seed(1)
    sizes = {"hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=5, max_position_embeddings=CONTEXT, **sizes)
    return tiny(tmp_path_factory.mktemp("dense"), transformers.LlamaForCausalLM(config))


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    torch.manual_seed(1)
    sizes = {"hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = transformers.Qwen3MoeConfig(
        **{"vocab_size": VOCABULARY, "num_hidden_layers": 3, "max_position_embeddings": CONTEXT, **sizes},
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )
    return tiny(tmp_path_factory.mktemp("experts"), transformers.Qwen3MoeForCausalLM(config))


def alone(model, prompt):
    with torch.inference_mode():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    return out[0].tolist()[len(prompt) :]


class Worker:
    """A worker process, and what it says."""

    def __init__(self, model, address, name, *flags):
        command = [sys.executable, "-m", "trunkline_worker", "--engine", "vllm", "--model", str(model.folder), "--eager"]
        sizes = ["--kv-tokens", "1056", "--max-context", str(CONTEXT), "--threads", "1"]
        self.process = subprocess.Popen(
            [*command, "--connect", address, "--name", name, *sizes, *flags], stderr=subprocess.PIPE, text=True
        )
        self.lines, self.attached = [], threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if "attached to" in line:
                self.attached.set()
        self.attached.set()

    def wait_attached(self):
        assert self.attached.wait(WAIT) and self.process.poll() is None, "".join(self.lines)

    def end(self):
        """Waits for the end of the process, and returns its status."""
        status = self.process.wait(WAIT)
        self.reader.join()
        return status


class Served:
    """The server, and the answers to 24 prompts that are asked at once."""

    def __init__(self, folder, *flags):
        self.log = folder / "server.log"
        command = [PROGRAM, "serve", "--workers", "0", "--listen", "127.0.0.1:0", "--worker-wait", str(WAIT), *flags]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.address = re.fullmatch(r"listening on http://(\S+)\n", self.process.stdout.readline())[1]
        self.prompts = [prompt for prompt, _ in requests("equal", VOCABULARY)]
        self.tokens = [[] for _ in self.prompts]
        self.chunks = threading.Semaphore(0)
        self.threads = []

    def ask(self, channel):
        """Sends all prompts; `tokens` fills up."""
        with tempfile.TemporaryDirectory() as folder:
            messages = inference(folder)
        generate = channel.unary_stream(
            "/trunkline.v1.Inference/Generate",
            request_serializer=messages.GenerateRequest.SerializeToString,
            response_deserializer=messages.GenerateResponse.FromString,
        )

        def one(i, prompt):
            request = messages.GenerateRequest()
            request.token_ids.ids.extend(prompt)
            request.sampling.temperature = 0.0
            request.stopping.max_tokens, request.stopping.ignore_eos = N_TOKENS, True
            for response in generate(request, timeout=WAIT):
                if response.HasField("chunk"):
                    self.tokens[i] += response.chunk.token_ids
                    self.chunks.release()

        self.threads = [threading.Thread(target=one, args=(i, prompt), daemon=True) for i, prompt in enumerate(self.prompts)]
        for thread in self.threads:
            thread.start()

    def check(self, model):
        """Waits for all answers and compares them with transformers."""
        for thread in self.threads:
            thread.join()
        assert len(self.tokens) == 24 and self.tokens == [alone(model, prompt) for prompt in self.prompts]

    def stop(self):
        """Stops the server, and returns its counters."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=WAIT)
        line = next(line for line in self.log.read_text().splitlines() if " stopped " in line)
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}


@pytest.fixture
def served(tmp_path, request):
    made = Served(tmp_path, *request.param)
    yield made
    made.process.kill()


@pytest.mark.parametrize("served", [["--host-blocks", "60", "--preemption", "swap"]], indirect=True)
def test_24_prompts_through_stages_are_equal_to_transformers(served, dense):
    worker = Worker(dense, served.address, "staged", "--pipeline-parallel", "2")
    worker.wait_attached()
    with grpc.insecure_channel(served.address) as channel:
        served.ask(channel)
        served.check(dense)
    worker.process.terminate()
    assert worker.end() == 0
    counts = served.stop()
    assert counts["generated_tokens"] == 24 * N_TOKENS and counts["cached_tokens"] > 0
    assert "steps_in_flight=4" in served.log.read_text()


@pytest.mark.parametrize("served", [["--attached-workers", "2"]], indirect=True)
def test_a_group_that_loses_a_rank_loses_no_request(served, experts):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{free.getsockname()[1]}"

    def group():
        flags = ["--data-parallel-group", "experts", "--data-parallel-size", "2", "--data-parallel-address", meeting]
        ranks = [Worker(experts, served.address, f"rank {i}", *flags, "--data-parallel-rank", str(i)) for i in range(2)]
        for rank in ranks:
            rank.wait_attached()
        return ranks

    first = group()
    with grpc.insecure_channel(served.address) as channel:
        served.ask(channel)
        for _ in range(100):
            assert served.chunks.acquire(timeout=WAIT)
        first[1].process.kill()
        assert first[0].end() == 1 and sum(line.startswith("trunkline-worker: ") for line in first[0].lines) == 1
        assert any(thread.is_alive() for thread in served.threads)
        second = group()
        served.check(experts)
    for rank in second:
        rank.process.terminate()
    # The first that leaves ends the group of the other.
    assert 0 in [rank.end() for rank in second]
    assert served.stop()["generated_tokens"] == 24 * N_TOKENS
