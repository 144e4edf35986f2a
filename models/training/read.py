"""Prints stories and questions of a seed that training does not use, for the benchmark of eviction.

python read.py > ../../src/cli/src/bench/h2o/stories.txt
"""

from random import Random

import documents

BYTES = 48_000


def main() -> None:
    """Prints stories until there is enough."""
    rng, written = Random("read"), 0
    while written < BYTES:
        text = "".join(span.text for span in documents.about_story(rng))
        written += len(text) + 1
        print(text.strip("\n"))


if __name__ == "__main__":
    main()
