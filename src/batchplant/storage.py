"""Bytes of files, local or remote: read by range, and written so that nothing is ever half there.

Reading: :func:`open_source` gives a :class:`Source`. A local file is mapped and its views are free of
copies; a URL (``s3://…``, ``https://…``) goes through fsspec, near ranges merged into one request.

Writing: :class:`Partial` is a hidden folder beside the target in which a writer works. The target
appears by one rename when it is complete; a writer that is killed leaves only the hidden folder, which a
resumed writer continues from its last checkpoint and any other writer clears away.
"""

from __future__ import annotations

import fcntl
import io
import json
import mmap
import os
import shutil
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from .columns import I64, U8, Ragged, as_bytes, starts_of
from .errors import BusyError, DamagedError, ExistsError, MissingLibraryError, NotFoundError, OptionError

# A gap that costs less to read than another request: about 10 ms at 100 MB/s.
RANGE_GAP = 1 << 20
RANGE_MOST = 64 << 20


def is_remote(path: str) -> bool:
    return "://" in path


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


class Source:
    """One file to read from, safe from many threads."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.closed = False

    def _check_open(self) -> None:
        if self.closed:
            raise OptionError("it was closed, and cannot be read any more", path=self.path)

    def view(self, start: int, size: int) -> U8:
        """These bytes; outside of the file is a DamagedError."""
        self._check_open()
        start, size = int(start), int(size)
        if start < 0 or size < 0 or start + size > self.size:
            raise DamagedError(
                f"{size} bytes are needed here, but the file ends at {self.size}",
                path=self.path,
                offset=start,
            )
        return self._view(start, size)

    def _view(self, start: int, size: int) -> U8:
        raise NotImplementedError

    def array(self, dtype: npt.DTypeLike, start: int, count: int) -> npt.NDArray[Any]:
        """``count`` items of this dtype from ``start`` on."""
        dtype = np.dtype(dtype)
        return self.view(start, count * dtype.itemsize).view(dtype)

    def outside(self, starts: I64, sizes: I64) -> int | None:
        """The first run that does not lie in the file, or None."""
        self._check_open()
        bad = (starts < 0) | (sizes < 0) | (starts > self.size) | (sizes > self.size - starts)
        return int(np.argmax(bad)) if bad.any() else None

    def gather(self, starts: I64, sizes: I64) -> Ragged:
        """A copy of many runs, one after another; the caller has checked them with :meth:`outside`."""
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        self._gather(np.ascontiguousarray(starts), np.ascontiguousarray(sizes), data, offsets[:-1])
        return Ragged(data, offsets)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        raise NotImplementedError

    def file(self) -> io.BufferedReader:
        """A file object over the same bytes, for libraries that want one."""
        return io.BufferedReader(_SourceFile(self))

    def close(self) -> None:
        """Let go of the file."""
        self.closed = True


class _SourceFile(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("seek before the start of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._source.size - self._at))
        buffer[:size] = self._source.view(self._at, size).tobytes() if size else b""
        self._at += size
        return size


# The files that some reader holds mapped, so that nobody maps them again.
_MAPPED: weakref.WeakValueDictionary[str, MappedSource] = weakref.WeakValueDictionary()


def mapped(path: str) -> U8 | None:
    """The bytes of a local file that a reader has open already, else None."""
    found = _MAPPED.get(path)
    return None if found is None or found.closed else found.data


class MappedSource(Source):
    """A local file, mapped."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            super().__init__(path, os.fstat(file.fileno()).st_size)
            # An empty file cannot be mapped.
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        self.data: U8 = np.frombuffer(mapping, dtype=np.uint8)
        _MAPPED[path] = self

    def _view(self, start: int, size: int) -> U8:
        return self.data[start : start + size]

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        _native.copy_runs(self.data, starts, sizes, out, out_starts)

    def close(self) -> None:
        # The mapping itself lives as long as somebody holds a view of it.
        self.data = np.empty(0, dtype=np.uint8)
        super().close()


class RemoteSource(Source):
    """A URL, read by range through fsspec."""

    def __init__(self, path: str) -> None:
        try:
            self._fs, self._name = _fsspec().core.url_to_fs(path)
        # fsspec says which package drives the protocol, or that it knows none.
        except (ImportError, ValueError) as error:
            kind = MissingLibraryError if isinstance(error, ImportError) else OptionError
            raise kind(str(error), path=path) from None
        try:
            super().__init__(path, int(self._fs.size(self._name)))
        except FileNotFoundError:
            raise NotFoundError("no such file", path=path) from None

    def _view(self, start: int, size: int) -> U8:
        if size == 0:
            return np.empty(0, dtype=np.uint8)
        return self._whole(self._fs.cat_file(self._name, start, start + size), start, size)

    def _whole(self, data: bytes, start: int, size: int) -> U8:
        if len(data) != size:
            raise DamagedError(f"{len(data)} of {size} bytes came", path=self.path, offset=start)
        return np.frombuffer(data, dtype=np.uint8)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        # A range of no bytes cannot be asked for over HTTP.
        some = np.flatnonzero(sizes)
        ranges, where = plan_ranges(starts[some], sizes[some])
        firsts, ends = [first for first, _ in ranges], [end for _, end in ranges]
        parts = self._fs.cat_ranges([self._name] * len(ranges), firsts, ends, on_error="raise")
        for number, ((first, end), part) in enumerate(zip(ranges, parts, strict=True)):
            rows = some[where == number]
            data = self._whole(part, first, end - first)
            _native.copy_runs(data, starts[rows] - first, sizes[rows], out, out_starts[rows])


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise MissingLibraryError('URLs need fsspec: pip install "batchplant[remote]"') from None
    return fsspec


