"""Writing environments, with the package lmdb."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from ...data.writer import WriteOptions
from ...errors import DamagedError, OptionError, needs
from ...schema import Schema
from ...schema.columns import Ragged, starts_of
from ...storage import checksums, open_source, side_car
from ..base.records import RecordWriter, note_of
from .pages import DATA, NOTE
from .reader import LmdbReader

FOLDER = "environment"
MAP_BYTES = 64 << 20
PAGE = 4096


def _library() -> ModuleType:
    with needs("writing LMDB needs the package lmdb", "lmdb"):
        import lmdb
    return lmdb


class LmdbWriter(RecordWriter):
    """Writes LMDB environments. ``subdir``: a folder with data.mdb in it; if not, that file alone;
    ``map_size``: how large the map is in the beginning, in bytes; it grows by itself."""

    side_cars: ClassVar[tuple[str, ...]] = ()
    schema_inside: ClassVar[bool] = True
    appends: ClassVar[bool] = True
    # One transaction holds so much in memory.
    transaction_bytes: ClassVar[int] = 16 << 20

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        subdir: bool = True,
        map_size: int = MAP_BYTES,
    ) -> None:
        # More than that no machine maps.
        if not 1 <= map_size < 1 << 47:
            raise OptionError(f"map_size is a number of bytes, not {map_size}", path=path)
        self._lmdb = _library()
        self._subdir = subdir
        self._map_size = max(map_size, 1 << 20)
        self._env: Any = None
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._records: list[tuple[int, Ragged]] = []
        self._held = 0
        if self.base is not None:
            assert isinstance(self.base, LmdbReader)
            self._begin_behind(self.base)
            return
        folder = self.partial.folder / FOLDER
        if state is not None and not (folder / DATA).is_file():
            raise DamagedError(
                "the part that was written earlier is gone; start over, without resume", path=self.path
            )
        folder.mkdir(exist_ok=True)
        size = (folder / DATA).stat().st_size if state is not None else 0
        self._map_size = max(self._map_size, 2 * size)
        # The hidden folder is locked, and synced before it gets its name.
        with self._disk():
            self._env = self._lmdb.open(
                str(folder), map_size=self._map_size, lock=False, sync=False, metasync=False, max_dbs=0
            )
        if state is not None:
            self._cut()

    def _begin_behind(self, base: LmdbReader) -> None:
        """New records wait in the hidden folder, to be put in with one transaction."""
        if not base.is_ours:
            raise self.cannot_append(
                "only an environment that batchplant has written can be: keys are numbers"
            )
        if self._has_checksums:
            name = side_car(self.path, checksums.SIDE_CAR).name
            raise self.cannot_append(f"LMDB commits by itself, and {name} would not fit any more; remove it")
        self._waiting_data, self._waiting_sizes = self.partial.spool("data"), self.partial.spool("sizes")

    def _append_all(self) -> None:
        """All new records in one transaction, which LMDB makes whole: a kill leaves the old state."""
        source = open_source(str(self._waiting_data.path)) if self._waiting_data.size else None
        data = memoryview(b"") if source is None else source.view(0, source.size).data
        sizes = np.frombuffer(self._waiting_sizes.read_at(self._waiting_sizes.size, 0), dtype=np.int64)
        ends = starts_of(sizes).tolist()
        subdir = os.path.isdir(self.path)
        file = os.path.join(self.path, DATA) if subdir else self.path
        # Every record may take a page of its own beside its bytes.
        grown = 2 * len(data) + PAGE * len(sizes)
        self._map_size = max(self._map_size, os.path.getsize(file) + grown + MAP_BYTES)
        with self._disk():
            self._env = self._lmdb.open(self.path, map_size=self._map_size, subdir=subdir, max_dbs=0)
        items: Any = [
            (_key(self.before + row), data[ends[row] : ends[row + 1]]) for row in range(len(ends) - 1)
        ]
        note = note_of(self.schema, self.before + self.written)
        # The note is behind all others, and has to go for them to be put there.
        self._put([*items, (NOTE, note)], without=NOTE)
        self._close()

    def _cut(self) -> None:
        with self._disk(), self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            while cursor.set_range(_key(self.written)):
                cursor.delete()

    def _write_records(self, records: Ragged) -> None:
        if self.base is not None:
            packed = records.take(slice(None))
            self._waiting_data.write(packed.data)
            self._waiting_sizes.write(packed.sizes.astype(np.int64))
            return
        self._records.append((self.written, records))
        self._held += int(records.offsets[-1] - records.offsets[0])
        if self._held >= self.transaction_bytes:
            self._flush()

    def _flush(self) -> None:
        items = []
        for first, records in self._records:
            data, offsets = records.data.data, records.offsets.tolist()
            items += [
                (_key(first + row), data[offsets[row] : offsets[row + 1]]) for row in range(len(records))
            ]
        self._put(items)
        self._records, self._held = [], 0

    def _put(self, items: list[tuple[bytes, Any]], without: bytes | None = None) -> None:
        """All of them in one transaction, and one away; the map is doubled until they fit."""
        while items:
            try:
                with self._disk(), self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
                    if without is not None:
                        transaction.delete(without)
                    cursor.putmulti(items, append=True)
                return
            except self._lmdb.MapFullError:
                self._map_size *= 2
                self._env.set_mapsize(self._map_size)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Errors of the library as those of a disk, which they are; but not that its map is full."""
        try:
            yield
        except self._lmdb.MapFullError:
            raise
        except self._lmdb.Error as error:
            raise OSError(errno.EIO, str(error), self.path) from None

    def _state(self) -> dict[str, Any]:
        self._flush()
        return {}

    def _finish(self) -> str | None:
        if self.base is not None:
            if self.written:
                self._append_all()
            return None
        self._flush()
        self._put([(NOTE, note_of(self.schema, self.written))])
        with self._disk():
            self._env.sync(True)
        self._close()
        return FOLDER if self._subdir else f"{FOLDER}/{DATA}"

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _stop(self) -> None:
        super()._stop()
        self._close()


def _key(number: int) -> bytes:
    return b"%010d" % number
