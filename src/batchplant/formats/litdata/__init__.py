"""LitData, the optimized datasets of Lightning: a folder with ``index.json`` and ``chunk-0-0.bin``, …

Little-endian. A chunk is: u32 N; N + 1 u32 offsets from the start of the file, where each sample begins and
the last one ends; the samples. A sample is a u32 for each of its values, that size, and then the values, one
after another. A set of tokens (``TokensLoader``) has samples without sizes: they are the tokens.

``index.json`` is ``{"chunks": […], "config": {…}, "updated_at": "…"}``. Of each chunk it says the file, how
many samples and bytes it has, and how many tokens; for all of them how they are packed (Zstandard, of whole
chunks or inside of them), how each value is encoded, and which tree of dicts, lists and tuples they are in.
Samples that are dicts of texts, numbers, bytes and lists may be rows of an Arrow table at the end of a chunk.

What LitData has no words for stands in the index under ``batchplant``, which LitData passes over: the schema,
and the value, ``__missing__``, whose bytes say which of the optional fields a sample lacks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...codecs.arrow import column_of
from ...data.writer import WriteOptions
from ...errors import (
    BatchplantError,
    DamagedError,
    NotFoundError,
    OptionError,
    Problem,
    SchemaError,
    UnsafeError,
    check_choice,
    located,
)
from ...schema import EVERY_KIND, Bool, Bytes, Field, Float, Int, Json, Schema, Tensor, Text
from ...schema.columns import I64, U8, Columns, Flags, Ragged, as_bytes, concat_columns, starts_of
from ...storage import Source, is_below, is_remote, join, limits, open_source, parse, tree
from ...storage.compressed import UnpackedSource, collect, limited, unzstd, zstd_compress
from ...storage.spans import Spans
from ..base.format import Capabilities, Format, Probe
from ..base.ipc import Part
from ..base.records import GivenSchema, given_schema
from ..base.shards.reader import (
    MAX_SHARD_BYTES,
    METADATA_KEY,
    Inner,
    Opened,
    ShardMetadata,
    ShardsReader,
    count,
    index_head,
    optional_fields,
    read_index,
    records_of,
    table_of,
)
from ..base.shards.writer import ShardsWriter
from . import cells
from .cells import Encoding

# -- compression --------------------------------------------------------------------------------------
# Zstandard in LitData: of whole chunks, or inside of them of batches of samples or of each sample.
#
# A chunk that is packed as a whole has another name, ``chunk-0-0.zstd.bin``. One that is packed in batches
# is, little-endian: ``LDFZ01`` and two zeros; u16 version, 1; u16 flags; u32 samples, N; u32 samples of a
# batch; u32 batches; N + 1 u32, where samples begin, counted from the first; for each batch u32 number of its
# first sample, u32 samples, u64 place in the file, u32 packed and u32 unpacked size; the batches. One that is
# packed by sample has the usual table, and each sample is packed.

BATCH_MAGIC = b"LDFZ01\0\0"
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
    pieces = [
        as_bytes(BATCH_MAGIC),
        as_bytes(counts),
        as_bytes(bounds.astype("<u4")),
        as_bytes(frames),
        *parts,
    ]
    return np.concatenate(pieces)


def unpack(source: Source, level: str, samples: int, limit: int) -> UnpackedSource:
    """The chunk that is packed in a file, with its usual table; ``most``: of a whole one, its bytes."""
    if level == "chunk":
        return collect(source.path, _bounded(unzstd(source), limit, source.path), source.size)
    head = source.view(0, min(8, source.size)).tobytes()
    if level == "batch":
        if head != BATCH_MAGIC:
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
# The encoding of the value that says what is missing: an array of uint8.
FLAGS = cells.parse_encoding("no_header_numpy:4")
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
        flags = FLAGS if optional_fields(Schema.from_json(content["schema"])) else None
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


def columns_of(schema: Schema) -> list[tuple[str, Encoding]]:
    """The values of our own samples."""
    columns = [(name, cells.encoding_of(field)) for name, field in schema.items()]
    missing = ShardMetadata.of(schema).missing
    return columns if missing is None else [*columns, (missing, FLAGS)]


def index_text(content: dict[str, Any], sums: Sequence[int]) -> str:
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


# -- tables -------------------------------------------------------------------------------------------
# Chunks that are Arrow tables: so LitData keeps samples that are dicts of texts, numbers, bytes and lists.
#
# Such a chunk has the usual table, in which all samples are empty, and behind it an Arrow IPC file, its
# size as u32, and ``LDARW01`` and a zero. It is read as if its rows were the usual samples.

TABLE_MAGIC = b"LDARW01\0"
TAIL = 4 + len(TABLE_MAGIC)

Tables = dict[str, tuple[Encoding, bool]]


def field_of(encoding: Encoding, *, optional: bool) -> Field:
    """The field of a column of these tables."""
    kinds: dict[str, type[Field]] = {
        "int": Int, "float": Float, "bool": Bool, "str": Text, "bytes": Bytes, "json": Json,
    }  # fmt: skip
    return kinds[encoding.text](optional=optional)


def has_table(source: Source) -> bool:
    return (
        source.size > TAIL
        and source.view(source.size - len(TABLE_MAGIC), len(TABLE_MAGIC)).tobytes() == TABLE_MAGIC
    )


def open_table(source: Source, samples: int, tables: Tables) -> Opened:
    """The rows of a chunk's table as samples."""
    size = int(source.array("<u4", source.size - TAIL, 1)[0])
    start = source.size - TAIL - size
    if start < 0:
        raise DamagedError(f"a table of {size} bytes does not lie in it", offset=source.size - TAIL)
    try:
        part = Part(UnpackedSource(source.path, source.view(start, size)))
    except SchemaError as error:
        raise DamagedError(f"its table is not one of LitData: {error.message}", offset=start) from None
    if sum(part.rows) != samples:
        raise DamagedError(f"its table has {sum(part.rows)} rows, and the index says {samples} samples")
    columns = Columns.read(tables, lambda name: _column(part, name, tables[name], samples))
    absent: dict[str, Flags] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged) and column.valid is not None:
            absent[name] = ~column.valid
    packed = [
        cells.packed(table, field_of(table, optional=optional), columns[name])
        for name, (table, optional) in tables.items()
    ]
    records = records_of(packed, [True] * len(packed))
    table = (4 * (samples + 2) + records.offsets).astype("<u4")
    head = np.array([samples], "<u4")
    chunk = np.concatenate([as_bytes(head), as_bytes(table), records.data])
    return Opened(UnpackedSource(source.path, chunk), table, absent)


