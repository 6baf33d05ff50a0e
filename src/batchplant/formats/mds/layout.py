"""Compression and hashes of shards: Streaming's names, and their implementations."""

from __future__ import annotations

import bz2
import dataclasses
import functools
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...codecs.protobuf import read_varint
from ...errors import BatchplantError, DamagedError, MissingLibraryError, OptionError, SchemaError, needs
from ...schema import Field, Schema
from ...schema.columns import U8, Ragged
from ...storage import Source, is_below
from ...storage.compressed import UnpackedSource, collect, inflate
from ..base.format import Probe
from ..base.shards.reader import METADATA_KEY, ShardMetadata, count, index_head, optional_fields, read_index
from . import cells
from .cells import Encoding

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


def hasher(name: str) -> Callable[[], Any] | None:
    """Return the function of a hash; None if it is unknown."""
    if name in XXHASH:
        try:
            import xxhash
        except ImportError:
            return None
        return getattr(xxhash, name, None)
    if name not in hashlib.algorithms_available or name.startswith("shake_") or not hasattr(hashlib, name):
        return None
    return lambda: hashlib.new(name, usedforsecurity=False)


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
    if factory is None:
        return None
    digester = factory()
    digester.update(data)
    return str(digester.hexdigest())


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


def read_entries(folder: str) -> list[dict[str, Any]]:
    """The shards of an index as they are written there."""
    return read_index(folder, "MDS", lambda document: list(document["shards"]))


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


def fields_of(index: Index, first: Mapping[str, Ragged]) -> dict[str, Field]:
    """Infer the fields of an index without a schema; ``first``: first cells of ambiguous columns."""
    none = Ragged.from_cells([])
    return {name: cells.field_of(column, first.get(name, none)) for name, column in index.columns}


def sniff(probe: Probe) -> bool:
    """An index of shards, the first of which is MDS, or of none."""
    head = index_head(probe)
    match = _SHARDS.search(head)
    return match is not None and (match[1] is not None or _FORMAT.search(head) is not None)
