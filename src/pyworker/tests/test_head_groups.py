"""Heads that keep every token, and layer groups, from a file of `trunkline h2o calibrate`: those of the embedded worker."""

import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from scheduler import Server

from trunkline_worker import xxh3
from trunkline_worker.facts import LayerGroup
from trunkline_worker.head_groups import Losses, Shape, divided, equal_groups, full_heads, groups, parse_heads, read_losses
from trunkline_worker.model_folder import revision
from trunkline_worker.proto import messages as pb

PROGRAM = os.environ.get("TRUNKLINE_PROGRAM")
SMALL_WORLD = Path(__file__).parents[3] / "models/small-world"
SHAPE = Shape(8, 2)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        # Of the reference implementation, over the bytes i * i * 7 % 251.
        (241, "43d840906584c66b8f8191a60d60506d"),
        (1024, "76049ae2f0c82c073dc43374a77e8674"),
        (1025, "609d7c6215f1a467f0e59873eff2ac8a"),
        (5000, "8b07b31394bbdfe29714b1035b55892e"),
    ],
)
def test_the_hash_is_xxh3_however_the_bytes_arrive(n, expected):
    data = bytes(i * i * 7 % 251 for i in range(n))
    for piece in (1, 100, 1024, n):
        digest = xxh3.Numpy()
        for at in range(0, n, piece):
            digest.update(data[at : at + piece])
        assert digest.hexdigest() == expected
    with pytest.raises(ValueError, match="a hash of 240 bytes; it takes 241 at least"):
        short = xxh3.Numpy()
        short.update(data[:240])
        short.hexdigest()


def test_the_file_of_the_built_in_model_is_of_its_weights():
    assert f'revision = "{revision(SMALL_WORLD)}"' in (SMALL_WORLD / "h2o.toml").read_text()
    losses = read_losses(SMALL_WORLD)
    assert losses is not None and losses.keep == "0.0,1.0,3.0" and len(losses.rest) == len(losses.repeated) == 16
    found = divided(SHAPE, None, losses, 2.5, own=True)
    assert [g.heads for g in found[:3]] == [(0,), (2,), (6,)] and not any(g.scored for g in found[:3])
    weights = [group.weight for group in found[3:]]
    assert len(found) == 16 and weights == sorted(weights, reverse=True) and sum(weights) == pytest.approx(13_000, abs=13)


