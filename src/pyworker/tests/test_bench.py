"""The GPU measurement runs, here with a tiny shape on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")


def test_the_measurement_runs_without_a_gpu():
    script = Path(__file__).parents[1] / "bench" / "gpu.py"
    arguments = ["--shape", "tiny", "--device", "cpu", "--batch", "4", "--context", "64", "--steps", "8"]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    # Four sequences of 64 tokens and a few more, 2 layers, keys and values, 2 heads of 16 elements of bf16.
    assert report["kv_gb"] == pytest.approx(4 * 69 * 2 * 2 * 2 * 16 * 2 / 1e9)
    assert report["ratio"] > 0 and report["kernel_difference"] is None
