"""Whether an index belongs to a file, and how one gets to its place: :class:`SideCar`, :class:`Draft`.

The ``stamp`` of an index says what the file was like that it belongs to. Of a local file: its size, the time
of its last change, and a hash of pieces spread over it (see :func:`_sample`). Of an object on a server: its
size and its ETag; where the server tells none, a hash of its first and last bytes.

An index that was made for a local file and then uploaded together with it has another stamp than the object.
It is used if the size is the same and so are the hashed pieces, which takes a few small requests. That is as
safe as the stamp of a local file but for the time: pieces could be alike, and the bytes between them not.

Nobody ever sees half a local side-car: it is made in a hidden file, which is locked while the scanner runs
and renamed at the end. A second process waits for the lock and then finds a fresh side-car. The lock goes
with the process that holds it, so one that is killed leaves nothing but a hidden file for the next to take
over. An object appears when its upload is complete.

A side-car that is stale, damaged, or of another kind is no error. It is made anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...errors import BatchplantError
from ...schema.columns import U8
from .. import NOTE_ERRORS, RemoteSource, Source, sync, tree
from ..remote import Got, client_of, fetcher, trying
from ..remote.blocks import NOW
from ..remote.cells import PART
from . import container
from .container import Content, Facts, Index, Parts
from .progress import check_stop
from .whole import Whole

# How many seconds to wait for another process that is building the same index.
WAIT = 120.0
POLL = 0.02

PIECE = 4096
PIECES = 32
# An index may always have so many bytes; a larger one no more than a few times those of its data.
MOST_FETCHED = 64 << 20
MOST_TIMES = 4


class SideCar:
    """What an index must agree with to be used: the file, and the scanner with its version."""

    def __init__(
        self, source: Source, kind: str, version: int, check: Callable[[Index], bool] | None
    ) -> None:
        self.source, self.kind, self.version, self.check = source, kind, version, check
        self._stamp: Facts | None = None
        self._sample: str | None = None

    def stamp(self) -> Facts | None:
        """What the file was like when it was first asked for."""
        self._stamp = self._stamp or _stamp(self.source)
        return self._stamp

    def _is_copy(self, stamp: Facts) -> bool:
        """Whether an object has the bytes of the local file that an index was made for."""
        if not isinstance(self.source, RemoteSource) or "mtime" not in stamp:
            return False
        if stamp["size"] != self.source.size:
            return False
        self._sample = self._sample or _sample(self.source, PIECES)
        return bool(stamp["sample"] == self._sample)

    def accept(self, content: Content, header: Facts, place: str, stored: int) -> Index | None:
        """The index that this JSON tells of; None unless it is whole, of this kind, and fresh."""
        if (header["kind"], header["version"]) != (self.kind, self.version):
            return None
        copied = header["stamp"] != self.stamp()
        if copied and not self._is_copy(header["stamp"]):
            return None
        found = Index(content.arrays(header["arrays"]), dict(header["facts"]), place, stored)
        found.copied = copied
        return found if self.check is None or self.check(found) else None

    def read(self, place: Path | str) -> Index | None:
        """The index at a local path or a URL; None unless it is there, whole, of this kind, and fresh."""
        # Whatever the bytes are, they are no reason to fail: the index is made anew.
        with contextlib.suppress(OSError, BatchplantError, *NOTE_ERRORS):
            if isinstance(place, Path):
                content = container.read(place)
            else:
                data = fetched(place, self.source.size)
                if data is None:
                    return None
                content = container.parse(data)
            return self.accept(content, content.header, str(place), len(content.data))
        return None

    def read_shorter(self, place: Path) -> tuple[Index, int] | None:
        """The index of the file as it was before something was appended, and how long it was then.

        The bytes that the stamp has a hash of are what they were, up to there.
        """
        with contextlib.suppress(OSError, BatchplantError, *NOTE_ERRORS):
            content = container.read(place)
            header = content.header
            stamp, size = header["stamp"], int(header["stamp"]["size"])
            known = (header["kind"], header["version"]) == (self.kind, self.version)
            if not known or "mtime" not in stamp or not 0 < size < self.source.size:
                return None
            if _sample(self.source, PIECES, size) != stamp["sample"]:
                return None
            found = Index(content.arrays(header["arrays"]), dict(header["facts"]), str(place), 0)
            return (found, size) if self.check is None or self.check(found) else None
        return None

    def header(self, index: Index, entries: Facts) -> Facts:
        return {
            "kind": self.kind, "version": self.version, "stamp": self.stamp(), "facts": index.facts,
            "arrays": entries,
        }  # fmt: skip

    def _packed(self, index: Index) -> Parts:
        entries, parts, _ = container.lay_out(index.arrays)
        return container.packed(self.header(index, entries), parts)

    def unchanged(self) -> bool:
        """Whether the file is still what it was, so that an index of it would be right."""
        return self._stamp is not None and self._stamp == _stamp(self.source)

    def write(self, draft: Draft, index: Index) -> bool:
        """Write a side-car; False where the file changed meanwhile, so that it would be wrong."""
        if not self.unchanged():
            return False
        draft.write(self._packed(index))
        return True

    def put(self, url: str, index: Index) -> int:
        """Write it to a server; how many bytes."""
        return put(url, self._packed(index))


def fetched(url: str, data_size: int) -> U8 | None:
    """All bytes of an index on a server, of so much data; None where there is none."""
    if tree.is_absent(url):
        return None
    client, name = client_of(url)

    def get(start: int) -> Got:
        return client.get(name, start, start + PART)

    first: Got = fetcher().submit(lambda: get(0), PART, NOW).future.result()
    if first.size > max(MOST_FETCHED, MOST_TIMES * data_size):
        raise ValueError("it is larger than an index can be")
    out = np.empty(max(first.size, len(first.data)), dtype=np.uint8)
    out[: len(first.data)] = first.data
    tasks = [
        (start, fetcher().submit(functools.partial(get, start), PART, NOW))
        for start in range(len(first.data), first.size, PART)
    ]
    for start, task in tasks:
        part: Got = task.future.result()
        if part.tag != first.tag or len(part.data) != min(PART, first.size - start):
            raise ValueError("it changed while it was fetched")
        out[start : start + len(part.data)] = part.data
    return out


def put(url: str, parts: Parts) -> int:
    """Write an index to a server; how many bytes."""
    client, name = client_of(url)
    data = container.joined(parts)
    trying(lambda: client.put(name, data.tobytes()))
    return len(data)


def delete(url: str) -> None:
    """Remove an index from a server."""
    client, name = client_of(url)
    trying(lambda: client.delete([name]))


def _stamp(source: Source) -> Facts | None:
    """What tells whether a file is still the same; None where nothing does."""
    if isinstance(source, Whole):
        return source.state
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


def _sample(source: Source, pieces: int, size: int | None = None) -> str:
    """A hash of pieces from the first byte to the last (or to ``size``); of all bytes of a small file."""
    size = source.size if size is None else size
    if size <= PIECE * pieces:
        starts, sizes = np.zeros(1, dtype=np.int64), np.array([size])
    else:
        starts = np.arange(pieces, dtype=np.int64) * (size - PIECE) // (pieces - 1)
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
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            try:
                fd = os.open(self.path, flags)
            except FileNotFoundError:
                return False
            facts = os.fstat(fd)
            # Nor is a file of another user, or with another name, ours to write; nobody waits for its lock.
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_nlink > 1:
                os.close(fd)
                raise PermissionError(errno.EPERM, "it is no file of this user", self.path) from None
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

    def write(self, parts: Parts) -> None:
        """Write these bytes at these places, and give the file its name."""
        # Nothing stays of what a killed process left.
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, container.size_of(parts))
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
