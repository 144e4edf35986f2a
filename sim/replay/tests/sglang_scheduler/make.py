"""Writes truth.json: requests, and when SGLang's own scheduler answers them under a virtual clock.

SGLang's `Scheduler`, `SchedulePolicy`, `PrefillAdder`, `ScheduleBatch` and radix cache run unmodified, without a model and without a
device: a step takes STEP_NS + TOKEN_NS for each token it runs + SEQ_NS for each request in it, and yields made-up tokens. Needs SGLang
0.5.23 (`pip install sglang==0.5.23`; no GPU is needed); takes a minute:

    python make.py > truth.json
"""

import collections
import json
import logging
import os
import random
import sys
import types
import warnings
from array import array

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import sglang.version
import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

STEP_NS, TOKEN_NS, SEQ_NS = 3_000_000, 20_000, 50_000
CONTEXT = 4096
STOP = 7


def prompt(request, number):
    """The tokens of a prompt: what the group shares, then the request's own."""
    shared = [request["group"] * 100_000 + at for at in range(request["shared"])]
    return shared + [1_000_000_000 + number * 100_000 + at for at in range(request["own"])]


class Nothing:
    """Stands for parts that schedule nothing: metrics, output streams, LoRA, grammars, beams."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def passes(*names):
    """An object whose methods return their first argument."""
    return types.SimpleNamespace(**{name: lambda first, *args, **kwargs: first for name in names})


class Engine(Scheduler):
    """The scheduler with all that `Scheduler.__init__` would take from a model and a device given by hand."""

    def __init__(self, case):
        self.enable_overlap = case["in_flight"] > 1
        self.schedule_policy = case["policy"]
        self.device, self.page_size, self.is_generation = "cpu", 1, True
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.disaggregation_mode = DisaggregationMode.NULL
        self.max_prefill_tokens, self.max_running_requests, self.max_queued_requests = 16384, case["max_batch_size"], None
        self.processed_tokens_counter = self.forward_ct = 0
        for flag in (
            "enable_priority_scheduling", "schedule_low_priority_values_first", "abort_on_priority_when_disabled", "enable_lora",
            "enable_lora_overlap_loading", "enable_hierarchical_cache", "enable_hicache_storage", "enable_lmcache", "enable_hisparse",
            "enable_unified_cache_external_linker", "enable_overlap_mlx", "enable_unified_memory", "is_hybrid_swa", "is_hybrid_ssm",
            "require_mlp_sync", "attn_dp_enabled",
        ):
            setattr(self, flag, False)
        for part in (
            "dllm_config", "dynamic_chunk_sizer", "min_free_slots_delayer", "truncation_align_size", "decode_offload_manager",
            "future_map", "hisparse_coordinator", "draft_worker", "lora_drainer", "metrics_collector",
        ):
            setattr(self, part, None)
        self.priority_scheduling_preemption_threshold = 0
        self.model_config = types.SimpleNamespace(
            vocab_size=1 << 32, is_encoder_decoder=False, is_multimodal=False, model_impl="auto", context_len=CONTEXT, hf_eos_token_id=None, self_opened_think_start_ids=None,
            think_end_id=None, think_end_ids=None,
        )
        runner = types.SimpleNamespace(attn_backend=Nothing, prefill_aware_swa=False)
        self.tp_worker = self.model_worker = types.SimpleNamespace(model_runner=runner)
        self.metrics_reporter = types.SimpleNamespace(
            enable_metrics=False, num_generated_tokens=0, forward_ct_decode=0, num_retracted_reqs=0,
            report_prefill_stats=lambda *args, **kwargs: None, report_decode_stats=lambda *args, **kwargs: None,
        )
        self.scheduler_stage_metrics, self.max_req_len = None, CONTEXT
        self.output_streamer = self.load_inquirer = Nothing()
        self.grammar_manager = types.SimpleNamespace(has_waiting_grammars=lambda: False)
        self.dp_attn_adapter = passes("maybe_prepare_mlp_sync_batch", "maybe_convert_decode_to_extend")
        self.ngram_embedding_manager = passes("prepare_for_forward")
        self.init_cache(case)
        self.init_running_status()
        self.chunked_prefill_size, self.chunked_req, self._pending_chunked_abort_req = case["max_batch_tokens"], None, None
        self.is_mixed_chunk, self.prefill_decode_interval, self._prefill_decode_interval_remaining = False, 0, 0
        self.init_schedule_policy()
        self.init_batch_result_processor()
        self.enable_skip_finishing_decode = self.enable_overlap

    def init_cache(self, case):
        """The pools and the radix cache, as `kv_cache_builder` makes them for a dense model."""
        self.req_to_token_pool = ReqToTokenPool(case["max_batch_size"], CONTEXT, "cpu", False)
        self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(case["blocks"], torch.float32, "cpu", None, False)
        self.tree_cache = UnifiedRadixCache(CacheInitParams(
            disable=False, req_to_token_pool=self.req_to_token_pool, token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            page_size=1, tree_components=(ComponentType.FULL,),
        ))


class Run:
    """SGLang's loops (`event_loop_overlap`, `event_loop_normal`) with a device that runs one step after another."""

    def __init__(self, case):
        self.case, self.requests = case, case["requests"]
        get_context().override_server_args(
            page_size=1, chunked_prefill_size=case["max_batch_tokens"], attention_backend="torch_native", schedule_policy=case["policy"],
            max_running_requests=case["max_batch_size"], pp_max_micro_batch_size=case["max_batch_size"],
            disable_overlap_schedule=case["in_flight"] == 1, device="cpu",
        ).install()
        self.engine = Engine(case)
        self.live, self.now, self.free_at, self.arrived = {}, 0, 0, 0
        case["steps"] = 0

    def arrive(self):
        """Adds the requests that are there by now."""
        while self.arrived < len(self.requests) and self.requests[self.arrived]["arrival_ns"] <= self.now:
            number, self.arrived = self.arrived, self.arrived + 1
            facts = self.requests[number]
            params = SamplingParams(max_new_tokens=facts["output"] * self.case["limit"], temperature=0.0, stop_token_ids=[STOP])
            params.normalize(None)
            request = Req(str(number), "", array("q", prompt(facts, number)), params, vocab_size=1 << 32)
            self.live[number] = request
            self.engine._add_request_to_queue(request)

    def begin(self, batch):
        """Runs a step on the device after those before. Returns its end and its tokens."""
        tokens, counts = [], batch.extend_lens if batch.forward_mode.is_extend() else [1] * len(batch.reqs)
        for request, length in zip(batch.reqs, batch.seq_lens.tolist()):
            number, at = int(request.rid), length - len(request.origin_input_ids)
            tokens.append(STOP if at == self.requests[number]["output"] - 1 else 2_000_000_000 + number * 10_000 + at)
        self.engine.forward_ct += 1
        self.case["steps"] += 1
        self.free_at = max(self.now, self.free_at) + STEP_NS + TOKEN_NS * sum(counts) + SEQ_NS * len(counts)
        return batch.copy(), GenerationBatchResult(next_token_ids=torch.tensor(tokens)), self.free_at

    def end(self, batch, result, end):
        """Waits for a step."""
        self.now = max(self.now, end)
        processor = self.engine.batch_result_processor
        if batch.forward_mode.is_decode():
            processor.process_batch_result_decode(batch, result)
        else:
            processor.process_batch_result_prefill(batch, result)
        for request in batch.reqs:
            number = int(request.rid)
            facts = self.requests[number]
            if number in self.live and request.output_ids:
                facts.setdefault("first_ns", self.now)
            if number in self.live and request.finished():
                assert len(request.output_ids) == facts["output"], (len(request.output_ids), facts)
                facts.update(end_ns=self.now, cached=request.cached_tokens, preemptions=request.retraction_count)
                del self.live[number]

    def whole(self):
        engine, queue = self.engine, collections.deque()
        engine.result_queue = queue
        while self.arrived < len(self.requests) or self.live or queue:
            self.arrive()
            plan = engine.get_next_batch_to_run(running_batch=engine.running_batch, last_batch=engine.last_batch)
            engine.running_batch, batch = plan.running_batch, plan.batch_to_run
            if batch:
                queue.append(self.begin(batch))
            if queue and (engine.last_batch or not engine.enable_overlap):
                self.end(*queue.popleft())
            elif batch is None:
                assert self.arrived < len(self.requests), "no request can run"
                if not self.live:
                    # As `on_idle` does.
                    engine.new_token_ratio_tracker.reset()
                self.now = max(self.now, self.requests[self.arrived]["arrival_ns"])
            engine.last_batch = batch
        return self.case


