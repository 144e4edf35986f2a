"""Copies of blocks through memory that the server shares."""

import os
import sys

import pytest
from attached import Attached, greet
from scheduler import Memory

from trunkline_worker.proto import messages as pb
from trunkline_worker.shared_memory import Region, Unshared
from trunkline_worker.toy import ToyEngine, next_token

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files in memory of a fixed size are Linux's")


@pytest.fixture
def memory():
    memory = Memory(5000)
    yield memory
    memory.close()


def expected(seq):
    import numpy as np

    tokens = list(seq.prompt)
    for _ in range(seq.n_out):
        tokens.append(next_token(np.array(tokens, dtype=np.int64)))
    return tokens


def share(scheduler, **fields):
    """Shares memory with the worker, and waits until it is open."""
    scheduler.memory = Memory(scheduler.block_bytes)
    scheduler.welcome(shared_memory=scheduler.memory.offer(), **fields)
    assert scheduler.peer.receive("shared_memory_opened").proof == scheduler.memory.secret[16:]


def test_tokens_survive_swaps_through_shared_memory_on_every_connection():
    with Attached() as worker:
        scheduler = greet(worker)
        assert scheduler.hello.abilities.shared_memory
        share(scheduler)
        seqs = [scheduler.add([7 + i, *range(20, 60 + 3 * i)], 24) for i in range(6)]
        scheduler.run(every=3)
        assert scheduler.counts["swaps"] > 3
        assert [seq.tokens for seq in seqs] == [expected(seq) for seq in seqs]
        first, life = scheduler.memory, scheduler.life
        scheduler.peer.hang_up()
        again = greet(worker)
        first.close()
        share(again, resumed=True, life=life)
        seq = again.add(range(20, 90), 24)
        again.run(every=3)
        assert seq.tokens == expected(seq)
        again.memory.close()


def test_memory_of_another_machine_is_left_alone(memory):
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome(shared_memory=memory.offer(pid=2**32 - 1))
        seq = scheduler.add(range(20, 60), 12)
        scheduler.run(every=3)
        assert seq.tokens == expected(seq) and scheduler.counts["swaps"] > 0


def test_a_worker_that_is_not_to_share_memory_says_so_and_opens_none(memory):
    with Attached(shared_memory=False) as worker:
        scheduler = greet(worker)
        assert not scheduler.hello.abilities.shared_memory
        scheduler.welcome(shared_memory=memory.offer())
        seq = scheduler.add(range(20, 60), 12)
        scheduler.run(every=3)
        assert seq.tokens == expected(seq)


def test_a_worker_that_copies_no_blocks_shares_no_memory():
    from dataclasses import replace

    engine = ToyEngine()
    engine.kv = replace(engine.kv, block_io=False)
    with Attached(engine) as worker:
        assert not greet(worker).hello.abilities.shared_memory


def test_slots_and_lengths_that_are_not_there_are_answered_with_an_error_or_a_message():
    with Attached() as worker:
        scheduler = greet(worker)
        share(scheduler)
        n = scheduler.block_bytes
        scheduler.peer.send(read_block=pb.ReadBlock(id=1, life=1, block=0, slot=4))
        answer = scheduler.peer.receive("block_read")
        assert answer.slot_bytes == 0 and len(answer.data) == n, "the bytes travel in the message"
        for slot, slot_bytes in [(4, n), (2**32 - 1, n), (0, n - 1), (0, n + 1), (0, 2**64 - 1)]:
            scheduler.peer.send(write_block=pb.WriteBlock(id=2, life=1, block=0, slot=slot, slot_bytes=slot_bytes))
            assert scheduler.peer.receive("block_written").error, (slot, slot_bytes)
        scheduler.write(3, bytes(n))
        assert scheduler.read(3) == bytes(n)
        scheduler.memory.close()


def test_a_slot_without_memory_is_an_error():
    with Attached() as worker:
        scheduler = greet(worker)
        scheduler.welcome()
        scheduler.peer.send(write_block=pb.WriteBlock(id=1, life=1, block=0, slot=0, slot_bytes=scheduler.block_bytes))
        assert "without shared memory" in scheduler.peer.receive("block_written").error


def test_other_files_are_left_alone(memory):
    region = Region(memory.offer())
    region.write(2, b"abc")
    assert memory.read(2, 3) == b"abc" and region.read(2, 3) == b"abc"
    for length in (0, 1 << 20):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(region._fd, length)
    region.close()
    with pytest.raises(OSError):
        region.read(0, 1)
    unsealed = Memory(5000, sealed=False)
    other = Memory(5000)
    reader, writer = os.pipe()
    for fields in [
        {"fd": unsealed.fd, "mark": unsealed.secret[:16]},
        {"fd": other.fd},
        {"fd": reader},
        {"fd": 2**32 - 1},
        {"pid": 2**32 - 1},
        {"mark": b""},
        {"slots": 3},
        {"slots": 0},
        {"slots": 2**32 - 1},
        {"slot_bytes": 100},
        {"slot_bytes": 2**64 - 1},
    ]:
        with pytest.raises(Unshared):
            Region(memory.offer(**fields))
    for fd in (reader, writer):
        os.close(fd)
    unsealed.close()
    other.close()
