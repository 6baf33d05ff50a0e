"""Freshness and writing of an index: :class:`SideCar`, :class:`Draft`.

The ``stamp`` of an index identifies the state of its file. For a local file: its size, its modification time,
and a hash of pieces spread over it (see :func:`_sample`). For an object on a server: its size and its ETag;
if the server reports none, a hash of its first and last bytes.

An index that was made for a local file and then uploaded together with it has another stamp than the object.
It is used if the size is the same and so are the hashed pieces, which takes a few small requests. That is as
safe as the stamp of a local file but for the time: pieces could be alike, and the bytes between them not.

A local side-car is never visible half-written: it is written to a hidden draft, which is locked while the
scanner runs and renamed at the end. A second process waits for the lock and then finds a fresh side-car. The
lock ends with its process, so a killed process leaves nothing but a draft for the next one to take over. An
object appears when its upload is complete.

A side-car that is stale, damaged, or of another kind is no error. It is made anew.

Layout of a ``.bpindex`` file, little-endian: ``BPIDX1\n\0`` (8 bytes), u32 length of the JSON that follows,
u32 CRC32C of it, the JSON, zeros up to a multiple of 64, then the arrays, each from a multiple of 64 on. The
JSON::

    {"kind": "tfrecord", "version": 1,              which scanner made it, and in which layout of its own
     "stamp": {"size": …, "mtime": …, "sample": …}, what the file was like that it belongs to
     "facts": {…},                                  whatever the scanner wants to remember
     "arrays": {name: {"dtype": "<i8", "shape": […], "start": …, "crc": …}}}

``start`` counts from the first array. ``crc`` is the CRC32C of the array's bytes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...errors import BatchplantError
from ...schema import MOST_BYTES
from ...schema.columns import U8, AnyArray, as_bytes
from .. import NOTE_ERRORS, RemoteSource, Source, parse_object, sync, tree
from ..files import open_with_status
from ..platform import try_lock
from ..remote import Entry, Got, client_of, fetcher, trying
from ..remote.blocks import CHUNK_BYTES, NOW
from .progress import check_stop

POLL_SECONDS = 0.02

SAMPLE_BYTES = 4096
SAMPLE_PIECES = 32
# Bytes that an index may always have; a larger one has at most a few times the bytes of its data.
MAX_FETCHED_BYTES = 64 << 20
MAX_DATA_FACTOR = 4


class FileGroup(Source):
    """A dataset of several files, about which results are remembered as about one; its bytes are not read.

    ``state`` identifies its state: the version of a table, or a summary of a listing. ``options``: those of
    the reader. ``fresh`` returns a reader that has read nothing yet, if this one may have cached cells from
    before the listing.
    """

    def __init__(
        self,
        path: str,
        files: Iterable[Entry],
        *,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        fresh: Callable[[], Any] | None = None,
    ) -> None:
        entries = sorted(files)
        super().__init__(path, sum(entry.size for entry in entries))
        hashed = hashlib.blake2b(digest_size=16)
        for entry in entries:
            hashed.update(f"{entry.name}\0{entry.size}\0{entry.tag}\0".encode(errors="surrogateescape"))
        self.state: Facts = {**state, "files": len(entries), "size": self.size, "hash": hashed.hexdigest()}
        self.options, self.fresh = options, fresh


class SideCar:
    """The conditions that an index must meet to be used: the file, and the scanner with its version."""

    def __init__(
        self, source: Source, kind: str, version: int, check: Callable[[Index], bool] | None
    ) -> None:
        self.source, self.kind, self.version, self.check = source, kind, version, check
        self._stamp: Facts | None = None
        self._sample: str | None = None

    def stamp(self) -> Facts | None:
        """Return the state of the file when it was first asked for."""
        self._stamp = self._stamp or _stamp(self.source)
        return self._stamp

    def _is_copy(self, stamp: Facts) -> bool:
        """Return whether an object has the bytes of the local file that an index was made for."""
        if not isinstance(self.source, RemoteSource) or "mtime" not in stamp:
            return False
        if stamp["size"] != self.source.size:
            return False
        self._sample = self._sample or _sample(self.source, SAMPLE_PIECES)
        return bool(stamp["sample"] == self._sample)

    def accept(self, content: Content, header: Facts, location: str, stored: int) -> Index | None:
        """Return the index that this JSON describes; None unless it is intact, of this kind, and fresh."""
        if (header["kind"], header["version"]) != (self.kind, self.version):
            return None
        copied = header["stamp"] != self.stamp()
        if copied and not self._is_copy(header["stamp"]):
            return None
        index = Index(content.arrays(header["arrays"]), dict(header["facts"]), location, stored)
        index.copied = copied
        return index if self.check is None or self.check(index) else None

    def read(self, location: Path | str) -> Index | None:
        """Return the index at a local path or a URL; None unless it is intact, of this kind, and fresh."""
        # Damaged content is no reason to fail: the index is made anew.
        with contextlib.suppress(OSError, BatchplantError, *NOTE_ERRORS):
            if isinstance(location, Path):
                content = read(location)
            else:
                data = fetched(location, self.source.size)
                if data is None:
                    return None
                content = parse(data)
            return self.accept(content, content.header, str(location), len(content.data))
        return None

    def read_shorter(self, path: Path) -> tuple[Index, int] | None:
        """Return the index of the file before something was appended, and the file's size then.

        The bytes that the stamp has a hash of are unchanged up to there.
        """
        with contextlib.suppress(OSError, BatchplantError, *NOTE_ERRORS):
            content = read(path)
            header = content.header
            stamp, size = header["stamp"], int(header["stamp"]["size"])
            same_kind = (header["kind"], header["version"]) == (self.kind, self.version)
            if not same_kind or "mtime" not in stamp or not 0 < size < self.source.size:
                return None
            if _sample(self.source, SAMPLE_PIECES, size) != stamp["sample"]:
                return None
            index = Index(content.arrays(header["arrays"]), dict(header["facts"]), str(path), 0)
            return (index, size) if self.check is None or self.check(index) else None
        return None

    def header(self, index: Index, entries: Facts) -> Facts:
        return {
            "kind": self.kind, "version": self.version, "stamp": self.stamp(), "facts": index.facts,
            "arrays": entries,
        }  # fmt: skip

    def _packed(self, index: Index) -> Parts:
        entries, parts, _ = lay_out(index.arrays)
        return packed(self.header(index, entries), parts)

    def unchanged(self) -> bool:
        """Return whether the file is unchanged since the stamp, so that an index of it would be right."""
        return self._stamp is not None and self._stamp == _stamp(self.source)

    def write(self, draft: Draft, index: Index) -> bool:
        """Write a side-car; return False if the file changed meanwhile, so that it would be wrong."""
        if not self.unchanged():
            return False
        draft.write(self._packed(index))
        return True

    def put(self, url: str, index: Index) -> int:
        """Write it to a server; return the number of bytes."""
        return put(url, self._packed(index))


def fetched(url: str, data_size: int) -> U8 | None:
    """Return all bytes of an index on a server, of so much data; None if there is none."""
    if tree.is_absent(url):
        return None
    client, name = client_of(url)

    def get(start: int) -> Got:
        return client.get(name, start, start + CHUNK_BYTES)

    first: Got = fetcher().submit(lambda: get(0), CHUNK_BYTES, NOW).future.result()
    if first.size > max(MAX_FETCHED_BYTES, MAX_DATA_FACTOR * data_size):
        raise ValueError("it is larger than an index can be")
    out = np.empty(max(first.size, len(first.data)), dtype=np.uint8)
    out[: len(first.data)] = first.data
    tasks = [
        (start, fetcher().submit(functools.partial(get, start), CHUNK_BYTES, NOW))
        for start in range(len(first.data), first.size, CHUNK_BYTES)
    ]
    for start, task in tasks:
        part: Got = task.future.result()
        if part.tag != first.tag or len(part.data) != min(CHUNK_BYTES, first.size - start):
            raise ValueError("it changed while it was fetched")
        out[start : start + len(part.data)] = part.data
    return out


def put(url: str, parts: Parts) -> int:
    """Write an index to a server; return the number of bytes."""
    client, name = client_of(url)
    data = joined(parts)
    trying(lambda: client.put(name, data.tobytes()))
    return len(data)


def delete(url: str) -> None:
    """Remove an index from a server."""
    client, name = client_of(url)
    trying(lambda: client.delete([name]))


def _stamp(source: Source) -> Facts | None:
    """Return the state of a file; None if it is unknown."""
    if isinstance(source, FileGroup):
        return source.state
    if isinstance(source, RemoteSource):
        # If the server reports no tag, the bytes themselves have to tell.
        return {"size": source.size, "tag": source.tag, "sample": "" if source.tag else _sample(source, 2)}
    try:
        status = os.stat(source.path)
    except OSError:
        return None
    # Replaced since it was opened.
    if status.st_size != source.size:
        return None
    return {"size": source.size, "mtime": status.st_mtime_ns, "sample": _sample(source, SAMPLE_PIECES)}


def _sample(source: Source, pieces: int, size: int | None = None) -> str:
    """Return a hash of pieces from the first byte to the last (or ``size``); of all bytes of a small file."""
    size = source.size if size is None else size
    if size <= SAMPLE_BYTES * pieces:
        starts, sizes = np.zeros(1, dtype=np.int64), np.array([size])
    else:
        starts = np.arange(pieces, dtype=np.int64) * (size - SAMPLE_BYTES) // (pieces - 1)
        sizes = np.full(pieces, SAMPLE_BYTES, dtype=np.int64)
    return hashlib.blake2b(source.gather(starts, sizes).data.data, digest_size=16).hexdigest()


class TooLongError(Exception):
    """Another process took too long."""


def draft_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


class Draft:
    """The hidden file in which a side-car is written; its process holds a lock, and renames it at the end."""

    def __init__(self, target: Path, wait: float) -> None:
        self.target = target
        self.path = draft_path(target)
        self._renamed = False
        target.parent.mkdir(parents=True, exist_ok=True)
        give_up = time.monotonic() + wait
        while not self._take():
            if time.monotonic() > give_up:
                raise TooLongError
            check_stop()
            time.sleep(POLL_SECONDS)

    def _take(self) -> bool:
        # Another user who may write to the folder could put a link there, to have another file overwritten.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            try:
                fd = os.open(self.path, flags)
            except FileNotFoundError:
                return False
            facts = os.fstat(fd)
            # A file of another user, or with a second name, is not ours to write; do not wait for its lock.
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_nlink > 1:
                os.close(fd)
                raise PermissionError(errno.EPERM, "it is no file of this user", self.path) from None
        try:
            # The previous holder may have renamed or removed the file since it was opened here.
            if try_lock(fd) and os.path.samestat(os.fstat(fd), os.stat(self.path, follow_symlinks=False)):
                self._fd = fd
                return True
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return False

    def write(self, parts: Parts) -> None:
        """Write these parts, and give the file its name."""
        # Remove what a killed process left.
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, size_of(parts))
        for start, data in parts:
            view = data.data
            while view:
                done = os.pwrite(self._fd, view, start)
                view, start = view[done:], start + done
        os.fsync(self._fd)
        os.replace(self.path, self.target)
        self._renamed = True
        with contextlib.suppress(OSError):
            sync(self.target.parent)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._renamed:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
        # A child that was forked meanwhile keeps the lock, but on a file that is no draft any more.
        os.close(self._fd)


# -- layout ----------------------------------------------------------------------------------------------

MAGIC = b"BPIDX1\n\0"
ALIGN = 64
# No dtype that could hold a Python object.
DTYPES = ("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
MAX_HEADER_BYTES = 16 << 20

Arrays = dict[str, AnyArray]
Facts = dict[str, Any]
Parts = list[tuple[int, U8]]


class Index:
    """Result of a scan: ``arrays`` by name, read-only, and ``facts`` as JSON.

    ``place``: the file that contains it, None if it is only in memory; ``stored``: its bytes there.
    ``built``: whether the file was scanned for it just now; ``sent``: whether it was written just now.
    ``remark``: why it is where it is.
    """

    def __init__(self, arrays: Arrays, facts: Facts, place: str | None = None, stored: int = 0) -> None:
        self.arrays = arrays
        self.facts = facts
        self.place = place
        self.stored = stored
        self.built = False
        self.sent = False
        # Whether it was made for a local copy of an object, which only the bytes can tell.
        self.copied = False
        self.remark: str | None = None

    @property
    def size(self) -> int:
        """The fact ``size``, the number of scanned bytes; ValueError if it is invalid."""
        size = self.facts["size"]
        if type(size) is not int or not 0 <= size < MOST_BYTES:
            raise ValueError(f"a size of {size!r}")
        return size

    def has(self, **dtypes: str) -> bool:
        """Return whether it has these one-dimensional arrays of these dtypes; KeyError if one is missing."""
        return all(
            self.arrays[name].ndim == 1 and self.arrays[name].dtype.str[1:] == dtype
            for name, dtype in dtypes.items()
        )


class Content(NamedTuple):
    """A file of this layout: its JSON, where its arrays begin, and all of its bytes."""

    header: Facts
    first: int
    data: U8

    def array(self, entry: Facts) -> AnyArray:
        """Return an array, in place."""
        if entry["dtype"] not in DTYPES:
            raise ValueError("it has an array of another dtype")
        dtype, size = np.dtype(entry["dtype"]), 1
        for length in entry["shape"]:
            if type(length) is not int or length < 0:
                raise ValueError("it has an array of no shape")
            size *= length
        start, size = self.first + entry["start"], size * dtype.itemsize
        if start % ALIGN or not self.first <= start <= start + size <= len(self.data):
            raise ValueError("it has an array that is not in the file")
        data = self.data[start : start + size]
        if _native.crc32c(data.data) != entry["crc"]:
            raise ValueError("it has a damaged array")
        return data.view(dtype).reshape(entry["shape"])

    def arrays(self, entries: Facts) -> Arrays:
        return {str(name): self.array(entry) for name, entry in entries.items()}


def parse(data: U8) -> Content:
    """Parse a file of this layout; ValueError and the like if it is not one."""
    head = data[:16].tobytes()
    size, crc = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    if head[:8] != MAGIC or size > min(len(data) - 16, MAX_HEADER_BYTES):
        raise ValueError("it is no index")
    text = data[16 : 16 + size].tobytes()
    if _native.crc32c(text) != crc:
        raise ValueError("its header is damaged")
    return Content(parse_object(text), -(-(16 + size) // ALIGN) * ALIGN, data)


def read(path: Path) -> Content:
    """Map and parse a local file; OSError if another user may have put it there.

    It is mapped, so its owner could change offsets after they were checked. In a folder that everybody may
    write to, only files of the folder's owner, root and this user are accepted.
    """
    fd, facts = open_with_status(path)
    try:
        folder = os.stat(path.parent)
        if folder.st_mode & stat.S_IWOTH and facts.st_uid not in (os.geteuid(), 0, folder.st_uid):
            raise PermissionError(errno.EPERM, "it belongs to another user", path)
        return parse(np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), dtype=np.uint8))
    finally:
        os.close(fd)


def lay_out(arrays: Arrays, end: int = 0) -> tuple[Facts, Parts, int]:
    """Return the JSON entries of arrays that begin at ``end``, their starts and bytes, and the new end."""
    entries, parts = {}, []
    for name, array in arrays.items():
        data = as_bytes(array)
        start = -(-end // ALIGN) * ALIGN
        crc = _native.crc32c(data.data)
        entries[name] = {"dtype": array.dtype.str, "shape": array.shape, "start": start, "crc": crc}
        parts.append((start, data))
        end = start + len(data)
    return entries, parts, end


def packed(header: Facts, parts: Parts) -> Parts:
    """Return all parts of a file: their starts and bytes."""
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"the facts of the index {header['kind']} are too many; keep them in arrays")
    head = MAGIC + len(text).to_bytes(4, "little") + _native.crc32c(text).to_bytes(4, "little") + text
    first = -(-len(head) // ALIGN) * ALIGN
    return [(0, as_bytes(head)), *((first + start, data) for start, data in parts)]


def size_of(parts: Parts) -> int:
    return max(start + len(data) for start, data in parts)


def joined(parts: Parts) -> U8:
    """Return the bytes of a whole file, in memory."""
    out = np.zeros(size_of(parts), dtype=np.uint8)
    for start, data in parts:
        out[start : start + len(data)] = data
    return out
