"""Measures the torch engine on a GPU: a decode step against the card's own memory bandwidth.

    python bench/gpu.py                      # Llama-3.1-8B shape, random bf16 weights, 256 sequences of 1,024 tokens: 54 GB
    python bench/gpu.py --batch 64           # a smaller card
    python bench/gpu.py --shape tiny --device cpu --batch 4 --context 64    # the script itself, without a GPU

First the decode kernel is compared with PyTorch's attention. Then a copy kernel measures the bandwidth, and decode steps are
timed: the roofline is the time that reading all weights and all KV once takes at that bandwidth. The bar is 1.3 times that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

import torch

from trunkline_worker.facts import KvFacts, Settings
from trunkline_worker.proto import messages as pb
from trunkline_worker.slots import SlotTable
from trunkline_worker.torch_engine import Torch, kernels, trial
from trunkline_worker.torch_engine import weights as weights_of
from trunkline_worker.torch_engine.build import model_facts
from trunkline_worker.torch_engine.config import LlamaConfig, Rope
from trunkline_worker.torch_engine.runner import DTYPES, TorchEngine

BAR = 1.3
SHAPES = {
    # vocabulary, hidden, intermediate, layers, heads, key/value heads
    "llama-3.1-8b": (128_256, 4096, 14_336, 32, 32, 8),
    "tiny": (512, 64, 128, 2, 4, 2),
}


def config_of(shape: str, max_context: int) -> LlamaConfig:
    """Returns the configuration of a shape."""
    vocabulary, hidden, intermediate, layers, heads, kv_heads = SHAPES[shape]
    return LlamaConfig(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=hidden // heads,
        max_context=max_context,
        norm_eps=1e-5,
        rope=Rope(500_000.0),
        tied=False,
        dtype="bf16",
    )


def sync(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device, size: int) -> float:
    """Returns bytes read and written in a second by a copy of `size` bytes: the best of 20."""
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(20):
        sync(device)
        begun = time.perf_counter()
        target.copy_(source)
        sync(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * size / best


def check_kernel(device: torch.device, dtype: torch.dtype) -> float | None:
    """Returns the largest difference of the decode kernel from PyTorch's attention, or None if the kernel cannot run here."""
    heads, kv_heads, dim = 8, 2, 64
    if not kernels.usable(torch.empty(1, dim, device=device, dtype=dtype)):
        return None
    return trial.difference(device, dtype, heads, kv_heads, dim)


def prepare(runner: TorchEngine, settings: Settings, batch: int, context: int) -> tuple[SlotTable, pb.Step]:
    """Returns slots with `batch` sequences of `context` tokens whose KV is taken as computed, and a step that decodes all."""
    table = SlotTable(runner.model, settings)
    each = settings.blocks // batch
    step = pb.Step(id=1, slots=range(batch), computed=[context - 1] * batch, n_tokens=[1] * batch, sample=[1] * batch)
    step.n_blocks.extend([each] * batch)
    # Neighbours in memory belong to different sequences, as in a pool that has been used.
    step.blocks.extend(entry * batch + slot for slot in range(batch) for entry in range(each))
    for i in range(batch):
        tokens = [(31 * i + 7 * at) % runner.model.vocab_size for at in range(context)]
        step.starts.add(index=i, request=i, tokens=tokens, n_prompt=context)
        step.starts[i].sampling.top_p = step.starts[i].sampling.repetition_penalty = 1.0
    return table, step


def decode(runner: TorchEngine, table: SlotTable, step: pb.Step, steps: int) -> list[float]:
    """Returns the time of each of so many decode steps, in seconds, with a second step submitted while the first runs."""
    times, waiting = [], []
    begun = time.perf_counter()
    for i in range(steps):
        batch = table.apply(step)
        starts = table.starts[batch.slots]
        waiting.append((batch, starts, runner.submit(batch)))
        table.reserve(batch)
        n, each = len(batch), int(table.table_len[0])
        step = pb.Step(id=i + 2, slots=range(n), n_tokens=[1] * n, sample=[1] * n, table_keep=[each] * n)
        step.computed.extend((batch.computed + 1).tolist())
        if len(waiting) > runner.depth - 1:
            done, started, wait = waiting.pop(0)
            table.record(done, started, wait().tokens)
            now = time.perf_counter()
            times.append(now - begun)
            begun = now
    for done, started, wait in waiting:
        table.record(done, started, wait().tokens)
    return times


def main() -> None:
    """Runs the measurement and prints one JSON object."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    p.add_argument("--device", default="cuda")
    p.add_argument("--dtype", choices=DTYPES, default="bf16")
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--block-size", type=int, default=16)
    p.add_argument("--steps", type=int, default=60)
    args = p.parse_args()
    device, dtype = torch.device(args.device), DTYPES[args.dtype]
    difference = check_kernel(device, dtype)
    if difference is not None and difference > (2e-2 if dtype != torch.float32 else 2e-3):
        raise SystemExit(f"the decode kernel differs from PyTorch's attention by {difference}")
    rate = bandwidth(device, (1 << 30) if device.type == "cuda" else (1 << 26))
    config = config_of(args.shape, args.context + args.steps + args.block_size)
    weights = weights_of.random(config, dtype, device)
    facts = model_facts(config, args.shape, "random", args.dtype, config.max_context)
    each = -(-(args.context + args.steps + 1) // args.block_size)
    settings = Settings(args.block_size, each * args.batch, 2)
    kv = KvFacts((args.block_size,), settings.blocks * args.block_size, True)
    runner = TorchEngine(config, weights, facts, kv, replace(Torch.abilities, max_sequences=args.batch))
    runner.begin(settings)
    table, step = prepare(runner, settings, args.batch, args.context)
    times = decode(runner, table, step, args.steps)[args.steps // 4 :]
    layers = [t for layer in weights.layers for t in vars(layer).values() if t is not None]
    weight_bytes = sum(t.numel() * t.element_size() for t in [*layers, weights.norm, weights.head])
    kv_bytes = args.batch * (args.context + args.steps * 5 // 8) * facts.kv_bytes_per_token
    roofline = (weight_bytes + kv_bytes) / rate
    median = statistics.median(times)
    report = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "kernel_difference": difference,
        "copy_gb_per_s": rate / 1e9,
        "weights_gb": weight_bytes / 1e9,
        "kv_gb": kv_bytes / 1e9,
        "roofline_ms": roofline * 1e3,
        "step_ms_median": median * 1e3,
        "step_ms_least": min(times) * 1e3,
        "ratio": median / roofline,
        "bar": BAR,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
