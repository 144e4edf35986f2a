"""The connection to a server: dials, says Hello, passes messages on, and dials again when the connection breaks."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from . import __version__
from .engine import Engine
from .proto import ATTACH
from .proto import messages as pb
from .results import EngineLost
from .shared_memory import AVAILABLE, Region, Unshared
from .work import HUNG, Work

log = logging.getLogger(__name__)

PROTOCOL = 1
FINAL = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""Refusals that another attempt would meet again."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds between attempts to connect: doubled from the first to the longest."""
WELCOME_TIMEOUT = 30.0
"""Seconds for a server's Welcome."""
DRAIN_TIMEOUT = 10.0
"""Seconds for the last answers when the worker is stopped."""


@dataclass(frozen=True)
class Target:
    """Address of a server, and what the connection needs."""

    address: str
    name: str
    ca: Path | None = None
    token: str | None = None
    tls: bool = False
    shared_memory: bool = True
    token_file: Path | None = None
    """File with the token, read for each connection: a new token needs no new worker."""

    def bearer(self) -> str | None:
        """Returns the token to send.

        Raises:
            OSError: the file of the token cannot be read.
        """
        return self.token_file.read_text().strip() if self.token_file else self.token


class Refused(Exception):
    """The server will not have this worker, or the worker the server; another attempt would be refused too."""


def hello(engine: Engine, name: str, resume: pb.Resume | None, shared_memory: bool = True) -> pb.Hello:
    """Returns the first message of a connection."""
    model, kv, can = engine.model, engine.kv, engine.abilities
    place = engine.lock_step
    groups = [
        pb.WorkerLayerGroup(layers=g.layers, window=g.window, scored=g.scored, heads=g.heads, weight=g.weight)
        for g in model.groups
    ]
    return pb.Hello(
        protocol=PROTOCOL,
        name=name,
        program=f"trunkline-worker {__version__} ({engine.program})",
        model=pb.WorkerModel(
            name=model.name,
            revision=model.revision,
            vocab_size=model.vocab_size,
            max_context=model.max_context,
            eos_token_ids=model.eos_token_ids,
            n_layers=model.n_layers,
            hidden_size=model.hidden_size,
            n_heads=model.n_heads,
            n_kv_heads=model.n_kv_heads,
            head_dim=model.head_dim,
            kv_dtype=model.kv_dtype,
            kv_bytes_per_token=model.kv_bytes_per_token,
            groups=groups,
        ),
        kv=pb.WorkerKv(block_sizes=kv.block_sizes, tokens=kv.tokens, block_io=kv.block_io),
        abilities=pb.WorkerAbilities(
            max_sequences=can.max_sequences,
            max_tokens=can.max_tokens,
            steps_in_flight=can.steps_in_flight,
            max_logprobs=can.max_logprobs,
            partial_writes=can.partial_writes,
            scores=can.scores,
            scores_by_group=can.scores_by_group,
            seeded_sampling=can.seeded_sampling,
            penalties=can.penalties,
            grammars=can.grammars,
            pipeline_stages=can.pipeline_stages,
            in_step_hits=can.in_step_hits,
            shared_memory=shared_memory and kv.block_io and AVAILABLE,
        ),
        resume=resume,
        lock_step=pb.LockStep(group=place.group, size=place.size, rank=place.rank) if place else None,
    )