def open_source(path: str) -> Source:
    """The bytes of a local file or a URL."""
    if is_remote(path):
        return RemoteSource(path)
    try:
        return MappedSource(path)
    except FileNotFoundError:
        raise NotFoundError("no such file", path=path) from None
    except IsADirectoryError:
        raise NotFoundError("this is a folder, a file is needed", path=path) from None


class Spool:
    """A file inside a Partial: grows at its end, or is written at an offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.size = os.fstat(self._fd).st_size

    def write(self, data: Any) -> None:
        self.write_at(data, self.size)

    def write_at(self, data: Any, offset: int) -> None:
        view = as_bytes(data).data
        while view:
            done = os.pwrite(self._fd, view, offset)
            view, offset = view[done:], offset + done
            self.size = max(self.size, offset)

    def read_at(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def resize(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = size

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def side_car(path: str | Path, template: str) -> Path:
    """The file beside another: the template ``{name}.crc`` or ``{stem}.idx`` filled in."""
    path = Path(path)
    return path.with_name(template.format(name=path.name, stem=path.stem))


def partial_folder(target: str, *, sharded: bool = False) -> Path:
    """Where a target is made until it is complete."""
    path = Path(f"{target}.shards" if sharded else target)
    return path.with_name(f".{path.name}.partial")


class Partial:
    """The hidden folder in which ``target`` is made, locked against a second writer."""

    def __init__(self, target: str, *, overwrite: bool = False, resume: bool = False) -> None:
        if is_remote(target):
            raise OptionError("writing goes to local paths; copy the finished file there", path=target)
        self.target = Path(target)
        self.overwrite = overwrite
        if not self.target.name:
            raise OptionError("the target needs a name", path=target)
        self.check_target()
        self.folder = partial_folder(target)
        self._spools: dict[str, Spool] = {}
        self._lock = -1
        self._take_lock()
        self.state: dict[str, Any] | None = self._load() if resume else None
        if self.state is None:
            self._clear()

    def check_target(self) -> None:
        if os.path.lexists(self.target) and not self.overwrite:
            raise ExistsError("it exists; replace it with overwrite=True (--overwrite)", path=self.target)

    def _take_lock(self) -> None:
        lock = self.folder / "lock"
        while self._lock < 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another writer may have finished, and removed the folder, between open and flock.
                if lock.exists() and os.path.samestat(os.fstat(fd), lock.stat()):
                    self._lock = fd
            except BlockingIOError:
                raise BusyError("another process is writing it", path=self.target) from None
            finally:
                if self._lock < 0:
                    os.close(fd)

    def _load(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
            whole = all((self.folder / name).stat().st_size >= size for name, size in state["spools"].items())
        # A writer that was killed while it finished may have moved a spool away.
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return state if whole else None

    def _clear(self) -> None:
        for entry in self.folder.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def spool(self, name: str) -> Spool:
        """Open a file in the folder; on a resume it is as long as at the last checkpoint."""
        if name not in self._spools:
            self._spools[name] = spool = Spool(self.folder / name)
            spool.resize(self.state["spools"].get(name, 0) if self.state else 0)
        return self._spools[name]

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Remember that everything up to here is written."""
        state = {**state, "spools": {name: spool.size for name, spool in self._spools.items()}}
        draft = self.folder / "state.json.draft"
        draft.write_text(json.dumps(state))
        os.replace(draft, self.folder / "state.json")

    def commit(
        self, name: str, beside: Iterable[tuple[str, str]] = (), side_cars: Iterable[str] = ()
    ) -> None:
        """Move the finished ``name`` to the target, and ``beside`` (name, template) next to it.

        ``side_cars``: templates of what belonged to an older target, and goes with it; see :func:`side_car`.
        """
        self.check_target()
        for spool in self._spools.values():
            spool.sync()
            spool.close()
        made = self.folder / name
        if made.is_dir():
            os.sync()
            if self.target.is_dir() and not self.target.is_symlink():
                os.replace(self.target, self.folder / "replaced")
            elif os.path.lexists(self.target):
                raise ExistsError("it is no folder; remove it first", path=self.target)
        elif self.target.is_dir():
            raise ExistsError("it is a folder; remove it first", path=self.target)
        else:
            sync(made)
        # Never an old side-car beside a new target, whenever the power goes.
        for template in side_cars:
            side_car(self.target, template).unlink(missing_ok=True)
        os.replace(made, self.target)
        for spooled, template in beside:
            os.replace(self.folder / spooled, side_car(self.target, template))
        sync(self.target.parent)
        self.discard()

    def suspend(self) -> None:
        """Stop here and keep the folder for a later resume."""
        for spool in self._spools.values():
            spool.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove the folder and all that is in it."""
        if self._lock >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.suspend()


def sync(path: Path) -> None:
    """Make a file, or the renames in a folder, last through a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
