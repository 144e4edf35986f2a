"""Facts read from a model's folder, as on Hugging Face."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

PIECE = 1 << 16
PIECES = 64


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the contents of `config.json`.

    Raises:
        ValueError: the folder has no readable config.json.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: no model configuration: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{folder}/config.json: not an object")
    return config


def end_tokens(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that end a text, from the generation config or the model's."""
    path = folder / "generation_config.json"
    found = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
    if found is None:
        found = config.get("eos_token_id")
    if found is None:
        return ()
    return tuple(int(token) for token in (found if isinstance(found, list) else [found]))


def fingerprint(folder: Path) -> str:
    """Returns a revision of the weights: a hash of the config and of 64 pieces of each safetensors file, with its size."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for i in range(PIECES):
                file.seek(max(0, size - PIECE) * i // (PIECES - 1))
                digest.update(file.read(PIECE))
    return digest.hexdigest()[:16]
