"""Shards, opened when samples of them are wanted, and where the cells lie in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .... import _native
from ....errors import DamagedError, DecodeError
from ....schema.columns import I64, U8, AnyArray, Flags, Ragged, as_bytes, starts_of
from ....storage import MappedSource, RemoteSource, Source
from ....storage.cache import ChunkCache

# Shards that are kept open, and what each takes at least: the first bytes of an object on a server. A process
# may map some 65,000 files.
MAX_OPEN_SHARDS = 4096
MIN_OPEN_BYTES = 64 << 10
# Shards on a server that are opened side by side.
OPEN_THREADS = 16


class Opened(NamedTuple):
    """A shard whose table is known: where its samples begin, and the last one ends.

    ``absent``: by the name of a column, which samples lack a cell of it, where the shard itself says so.
    ``head``: before this byte there is no sample; None: the table lies before them, whose size tells it.
    """

    source: Source
    table: npt.NDArray[np.uint32]
    absent: dict[str, Flags] | None = None
    head: int | None = None


class Records(NamedTuple):
    """Samples of one shard: ``rows`` of those asked for, which lie at ``starts`` of it.

    ``data``: what they were read into, at ``at``; None where only their sizes are to be fetched.
    """

    rows: I64
    shard: Opened
    local: I64
    starts: I64
    sizes: I64
    data: U8 | None
    at: I64


class Located(NamedTuple):
    """Locations of cells: starts and sizes for each column, in the data of their records."""

    records: list[Records]
    cells: dict[str, tuple[I64, I64]]


class Shards:
    """All shards, safe from many threads.

    ``counts``: the samples of each. ``columns``: names, with the size of all cells or None where samples tell
    it. ``bare``: samples tell no sizes; the one column is all of each. ``file`` opens the file of a shard,
    ``load`` reads its table, and ``packed`` says whether it has to be unpacked for that. ``remote``: shards
    lie on a server; then their tables, or the files of packed ones, are fetched side by side and stay.
    """

    def __init__(
        self,
        counts: Sequence[int],
        columns: Sequence[tuple[str, int | None]],
        file: Callable[[int], Source],
        load: Callable[[int, Source], Opened],
        packed: Callable[[int], bool],
        *,
        remote: bool,
        bare: bool = False,
    ) -> None:
        # The first sample of each, and behind the last.
        self.firsts = starts_of(np.array(counts, dtype=np.int64))
        self._places = {name: number for number, (name, _) in enumerate(columns)}
        self._fixed = np.array([size or 0 for _, size in columns], dtype=np.int64)
        self._varying = [number for number, (_, size) in enumerate(columns) if size is None]
        self._file, self._load, self._packed, self._bare = file, load, packed, bare
        self.remote = remote
        self._open = ChunkCache(MAX_OPEN_SHARDS * MIN_OPEN_BYTES)
        self._unpacked = ChunkCache()
        # Packed files on a server: what was asked for ahead is held by their sources.
        self._files = ChunkCache(MAX_OPEN_SHARDS)

    def open(self, number: int) -> Opened:
        """A shard whose table was read; a packed one is unpacked."""
        if self._packed(number):
            return self._unpacked.get(
                number, lambda: self._load(number, self.file(number)), lambda shard: shard.source.size
            )
        return self._open.get(number, lambda: self._load(number, self._file(number)), _open_bytes)

    def file(self, number: int) -> Source:
        """The file of a shard as it lies there."""
        return (
            self._files.get(number, lambda: self._file(number), _one) if self.remote else self._file(number)
        )

    def open_together(self, numbers: Sequence[int]) -> None:
        """Open shards on a server side by side; of packed ones only the files."""
        waiting = [
            functools.partial(self.file if self._packed(number) else self.open, number)
            for number in numbers
            if (self._files if self._packed(number) else self._open).all_of([number]) is None
        ]
        if len(waiting) > 1:
            with ThreadPoolExecutor(min(OPEN_THREADS, len(waiting)), "batchplant-shards") as threads:
                for done in [threads.submit(task) for task in waiting]:
                    done.result()

    def is_packed(self, number: int) -> bool:
        """True if all of a shard has to be unpacked to read a sample of it."""
        return self._packed(number)

    def are_open(self, numbers: Sequence[int]) -> bool:
        """True if all of these are, as they are in their files."""
        return not any(map(self._packed, numbers)) and self._open.all_of(numbers) is not None

    def in_place(self, indices: I64) -> bool:
        """True if none of these samples lies in a shard that has to be unpacked."""
        return not any(map(self._packed, np.unique(self.numbers(indices)).tolist()))

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
        """Locate samples of a shard, bounds checked."""
        shard = self.open(number)
        local = indices - self.firsts[number]
        starts = shard.table[local].astype(np.int64)
        sizes = shard.table[local + 1] - starts
        head = 4 * len(shard.table) + 4 if shard.head is None else shard.head
        bad = shard.source.outside(starts, sizes, head=head)
        if bad is not None:
            raise DamagedError(
                f"the shard says that it lies from {starts[bad]} to {starts[bad] + sizes[bad]}",
                path=shard.source.path, sample=int(indices[bad]), offset=int(4 + 4 * local[bad]),
            )  # fmt: skip
        return shard, starts, sizes

    def _records(self, number: int, rows: I64, indices: I64, *, whole: bool) -> Records:
        shard, starts, sizes = self.runs(number, indices[rows])
        local = indices[rows] - self.firsts[number]
        source = shard.source
        if not isinstance(source, RemoteSource):
            source.request(starts, sizes)
            return Records(rows, shard, local, starts, sizes, source.view(0, source.size), starts)
        if not whole:
            return Records(rows, shard, local, starts, sizes, None, starts)
        records = source.gather(starts, sizes)
        return Records(rows, shard, local, starts, sizes, records.data, records.starts)

    def _sizes(self, records: Records, indices: I64) -> I64:
        """The sizes of the cells of all columns: (samples, columns); checked against that of the sample."""
        if self._bare:
            return records.sizes[:, None]
        count = len(self._varying)
        sizes = np.tile(self._fixed, (len(records.rows), 1))
        remaining = records.sizes - 4 * count - self._fixed.sum()
        if count and (remaining >= 0).all():
            if records.data is None:
                heads = records.shard.source.gather(records.starts, np.full(len(records.rows), 4 * count))
                stated = heads.data.view("<u4").reshape(-1, count)
            else:
                stated = numbers_at(records.data, records.at, count, "<u4")
            sizes[:, self._varying] = stated
            remaining = remaining - stated.sum(axis=1, dtype=np.int64)
        bad = remaining != 0
        if bad.any():
            row = int(np.argmax(bad))
            raise DamagedError(
                f"its cells take {records.sizes[row] - remaining[row]} bytes, and it has "
                f"{records.sizes[row]}",
                path=records.shard.source.path, sample=int(indices[records.rows[row]]),
                offset=int(records.starts[row]),
            )  # fmt: skip
        return sizes

    def locate(self, indices: I64, fields: Sequence[str], *, whole: bool = False) -> Located:
        """Locate the cells of these columns. ``whole``: all of each sample will be read."""
        cells = {name: (np.zeros_like(indices), np.zeros_like(indices)) for name in fields}
        records = []
        if self.remote:
            self.open_together(np.unique(self.numbers(indices)).tolist())
        head = 0 if self._bare else 4 * len(self._varying)
        for number, rows in self.groups(indices):
            located = self._records(number, rows, indices, whole=whole)
            records.append(located)
            sizes = self._sizes(located, indices)
            ends = np.cumsum(sizes, axis=1) + (located.at + head)[:, None]
            for name in fields:
                starts, counts = cells[name]
                counts[rows] = sizes[:, self._places[name]]
                starts[rows] = ends[:, self._places[name]] - counts[rows]
        return Located(records, cells)

    def gather(self, located: Located, starts: I64, sizes: I64) -> Ragged:
        """A copy of these runs, one for each row."""
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        for record in located.records:
            ranges = np.ascontiguousarray(starts[record.rows]), np.ascontiguousarray(sizes[record.rows])
            if record.data is not None and not isinstance(record.shard.source, MappedSource):
                _native.copy_runs(record.data, *ranges, data, offsets[record.rows])
            else:
                record.shard.source.gather_into(*ranges, data, offsets[record.rows])
        return Ragged(data, offsets)

    def close(self) -> None:
        self._open.clear()
        self._unpacked.clear()
        self._files.clear()


def _open_bytes(shard: Opened) -> int:
    """The memory of an open shard: a mapped table takes none."""
    return MIN_OPEN_BYTES + (shard.table.nbytes if shard.table.flags.owndata else 0)


def _one(_: Source) -> int:
    return 1


def table_of(source: Source, samples: int, path: str) -> npt.NDArray[np.uint32]:
    """The table of a shard, which the index says has so many samples."""
    count = int(source.array("<u4", 0, 1)[0])
    if count != samples:
        message = f"it has {count} samples, and the index says {samples}"
        raise DamagedError(message, path=path, offset=0)
    if not isinstance(source, RemoteSource):
        return source.array("<u4", 4, count + 1)
    # A copy: a part of a block, or of the first bytes, would hold all of it.
    return source.only(4, 4 * (count + 1)).view("<u4").copy()


def numbers_at(data: U8, starts: I64, count: int, dtype: str) -> AnyArray:
    """``count`` numbers of this dtype at each start: (starts, count)."""
    numbers = data[starts[:, None] + np.arange(count * np.dtype(dtype).itemsize)]
    return np.ascontiguousarray(numbers).view(dtype)


def wrong(bad: npt.NDArray[np.bool_], message: str) -> None:
    """A DecodeError for the first row where something is."""
    if bad.any():
        raise DecodeError(message, sample=int(np.argmax(bad)))


def records_of(cells: Sequence[Ragged], stated: Sequence[bool]) -> Ragged:
    """The samples of these columns: the sizes of those that are told, and then the cells."""
    rows = len(cells[0])
    varying = [cells_of_column for cells_of_column, tells in zip(cells, stated, strict=True) if tells]
    heads = np.empty((rows, len(varying)), "<u4")
    for number, cells_of_column in enumerate(varying):
        heads[:, number] = cells_of_column.sizes
    parts = [Ragged(as_bytes(heads), np.arange(rows + 1) * 4 * len(varying)), *cells]
    sizes = [part.sizes for part in parts]
    offsets = starts_of(np.sum(sizes, axis=0))
    data, offset = np.empty(offsets[-1], dtype=np.uint8), offsets[:-1].copy()
    for part, size in zip(parts, sizes, strict=True):
        _native.copy_runs(part.data, np.ascontiguousarray(part.starts), size, data, offset)
        offset += size
    return Ragged(data, offsets)
