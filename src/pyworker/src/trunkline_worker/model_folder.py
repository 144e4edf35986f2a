"""Facts read from a model's folder, as on Hugging Face."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from . import xxh3

PIECE = 1 << 16
PIECES = 64
TENSOR_PIECE = 1 << 12
"""Bytes that count of a tensor."""
REVISION_PIECE = 1 << 18
"""Bytes read at once for the revision."""
MOST_HEADER = 100_000_000
"""Bytes of a header, at most: the limit of the safetensors library."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Ends of the names of files with weights."""
REVISION_FILES = (".json", ".safetensors", ".gguf")
"""Ends of the names of files that count for the revision."""


def is_gguf(path: Path) -> bool:
    """Says whether a path is a GGUF file, by its name or its first bytes."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def checked(args: argparse.Namespace) -> Path:
    """Returns the folder of --model.

    Raises:
        ValueError: there is none, or it is not a folder as on Hugging Face.
    """
    model: Path | None = args.model
    if model is None:
        raise ValueError(f"--engine {args.engine} needs --model DIR")
    if model.is_file():
        kind = "a GGUF file, which the embedded worker runs (trunkline worker --model FILE)" if is_gguf(model) else "a file"
        raise ValueError(f"--model {model}: this is {kind}; give the folder of the model, as on Hugging Face")
    if not (model / "config.json").exists() and any(map(is_gguf, sorted(model.glob("*")))):
        raise ValueError(
            f"--model {model}: the folder has a GGUF file and no config.json; the embedded worker runs the file "
            "(trunkline worker --model FILE), and a folder as on Hugging Face is wanted here"
        )
    return model


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
    """Returns the tokens that end a text, ascending: those of the model's config, of the generation config, and of the tokenizer.

    These are the tokens of the embedded worker: tests/conformance/facts.json has folders with the tokens of each.

    Raises:
        ValueError: a file cannot be read, or eos_token_id names no tokens.
    """
    path = folder / "generation_config.json"
    found = set(_tokens(folder / "config.json", config.get("eos_token_id")))
    found.update(_tokens(path, _optional(path).get("eos_token_id")))
    end = _named_end(folder)
    if end is not None and end < config.get("vocab_size", end + 1):
        found.add(end)
    return tuple(sorted(found))


def _named_end(folder: Path) -> int | None:
    """Returns the token that the tokenizer's files name as the end, if they do, and if it has an id."""
    settings, tokenizer = _optional(folder / "tokenizer_config.json"), _optional(folder / "tokenizer.json")
    name = settings.get("eos_token")
    listed = settings.get("added_tokens_decoder")
    if listed is None:
        name = _optional(folder / "special_tokens_map.json").get("eos_token", name)
    name = name.get("content") if isinstance(name, dict) else name
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids = {token["content"]: int(id) for id, token in (listed or {}).items()}
    ids.update(_optional(folder / "added_tokens.json") if listed is None else {})
    ids.update(vocabulary if isinstance(vocabulary, dict) else {})
    ids.update((token["content"], token["id"]) for token in tokenizer.get("added_tokens", []))
    return ids.get(name)


def _optional(path: Path) -> dict[str, Any]:
    """Returns the contents of a file that may be missing."""
    if not path.exists():
        return {}
    try:
        contents = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return contents if isinstance(contents, dict) else {}


def _tokens(path: Path, found: Any) -> list[int]:
    tokens = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(token, int) for token in tokens):
        raise ValueError(f"{path}: eos_token_id is {found}; it must be a token or a list of tokens")
    return tokens


def fingerprint(folder: Path) -> str:
    """Returns a revision of the weights: a hash of the config, and of pieces of all files with weights.

    Of each tensor in safetensors a piece counts, so that a change of few layers shows; of other files 64 pieces.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for at, n in _tensor_pieces(file, digest) or _even_pieces(size):
                file.seek(at)
                digest.update(file.read(n))
    return digest.hexdigest()[:16]


def revision(folder: Path) -> str:
    """Returns the revision of the embedded worker, which `trunkline h2o calibrate` writes to a file: a hash of whole files."""
    digest = xxh3.new()
    for path in sorted(path for path in folder.iterdir() if path.suffix in REVISION_FILES and path.is_file()):
        name = path.name.encode()
        digest.update(len(name).to_bytes(8, "little") + name + path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while piece := file.read(REVISION_PIECE):
                digest.update(piece)
    return digest.hexdigest()


def _even_pieces(size: int) -> list[tuple[int, int]]:
    return [(max(0, size - PIECE) * i // (PIECES - 1), PIECE) for i in range(PIECES)]


def _tensor_pieces(file: BinaryIO, digest: hashlib._Hash) -> list[tuple[int, int]]:
    """Returns place and length of a piece in the middle of each tensor, and hashes the header. None in other files."""
    if not file.name.endswith(".safetensors"):
        return []
    n = int.from_bytes(file.read(8), "little")
    try:
        header = file.read(n) if n <= MOST_HEADER else b""
        tensors = [entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__"]
        digest.update(header)
        return [
            (8 + n + first + max(0, end - first - TENSOR_PIECE) // 2, min(TENSOR_PIECE, end - first)) for first, end in tensors
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        # Whatever loads the model says what is wrong with the file.
        return []
