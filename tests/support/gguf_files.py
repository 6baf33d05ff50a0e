"""GGUF files, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: Iterable[int], kind: int, offset: int) -> bytes:
    sizes = list(sizes)
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def write_gguf(
    path: Path,
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    keys: Iterable[bytes] = (),
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> Path:
    """``counts``: of tensors and keys, where the header lies about them."""
    tensors, keys = list(tensors), list(keys)
    counts = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join([*keys, *tensors])
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path
