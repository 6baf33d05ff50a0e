"""The shards of a set, opened when samples of them are wanted, and where the cells lie in them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _native, limits
from ...columns import I64, U8, Ragged, starts_of
from ...errors import BatchplantError, DamagedError, NotFoundError
from ...storage import MappedSource, RemoteSource, Source, is_remote, join, open_source, tree
from ...storage.cache import ChunkCache
from .cells import numbers_at
from .index import Index, Shard
from .packing import unpack

# Shards that are kept open; a process may map some 65,000 files.
OPEN_MOST = 4096


class Opened(NamedTuple):
    """A shard whose table is known: where its samples begin, and the last one ends."""

    source: Source
    table: npt.NDArray[np.uint32]


class Records(NamedTuple):
    """Samples of one shard: ``rows`` of those asked for, which lie at ``starts`` of it.

    ``data``: what they were read into, at ``at``; None where only their sizes are to be fetched.
    """

    rows: I64
    shard: Opened
    starts: I64
    sizes: I64
    data: U8 | None
    at: I64


class Located(NamedTuple):
    """Where cells lie: starts and sizes for each column, in the data of their records."""

    records: list[Records]
    cells: dict[str, tuple[I64, I64]]


class Shards:
    """All shards, safe from many threads."""

    def __init__(self, path: str, index: Index) -> None:
        self._path = path
        self._columns = index.columns
        self.all = index.shards
        # The first sample of each, and behind the last.
        self.firsts = starts_of(np.array([one.samples for one in self.all], dtype=np.int64))
        self._fixed = np.array([one.size or 0 for _, one in index.columns], dtype=np.int64)
        self._varying = [place for place, (_, one) in enumerate(index.columns) if one.size is None]
        self._open = ChunkCache(OPEN_MOST)
        self._unpacked = ChunkCache()
        # Whoever shuffles takes a number for each sample, so many have to be there.
        if 8 * int(self.firsts[-1]) > limits.allowed():
            for one in self.all:
                self._check_size(one)

    def open(self, number: int) -> Opened:
        shard = self.all[number]
        cache, size = (self._open, 1) if shard.packed is None else (self._unpacked, shard.raw.size)
        return cache.get(number, functools.partial(self._load, shard), lambda _: size)

    def are_open(self, numbers: Sequence[int]) -> bool:
        """Whether all of these are, as they are in their files."""
        packed = any(self.all[number].packed is not None for number in numbers)
        return not packed and self._open.all_of(numbers) is not None

    def _load(self, shard: Shard) -> Opened:
        path, packed = self.file_of(shard)
        try:
            source = open_source(path)
        except NotFoundError:
            raise DamagedError("the index lists it, but it is not there", path=path) from None
        told = shard.raw if packed is None else shard.packed
        if told is None or source.size != told.size:
            said = 0 if told is None else told.size
            raise DamagedError(f"it has {source.size} bytes, and the index says {said}", path=path)
        if packed is not None:
            source = unpack(source, packed, shard.raw.size)
        try:
            count = int(source.array("<u4", 0, 1)[0])
            if count != shard.samples:
                raise DamagedError(f"it has {count} samples, and the index says {shard.samples}", offset=0)
            return Opened(source, source.array("<u4", 4, count + 1))
        except BatchplantError as error:
            raise error.at(path=path) from None

    def _check_size(self, shard: Shard) -> None:
        path, packed = self.file_of(shard)
        size = tree.size_below(path)
        if shard.raw.size > (size if packed is None else limits.allowed(size)):
            raise DamagedError(f"the index says {shard.raw.size} bytes, and it has {size}", path=path)

    def file_of(self, shard: Shard) -> tuple[str, str | None]:
        """The file to read, and how it is packed; Streaming may have unpacked it already."""
        raw = join(self._path, shard.raw.name)
        if shard.packed is None or (not is_remote(raw) and tree.is_file(raw)):
            return raw, None
        return join(self._path, shard.packed.name), shard.compression

    # -- where cells lie -------------------------------------------------------------------------------

    def numbers(self, indices: I64) -> I64:
        """The shards that samples are in."""
        return np.searchsorted(self.firsts, indices, side="right") - 1

    def groups(self, indices: I64) -> Iterator[tuple[int, I64]]:
        """The shards of these samples, and the rows that each has."""
        numbers = self.numbers(indices)
        if len(numbers) and (numbers == numbers[0]).all():
            yield int(numbers[0]), np.arange(len(indices))
            return
        order = np.argsort(numbers, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if len(rows):
                yield int(numbers[rows[0]]), rows

    def runs(self, number: int, indices: I64) -> tuple[Opened, I64, I64]:
        """Where samples of a shard lie in it, bounds checked."""
        shard = self.open(number)
        local = indices - self.firsts[number]
        starts = shard.table[local].astype(np.int64)
        sizes = shard.table[local + 1] - starts
        bad = shard.source.outside(starts, sizes, head=4 * len(shard.table) + 4)
        if bad is not None:
            raise DamagedError(
                f"the shard says that it lies from {starts[bad]} to {starts[bad] + sizes[bad]}",
                path=shard.source.path, sample=int(indices[bad]), offset=int(4 + 4 * local[bad]),
            )  # fmt: skip
        return shard, starts, sizes

    def _records(self, number: int, rows: I64, indices: I64, *, whole: bool) -> Records:
        shard, starts, sizes = self.runs(number, indices[rows])
        source = shard.source
        if not isinstance(source, RemoteSource):
            source.will_need(starts, sizes)
            return Records(rows, shard, starts, sizes, source.view(0, source.size), starts)
        if not whole:
            return Records(rows, shard, starts, sizes, None, starts)
        found = source.gather(starts, sizes)
        return Records(rows, shard, starts, sizes, found.data, found.starts)

    def _sizes(self, records: Records, indices: I64) -> I64:
        """The sizes of the cells of all columns: (samples, columns); checked against that of the sample."""
        count = len(self._varying)
        found = np.tile(self._fixed, (len(records.rows), 1))
        left = records.sizes - 4 * count - self._fixed.sum()
        if count and (left >= 0).all():
            if records.data is None:
                heads = records.shard.source.gather(records.starts, np.full(len(records.rows), 4 * count))
                told = heads.data.view("<u4").reshape(-1, count)
            else:
                told = numbers_at(records.data, records.at, count, 4)
            found[:, self._varying] = told
            left = left - told.sum(axis=1, dtype=np.int64)
        bad = left != 0
        if bad.any():
            row = int(np.argmax(bad))
            raise DamagedError(
                f"its cells take {records.sizes[row] - left[row]} bytes, and it has {records.sizes[row]}",
                path=records.shard.source.path, sample=int(indices[records.rows[row]]),
                offset=int(records.starts[row]),
            )  # fmt: skip
        return found

    def locate(self, indices: I64, fields: Sequence[str], *, whole: bool = False) -> Located:
        """Where the cells of these columns lie. ``whole``: all of each sample will be read."""
        places = {name: place for place, (name, _) in enumerate(self._columns)}
        cells = {name: (np.zeros_like(indices), np.zeros_like(indices)) for name in fields}
        records = []
        for number, rows in self.groups(indices):
            found = self._records(number, rows, indices, whole=whole)
            records.append(found)
            sizes = self._sizes(found, indices)
            ends = np.cumsum(sizes, axis=1) + (found.at + 4 * len(self._varying))[:, None]
            for name in fields:
                starts, counts = cells[name]
                counts[rows] = sizes[:, places[name]]
                starts[rows] = ends[:, places[name]] - counts[rows]
        return Located(records, cells)

    def gather(self, located: Located, starts: I64, sizes: I64) -> Ragged:
        """A copy of these runs, one for each row."""
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        for one in located.records:
            own = np.ascontiguousarray(starts[one.rows]), np.ascontiguousarray(sizes[one.rows])
            if one.data is not None and not isinstance(one.shard.source, MappedSource):
                _native.copy_runs(one.data, *own, data, offsets[one.rows])
            else:
                one.shard.source.gather_into(*own, data, offsets[one.rows])
        return Ragged(data, offsets)

    def close(self) -> None:
        self._open.clear()
        self._unpacked.clear()