def case(name, seed, n, blocks, rate, groups, shared, own, answer, tokens=2048, seqs=256, in_flight=2, policy="fcfs", limit=1):
    """Requests of `groups` shared beginnings, or none, that arrive at random, `rate` a second."""
    draw, at, requests = random.Random(seed), 0.0, []
    for _ in range(n):
        at += draw.expovariate(rate)
        requests.append({
            "arrival_ns": int(at * 1e9), "group": draw.randrange(groups) + 1 if groups else 0,
            "shared": draw.choice(shared) if groups else 0, "own": draw.randint(*own), "output": draw.randint(*answer),
        })
    return {
        "name": name, "blocks": blocks, "max_batch_tokens": tokens, "max_batch_size": seqs, "in_flight": in_flight, "policy": policy,
        "limit": limit, "requests": requests,
    }


CASES = [
    case("calm, one step in flight", 101, 80, 64000, 8, 0, [], (1, 900), (1, 120), in_flight=1),
    case("calm", 102, 100, 64000, 8, 0, [], (1, 900), (1, 120)),
    case("small batches", 103, 100, 64000, 8, 0, [], (1, 900), (1, 120), tokens=256, seqs=12),
    case("burst", 104, 60, 64000, 1e6, 0, [], (1, 900), (1, 120)),
    case("answers below their limit", 105, 100, 64000, 8, 0, [], (1, 900), (1, 120), limit=3),
    case("hits", 106, 120, 64000, 8, 6, [70, 133, 509], (1, 200), (1, 80)),
    case("hits, lpm", 107, 120, 64000, 20, 6, [70, 133, 509], (1, 200), (1, 80), policy="lpm", seqs=16),
    case("queue, lpm", 108, 120, 64000, 200, 6, [70, 133, 509], (1, 200), (1, 80), policy="lpm", seqs=16),
    case("little room", 109, 100, 4000, 12, 0, [], (1, 500), (20, 100), limit=8),
    case("retractions, one step in flight", 110, 100, 2000, 30, 0, [], (1, 300), (50, 300), in_flight=1),
    case("retractions", 111, 100, 2000, 30, 0, [], (1, 300), (50, 300)),
    case("little room, answers below their limit", 112, 80, 2000, 30, 0, [], (1, 300), (50, 150), limit=2),
    case("burst of shared prompts", 113, 60, 64000, 1e6, 4, [64, 160, 320], (1, 200), (1, 120)),
    case("burst of shared prompts, lpm", 114, 60, 64000, 1e6, 4, [64, 160, 320], (1, 200), (1, 120), policy="lpm"),
    case("queue above 128, lpm", 115, 200, 64000, 1000, 6, [70, 133, 509], (1, 200), (1, 80), policy="lpm", seqs=16),
    case("evictions", 116, 120, 6400, 4, 12, [160, 320, 640], (0, 300), (1, 60)),
    case("retractions, lpm", 117, 120, 2500, 20, 5, [64, 160, 320], (1, 200), (50, 250), policy="lpm"),
    case("retractions while others end", 63000, 60, 1000, 50, 0, [], (1, 150), (50, 150)),
    case("retractions of shared prompts", 118, 120, 2500, 20, 5, [64, 160, 320], (1, 200), (50, 250)),
    case("little room, answers end early", 9401, 80, 2000, 30, 0, [], (1, 300), (50, 150), limit=2),
    case("evictions, answers below their limit, lpm", 9205, 120, 6400, 4, 12, [160, 320, 640], (0, 300), (1, 60), policy="lpm", limit=3),
    case("short answers, lpm", 9502, 100, 1000, 20, 4, [64, 160, 320], (1, 200), (1, 30), policy="lpm"),
    case("long answers, lpm", 63002, 60, 2500, 5, 4, [64, 160, 320], (1, 200), (200, 600), policy="lpm"),
]

if __name__ == "__main__":
    only = sys.argv[1:]
    cases = [Run(one).whole() for one in CASES if not only or one["name"] in only]
    asked, answered = ["arrival_ns", "group", "shared", "own", "output"], ["first_ns", "end_ns", "cached", "preemptions"]
    for one in cases:
        requests = one["requests"]
        print(one["name"], one["steps"], "steps", sum(r["preemptions"] for r in requests), "retractions",
              sum(r["cached"] for r in requests), "cached", file=sys.stderr)
        one["requests"] = [[r[fact] for fact in asked] + [[r[fact] for fact in answered]] for r in requests]
    json.dump({"sglang": sglang.version.__version__, "step_ns": STEP_NS, "token_ns": TOKEN_NS, "seq_ns": SEQ_NS, "cases": cases},
              sys.stdout, separators=(",", ":"))
    print()
