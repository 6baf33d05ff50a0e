"""What stands in a ``.bpindex`` file, whether it may be used, and how it is written.

Layout, little-endian: ``BPIDX1\\n\\0`` (8 bytes), u32 length of the JSON that follows, u32 CRC32C of it,
the JSON, zeros up to a multiple of 64, then the arrays, each from a multiple of 64 on. The JSON::

    {"kind": "tfrecord", "version": 1,              which scanner made it, and in which layout of its own
     "stamp": {"size": …, "mtime": …, "sample": …}, what the file was like that it belongs to
     "facts": {…},                                  whatever the scanner wants to remember
     "arrays": {name: {"dtype": "<i8", "shape": […], "start": …, "crc": …}}}

``start`` counts from the first array. ``crc`` is the CRC32C of the array's bytes. ``sample`` is a hash of
pieces spread over the file (see :func:`_sample`); a URL has ``info`` in place of ``mtime``: whatever of ETag,
time and checksum its store tells.

Nobody ever sees half a side-car: it is made in a hidden file, which is locked while the scanner runs and
renamed at the end. A second process waits for the lock and then finds a fresh side-car. The lock goes with
the process that holds it, so one that is killed leaves nothing but a hidden file for the next to take over.

A side-car that is stale, damaged, or of another kind is no error. It is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...columns import U8, as_bytes
from ...errors import BatchplantError
from ...schema import MOST_BYTES
from .. import NOTE_ERRORS, RemoteSource, Source, open_regular, parse_object, sync
from .progress import check_stop

MAGIC = b"BPIDX1\n\0"
ALIGN = 64
# Nothing that could hold a Python object.
DTYPES = ("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
MOST_HEADER = 16 << 20

# How many seconds to wait for another process that is building the same index.
WAIT = 120.0
POLL = 0.02

PIECE = 4096
PIECES = 32

Arrays = dict[str, npt.NDArray[Any]]
Facts = dict[str, Any]


class Index:
    """What a scanner found: ``arrays`` by name, read-only, and ``facts`` as JSON.

    ``place``: the side-car in which it lies, None where it is only in memory. ``built``: whether the file
    was scanned for it just now.
    """

    def __init__(self, arrays: Arrays, facts: Facts, place: str | None = None) -> None:
        self.arrays = arrays
        self.facts = facts
        self.place = place
        self.built = False

    @property
    def size(self) -> int:
        """The fact ``size``, how many bytes were scanned; ValueError where it is no such number."""
        size = self.facts["size"]
        if type(size) is not int or not 0 <= size < MOST_BYTES:
            raise ValueError(f"a size of {size!r}")
        return size

    def has(self, **dtypes: str) -> bool:
        """Whether it has these arrays, with one axis and of these dtypes; KeyError where one is missing."""
        return all(
            self.arrays[name].ndim == 1 and self.arrays[name].dtype.str[1:] == dtype
            for name, dtype in dtypes.items()
        )


class SideCar:
    """What a side-car must agree with to be used: the file, and the scanner with its version."""

    def __init__(
        self, source: Source, kind: str, version: int, check: Callable[[Index], bool] | None
    ) -> None:
        self.source, self.kind, self.version, self.check = source, kind, version, check
        self._stamp: Facts | None = None

    def stamp(self) -> Facts | None:
        """What the file was like when it was first asked for."""
        self._stamp = self._stamp or _stamp(self.source)
        return self._stamp

    def read(self, place: Path) -> Index | None:
        """The index at a place; None unless it is there, whole, of this kind, and fresh."""
        # Whatever the bytes are, they are no reason to fail: the index is made anew.
        with contextlib.suppress(OSError, BatchplantError, *NOTE_ERRORS):
            header, start, data = _open(place)
            if (header["kind"], header["version"]) != (self.kind, self.version):
                return None
            if header["stamp"] != self.stamp():
                return None
            arrays = {str(name): _array(one, data, start) for name, one in header["arrays"].items()}
            found = Index(arrays, dict(header["facts"]), str(place))
            return found if self.check is None or self.check(found) else None
        return None

    def write(self, draft: Draft, index: Index) -> bool:
        """Write a side-car; False where the file changed meanwhile, so that it would be wrong."""
        if self._stamp is None or self._stamp != _stamp(self.source):
            return False
        entries, parts, end = {}, [], 0
        for name, array in index.arrays.items():
            data = as_bytes(array)
            start = -(-end // ALIGN) * ALIGN
            crc = _native.crc32c(data.data)
            entries[name] = {"dtype": array.dtype.str, "shape": array.shape, "start": start, "crc": crc}
            parts.append((start, data))
            end = start + len(data)
        header = {
            "kind": self.kind,
            "version": self.version,
            "stamp": self._stamp,
            "facts": index.facts,
            "arrays": entries,
        }
        text = json.dumps(header).encode()
        if len(text) > MOST_HEADER:
            raise ValueError(f"the facts of the index {self.kind} are too many; keep them in arrays")
        head = MAGIC + len(text).to_bytes(4, "little") + _native.crc32c(text).to_bytes(4, "little") + text
        first = -(-len(head) // ALIGN) * ALIGN
        draft.write([(0, as_bytes(head)), *((first + start, data) for start, data in parts)])
        return True


def _open(place: Path) -> tuple[dict[str, Any], int, U8]:
    """The header of a side-car, where its arrays begin, and all of its bytes, mapped."""
    fd = open_regular(place)
    try:
        data = np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    finally:
        os.close(fd)
    head = data[:16].tobytes()
    size, crc = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    if head[:8] != MAGIC or size > min(len(data) - 16, MOST_HEADER):
        raise ValueError("it is no index")
    text = data[16 : 16 + size].tobytes()
    if _native.crc32c(text) != crc:
        raise ValueError("its header is damaged")
    header = parse_object(text)
    return header, -(-(16 + size) // ALIGN) * ALIGN, data


def _array(entry: dict[str, Any], data: U8, first: int) -> npt.NDArray[Any]:
    """One array out of a side-car, in place."""
    if entry["dtype"] not in DTYPES:
        raise ValueError("it has an array of another dtype")
    dtype, size = np.dtype(entry["dtype"]), 1
    for length in entry["shape"]:
        if type(length) is not int or length < 0:
            raise ValueError("it has an array of no shape")
        size *= length
    start, size = first + entry["start"], size * dtype.itemsize
    if start % ALIGN or not first <= start <= start + size <= len(data):
        raise ValueError("it has an array that is not in the file")
    found = data[start : start + size]
    if _native.crc32c(found.data) != entry["crc"]:
        raise ValueError("it has a damaged array")
    array: npt.NDArray[Any] = found.view(dtype).reshape(entry["shape"])
    return array


def _stamp(source: Source) -> Facts | None:
    """What tells whether a file is still the same; None where nothing does."""
    if isinstance(source, RemoteSource):
        # Where the server tells nothing, the bytes themselves have to.
        return {"size": source.size, "tag": source.tag, "sample": "" if source.tag else _sample(source, 2)}
    try:
        status = os.stat(source.path)
    except OSError:
        return None
    # Replaced since it was opened.
    if status.st_size != source.size:
        return None
    return {"size": source.size, "mtime": status.st_mtime_ns, "sample": _sample(source, PIECES)}


def _sample(source: Source, pieces: int) -> str:
    """A hash of pieces from the first byte to the last; of all bytes of a small file."""
    if source.size <= PIECE * pieces:
        starts, sizes = np.zeros(1, dtype=np.int64), np.array([source.size])
    else:
        starts = np.arange(pieces, dtype=np.int64) * (source.size - PIECE) // (pieces - 1)
        sizes = np.full(pieces, PIECE, dtype=np.int64)
    return hashlib.blake2b(source.gather(starts, sizes).data.data, digest_size=16).hexdigest()


class TooLongError(Exception):
    """Another process took too long."""


def draft_path(place: Path) -> Path:
    return place.with_name(f".{place.name}.partial")


class Draft:
    """The hidden file in which a side-car is made: one process holds its lock, and renames it at the end."""

    def __init__(self, place: Path, wait: float | None = None) -> None:
        self.place = place
        self.path = draft_path(place)
        self._made = False
        place.parent.mkdir(parents=True, exist_ok=True)
        give_up = time.monotonic() + (WAIT if wait is None else wait)
        while not self._take():
            if time.monotonic() > give_up:
                raise TooLongError
            check_stop()
            time.sleep(POLL)

    def _take(self) -> bool:
        # Whoever may write to the folder could have put a link there, to have another file overwritten.
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one who held it may have renamed or removed the file since it was opened here.
            if os.path.samestat(os.fstat(fd), os.stat(self.path, follow_symlinks=False)):
                self._fd = fd
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return False

    def write(self, parts: list[tuple[int, U8]]) -> None:
        """Write these bytes at these places, and give the file its name."""
        # Nothing stays of what a killed process left.
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, max(start + len(data) for start, data in parts))
        for start, data in parts:
            view = data.data
            while view:
                done = os.pwrite(self._fd, view, start)
                view, start = view[done:], start + done
        os.fsync(self._fd)
        os.replace(self.path, self.place)
        self._made = True
        with contextlib.suppress(OSError):
            sync(self.place.parent)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._made:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
        # A child that was forked meanwhile keeps the lock, but on a file that is no draft any more.
        os.close(self._fd)
