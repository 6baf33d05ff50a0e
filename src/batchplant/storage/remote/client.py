"""Interface of a client of a server: :class:`Client`, its results, and its errors.

A client makes one request per call and tries it once; fetch.py retries. The client records the outcome of a
request in the :class:`Outage` that all requests to a server share, by which fetch.py decides how long to
retry: over a window of time, not a number of times. So an outage is announced once, and requests that come
after the end of its window do not begin another.
"""

from __future__ import annotations

import contextlib
import posixpath
import random
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, SupportsInt

import numpy as np

from ...errors import AccessError, NotFoundError, shown
from ...schema.columns import U8
from ..files import is_below
from ..settings import DEFAULT_RETRY_SECONDS, StorageOptions

# Status codes after which a retry may help.
BUSY = (408, 425, 429, 500, 502, 503, 504, 509)
GONE = (404, 410)
REFUSED = (401, 403)
# Seconds after which a request is given up even if bytes still trickle in.
MAX_REQUEST_SECONDS = 900.0
# No store has larger objects. Sums of a few such sizes still fit into 64 bits.
MAX_OBJECT_BYTES = 1 << 60
NO_SIZE = "the server does not say how large it is, so no part can be asked for; copy it to a disk"


class TransientError(AccessError):
    """A request failed and may succeed the next time; ``after``: seconds that the server asks to wait."""

    after: float = 0.0
    # The outage of the server, and whether the server answered at all.
    outage: Outage | None = None
    answered = False


class RefusedError(AccessError):
    """The server refuses the request."""


class NoServerError(AccessError):
    """There is no server of this name."""


class BeyondError(AccessError):
    """The range lies behind the end of the object (416)."""


class Entry(NamedTuple):
    """An object: its name below the root, its size, and a tag that changes with it (ETag, else a date)."""

    name: str
    size: int
    tag: str


class Got(NamedTuple):
    """Bytes of an object, and size and tag that the server reported for the whole object."""

    data: U8
    size: int
    tag: str


Data = bytes | Iterable[Any]
# Characters of a name in a warning.
MAX_NAME_LENGTH = 100


def failure_of(
    code: int,
    message: str,
    path: str,
    start: int | None,
    *,
    advice: str = "",
    missing: str = "no such file",
    after: float = 0.0,
) -> AccessError | NotFoundError:
    """Return the error for a status code that a server answered; ``advice``: on what it refuses."""
    if code in GONE:
        return NotFoundError(missing, path=path)
    if code in REFUSED:
        return RefusedError(f"{message}{advice}", path=path, offset=start)
    if code == 416:
        return BeyondError("the range lies behind the end", path=path, offset=start)
    if code not in BUSY:
        return AccessError(message, path=path, offset=start)
    error = TransientError(message, path=path, offset=start)
    error.after, error.answered = after, True
    return error


