"""Zstandard in LitData: of whole chunks, or inside of them of batches of samples or of each sample.

A chunk that is packed as a whole has another name, ``chunk-0-0.zstd.bin``. One that is packed in batches is,
little-endian: ``LDFZ01`` and two zeros; u16 version, 1; u16 flags; u32 samples, N; u32 samples of a batch;
u32 batches; N + 1 u32, where samples begin, counted from the first; for each batch u32 number of its first
sample, u32 samples, u64 place in the file, u32 packed and u32 unpacked size; the batches. One that is packed
by sample has the usual table, and each sample is packed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import DamagedError, OptionError, SchemaError, located
from ...schema import Schema
from ...schema.columns import I64, U8, as_bytes, starts_of
from ...storage import Source, is_below, parse
from ...storage.compressed import UnpackedSource, collect, limited, unzstd, zstd_compress
from ..base.format import Probe
from ..base.shards.reader import METADATA_KEY, ShardMetadata, count, index_head, optional_fields, read_index
from . import cells
from .cells import Encoding

MAGIC = b"LDFZ01\0\0"
HEAD_BYTES = 24
# Samples of a batch.
BATCH_SAMPLES = 256
DEFAULT_LEVEL = 4
FRAME = np.dtype([("first", "<u4"), ("rows", "<u4"), ("place", "<u8"), ("packed", "<u4"), ("size", "<u4")])


def pack(compression: str) -> Callable[[U8], bytes]:
    """Compressor by name: ``zstd``, ``zstd:7``."""
    name, colon, level = compression.partition(":")
    if name != "zstd" or (colon and not (level.isdecimal() and 1 <= int(level) <= 22)):
        raise OptionError(f"compression is zstd, with a level as in zstd:7, not {compression!r}")
    return zstd_compress(int(level) if level else DEFAULT_LEVEL)


def packed_chunk(level: str, compress: Callable[[U8], bytes], head: list[U8], records: U8, sizes: I64) -> U8:
    """A chunk of these samples. ``head``: that of one which is not packed."""
    if level == "chunk":
        return as_bytes(compress(np.concatenate([*head, records])))
    bounds = starts_of(sizes)
    if level == "sample":
        parts = [as_bytes(compress(records[start:end])) for start, end in itertools.pairwise(bounds)]
        table = 4 * (len(sizes) + 2) + starts_of(np.array([len(part) for part in parts], np.int64))
        return np.concatenate([head[0], as_bytes(table.astype("<u4")), *parts])
    firsts = np.arange(0, len(sizes), BATCH_SAMPLES)
    ends = np.minimum(firsts + BATCH_SAMPLES, len(sizes))
    parts = [
        as_bytes(compress(records[bounds[start] : bounds[end]]))
        for start, end in zip(firsts, ends, strict=True)
    ]
    frames = np.zeros(len(firsts), FRAME)
    frames["first"], frames["rows"] = firsts, ends - firsts
    frames["packed"], frames["size"] = [len(part) for part in parts], bounds[ends] - bounds[firsts]
    before = HEAD_BYTES + 4 * len(bounds) + frames.nbytes
    frames["place"] = before + starts_of(frames["packed"].astype(np.int64))[:-1]
    counts = np.array([1, len(sizes), BATCH_SAMPLES, len(frames)], "<u4")
    pieces = [as_bytes(MAGIC), as_bytes(counts), as_bytes(bounds.astype("<u4")), as_bytes(frames), *parts]
    return np.concatenate(pieces)


def unpack(source: Source, level: str, samples: int, limit: int) -> UnpackedSource:
    """The chunk that is packed in a file, with its usual table; ``most``: of a whole one, its bytes."""
    if level == "chunk":
        return collect(source.path, _bounded(unzstd(source), limit, source.path), source.size)
    head = source.view(0, min(8, source.size)).tobytes()
    if level == "batch":
        if head != MAGIC:
            raise DamagedError("it does not begin as a chunk that is packed in batches", offset=0)
        return collect(source.path, _batches(source, samples), source.size)
    return collect(source.path, _samples(source, samples), source.size)


def _bounded(pieces: Iterator[U8], limit: int, path: str, offset: int | None = None) -> Iterator[U8]:
    remaining = limit
    for piece in pieces:
        remaining -= len(piece)
        if remaining < 0:
            raise DamagedError(f"more than {limit} bytes are packed here", path=path, offset=offset)
        yield piece


def _plain_head(sizes: I64) -> U8:
    table = 4 * (len(sizes) + 2) + starts_of(sizes)
    if table[-1] >> 32:
        raise DamagedError("it unpacks to more than 4 GiB")
    return as_bytes(np.array([len(sizes), *table], "<u4"))


def _batches(source: Source, samples: int) -> Iterator[U8]:
    version, count, _, batches = source.array("<u4", 8, 4).tolist()
    # The flags, in the upper half, are none.
    if version != 1 or count != samples:
        message = f"it has {count} samples in a layout {version}, and the index says {samples}"
        raise DamagedError(message, offset=8)
    bounds = source.array("<u4", HEAD_BYTES, count + 1).astype(np.int64)
    frames = source.array(FRAME, HEAD_BYTES + 4 * (count + 1), batches)
    ends = frames["first"].astype(np.int64) + frames["rows"]
    follow = len(frames) and (frames["first"] == np.append(0, ends[:-1])).all() and ends[-1] == count
    sizes = np.diff(bounds)
    if not follow or bounds[0] or (sizes < 0).any():
        raise DamagedError("its batches are not one behind the other", offset=HEAD_BYTES)
    if (frames["size"] != bounds[ends] - bounds[frames["first"]]).any():
        raise DamagedError("its batches have other sizes than their samples", offset=HEAD_BYTES)
    yield _plain_head(sizes)
    for _, _, frame, packed, size in frames.tolist():
        yield from _frame(source, frame, packed, size)


def _frame(source: Source, start: int, packed: int, size: int | None) -> Iterator[U8]:
    part = UnpackedSource(source.path, source.view(start, packed))
    pieces = limited(unzstd(part), source.path, source.size) if size is None else unzstd(part)
    unpacked = 0
    with located(offset=start):
        for piece in pieces if size is None else _bounded(pieces, size, source.path, start):
            unpacked += len(piece)
            yield piece
    if size not in (None, unpacked):
        message = f"{unpacked} bytes are packed here, and it says {size}"
        raise DamagedError(message, path=source.path, offset=start)


def _samples(source: Source, samples: int) -> Iterator[U8]:
    count = int(source.array("<u4", 0, 1)[0])
    if count != samples:
        raise DamagedError(f"it has {count} samples, and the index says {samples}", offset=0)
    bounds = source.array("<u4", 4, count + 1).astype(np.int64)
    bad = source.outside(bounds[:-1], np.diff(bounds), head=4 * (count + 2))
    if bad is not None:
        raise DamagedError(f"sample {bad} of it does not lie in it", offset=4 + 4 * bad)
    parts: list[U8] = []
    sizes = np.zeros(count, np.int64)

    def unpacked() -> Iterator[U8]:
        for row, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
            for piece in _frame(source, start, end - start, None):
                sizes[row] += len(piece)
                yield piece

    # All of them, before it is known where each begins.
    parts.extend(limited(unpacked(), source.path, source.size))
    yield _plain_head(sizes)
    yield from parts


# -- spec ---------------------------------------------------------------------------------------------
# LitData's description of samples: a tree of containers with an encoding for each leaf.
#
# ``data_spec`` is JSON in a string: ``[1, node]``. A node has ``type``, ``context``, ``children_spec``; those
# of a leaf are empty. The context of a dict is again JSON in a string, the list of its keys. The leaf of
# ``sample["box"]["x"]`` is called ``box.x`` here, that of ``sample[0]`` is called ``0``.

# What a sample is called that is no container.
ONLY = "data"
DICTS = ("builtins.dict", "collections.OrderedDict")
SEQUENCES = ("builtins.list", "builtins.tuple", "collections.namedtuple", "collections.deque")

_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def names_of(spec: str) -> list[str]:
    """The names of the leaves, in order; any of NOTE_ERRORS where it is no such tree."""
    version, root = parse(spec)
    if version != 1:
        raise SchemaError(f"its data_spec is of version {str(version)[:20]!r}, and only 1 is known")
    names = [".".join(path) or ONLY for path in _leaves(root, ())]
    twice = next((name for position, name in enumerate(names) if name in names[:position]), None)
    if twice is not None:
        raise SchemaError("two of its values would have this name", field=twice)
    return names


def _leaves(node: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    kind, context, inside = node["type"], node["context"], node["children_spec"]
    if kind is None:
        if inside:
            raise ValueError("a leaf has parts")
        yield path
        return
    if kind in DICTS:
        keys = parse(context)
    elif kind == "collections.defaultdict":
        keys = context["dict_context"]
    elif kind in SEQUENCES:
        keys = range(len(inside))
    else:
        raise SchemaError(f"its samples hold a {str(kind)[:80]}, which is not known here")
    for key, part in zip(keys, inside, strict=True):
        yield from _leaves(part, (*path, str(key)))


def spec_of(names: Sequence[str] | None) -> str:
    """The tree of samples that are dicts with these keys; None: of samples that are one value."""
    if names is None:
        return json.dumps([1, _LEAF])
    leaves = [_LEAF for _ in names]
    node = {"type": "builtins.dict", "context": json.dumps(list(names)), "children_spec": leaves}
    return json.dumps([1, node])


# -- index --------------------------------------------------------------------------------------------
# ``index.json``: which chunks there are, and what is in them.

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
    """Contents of an index. ``document``: all of it; ``bare``: chunks are tokens without sizes.

    ``compression``: ``zstd`` or ``zstd:7``, and ``level`` what is packed by itself: a chunk, a batch or a
    sample. ``tables``: name → (encoding, whether it can be missing), where chunks may hold Arrow tables.
    """

    chunks: list[Chunk]
    document: dict[str, Any]
    columns: list[tuple[str, Encoding]]
    compression: str | None
    level: str
    bare: bool
    note: ShardMetadata | None
    tables: dict[str, tuple[Encoding, bool]] | None

    @property
    def unpacked_whole(self) -> bool:
        """True if a file is packed as a whole, and so says how large it is unpacked."""
        return self.compression is not None and self.level == "chunk"


def read(folder: str) -> Index:
    return read_index(folder, "LitData", _parse_index)


def _parse_index(document: dict[str, Any]) -> Index:
    config = document["config"]
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
    chunks = [_chunk(entry) for entry in document["chunks"]]
    columns, note = _columns(config), None
    if loader == TOKENS:
        columns = _tokens(columns, document.get(METADATA_KEY))
    if document.get(METADATA_KEY) is not None:
        content = document[METADATA_KEY]
        flags = _flags_of(Schema.from_json(content["schema"]))
        note = ShardMetadata.parse(content, dict(columns), cells.holds, flags)
    return Index(
        chunks, document, columns, compression, level, loader == TOKENS, note, _tables(config, columns)
    )


def _chunk(entry: dict[str, Any]) -> Chunk:
    name, dim = entry["filename"], entry.get("dim")
    if not is_below(name):
        raise ValueError(f"{str(name)[:200]!r} is no file in its folder")
    return Chunk(
        count(entry["chunk_size"]), name, count(entry["chunk_bytes"]), None if dim is None else count(dim)
    )


def _columns(config: dict[str, Any]) -> list[tuple[str, Encoding]]:
    formats = config["data_format"]
    if not isinstance(formats, list) or not all(isinstance(encoding, str) for encoding in formats):
        raise ValueError("data_format is a list of names")
    names = names_of(config["data_spec"])
    return [(name, cells.parse_encoding(text)) for name, text in zip(names, formats, strict=True)]


def _tokens(columns: Sequence[tuple[str, Encoding]], note: Any) -> list[tuple[str, Encoding]]:
    """The one value of a set of tokens, which has a name only in our note."""
    [(name, encoding)] = columns
    if encoding.form != "flat":
        raise ValueError("tokens are arrays without a head")
    if note is not None:
        [name] = Schema.from_json(note["schema"])
    return [(ONLY_TOKENS if name == ONLY else name, encoding)]


def _tables(
    config: dict[str, Any], columns: Sequence[tuple[str, Encoding]]
) -> dict[str, tuple[Encoding, bool]] | None:
    """Fields of Arrow tables: all keys that samples had, not only those of the first one."""
    types = config.get("types")
    if not isinstance(types, dict) or not types or not all(isinstance(name, str) for name in types):
        return None
    tables = {}
    # The index has them in order of name; samples have theirs.
    first = dict.fromkeys(name.partition(".")[0] for name, _ in columns)
    for name in [*(name for name in first if name in types), *(name for name in types if name not in first)]:
        description = types[name] if isinstance(types[name], dict) else {"type": types[name]}
        kind = IN_TABLES.get(str(description.get("type")))
        if kind is None:
            return None
        tables[name] = cells.parse_encoding(kind), bool(description.get("optional"))
    return tables


def _flags_of(schema: Schema) -> Encoding | None:
    """Return the encoding of the value that says what is missing; None where nothing can be."""
    return cells.parse_encoding("no_header_numpy:4") if optional_fields(schema) else None


def columns_of(schema: Schema) -> list[tuple[str, Encoding]]:
    """The values of our own samples."""
    columns = [(name, cells.encoding_of(field)) for name, field in schema.items()]
    missing, flags = ShardMetadata.of(schema).missing, _flags_of(schema)
    return columns if missing is None or flags is None else [*columns, (missing, flags)]


def document(content: dict[str, Any], sums: Sequence[int]) -> str:
    """An index. ``sums``: of the new chunks.

    LitData knows by ``updated_at`` whether what it has copied is still the same: it depends on the bytes, and
    not on the time, so that the same samples make the same files.
    """
    digest = hashlib.blake2b(json.dumps([content, sums], sort_keys=True).encode(), digest_size=8).hexdigest()
    return json.dumps({**content, "updated_at": digest}, sort_keys=True)


def sniff(probe: Probe) -> bool:
    """An index of chunks; those that are Parquet files are for Parquet."""
    head = index_head(probe)
    match = _CHUNKS.search(head)
    if match is None or _PARQUET.search(head) is not None:
        return False
    return _CHUNK.search(head) is not None
