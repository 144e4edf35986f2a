"""The bytes that each token of a model stands for, from the files of its tokenizer, as the server reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPECIAL = b"\xff"
"""In front of the names of special tokens: no text has it, so none is taken for such a token."""
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spelling = Callable[[str], bytes]


def words(folder: Path, n: int) -> list[bytes] | None:
    """Returns the bytes of the tokens below `n`; empty ones for ids without a token.

    None if the folder has no tokenizer.json, or if the bytes of its tokens depend on the tokens around them.
    """
    tokenizer = _read(folder / "tokenizer.json")
    spelling = _spelling(tokenizer.get("decoder"))
    if spelling is None:
        return None
    model = tokenizer.get("model", {}).get("vocab", {})
    names = dict(model) if isinstance(model, dict) else {name: id for id, (name, _) in enumerate(model)}
    found = [b""] * n
    for name, id in names.items():
        if id < n:
            found[id] = spelling(name)
    for id, name, is_special in _added(folder, tokenizer):
        # Some vocabularies of SentencePiece have runs of spaces as added tokens, spelt as in other words.
        if id < n and (is_special or spelling is not _fallback or names.get(name) != id):
            found[id] = (SPECIAL if is_special else b"") + name.encode()
    return found


def _added(folder: Path, tokenizer: dict[str, Any]) -> list[tuple[int, str, bool]]:
    """Returns id, name and kind of the added tokens: those of tokenizer_config.json win, and a token with a role is special."""
    settings = _read(folder / "tokenizer_config.json")
    roles = [settings.get(role) for role in ROLES]
    with_role = {role["content"] if isinstance(role, dict) else role for role in roles if role}
    tokens = {token["id"]: token for token in tokenizer.get("added_tokens", [])}
    tokens.update((int(id), token) for id, token in settings.get("added_tokens_decoder", {}).items())
    return [
        (id, token["content"], bool(token.get("special")) or token["content"] in with_role)
        for id, token in sorted(tokens.items())
    ]


def _spelling(decoder: dict[str, Any] | None) -> Spelling | None:
    """Returns how names of tokens become bytes: byte-level BPE, or SentencePiece with byte fallback."""
    steps = decoder.get("decoders", [decoder]) if decoder else []
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    wanted = ["ByteFallback", "Fuse"]
    replaces = [step for step in steps if step["type"] == "Replace"]
    others = [kind for kind in kinds if kind not in ("Replace", "Strip")]
    is_usual = all(step["pattern"] == {"String": "▁"} and step["content"] == " " for step in replaces)
    if others == wanted and is_usual and kinds[: len(replaces)] == ["Replace"] * len(replaces):
        return _fallback
    return None


def _fallback(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()


def _alphabet() -> dict[str, int]:
    """Returns the byte for each character of a byte-level name: printable ones of Latin-1 are themselves, others begin at 256."""
    printable = [byte for byte in range(256) if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _alphabet()


def _byte_level(name: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in name)
    except KeyError:
        return name.encode()


def _read(path: Path) -> dict[str, Any]:
    """Returns the contents of a file that may be missing.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return contents if isinstance(contents, dict) else {}
