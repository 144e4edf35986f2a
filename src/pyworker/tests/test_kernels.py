"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled for an H100 or H200."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from trunkline_worker.torch_engine import kernels

INTERPRETED = """
import sys
import torch
sys.path.insert(0, "bench")
import gpu
from trunkline_worker.torch_engine import kernels

kernels.usable = lambda like: True
for least in (kernels.LEAST_SPLIT, 64):
    kernels.LEAST_SPLIT = least
    for dtype in (torch.float32, torch.float16):
        print(gpu.check_kernel(torch.device("cpu"), dtype))
"""


def test_the_decode_kernel_says_what_attention_says():
    # The variable counts when Triton is imported, so another process sets it.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": "src"}
    command = [sys.executable, "-c", INTERPRETED]
    out = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=300
    )
    differences = [float(line) for line in out.stdout.split()]
    assert len(differences) == 4, out.stderr
    assert max(differences[::2]) < 1e-5 and max(differences[1::2]) < 5e-3, differences


@pytest.mark.parametrize("element", ["bf16", "fp16", "fp32"])
def test_the_kernels_compile_for_hopper(element):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    if "nvidia" not in __import__("triton").backends.backends:
        pytest.skip("Triton has no backend for NVIDIA here")
    pointers = {
        "q": element,
        "keys": element,
        "values": element,
        "blocks": "i32",
        "ends": "i32",
        "partial": "fp32",
        "weight": "fp32",
    }
    strides = ("table_stride", "block_stride", "place_stride", "head_stride", "splits")
    constants = {"SIZE": 16, "GROUP": 4, "PADDED": 16, "DIM": 128, "SPLIT_": 256, "TILE": 64}
    signature = {name: f"*{kind}" for name, kind in pointers.items()} | {"scale": "fp32"} | dict.fromkeys(strides, "i32")
    merged = {"partial": "*fp32", "weight": "*fp32", "out": f"*{element}", "splits": "i32"}
    for kernel, arguments, values in [
        (kernels._decode, signature, constants),
        (kernels._merge, merged, {"DIM": 128, "SPLITS": kernels.MOST_SPLITS}),
    ]:
        source = ASTSource(kernel, {**arguments, **dict.fromkeys(values, "constexpr")}, values)
        compiled = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        assert "cubin" in compiled.asm and compiled.metadata.shared < 227 << 10


@pytest.mark.parametrize(("positions", "lanes", "split"), [(1, 8, 256), (1088, 2048, 512), (131_072, 8, 2048), (300, 8, 256)])
def test_splits_are_few_enough_to_merge(positions, lanes, split):
    assert kernels.split_of(positions, lanes) == split
    assert -(-positions // split) <= min(kernels.MOST_SPLITS, max(4, kernels.PROGRAMS // lanes))
