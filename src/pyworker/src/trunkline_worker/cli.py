"""The command line: builds an engine, and attaches it to a server."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import __version__
from .engine import Engine
from .facts import LockStep
from .model_folder import is_gguf
from .results import EngineHung, EngineLost, StepError
from .session import Refused, Session, Target

log = logging.getLogger("trunkline_worker")

CLOSE_TIMEOUT = 20.0
"""Seconds for an engine that hangs to end its processes."""

POSITIVE = (
    *("block_size", "kv_tokens", "max_context", "max_sequences", "max_tokens", "threads"),
    *("tensor_parallel", "pipeline_parallel", "data_parallel_size"),
)
"""Options whose numbers begin at 1."""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    p = argparse.ArgumentParser(prog="trunkline-worker", description="Runs a model for a Trunkline server.")
    p.add_argument("--version", action="version", version=__version__)
    p.add_argument("--engine", choices=("torch", "vllm", "toy"), default="torch", help="what runs the model (default: torch)")
    p.add_argument("--model", type=Path, help="folder of the model, as on Hugging Face: config.json and safetensors")
    p.add_argument("--connect", required=True, metavar="HOST:PORT", help="address of the server")
    p.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}", help="name of this worker, unique at the server")
    p.add_argument("--model-name", help="name to announce (default: the folder's name)")
    p.add_argument("--revision", help="revision of the weights to announce (default: a hash of pieces of the files)")
    p.add_argument("--tls", action="store_true", help="connect with TLS, trusting the system's authorities")
    p.add_argument("--ca", type=Path, help="connect with TLS, trusting the authorities in this PEM file")
    p.add_argument("--token-file", type=Path, help="file with the bearer token (or set TRUNKLINE_TOKEN)")
    p.add_argument("--dtype", choices=("f32", "bf16", "f16"), help="type of weights and KV (default: the model's; f32 on a CPU)")
    p.add_argument("--device", default="auto", help="torch: cpu, cuda, cuda:1 .. (default: a GPU if there is one)")
    p.add_argument("--block-size", type=int, help="preferred tokens in a block (default: 16; vllm: 32)")
    p.add_argument("--kv-tokens", type=int, help="room for KV in tokens (default: 16384 on a CPU, free memory on a GPU)")
    p.add_argument("--max-context", type=int, help="longest sequence in tokens (default: the model's)")
    p.add_argument("--max-sequences", type=int, default=256, help="sequences of one step, at most (default: 256)")
    p.add_argument("--max-tokens", type=int, default=2048, help="tokens of one step, at most (default: 2048)")
    p.add_argument("--threads", type=int, help="CPU threads of the engine (default: PyTorch's)")
    p.add_argument("--tensor-parallel", type=int, default=1, help="vllm: GPUs or processes that share the model (default: 1)")
    p.add_argument(
        *("--pipeline-parallel", "--pipeline-stages"),
        type=int,
        default=1,
        metavar="N",
        help="processes that each run a part of the layers, with as many steps under way (default: 1)",
    )
    p.add_argument("--data-parallel-group", metavar="NAME", help="group of workers that run every step together")
    p.add_argument("--data-parallel-size", type=int, default=1, metavar="N", help="workers of the group (default: 1)")
    p.add_argument("--data-parallel-rank", type=int, default=0, metavar="N", help="number of this worker in the group, from 0")
    p.add_argument(
        "--data-parallel-address",
        metavar="HOST:PORT",
        default="127.0.0.1:29500",
        help="vllm: where the workers of the group meet, an address of rank 0 (default: 127.0.0.1:29500)",
    )
    p.add_argument(
        "--scored-layers", help="torch: layers whose blocks may be dropped by attention scores (H2O), as 4-29 or 4,6,8"
    )
    p.add_argument(
        "--h2o",
        choices=("on", "off"),
        help="torch: let the server drop tokens (serve --h2o on) in all KV heads but those that lose most as found by trunkline "
        "h2o calibrate",
    )
    p.add_argument(
        "--h2o-layers",
        metavar="LAYERS",
        help="torch: layers, or KV heads as LAYER.HEAD, that keep every token while the others drop tokens, as 7,18.2",
    )
    p.add_argument("--h2o-total", type=float, metavar="RATIO", help="torch: the --h2o-total of the server (default: 2.5)")
    p.add_argument(
        "--h2o-choice",
        choices=("own", "shared"),
        help="torch: choice of the blocks to drop, by the scores of each KV head or one score for all (default: own)",
    )
    p.add_argument("--eager", action="store_true", help="no compilation and no CUDA graphs")
    p.add_argument(
        "--shared-memory",
        choices=("true", "false"),
        default="true",
        help="copy blocks through shared memory if the server runs on this machine with the same user (default: true)",
    )
    p.add_argument("--log-format", choices=("text", "json"), default="text", help="form of log lines (default: text)")
    p.add_argument("--log", default="info", choices=("debug", "info", "warning", "error"), help="log level (default: info)")
    return p


def build(args: argparse.Namespace) -> Engine:
    """Returns the engine that the arguments ask for.

    Raises:
        ValueError: an argument or the model does not fit; one line says which.
    """
    _check_numbers(args)
    _check_abilities(args)
    place = lock_step(args)
    if args.engine == "vllm":
        return _build_vllm(args, place)
    engine = _build(args)
    engine.lock_step = place
    return engine


def build_apart(args: argparse.Namespace) -> Engine:
    """Returns what `build` returns, made in a thread of its own that has ended by then.

    OpenMP keeps threads for each thread that has computed in parallel. If all of them are more than the cores, they sleep after
    each task at once: with those of the main thread, which loads and tries the model, left over beside those of the thread that
    runs the steps, steps of vLLM on two cores took 1.15 times as long.
    """
    made: list[Engine] = []
    failed: list[BaseException] = []

    def make() -> None:
        try:
            made.append(build(args))
        except BaseException as error:
            failed.append(error)

    building = threading.Thread(target=make, name="build", daemon=True)
    building.start()
    building.join()
    if failed:
        raise failed[0]
    return made[0]


def lock_step(args: argparse.Namespace) -> LockStep | None:
    """Returns the place of the worker in its group, if it has one."""
    group, size, rank = args.data_parallel_group, args.data_parallel_size, args.data_parallel_rank
    if size > 1 and group is None:
        raise ValueError(f"--data-parallel-size {size} needs --data-parallel-group NAME")
    if not 0 <= rank < size:
        raise ValueError(f"--data-parallel-rank is {rank}; it must be below --data-parallel-size, which is {size}")
    return LockStep(group, size, rank) if group is not None else None


def _build(args: argparse.Namespace) -> Engine:
    if args.engine == "toy":
        from . import toy

        return toy.build(args)
    _check_model(args)
    from .torch_engine import build as build_torch

    return build_torch(args)


def _build_vllm(args: argparse.Namespace, place: LockStep | None) -> Engine:
    _check_model(args)
    from .vllm_engine import build as build_vllm

    return build_vllm(args, place)


def _check_numbers(args: argparse.Namespace) -> None:
    """Refuses numbers below 1: 0 is no way to ask for the default of an option."""
    for name in POSITIVE:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least 1")


def _check_abilities(args: argparse.Namespace) -> None:
    """Refuses what the engine would leave undone, instead of serving without it."""
    if args.tensor_parallel > 1 and args.engine != "vllm":
        beside = " or --pipeline-parallel" if args.engine == "torch" else ""
        raise ValueError(f"--tensor-parallel {args.tensor_parallel}: --engine {args.engine} has none; use --engine vllm{beside}")
    if args.device != "auto" and args.engine != "torch":
        raise ValueError(f"--device {args.device}: --engine {args.engine} finds its devices itself; use --engine torch")
    for name in ("model", "dtype", "threads", "eager"):
        if args.engine == "toy" and getattr(args, name):
            value = "" if name == "eager" else f" {getattr(args, name)}"
            raise ValueError(f"--{name}{value}: --engine toy has none; use --engine torch or vllm")
    h2o = [name for name in ("h2o", "h2o_layers", "h2o_total", "h2o_choice") if getattr(args, name) is not None]
    for name in ["scored_layers", *h2o]:
        value = getattr(args, name)
        if value is not None and args.engine != "torch":
            flag = f"--{name.replace('_', '-')} {value}"
            raise ValueError(f"{flag}: --engine {args.engine} reports no scores; use --engine torch")
    if args.h2o == "off":
        for name in h2o[1:]:
            log.warning("--%s has no effect with --h2o off", name.replace("_", "-"))
    if args.data_parallel_group is None and args.data_parallel_address != parser().get_default("data_parallel_address"):
        log.warning("--data-parallel-address has no effect without --data-parallel-group")
    if args.scored_layers and h2o:
        raise ValueError(f"--scored-layers and --{h2o[0].replace('_', '-')} contradict each other; give one of them")


def _check_model(args: argparse.Namespace) -> None:
    if args.model is None:
        raise ValueError(f"--engine {args.engine} needs --model DIR")
    if args.model.is_file():
        kind = "a GGUF file, which the embedded worker runs (trunkline worker --model FILE)" if is_gguf(args.model) else "a file"
        raise ValueError(f"--model {args.model}: this is {kind}; give the folder of the model, as on Hugging Face")
    if not (args.model / "config.json").exists() and any(map(is_gguf, sorted(args.model.glob("*")))):
        raise ValueError(
            f"--model {args.model}: the folder has a GGUF file and no config.json; the embedded worker runs the file "
            "(trunkline worker --model FILE), and a folder as on Hugging Face is wanted here"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status: 0 after SIGTERM or SIGINT, 1 after a failure."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=args.log.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if args.log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
    session: Session | None = None

    def stop(number: int, _frame: FrameType | None) -> None:
        log.info("stopping (%s)", signal.Signals(number).name)
        if session is None:
            # The thread that loads the model cannot be interrupted. Processes that it started end with this one.
            _exit(0)
        session.stop()

    with _on_signals(stop):
        try:
            target = Target(
                args.connect,
                args.name,
                args.ca,
                os.environ.get("TRUNKLINE_TOKEN"),
                args.tls,
                args.shared_memory == "true",
                args.token_file,
            )
            # A file with a mistake is reported before a large model is read.
            target.bearer()
            engine = build_apart(args)
        except Exception as error:
            return _failed(error)
        session = Session(engine, target)
        try:
            session.run()
        except EngineHung as error:
            _failed(error)
            _leave(engine)
        except Exception as error:
            engine.close()
            return _failed(error)
        engine.close()
        return 0


@contextlib.contextmanager
def _on_signals(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Calls a function at SIGTERM and SIGINT, and goes on at SIGHUP, until the end of the block."""
    before = [(number, signal.signal(number, stop)) for number in (signal.SIGTERM, signal.SIGINT)]
    # The end of a terminal stops no worker, and files are read for each connection.
    before.append((signal.SIGHUP, signal.signal(signal.SIGHUP, _note_hangup)))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class JsonLines(logging.Formatter):
    """Formats each record as a JSON object in a line, with the names of the embedded worker's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds")
        line = {"timestamp": at, "level": record.levelname, "message": record.getMessage(), "target": record.name}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _note_hangup(_number: int, _frame: FrameType | None) -> None:
    log.info("there are no files to read again: those of tokens and TLS are read for each connection")


def _failed(error: Exception) -> int:
    """Prints one line about a failure, and the place in the code at --log debug. Returns the exit status."""
    log.debug("the worker failed", exc_info=error)
    first = (str(error).strip().splitlines() or [""])[0]
    expected = isinstance(error, ValueError | ImportError | OSError | EngineLost | StepError | Refused)
    # The reason may stand in a later line, as in the errors of vLLM's configuration.
    line = " ".join(str(error).split()) if expected and first else f"{type(error).__name__}: {first}"
    print(f"trunkline-worker: {line}", file=sys.stderr)
    return 1


def _leave(engine: Engine) -> NoReturn:
    """Ends the process although the engine's threads hang, after the engine's own processes where they can be ended."""
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(CLOSE_TIMEOUT)
    _exit(1)


def _exit(status: int) -> NoReturn:
    """Ends the process without waiting for its threads."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
