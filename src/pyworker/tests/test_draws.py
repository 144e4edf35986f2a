"""Random numbers by seed and index."""

import numpy as np

from trunkline_worker import draws


def test_draws_are_those_of_the_embedded_worker():
    # SplitMix64 from seed 0: the first numbers of the published stream.
    assert int(draws._mix(np.array([draws.STRIDE], np.uint64))[0]) == 0xE220A8397B1DCDAF
    first = draws.draws(np.array([5, 5, 6], np.uint64), np.array([0, 1, 0], np.int32))
    assert len(set(first.tolist())) == 3 and ((first >= 0) & (first < 1)).all()
