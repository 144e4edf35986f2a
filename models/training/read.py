"""Prints stories and questions of seeds that training does not use: for the benchmark of eviction, and for `h2o calibrate`.

python read.py > ../../src/bench/texts/stories.txt
python read.py --seed calibrate --bytes 64000 > ../../src/cli/texts/stories.txt
"""

import argparse
from random import Random

import documents


def main() -> None:
    """Prints stories until there is enough."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default="read")
    parser.add_argument("--bytes", type=int, default=200_000)
    args = parser.parse_args()
    rng, written = Random(args.seed), 0
    while written < args.bytes:
        text = "".join(span.text for span in documents.about_story(rng))
        written += len(text) + 1
        print(text.strip("\n"))


if __name__ == "__main__":
    main()