@pytest.mark.skipif(PROGRAM is None, reason="TRUNKLINE_PROGRAM does not name the program `trunkline`")
@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ([], {}),
        (["--h2o-total", "1.7"], {"total": 1.7}),
        (["--h2o-total", "1.3", "--h2o-choice", "shared"], {"total": 1.3, "own": False}),
        (["--h2o-layers", "1,5.1"], {"layers": "1,5.1"}),
        (["--h2o-choice", "shared"], {"own": False}),
        (["--h2o-choice", "shared", "--h2o-layers", "1,6"], {"own": False, "layers": "1,6"}),
    ],
)
def test_groups_and_weights_are_those_of_the_embedded_worker(tmp_path, flags, arguments):
    folder = tmp_path / "model"
    shutil.copytree(SMALL_WORLD, folder)
    if "total" in arguments:
        # The losses decide, instead of the line that names heads.
        (folder / "h2o.toml").write_text(re.sub("keep = .*", "", (SMALL_WORLD / "h2o.toml").read_text()))
    server = Server()
    command = [PROGRAM, "worker", "--model", str(folder), "--connect", server.address, "--h2o", "on", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        announced = server.accept().receive("hello").model
    finally:
        process.kill()
        server.stop()
    found = divided(SHAPE, **{"layers": None, "losses": read_losses(folder), "total": 2.5, "own": True, **arguments})
    assert announced.revision == revision(SMALL_WORLD)
    assert list(announced.groups) == [
        pb.WorkerLayerGroup(layers=g.layers, heads=g.heads, scored=g.scored, weight=g.weight) for g in found
    ]


def file(folder, **changes):
    """Writes a file for weights in a folder."""
    (folder / "model.safetensors").write_bytes(bytes(300))
    fields = {"model": '"tiny"', "revision": f'"{revision(folder)}"', "tokens": 1024, "texts": 4, "kv_heads": 2}
    fields |= {"rest": [0.1, 0.3, 0.4, 0.2], "repeated": [0.25] * 4, **changes}
    (folder / "h2o.toml").write_text("".join(f"{name} = {value}\n" for name, value in fields.items() if value is not None))


def test_a_file_that_does_not_fit_is_refused_or_left(tmp_path, caplog):
    assert read_losses(tmp_path) is None
    file(tmp_path)
    assert read_losses(tmp_path) == Losses((0.1, 0.3, 0.4, 0.2), (0.25,) * 4)
    for changes, fault in [
        ({"repeated": [0.5]}, "it has 4 and 1 losses for layers of 2 KV heads"),
        ({"rest": [0.5, 0.5, 0.5, -1.0]}, "a loss is not a share of all"),
        ({"kv_heads": 3}, "losses for layers of 3 KV heads"),
        ({"keep": '"2"'}, "keep names layer 2; the model has the layers 0 to 1"),
        ({"rest": None}, "'rest'"),
        ({"kv_heads": "?"}, "Invalid value"),
    ]:
        file(tmp_path, **changes)
        with pytest.raises(ValueError, match=f"damaged .*{re.escape(fault)}.*run trunkline h2o calibrate again"):
            read_losses(tmp_path)
    with caplog.at_level(logging.WARNING):
        file(tmp_path, revision='"00ff"')
        assert read_losses(tmp_path) is None
    assert "is of other weights; run trunkline h2o calibrate again" in caplog.text
    # The file is not part of the weights, and other tensors are other weights.
    file(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(301))
    assert read_losses(tmp_path) is None


def test_layers_and_heads_are_read():
    assert parse_heads("x", "1.1, 2,1.0", Shape(3, 2)) == {2, 3, 4, 5}
    for text, fault in [
        ("3", "x names layer 3; the model has the layers 0 to 2"),
        ("0.2", "x names KV head 0.2; a layer has the KV heads 0 to 1"),
        *((text, f"x names '{text}'; give numbers, as in 7,14 or 7.2,14.0") for text in ("", "a", "1.", "1.0.0", "-1", "²")),
    ]:
        with pytest.raises(ValueError, match=re.escape(fault)):
            parse_heads("x", text, Shape(3, 2))


def test_heads_that_lose_most_keep_every_token():
    n = 16
    growing = tuple(head * head / n**3 for head in range(n))
    losses = Losses(growing, growing)
    assert full_heads(losses, 2.5) < full_heads(losses, 1.5) and max(full_heads(losses, 16.0)) == n - 1
    assert len(full_heads(losses, 16.0)) == 1 and full_heads(losses, 1.1) < set(range(1, n))
    # Without losses one head is taken, the lowest of equal ones.
    assert full_heads(Losses((0.0,) * 4, (0.0,) * 4), 2.5) == {0}
    assert full_heads(Losses((0.2, 0.4, 0.4), (0.2, 0.4, 0.4)), 16.0) == {1}


def test_groups_have_single_heads_or_whole_layers_or_equal_numbers_of_heads():
    losses = [9.0, 0.0, 1.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0]
    own = groups(Shape(4, 3), {1, 9, 10, 11}, losses, own=True)
    assert [g.heads for g in own] == [(1,), (9,), (10,), (11,), (0,), (4,), (2,), (3,), (5,), (6,), (7,), (8,)]
    # Roots of 9, 9 and 1, by the mean of eight heads.
    assert [g.weight for g in own[4:]] == [3429, 3429, 1143, 0, 0, 0, 0, 0]
    whole = groups(Shape(4, 3), {3, 4, 5}, [], own=False)
    assert [(g.layers, g.scored) for g in whole] == [((1,), False), ((0,), True), ((2,), True), ((3,), True)]
    parted = groups(Shape(4, 3), {1, 6, 7, 8}, [], own=False)
    assert [g.heads for g in parted] == [(1, 6, 7, 8), (0, 2, 3, 4), (5, 9, 10, 11)]
    assert groups(Shape(1, 2), {0, 1}, [], own=True) == (LayerGroup((0,)),), "nothing to choose"
    assert not any(g.weight or g.layers for g in own[:4]) and not any(g.weight for g in whole)


def test_groups_are_equal_and_not_too_many():
    sizes = lambda kinds, most: [len(part) for _, part in equal_groups(kinds, most)]  # noqa: E731
    kinds = [(False, list(range(8))), (True, list(range(22)))]
    assert sizes(kinds, 0) == [8, 8, 7, 7] and sizes(kinds, 8) == [4, 4, 4, 4, 4, 4, 3, 3]
    assert len(sizes([(False, list(range(3))), (True, list(range(700)))], 0)) <= 256


def test_what_is_not_known_or_does_not_fit_is_refused():
    losses = Losses((0.5, 0.5), (0.5, 0.5))
    for arguments, fault in [
        ((SHAPE, None, None, 2.5), "it is not known which KV heads of the model read far back"),
        ((SHAPE, None, losses, 2.5), "there are losses of 2 KV heads, and the model has 16"),
        ((SHAPE, "1", None, 1.0), "--h2o-total is 1; it must be between 1.1 and 16"),
        ((SHAPE, "8", None, 2.5), "--h2o-layers names layer 8"),
    ]:
        with pytest.raises(ValueError, match=re.escape(fault)):
            divided(*arguments, own=True)
    many = divided(Shape(129, 2), "1.0", None, 2.5, own=True)
    assert len(many[0].heads) == 1 < len(many[1].heads), "too many heads to choose each for itself"
