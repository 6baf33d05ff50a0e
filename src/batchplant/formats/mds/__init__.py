"""MDS, the shards of MosaicML Streaming: a folder with ``index.json`` and ``shard.00000.mds``, …

Little-endian. A shard is: u32 N; N + 1 u32 offsets from the start of the file, where each sample begins and
the last one ends; JSON that says again which columns there are; the samples. A sample is a u32 for each
column whose size varies, that size, and then the cells, one after another. A shard may be compressed as a
whole.

``index.json`` is ``{"version": 2, "shards": […]}``. Of each shard it says the columns (in order of name, with
their encodings and fixed sizes), how many samples there are, and the names, sizes and hashes of its files.

What MDS has no words for stands in the index under ``batchplant``, which Streaming passes over: the schema,
and the column, ``__missing__``, whose bytes say which of the optional fields a sample lacks.
"""

from __future__ import annotations

import bz2
import dataclasses
import functools
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...codecs.npy import check_bytes
from ...codecs.protobuf import read_varint
from ...data.writer import WriteOptions
from ...errors import (
    BatchplantError,
    DamagedError,
    MissingLibraryError,
    OptionError,
    Problem,
    SchemaError,
    located,
    needs,
)
from ...schema import EVERY_KIND, Field, Schema, Text
from ...schema.columns import I64, U8, Columns, Ragged, as_bytes
from ...storage import Source, is_below, is_remote, join, limits, open_source, tree
from ...storage.compressed import UnpackedSource, collect, inflate
from ...storage.files import stat_files
from ..base.format import Capabilities, Format, Probe
from ..base.records import GivenSchema
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
from .cells import DIGITS, IMAGE_ENCODINGS, Encoding, holds

# -- compression and hashes ---------------------------------------------------------------------------
# Compression and hashes of shards: Streaming's names, and their implementations.

# Name → the levels that there are, and the usual one.
ALGORITHMS: dict[str, tuple[range, int | None]] = {
    "br": (range(12), 11),
    "bz2": (range(1, 10), 9),
    "gz": (range(10), 9),
    "snappy": (range(0), None),
    "zstd": (range(1, 23), 3),
}
ARROW = {"br": "brotli", "zstd": "zstd", "snappy": "snappy"}
XXHASH = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
READ_BYTES = 1 << 20


def pack(compression: str) -> Callable[[bytes], bytes]:
    """Compressor of a shard by name: ``zstd``, ``zstd:7``."""
    name, colon, level_text = compression.partition(":")
    levels, usual = ALGORITHMS.get(name, (range(0), None))
    if name not in ALGORITHMS or (colon and not (level_text.isdecimal() and int(level_text) in levels)):
        raise OptionError(
            f"compression is one of {', '.join(ALGORITHMS)}, with a level as in zstd:7, not {compression!r}"
        )
    level = int(level_text) if level_text else usual
    if name == "gz":
        # No date, so that the same samples are the same bytes.
        return lambda data: gzip.compress(data, level or 0, mtime=0)
    if name == "bz2":
        return lambda data: bz2.compress(data, level or 9)
    codec = _pyarrow().Codec(ARROW[name], **({} if level is None else {"compression_level": level}))
    return functools.partial(codec.compress, asbytes=True)


def unpack(source: Source, compression: str, size: int) -> UnpackedSource:
    """Decompress a file, which has ``size`` bytes according to the index."""
    result = collect(source.path, _pieces(source, compression, size), source.size)
    if result.size != size:
        raise DamagedError(
            f"{result.size} bytes are packed in it, and the index says {size}", path=source.path
        )
    return result


def _pieces(source: Source, compression: str, size: int) -> Iterator[U8]:
    if compression == "gz":
        pieces: Iterable[U8] = inflate(source)
    else:
        unpacked = _decompressed(source, compression, size)
        pieces = (np.frombuffer(piece, dtype=np.uint8) for piece in unpacked)
    remaining = size
    for piece in pieces:
        remaining -= len(piece)
        if remaining < 0:
            raise DamagedError(f"more than the {size} bytes of the index are packed in it", path=source.path)
        yield piece


