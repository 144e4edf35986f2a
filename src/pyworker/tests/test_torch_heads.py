"""Layer groups of single KV heads in the torch engine: attention over holes and scores, against the whole matrix of attention."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from test_torch_steps import CONFIG, Uploads, gathered  # noqa: E402

from trunkline_worker.facts import KvFacts, LayerGroup, Settings  # noqa: E402
from trunkline_worker.proto import messages as pb  # noqa: E402
from trunkline_worker.slots import HOLE, SlotTable  # noqa: E402
from trunkline_worker.torch_engine import Torch, attention, kernels, weights  # noqa: E402
from trunkline_worker.torch_engine.build import layer_groups, model_facts  # noqa: E402
from trunkline_worker.torch_engine.head_places import Held  # noqa: E402
from trunkline_worker.torch_engine.model import Llama, Rows  # noqa: E402
from trunkline_worker.torch_engine.runner import TorchEngine  # noqa: E402

SIZE = 8
SETTINGS = Settings(block_size=SIZE, blocks=200, steps_in_flight=2)
SHAPE = replace(CONFIG, n_layers=3, n_heads=6, max_context=160, vocab_size=512)
"""Three layers of two KV heads, each for three query heads."""
OWN = tuple(
    LayerGroup((), heads=(head,), scored=head != 3, weight=w)
    for head, w in zip((3, 0, 5, 1, 2, 4), (0, 2000, 900, 800, 700, 600), strict=True)
)
"""Each head is a group, the heads that drop tokens in the order of their loss."""
PAIRS = (LayerGroup((), heads=(3,)), LayerGroup((), heads=(0, 5), scored=True), LayerGroup((), heads=(1, 2, 4), scored=True))
LAYERS = (LayerGroup((1,)), LayerGroup((0,), scored=True, weight=1500), LayerGroup((2,), scored=True, weight=500))
TOKENS = np.random.default_rng(5).integers(3, 512, 140).tolist()


def model():
    return weights.random(SHAPE, torch.float32, torch.device("cpu"))


class Driver:
    """Runs steps of an engine with blocks in no order, and keeps the logits."""

    def __init__(self, groups, monkeypatch, loaded=None):
        facts = model_facts(SHAPE, "random", "1", "f32", SHAPE.max_context, groups=groups)
        self.engine = TorchEngine(SHAPE, loaded or model(), facts, KvFacts((SIZE,), 200 * SIZE, True), Torch.abilities)
        self.engine.begin(SETTINGS)
        self.table = SlotTable(facts, SETTINGS)
        self.free = np.random.default_rng(7).permutation(200).tolist()
        self.length, self.entries, self.id = {}, {}, 0
        self.logits = None
        llama = self.engine._llama
        plain = llama.logits

        def logits(x, rows):
            self.logits = plain(x, rows)
            return self.logits

        monkeypatch.setattr(llama, "logits", logits)

    def run(self, *step, **columns):
        """Runs a step, and returns the scores."""
        return self.engine.run(self.batch(*step, **columns)).scores

    def batch(self, rows, drops=(), scored=0, **columns):
        """Returns a step with `n` next tokens of each (slot, n), after dropping (slot, group, first entry, entries)."""
        self.id += 1
        slots = [slot for slot, _ in rows]
        step = pb.Step(id=self.id, life=1, slots=slots, sample=[0] * len(rows), **columns)
        for i, (slot, n) in enumerate(rows):
            done = self.length.get(slot, 0)
            if not done:
                start = step.starts.add(index=i, request=slot, tokens=TOKENS, n_prompt=len(TOKENS))
                start.sampling.CopyFrom(pb.WorkerSampling(top_p=1.0, repetition_penalty=1.0))
            step.computed.append(done)
            step.n_tokens.append(n)
            old, new = self.entries.get(slot, 0), -(-(done + n) // SIZE)
            step.table_keep.append(old)
            step.n_blocks.append(new - old)
            step.blocks.extend(self.free.pop() for _ in range((new - old) * self.engine.model.n_groups))
            self.length[slot], self.entries[slot] = done + n, new
        for slot, group, first, n in drops:
            step.drops.add(index=slots.index(slot), group=group, first=first, n=n)
        if scored:
            step.scored_rows.extend([scored] * len(rows))
        batch = self.table.apply(step)
        batch.sample[:] = True
        return batch


class Plain:
    """The model over a whole sequence, with the matrix of attention: rows see nothing that their head has dropped."""

    def __init__(self, dropped=()):
        """`dropped` are (KV head, positions, first row that does not see them)."""
        n = len(TOKENS)
        self.seen = torch.ones(SHAPE.n_layers * 2, n, n, dtype=torch.bool).tril()
        for head, positions, row in dropped:
            self.seen[head, row:, list(positions)] = False
        self.shares = []
        places = torch.arange(n)
        with torch.inference_mode():
            self.logits, _ = Llama(SHAPE, model(), n).forward(Rows(torch.tensor(TOKENS), places, places), self._attend)

    def _attend(self, layer, q, k, v):
        q, k, v = (x.transpose(0, 1) for x in (q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)))
        seen = self.seen[2 * layer : 2 * layer + 2].repeat_interleave(3, 0)
        shares = (q @ k.transpose(1, 2) * SHAPE.head_dim**-0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        self.shares += shares.view(2, 3, *shares.shape[1:])
        return (shares @ v).transpose(0, 1)

    def scores(self, heads, rows, kind, factors=None):
        """Scores of the blocks for heads together, by the definition of the protocol."""
        shares = torch.stack([self.shares[head] for head in heads])[:, :, rows]
        end = max(rows) + 1
        if kind == pb.SCORE_KIND_MAX:
            far = torch.tensor(rows)[:, None] - torch.arange(len(TOKENS)) >= 32
            by_place = (shares * far).amax((0, 1, 2))
        else:
            factors = torch.ones(len(heads)) if factors is None else torch.tensor(factors)
            by_place = torch.einsum("hqrp,h->p", shares, factors) / (factors.sum() * shares.shape[1] * len(rows))
        blocks = by_place[: -(-end // SIZE) * SIZE]
        blocks = torch.nn.functional.pad(blocks, (0, -len(blocks) % SIZE)).view(-1, SIZE)
        return (blocks.amax(1) if kind == pb.SCORE_KIND_MAX else blocks.sum(1)).tolist()


def members(group):
    return list(group.heads) or [2 * layer + head for layer in group.layers for head in (0, 1)]


DROPS = [(1, 1, 3), (2, 2, 6), (2, 9, 1), (1, 5, 2)]
"""Group, first entry and entries, each of which may be dropped at a length of 100."""


def dropped(groups, row):
    return [(head, range(first * SIZE, (first + n) * SIZE), row) for group, first, n in DROPS for head in members(groups[group])]


@pytest.mark.parametrize("groups", [OWN, PAIRS, LAYERS], ids=["own", "pairs", "layers"])
@pytest.mark.parametrize("kind", [pb.SCORE_KIND_MEAN, pb.SCORE_KIND_MAX], ids=["mean", "max"])
@pytest.mark.parametrize("by_group", [True, False], ids=["by group", "together"])
def test_attention_with_holes_and_scores_are_those_of_the_whole_matrix(monkeypatch, groups, kind, by_group):
    driver = Driver(groups, monkeypatch)
    asking = {"score_kind": kind, "scores_by_group": by_group}
    scored = [group for group in groups if group.scored]

    def expected(plain, rows):
        lists = [members(group) for group in scored]
        if by_group:
            return [x for heads in lists for x in plain.scores(heads, rows, kind)]
        weights_of = [(group.weight / 1000) ** 2 for group in scored for _ in members(group)]
        return plain.scores([head for heads in lists for head in heads], rows, kind, weights_of if any(weights_of) else None)

    def check(plain, scores, slots, rows):
        assert torch.allclose(driver.logits, plain.logits[rows[-1]].expand(len(slots), -1), atol=1e-4)
        assert scores == pytest.approx(expected(plain, rows) * len(slots), abs=1e-5)

    whole = Plain()
    # Chunks: at the beginning, and behind a computed part, of two sequences at once.
    check(whole, driver.run([(0, 61), (1, 61)], scored=40, **asking), [0, 1], range(21, 61))
    check(whole, driver.run([(0, 39), (1, 39)], scored=5, **asking), [0, 1], range(95, 100))
    # A decode without holes, then with holes, alone and alongside a sequence without.
    check(whole, driver.run([(0, 1)], scored=1, **asking), [0], [100])
    with_holes = Plain(dropped(groups, 101))
    drops = [(0, *drop) for drop in DROPS]
    check(with_holes, driver.run([(0, 1)], drops, scored=1, **asking), [0], [101])
    scores = driver.run([(1, 1), (0, 1)], scored=1, **asking)
    assert torch.allclose(driver.logits[0], whole.logits[100], atol=1e-4)
    assert torch.allclose(driver.logits[1], with_holes.logits[102], atol=1e-4)
    assert scores == pytest.approx(expected(whole, [100]) + expected(with_holes, [102]), abs=1e-5)
    # A chunk over holes alongside a decode; without scores.
    assert driver.run([(0, 20), (1, 1)]) == []
    assert torch.allclose(driver.logits[0], with_holes.logits[122], atol=1e-4)
    check(with_holes, driver.run([(0, 9)], scored=3, **asking), [0], range(129, 132))


def test_groups_of_heads_change_nothing_while_nothing_is_dropped(monkeypatch):
    """The same rows in the same order, so all logits are equal but for rounding, and texts are equal."""
    found = []
    for groups in ((), layer_groups((1, 2), 3), OWN, PAIRS):
        driver = Driver(groups, monkeypatch)
        rows = []
        for step in ([(0, 50), (1, 1)], [(0, 1), (1, 30)], *([[(0, 1), (1, 1)]] * 20)):
            driver.run(step)
            rows.append(driver.logits.clone())
        found.append(torch.stack(rows))
    for other in found[1:]:
        assert torch.allclose(other, found[0], atol=1e-4)
        assert torch.equal(other.argmax(-1), found[0].argmax(-1))


def test_scores_of_rows_in_parts_are_those_at_once(monkeypatch):
    def scores(kind):
        return Driver(OWN, monkeypatch).run([(0, 57)], scored=50, score_kind=kind, scores_by_group=True)

    for kind in (pb.SCORE_KIND_MEAN, pb.SCORE_KIND_MAX):
        monkeypatch.undo()
        at_once = scores(kind)
        monkeypatch.setattr(attention, "SCORED", 2 * 64 * 6)
        assert scores(kind) == pytest.approx(at_once, abs=1e-6) and max(at_once) > 0


def test_nothing_that_heads_upload_is_waited_for(monkeypatch):
    """A device without memory stands for a GPU."""
    loaded = model()
    for part in (loaded, *loaded.layers):
        vars(part).update({name: t.to("meta") for name, t in vars(part).items() if isinstance(t, torch.Tensor)})
    driver = Driver(OWN, monkeypatch, loaded)
    columns = {"scored": 1, "score_kind": pb.SCORE_KIND_MAX, "scores_by_group": True}
    with Uploads() as uploads, torch.no_grad():
        driver.engine._forward(driver.batch([(0, 100), (1, 1)], **columns))
        driver.engine._forward(driver.batch([(0, 1), (1, 30)], [(0, *drop) for drop in DROPS], **columns))
    assert uploads.n > 20 and uploads.waiting == []


def test_decodes_of_heads_run_in_the_kernel_too(monkeypatch):
    """The kernel reads the blocks that a head holds, one behind the other."""
    without = Driver(OWN, monkeypatch)
    monkeypatch.setattr(kernels, "usable", lambda like: True)
    monkeypatch.setattr(kernels, "paged_decode", gathered)
    within = Driver(OWN, monkeypatch)
    assert within.engine._in_place and not without.engine._in_place
    for driver in (without, within):
        driver.run([(0, 100), (1, 30)])
        driver.run([(0, 1), (1, 1)], [(0, *drop) for drop in DROPS])
    assert torch.allclose(within.logits, without.logits, atol=1e-5)


def test_held_blocks_stand_in_order_before_the_rest():
    tables = np.array([[[4, HOLE, 6, 7], [9, 8, HOLE, HOLE]], [[HOLE, HOLE, 1, 3], [5, 2, HOLE, 0]]], np.int32)
    held = Held.of(tables, np.array([28, 16], np.int32), SIZE)
    assert held.counts.tolist() == [[3, 2], [2, 2]] and held.lengths.tolist() == [[20, 16], [12, 16]]
    assert held.blocks.tolist() == [[[4, 6, 7], [9, 8, 0]], [[1, 3, 0], [5, 2, 0]]]
    assert held.entries.tolist() == [[[0, 2, 3], [0, 1, 0]], [[2, 3, 0], [0, 1, 0]]]


def test_a_block_of_a_head_travels_as_keys_and_values_of_one_layer(monkeypatch):
    driver = Driver(PAIRS, monkeypatch)
    assert driver.engine.model.kv_bytes_per_token == 3 * 3 * 2 * 8 * 4, "each group as large as the largest"
    driver.run([(0, 20)])
    block = int(driver.table.tables[2, 0, 1])
    data = np.frombuffer(driver.engine.read_block(block), "<f4").reshape(3, 2, SIZE, 8)
    keys, values = driver.engine._cache.data[2, :, block, :, 0]
    assert (data[2, 0] == keys.numpy()).all() and (data[2, 1] == values.numpy()).all() and data.any((1, 2, 3)).all()
    # Head 4 is the third of its group: a sequence that reads a copy of its block goes on the same way.
    driver.run([(0, 1)])
    before = driver.logits.clone()
    copy = driver.free.pop()
    driver.engine.write_block(copy, driver.engine.read_block(block))
    driver.engine.write_block(block, bytes(len(driver.engine.read_block(block))))
    driver.table.tables[2, 0, 1] = copy
    driver.length[0] -= 1
    driver.run([(0, 1)])
    assert torch.allclose(driver.logits, before, atol=1e-6)