def _column(part: Part, name: str, declared: tuple[Encoding, bool], samples: int) -> Ragged | np.ndarray:
    encoding, optional = declared
    field = field_of(encoding, optional=optional)
    if name not in part.schema.names:
        if not optional:
            raise DamagedError("its table has no such column")
        # No sample of this chunk had the key.
        return Ragged.from_cells([None] * samples)
    columns, first = [], 0
    for number, rows in enumerate(part.rows):
        try:
            columns.append(column_of(field, part.load(number, [name]).column(name)))
        except BatchplantError as error:
            error.sample = None if error.sample is None else first + error.sample
            raise
        # The library raises what it likes on nonsense.
        except Exception as error:
            message = str(error).strip().split("\n")[0]
            raise DamagedError(f"its table cannot be read: {message}") from None
        first += rows
    return concat_columns(columns)


# -- reader -------------------------------------------------------------------------------------------


def _check_size(source: Source, sizes: tuple[int, int]) -> None:
    if source.size not in sizes:
        raise DamagedError(f"it has {source.size} bytes, and the index says {sizes[0]}")


class LitDataReader(ShardsReader):
    """Reads folders of LitData, also those that are still packed.

    ``schema``: what values are, where that is another kind than their encodings tell, as in
    ``{"clip": "audio"}``; a pickle is read only as ``bytes``. ``block_size``: of a set of tokens, samples are
    as many tokens each, as those of LitData's ``TokensLoader``; by default they are what was written.
    """

    def __init__(
        self, path: str, *, schema: GivenSchema | str | None = None, block_size: int | None = None
    ) -> None:
        self.path = path
        self.index = index = read(path)
        if block_size is not None and (not index.bare or block_size < 1):
            takes = "is 1 or more" if index.bare else "is for sets of tokens, and this is none"
            raise OptionError(f"block_size {takes}", path=path)
        if block_size is not None and any(chunk.dim is None for chunk in index.chunks):
            # LitData does not count where the first sample of a chunk is empty, and cannot read it either.
            raise DamagedError("its index does not count the tokens; open it without block_size", path=path)
        self._block = block_size
        # Whether chunks are Arrow tables: then those know more keys than the first sample had.
        self.by_table = index.tables is not None and self._has_table()
        self.columns = index.columns
        if self.by_table and index.tables is not None:
            self.columns = [(name, table) for name, (table, _) in index.tables.items()]
        counts = [
            chunk.samples if block_size is None else (chunk.dim or 0) // block_size for chunk in index.chunks
        ]
        self._set_shards(counts, [None] * len(self.columns), bare=index.bare)
        self.missing = None if index.note is None else index.note.missing
        self._set_schema(self._inferred_schema(), schema)
        allowed = () if schema is None else given_schema(schema)
        self._pickles = {
            name for name, column in self.columns if column.form == "pickle" and name not in allowed
        }

    def _has_table(self) -> bool:
        if not self.index.chunks:
            return False
        try:
            return has_table(open_source(join(self.path, self.index.chunks[0].name)))
        except NotFoundError:
            # Reading the chunk raises the same error.
            return False

    # -- chunks ----------------------------------------------------------------------------------------

    def _is_packed(self, number: int) -> bool:
        return self.by_table or self.index.compression is not None

    def _file_of(self, number: int) -> tuple[str, str | None]:
        """LitData may have unpacked a file already."""
        index, name = self.index, self.index.chunks[number].name
        path = join(self.path, name)
        if index.compression is not None and index.level == "chunk":
            raw = join(self.path, name.replace(f".{index.compression}", ""))
            if raw != path and not is_remote(raw) and tree.is_file(raw):
                return raw, None
        return path, index.compression

    def _load(self, number: int, source: Source) -> Opened:
        index, chunk, (path, packed) = self.index, self.index.chunks[number], self._file_of(number)
        # Old versions of LitData (0.2.30) did not count the table.
        sizes = chunk.size, chunk.size + 4 * (chunk.samples + 2)
        with located(path=path):
            if not (packed and index.level == "chunk"):
                _check_size(source, sizes)
            if self.by_table and index.tables is not None:
                if has_table(source):
                    return open_table(source, chunk.samples, index.tables)
                if [(name, table) for name, (table, _) in index.tables.items()] != index.columns:
                    raise DamagedError("it holds no Arrow table, as the first chunk does")
            if packed:
                source = unpack(source, index.level, chunk.samples, sizes[1])
                if index.level == "chunk":
                    _check_size(source, sizes)
            opened = Opened(source, table_of(source, chunk.samples, path))
            return opened if self._block is None else self._in_blocks(chunk, opened, self._block)

    def _in_blocks(self, chunk: Chunk, opened: Opened, block: int) -> Opened:
        start, width = 4 * len(opened.table) + 4, np.dtype(str(self.columns[0][1].dtype)).itemsize
        dim = chunk.dim or 0
        if start + dim * width > opened.source.size:
            raise DamagedError(f"the index says {dim} tokens, more than it has")
        ends = start + np.arange(dim // block + 1, dtype=np.int64) * (block * width)
        return Opened(opened.source, ends.astype(np.uint32), head=start)

    def _check_files(self) -> None:
        for number, chunk in enumerate(self.index.chunks):
            path, packed = self._file_of(number)
            size = tree.size_below(path)
            if 4 * (chunk.samples + 2) > (limits.allowed(size) if packed else size):
                raise DamagedError(f"{chunk.samples} samples do not fit into its {size} bytes", path=path)

    def _inferred_schema(self) -> Schema:
        if self.by_table and self.index.tables is not None:
            declared = self.index.tables.items()
            return Schema({name: field_of(encoding, optional=may) for name, (encoding, may) in declared})
        if self._block is not None:
            [(name, encoding)] = self.columns
            return Schema({name: Tensor(str(encoding.dtype), (self._block,))})
        if self.index.note is not None:
            return self.index.note.schema
        first = self._first_cells([name for name, encoding in self.columns if cells.is_ambiguous(encoding)])
        none = Ragged.from_cells([])
        return Schema(
            {name: cells.field_of(encoding, first.get(name, none)) for name, encoding in self.columns}
        )

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        self._refuse(fields)
        return super()._read(indices, fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        self._refuse([field])
        return super()._spans(field, indices)

    def _refuse(self, fields: Sequence[str]) -> None:
        for name in fields:
            if name in self._pickles:
                raise UnsafeError(
                    "it holds pickles, which could run any code, so they are not loaded; leave it out"
                    f' (--fields), or take their bytes: schema={{"{name}": "bytes"}} (--option)',
                    path=self.path, field=name,
                )  # fmt: skip

    def _holds(self, name: str, field: Field) -> str | None:
        return None if cells.holds(self._encodings[name], field) else self._encodings[name].text

    def _look(self, name: str) -> bool:
        return cells.needs_look(self._encodings[name])

    def _inner(self, name: str, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
        return cells.inner(self._encodings[name], self.schema[name], data, starts, sizes)

    def _make(self, name: str, stored: Ragged) -> Ragged:
        return cells.decoded(self._encodings[name], self.schema[name], stored)

    def _shard_bytes(self) -> list[int]:
        return [chunk.size for chunk in self.index.chunks]

    # -- checking --------------------------------------------------------------------------------------

    def _verify(self) -> Iterator[Problem]:
        for number in range(len(self.index.chunks)):
            try:
                shard = self.shards.open(number)
            except BatchplantError as error:
                yield Problem.of(error)
                continue
            table, size = shard.table.astype(np.int64), shard.source.size
            if shard.head is None and (
                (np.diff(table) < 0).any() or table[-1] != size or table[0] != 4 * len(table) + 4
            ):
                message = f"its offsets do not rise from the first sample to its end, {size}"
                yield Problem(message, self._file_of(number)[0], offset=4)

    def facts(self) -> dict[str, object]:
        packed = self.index.compression
        if packed is not None and self.index.level != "chunk":
            packed = f"{packed}, by {self.index.level}"
        facts: dict[str, object] = {"chunks": len(self.index.chunks), "compression": packed}
        if self.index.bare:
            facts["tokens"] = sum(chunk.dim or 0 for chunk in self.index.chunks)
        if self.by_table:
            facts["layout"] = "Arrow tables"
        if self._pickles:
            facts["not read"] = f"{', '.join(sorted(self._pickles))} (pickled)"
        return {name: value for name, value in facts.items() if value is not None}


# -- writer -------------------------------------------------------------------------------------------

CHUNK_BYTES = 1 << 26


class LitDataWriter(ShardsWriter):
    """Writes folders of LitData; samples are dicts of the fields.

    ``chunk_bytes``: the most bytes of the samples of a chunk, 64 MiB; so much is held in memory.
    ``compression``: none or ``zstd``, with a level as in ``zstd:7``. ``compression_level``: what is packed by
    itself: a ``chunk``, which older versions of LitData read, too, a ``batch`` of 256 samples, or each
    ``sample``.
    ``tokens``: write the one field, an array with one axis, for LitData's ``TokensLoader``.
    """

    _title = "LitData"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        compression: str | None = None,
        compression_level: str = "chunk",
        tokens: bool = False,
    ) -> None:
        if not 1 <= chunk_bytes <= MAX_SHARD_BYTES:
            raise OptionError(f"chunk_bytes is a number of bytes from 1 to 2**32 - 1, not {chunk_bytes}")
        check_choice("compression_level", compression_level, LEVELS)
        self._limit = chunk_bytes
        self._compression = None if compression in (None, "none") else compression
        self._pack = None if self._compression is None else pack(self._compression)
        self._level = compression_level
        self._tokens = tokens
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._columns = columns_of(self.schema)
        self._flags = ShardMetadata.of(self.schema).missing
        self._first = 0
        if self._tokens:
            self._check_tokens()
        if self.base is not None:
            self._continue(self.base)
        self._open_shards(state)

    def _check_tokens(self) -> None:
        field = next(iter(self.schema.values()))
        array = isinstance(field, Tensor) and len(field.shape) == 1 and not field.optional
        if len(self._columns) != 1 or not array or self._columns[0][1].form != "flat":
            raise SchemaError(
                "tokens=True is for datasets with one field, an array with one axis: choose it with --fields",
                path=self.path, field=next(iter(self.schema)),
            )  # fmt: skip

    def _continue(self, base: Any) -> None:
        """Write on as what is there was written: LitData has one compression for all chunks."""
        assert isinstance(base, LitDataReader)
        index = base.index
        pickled = next((name for name, column in base.columns if column.form == "pickle"), None)
        if pickled is not None:
            raise self.cannot_append(f"its field {pickled!r} holds pickles")
        if base.columns != index.columns:
            raise self.cannot_append("its chunks are Arrow tables, and hold more keys than its first sample")
        if base.missing is None and self._flags is not None:
            raise self.cannot_append("its samples have no value that says what is missing")
        algorithm, present = (
            compression and compression.partition(":")[0]
            for compression in (self._compression, index.compression)
        )
        if algorithm not in (None, present):
            raise self.cannot_append("its chunks are not packed, and LitData packs all of them or none")
        self._columns, self._flags, self._tokens = base.columns, base.missing, index.bare
        if present is not None:
            self._pack = self._pack or pack(str(index.compression))
        self._compression, self._level = index.compression, index.level
        names = (re.search(r"chunk-\d+-(\d{1,9})\D", chunk.name) for chunk in index.chunks)
        self._first = max((int(name[1]) for name in names if name), default=-1) + 1

    # -- samples ---------------------------------------------------------------------------------------

    def _packed(self, columns: Columns) -> Ragged:
        values = self._cells(columns, cells.packed)
        return values[0] if self._tokens else records_of(values, [True] * len(values))

    # -- chunks ----------------------------------------------------------------------------------------

    def _file_name(self, number: int) -> str:
        packed = f".{self._compression}" if self._compression is not None and self._level == "chunk" else ""
        return f"chunk-0-{self._first + number}{packed}.bin"

    def _shard(self, number: int, head: list[U8], sizes: I64) -> tuple[U8, dict[str, Any]]:
        records = np.concatenate(self._records)
        unpacked = data = np.concatenate([*head, records])
        if self._pack is not None:
            data = packed_chunk(self._level, self._pack, head, records, sizes)
        tokens = len(records) // np.dtype(str(self._columns[0][1].dtype)).itemsize if self._tokens else None
        entry = {
            "filename": self._file_name(number), "chunk_size": len(sizes), "dim": tokens,
            "chunk_bytes": len(unpacked if self._level == "chunk" else data), "crc": zlib.crc32(data.data),
        }  # fmt: skip
        return data, entry

    def _index(self, lines: list[str]) -> str:
        entries = [json.loads(line) for line in lines]
        # So that the index changes whenever the bytes do.
        sums = [entry.pop("crc") for entry in entries]
        if self.base is not None:
            assert isinstance(self.base, LitDataReader)
            document = dict(self.base.index.document)
            document["chunks"] = [*document["chunks"], *entries]
            return index_text(document, sums)
        inside = self._level if self._compression is not None and self._level != "chunk" else None
        config = {
            "chunk_bytes": self._limit, "chunk_size": None, "compression": self._compression,
            "compression_level": inside, "ipc_compression": None,
            "compression_batch_size": BATCH_SAMPLES if inside == "batch" else None,
            "data_format": [column.text for _, column in self._columns],
            "data_spec": spec_of(None if self._tokens else [name for name, _ in self._columns]),
            "types": None, "encryption": None, "item_loader": TOKENS if self._tokens else TREES,
        }  # fmt: skip
        return index_text(
            {"chunks": entries, "config": config, METADATA_KEY: ShardMetadata.of(self.schema).document}, sums
        )


# -- format -------------------------------------------------------------------------------------------

FORMAT = Format(
    name="litdata",
    title="LitData (Lightning)",
    suffixes=(".litdata",),
    spec="https://github.com/Lightning-AI/litData",
    reader=LitDataReader,
    writer=LitDataWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    notes="chunks of 64 MiB and an index.json; pickled values are refused, and never unpickled",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("zstd",),
        compressed="file",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        max_size="4 GiB a sample",
        ecosystem=("LitData", "PyTorch Lightning", "LitGPT"),
    ),
)
