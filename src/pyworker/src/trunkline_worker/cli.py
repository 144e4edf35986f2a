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
from typing import Any, NoReturn

from . import __version__, entry_points, flags
from .engine import Engine
from .results import EngineHung, EngineLost, StepError
from .session import Refused, Session, Target

log = logging.getLogger("trunkline_worker")

DESCRIPTION = "Runs a model for a Trunkline server."
USAGE = "%(prog)s [--engine NAME] --connect HOST:PORT [flags]"
DEFAULT = "torch"
"""Engine, unless one is named."""
CLOSE_TIMEOUT = 20.0
"""Seconds for an engine that hangs to end its processes."""

SHOWN = 200
"""Characters of a wrong argument in a message, at most."""


class Parser(argparse.ArgumentParser):
    """A parser that takes flags by their whole names alone, and says in one line what is wrong."""

    def __init__(self, **options: Any) -> None:
        super().__init__(prog="trunkline-worker", usage=USAGE, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raises a ValueError."""
        raise ValueError(message.removeprefix("argument "))

    def takes(self, flag: str) -> bool:
        """Returns `True` if a flag is among those added."""
        return flag in self._option_string_actions


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the arguments of the command line, those of the chosen engine among them.

    Raises:
        ValueError: an argument is wrong, or is none that the engine takes.
        ImportError: the engine's module cannot be imported.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    first = Parser(add_help=False)
    first.add_argument("--engine", default=DEFAULT)
    name = first.parse_known_args(argv)[0].engine
    try:
        p = parser(name)
    except ImportError as error:
        if not {"-h", "--help"} & set(argv):
            raise
        p = Parser(description=DESCRIPTION, epilog=str(error))
        _add_connection(p)
    args, rest = p.parse_known_args(argv)
    if rest:
        raise ValueError(_refusal(rest, name))
    return args


def parser(name: str) -> Parser:
    """Returns the parser for the command line of an engine.

    Raises:
        ValueError: no such engine is installed.
        ImportError: it cannot be imported, or declares flags that it cannot have.
    """
    engine = entry_points.load(name)
    p = Parser(description=DESCRIPTION)
    _add_connection(p)
    group = p.add_argument_group(f"flags of --engine {name}")
    try:
        flags.add(engine.flags, p, group)
        engine.add_flags(group)
    except Exception as error:
        raise ImportError(f"--engine {name}: its flags cannot be added: {error}") from error
    return p


def _add_connection(p: Parser) -> None:
    """Adds what every worker takes, whatever its engine."""
    names = ", ".join(entry_points.installed())
    p.add_argument("--version", action="version", version=__version__)
    p.add_argument(
        "--engine",
        metavar="NAME",
        default=DEFAULT,
        help=f"what runs the model: {names} (default: {DEFAULT}); --engine NAME --help lists its flags",
    )
    p.add_argument("--connect", required=True, metavar="HOST:PORT", help="address of the server")
    p.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}", help="name of this worker, unique at the server")
    p.add_argument("--tls", action="store_true", help="connect with TLS, trusting the system's authorities")
    p.add_argument("--ca", type=Path, help="connect with TLS, trusting the authorities in this PEM file")
    p.add_argument("--token-file", type=Path, help="file with the bearer token (or set TRUNKLINE_TOKEN)")
    p.add_argument("--log-format", choices=("text", "json"), default="text", help="form of log lines (default: text)")
    p.add_argument("--log", default="info", choices=("debug", "info", "warning", "error"), help="log level (default: info)")


def _refusal(rest: list[str], name: str) -> str:
    """Returns what to say about arguments that an engine does not take: which installed engines take the first one."""
    first = next((at for at, text in enumerate(rest) if text.startswith("-")), 0)
    flag, _, value = rest[first].partition("=")
    if not value and rest[first + 1 :] and not rest[first + 1].startswith("--"):
        value = rest[first + 1]
    shown = f"{flag} {value}".strip()[:SHOWN]
    others = []
    for other in entry_points.installed():
        # What is wrong with another engine is for those who choose it.
        with contextlib.suppress(ImportError, ValueError):
            if parser(other).takes(flag):
                others.append(f"--engine {other}")
    if others:
        return f"{shown}: --engine {name} does not take it; use {' or '.join(others)}"
    if flag in flags.FLAGS:
        return f"{shown}: --engine {name} does not take it"
    return f"{shown}: there is no such flag; trunkline-worker --engine {name} --help lists them"


def build(args: argparse.Namespace) -> Engine:
    """Returns the engine that the arguments ask for.

    Raises:
        ValueError: an argument or the model does not fit; one line says which.
        ImportError: the engine needs a package that is not installed.
    """
    place = flags.lock_step(args)
    try:
        engine = entry_points.load(args.engine).build(args)
    except ModuleNotFoundError as error:
        raise entry_points.failed(args.engine, error) from error
    engine.lock_step = place
    return engine


def build_apart(args: argparse.Namespace) -> Engine:
    """Returns what `build` returns, made in a thread of its own that has ended by then.

    OpenMP keeps threads for each thread that has computed in parallel. If all of them are more than the cores, they sleep after
    each task at once: with those of the main thread, which loads and tries the model, left over by those of the thread that
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status: 0 after SIGTERM or SIGINT, 1 after a failure, 2 if it is wrong."""
    try:
        args = parse(argv)
    except (ValueError, ImportError) as error:
        return _failed(error, status=2)
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


def _failed(error: Exception, status: int = 1) -> int:
    """Prints one line about a failure, and the place in the code at --log debug. Returns the exit status."""
    log.debug("the worker failed", exc_info=error)
    first = (str(error).strip().splitlines() or [""])[0]
    expected = isinstance(error, ValueError | ImportError | OSError | EngineLost | StepError | Refused)
    # The reason may stand in a later line, as in the errors of vLLM's configuration.
    line = " ".join(str(error).split()) if expected and first else f"{type(error).__name__}: {first}"
    print(f"trunkline-worker: {line}", file=sys.stderr)
    return status


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
