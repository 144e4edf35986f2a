"""Checks of vLLM's version and parts, and layouts of blocks, without vLLM."""

from dataclasses import dataclass

import numpy as np
import pytest

from trunkline_worker.vllm_engine import versions
from trunkline_worker.vllm_engine.layout import LAYOUTS, Shape, find, from_wire, to_wire


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1", "0.33.0+cpu"])
def test_versions_in_the_range_are_taken(version):
    versions.check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0", "dev"])
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(ValueError, match=rf"0\.32 to 0\.33, and {version} is installed"):
        versions.check_version(version)


def test_changed_parts_are_named():
    @dataclass
    class Changed:
        req_id: str
        new: int
        extra: int = 0

    assert versions.compare_fields(Changed, ("req_id", "gone")) == ["Changed has no field gone", "Changed needs a field new"]

    def call(self, step, more, quiet=0): ...

    assert versions.compare_call(call, ("self", "step", "more")) == []
    assert "needs an argument more" in versions.compare_call(call, ("self", "step"))[0]
    assert versions.compare_call(call, ("self", "step"), optional=("more",)) == []
    assert "takes" in versions.compare_call(call, ("self", "other", "more"))[0]
    assert "no parameter args" in versions.compare_call(call, ("self", "step", "more"), ("args",))[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_found_and_turned_into_the_order_of_the_wire(name):
    shape = Shape(heads=2, tokens=8, dim=4)
    draw = np.random.default_rng(1)
    wire = draw.integers(1, 1000, (2, 8, 2, 4)).astype(np.uint32)
    other = wire.copy()
    other[:, 4:] += 1000
    raw = from_wire(wire, shape, name)
    assert find(raw, from_wire(other, shape, name), shape, 4) == name
    assert (to_wire(raw, shape, name) == wire).all()
    # Nothing is found where tokens are not an axis.
    assert find(draw.permutation(raw), draw.permutation(raw), shape, 4) is None
    assert (to_wire(raw, shape, None) == raw).all() and (from_wire(raw, shape, None) == raw).all()
