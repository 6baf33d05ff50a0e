"""What a client of a server is: :class:`Client`, what it gives, and how it fails.

A client makes one request for each call and tries it once; fetch.py tries again. What came of a request is
noted in the client's :class:`~.outage.Outage`, by which fetch.py decides for how long.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, SupportsInt

import numpy as np

from ...errors import AccessError, BatchplantError
from ...schema.columns import U8
from ..files import is_below
from ..settings import DEFAULT_RETRY_SECONDS, StorageOptions
from .outage import Outage

# Answers after which trying again is of use.
BUSY = (408, 425, 429, 500, 502, 503, 504, 509)
GONE = (404, 410)
REFUSED = (401, 403)
# Seconds without a byte after which a request is given up; what stalls is asked for again long before.
SILENCE = 30.0
# Seconds after which a request is given up even if bytes still trickle in.
MAX_REQUEST_SECONDS = 900.0
# No store has larger objects. Sums of a few such sizes still fit into 64 bits.
MAX_OBJECT_BYTES = 1 << 60
NO_SIZE = "the server does not say how large it is, so no part can be asked for; copy it to a disk"


class TransientError(AccessError):
    """A request failed, and may succeed the next time; ``after``: seconds that the server asks for."""

    after: float = 0.0
    # Of the server that it is about, and whether that answered at all.
    outage: Outage | None = None
    answered = False


class RefusedError(AccessError):
    """The server does not let us."""


class NoServerError(AccessError):
    """There is no server of this name."""


class BeyondError(AccessError):
    """The range lies behind the end of the object (416)."""


class Entry(NamedTuple):
    """An object: its name below the root, its size, and what changes when it does (ETag, else a date)."""

    name: str
    size: int
    tag: str


class Got(NamedTuple):
    """Bytes of an object, and what the server said about the whole of it."""

    data: U8
    size: int
    tag: str


Data = bytes | Path | Iterable[Any]
REQUESTS = ("head", "get", "get_whole", "level", "walk", "put", "copy", "delete")
# Characters of a name in a warning.
MAX_NAME = 100


class Client(ABC):
    """One bucket or host. Names of objects have no leading slash."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url, self.options = url, options
        seconds = options.retry_seconds
        self.outage = Outage(url, DEFAULT_RETRY_SECONDS if seconds is None else seconds)
        # Requests that were made, by what they were for.
        self.requests = self.bytes = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in REQUESTS:
            if name in cls.__dict__:
                setattr(cls, name, WRAPPERS.get(name, _noted)(cls.__dict__[name]))

    def counted(self, got: Got) -> Got:
        """What came, counted."""
        self.bytes += len(got.data)
        return got

    @abstractmethod
    def head(self, name: str) -> Entry:
        """What an object is like; NotFoundError where there is none."""

    @abstractmethod
    def get(self, name: str, start: int, end: int) -> Got:
        """The bytes [start, end) of an object, fewer where it ends before."""

    @abstractmethod
    def get_whole(self, name: str) -> Got:
        """All bytes of an object."""

    @abstractmethod
    def level(self, folder: str) -> tuple[list[Entry], list[str]]:
        """The objects right in a folder, and the folders in it; nothing where there is no such folder."""

    @abstractmethod
    def walk(self, folder: str, after: str | None = None) -> Iterator[Entry]:
        """All objects below a folder, in order of their names; ``after``: only those behind this name."""

    @abstractmethod
    def put(self, name: str, data: Data, size: int | None = None) -> str:
        """Write an object from bytes, from a local file (a Path), or from pieces of ``size`` bytes in all.

        It appears when it is complete. Its tag is given back where the server tells. An error that comes out
        of the pieces breaks the upload off.
        """

    @abstractmethod
    def copy(self, name: str, to: str) -> None:
        """Copy an object on the server."""

    @abstractmethod
    def delete(self, names: list[str]) -> None:
        """Remove objects; those that are not there are none."""


