"""Damage: to bits, numbers and lengths, to values of JSON, and to what is packed, which is packed again."""

from __future__ import annotations

import copy
import gzip
import io
import json
import math
import random
import re
import zipfile
from typing import Any

from batchplant import _native

NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**62, 2**63, 2**64, 10**30, 0.5, float("inf"), float("nan"), "", "x",
    "\ud800", "\0", "../x", "/etc/passwd", "http://127.0.0.1:9/x", "a::b://c", "int64", "O", [], [[]],
    [None], [2**40, 2**40], {}, {"": {}}, "a" * 300,
)  # fmt: skip
# What takes the place of a number or a word in a file of text.
ODD_TEXT = (
    b"", b"-1", b"nan", b"inf", b"1e308", b"1e400", b"1e19", b"9" * 5000, b"\xff", b"../x", b"a::b://c",
    b"0x10",
)  # fmt: skip
NUMBER = re.compile(rb"-?[0-9.]+(?:[eE][+-]?[0-9]+)?|[A-Za-z_]+")


def mutate(data: bytes, rng: random.Random, name: str = "") -> bytes:
    """Other bytes in place of these; what is JSON or packed is also damaged inside."""
    if rng.random() < 0.5:
        inside = _inside(data, rng, name)
        if inside is not None:
            return inside
    return mutate_bytes(data, rng)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Most damage near the start and the end, where the structure is."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        near = rng.choice((64, 4096, len(out)))
        at = rng.randrange(min(near, len(out)))
        at = at if rng.random() < 0.6 else len(out) - 1 - at
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            width = rng.choice((2, 4, 8))
            number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 1))) % (1 << 8 * width)
            out[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 3 and rng.random() < 0.5:
            del out[at:]
        elif kind == 4:
            del out[at : at + rng.randrange(1, 16)]
        else:
            source = rng.randrange(len(out))
            out[at:at] = out[source : source + rng.randrange(1, 64)]
    return bytes(out)


def _inside(data: bytes, rng: random.Random, name: str) -> bytes | None:
    """The same thing with damage inside of it; None where it is nothing that has an inside."""
    try:
        if data[:2] == b"\x1f\x8b":
            return gzip.compress(mutate(gzip.decompress(data), rng, name.removesuffix(".gz")), 1)
        if data[:4] == b"\x28\xb5\x2f\xfd":
            import zstandard

            whole = zstandard.ZstdDecompressor().decompressobj().decompress(data)
            return zstandard.ZstdCompressor(1).compress(mutate(whole, rng, name.removesuffix(".zst")))
        if data[:4] == b"PK\3\4":
            return _zip(data, rng)
        if data[:8] == b"BPIDX1\n\0":
            return _index(data, rng)
        if data[:8] == b"BPCRC2\n\0":
            damaged = mutate_bytes(data[:-4], rng)
            return damaged + _native.crc32c(damaged).to_bytes(4, "little")
        if data.lstrip()[:1] in (b"{", b"[") and rng.random() < 0.8:
            return _json(data, rng)
        if b"\0" not in data[:4096] and data[:64].isascii():
            return _text(data, rng)
    # It does not hold what its first bytes promise.
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, RecursionError, NotImplementedError):
        pass
    return None


def _index(data: bytes, rng: random.Random) -> bytes:
    """Other numbers in it, and checksums that fit them."""
    size = int.from_bytes(data[8:12], "little")
    header, first = json.loads(data[16 : 16 + size]), -(-(16 + size) // 64) * 64
    arrays = bytearray(data[first:])
    if rng.random() < 0.5:
        one = rng.choice(list(header["arrays"].values()))
        width, start = int(one["dtype"][2:]), one["start"]
        end = start + width * math.prod(one["shape"])
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(start, max(end, start + 1), width)
            number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 1, 7))) % (1 << 8 * width)
            arrays[at : at + width] = number.to_bytes(width, "little")
        one["crc"] = _native.crc32c(bytes(arrays[start:end]))
    else:
        part = rng.choice(("facts", "arrays"))
        header[part] = _other(header[part], rng)
    text = json.dumps(header).encode()
    head = data[:8] + len(text).to_bytes(4, "little") + _native.crc32c(text).to_bytes(4, "little") + text
    return head + bytes(-len(head) % 64) + bytes(arrays)


def _zip(data: bytes, rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        members = old.infolist()
        chosen = rng.choice(members)
        for member in members:
            inside = old.read(member)
            if member is chosen:
                inside = mutate(inside, rng, member.filename)
            new.writestr(member.filename, inside, member.compress_type)
    return out.getvalue()


def _json(data: bytes, rng: random.Random) -> bytes:
    """Some values are others, are missing, or there twice."""
    lines = data.splitlines(keepends=True) if data.count(b"\n") > 1 else [data]
    at = rng.randrange(len(lines))
    try:
        result = json.loads(lines[at])
    except ValueError:
        lines, at = [data], 0
        result = json.loads(data)
    for _ in range(rng.choice((1, 1, 2))):
        result = _other(result, rng)
    lines[at] = json.dumps(result).encode() + b"\n" * lines[at].endswith(b"\n")
    return b"".join(lines)


def _text(data: bytes, rng: random.Random) -> bytes | None:
    """Put odd words and numbers in the place of some; None where there are none."""
    tokens = list(NUMBER.finditer(data))
    if not tokens:
        return None
    chosen = rng.sample(tokens, min(len(tokens), rng.choice((1, 1, 2))))
    for token in sorted(chosen, key=re.Match.start, reverse=True):
        data = data[: token.start()] + rng.choice(ODD_TEXT) + data[token.end() :]
    return data


def _other(found: Any, rng: random.Random) -> Any:
    if isinstance(found, dict | list) and found and rng.random() < 0.9:
        key = rng.choice(list(found) if isinstance(found, dict) else range(len(found)))
        if rng.random() < 0.15:
            del found[key]
        elif rng.random() < 0.1 and isinstance(found, list):
            found.append(copy.deepcopy(found[key]))
        elif rng.random() < 0.1 and isinstance(found, dict):
            found[rng.choice(("", "\ud800", "../x", "a/b", "\0", str(key) + "x"))] = copy.deepcopy(found[key])
        else:
            found[key] = _other(found[key], rng)
        return found
    # Text that is JSON itself, as in notes inside of other documents.
    if isinstance(found, str) and found[:1] in ("{", "[") and rng.random() < 0.7:
        return json.dumps(_other(json.loads(found), rng))
    # Not the same one twice, which would end up inside of itself.
    return copy.deepcopy(rng.choice(ODD))
