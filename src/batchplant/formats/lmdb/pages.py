"""Locations of the entries of an environment, found without liblmdb."""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...codecs.msgpack import gathered
from ...errors import BusyError, DamagedError, OptionError, SchemaError, no_such
from ...schema.columns import U8, AnyArray, Flags, Ragged
from ...storage import MappedSource, Source, index, join, open_source, tree
from . import remote

DATA = "data.mdb"
# The key of the schema; it comes behind all digits.
NOTE = b"__batchplant__"
MAGIC = (0xBEEFC0DE).to_bytes(4, "little")
# Flags of a tree whose keys are compared in another way than byte by byte: MDB_REVERSEKEY, MDB_INTEGERKEY.
OTHER_ORDER = 0x02 | 0x08
# A transaction that ends while we walk may have taken pages away under us.
ATTEMPTS = 5

Tree = tuple[int, int, int, int]


class Meta(NamedTuple):
    """The newer meta page."""

    page_size: int
    last_page: int
    transaction: int
    free: Tree
    main: Tree


def is_meta(head: bytes) -> bool:
    return len(head) >= 152 and bool(head[10] & 8) and head[16:20] == MAGIC


def data_file(path: str) -> str:
    """The file of an environment, which is that itself or a folder."""
    return join(path, DATA) if tree.is_folder(path) else path


def read_meta(data: U8, path: str) -> Meta:
    page_size, last_page, transaction, free, main, failure = _native.lmdb_meta(data)
    if failure is not None:
        raise DamagedError(failure[0], path=path, offset=failure[1])
    return Meta(page_size, last_page, transaction, free, main)


def open_environment(path: str, db: str | None, mode: str) -> tuple[Source, index.Index]:
    """The file of an environment, mapped, and its index."""
    for attempt in range(ATTEMPTS):
        source = open_source(data_file(path))
        try:
            return source, load(source, db, mode)
        except (DamagedError, BusyError):
            # A file that grew meanwhile has pages that are not in the mapping.
            grown = isinstance(source, MappedSource) and os.path.getsize(source.path) > source.size
            source.close()
            if not grown or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def load(source: Source, db: str | None, mode: str) -> index.Index:
    """The index of an environment; one of another transaction or database is made anew."""
    meta = read_meta(source.view(0, min(source.size, 2 * 65536 + 256)), source.path)

    def fits(loaded: index.Index) -> bool:
        return _makes_sense(loaded) and loaded.facts == {
            **loaded.facts,
            "transaction": meta.transaction,
            "db": db,
        }

    return index.load(source, "lmdb", functools.partial(scan, db=db), mode=mode, check=fits)


def _makes_sense(loaded: index.Index) -> bool:
    names = {"key_starts": np.int64, "key_sizes": np.uint16, "starts": np.int64, "sizes": np.int64}
    arrays = loaded.arrays
    return set(arrays) == set(names) and all(
        array.dtype == names[name] and array.shape == arrays["starts"].shape and array.ndim == 1
        for name, array in arrays.items()
    )


def scan(
    source: Source, report: index.Report, *, db: str | None = None
) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """Locations of the keys and values of a database."""
    if not isinstance(source, MappedSource):
        return _scan_remote(source, report, db)
    data = source.view(0, source.size)
    for _ in range(ATTEMPTS):
        meta = read_meta(data, source.path)
        failure: DamagedError | None = None
        try:
            # Nothing else reads the tree of free pages; but a file that is cut there is damaged.
            walk(data, meta, meta.free, source.path)
            tree = meta.main if db is None else _named(data, meta, db, source.path)
            arrays, named = walk(data, meta, tree, source.path)
        except DamagedError as error:
            failure = error
        if read_meta(data, source.path).transaction != meta.transaction:
            continue
        if failure is not None:
            raise failure
        report(source.size)
        keys = gathered(data, arrays["key_starts"], arrays["key_sizes"].astype(np.int64)).data
        return _without(arrays, named, data, source.path), _facts(meta, db, tree, keys)
    raise BusyError("another process keeps changing it; open it when that has ended", path=source.path)