def _decompressed(source: Source, compression: str, size: int) -> Iterable[bytes]:
    try:
        if compression == "bz2":
            stream: Any = bz2.BZ2File(source.file())
        elif compression == "snappy":
            # One block, which says its size by itself: it has to be that of the index.
            data = source.view(0, source.size).tobytes()
            if read_varint(memoryview(data), 0, len(data))[0] == size:
                yield _pyarrow().Codec("snappy").decompress(data, decompressed_size=size, asbytes=True)
            return
        else:
            pyarrow = _pyarrow()
            file = pyarrow.PythonFile(source.file(), mode="r")
            stream = pyarrow.CompressedInputStream(file, ARROW[compression])
        while piece := stream.read(READ_BYTES):
            yield piece
    except BatchplantError as error:
        raise error.at(path=source.path) from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        failed = source.failure() or DamagedError(f"not sound {compression}: {error}", path=source.path)
        raise failed from None


def hasher(name: str) -> Callable[[Any], Any] | None:
    """Return the function of a hash; None if it is unknown."""
    if name in XXHASH:
        try:
            import xxhash
        except ImportError:
            return None
        return getattr(xxhash, name, None)
    if name not in hashlib.algorithms_available or name.startswith("shake_") or not hasattr(hashlib, name):
        return None
    return lambda data: hashlib.new(name, data, usedforsecurity=False)


def check_hashes(names: Iterable[str]) -> list[str]:
    """The names of hashes to write, in order; an error for one that cannot be made."""
    hashes = sorted(set(names))
    for name in hashes:
        if hasher(name) is None:
            if name in XXHASH:
                raise MissingLibraryError(f"the hash {name} needs xxhash: pip install xxhash")
            raise OptionError(f"there is no hash {name!r}; there are sha1, sha256, md5, xxh64 and others")
    return hashes


def digest(name: str, data: Any) -> str | None:
    """The hash of these bytes, in small letters; None if it is not available here."""
    factory = hasher(name)
    return None if factory is None else str(factory(data).hexdigest())


def _pyarrow() -> Any:
    with needs("shards packed with zstd, br or snappy need pyarrow", "arrow"):
        import pyarrow
    return pyarrow


# -- index --------------------------------------------------------------------------------------------
# ``index.json``: which shards there are, and what is in them.

_SHARDS = re.compile(rb'"shards"\s*:\s*\[(\s*\])?')
_FORMAT = re.compile(rb'"format"\s*:\s*"mds"')


class File(NamedTuple):
    """One of the two files of a shard."""

    name: str
    size: int
    hashes: Mapping[str, str]


class Shard(NamedTuple):
    """Index entry of a shard."""

    samples: int
    raw: File
    packed: File | None
    # "zstd", without the level.
    compression: str | None


@dataclasses.dataclass(frozen=True)
class Index:
    """Contents of an index."""

    shards: list[Shard]
    columns: list[tuple[str, Encoding]]
    note: ShardMetadata | None


def read(folder: str) -> Index:
    return read_index(folder, "MDS", _parse_index)


def _parse_index(document: dict[str, Any]) -> Index:
    if document.get("version") != 2:
        raise DamagedError(f"it is of version {str(document.get('version'))[:20]!r}, and only 2 is known")
    entries = document["shards"]
    columns: list[tuple[str, Encoding]] | None = None
    first_described: tuple[Any, ...] = ()
    for number, entry in enumerate(entries):
        described = entry["column_names"], entry["column_encodings"], entry["column_sizes"]
        # Mostly the same again.
        if columns is None:
            columns, first_described = _columns(*described), described
        elif described != first_described:
            raise SchemaError(f"shard {number} has other columns than the first: {described[0]}")
    shards = [_shard(entry) for entry in entries]
    if document.get(METADATA_KEY) is None:
        return Index(shards, columns or [], None)
    schema = Schema.from_json(document[METADATA_KEY]["schema"])
    if columns is None:
        columns = columns_of(schema)
    note = ShardMetadata.parse(document[METADATA_KEY], dict(columns), cells.holds, _flags_of(schema))
    return Index(shards, columns, note)


def _columns(names: Any, named: Any, sizes: Any) -> list[tuple[str, Encoding]]:
    columns: dict[str, Encoding] = {}
    if not all(isinstance(values, list) for values in (names, named, sizes)):
        raise ValueError("columns are lists")
    for name, text, size in zip(names, named, sizes, strict=True):
        if not isinstance(name, str) or not isinstance(text, str) or name in columns:
            raise ValueError(f"a column is called {name!r}")
        encoding = cells.parse_encoding(text)
        if encoding is None:
            raise SchemaError(f"its encoding {text!r} is none of MDS", field=name)
        if size != encoding.size:
            raise ValueError(f"cells of {text} have {encoding.size} bytes, not {size!r}")
        columns[name] = encoding
    return list(columns.items())