class Client(ABC):
    """A bucket or host. Names of objects have no leading slash."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url, self.options = url, options
        seconds = options.retry_seconds
        self.outage = Outage(url, DEFAULT_RETRY_SECONDS if seconds is None else seconds)
        # Numbers of requests made and of bytes received.
        self.requests = self.bytes = 0

    def revision(self) -> str | None:
        """Return the version of everything that this client reads; None for a store without versions."""
        return None

    def _shown(self, name: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{name}" if name else self.url

    @abstractmethod
    def _translate(self, error: Exception, name: str, start: int | None, **doing: bool) -> Exception:
        """Return an exception of the client's library as one of ours; ``doing``: listing or writing."""

    @contextlib.contextmanager
    def _asking(self, name: str, start: int | None = None, **doing: bool) -> Iterator[None]:
        """Count the request that is made within it, raise errors of its library as ours, and note outages."""
        self.requests += 1
        try:
            yield
        except Exception as error:
            failure = self._translate(error, name, start, **doing)
            if isinstance(failure, TransientError):
                failure.outage = self.outage
                self.outage.answered = self.outage.answered or failure.answered
            elif not isinstance(failure, NoServerError):
                self.outage.end()
            raise failure from None
        self.outage.end()

    def count(self, answer: Got) -> Got:
        """Count the bytes of an answer, and return it."""
        self.bytes += len(answer.data)
        return answer

    @abstractmethod
    def head(self, name: str) -> Entry:
        """Return the entry of an object; NotFoundError if there is none."""

    @abstractmethod
    def get(self, name: str, start: int, end: int) -> Got:
        """Return the bytes [start, end) of an object, fewer if it ends before."""

    @abstractmethod
    def get_whole(self, name: str) -> Got:
        """Return all bytes of an object."""

    def level(self, folder: str) -> tuple[list[Entry], list[str]]:
        """Return the objects directly in a folder, and its subfolders; nothing if there is no such folder."""
        names = _Names(self.url, folder)
        entries, folders = self._level(folder)
        entries = [entry for entry in entries if names.holds(entry.name, directly=True)]
        folders = [name for name in folders if names.holds(name, directly=True)]
        names.warn()
        return entries, folders

    def walk(self, folder: str, after: str | None = None) -> Iterator[Entry]:
        """Yield all objects below a folder, sorted by name; ``after``: only those after this name."""
        names = _Names(self.url, folder)
        yield from (entry for entry in self._walk(folder, after) if names.holds(entry.name))
        names.warn()

    @abstractmethod
    def _level(self, folder: str) -> tuple[list[Entry], list[str]]:
        """List a folder, as the server does."""

    @abstractmethod
    def _walk(self, folder: str, after: str | None) -> Iterator[Entry]:
        """List all below a folder, as the server does."""

    @abstractmethod
    def put(self, name: str, data: Data, size: int | None = None) -> str:
        """Write an object from bytes, or from pieces of ``size`` bytes in all.

        It appears when it is complete. Returns its tag if the server reports one. An exception raised by the
        iterator of pieces aborts the upload.
        """

    @abstractmethod
    def copy(self, name: str, to: str) -> None:
        """Copy an object on the server."""

    @abstractmethod
    def delete(self, names: list[str]) -> None:
        """Delete objects; missing ones are ignored."""


class _Names:
    """The names of one listing; skips those that lead out of the folder, and warns of them.

    Servers and uploaders choose names. A name with ``..`` in it, joined to a folder, would be a path outside
    of it, to read, to copy to and to delete. One with ``.`` or an empty component would be taken for another
    object, because URLs are normalized.
    """

    def __init__(self, url: str, folder: str) -> None:
        self._url = f"{url}/{folder}" if folder else url
        self._folder = folder.rstrip("/")
        self._begin = f"{self._folder}/" if self._folder else ""
        self._refused, self._example = 0, ""

    def holds(self, name: str, *, directly: bool = False) -> bool:
        """Return whether a name lies below the folder, or ``directly`` in it."""
        plain = name[:-1] if name.endswith("/") else name
        # A folder may be an empty object of its own.
        if plain == self._folder:
            return False
        inside = plain[len(self._begin) :]
        if (
            plain.startswith(self._begin)
            and is_below(inside, is_listed=True)
            and posixpath.normpath(inside) == inside
            and not (directly and "/" in inside)
        ):
            return True
        self._refused, self._example = self._refused + 1, self._example or name[:MAX_NAME_LENGTH]
        return False

    def warn(self) -> None:
        if self._refused:
            warnings.warn(
                f"{self._url}: {self._refused:,} of the names that the server lists are ignored, for they "
                f"name no file below this folder, such as {self._example!a}",
                RuntimeWarning,
                stacklevel=4,
            )


def checked_size(stated: SupportsInt | str | None, path: str) -> int:
    """Return the size that a server states for an object; AccessError for an impossible one."""
    try:
        size = int(stated) if stated is not None else -1
    except (TypeError, ValueError, OverflowError):
        size = -1
    if not 0 <= size <= MAX_OBJECT_BYTES:
        shown = str(stated)[:30] if stated is not None else "nothing"
        raise AccessError(f"the server states an impossible size: {shown!r}", path=path)
    return size


