"""Random numbers by seed and index, and the tokens that they draw: those of the embedded worker.

`tests/conformance/draws.json` has what the embedded worker draws; `test_golden.py` compares the torch engine with the same file.
"""

import json
from pathlib import Path

import numpy as np

from trunkline_worker import draws

GOLDEN = Path(__file__).parents[3] / "tests" / "conformance" / "draws.json"


def golden():
    """The golden draws, with logits as arrays."""
    found = json.loads(GOLDEN.read_text())
    found["logits"] = {
        name: np.array([-np.inf if x is None else x for x in of], np.float32) for name, of in found["logits"].items()
    }
    return found


def drawn(logits, case, number):
    """The token that a number in 0 .. 1 draws, by the rules of sampling parameters, in the plainest way."""
    logits = logits.copy()
    penalty, seen = np.float32(case["repetition_penalty"]), case["seen"]
    changes = case.get("changes", {"logit_bias": [], "generated": [], "frequency_penalty": 0, "presence_penalty": 0})
    for token, bias in changes["logit_bias"]:
        logits[token] += np.float32(bias)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if penalty != 1:
            changed = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
            # However large the penalty, a token is not left out.
            logits[seen] = np.where(logits[seen] > -np.inf, np.maximum(changed, np.finfo(np.float32).min), changed)
        tokens, counts = np.unique(np.array(changes["generated"], int), return_counts=True)
        logits[tokens] -= counts.astype(np.float32) * np.float32(changes["frequency_penalty"])
        logits[tokens] -= np.float32(changes["presence_penalty"])
        best = int(logits.argmax())
        if case["temperature"] == 0 or case["top_k"] == 1:
            return best
        ratio = (logits - logits[best]) / np.float32(case["temperature"])
        shares = np.where(logits == logits[best], 1, np.exp(ratio.astype(np.float64))).astype(np.float32)
    kept = np.arange(len(logits))
    truncates = 0 < case["top_k"] < len(logits)
    if truncates or case["top_p"] < 1:
        # By share, and the lower id of equals.
        kept = np.argsort(-shares, kind="stable")
    if truncates:
        kept = kept[: case["top_k"]]
    if case["top_p"] < 1:
        sums = shares[kept].astype(np.float64).cumsum()
        kept = kept[: 1 + int(np.searchsorted(sums, sums[-1] * np.float64(np.float32(case["top_p"]))))]
    kept = kept[shares[kept] >= np.float32(case["min_p"])]
    sums = shares[kept].astype(np.float64).cumsum()
    return int(kept[np.searchsorted(sums, sums[-1] * number, side="right")])


def test_numbers_are_those_of_the_embedded_worker():
    # SplitMix64 from seed 0: the first numbers of the published stream.
    assert int(draws._mix(np.array([draws.STRIDE], np.uint64))[0]) == 0xE220A8397B1DCDAF
    for seed, n, number in golden()["numbers"]:
        assert draws.draws(np.array([seed], np.uint64), np.array([n], np.int32)).tolist() == [number]


def test_golden_draws_are_those_of_the_rules():
    found = golden()
    n_draws = 0
    for case in found["cases"]:
        for n, token in case["draws"]:
            number = draws.draws(np.array([case["seed"]], np.uint64), np.array([n], np.int32))[0]
            assert drawn(found["logits"][case["logits"]], case, number) == token, (case, n)
            n_draws += 1
    assert n_draws > 3000
