"""Files that are members of a ZIP archive: in place where they are stored, unpacked one by one where not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from ....errors import BatchplantError
from ....schema.columns import I64, U8, Ragged
from ....storage import Source, open_source
from ....storage.compressed import UnpackedSource
from ....storage.spans import Spans
from ....storage.zips import ZipMembers
from .files import Files


def open_member(path: str, name: str) -> Source:
    """Return the source of a member of an archive, unpacked."""
    with contextlib.closing(open_source(path)) as source:
        return UnpackedSource(f"{path}/{name}", ZipMembers(source).view(name).copy())


class ZipFiles(Files):
    """Members of an archive below ``prefix``. What is wrong with one is an error with its row for sample."""

    def __init__(self, path: str, prefix: str) -> None:
        super().__init__(f"{path}/{prefix}")
        self._source = open_source(path)
        self._members = ZipMembers(self._source)
        self._prefix = prefix

    def _run(self, row: int, name: str) -> tuple[int, int]:
        """Return where the bytes of a stored member lie."""
        try:
            start, size = self._members.start(self._prefix + name), self._members.size(self._prefix + name)
            self._source.check_bounds(start, size)
            return start, size
        except BatchplantError as error:
            error.sample = row
            raise

    def sizes(self, names: Sequence[str]) -> I64:
        sizes = [self._members.info(self._prefix + name).file_size for name in names]
        return np.array(sizes, dtype=np.int64)

    def spans(self, names: Sequence[str]) -> Spans | None:
        if not all(self._members.stored(self._prefix + name) for name in names):
            return None
        self._members.will_need(self._prefix + name for name in names)
        runs = np.array([self._run(row, name) for row, name in enumerate(names)], np.int64).reshape(-1, 2)
        return Spans([self._source], runs[:, 0].copy(), runs[:, 1].copy())

    def read(self, names: Sequence[str]) -> Ragged:
        cells = []
        for row, name in enumerate(names):
            try:
                cells.append(self._members.view(self._prefix + name))
            except BatchplantError as error:
                error.sample = row
                raise
        return Ragged.from_cells(cells)

    def some(self, names: Sequence[str], limit: int) -> Iterator[U8]:
        for name in names[:: max(1, len(names) // limit)][:limit]:
            with contextlib.suppress(BatchplantError):
                yield self._members.view(self._prefix + name)

    def heads(self, names: Sequence[str], limit: int) -> Ragged:
        heads: list[U8 | None] = []
        for name in names:
            head = None
            with contextlib.suppress(BatchplantError):
                head = self._members.head(self._prefix + name, limit)
            heads.append(head)
        return Ragged.from_cells(heads)

    def has(self, name: str) -> bool:
        """Return whether there is such a member."""
        return self._prefix + name in self._members

    def close(self) -> None:
        self._source.close()