def check_welcome(welcome: pb.Welcome, said: pb.Hello) -> None:
    """Checks a server's answer against the Hello before it.

    Raises:
        ValueError: the server asks for more than the worker announced, or continues a session unknown to the worker.
    """
    size, steps = welcome.block_size, said.abilities.steps_in_flight
    most = said.kv.tokens // max(1, size)
    checks = [
        ("block_size", size, size > 0 and size in said.kv.block_sizes, "a size that the worker announced"),
        ("blocks", welcome.blocks, 1 <= welcome.blocks <= most, f"from 1 to {most}"),
        ("steps_in_flight", welcome.steps_in_flight, 1 <= welcome.steps_in_flight <= steps, f"from 1 to {steps}"),
        ("heartbeat_ms", welcome.heartbeat_ms, welcome.heartbeat_ms >= 1, "at least 1"),
        ("silence_ms", welcome.silence_ms, welcome.silence_ms > welcome.heartbeat_ms, "above heartbeat_ms"),
    ]
    if welcome.resumed:
        known = said.HasField("resume") and welcome.life == said.resume.life
        checks.append(("life", welcome.life, known, "that of the session to resume"))
    for name, value, good, wanted in checks:
        if not good:
            raise ValueError(f"Welcome.{name} is {value}; it must be {wanted}")


class Connection:
    """One stream to the server."""

    def __init__(self, channel: grpc.Channel, target: Target, first: pb.Hello, work: Work) -> None:
        self.work = work
        self.welcome: pb.Welcome | None = None
        self.fault: str | None = None
        """Reason to leave a server whose Welcome does not fit."""
        self._first = first
        self.region: Region | None = None
        self._shares = first.abilities.shared_memory
        self.error: grpc.RpcError | None = None
        self.ended = threading.Event()
        self.heard = self.said = time.monotonic()
        self._out: queue.SimpleQueue[pb.FromWorker | None] = queue.SimpleQueue()
        self._out.put(pb.FromWorker(hello=first))
        attach = channel.stream_stream(
            ATTACH,
            request_serializer=pb.FromWorker.SerializeToString,
            response_deserializer=pb.ToWorker.FromString,
        )
        token = target.bearer()
        metadata = [("authorization", f"Bearer {token}")] if token else []
        # Answers find their way before the first message can ask for one.
        work.attach(self.send)
        self._call: Any = attach(self._messages(), metadata=metadata)
        self._receiver = threading.Thread(target=self._receive, name="receiver", daemon=True)
        self._receiver.start()

    def send(self, message: pb.FromWorker) -> None:
        """Queues a message."""
        self._out.put(message)

    def finish(self) -> None:
        """Ends the worker's side of the stream, behind the messages queued so far."""
        self._out.put(None)

    def cancel(self) -> None:
        """Breaks the connection."""
        self._call.cancel()
        self._out.put(None)

    def _messages(self) -> Iterator[pb.FromWorker]:
        while (message := self._out.get()) is not None:
            self.said = time.monotonic()
            yield message

    def _receive(self) -> None:
        try:
            for message in self._call:
                self.heard = time.monotonic()
                if message.HasField("welcome"):
                    check_welcome(message.welcome, self._first)
                    self.region = self._open(message.welcome)
                    self.welcome = message.welcome
                if self.welcome is not None:
                    self.work.deliver(message, self.send, self.region)
        except grpc.RpcError as error:
            self.error = error
        except ValueError as error:
            self.fault = str(error)
        finally:
            self.ended.set()

    def _open(self, welcome: pb.Welcome) -> Region | None:
        """Opens the memory that the server shares, and tells the server."""
        if self.region is not None or not self._shares or not welcome.HasField("shared_memory"):
            return self.region
        try:
            region = Region(welcome.shared_memory)
        except Unshared as error:
            log.info("blocks travel in messages: %s", error)
            return None
        self.send(pb.FromWorker(shared_memory_opened=pb.SharedMemoryOpened(proof=region.proof)))
        return region


def _details(connection: Connection) -> str:
    error = connection.error
    return f"{error.code().name}: {error.details()}" if error else "the stream ended"


