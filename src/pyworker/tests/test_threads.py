"""Threads that OpenMP keeps: only the thread that runs the steps may leave some."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = """
import os, threading, time
import numpy
import torch
from trunkline_worker import cli
from trunkline_worker.torch_engine.runner import bytes_of, replace_block
from trunkline_worker.vllm_engine.extension import Extension

torch.set_num_threads(2)
over = threading.Event()

def others():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

def in_thread(act):
    done = threading.Event()
    def run():
        torch.get_num_threads()
        act()
        done.set()
        over.wait()
    threading.Thread(target=run, daemon=True).start()
    done.wait()

class Caches:
    # By numpy, since PyTorch fills with threads of OpenMP.
    kv_caches = [torch.from_numpy(numpy.zeros((4, 3, 1 << 17), numpy.int16)).view(torch.bfloat16)]

extension = Extension()
extension.device, extension.model_runner, extension.rank = torch.device("cpu"), Caches, 0

def compute():
    torch.ones(1 << 20).mul_(2)

def copy():
    block = torch.from_numpy(numpy.zeros((3, 4, 1 << 17), numpy.float32))[:, 1]
    replace_block(block, bytes_of(block))
    extension.trunkline_write(2, [extension.trunkline_read(1)])

before = others()
cli.build = lambda arguments: compute()
cli.build_apart(None)
built = time.monotonic()
# The thread that built ends in its own time.
while others() > before and time.monotonic() < built + 20:
    os.sched_yield()
loading = others() - before
in_thread(copy)
copying = others() - before
in_thread(compute)
print(loading, copying, others() - before)
"""


def test_loading_and_copies_leave_no_threads_of_openmp():
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=120)
    # The last number shows that the count sees such threads: the thread that runs the steps keeps one.
    assert (done.stdout, done.stderr) == ("0 0 1\n", "")
