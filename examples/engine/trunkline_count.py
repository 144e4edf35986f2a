"""An engine in a package of its own: `trunkline-worker --engine count --by 3` counts on from the last token."""

from trunkline_worker import Abilities, Engine, KvFacts, ModelFacts, Result


class Count(Engine):
    program = "count 1.0"
    flags = ("--kv-tokens", "--model-name")  # of those that the worker knows; it refuses the others
    abilities = Abilities(partial_writes=True, in_step_hits=True)

    @classmethod
    def add_flags(cls, group):
        group.add_argument("--by", type=int, default=1, metavar="N", help="what is added to the last token (default: 1)")

    def __init__(self, args):
        self.by = args.by
        shape = {"n_layers": 1, "hidden_size": 1, "n_heads": 1, "n_kv_heads": 1, "head_dim": 1}
        shape |= {"vocab_size": 1000, "max_context": 4096, "kv_dtype": "f32", "kv_bytes_per_token": 8}
        self.model = ModelFacts(name=args.model_name or "count", revision="1", eos_token_ids=(), **shape)
        self.kv = KvFacts(block_sizes=(16,), tokens=args.kv_tokens or 16_384)

    def begin(self, settings):
        """A model would make room for `settings.blocks` blocks of KV here."""

    def reset(self):
        """A model would forget its sequences here."""

    def run(self, batch):
        last = [batch.tokens_of(i)[-1] for i in range(len(batch)) if batch.sample[i]]
        return Result([int(token + self.by) % self.model.vocab_size for token in last])