class Session:
    """Keeps a worker attached until it is stopped or refused."""

    def __init__(self, engine: Engine, target: Target) -> None:
        self.engine = engine
        self.target = target
        self.work = Work(engine)
        self.connections = 0
        self._resume: pb.Resume | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ends the session: steps that were delivered are answered, then the stream ends. Safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Stays attached until `stop`.

        Raises:
            Refused: the server will not have this worker, or its Welcome does not fit.
            EngineLost: the engine cannot run again, or another worker of its group is gone.
        """
        self.work.start()
        wait = FIRST_WAIT
        try:
            while not self._stop.is_set():
                begun = time.monotonic()
                reason = self._connect()
                if self.work.lost is not None:
                    raise self.work.lost
                if self._stop.is_set():
                    return
                # A connection that held for a while was sound: start over with short waits.
                wait = FIRST_WAIT if time.monotonic() - begun > LONGEST_WAIT else min(2 * wait, LONGEST_WAIT)
                log.warning("%s; dialing %s again in %.1f s", reason, self.target.address, wait)
                self._stop.wait(wait)
        finally:
            self.work.stop()

    def _channel(self) -> grpc.Channel:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        target = self.target
        if target.tls or target.ca:
            roots = target.ca.read_bytes() if target.ca else None
            return grpc.secure_channel(target.address, grpc.ssl_channel_credentials(roots), options)
        return grpc.insecure_channel(target.address, options)

    def _connect(self) -> str:
        """Runs one connection to its end, and returns the reason for it."""
        with self._channel() as channel:
            connection = Connection(channel, self.target, self._hello(), self.work)
            self.connections += 1
            reason = self._watch(connection)
            if self._stop.is_set() and not connection.ended.is_set():
                self.work.drain(DRAIN_TIMEOUT)
                connection.finish()
                connection.ended.wait(2.0)
            connection.cancel()
            connection.ended.wait(2.0)
            if self.engine.lock_step and connection.welcome and not self._stop.is_set():
                # A step may wait for another worker for ever, so nothing here can be waited for.
                raise EngineLost(f"the group of this worker is gone ({reason or _details(connection)}); start this worker again")
            intact = self.work.detach(self._patience(connection))
            if connection.region is not None:
                connection.region.close()
        if connection.welcome is not None:
            session = connection.welcome.session
            self._resume = pb.Resume(session=session, life=self.work.life) if intact and session else None
        if connection.fault is not None:
            raise Refused(f"{self.target.address} sent a Welcome that does not fit this worker: {connection.fault}")
        if connection.error is None or self._stop.is_set():
            return reason
        if connection.error.code() in FINAL:
            raise Refused(f"{self.target.address} refused this worker: {_details(connection)}")
        return _details(connection) if reason == "" else reason

    def _patience(self, connection: Connection) -> float:
        """Returns the seconds for which a step may still run: beyond, the server waits for this worker no more."""
        if self._stop.is_set():
            return DRAIN_TIMEOUT
        return max(HUNG, (connection.welcome.resume_ms if connection.welcome else 0) / 1000)

    def _hello(self) -> pb.Hello:
        return hello(self.engine, self.target.name, self._resume, self.target.shared_memory)

    def _watch(self, connection: Connection) -> str:
        """Sends heartbeats until the connection ends or is silent, or the worker is stopped."""
        greeted = False
        while not (self._stop.is_set() or self.work.lost):
            welcome = connection.welcome
            if welcome is not None and not greeted:
                greeted = True
                log.info(
                    "attached to %s as engine %d: %d blocks of %d tokens, life %d%s%s",
                    *(self.target.address, welcome.engine, welcome.blocks, welcome.block_size, welcome.life),
                    " (resumed)" if welcome.resumed else "",
                    "; blocks travel through shared memory" if connection.region else "",
                )
            beat = (welcome.heartbeat_ms if welcome else 0) / 1000 or 1.0
            silence = (welcome.silence_ms if welcome else 0) / 1000 or WELCOME_TIMEOUT
            if connection.ended.wait(min(beat / 3, 0.1)):
                return "" if connection.error else "the server ended the stream"
            now = time.monotonic()
            if welcome and now - connection.said > beat / 3:
                connection.send(pb.FromWorker(heartbeat=pb.Heartbeat()))
            if now - connection.heard > silence:
                return f"nothing was heard for {silence:.1f} s"
        return "stopped"