def _scan_remote(
    source: Source, report: index.Report, db: str | None
) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """The same for a file on a server, of which not all is fetched."""
    meta = read_meta(source.view(0, min(source.size, 2 * 65536 + 256)), source.path)
    tree = meta.main
    walked = remote.walk(source, meta.page_size, tree)
    remote.walk(source, meta.page_size, meta.free)
    names = _texts(walked.keys.take(walked.named))
    if db is not None:
        if db not in names:
            raise OptionError(no_such("database", db, names), path=source.path)
        record = source.view(int(walked.arrays["starts"][walked.named[names.index(db)]]), 48)
        tree = _native.lmdb_tree(np.ascontiguousarray(record))
        walked = remote.walk(source, meta.page_size, tree)
        names = []
    if names and len(names) == len(walked.arrays["starts"]):
        raise OptionError(_choose(names), path=source.path)
    report(source.size)
    arrays = {name: np.delete(array, walked.named) for name, array in walked.arrays.items()}
    return arrays, _facts(meta, db, tree, walked.keys.data)


def _facts(meta: Meta, db: str | None, tree: Tree, keys: U8) -> dict[str, Any]:
    return {
        "db": db,
        "transaction": meta.transaction,
        "page_size": meta.page_size,
        "ordered": not tree[3] & OTHER_ORDER,
        "printable": bool(((keys >= 0x20) & (keys < 0x7F)).all()),
    }


def _choose(names: list[str]) -> str:
    return f"it holds databases; choose one with db (--option db=NAME): {', '.join(names)}"


def walk(data: U8, meta: Meta, tree: Tree, path: str) -> tuple[dict[str, AnyArray], AnyArray]:
    """The entries of a tree, and the numbers of those that are databases."""
    walked = _native.lmdb_walk(data, meta.page_size, tree)
    key_starts, key_sizes, starts, sizes, named, failure, duplicates = walked
    if duplicates:
        raise SchemaError(
            "a key has several values (MDB_DUPSORT), which batchplant cannot read as samples", path=path
        )
    if failure is not None:
        raise DamagedError(failure[0], path=path, offset=failure[1])
    return {"key_starts": key_starts, "key_sizes": key_sizes, "starts": starts, "sizes": sizes}, named


def _names(data: U8, arrays: dict[str, AnyArray], named: AnyArray) -> list[str]:
    return _texts(gathered(data, arrays["key_starts"][named], arrays["key_sizes"][named].astype(np.int64)))


def _texts(keys: Ragged) -> list[str]:
    return [key.tobytes().decode(errors="replace") for key in keys if key is not None]


def _named(data: U8, meta: Meta, db: str, path: str) -> Tree:
    arrays, named = walk(data, meta, meta.main, path)
    names = _names(data, arrays, named)
    if db not in names:
        raise OptionError(no_such("database", db, names), path=path)
    start = int(arrays["starts"][named[names.index(db)]])
    return _native.lmdb_tree(data[start : start + 48])


def _without(arrays: dict[str, AnyArray], named: AnyArray, data: U8, path: str) -> dict[str, AnyArray]:
    if not len(named):
        return arrays
    if len(named) == len(arrays["starts"]):
        raise OptionError(_choose(_names(data, arrays, named)), path=path)
    return {name: np.delete(array, named) for name, array in arrays.items()}


def before(keys: Ragged, bounds: Ragged) -> Flags:
    """Compare keys bytewise; of equal prefixes, the shorter comes first."""
    width = max(1, int(keys.sizes.max(initial=0)), int(bounds.sizes.max(initial=0)))
    padded = [np.zeros((len(keys), width), dtype=np.uint8) for _ in range(2)]
    for grid, cells in zip(padded, (keys, bounds), strict=True):
        places = np.arange(len(cells), dtype=np.int64) * width
        _native.copy_runs(cells.data, cells.starts.copy(), cells.sizes, grid.reshape(-1), places)
    left_keys, right_keys = (grid.view(f"S{width}")[:, 0] for grid in padded)
    return (left_keys < right_keys) | ((left_keys == right_keys) & (keys.sizes < bounds.sizes))
