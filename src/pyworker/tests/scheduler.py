"""A server for tests: drives a worker the way a scheduler does, over a real connection in this process."""

from __future__ import annotations

import fcntl
import os
import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field

import grpc

from trunkline_worker.proto import ATTACH
from trunkline_worker.proto import messages as pb

NO_BLOCK = 0xFFFF_FFFF
TIMEOUT = 120


class Peer:
    """One connection of a worker, seen from the server."""

    def __init__(self, metadata):
        self.metadata = metadata
        self.inbox: queue.Queue[pb.FromWorker | None] = queue.Queue()
        self.outbox: queue.Queue[pb.ToWorker | None] = queue.Queue()
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.closed_by_worker = threading.Event()
        self.heartbeats = 0

    def send(self, **message):
        self.outbox.put(pb.ToWorker(**message))

    def receive(self, kind):
        """Returns the next message other than a heartbeat, which must be of this kind."""
        while True:
            message = self.inbox.get(timeout=TIMEOUT)
            assert message is not None, "the worker left"
            found = message.WhichOneof("message")
            if found == "heartbeat":
                self.heartbeats += 1
                continue
            assert found == kind, f"{found} instead of {kind}: {message}"
            return getattr(message, kind)

    def hang_up(self):
        """Ends the call."""
        self.outbox.put(None)


class Server:
    """Accepts workers, one `Peer` after another."""

    def __init__(self, credentials=None):
        self.peers: queue.Queue[Peer] = queue.Queue()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4),
            options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        service, method = ATTACH.strip("/").split("/")
        handler = grpc.stream_stream_rpc_method_handler(
            self._attach,
            request_deserializer=pb.FromWorker.FromString,
            response_serializer=pb.ToWorker.SerializeToString,
        )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        if credentials:
            self.port = self._server.add_secure_port("localhost:0", credentials)
        else:
            self.port = self._server.add_insecure_port("localhost:0")
        self._server.start()
        self.address = f"localhost:{self.port}"

    def _attach(self, requests, context):
        peer = Peer(dict(context.invocation_metadata()))

        def pump() -> None:
            try:
                for message in requests:
                    peer.inbox.put(message)
                peer.closed_by_worker.set()
            except Exception:
                pass
            peer.inbox.put(None)
            peer.outbox.put(None)

        threading.Thread(target=pump, daemon=True).start()
        self.peers.put(peer)
        return self._answers(peer, context)

    def _answers(self, peer: Peer, context) -> Iterator[pb.ToWorker]:
        while (message := peer.outbox.get()) is not None:
            yield message
        if peer.refusal:
            context.abort(*peer.refusal)

    def accept(self) -> Peer:
        return self.peers.get(timeout=TIMEOUT)

    def stop(self):
        self._server.stop(0)


class Memory:
    """Memory that a test shares with the worker."""

    SLOTS = 4

    def __init__(self, block_bytes, sealed=True):
        self.slot_bytes = -(-block_bytes // 4096) * 4096
        self.fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, 4096 + self.SLOTS * self.slot_bytes)
        self.secret = os.urandom(32)
        os.pwrite(self.fd, self.secret, 0)
        if sealed:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

    def offer(self, **fields):
        fields = {"pid": os.getpid(), "fd": self.fd, "mark": self.secret[:16], **fields}
        return pb.SharedMemory(**{"slots": self.SLOTS, "slot_bytes": self.slot_bytes, **fields})

    def read(self, slot, n_bytes):
        return os.pread(self.fd, n_bytes, 4096 + slot * self.slot_bytes)

    def write(self, slot, data):
        os.pwrite(self.fd, data, 4096 + slot * self.slot_bytes)

    def close(self):
        os.close(self.fd)


@dataclass
class Seq:
    """A sequence: its tokens, its block table, and what the worker has of it."""

    request: int
    prompt: list[int]
    n_out: int
    sampling: pb.WorkerSampling
    tokens: list[int] = field(default_factory=list)
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    sent_len: int = 0
    started: bool = False
    shared: int = 0
    in_flight: int = 0
    logprobs: list = field(default_factory=list)

    def __post_init__(self):
        self.tokens = list(self.prompt)

    @property
    def done(self):
        return len(self.tokens) - len(self.prompt) >= self.n_out