@contextlib.contextmanager
def _noting(client: Client) -> Iterator[None]:
    """Note in the client's outage whether the server answered."""
    try:
        yield
    except TransientError as error:
        error.outage = client.outage
        if error.answered:
            client.outage.answered = True
        raise
    except NoServerError:
        raise
    except BatchplantError:
        client.outage.end()
        raise
    client.outage.end()


def _noted(request: Callable[..., Any]) -> Callable[..., Any]:
    """The request, which also notes whether the server answered."""

    @functools.wraps(request)
    def noted(self: Client, *args: Any, **options: Any) -> Any:
        with _noting(self):
            return request(self, *args, **options)

    return noted


def _checked_walk(request: Callable[..., Iterator[Entry]]) -> Callable[..., Iterator[Entry]]:
    """The request, noted, without the objects whose names do not lie below the folder."""

    @functools.wraps(request)
    def checked(self: Client, folder: str, *args: Any, **options: Any) -> Iterator[Entry]:
        names = _Names(self.url, folder)
        with _noting(self):
            for entry in request(self, folder, *args, **options):
                if names.holds(entry.name):
                    yield entry
        names.warn()

    return checked


def _checked_level(request: Callable[..., Any]) -> Callable[..., tuple[list[Entry], list[str]]]:
    """The request, noted, without the names that do not lie right in the folder."""

    @functools.wraps(request)
    def checked(self: Client, folder: str) -> tuple[list[Entry], list[str]]:
        names = _Names(self.url, folder)
        with _noting(self):
            entries, folders = request(self, folder)
        level = (
            [entry for entry in entries if names.holds(entry.name, right_in=True)],
            [name for name in folders if names.holds(name, right_in=True)],
        )
        names.warn()
        return level

    return checked


# How the requests of a client are wrapped, other than by _noted.
WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "level": _checked_level,
    "walk": _checked_walk,
}


class _Names:
    """The names of one listing: those that are passed over, because they lead out of the folder.

    Servers, and whoever may upload, choose names. A name with ``..`` in it, joined to a folder, would be
    a place outside of it, to read, to copy to and to remove. One with ``.`` or an empty part would be
    taken for another object, for URLs are normalized.
    """

    def __init__(self, url: str, folder: str) -> None:
        self._url = f"{url}/{folder}" if folder else url
        self._folder = folder.rstrip("/")
        self._begin = f"{self._folder}/" if self._folder else ""
        self._refused, self._example = 0, ""

    def holds(self, name: str, *, right_in: bool = False) -> bool:
        """Whether a name lies below the folder, or right in it."""
        plain = name[:-1] if name.endswith("/") else name
        # A folder may be an object of its own, of no bytes.
        if plain == self._folder:
            return False
        inside = plain[len(self._begin) :]
        if (
            plain.startswith(self._begin)
            and is_below(inside, is_listed=True)
            and posixpath.normpath(inside) == inside
            and not (right_in and "/" in inside)
        ):
            return True
        self._refused, self._example = self._refused + 1, self._example or name[:MAX_NAME]
        return False

    def warn(self) -> None:
        if self._refused:
            warnings.warn(
                f"{self._url}: {self._refused:,} of the names that the server lists are ignored, for they "
                f"name no file below this folder, such as {self._example!a}",
                RuntimeWarning,
                stacklevel=4,
            )


def checked_size(told: SupportsInt | str | None, path: str) -> int:
    """The size that a server states for an object; AccessError for a size that no object has."""
    try:
        size = int(told) if told is not None else -1
    except (TypeError, ValueError, OverflowError):
        size = -1
    if not 0 <= size <= MAX_OBJECT_BYTES:
        stated = str(told)[:30] if told is not None else "nothing"
        raise AccessError(f"the server states an impossible size: {stated!r}", path=path)
    return size


def as_array(data: Any) -> U8:
    """Bytes of any kind as an array, in place."""
    return np.frombuffer(data, dtype=np.uint8)
