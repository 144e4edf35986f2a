"""How to install what an engine needs. The package is on no index: pip takes it from its folder."""

from __future__ import annotations

from pathlib import Path

FOLDER = "src/pyworker"
"""The package's folder in a clone of Trunkline."""


def command(extra: str, source: Path = Path(__file__).parents[2]) -> str:
    """Returns the command that installs this package with an extra: from the folder it runs from, or from a clone."""
    if (source / "pyproject.toml").is_file():
        return f"pip install '{source}[{extra}]'"
    return f"pip install './{FOLDER}[{extra}]' in a clone of Trunkline"
