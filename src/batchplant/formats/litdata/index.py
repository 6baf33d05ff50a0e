"""``index.json``: which chunks there are, and what is in them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import DamagedError, SchemaError
from ...schema import Schema
from ...storage import is_below
from ..base.format import Probe
from ..base.shards import MOST, NOTE, OTHERS, Note, index_head, optional_fields, read_index
from . import encodings, spec
from .encodings import Encoding

TREES, TOKENS = "PyTreeLoader", "TokensLoader"
# What the tokens are called of a set that says no names.
ONLY_TOKENS = "tokens"
LEVELS = ("chunk", "batch", "sample")
# The kinds of values that stand in an Arrow table, and what they are as values of samples.
IN_TABLES = {"str": "str", "int": "int", "float": "float", "bool": "bool", "bytes": "bytes", "list": "json",
             "map": "json", "struct": "json", "null": "json"}  # fmt: skip

_CHUNKS = re.compile(rb'"chunks"\s*:\s*\[(\s*\])?')
_CHUNK = re.compile(rb'"chunk_(size|bytes)"')
_PARQUET = re.compile(rb'"filename"\s*:\s*"[^"]*\.parquet"')


class Chunk(NamedTuple):
    """Index entry of a chunk. ``dim``: its tokens."""

    samples: int
    name: str
    size: int
    dim: int | None


@dataclasses.dataclass(frozen=True)
class Index:
    """Contents of an index. ``said``: the whole document; ``bare``: chunks are tokens without sizes.

    ``compression``: ``zstd`` or ``zstd:7``, and ``level`` what is packed by itself: a chunk, a batch or a
    sample. ``tables``: name → (encoding, whether it can be missing), where chunks may hold Arrow tables.
    """

    chunks: list[Chunk]
    said: dict[str, Any]
    columns: list[tuple[str, Encoding]]
    compression: str | None
    level: str
    bare: bool
    note: Note | None
    tables: dict[str, tuple[Encoding, bool]] | None

    @property
    def unpacked_whole(self) -> bool:
        """True if a file is packed as a whole, and so says how large it is unpacked."""
        return self.compression is not None and self.level == "chunk"


def read(folder: str) -> Index:
    return read_index(folder, "LitData", _parsed)


def _parsed(said: dict[str, Any]) -> Index:
    config = said["config"]
    loader = config.get("item_loader") or TREES
    if config.get("encryption") is not None:
        named = str(dict(config["encryption"]).get("algorithm", "unknown"))[:40]
        raise SchemaError(f"it is encrypted ({named}), and is not read here: decrypt it with LitData")
    if loader == "ParquetLoader":
        raise SchemaError("its chunks are Parquet files; open those, not the folder of the index")
    if loader not in (TREES, TOKENS):
        raise SchemaError(f"its chunks are for LitData's {str(loader)[:60]}, and are not read here")
    compression, level = config.get("compression"), config.get("compression_level") or "chunk"
    if compression is not None and not re.fullmatch(r"zstd(:\d{1,2})?", compression):
        raise SchemaError(f"its chunks are packed with {compression[:40]!r}, and only zstd is known")
    if level not in LEVELS:
        raise SchemaError(f"its compression_level {str(level)[:40]!r} is none of {', '.join(LEVELS)}")
    chunks = [_chunk(one) for one in said["chunks"]]
    columns, note = _columns(config), None
    if loader == TOKENS:
        columns = _tokens(columns, said.get(NOTE))
    if said.get(NOTE) is not None:
        note = Note.parse(said[NOTE], [column for column, _ in columns])
        _check_note(note, dict(columns))
    return Index(chunks, said, columns, compression, level, loader == TOKENS, note, _tables(config, columns))


def _chunk(one: dict[str, Any]) -> Chunk:
    name, dim = one["filename"], one.get("dim")
    if not is_below(name):
        raise ValueError(f"{str(name)[:200]!r} is no file in its folder")
    return Chunk(
        _count(one["chunk_size"]), name, _count(one["chunk_bytes"]), None if dim is None else _count(dim)
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"{str(value)[:40]} is no number of samples or bytes")
    return value


def _columns(config: dict[str, Any]) -> list[tuple[str, Encoding]]:
    formats = config["data_format"]
    if not isinstance(formats, list) or not all(isinstance(one, str) for one in formats):
        raise ValueError("data_format is a list of names")
    names = spec.names_of(config["data_spec"])
    return [(name, encodings.parse(text)) for name, text in zip(names, formats, strict=True)]


def _tokens(columns: Sequence[tuple[str, Encoding]], note: Any) -> list[tuple[str, Encoding]]:
    """The one value of a set of tokens, which has a name only in our note."""
    [(name, encoding)] = columns
    if encoding.form != "flat":
        raise ValueError("tokens are arrays without a head")
    if note is not None:
        [name] = Schema.from_json(note["schema"])
    return [(ONLY_TOKENS if name == spec.ONLY else name, encoding)]


def _tables(
    config: dict[str, Any], columns: Sequence[tuple[str, Encoding]]
) -> dict[str, tuple[Encoding, bool]] | None:
    """Fields of Arrow tables: all keys that samples had, not only those of the first one."""
    types = config.get("types")
    if not isinstance(types, dict) or not types or not all(isinstance(one, str) for one in types):
        return None
    tables = {}
    # The index has them in order of name; samples have theirs.
    first = dict.fromkeys(name.partition(".")[0] for name, _ in columns)
    for name in [*(name for name in first if name in types), *(name for name in types if name not in first)]:
        one = types[name] if isinstance(types[name], dict) else {"type": types[name]}
        kind = IN_TABLES.get(str(one.get("type")))
        if kind is None:
            return None
        tables[name] = encodings.parse(kind), bool(one.get("optional"))
    return tables


def _check_note(note: Note, columns: dict[str, Encoding]) -> None:
    optional = optional_fields(note.schema)
    fits = all(encodings.holds(columns[name], field) for name, field in note.schema.items())
    flags = None if note.missing is None else columns[note.missing].dtype
    if not fits or flags != ("uint8" if optional else None):
        raise DamagedError(OTHERS)


def columns_of(schema: Schema) -> list[tuple[str, Encoding]]:
    """The values of our own samples."""
    found = [(name, encodings.encoding_of(field)) for name, field in schema.items()]
    missing = Note.of(schema).missing
    return found if missing is None else [*found, (missing, encodings.parse("no_header_numpy:4"))]


def document(said: dict[str, Any], sums: Sequence[int]) -> str:
    """An index. ``sums``: of the new chunks.

    LitData knows by ``updated_at`` whether what it has copied is still the same: it depends on the bytes, and
    not on the time, so that the same samples make the same files.
    """
    digest = hashlib.blake2b(json.dumps([said, sums], sort_keys=True).encode(), digest_size=8).hexdigest()
    return json.dumps({**said, "updated_at": digest}, sort_keys=True)


def sniff(probe: Probe) -> bool:
    """An index of chunks; those that are Parquet files are for Parquet."""
    head = index_head(probe)
    found = _CHUNKS.search(head)
    if found is None or _PARQUET.search(head) is not None:
        return False
    return _CHUNK.search(head) is not None
