"""Follows the cache events of a server as a router does: snapshot, then live batches, and once a replay of all.

Run by hand, beside `trunkline serve` with the three endpoints and some requests:

    pip install pyzmq msgspec
    python subscriber.py tcp://127.0.0.1:5557 tcp://127.0.0.1:5558 tcp://127.0.0.1:5559 SECONDS

Prints what each batch changed, and at the end the blocks of each medium by both ways, which must be equal.
"""

import sys
import time
from collections import Counter

import msgspec
import zmq


class Router:
    """An index of hashes by medium and layer group; strict, as a router that computes hashes of its own must be."""

    def __init__(self):
        self.blocks = Counter()
        self.known = set()

    def apply(self, events):
        for event in events:
            kind = event["type"]
            if kind == "AllBlocksCleared":
                self.blocks = Counter({key: n for key, n in self.blocks.items() if key[0] != "GPU"})
                continue
            place = event["medium"], event.get("group_idx")
            if kind == "BlockStored":
                tokens, size = event["token_ids"], event["block_size"]
                if tokens:
                    assert len(tokens) == size * len(event["block_hashes"]), event
                    assert event["parent_block_hash"] in self.known | {None}, "behind an unknown block"
                    self.known.update(event["block_hashes"])
                self.blocks.update((*place, block) for block in event["block_hashes"])
            elif kind == "BlockRemoved":
                for block in event["block_hashes"]:
                    assert self.blocks[(*place, block)] == 1, "removed and not there"
                    del self.blocks[(*place, block)]
        assert all(n == 1 for n in self.blocks.values()), "stored twice"

    def counts(self):
        return dict(Counter(medium for medium, _, _ in self.blocks))


def main(live_at, replay_at, snapshot_at, seconds):
    context, decode = zmq.Context(), msgspec.msgpack.decode
    live = context.socket(zmq.SUB)
    live.connect(live_at)
    live.setsockopt(zmq.SUBSCRIBE, b"")
    topic, seq, payload = live.recv_multipart()
    print("topic", topic, "first", int.from_bytes(seq, "big"), "publisher", decode(payload)[3].hex())
    ask = context.socket(zmq.REQ)
    ask.connect(snapshot_at)
    ask.send(b"snapshot")
    cut, publisher, *chunks = ask.recv_multipart()
    cut = int.from_bytes(cut, "big", signed=True)
    late = Router()
    for chunk in chunks:
        late.apply(decode(chunk)[1])
    print("snapshot at", cut, "publisher", publisher.hex(), late.counts())
    expected = int.from_bytes(seq, "big") + 1
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        if not live.poll(100):
            continue
        _, seq, payload = live.recv_multipart()
        seq, batch = int.from_bytes(seq, "big"), decode(payload)
        assert seq == expected, (seq, expected)
        expected += 1
        if seq > cut:
            late.apply(batch[1])
            if batch[1]:
                print(seq, [(event["type"], len(event.get("block_hashes", []))) for event in batch[1]], late.counts())
    replay = context.socket(zmq.DEALER)
    replay.connect(replay_at)
    replay.send_multipart([b"", (0).to_bytes(8, "big")])
    whole, next_seq = Router(), 0
    while True:
        _, _, seq, payload = replay.recv_multipart()
        if not payload:
            break
        assert int.from_bytes(seq, "big") == next_seq, "history is lost: begin with a snapshot"
        next_seq += 1
        if next_seq <= expected:
            whole.apply(decode(payload)[1])
    print("replayed", next_seq, whole.counts(), "equal", whole.blocks == late.blocks)
    sys.exit(0 if whole.blocks == late.blocks else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