def greedy(**fields) -> pb.WorkerSampling:
    return pb.WorkerSampling(**{"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, **fields})


class Scheduler:
    """Runs sequences with a small pool: chunked prefill, shared prefix blocks, preemption, swap, slots used again."""

    def __init__(self, peer: Peer, hello: pb.Hello, *, blocks, block_size, chunk=37, max_running=8, whole_hits=False):
        self.peer, self.hello = peer, hello
        self.block_size, self.chunk, self.max_running = block_size, chunk, max_running
        self.partial = hello.abilities.partial_writes and not whole_hits
        self.life, self.step_id, self.copy_id = 1, 0, 0
        self.free = list(range(blocks))
        self.refs = [0] * blocks
        self.n_blocks = blocks
        self.prefixes: dict[tuple[int, ...], int] = {}
        self.waiting: list[Seq] = []
        self.running: list[Seq] = []
        self.finished: list[Seq] = []
        self.counts = {"hits": 0, "preemptions": 0, "swaps": 0, "steps": 0}
        self.script = None
        self.memory: Memory | None = None

    def welcome(self, resumed=False, life=None, session="s1", **fields):
        self.life = life or self.life
        settings = {"steps_in_flight": 2, "heartbeat_ms": 500, "silence_ms": 60_000, "resume_ms": 60_000, **fields}
        self.peer.send(
            welcome=pb.Welcome(
                session=session,
                life=self.life,
                resumed=resumed,
                block_size=self.block_size,
                blocks=self.n_blocks,
                **settings,
            )
        )

    def add(self, prompt, n_out, sampling=None, request=None):
        seq = Seq(request or len(self.waiting) + 1, list(prompt), n_out, sampling or greedy())
        self.waiting.append(seq)
        return seq

    # Blocks.

    def _take(self):
        if not self.free:
            # Cached blocks that nobody reads are dropped, oldest first.
            for key, block in list(self.prefixes.items()):
                if self.refs[block] == 1:
                    del self.prefixes[key]
                    self._release(block)
                    break
        if not self.free:
            return None
        # Scattered on purpose: the last freed block comes first.
        block = self.free.pop()
        self.refs[block] = 1
        return block

    def _release(self, block):
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)

    def _drop_blocks(self, seq):
        for block in seq.blocks:
            self._release(block)
        seq.blocks, seq.computed, seq.sent_len, seq.started, seq.shared = [], 0, 0, False, 0

    def _store_prefix(self, seq):
        for i in range(seq.computed // self.block_size):
            key = tuple(seq.tokens[: (i + 1) * self.block_size])
            if key not in self.prefixes:
                self.prefixes[key] = seq.blocks[i]
                self.refs[seq.blocks[i]] += 1

    def _find_prefix(self, seq):
        size = self.block_size
        n = len(seq.tokens) // size if self.partial else (len(seq.tokens) - 1) // size
        for i in range(n):
            block = self.prefixes.get(tuple(seq.tokens[: (i + 1) * size]))
            if block is None:
                break
            self.refs[block] += 1
            seq.blocks.append(block)
        hit = len(seq.blocks) * size
        self.counts["hits"] += hit > 0
        seq.computed = min(hit, len(seq.tokens) - 1)
        seq.shared = hit

    # Steps.

    def preempt(self, seq):
        """Takes a sequence's blocks away; it starts over."""
        self.counts["preemptions"] += 1
        self._drop_blocks(seq)
        self.running.remove(seq)
        self.waiting.insert(0, seq)

    def swap(self, seq):
        """Moves the contents of a sequence's own blocks into other blocks through the host."""
        first = seq.shared // self.block_size
        new = [self._take() for _ in seq.blocks[first:]]
        if None in new:
            for block in new:
                if block is not None:
                    self._release(block)
            return
        self.counts["swaps"] += 1
        data = [self.read(block) for block in seq.blocks[first:]]
        for block in seq.blocks[first:]:
            self._release(block)
        # Free blocks are written over, so that stale contents would show.
        for block in self.free[-4:]:
            self.write(block, bytes(self.block_bytes))
        for block, content in zip(new, data, strict=True):
            self.write(block, content)
        seq.blocks[first:] = new
        seq.started, seq.sent_len = False, 0

    @property
    def block_bytes(self):
        return self.hello.model.kv_bytes_per_token * self.block_size

    def read(self, block):
        self.copy_id += 1
        slot = self.copy_id % Memory.SLOTS if self.memory else None
        self.peer.send(read_block=pb.ReadBlock(id=self.copy_id, life=self.life, block=block, slot=slot))
        answer = self.peer.receive("block_read")
        assert answer.id == self.copy_id and not answer.error, answer.error
        if self.memory:
            assert answer.slot_bytes == self.block_bytes and not answer.data
            return self.memory.read(slot, answer.slot_bytes)
        assert len(answer.data) == self.block_bytes
        return answer.data

    def write(self, block, data):
        self.copy_id += 1
        message = pb.WriteBlock(id=self.copy_id, life=self.life, block=block)
        if self.memory:
            message.slot, message.slot_bytes = self.copy_id % Memory.SLOTS, len(data)
            self.memory.write(message.slot, data)
        else:
            message.data = data
        self.peer.send(write_block=message)
        answer = self.peer.receive("block_written")
        assert answer.id == self.copy_id and not answer.error, answer.error

    def _admit(self):
        while self.waiting and len(self.running) < self.max_running:
            seq = self.waiting[0]
            if len(self.free) + sum(self.refs[b] == 1 for b in self.prefixes.values()) < len(seq.tokens) // self.block_size + 2:
                return
            self.waiting.pop(0)
            used = {s.slot for s in self.running}
            seq.slot = next(i for i in range(64) if i not in used)
            self._find_prefix(seq)
            self.running.append(seq)

    def _room(self, seq, end):
        """Gives a sequence blocks up to position `end`; preempts the last running sequences if there are too few."""
        while len(seq.blocks) * self.block_size < end:
            block = self._take()
            if block is not None:
                seq.blocks.append(block)
                continue
            victim = self.running[-1]
            self.preempt(victim)
            if victim is seq:
                return False
        return True

    def plan(self) -> tuple[pb.Step, list[tuple[Seq, int, bool]]]:
        self._admit()
        self.step_id += 1
        rows = []
        for seq in list(self.running):
            if seq not in self.running:
                continue
            known = len(seq.tokens)
            n = min(self.chunk, known - seq.computed)
            if self._room(seq, seq.computed + n):
                rows.append((seq, n, seq.computed + n == known))
        rows = [row for row in rows if row[0] in self.running]
        step = pb.Step(id=self.step_id, life=self.life)
        for i, (seq, n, sample) in enumerate(rows):
            if not seq.started:
                step.starts.add(index=i, request=seq.request, tokens=seq.tokens, n_prompt=len(seq.prompt), sampling=seq.sampling)
                seq.started = True
            step.slots.append(seq.slot)
            step.computed.append(seq.computed)
            step.n_tokens.append(n)
            step.sample.append(int(sample))
            step.n_generated.append(len(seq.tokens) - len(seq.prompt))
            step.table_keep.append(seq.sent_len)
            new = seq.blocks[seq.sent_len :]
            step.n_blocks.append(len(new))
            step.blocks.extend(new)
            if self.partial:
                step.kv_write_from.append(seq.shared)
            seq.sent_len = len(seq.blocks)
        return step, rows

    def finish(self, rows, done: pb.StepDone):
        assert done.id == self.step_id and done.life == self.life
        tokens, logprobs = list(done.tokens), list(done.logprobs)
        for seq, n, sample in rows:
            seq.computed += n
            if sample:
                seq.tokens.append(tokens.pop(0))
                if seq.sampling.HasField("logprobs"):
                    seq.logprobs.append(logprobs.pop(0))
            self._store_prefix(seq)
            if seq.done:
                self.running.remove(seq)
                self.finished.append(seq)
                self._drop_blocks(seq)
        assert not tokens and not logprobs

    def step(self):
        step, rows = self.plan()
        self.peer.send(step=step)
        self.finish(rows, self.peer.receive("step_done"))
        self.counts["steps"] += 1

    def run(self, every=0):
        """Runs all sequences to their end. Every so many steps one running sequence is swapped, and another preempted."""
        while self.waiting or self.running:
            self.step()
            if every and self.counts["steps"] % every == 0 and self.running:
                self.swap(self.running[0])
                if self.counts["steps"] % (2 * every) == 0:
                    self.preempt(self.running[-1])
        return sorted(self.finished, key=lambda seq: seq.request)