def _shard(entry: dict[str, Any]) -> Shard:
    if entry["format"] != "mds" or entry["version"] != 2:
        raise SchemaError(
            f"its shards are {entry['format']!r}, version {entry['version']!r}; only MDS, version 2, is read"
        )
    packed = None if entry["zip_data"] is None else _file(entry["zip_data"])
    compression = entry["compression"]
    if compression is not None:
        compression = str(compression).partition(":")[0]
        if packed is None or compression not in ALGORITHMS:
            raise ValueError(f"a shard is compressed with {compression!r}, and nobody knows how")
    elif packed is not None:
        raise ValueError("a shard has a compressed file, and no compression")
    shard = Shard(count(entry["samples"]) + 0, _file(entry["raw_data"]), packed, compression)
    # A sample takes an offset.
    if 4 * (shard.samples + 2) > shard.raw.size:
        raise ValueError(f"{shard.samples} samples do not fit into {shard.raw.size} bytes")
    return shard


def _file(entry: dict[str, Any]) -> File:
    name, hashes = entry["basename"], entry["hashes"]
    if not is_below(name):
        raise ValueError(f"{name!r} is no file in its folder")
    if not isinstance(hashes, dict) or not all(isinstance(hex_digest, str) for hex_digest in hashes.values()):
        raise ValueError("hashes are text by name")
    # Copies, as of the number of samples: objects of the document would keep the memory around them.
    return File(name.encode().decode(), count(entry["bytes"]) + 0, dict(hashes))


def _flags_of(schema: Schema) -> Encoding | None:
    """Return the encoding of the column that says what is missing; None where nothing can be."""
    optional = optional_fields(schema)
    return cells.parse_encoding(f"ndarray:uint8:{len(optional)}") if optional else None


def columns_of(schema: Schema) -> list[tuple[str, Encoding]]:
    """The columns of our own sets, in order of name, as Streaming has them."""
    columns = {name: cells.encoding_of(field) for name, field in schema.items()}
    missing, flags = ShardMetadata.of(schema).missing, _flags_of(schema)
    if missing is not None and flags is not None:
        columns[missing] = flags
    return sorted(columns.items(), key=lambda column: column[0])


def document(entries: Iterable[str], note: Any) -> Iterable[str]:
    """The index of these shards, each as JSON; first what tells that it is one."""
    yield '{"shards": ['
    for number, entry in enumerate(entries):
        yield f"{', ' if number else ''}{entry}"
    note_text = "" if note is None else f', "{METADATA_KEY}": {json.dumps(note)}'
    yield f'], "version": 2{note_text}}}'


def sniff(probe: Probe) -> bool:
    """An index of shards, the first of which is MDS, or of none."""
    head = index_head(probe)
    match = _SHARDS.search(head)
    return match is not None and (match[1] is not None or _FORMAT.search(head) is not None)


# -- reader -------------------------------------------------------------------------------------------


