"""A whole worker for Trunkline. Its model is a hash; replace Model by yours."""
import queue, sys, threading, time
import grpc
from trunkline.v1 import worker_pb2 as pb, worker_pb2_grpc

VOCAB, CONTEXT, BLOCKS, BLOCK_SIZE = 1000, 4096, 256, 16


class Model:
    def __init__(self):
        self.kv = [0] * (BLOCKS * BLOCK_SIZE)

    def run(self, tokens, start, table):
        """Runs tokens at positions start.., with KV in the blocks of table; returns the most likely next token."""
        state = 0
        for position in range(start + len(tokens)):
            at = table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            if position >= start:
                self.kv[at] = hash((state, position, tokens[position - start]))
            state = hash((state, self.kv[at]))
        return state % VOCAB


def check(good, reason):
    if not good:
        raise ValueError(reason)


class Worker:
    def __init__(self):
        self.model, self.slots, self.session, self.life = Model(), {}, "", None

    def run(self, step):
        """Applies a step to the slots and runs it; returns the sampled tokens."""
        n, sampled, at = len(step.slots), [], 0

        def column(name):
            values = getattr(step, name)
            check(len(values) in (0, n), f"column {name} has {len(values)} entries for {n} sequences")
            return values or [0] * n

        computed, n_tokens, sample = column("computed"), column("n_tokens"), column("sample")
        table_keep, n_blocks = column("table_keep"), column("n_blocks")
        starts = {start.index: start for start in step.starts}
        for i, slot in enumerate(step.slots):
            if start := starts.get(i):
                check(slot < 65536 and start.HasField("sampling"), "a start with a wrong slot or without sampling")
                check(start.tokens and max(start.tokens) < VOCAB, "a start without tokens or beyond the vocabulary")
                self.slots[slot] = (list(start.tokens), [])
            check(slot in self.slots, f"no sequence has begun in slot {slot}")
            tokens, table = self.slots[slot]
            new, at = step.blocks[at:at + n_blocks[i]], at + n_blocks[i]
            check(len(new) == n_blocks[i] and all(block < BLOCKS for block in new), "blocks missing or unknown")
            check(table_keep[i] <= len(table), "table_keep is beyond the table")
            table[table_keep[i]:] = new
            end = computed[i] + n_tokens[i]
            check(computed[i] < end <= min(len(tokens), len(table) * BLOCK_SIZE), "tokens or blocks are not known")
            token = self.model.run(tokens[computed[i]:end], computed[i], table)
            if sample[i]:
                tokens.append(token)
                sampled.append(token)
        return sampled

    def hello(self):
        hello = pb.Hello(protocol=1, name="example", program="worker.py")
        hello.model.MergeFrom(pb.WorkerModel(name="hash", vocab_size=VOCAB, max_context=CONTEXT, n_layers=1,
                                             hidden_size=1, n_heads=1, n_kv_heads=1, head_dim=1, kv_dtype="f32",
                                             kv_bytes_per_token=8))
        hello.kv.MergeFrom(pb.WorkerKv(block_sizes=[BLOCK_SIZE], tokens=BLOCKS * BLOCK_SIZE))
        hello.abilities.MergeFrom(pb.WorkerAbilities(max_sequences=64, max_tokens=2048, steps_in_flight=2))
        if self.life is not None:
            hello.resume.MergeFrom(pb.Resume(session=self.session, life=self.life))
        return hello

    def answer(self, message):
        """Answers a message of the server; None if there is nothing to say."""
        kind = message.WhichOneof("message")
        if kind == "reset":
            self.slots, self.life = {}, message.reset.life
            return pb.FromWorker(reset_done=pb.ResetDone(life=self.life))
        if kind != "step" or message.step.life != self.life:
            return None
        step, begin = message.step, time.monotonic()
        try:
            tokens = self.run(step)
        except Exception as error:
            self.life = None  # drops all steps until the reset
            return pb.FromWorker(step_failed=pb.StepFailed(id=step.id, life=step.life, reason=str(error) or "failed"))
        busy_us = int((time.monotonic() - begin) * 1e6)
        return pb.FromWorker(step_done=pb.StepDone(id=step.id, life=step.life, tokens=tokens, busy_us=busy_us))

    def attach(self, address):
        """Serves one connection, until it breaks."""
        outgoing, ended = queue.SimpleQueue(), threading.Event()
        outgoing.put(pb.FromWorker(hello=self.hello()))

        def beat(seconds):
            while not ended.wait(seconds):
                outgoing.put(pb.FromWorker(heartbeat=pb.Heartbeat()))

        with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            try:
                messages = worker_pb2_grpc.WorkersStub(channel).Attach(iter(outgoing.get, None))
                welcome = next(messages).welcome
                self.slots, self.session, self.life = {}, welcome.session, welcome.life
                threading.Thread(target=beat, args=(welcome.heartbeat_ms / 2000,), daemon=True).start()
                for message in messages:
                    if answer := self.answer(message):
                        outgoing.put(answer)
            finally:
                ended.set()
                outgoing.put(None)


worker = Worker()
while True:
    try:
        worker.attach(sys.argv[1])
    except grpc.RpcError as error:
        print(error.code().name, error.details(), file=sys.stderr)
        if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
            sys.exit(1)
    time.sleep(0.2)