def as_array(data: Any) -> U8:
    """Return bytes of any kind as an array, in place."""
    return np.frombuffer(data, dtype=np.uint8)


# Tries of a request, unless the window is 0: even after the end of the window a request has these.
MIN_TRIES = 3
# Seconds before the second try, their growth factor, and their maximum; all with jitter.
FIRST_PAUSE, PAUSE_GROWTH, MAX_PAUSE = 0.1, 1.5, 10.0
# A pause is at most this fraction of the window.
MAX_PAUSE_SHARE = 1 / 8
# Seconds that a server may ask to wait.
MAX_PAUSE_ASKED = 30.0
# A server that never answered this process may not exist: retry it for at most this many seconds.
MAX_OPENING_SECONDS = 10.0
# An outage is announced when it has lasted this many seconds, or this fraction of the window.
ANNOUNCED_AFTER, ANNOUNCED_SHARE = 2.0, 1 / 4
# A failure this many seconds after the last one begins a new outage. Tries of a request are closer together.
FORGOTTEN_AFTER = 45.0
# Not the module's generator: fetching must not advance a generator that the program has seeded.
JITTER = random.SystemRandom()


class Outage:
    """The time during which a server does not answer, or answers that it is busy. Thread-safe."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._seconds = url, seconds
        self._lock = threading.Lock()
        # Whether the server ever answered this process.
        self.answered = False
        self._began: float | None = None
        self._last = 0.0
        self._announced = False

    @property
    def window(self) -> float:
        """Seconds for which a request is retried."""
        return self._seconds if self.answered else min(self._seconds, MAX_OPENING_SECONDS)

    def end(self) -> None:
        """Record that the server answered."""
        self.answered = True
        # No lock if nothing changes: this is called after every request.
        if self._began is not None:
            with self._lock:
                self._began = None

    def pause(
        self, attempt: int, began: float, reason: str, retry_after: float, min_tries: int = MIN_TRIES
    ) -> float | None:
        """Return the seconds until a failed request is tried again; None if it is not.

        attempt: number of tries so far. began: time.monotonic() of the first. reason: of the failure.
        retry_after: seconds that the server asks to wait. min_tries: tries that it has in any case.
        """
        now, window = time.monotonic(), self.window
        with self._lock:
            if self._began is None or now - self._last > FORGOTTEN_AFTER:
                self._began, self._announced = now, False
            self._last = now
            # One object may fail while others are answered.
            remaining = window - max(now - self._began, now - began)
            if not window or (remaining <= 0 and attempt >= min_tries):
                return None
            lasted = window - remaining
            announces = attempt >= MIN_TRIES and lasted >= min(ANNOUNCED_AFTER, ANNOUNCED_SHARE * window)
            announces, self._announced = announces and not self._announced, self._announced or announces
        if announces and remaining > 0:
            self._announce(reason, remaining)
        pause = min(MAX_PAUSE, FIRST_PAUSE * PAUSE_GROWTH ** min(attempt - 1, 40), MAX_PAUSE_SHARE * window)
        pause = max(JITTER.uniform(pause / 2, pause), min(retry_after, MAX_PAUSE_ASKED))
        # The last try comes when the window ends.
        return min(pause, remaining) if remaining > 0 else min(pause, FIRST_PAUSE)

    def _announce(self, reason: str, remaining: float) -> None:
        message = f"{shown(self._url)}: {reason}; trying for another {remaining:.0f} s (retry_seconds)"
        # A filter that turns warnings into errors must not end the request.
        with contextlib.suppress(Warning):
            # Not warn(): it shows a text once, but an outage may come again.
            warnings.warn_explicit(message, RuntimeWarning, "batchplant", 1, module="batchplant")