class MdsReader(ShardsReader):
    """Reads folders of MDS.

    ``schema``: what columns hold, where that is another kind than their encodings tell, as in
    ``{"clip": "audio"}``.
    """

    def __init__(self, path: str, *, schema: GivenSchema | str | None = None) -> None:
        self.path = path
        self.index = read(path)
        self.columns = self.index.columns
        every = self.index.shards
        self._set_shards([shard.samples for shard in every], [column.size for _, column in self.columns])
        note = self.index.note
        self.missing = None if note is None or not every else note.missing
        self._set_schema(self._inferred_schema() if note is None else note.schema, schema)

    def _inferred_schema(self) -> Schema:
        ambiguous = ("pil", "str_int", *IMAGE_ENCODINGS)
        vague = [name for name, column in self.columns if column.varies or column.text in ambiguous]
        first, none = self._first_cells(vague), Ragged.from_cells([])
        return Schema({name: cells.field_of(column, first.get(name, none)) for name, column in self.columns})

    # -- shards ----------------------------------------------------------------------------------------

    def _is_packed(self, number: int) -> bool:
        return self.index.shards[number].packed is not None

    def _file_of(self, number: int) -> tuple[str, str | None]:
        """Streaming may have unpacked a file already."""
        shard = self.index.shards[number]
        raw = join(self.path, shard.raw.name)
        if shard.packed is None or (not is_remote(raw) and tree.is_file(raw)):
            return raw, None
        return join(self.path, shard.packed.name), shard.compression

    def _open_file(self, number: int) -> Source:
        source, shard = super()._open_file(number), self.index.shards[number]
        file = shard.packed if self._file_of(number)[1] else shard.raw
        if file is None or source.size != file.size:
            size = 0 if file is None else file.size
            raise DamagedError(f"it has {source.size} bytes, and the index says {size}", path=source.path)
        return source

    def _load(self, number: int, source: Source) -> Opened:
        shard, (path, packed) = self.index.shards[number], self._file_of(number)
        if packed is not None:
            source = unpack(source, packed, shard.raw.size)
        with located(path=path):
            return Opened(source, table_of(source, shard.samples, path))

    def _check_files(self) -> None:
        every = self.index.shards
        sizes = [-1] * len(every)
        if not is_remote(self.path):
            sizes = stat_files(self.path, [entry.raw.name for entry in every])[0].tolist()
        for number, (shard, at_least) in enumerate(zip(every, sizes, strict=True)):
            if shard.raw.size <= at_least and shard.packed is None:
                continue
            path, packed = self._file_of(number)
            size = tree.size_below(path)
            if shard.raw.size > (size if packed is None else limits.allowed(size)):
                raise DamagedError(f"the index says {shard.raw.size} bytes, and it has {size}", path=path)

    # -- reading ---------------------------------------------------------------------------------------

    def _holds(self, name: str, field: Field) -> str | None:
        return None if holds(self._encodings[name], field) else self._encodings[name].text

    def _look(self, name: str) -> bool:
        return self._encodings[name].varies or self._encodings[name].text == "pil"

    def _inner(self, name: str, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
        encoding, field = self._encodings[name], self.schema[name]
        if data is not None:
            return cells.inner(encoding, field, data, starts, sizes)
        if encoding.text in DIGITS and not isinstance(field, Text):
            return None
        if encoding.size is None:
            check_bytes(field, starts, sizes)
        return Inner(starts, sizes)

    def _make(self, name: str, cells_: Ragged) -> Ragged:
        return cells.decoded(self._encodings[name], self.schema[name], cells_)

    def _shard_bytes(self) -> list[int]:
        return [(shard.packed or shard.raw).size for shard in self.index.shards]

    # -- checking --------------------------------------------------------------------------------------

    def own_checks(self) -> tuple[str, ...]:
        names = {name for shard in self.index.shards for name in shard.raw.hashes}
        return tuple(f"{name} of every shard" for name in sorted(names) if digest(name, b"") is not None)

    def _verify(self) -> Iterator[Problem]:
        for number, shard in enumerate(self.index.shards):
            try:
                yield from self._verify_shard(number, shard)
            except BatchplantError as error:
                yield Problem.of(error)

    def _verify_shard(self, number: int, shard: Shard) -> Iterator[Problem]:
        opened = self.shards.open(number)
        path, packed = self._file_of(number)
        table, size = opened.table.astype(np.int64), opened.source.size
        if (np.diff(table) < 0).any() or table[-1] != size or table[0] < 4 * len(table) + 4:
            yield Problem(f"its offsets do not rise from the first sample to its end, {size}", path, offset=4)
        files = [(shard.raw, opened.source)]
        if packed is not None and shard.packed is not None:
            files.append((shard.packed, open_source(path)))
        for file, source in files:
            for name, want in file.hashes.items():
                have = digest(name, source.view(0, source.size))
                if have not in (None, want):
                    yield Problem(f"the {name} of {file.name} is {have}, and the index says {want}", path)

    def facts(self) -> dict[str, object]:
        every = self.index.shards
        packed = ", ".join(sorted({shard.compression for shard in every if shard.compression}))
        hashes = ", ".join(sorted({name for shard in every for name in shard.raw.hashes}))
        facts = {"shards": len(every), "compression": packed, "hashes": hashes}
        return {name: value for name, value in facts.items() if value != ""}


# -- writer -------------------------------------------------------------------------------------------

SHARD_BYTES = 1 << 26


class MdsWriter(ShardsWriter):
    """Writes folders of MDS.

    ``size_limit``: the most bytes of a shard before it is compressed, 64 MiB; so much is held in memory.
    ``compression``: none, ``zstd``, ``gz``, ``bz2``, ``br`` or ``snappy``, with a level as in ``zstd:7``.
    ``hashes``: hashes of every file in the index, such as ``sha1`` or ``xxh64``, which ``verify`` compares.
    """

    _title = "MDS"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        size_limit: int = SHARD_BYTES,
        compression: str | None = None,
        hashes: Sequence[str] = (),
    ) -> None:
        if not 1 <= size_limit <= MAX_SHARD_BYTES:
            raise OptionError(f"size_limit is a number of bytes from 1 to 2**32 - 1, not {size_limit}")
        self._limit = size_limit
        self._compression = None if compression in (None, "none") else compression
        self._pack = None if self._compression is None else pack(self._compression)
        self._hashes = check_hashes(hashes)
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._columns = columns_of(self.schema)
        self._flags = ShardMetadata.of(self.schema).missing
        self._first = 0
        if self.base is not None:
            self._continue(self.base)
        self._config = {
            "version": 2, "format": "mds", "compression": self._compression, "hashes": self._hashes,
            "size_limit": self._limit, "column_names": [name for name, _ in self._columns],
            "column_encodings": [column.text for _, column in self._columns],
            "column_sizes": [column.size for _, column in self._columns],
        }  # fmt: skip
        self._text = json.dumps(self._config, sort_keys=True).encode()
        self._begun, self._each = 8 + len(self._text), 4
        self._fixed = sum(column.size or 0 for _, column in self._columns)
        self._open_shards(state)

    def _continue(self, base: Any) -> None:
        assert isinstance(base, MdsReader)
        self._columns = base.columns
        if base.missing is None and self._flags is not None:
            raise self.cannot_append("its samples have no column that says what is missing")
        self._flags = base.missing
        names = [file.name for shard in base.index.shards for file in (shard.raw, shard.packed) if file]
        matches = (re.fullmatch(r"shard\.(\d{1,9})\.mds.*", name) for name in names)
        self._first = max((int(match[1]) for match in matches if match), default=-1) + 1

    # -- samples ---------------------------------------------------------------------------------------

    def _packed(self, columns: Columns) -> Ragged:
        stored = self._cells(columns, cells.packed)
        return records_of(stored, [column.size is None for _, column in self._columns])

    # -- shards ----------------------------------------------------------------------------------------

    def _between(self) -> bytes:
        return self._text

    def _raw_name(self, number: int) -> str:
        return f"shard.{self._first + number:05d}.mds"

    def _file_name(self, number: int) -> str:
        raw = self._raw_name(number)
        return raw if self._compression is None else f"{raw}.{self._compression.partition(':')[0]}"

    def _shard(self, number: int, head: list[U8], sizes: I64) -> tuple[U8, dict[str, Any]]:
        data = np.concatenate([*head, *self._records])
        entry: dict[str, Any] = {**self._config, "samples": len(sizes), "zip_data": None}
        entry["raw_data"] = self._described(self._raw_name(number), data)
        if self._pack is not None:
            data = as_bytes(self._pack(data.tobytes()))
            entry["zip_data"] = self._described(self._file_name(number), data)
        return data, entry

    def _described(self, name: str, data: U8) -> dict[str, Any]:
        return {
            "basename": name,
            "bytes": len(data),
            "hashes": {hash_name: digest(hash_name, data) for hash_name in self._hashes},
        }

    def _index(self, lines: list[str]) -> str:
        entries: list[str] = []
        note = ShardMetadata.of(self.schema).document
        if self.base is not None:
            assert isinstance(self.base, MdsReader)
            note = None if self.base.index.note is None else self.base.index.note.document
            stored = read_index(self.base.path, "MDS", lambda document: list(document["shards"]))
            entries = [json.dumps(entry, sort_keys=True) for entry in stored]
        return "".join(document([*entries, *lines], note))


FORMAT = Format(
    name="mds",
    title="MDS (MosaicML Streaming)",
    suffixes=(".mds",),
    spec="https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html",
    reader=MdsReader,
    writer=MdsWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    notes="shards of 64 MiB and an index.json; pickled columns are read as bytes, and never unpickled",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("zstd", "gz", "bz2", "br", "snappy"),
        compressed="file",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        max_size="4 GiB a sample",
        ecosystem=("MosaicML Streaming", "LLM Foundry"),
    ),
)
