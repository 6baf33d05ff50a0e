"""URLs (``s3://…``, ``https://…``), through fsspec: near ranges merged into one request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..columns import I64, U8
from ..errors import AccessError, BatchplantError, MissingLibraryError, NotFoundError, OptionError
from .source import Source

# A gap that costs less to read than another request: about 10 ms at 100 MB/s.
RANGE_GAP = 1 << 20
RANGE_MOST = 64 << 20
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, KeyError)
GONE = (404, 410)
REFUSED = (401, 403)


def plan_ranges(
    starts: I64, sizes: I64, *, gap: int = RANGE_GAP, most: int = RANGE_MOST
) -> tuple[list[tuple[int, int]], npt.NDArray[np.int64]]:
    """Merge runs into few ranges: ([(start, end), …], the range that each run lies in)."""
    ranges: list[tuple[int, int]] = []
    where = np.zeros(len(starts), dtype=np.int64)
    for row in np.lexsort((sizes, starts)):
        start, end = int(starts[row]), int(starts[row] + sizes[row])
        if ranges and start <= ranges[-1][1] + gap and max(end, ranges[-1][1]) - ranges[-1][0] <= most:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
        where[row] = len(ranges) - 1
    return ranges, where


class RemoteSource(Source):
    """A URL, read by range."""

    def __init__(self, path: str) -> None:
        self._fs, self._name = file_system(path)
        with asking(path, opening=True):
            size = self._fs.size(self._name)
        if size is None:
            raise AccessError(
                "the server does not say how large it is, so no part can be asked for; copy it to a disk",
                path=path,
            )
        super().__init__(path, int(size))

    def _view(self, start: int, size: int) -> U8:
        if size == 0:
            return np.empty(0, dtype=np.uint8)
        with asking(self.path, start):
            data = self._fs.cat_file(self._name, start=start, end=start + size)
        return self._whole(data, start, size)

    def _whole(self, data: bytes, start: int, size: int) -> U8:
        if len(data) > size:
            message = f"{len(data)} bytes came, not {size}: the server gives no ranges; copy it to a disk"
            raise AccessError(message, path=self.path, offset=start)
        if len(data) != size:
            raise AccessError(f"{len(data)} of {size} bytes came", path=self.path, offset=start)
        return np.frombuffer(data, dtype=np.uint8)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        # A range of no bytes cannot be asked for over HTTP.
        some = np.flatnonzero(sizes)
        ranges, where = plan_ranges(starts[some], sizes[some])
        firsts, ends = [first for first, _ in ranges], [end for _, end in ranges]
        with asking(self.path):
            # One that fails does not keep it from telling which.
            parts = self._fs.cat_ranges([self._name] * len(ranges), firsts, ends, on_error="return")
        for number, ((first, end), part) in enumerate(zip(ranges, parts, strict=True)):
            rows = some[where == number]
            with asking(self.path, first):
                if isinstance(part, BaseException):
                    raise part
            data = self._whole(part, first, end - first)
            _native.copy_runs(data, starts[rows] - first, sizes[rows], out, out_starts[rows])


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's driver for a URL, and what it calls the file."""
    try:
        import fsspec
    except ImportError:
        raise MissingLibraryError('URLs need fsspec: pip install "batchplant[remote]"') from None
    try:
        fs, name = fsspec.core.url_to_fs(url)
    # fsspec says which package drives the protocol, or that it knows none.
    except (ImportError, ValueError) as error:
        kind = MissingLibraryError if isinstance(error, ImportError) else OptionError
        raise kind(str(error), path=url) from None
    return fs, str(name)


@contextlib.contextmanager
def asking(url: str, offset: int | None = None, *, opening: bool = False) -> Iterator[None]:
    """Whatever a driver raises becomes an AccessError with its place; a missing file is told at opening."""
    try:
        yield
    except BatchplantError:
        raise
    # Drivers raise what their libraries raise.
    except Exception as error:
        cause = _cause(error)
        if isinstance(cause, MISSING) or _status(cause) in GONE:
            if opening:
                raise NotFoundError("no such file", path=url) from None
            raise AccessError("it is not there any more", path=url, offset=offset) from cause
        raise AccessError(_words(cause), path=url, offset=offset) from cause


def _cause(error: BaseException) -> BaseException:
    """What was wrong first: the driver for HTTP calls everything at opening a file that is not there."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException | None) -> int | None:
    """What a server answered, where the error tells."""
    for name in ("status", "code"):
        found = getattr(error, name, None)
        if isinstance(found, int):
            return found
    return None


def _words(error: BaseException) -> str:
    status, said = _status(error), (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    if status is not None:
        return f"the server answered {status} {getattr(error, 'message', '')}".rstrip()
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    return f"the server does not give it: {said}"


def refused(error: AccessError) -> bool:
    """Whether a server refused to say whether a file is there."""
    cause = error.__cause__
    return isinstance(cause, PermissionError) or _status(cause) in REFUSED
