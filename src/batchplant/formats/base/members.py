"""Members of tar archives as the files of a column: spans, so that nothing is unpacked."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...errors import DamagedError
from ...schema.columns import I32, I64, U8, Ragged, starts_of
from ...storage import Source, index, open_source
from ...storage.spans import Spans

# A part of an archive that is scanned at once, larger than the largest header.
SCANNED_BYTES = 32 << 20
_NUMBER = re.compile(r"\d+(?=\D*$)")


def number_of(path: str) -> int | None:
    """Return the last number in the name of a file: that of a shard, whatever is around it."""
    matched = _NUMBER.search(path.rpartition("/")[2])
    return None if matched is None else int(matched[0])


def tar_members(source: Source, start: int, size: int) -> list[tuple[bytes, bytes, int, int]]:
    """Return (key, extension, offset, size) of every member of an archive that lies in a file.

    The extension begins behind the first dot of the name.
    """
    scanner = _native.TarScanner()
    failure = None
    while scanner.next < size and failure is None:
        offset = scanner.next
        failure = scanner.scan(source.view(start + offset, min(SCANNED_BYTES, size - offset)), size)
    result: dict[str, Any] = {"failure": failure} if failure is not None else scanner.finish()
    if result["failure"] is not None:
        message, offset = result["failure"]
        raise DamagedError(message, offset=start + offset)
    text, ends = result["keys"].tobytes(), result["key_offsets"].tolist()
    keys = [text[ends[row] : ends[row + 1]] for row in result["rows"].tolist()]
    counts = np.diff(result["extension_offsets"]).tolist()
    extensions = [
        name for name, count in zip(result["extensions"], counts, strict=True) for _ in range(count)
    ]
    starts, sizes = (result["starts"] + start).tolist(), result["sizes"].tolist()
    return list(zip(keys, extensions, starts, sizes, strict=True))


class Archive:
    """A tar archive, scanned once, and where its members are by their names without the last extension."""

    def __init__(self, path: str, *, mode: str, left_out: Sequence[bytes] = ()) -> None:
        self.source = open_source(path)

        def scan(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
            members = tar_members(source, 0, source.size)
            names = [b"%s.%s" % member[:2] for member in members]
            arrays: index.Arrays = {
                "names": np.frombuffer(b"".join(names), dtype=np.uint8),
                "name_offsets": starts_of(np.array([len(name) for name in names], dtype=np.int64)),
                "runs": np.array([member[2:] for member in members], dtype=np.int64).reshape(-1),
            }
            return arrays, {}

        arrays = index.load(self.source, "members", scan, mode=mode, check=_is_scan).arrays
        self.runs = arrays["runs"].reshape(-1, 2)
        bad = self.source.outside(self.runs[:, 0], self.runs[:, 1])
        if bad is not None:
            raise DamagedError("a member ends outside of the file", path=path, offset=int(self.runs[bad, 0]))
        text, ends = arrays["names"].tobytes(), arrays["name_offsets"].tolist()
        self.by_stem: dict[str, int] = {}
        for number in range(len(self.runs)):
            stem, _, extension = text[ends[number] : ends[number + 1]].rpartition(b".")
            if extension not in left_out:
                self.by_stem.setdefault(stem.decode("utf-8", "replace"), number)


def _is_scan(loaded: index.Index) -> bool:
    if not loaded.has(names="u1", name_offsets="i8", runs="i8"):
        return False
    names, offsets, runs = (loaded.arrays[name] for name in ("names", "name_offsets", "runs"))
    return (
        len(runs) == 2 * (len(offsets) - 1)
        and bool((np.diff(offsets) >= 0).all())
        and [int(offsets[0]), int(offsets[-1])] == [0, len(names)]
    )


class Members:
    """The files of a column that are members of archives.

    ``rows``: gives the archive and the member of each sample when they are first wanted; a member of -1 is
    missing, and of -2 named in vain.
    """

    def __init__(
        self, path: str, field: str, archives: Sequence[Archive], rows: Callable[[], tuple[I32, I64]]
    ) -> None:
        self._path, self._field, self._archives, self._load = path, field, archives, rows

    @functools.cached_property
    def _runs(self) -> tuple[I32, I64]:
        """Return the archive of each sample, and where its member lies; a size of -1 or -2 is none."""
        archive, member = self._load()
        runs = np.zeros((len(member), 2), dtype=np.int64)
        runs[:, 1] = np.minimum(member, 0)
        for number, tar in enumerate(self._archives):
            rows = np.flatnonzero((archive == number) & (member >= 0))
            runs[rows] = tar.runs[member[rows]]
        return archive, runs

    def spans(self, rows: I64) -> Spans:
        """Return each member as a span."""
        archive, runs = self._runs
        starts, sizes = runs[rows].T.copy()
        if (sizes < -1).any():
            row = int(rows[np.argmax(sizes < -1)])
            message = "the archives have no member of the name that the manifest has"
            raise DamagedError(message, path=self._path, field=self._field, sample=row)
        return Spans([tar.source for tar in self._archives], starts, sizes, archive[rows])

    ahead = spans

    def contents(self, rows: I64) -> Iterable[U8 | None]:
        """Return the bytes of each member where they lie."""
        return views(self.spans(rows))

    def read(self, rows: I64) -> Ragged:
        """Return the bytes of members."""
        return Ragged.from_cells(list(self.contents(rows)))

    def path_of(self, row: int) -> str | None:
        """Return the archive of a row."""
        return self._archives[int(self._runs[0][row])].source.path if self._archives else None

    def close(self) -> None:
        for tar in self._archives:
            tar.source.close()


def views(spans: Spans) -> Iterator[U8 | None]:
    """Yield the bytes of spans where they lie."""
    for number, start, size in zip(
        spans.file.tolist(), spans.start.tolist(), spans.size.tolist(), strict=True
    ):
        yield None if size < 0 else spans.sources[number].view(start, size)
