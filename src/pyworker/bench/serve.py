"""Compares a served worker with its engine alone: tokens, and time for 32 requests at once.

    python bench/serve.py alone --engine vllm --model MODEL --out alone.json
    trunkline serve --attached-workers 1 ... &  trunkline-worker --engine vllm --model MODEL --connect localhost:50051 &
    python bench/serve.py served --connect localhost:50051 --against alone.json

Or, for time alone, in turns, since machines are not equally fast all the time:

    python bench/serve.py pairs --engine vllm --model MODEL --connect localhost:50051 --kind many --repeats 8

Needs grpcio-tools, and transformers or vLLM for `alone`. Both sides generate greedily and ignore the end of a text.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Requests = list[tuple[list[int], int]]


def requests(kind: str, vocabulary: int) -> Requests:
    """Returns prompts and the number of tokens to generate: `equal` for comparisons of tokens, `many` for time."""
    draw = np.random.default_rng(7)
    low, high = 100, min(vocabulary, 40_000)

    def some(n: int) -> list[int]:
        return [int(token) for token in draw.integers(low, high, n)]

    if kind == "many":
        return [(some(16 + 2 * i), 48) for i in range(32)]
    shared = [some(160), some(160)]
    made = [((shared[i // 3 % 2] if i % 3 == 0 else []) + some(3 + (i * 89) % 351), 48) for i in range(22)]
    # Two prompts that are cached to their end.
    return [*made, (shared[0], 48), (shared[0], 48)]


Tokens = list[list[int]]
Run = Callable[[int], Tokens]
"""Generates for all requests, in its n-th repetition, and returns the tokens of each."""


def timed(run: Run, repeats: int) -> tuple[Tokens, list[float]]:
    """Returns the tokens of the last run, and the seconds of `repeats` runs after one that does not count, or of one."""
    tokens: Tokens = []
    times = []
    for i in range(repeats + 1):
        begun = time.perf_counter()
        tokens = run(i)
        if i > 0 or repeats == 0:
            times.append(time.perf_counter() - begun)
    return tokens, times


def with_transformers(model: str, kind: str) -> Run:
    """Runs transformers, one request at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def one(prompt: list[int], n: int) -> list[int]:
        with torch.inference_mode():
            out = loaded.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
        tokens: list[int] = out[0].tolist()[len(prompt) :]
        return tokens

    return lambda _: [one(prompt, n) for prompt, n in requests(kind, loaded.config.vocab_size)]


def with_vllm(model: str, kind: str) -> Run:
    """Runs vLLM, all requests at once."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        model=model,
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=2048,
        block_size=32,
        max_num_batched_tokens=2048,
        max_num_seqs=32,
        distributed_executor_backend="uni",
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    wanted = requests(kind, llm.llm_engine.model_config.get_vocab_size())
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in wanted]
    params = SamplingParams(max_tokens=wanted[0][1], temperature=0, ignore_eos=True, detokenize=False)

    def run(_: int) -> Tokens:
        done = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in done]

    return run


def inference(folder: str) -> Any:
    """Returns the messages of inference.proto, compiled into a folder."""
    from grpc_tools import protoc

    proto = Path(__file__).parents[3] / "proto"
    if protoc.main(["", f"-I{proto}", f"--python_out={folder}", str(proto / "trunkline/v1/inference.proto")]):
        raise SystemExit("inference.proto does not compile")
    # Next to the package's own module of the same parents, under another name.
    sys.path.insert(0, str(Path(folder) / "trunkline" / "v1"))
    return importlib.import_module("inference_pb2")


def served(address: str, kind: str, vocabulary: int) -> Run:
    """Asks a server, all requests at once."""
    import grpc

    with tempfile.TemporaryDirectory() as folder:
        messages = inference(folder)
    generate = grpc.insecure_channel(address).unary_stream(
        "/trunkline.v1.Inference/Generate",
        request_serializer=messages.GenerateRequest.SerializeToString,
        response_deserializer=messages.GenerateResponse.FromString,
    )
    wanted = requests(kind, vocabulary)

    def run(repeat: int) -> Tokens:
        tokens: Tokens = [[] for _ in wanted]
        # Each repetition computes its prompts again when time counts, and finds them in the cache when tokens do.
        salt = f"{os.getpid()} {repeat}" if kind == "many" else ""

        def ask(i: int, prompt: list[int], n: int) -> None:
            request = messages.GenerateRequest(cache_salt=salt)
            request.token_ids.ids.extend(prompt)
            request.sampling.temperature = 0.0
            request.stopping.max_tokens = n
            request.stopping.ignore_eos = True
            try:
                for response in generate(request):
                    if response.HasField("chunk"):
                        tokens[i] += response.chunk.token_ids
            except grpc.RpcError as error:
                failed.append(str(error))

        failed: list[str] = []
        threads = [threading.Thread(target=ask, args=(i, *request)) for i, request in enumerate(wanted)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise SystemExit(f"{len(failed)} of {len(wanted)} requests failed: {failed[0]}")
        return tokens

    return run


def compare_in_turns(alone: Run, attached: Run, repeats: int) -> None:
    """Prints the seconds of both sides in each turn, and the median of their ratios, after one turn that does not count."""
    ratios = []
    for i in range(repeats + 1):
        (ours, mine), (theirs, others) = timed(lambda _, i=i: alone(i), 0), timed(lambda _, i=i: attached(i), 0)
        equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
        print(f"alone {mine[0]:.2f} s, served {others[0]:.2f} s; equal: {equal} of {len(ours)}", flush=True)
        ratios += [mine[0] / others[0]] if i else []
    print(f"time ratio alone / served, median of {repeats}: {statistics.median(ratios):.3f}")


def main() -> None:
    """Runs one side and prints its time, and the comparison."""
    p = argparse.ArgumentParser()
    p.add_argument("side", choices=("alone", "served", "pairs"))
    p.add_argument("--engine", choices=("transformers", "vllm"), default="vllm")
    p.add_argument("--model")
    p.add_argument("--connect", default="localhost:50051")
    p.add_argument("--kind", choices=("equal", "many"), default="equal")
    p.add_argument("--repeats", type=int, default=0, help="timed repetitions, after one that is not")
    p.add_argument("--out", type=Path)
    p.add_argument("--against", type=Path)
    p.add_argument("--vocabulary", type=int, default=49_152)
    args = p.parse_args()
    alone = with_vllm if args.engine == "vllm" else with_transformers
    if args.side == "pairs":
        attached = served(args.connect, args.kind, args.vocabulary)
        compare_in_turns(alone(args.model, args.kind), attached, max(1, args.repeats))
        return
    run = alone(args.model, args.kind) if args.side == "alone" else served(args.connect, args.kind, args.vocabulary)
    tokens, times = timed(run, args.repeats)
    n = sum(len(row) for row in tokens)
    print(
        f"{len(tokens)} requests, {n} tokens, seconds: {', '.join(f'{t:.2f}' for t in times)}; best {n / min(times):.1f} tokens/s"
    )
    if args.out:
        args.out.write_text(json.dumps({"tokens": tokens, "times": times}))
    if args.against:
        other = json.loads(args.against.read_text())
        equal = sum(a == b for a, b in zip(tokens, other["tokens"], strict=True))
        print(f"equal: {equal} of {len(tokens)}; time ratio alone / served: {min(other['times']) / min(times):.3f}")


if __name__ == "__main__":
    main()
